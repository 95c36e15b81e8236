"""What the compiler did with each graph, kept for `mlirc.explain`, the log and `torch._dynamo.utils.counters`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..driver import CompiledGraph
from .imported import AtenCall, ImportedGraph


@dataclass
class AtenNode:
    """A node left to ATen, and why."""

    node: str
    op: str
    reason: str
    source: str | None
    call: AtenCall = field(repr=False, compare=False)


@dataclass
class GraphReport:
    """One compiled graph."""

    direction: str
    nodes: int
    aten: list[AtenNode]
    kernels: list[str]
    calls: int
    arena_bytes: int | None
    seconds: dict[str, float] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict, repr=False)
    """Exported symbol -> name of the kernel."""

    @classmethod
    def make(
        cls, direction: str, graph: ImportedGraph, compiled: CompiledGraph, seconds: dict[str, float]
    ) -> "GraphReport":
        used = {h.name for h in compiled.planned.hosts}
        aten = [AtenNode(c.node, str(c.target), c.reason, c.source, c) for c in graph.aten_calls if c.name in used]
        names = [k.name for k in compiled.kernels]
        symbols = {k.symbol: k.name for k in compiled.kernels}
        return cls(direction, graph.nodes, aten, names, len(compiled.planned.plan.steps), None, seconds, symbols)

    def summary(self) -> str:
        times = ", ".join(f"{k} {v:.2f} s" for k, v in self.seconds.items())
        return (
            f"{self.direction} graph: {self.nodes} nodes, {len(self.kernels)} kernels in {self.calls} calls, "
            f"{len(self.aten)} nodes left to ATen; {times}"
        )


_reports: list[GraphReport] = []
_listeners: list[list[GraphReport]] = []


def record(report: GraphReport) -> None:
    """Remember a graph, and count it where torch counts such things."""
    from torch._dynamo.utils import counters

    _reports.append(report)
    for listener in _listeners:
        listener.append(report)
    del _reports[:-1000]
    counters["mlirc"]["graphs"] += 1
    for a in report.aten:
        counters["mlirc_aten"][a.op] += 1


def recorded() -> list[GraphReport]:
    """The graphs compiled so far, oldest first."""
    return list(_reports)


@contextlib.contextmanager
def listening() -> Iterator[list[GraphReport]]:
    """A list of the graphs that are compiled meanwhile, in all threads."""
    mine: list[GraphReport] = []
    _listeners.append(mine)
    try:
        yield mine
    finally:
        # By identity: two listeners that have heard the same are equal.
        _listeners[:] = [other for other in _listeners if other is not mine]
