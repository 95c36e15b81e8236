"""`mlirc.explain`: what a model becomes. Graphs, kernels, what is left to ATen and what that costs, time per compile stage."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from .aten import profiling
from .backend import mlirc as compile_with_mlirc
from .report import GraphReport, listening, readable

RUNS = 3
"""Timed calls for the shares of run time."""
WIDTH = 140
"""Columns of a report that no terminal shows."""


@dataclass
class LeftToAten:
    """A node that ATen runs: why, the user's source line, and its share (0 to 1) of the time of a call."""

    node: str
    op: str
    reason: str
    source: str | None
    share: float


@dataclass
class Report:
    """What `explain` found, over all graphs."""

    graphs: list[GraphReport]
    nodes: int
    """Compiled FX nodes; those left to ATen come on top."""
    aten: list[LeftToAten]
    """Dearest first."""
    kernels: list[str]
    stages: dict[str, float]
    """Compile seconds per stage; `torch` is Dynamo and AOTAutograd."""
    run_seconds: float
    """Of one call, backward pass included if there is one."""
    graph_breaks: dict[str, int] = field(default_factory=dict)
    """Reason -> how often; each ends a graph."""

    @property
    def aten_calls(self) -> dict[str, str]:
        """Op -> the reason why it is left to ATen."""
        return {a.op: a.reason for a in self.aten}

    @property
    def aten_share(self) -> float:
        """Share of run time (0 to 1) that is spent in calls back into ATen."""
        return sum(a.share for a in self.aten)

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=WIDTH).print(self)
        return text.getvalue()

    def __rich__(self) -> RenderableType:
        if not self.graphs:
            return Text("mlirc: no graph reached the backend")
        parts: list[RenderableType] = [self._graph_table()]
        if self.aten:
            parts.append(self._aten_table())
        else:
            parts.append(Text("Nothing is left to ATen."))
        parts.append(Text(f"{len(self.kernels)} kernels: {', '.join(self.kernels)}"))
        times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.stages.items())
        parts.append(Text(f"Compile time: {times}. Run time: {self.run_seconds * 1e3:.2f} ms a call."))
        for reason, count in self.graph_breaks.items():
            parts.append(Text(f"Graph break ({count}x): {reason.strip().splitlines()[0]}"))
        return Group(*parts)

    def _graph_table(self) -> Table:
        table = Table(title="Graphs", title_justify="left")
        table.add_column("graph")
        for heading in ("nodes compiled", "left to ATen", "kernels", "steps of a call", "intermediates", "packed weights"):
            table.add_column(heading, justify="right")
        for number, g in enumerate(self.graphs):
            left = len(g.aten)
            table.add_row(f"{number} {g.direction}", str(g.nodes - left), str(left), str(len(g.kernels)), str(g.calls), g.arena, readable(g.packed_bytes))
        return table

    def _aten_table(self) -> Table:
        title = f"Left to ATen ({self.aten_share:.1%} of run time)"
        table = Table(title=title, title_justify="left")
        table.add_column("calls", justify="right")
        for heading in ("op", "reason", "source"):
            table.add_column(heading, overflow="fold")
        table.add_column("share", justify="right")
        groups: dict[tuple[str, str, str], list[float]] = {}
        for a in self.aten:
            groups.setdefault((a.op, a.reason, _short(a.source or "?")), []).append(a.share)
        for texts, shares in groups.items():
            table.add_row(str(len(shares)), *map(Text, texts), f"{sum(shares):.1%}")
        return table


