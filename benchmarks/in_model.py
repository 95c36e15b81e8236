"""What each kernel of a whole model takes while the model runs: on the values and layouts it has there, after the kernels before it."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

CALLS = 15
"""Calls of the model: a kernel's time is the median of theirs."""


def kernel_ms(function: Callable[..., Any], args: Any, kwargs: Any, dynamic: bool = False) -> dict[str, float]:
    """Milliseconds of all runs of each kernel in a call of `function`, by name; about 1 us of each run is Python's.

    A kernel that the graph runs once (of weights alone) takes 0.
    """
    import torch
    import torch._dynamo

    from mlirc.frontend.report import listening
    from mlirc.runtime.profile import profiling

    torch._dynamo.reset()
    with torch.no_grad(), listening() as graphs:
        compiled = torch.compile(function, backend="mlirc", dynamic=dynamic)
        for _ in range(3):
            compiled(*args, **kwargs)
        taken: dict[str, list[float]] = {symbol: [] for graph in graphs for symbol in graph.symbols}
        for _ in range(CALLS):
            with profiling() as seconds:
                compiled(*args, **kwargs)
            for symbol, times in taken.items():
                times.append(seconds.get(symbol, 0.0))
    torch._dynamo.reset()
    return {name: 1e3 * median(taken[symbol]) for graph in graphs for symbol, name in graph.symbols.items()}
