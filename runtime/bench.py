"""Runs kernels alone on random data, to compare their results and their times."""

from __future__ import annotations

import ctypes
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import log
from .amx import request_tiles_if_any
from .loader import Library

logger = log.get_logger("tuning")

SECONDS = 0.3
"""Of timing for each kernel, shared by its candidates."""
LEAST_ROUNDS, MOST_ROUNDS = 5, 200
SHORTEST = 50e-6
"""Seconds of a sample: shorter calls are repeated."""
CLEARLY = 0.97
"""Of the first one's time, from where on another one is taken."""
BEYOND_CACHE = 64 << 20
"""Bytes of copies of the packed operand."""


@dataclass(frozen=True)
class Buffer:
    """An argument or result: `elements` of a dtype (`f32`, `bf16`, `i1`, ...); a number of that dtype where `elements` is 0."""

    dtype: str
    elements: int


@dataclass(frozen=True)
class Operands:
    """What a kernel is called with. `panel` is the argument that holds the packed operand of a product: a model has it elsewhere than
    in cache when its turn comes, since other layers have run since it was read last, and so has the bench."""

    arguments: tuple[Buffer, ...]
    results: tuple[Buffer, ...]
    panel: int | None = None


def measure(operands: Operands, objects: dict[str, bytes]) -> tuple[int, list[float]]:
    """(Number of the winner, median seconds of each) of objects by symbol; the first one wins unless another is right and clearly faster.

    Raises ValueError where the kernel cannot be judged by random data.
    """
    library = Library(objects)
    try:
        bench = Bench(operands)
        entries = [entry_of(library, symbol) for symbol in objects]
        expected = bench.results(entries[0])
        if not all(np.isfinite(r).mean() > 0.5 for r in expected if r.size):
            raise ValueError("its results on random data are not finite")
        right = [True] + [bench.agrees(entry, expected) for entry in entries[1:]]
        for symbol, good in zip(objects, right):
            if not good:
                logger.warning("a candidate gives another result, and is left out: %s", symbol)
        contenders = [n for n, good in enumerate(right) if good]
        samples = rounds([functools.partial(bench.run, entries[n]) for n in contenders])
        times = [float("inf")] * len(objects)
        for n, t in zip(contenders, samples):
            times[n] = statistics.median(t)
        return contenders[best_of(samples)], times
    finally:
        library.close()


def best_of(samples: Sequence[Sequence[float]]) -> int:
    """Who wins, given everybody's times of the same rounds: the first one unless another is clearly faster, round by round."""
    ratios = [statistics.median(a / b for a, b in zip(mine, samples[0])) for mine in samples]
    best = min(range(len(samples)), key=ratios.__getitem__)
    return best if ratios[best] < CLEARLY else 0


def rounds(calls: Sequence[Callable[[], None]], clock: Callable[[], float] = time.perf_counter, seconds: float = SECONDS) -> list[list[float]]:
    """Seconds of a call, in rounds: everybody is called in each, beginning with another one each time."""

    def sample(call: Callable[[], None], repeat: int) -> float:
        start = clock()
        for _ in range(repeat):
            call()
        return (clock() - start) / repeat

    calls = list(calls)
    for call in calls:
        call()
    shortest = min(sample(call, 1) for call in calls)
    repeat = max(1, min(int(SHORTEST / max(shortest, 1e-9)), 1000))
    out: list[list[float]] = [[] for _ in calls]
    end = clock() + seconds
    order = list(range(len(calls)))
    while len(out[0]) < LEAST_ROUNDS or (clock() < end and len(out[0]) < MOST_ROUNDS):
        for n in order:
            out[n].append(sample(calls[n], repeat))
        order.append(order.pop(0))
    return out


_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def entry_of(library: Library, symbol: str) -> Callable[[Any], None]:
    """A kernel as a function of its context."""
    return _CALL(library.address(symbol))


_WIDTHS = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "i1": 1}
_TOLERANCE = {"f64": 1e-9, "f32": 1e-3, "bf16": 5e-2, "f16": 1e-2}
_SENTINEL = 0x5A


