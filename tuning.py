"""Measures strategies of kernels on this machine, for `mode="max-autotune"`, and remembers the winners.

For each kernel with a product that nobody has measured yet, the neighbourhood of the analytic choice is compiled in the
workers, all of it before anything is timed; then every candidate runs alone on the same random data, in turns (`runtime.bench`).
A candidate wins if its result is that of the analytic choice, and its time clearly less. Winners are kept beside the kernels
(`runtime.cache`), by kernel (ops, shapes, dtypes), target, CPU and number of threads.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import log
from .errors import CompileError
from .passes.strategy import MODEL, Adjustment
from .runtime.cache import KernelCache, kernel_key, pack, unpack

if TYPE_CHECKING:
    from .lowering.target import Target
    from .passes.strategy.trial import Trial
    from .runtime.pool import Pool

logger = log.get_logger("tuning")

UNKNOWN = Adjustment((), "the analytic choice: not measured yet on this machine with this number of threads")

_remembered: dict[str, Adjustment] = {}
"""Of this process: also for those that have no cache on disk."""


@dataclass(frozen=True)
class Job:
    """A kernel to be measured: what people call it, and its text."""

    name: str
    text: str


def symbol_of(key: str) -> str:
    """What a kernel's object exports."""
    return f"mlirc_{key[:24]}"


def threads() -> int:
    """How many threads kernels are called with at the moment."""
    import torch

    return torch.get_num_threads()


