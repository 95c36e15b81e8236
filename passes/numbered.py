"""Kernels with numbers in the place of sizes that are symbols: how their loops and values lie to each other is the same for all sizes.

    %s: tensor<1x12x?x?xf32> {sizes = [1, 12, n0, n1], strides = [n2, n3, n1, 1]}     ->     [1, 12, 1021, 1031], [12631812, 1052651, 1031, 1]

Numbers of different symbols have no factor in common, so that what is equal with them is equal.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..dialects.mlir import ir
from ..errors import CompileError

if TYPE_CHECKING:
    from .chained import ChainFunction
    from .vectorize.kernel import KernelFunction

NUMBERS = (1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063)
"""Primes: rows and columns of which no part is another."""


@dataclass
class _Numbers:
    """As `structure.Shapes`, of numbers."""

    kernel: KernelFunction
    known: Mapping[ir.Value, int]

    def number(self, size: Hashable) -> int:
        if isinstance(size, int):
            return size
        if size in self.known:
            return self.known[size]  # type: ignore[index]
        raise CompileError("a size is no symbol, but computed")

    def of(self, value: ir.Value) -> list[int]:
        return [self.number(n) for n in self.kernel.shapes.of(value)]


def numbered(chain: ChainFunction) -> list[KernelFunction]:
    """The parts of a chain, with dense values between them. Raises CompileError where sizes are other than numbers and symbols."""
    places: dict[int, int] = {}
    out = []
    for n, (kernel, slots) in enumerate(zip(chain.parts, chain.slots)):
        symbols = [(v, slot) for v, slot in zip(kernel.arguments, slots) if isinstance(v.type, ir.IndexType) and slot is not None]
        sizes = {size for v in (*kernel.arguments, *kernel.results) if isinstance(v.type, ir.RankedTensorType) for size in kernel.shapes.of(v)}
        for v, slot in symbols:
            if v in sizes and slot not in places:
                if len(places) == len(NUMBERS):
                    raise CompileError(f"more than {len(NUMBERS)} symbols")
                places[slot] = NUMBERS[len(places)]
        numbers = _Numbers(kernel, {v: places[slot] for v, slot in symbols if slot in places})
        inside = {kernel.arguments[at] for p in chain.passed for part, at in p.read if part == n}
        made = {m for p in chain.passed for part, m in [p.made] if part == n}
        stand_in = copy.copy(kernel)
        stand_in.domain = replace(kernel.domain, sizes=[numbers.number(size) for size in kernel.domain.sizes])
        stand_in.shapes = numbers  # type: ignore[assignment]
        stand_in.strides = {v: dense(numbers.of(v)) if v in inside else strides for v, strides in kernel.strides.items()}
        results = [dense(numbers.of(v)) if m in made else strides for m, (v, strides) in enumerate(zip(kernel.results, kernel.result_strides))]
        stand_in.result_strides = results  # type: ignore[assignment]
        stand_in._accesses = None
        out.append(stand_in)
    return out


def dense(sizes: Sequence[int]) -> list[object]:
    """Strides of a value without gaps."""
    return [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