def explain(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """Compile `model` for these arguments as `torch.compile(model, backend="mlirc")` would, call it, print and return a report.

    Follows the mode that it is called in: with gradients enabled and parameters that require them, the backward graphs are
    compiled and timed as well. The model is called a few times; its buffers, the arguments and the random state are
    restored afterwards, gradients are not accumulated. Nothing that the user has compiled before is touched.
    Options come from MLIRC_OPTIONS. Raises what the compilation raises.
    """
    model = getattr(model, "_orig_mod", None) or getattr(model, "_torchdynamo_orig_callable", None) or model
    report = measure(model, args, kwargs)
    show(report)
    return report


def show(report: Report) -> None:
    """Print it. Tables in pipes and files are not squeezed to the 80 columns that rich assumes there."""
    console = Console()
    if not console.is_terminal and not console.is_jupyter:
        console = Console(width=WIDTH)
    console.print(report)


def measure(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any] | None = None
) -> Report:
    """`explain` with options and without printing."""
    from torch._dynamo.utils import counters

    # A backend that Dynamo has not seen yet: what was compiled before for the same code is not reused, and stays.
    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        return compile_with_mlirc(gm, example_inputs, options=options)

    compiled = torch.compile(model, backend=backend, isolate_recompiles=True)  # type: ignore[call-overload]
    breaks = dict(counters["graph_break"])
    with restored(model, args, kwargs), listening() as graphs:
        first = _timed_call(model, compiled, args, kwargs)
        _timed_call(model, compiled, args, kwargs)
        calls = [call for graph in graphs for call in graph.aten]
        for call in calls:
            call.spent.seconds = 0.0
        with profiling():
            total = sum(_timed_call(model, compiled, args, kwargs) for _ in range(RUNS))
    left = [LeftToAten(c.node, c.op, c.reason, c.source, c.spent.seconds / total) for c in calls]
    stages: dict[str, float] = {}
    for graph in graphs:
        for name, seconds in graph.seconds.items():
            stages[name] = stages.get(name, 0.0) + seconds
    return Report(
        graphs=list(graphs),
        nodes=sum(g.nodes - len(g.aten) for g in graphs),
        aten=sorted(left, key=lambda a: -a.share),
        kernels=[k for g in graphs for k in g.kernels],
        stages={"torch": max(0.0, first - sum(stages.values()) - total / RUNS), **stages},
        run_seconds=total / RUNS,
        graph_breaks={k: n - breaks.get(k, 0) for k, n in counters["graph_break"].items() if n > breaks.get(k, 0)},
    )


def _timed_call(model: Callable[..., Any], compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Seconds of one call, with its backward pass if gradients flow."""
    start = time.perf_counter()
    call(model, compiled, args, kwargs)
    return time.perf_counter() - start


def call(model: Callable[..., Any], compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call `compiled`, and differentiate its outputs if gradients flow; none is accumulated."""
    got = compiled(*args, **kwargs)
    outputs = [x for x in pytree.tree_leaves(got) if isinstance(x, torch.Tensor) and x.requires_grad]
    if outputs:
        used = _used(model, args, kwargs)
        parameters = [p for m in used if isinstance(m, torch.nn.Module) for p in m.parameters()]
        tensors = {id(x): x for x in (*parameters, *used) if isinstance(x, torch.Tensor)}.values()
        if wanted := [x for x in tensors if x.requires_grad]:
            torch.autograd.grad(outputs, wanted, [torch.ones_like(x) for x in outputs], allow_unused=True)


@contextlib.contextmanager
def restored(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Put back buffers and arguments that the calls write to, and the random state."""
    used = _used(model, args, kwargs)
    buffers = [b for m in used if isinstance(m, torch.nn.Module) for b in m.buffers()]
    tensors = {id(x): x for x in (*buffers, *used) if isinstance(x, torch.Tensor)}.values()
    saved = [(x, x.detach().clone(), 0 if x.is_inference() else x._version) for x in tensors]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, old, version in saved:
                    if _is_written(tensor, old, version):
                        tensor.copy_(old)


def _used(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The modules and tensors that a call works with, among other things."""
    return pytree.tree_leaves((model, args, kwargs, *_captured(model)))


def _captured(model: Callable[..., Any]) -> list[Any]:
    """What a function has besides its arguments: the object of a method, variables around it."""
    owner = getattr(model, "__self__", None)
    try:
        variables = inspect.getclosurevars(model)
    except (TypeError, ValueError):  # not a function; a variable that is not set yet
        return [owner]
    return [owner, *variables.nonlocals.values(), *variables.globals.values()]


def _is_written(tensor: torch.Tensor, old: torch.Tensor, version: int) -> bool:
    """Whether a tensor has other bits than its copy. Where they cannot be compared (sparse and nested tensors, those without memory):
    whether torch has counted a write."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu" and not tensor.is_quantized
    if plain and tensor.layout is torch.strided:
        bits, before = (t.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for t in (tensor.detach(), old))
        return not torch.equal(bits, before)
    return not tensor.is_inference() and tensor._version != version


def _short(source: str) -> str:
    """A path below the working directory, or below that of the packages, without it."""
    here = os.getcwd() + os.sep
    source = source.rpartition("/site-packages/")[2]
    return source[len(here) :] if source.startswith(here) else source
