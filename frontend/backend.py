"""The backend of torch.compile: AOTAutograd around `compile_fx`, which turns one ATen graph into a callable."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._functorch.config
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition

from .. import log
from ..dialects.mlir import ir
from ..driver import CompiledGraph, blame, compile_graph
from ..errors import CompileError, OptionError
from ..lowering.target import Target
from ..options import GUARD_PAGES, Options
from ..passes.registry import read_files
from ..passes.strategy import parse_pins
from ..runtime.amx import request_tiles
from ..runtime.pool import get_pool
from ..runtime.program import Program
from ..runtime.weights import WeightTable
from . import forking
from .aten import host_step
from .causal_masks import name_causal_masks
from .collector import paused
from .decompositions import decompositions
from .eager import EagerRunner
from .guarded import GuardedRunner, guarded
from .imported import ImportedGraph
from .importer import import_graph
from .memory_guards import guard_memory
from .overlaps import check_overlaps
from .random import keep_seeds
from .recurrent import let_dynamo_trace_layers, replace_layers
from .registration import allow_several_threads
from .registry import LeaveGraph
from .report import GraphReport, record
from .runner import Runner
from .saved import lay, loose_results, report_strides, saved_outputs
from .static_inputs import leave_out_uncounted, static_inputs, weight_inputs
from .subgraphs import compiled_calls

allow_several_threads()
forking.prepare()
log.register()
logger = log.get_logger("backend")
let_dynamo_trace_layers()


@paused()
def mlirc(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: Any = None) -> Any:
    """What `torch.compile(model, backend="mlirc", mode=..., options=...)` calls for every graph."""
    chosen = Options.make(options, mode)
    read_files(chosen.passes)
    parse_pins(chosen.pin)
    target = Target.parse(chosen.target)
    target.check_runnable()
    if target.has_amx_bf16:
        request_tiles()
    if torch._functorch.config.bundled_autograd_cache:
        raise CompileError("what mlirc compiles cannot be saved with the graph (`aot_compile`): its kernels are kept in a cache of their own")
    get_pool(chosen).warm_up()
    return capture(gm, example_inputs, functools.partial(compile_fx, options=chosen, target=target), chosen)


def capture(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], compiler: Callable[..., Any], options: Options) -> Any:
    """AOTAutograd as mlirc wants it: `compiler(gm, inputs, direction=...)` gets functional ATen graphs."""
    replace_layers(gm)
    leave_out_uncounted(gm, example_inputs)
    whole: list[torch.fx.GraphModule] = []

    def inference(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        whole.append(graph)
        name_causal_masks(graph)
        return compiler(graph, inputs, direction="inference")

    def partition(joint: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        whole.append(joint)
        keep_seeds(joint)
        name_causal_masks(joint)
        budget = torch._functorch.config.activation_memory_budget
        if budget == 1:
            return default_partition(joint, *args, **kwargs)
        # With a budget of nothing, seeds would be drawn again.
        with torch._functorch.config.patch(activation_memory_budget=max(budget, 1e-9)):
            return min_cut_rematerialization_partition(joint, *args, **kwargs)

    traced = aot_autograd(
        fw_compiler=functools.partial(compiler, direction="forward"),
        bw_compiler=functools.partial(compiler, direction="backward"),
        inference_compiler=inference,
        decompositions=decompositions(options.rng),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )(gm, example_inputs)
    check_overlaps(gm)
    guard_memory(gm, whole)
    return traced


def compile_fx(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Options,
    target: Target,
    direction: str = "inference",
    observer: Any = None,
) -> Callable[[list[Any]], Any]:
    """Compile one functional ATen graph; the result takes one list of arguments and clears it (boxed).

    A node or kernel that fails to compile is left to ATen with a warning, and so is a graph that cannot be imported at all.
    Raises CompileError with the node, its source line and the stage where the options do not allow that.
    """
    started = time.perf_counter()
    force: dict[str, str] = {}
    while True:
        try:
            return _compile(gm, example_inputs, options, target, direction, observer, force)
        except LeaveGraph as e:
            error: CompileError = e
            if not options.fallback:
                raise
        except OptionError:
            raise
        except CompileError as e:
            error = e
            if options.strict or not options.fallback:
                raise
        except Exception as e:
            error = CompileError(f"{type(e).__name__}: {e}", stage="graph")
            if options.strict or not options.fallback:
                raise error from e
        new = _blamed(error, gm, force)
        if not new:
            break
        force.update(new)
    warnings.warn(f"mlirc: the {direction} graph runs through ATen as a whole: {error}", stacklevel=2)
    runner = EagerRunner(gm, error.reason, direction, {"import": time.perf_counter() - started})
    record(runner.report)
    return runner


def _blamed(error: CompileError, gm: torch.fx.GraphModule, force: dict[str, str]) -> dict[str, str]:
    """Nodes that had better be left to ATen, with the reason; warns for each error that names such nodes."""
    names = {n.name for n in gm.graph.nodes if n.op == "call_function"}
    out: dict[str, str] = {}
    for e in (error, *error.others):
        mine = [n for n in e.origins if n in names and n not in force]
        if mine:
            what = f"kernel {e.kernel}" if e.kernel else f"node {mine[0]}"
            warnings.warn(f"mlirc: {what} does not compile, its nodes are left to ATen. {e}", stacklevel=3)
            out.update(dict.fromkeys(mine, f"{what} does not compile: {e.reason.splitlines()[0]}"))
    return out


def _compile(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], options: Options, target: Target, direction: str, observer: Any, force: dict[str, str]
) -> Runner:
    started = time.perf_counter()
    with ir.Context():
        # The places of parameters are those of the forward graph.
        static = static_inputs() if direction == "inference" and options.prepack else []
        graph = import_graph(gm, options.fallback, force, direction, inputs, saved_outputs(gm, direction), static=static)
        imported = time.perf_counter()
        tensors = graph.tensors
        n_outputs = sum(o.kind == "tensor" for o in graph.outputs)
        writes = [tensors.index(i) for i in graph.writes]
        weights = [tensors.index(i) for i in weight_inputs(graph, static)]
        compiled = compile_graph(
            graph.module, [str(s) for s in graph.symbols], n_outputs, writes, target, options, observer, weights, loose_results(graph)
        )
    lay(graph, compiled.lying)
    within = functools.partial(compile_fx, options=options, target=target, direction="subgraph")
    compiled_calls(graph.aten_calls, within)
    by_name = {c.name: c for c in graph.aten_calls}
    hosts = [host_step(by_name[h.name], h, graph.symbols) for h in compiled.planned.hosts]
    linking = time.perf_counter()
    seconds = {"import": imported - started, **compiled.seconds}
    report = GraphReport.make(direction, graph, compiled, seconds)
    try:
        runner = _link(graph, compiled, hosts, options, report)
    except CompileError as e:
        raise blame(e, compiled.kernels, target, options) from e
    seconds["link"] = time.perf_counter() - linking
    if direction == "forward":
        report_strides(graph)
    record(report)
    logger.info("%s", report.summary())
    return runner


def _link(graph: ImportedGraph, compiled: CompiledGraph, hosts: Sequence[Any], options: Options, report: GraphReport) -> Runner:
    planned = compiled.planned
    objects = {k.name: k.code for k in compiled.kernels}
    if placements := GUARD_PAGES[options.guard_pages]:
        names = {k.symbol: k.name for k in compiled.kernels}
        runs = [guarded(planned, objects, hosts, names, placement, options.perf) for placement in placements]
        return GuardedRunner(graph, runs, planned.weight_inputs, report)
    program = Program(planned.plan, objects, hosts, perf=options.perf)
    table = None
    if planned.weights is not None:
        table = WeightTable(Program(planned.weights, objects, perf=options.perf), planned.weight_bytes)
    return Runner(graph, program, table, planned.weight_inputs, report)


__all__ = ["compile_fx", "mlirc"]
