"""What each kernel takes while the graphs that it is part of run: on the values and layouts it has there, after the kernels before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlirc.frontend.report import GraphReport

CALLS = 15
"""A kernel's time is the median of as many."""


def kernels_ms(call: Callable[[], object], graphs: Sequence[GraphReport]) -> dict[str, float]:
    """Milliseconds of all runs of each kernel in a call, by name; about 1 us of each run is Python's.

    `graphs`: those that `call` runs, complete after its first time. A kernel that a graph runs once (of weights alone) takes 0.
    """
    from mlirc.runtime.profile import profiling

    for _ in range(3):
        call()
    taken: dict[str, list[float]] = {symbol: [] for graph in graphs for symbol in graph.symbols}
    for _ in range(CALLS):
        with profiling() as seconds:
            call()
        for symbol, times in taken.items():
            times.append(seconds.get(symbol, 0.0))
    return {name: 1e3 * median(taken[symbol]) for graph in graphs for symbol, name in graph.symbols.items()}
