"""The backend of torch.compile: AOTAutograd around `compile_fx`, which turns one ATen graph into a callable."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._dynamo.backends.common import aot_autograd

from .. import log
from ..dialects.mlir import ir
from ..dialects.sizes import parse
from ..driver import CompiledGraph, compile_graph
from ..errors import CompileError
from ..lowering.target import Target
from ..options import Options
from ..runtime.pool import get_pool
from ..runtime.program import Program
from .aten import host_step
from .decompositions import decompositions
from .importer import ImportedGraph, OutputSpec, TensorSpec, import_graph
from .report import GraphReport, record

log.register()
logger = log.get_logger("backend")


def mlirc(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: Any = None) -> Any:
    """What `torch.compile(model, backend="mlirc", mode=..., options=...)` calls for every graph."""
    chosen = Options.make(options, mode)
    target = Target.parse(chosen.target)
    target.check_runnable()
    get_pool(chosen).warm_up()
    return capture(gm, example_inputs, functools.partial(compile_fx, options=chosen, target=target))


def capture(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], compiler: Callable[..., Any]) -> Any:
    """AOTAutograd as mlirc wants it: `compiler(gm, inputs, direction=...)` gets functional ATen graphs."""
    return aot_autograd(
        fw_compiler=functools.partial(compiler, direction="forward"),
        bw_compiler=functools.partial(compiler, direction="backward"),
        inference_compiler=functools.partial(compiler, direction="inference"),
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )(gm, example_inputs)


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

    Raises CompileError with the node, its source line and the stage.
    """
    started = time.perf_counter()
    with ir.Context():
        graph = import_graph(gm, options.fallback)
        imported = time.perf_counter()
        tensors = [i for i, spec in enumerate(graph.inputs) if isinstance(spec, TensorSpec)]
        n_outputs = sum(o.kind == "tensor" for o in graph.outputs)
        writes = [tensors.index(i) for i in graph.writes]
        compiled = compile_graph(
            graph.module, [str(s) for s in graph.symbols], n_outputs, writes, target, options, observer
        )
    by_name = {c.name: c for c in graph.aten_calls}
    hosts = [host_step(by_name[h.name], h) for h in compiled.planned.hosts]
    objects = {k.symbol: k.code for k in compiled.kernels}
    linking = time.perf_counter()
    program = Program(compiled.planned.plan, objects, hosts, perf=options.perf)
    done = time.perf_counter()
    seconds = {"import": imported - started, **compiled.seconds, "link": done - linking}
    report = GraphReport.make(direction, graph, compiled, seconds)
    record(report)
    logger.info("%s", report.summary())
    runner = _Runner(graph, program)
    runner.report = report
    runner._boxed_call = True  # type: ignore[attr-defined]
    return runner


class _Runner:
    """Takes the arguments apart, allocates the outputs, runs the program."""

    def __init__(self, graph: ImportedGraph, program: Program) -> None:
        self.program = program
        self.tensors = [i for i, spec in enumerate(graph.inputs) if isinstance(spec, TensorSpec)]
        self.sizes = [_size_reader(s, graph) for s in graph.symbols]
        self.outputs = [_output(o, graph) for o in graph.outputs]
        self.static = not self.sizes
        self.report: GraphReport | None = None

    def __call__(self, args: list[Any]) -> list[Any]:
        sizes = () if self.static else [read(args) for read in self.sizes]
        results: list[Any] = []
        pointers = []
        for make, fresh in self.outputs:
            out = make(args, sizes)
            results.append(out)
            if fresh:
                pointers.append(out.data_ptr())
        self.program.run([args[i].data_ptr() for i in self.tensors], pointers, sizes)
        args.clear()
        return results


def _size_reader(symbol: sympy.Symbol, graph: ImportedGraph) -> Callable[[list[Any]], int]:
    """How to find the value of a symbol in the arguments of a call."""
    for i, spec in enumerate(graph.inputs):
        if spec == symbol:
            return lambda args: int(args[i])
    for i, spec in enumerate(graph.inputs):
        if isinstance(spec, TensorSpec):
            for d, s in enumerate(spec.shape):
                if s == symbol:
                    return lambda args, d=d: args[i].shape[d]  # type: ignore[misc]
            for d, s in enumerate(spec.strides):
                if s == symbol:
                    return lambda args, d=d: args[i].stride(d)  # type: ignore[misc]
    raise CompileError(f"the value of {symbol} depends on data")


def _output(spec: OutputSpec, graph: ImportedGraph) -> tuple[Callable[[list[Any], Sequence[int]], Any], bool]:
    """(how to make an output before the call, whether the program writes it)."""
    if spec.kind == "input":
        return lambda args, sizes: args[spec.input], False
    if spec.kind != "tensor":
        if isinstance(spec.number, sympy.Expr):
            compute = _evaluator([spec.number], graph)
            return lambda args, sizes: compute(sizes)[0], False
        return lambda args, sizes: spec.number, False
    assert spec.tensor is not None
    dtype = spec.tensor.dtype
    shape, strides = spec.tensor.shape, spec.tensor.strides
    if all(isinstance(s, int) for s in (*shape, *strides)):
        return lambda args, sizes: torch.empty_strided(shape, strides, dtype=dtype), True
    compute = _evaluator([*shape, *strides], graph)
    n = len(shape)

    def make(args: list[Any], sizes: Sequence[int]) -> torch.Tensor:
        values = compute(sizes)
        return torch.empty_strided(values[:n], values[n:], dtype=dtype)

    return make, True


def _evaluator(exprs: Sequence[Any], graph: ImportedGraph) -> Callable[[Sequence[int]], list[int]]:
    """Python code for expressions of the symbols, made once."""
    names = [str(s) for s in graph.symbols]
    code = f"lambda s: [{', '.join(_python(parse(str(e))) for e in exprs)}]"
    for i, n in sorted(enumerate(names), key=lambda x: -len(x[1])):
        code = code.replace(n, f"s[{i}]") if n.isidentifier() else code
    return eval(code, {"floor": lambda x: x // 1, "ceiling": lambda x: -(-x // 1), "Max": max, "Min": min})  # noqa: S307


def _python(e: Any) -> str:
    return f"int({e})"


__all__ = ["CompiledGraph", "compile_fx", "mlirc"]
