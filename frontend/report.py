"""What the compiler did with each graph, kept for `mlirc.explain`, the log and `torch._dynamo.utils.counters`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..driver import CompiledGraph
from ..runtime.memory import plan_offsets
from .imported import ImportedGraph, Spent


@dataclass
class AtenNode:
    """A node left to ATen, and why."""

    node: str
    op: str
    reason: str
    source: str | None
    spent: Spent = field(repr=False, compare=False)


@dataclass
class GraphReport:
    """One compiled graph."""

    direction: str
    nodes: int
    aten: list[AtenNode]
    kernels: list[str]
    calls: int
    arena_bytes: int | None
    """Memory for intermediates of a call; None where it depends on symbolic sizes."""
    packed_bytes: int
    """What is computed from weights and kept beside them."""
    arena: str
    """`arena_bytes` as text, with symbols where there are some."""
    seconds: dict[str, float] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict, repr=False)
    """Exported symbol -> name of the kernel."""

    @classmethod
    def make(
        cls, direction: str, graph: ImportedGraph, compiled: CompiledGraph, seconds: dict[str, float]
    ) -> "GraphReport":
        used = {h.name for h in compiled.planned.hosts}
        aten = [AtenNode(c.node, str(c.target), c.reason, c.source, c.spent) for c in graph.aten_calls if c.name in used]
        names = [k.name for k in compiled.kernels]
        symbols = {k.symbol: k.name for k in compiled.kernels}
        planned = compiled.planned
        _, arena = plan_offsets(planned.plan.arena)
        size = int(arena) if isinstance(arena, int) or arena.is_Integer else None
        text = readable(size) if size is not None else f"{arena} bytes"
        return cls(direction, graph.nodes, aten, names, len(planned.plan.steps), size, sum(planned.weight_bytes), text, seconds, symbols)

    def memory(self) -> str:
        """Peak of the intermediates, and packed weights."""
        return f"{self.arena} of intermediates, {readable(self.packed_bytes)} of packed weights"

    def summary(self) -> str:
        times = ", ".join(f"{k} {v:.2f} s" for k, v in self.seconds.items())
        return (
            f"{self.direction} graph: {self.nodes} nodes, {len(self.kernels)} kernels in {self.calls} calls, "
            f"{len(self.aten)} nodes left to ATen; {self.memory()}; {times}"
        )


def readable(n: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if n < 10240 or unit == "MiB":
            return f"{n:.0f} {unit}" if unit == "bytes" or n >= 100 else f"{n:.1f} {unit}"
        n /= 1024  # type: ignore[assignment]
    raise AssertionError


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
