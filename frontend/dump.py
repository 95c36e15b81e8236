"""What each stage of the compiler makes of a model, for `mlirc dump`. Compiles in this process and runs nothing of it.

The graphs are captured as torch.compile captures them; their decomposed ATen graphs run in eager mode, so that what comes
after a graph break is captured too. Code for CPUs that this machine is not can be shown as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._functorch.aot_autograd import make_boxed_func

from ..dialects.mlir import ir
from ..driver import adjust_kernels, compile_kernel, mark_loose, mark_rounding, mark_weights, run_graph_passes
from ..errors import CompileError
from ..lowering.target import Target
from ..options import Options
from ..passes import structure as st
from ..passes.outline import Kernel
from ..passes.registry import UserCode, graph_stages, kernel_names, kernel_stages
from ..passes.results import lying
from .backend import capture
from .explain import call, restored
from .imported import ImportedGraph
from .importer import import_graph
from .saved import lay, loose_results, report_strides, saved_outputs
from .static_inputs import static_inputs, weight_inputs
from .user_model import UserModel


@dataclass
class Captured:
    """One ATen graph. `torch_code` is the graph of torch functions before it, once for forward and backward; `static` are the
    placeholders that are parameters or buffers."""

    number: int
    direction: str
    module: torch.fx.GraphModule
    torch_code: str
    static: list[int] = field(default_factory=list)
    inputs: Sequence[Any] = ()
    saved: range = range(0)
    """Outputs that are saved for the backward graph."""

    @property
    def name(self) -> str:
        return f"graph{self.number}_{self.direction}"


@dataclass(frozen=True)
class Snapshot:
    """The code after one stage. `kernel` is empty for a whole graph; `stage` one of `graph_stages` or `kernel_stages`."""

    graph: str
    kernel: str
    stage: str
    text: str
    suffix: str
    changed: bool
    """Whether the stage has changed anything."""


@dataclass
class Selection:
    """What to show. `kernel(number, name)` picks kernels; stages not in `stages` are not even printed to text."""

    stages: frozenset[str]
    kernel: Callable[[int, str], bool] = lambda number, name: True
    locations: bool = False
    compare: bool = False
    """Find out which stages change something."""


Show = Callable[[Snapshot], None]


def capture_graphs(model: UserModel, options: Options, dynamic: bool | None = None, train: bool = False) -> list[Captured]:
    """All ATen graphs that a call of the model compiles; with `train`, forward and backward ones."""
    found: list[Captured] = []
    pending = ""

    def compiler(gm: torch.fx.GraphModule, inputs: Any, direction: str) -> Any:
        nonlocal pending
        graph = Captured(len(found), direction, gm, pending, static_inputs(), inputs, saved_outputs(gm, direction))
        found.append(graph)
        pending = ""
        if direction == "forward":
            _report_saved(graph, options)
        return make_boxed_func(gm.forward)

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        nonlocal pending
        pending = gm.print_readable(print_output=False)
        return capture(gm, inputs, compiler, options)

    function = model.function
    compiled = torch.compile(function, backend=backend, dynamic=dynamic, isolate_recompiles=True)  # type: ignore[call-overload]
    with torch.set_grad_enabled(train), restored(function, model.args, model.kwargs):
        call(function, compiled, model.args, model.kwargs)
    return found


def _report_saved(graph: Captured, options: Options) -> None:
    """Tell the backward graph how what is saved for it lies."""
    with ir.Context():
        try:
            imported, writes = _imported(graph, options)
            function, _ = run_graph_passes(imported.module, writes, Target.parse(options.target))
        except CompileError:
            return  # which is raised where the graph is shown
        lay(imported, lying(function))
        report_strides(imported)


def _imported(graph: Captured, options: Options) -> tuple[ImportedGraph, list[int]]:
    """The module of a graph, ready for the graph passes, and the tensor arguments that it writes to."""
    static = graph.static if graph.direction == "inference" and options.prepack else []
    imported = import_graph(graph.module, options.fallback, direction=graph.direction, inputs=graph.inputs, saved=graph.saved, static=static)
    tensors = imported.tensors
    mark_weights(imported.module, [tensors.index(i) for i in weight_inputs(imported, static)])
    mark_loose(imported.module, loose_results(imported))
    mark_rounding(imported.module, options)
    return imported, [tensors.index(i) for i in imported.writes]


@dataclass
class GraphSummary:
    """The kernels of a graph with the number of their calls, and the ops left to ATen with reasons."""

    name: str
    nodes: int
    kernels: list[tuple[Kernel, int]]
    aten: list[tuple[str, str]]


def dump_graph(graph: Captured, options: Options, user: UserCode, selection: Selection, show: Show) -> GraphSummary:
    """Compile one graph, showing what is selected as it comes. Raises CompileError where the compiler would."""
    target = Target.parse(options.target)
    stages = _Stages(graph.name, "", selection, show)
    if graph.torch_code:
        stages.see("torch", graph.torch_code)
    stages.see("fx", lambda: graph.module.print_readable(print_output=False))
    with ir.Context():
        imported, writes = _imported(graph, options)
        function, kernels = run_graph_passes(imported.module, writes, target, stages.see, user)
        summary = _summary(graph.name, imported, function, kernels)
    for number, kernel in enumerate(kernels):
        if selection.kernel(number, kernel.name):
            dump_kernel(kernel, options, user, selection, show, graph.name)
    return summary


def dump_kernel(kernel: Kernel, options: Options, user: UserCode, selection: Selection, show: Show, graph: str = "") -> None:
    """Compile one kernel, showing what is selected as it comes. Raises CompileError where the compiler would."""
    if not selection.compare and selection.stages.isdisjoint(kernel_stages(user, selection.locations)):
        return
    stages = _Stages(graph, kernel.name, selection, show)
    names = kernel_names()
    target = Target.parse(options.target)
    (adjustment,) = adjust_kernels([kernel], target, options, user.kernel_files, measure=False)
    text = kernel.located if selection.locations else kernel.text
    compile_kernel(
        text, target, kernel.name, lambda stage, what: stages.see(names.of(stage), what), user, adjustment, locations=selection.locations
    )


def _summary(name: str, imported: ImportedGraph, function: ir.Operation, kernels: list[Kernel]) -> GraphSummary:
    calls = [0] * len(kernels)
    used: set[str] = set()
    for op in map(st.operation, function.regions[0].blocks[0].operations):
        if "mlirc.kernel" in op.attributes:
            calls[ir.IntegerAttr(op.attributes["mlirc.kernel"]).value] += 1
        elif op.name == "func.call":
            used.add(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
    aten = [(str(c.target), c.reason) for c in imported.aten_calls if c.name in used]
    return GraphSummary(name, imported.nodes, list(zip(kernels, calls)), aten)


class _Stages:
    """Turns what an observer is told into snapshots."""

    def __init__(self, graph: str, kernel: str, selection: Selection, show: Show) -> None:
        self.graph = graph
        self.kernel = kernel
        self.selection = selection
        self.show = show
        self.before = ""

    def see(self, stage: str, what: Any) -> None:
        wanted = stage in self.selection.stages
        if not wanted and not self.selection.compare:
            return
        text = self._text(what).strip("\n") + "\n"
        changed = text != self.before
        self.before = text
        if wanted:
            suffix = {"torch": "py", "fx": "py", "llvm": "ll", "asm": "s"}.get(stage, "mlir")
            self.show(Snapshot(self.graph, self.kernel, stage, text, suffix, changed))

    def _text(self, what: Any) -> str:
        if isinstance(what, str):
            return what
        if callable(what):
            return str(what())
        text: str = what.operation.get_asm(enable_debug_info=self.selection.locations)
        return text


__all__ = [
    "Captured",
    "GraphSummary",
    "Selection",
    "Snapshot",
    "capture_graphs",
    "dump_graph",
    "dump_kernel",
    "graph_stages",
    "kernel_stages",
]
