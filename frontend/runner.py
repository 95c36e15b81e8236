"""The callable that stands for a compiled graph: arguments in, addresses out, one native call in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import sympy
import torch

from ..dialects.sizes import parse
from ..errors import CompileError
from ..runtime.program import Program
from ..runtime.weights import WeightTable
from .importer import ImportedGraph, OutputSpec, TensorSpec
from .report import GraphReport


class Runner:
    """Takes one list of arguments (and clears it: AOTAutograd's boxed convention), returns the list of outputs.

    `weights` keeps what was computed from the tensor arguments `weight_inputs`.
    """

    def __init__(
        self,
        graph: ImportedGraph,
        program: Program,
        weights: WeightTable | None,
        weight_inputs: Sequence[int],
        report: GraphReport,
    ) -> None:
        # On the instance: wrappers copy its __dict__, and look here for the calling convention.
        self._boxed_call = True
        self.program = program
        self.tensors = [i for i, spec in enumerate(graph.inputs) if isinstance(spec, TensorSpec)]
        self.sizes = [_size_reader(s, graph) for s in graph.symbols]
        self.outputs = [_output(o, graph) for o in graph.outputs]
        self.weights = weights
        self.report = report
        self._weights_of = itemgetter(*weight_inputs) if len(weight_inputs) > 1 else lambda x: (x[weight_inputs[0]],)

    def __call__(self, args: list[Any]) -> list[Any]:
        sizes = [read(args) for read in self.sizes] if self.sizes else ()
        results: list[Any] = []
        outputs = []
        for make, fresh in self.outputs:
            out = make(args, sizes)
            results.append(out)
            if fresh:
                outputs.append(out.data_ptr())
        tensors = [args[i] for i in self.tensors]
        inputs = [t.data_ptr() for t in tensors]
        if self.weights is not None:
            inputs += self.weights.addresses(self._weights_of(inputs), self._weights_of(tensors))
        self.program.run(inputs, outputs, sizes)
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
