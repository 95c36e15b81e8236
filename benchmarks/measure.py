"""Timing of several ways to do the same thing, and the memory that one takes."""

from __future__ import annotations

import ctypes
import gc
import random
import statistics
import time
from collections.abc import Callable


def alternate(
    calls: dict[str, Callable[[], object]], seconds: float, warm_up: int = 3, least: int = 5, before: dict[str, Callable[[], object]] | None = None
) -> dict[str, list[float]]:
    """Call each contestant in turn, round after round, until every one has used its share; times in seconds per contestant.

    Alternating lets a slow phase of the machine hit all of them. `seconds` is per contestant, and at least `least`
    rounds are run. The order is drawn anew each round, so that nobody always runs after the same neighbour.
    `before`: what is called first, untimed, for some of them; it brings into the caches what has room there.
    """
    for call in calls.values():
        for _ in range(warm_up):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    names, order = list(calls), random.Random(0)
    end = time.perf_counter() + seconds * len(calls)
    while len(times[names[0]]) < least or time.perf_counter() < end:
        for name in names:
            if before and name in before:
                before[name]()
            start = time.perf_counter()
            calls[name]()
            times[name].append(time.perf_counter() - start)
        order.shuffle(names)
    return times


def median_ms(times: list[float]) -> float:
    """The median of times in seconds, in milliseconds."""
    return 1e3 * statistics.median(times)


def reset_peak() -> None:
    """Start anew with the peak of the resident set, as low as the process can be made."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:  # not glibc
        pass
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_mb() -> float:
    """The largest resident set since `reset_peak`, in MiB."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return float("nan")