class Bench:
    """The buffers of a kernel, and contexts to call it with, one per copy of its packed operand."""

    def __init__(self, operands: Operands, seed: int = 0) -> None:
        request_tiles_if_any()
        generator = np.random.default_rng(seed)
        self.operands = operands
        self._status = np.zeros(1, np.int64)
        arguments = [_random(b, generator) for b in operands.arguments]
        self._results = [_aligned(b.elements * _WIDTHS[b.dtype]) for b in operands.results]
        copies = [arguments]
        if operands.panel is not None:
            size = arguments[operands.panel].nbytes
            for _ in range(min(BEYOND_CACHE // max(size, 1), MOST_ROUNDS)):
                other = _aligned(size)
                other[...] = arguments[operands.panel]
                copies.append([other if n == operands.panel else a for n, a in enumerate(arguments)])
        self._contexts = [self._context(c) for c in copies]
        self._keep = copies
        self._next = 0

    def _context(self, arguments: list[np.ndarray]) -> Any:
        slots = [self._status.ctypes.data]
        for b, a in zip(self.operands.arguments, arguments):
            slots.append(a.ctypes.data if b.elements else int(a.view(np.int64)[0]))
        slots += [r.ctypes.data for r in self._results]
        return (ctypes.c_int64 * len(slots))(*slots)

    def run(self, entry: Callable[[Any], None]) -> None:
        """One call, with the copy of the packed operand that was read the longest time ago."""
        self._next = (self._next + 1) % len(self._contexts)
        entry(self._contexts[self._next])

    def results(self, entry: Callable[[Any], None]) -> list[np.ndarray]:
        """What a candidate computes, as numbers. Raises ValueError if it reports an error."""
        for r in self._results:
            r[...] = _SENTINEL
        self._status[0] = 0
        entry(self._contexts[0])
        if self._status[0]:
            raise ValueError(f"random data is not for it (status {self._status[0]})")
        return [_numbers(b, r) for b, r in zip(self.operands.results, self._results)]

    def agrees(self, entry: Callable[[Any], None], expected: list[np.ndarray]) -> bool:
        """Whether a candidate computes the same, but for roundings."""
        try:
            got = self.results(entry)
        except ValueError:
            return False
        return all(_same(a, b, _TOLERANCE.get(buffer.dtype, 0.0)) for a, b, buffer in zip(got, expected, self.operands.results))


def _same(got: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    finite = np.isfinite(expected)
    if not np.array_equal(np.isnan(got), np.isnan(expected)) or not np.array_equal(np.isfinite(got), finite):
        return False
    got, expected = got[finite], expected[finite]
    if not expected.size:
        return True
    scale = np.sqrt(np.mean(expected.astype(np.float64) ** 2))
    return bool((np.abs(got - expected) <= tolerance * (np.abs(expected) + scale)).all())


def _aligned(nbytes: int) -> np.ndarray:
    """As arena buffers are."""
    whole = np.zeros(nbytes + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + nbytes]


def _random(buffer: Buffer, generator: np.random.Generator) -> np.ndarray:
    """Bytes of random numbers between -1 and 1; small integers; zeros of the wide integers, which may be indices."""
    n = max(buffer.elements, 1)
    block = min(n, 1 << 20)
    match buffer.dtype:
        case "f64" | "f32" | "f16":
            values = generator.uniform(-1, 1, block).astype({"f64": np.float64, "f32": np.float32, "f16": np.float16}[buffer.dtype])
        case "bf16":
            values = (generator.uniform(-1, 1, block).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        case "i8" | "i16":
            values = generator.integers(0, 8, block).astype({"i8": np.int8, "i16": np.int16}[buffer.dtype])
        case "i1":
            values = generator.integers(0, 2, block).astype(np.uint8)
        case _:
            values = np.zeros(block, np.int64 if buffer.dtype == "i64" else np.int32)
    if not buffer.elements:  # a number, in a slot of eight bytes
        out = _aligned(8)
        out[: values.nbytes] = values.view(np.uint8)
        return out
    out = _aligned(n * _WIDTHS[buffer.dtype])
    out.view(values.dtype)[...] = np.resize(values, n)
    return out


def _numbers(buffer: Buffer, data: np.ndarray) -> np.ndarray:
    match buffer.dtype:
        case "bf16":
            return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        case "f64":
            return data.view(np.float64).copy()
        case "f32" | "f16":
            return data.view({"f32": np.float32, "f16": np.float16}[buffer.dtype]).astype(np.float32)
        case _:
            return data.view({1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[_WIDTHS[buffer.dtype]]).astype(np.float64)