@functools.cache
def cpu() -> str:
    """Which CPU this is: names lie about features, and tell one machine from another well enough."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = dict(line.split(":", 1) for line in file.read().partition("\n\n")[0].splitlines() if ":" in line)
        found = {name.strip(): value.strip() for name, value in lines.items()}
        return " ".join(found.get(name, "?") for name in ("vendor_id", "cpu family", "model", "stepping"))
    except OSError:
        import platform

        return platform.processor()


def record_key(text: str, target: Target, n_threads: int) -> str:
    """Where the winner of a kernel is kept."""
    return kernel_key(text, target.key(), f"tuning for {cpu()} with {n_threads} threads")


def recall(text: str, target: Target, cache: KernelCache | None) -> Adjustment | None:
    """What was measured for a kernel, here or in another process; None if nothing was, or what is on disk makes no sense."""
    key = record_key(text, target, threads())
    if key not in _remembered and cache is not None and (found := cache.get(key)) is not None:
        try:
            metadata, _ = unpack(found)
            _remembered[key] = _adjustment(metadata)
        except (ValueError, TypeError, KeyError, UnicodeDecodeError):
            return None
    return _remembered.get(key)


def _adjustment(metadata: dict[str, Any]) -> Adjustment:
    fields = tuple((str(name), value) for name, value in metadata["fields"])
    if any(value is not None and not isinstance(value, int) for _, value in fields):
        raise ValueError("mlirc: a field of a strategy is a number")
    best, model, tried = float(metadata["us"]), float(metadata["model_us"]), int(metadata["tried"])
    if fields:
        return Adjustment(fields, f"measured: {best:.1f} us, analytic choice {model:.1f} us")
    others = f", the best of {tried} others {best:.1f} us" if tried else "; there is nothing else to try"
    return Adjustment((), f"the analytic choice, measured: {model:.1f} us{others}")


def tune(jobs: Sequence[Job], target: Target, cache: KernelCache | None, pool: Pool) -> dict[str, Adjustment]:
    """Text -> what to change, for each kernel that can be measured. Objects of the chosen candidates are put into the cache."""
    found: dict[str, Adjustment] = {}
    waiting: dict[str, Job] = {}
    for job in jobs:
        known = recall(job.text, target, cache)
        if known is not None:
            found[job.text] = known
        else:
            waiting.setdefault(job.text, job)
    if waiting:
        found |= _tune(list(waiting.values()), target, cache, pool)
    return found


def _tune(jobs: Sequence[Job], target: Target, cache: KernelCache | None, pool: Pool) -> dict[str, Adjustment]:
    found: dict[str, Adjustment] = {}
    futures: list[Future[Any]] = []

    def submit(path: str, *args: object) -> Future[Any]:
        futures.append(pool.submit(path, *args))
        return futures[-1]

    try:
        trials: list[tuple[Job, Trial]] = []
        asked = [submit("mlirc.passes.strategy.trial:make_trial", job.text, target) for job in jobs]
        for job, future in zip(jobs, asked):
            trial = _outcome(future, f"{job.name}: no trial")
            if trial is None or isinstance(trial, str):
                found[job.text] = _remembered[record_key(job.text, target, threads())] = Adjustment((), f"not measured: {trial or 'it failed'}")
            else:
                trials.append((job, trial))
        total = sum(len(trial.candidates) + 1 for _, trial in trials)
        with _progress(2 * total) as advance:
            compiled = []
            for job, trial in trials:
                adjustments = [MODEL, *(Adjustment(fields) for fields in trial.candidates)]
                keys = [kernel_key(job.text, target.key(), a.key()) for a in adjustments]
                objects = [
                    submit("mlirc.driver:compile_kernel_job", job.text, target, symbol_of(key), (), a) for key, a in zip(keys, adjustments)
                ]
                compiled.append((job, trial, keys, objects))
            ready = []
            for job, trial, keys, objects in compiled:
                codes = []
                for n, future in enumerate(objects):
                    codes.append(_outcome(future, f"{job.name}: candidate {n} does not compile"))
                    advance(1)
                ready.append((job, trial, keys, codes))
            for job, trial, keys, codes in ready:
                found[job.text] = _decide(job, trial, keys, codes, target, cache)
                advance(len(codes))
    except BaseException:
        pool.abandon(futures)
        raise
    return found


def _outcome(future: Future[Any], what: str) -> Any:
    """None where a worker has failed: whoever wants the kernel itself hears of it."""
    try:
        return future.result()
    except Exception as e:
        logger.debug("%s: %s", what, e)
        return None


def _decide(job: Job, trial: Trial, keys: list[str], codes: list[bytes | None], target: Target, cache: KernelCache | None) -> Adjustment:
    """Measure one kernel and remember the winner."""
    candidates: list[tuple[Any, ...]] = [(), *trial.candidates]
    if codes[0] is None:
        return Adjustment((), "not measured: it does not compile")
    from .runtime import bench

    usable = [n for n, code in enumerate(codes) if code is not None]
    try:
        winner, times = bench.measure(trial.operands, {symbol_of(keys[n]): codes[n] for n in usable})  # type: ignore[misc]
    except (CompileError, MemoryError, ValueError) as e:
        logger.info("%s is not measured: %s", job.name, e)
        return Adjustment((), f"not measured: {str(e).splitlines()[0]}")
    n = usable[winner]
    us = [1e6 * t for t in times]
    best = us[winner] if winner else min(us[1:], default=us[0])
    metadata = {"name": job.name, "fields": [list(pair) for pair in candidates[n]], "us": best, "model_us": us[0], "tried": len(us) - 1}
    chosen = _remembered[record_key(job.text, target, threads())] = _adjustment(metadata)
    logger.info("%s: %s %s", job.name, chosen.key(), chosen.reason)
    for m, t in zip(usable, us):
        logger.debug("%s: %8.1f us  %s", job.name, t, candidates[m])
    if cache is not None:
        cache.put(keys[n], pack({"name": job.name}, codes[n]))  # type: ignore[arg-type]
        cache.put(record_key(job.text, target, threads()), pack(metadata, b""))
    return chosen


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], object]]:
    """A bar on terminals, unless the log is told to be quiet about more than errors."""
    from tqdm import tqdm

    quiet = True if total == 0 or sys.stderr is None or not logger.isEnabledFor(logging.WARNING) else None
    with tqdm(total=total, desc="mlirc: measuring kernels", unit="run", leave=False, disable=quiet) as bar:
        yield bar.update


__all__ = ["Job", "cpu", "recall", "record_key", "symbol_of", "threads", "tune"]
