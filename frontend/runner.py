"""The callable that stands for a compiled graph: arguments in, addresses out, one native call in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from ..errors import CompileError
from ..runtime.program import Program
from ..runtime.results import LARGE, LARGE_IN_TRAINING, ResultMemory, dispatch_modes, extent, most_kept, new_result
from ..runtime.weights import WeightTable
from .aten import laid_out
from .evaluate import evaluator
from .imported import ImportedGraph, OutputSpec, TensorSpec
from .philox import draw_seeds
from .replay import replayer
from .report import GraphReport
from .unguarded_inputs import UnguardedInputs

_data_ptr = torch.Tensor.data_ptr
_CPU = torch.device("cpu")
"""Named wherever tensors are made: `with torch.device(...)` is in force in calls of compiled functions, too."""


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
        self.tensors = graph.tensors
        self.sizes = [_size_reader(s, graph) for s in graph.symbols]
        keep = _kept_from(graph, report.direction)
        outputs = [_output(o, graph, keep) for o in graph.outputs]
        self.makers = [make for make, _ in outputs]
        self.written_to = [i for i, (_, fresh) in enumerate(outputs) if fresh]
        self.all_written_to = len(self.written_to) == len(outputs)
        self.views = [(i, o.base, _view(o, graph)) for i, o in enumerate(graph.outputs) if o.kind in ("view", "same")]
        self.gaps = [(i, evaluator(o.gaps, graph.symbols)) for i, o in enumerate(graph.outputs) if o.gaps is not None]
        self.returned = graph.returned
        self.constants = graph.constants
        self.written = {self.tensors.index(i) for i in graph.writes}
        self.seeds = graph.seeds
        self.idle = not program.plan.steps
        self.plain = not self.constants and not self.seeds and self.tensors == list(range(len(graph.inputs)))
        self.saved = UnguardedInputs(graph) if report.direction in ("backward", "subgraph") else None
        self.weights = weights
        self.report = report
        self._weights_of = itemgetter(*weight_inputs) if len(weight_inputs) > 1 else lambda x: (x[weight_inputs[0]],)

    def __call__(self, args: list[Any]) -> list[Any]:
        if forward_ad._current_level >= 0:
            _check_tangents(args)
        sizes = [read(args) for read in self.sizes] if self.sizes else ()
        moved = self.saved.prepare(args, sizes) if self.saved is not None else ()
        if self.constants or self.seeds:
            args.extend(self.constants)
            args.extend(draw_seeds(self.seeds).unbind() if self.seeds else ())
        results = [make(args, sizes) for make in self.makers]
        if not self.idle:
            outputs = results if self.all_written_to else [results[i] for i in self.written_to]
            self._run(args if self.plain else self._pick(args), outputs, sizes)
        for tensor, copy in moved:
            tensor.copy_(copy)
        for i, strides in self.gaps:
            results[i] = laid_out(results[i], tuple(strides(sizes)))
        for i, base, view in self.views:
            results[i] = view(results[base], sizes)
        args.clear()
        del results[self.returned :]
        return results

    def _run(self, tensors: list[torch.Tensor], outputs: list[torch.Tensor], sizes: Sequence[int]) -> None:
        if dispatch_modes() and outputs and isinstance(outputs[0], FakeTensor):
            return  # a call about fake tensors: the outputs, fake as well, are all there is to it
        inputs = [_data_ptr(t) for t in tensors]
        results = [_data_ptr(t) for t in outputs]
        if self.written and not torch.is_inference_mode_enabled() and any(tensors[i].is_inference() for i in self.written):
            raise RuntimeError("Inplace update to inference tensor outside InferenceMode is not allowed: give the compiled graph a clone")
        if 0 in inputs or 0 in results:
            if any(isinstance(t, FakeTensor) for t in tensors):
                raise RuntimeError("a compiled graph was called with fake tensors outside of their mode")
            if any(tensors[i]._is_zerotensor() for i in self.written):
                raise RuntimeError("ZeroTensors are immutable: a compiled graph writes to this argument; give it a clone")
            tensors = list(map(_in_memory, tensors))
            inputs = list(map(_data_ptr, tensors))
        self._execute(tensors, outputs, inputs, results, sizes)

    def _execute(
        self, tensors: list[torch.Tensor], outputs: list[torch.Tensor], inputs: list[int], results: list[int], sizes: Sequence[int]
    ) -> None:
        """Fill `outputs`; `inputs` and `results` are the addresses of `tensors` and `outputs`."""
        if self.weights is not None:
            packed = self.weights.results(self._weights_of(inputs), self._weights_of(tensors))
            inputs += packed.addresses
        self.program.run(inputs, results, sizes)

    def _pick(self, args: list[Any]) -> list[torch.Tensor]:
        """The tensors among the arguments, the graph's constants and the seeds, in the program's order."""
        return [args[i] for i in self.tensors]


def _check_tangents(args: list[Any]) -> None:
    """Raises RuntimeError for arguments with forward-mode derivatives, which results would not have."""
    if any(isinstance(t, torch.Tensor) and forward_ad.unpack_dual(t).tangent is not None for t in args):
        raise RuntimeError(
            "forward-mode derivatives do not pass through a compiled graph: call the function as it is, or compile one that "
            "computes them (with torch.func.jvp)"
        )


def _in_memory(t: torch.Tensor) -> torch.Tensor:
    """An argument that can be read: automatic differentiation passes zeros that have no memory."""
    if t.data_ptr() or not t.numel():
        return t
    if not t._is_zerotensor():
        raise RuntimeError(f"an argument of a compiled graph, {t.dtype} {list(t.shape)}, has no memory: its storage has been freed")
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=_CPU).zero_()


def _size_reader(symbol: sympy.Symbol, graph: ImportedGraph) -> Callable[[list[Any]], int]:
    """How to find the value of a symbol in the arguments of a call."""
    if symbol in graph.rounded:
        expr = graph.rounded[symbol]
        parts = sorted(expr.free_symbols, key=str)
        read = [_size_reader(s, graph) for s in parts]
        compute = evaluator([expr], parts)
        return lambda args: compute([r(args) for r in read])[0]
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


def _kept_from(graph: ImportedGraph, direction: str) -> int | None:
    """Bytes of an output from which on its memory is used again; None where no output's is."""
    if direction == "inference":
        return LARGE
    specs = [o.tensor for o in graph.outputs if o.kind == "tensor" and o.tensor is not None]
    known = [t for t in specs if all(isinstance(n, int) for n in (*t.shape, *t.strides))]
    return LARGE_IN_TRAINING if sum(extent(t.shape, t.strides, t.dtype) for t in known) <= most_kept() else None  # type: ignore[arg-type]


def _output(spec: OutputSpec, graph: ImportedGraph, keep: int | None) -> tuple[Callable[[list[Any], Sequence[int]], Any], bool]:
    """(how to make an output before the call, whether the program writes it). The memory of those of `keep` bytes and more is used again."""
    if spec.kind == "input":
        return lambda args, sizes: args[spec.input], False
    if spec.kind in ("view", "same"):
        return lambda args, sizes: None, False
    if spec.replay is not None:
        return replayer(spec.replay, graph.symbols), False
    if spec.kind != "tensor":
        if isinstance(spec.number, sympy.Basic):
            compute = evaluator([spec.number], graph.symbols)
            return lambda args, sizes: compute(sizes)[0], False
        return lambda args, sizes: spec.number, False
    assert spec.tensor is not None
    dtype = spec.tensor.dtype
    shape, strides = spec.tensor.shape, spec.tensor.strides
    if all(isinstance(s, int) for s in (*shape, *strides)):
        shape, strides = tuple(shape), tuple(strides)
        if keep is not None and extent(shape, strides, dtype) >= keep:
            new = ResultMemory(keep).make
            return lambda args, sizes: new(shape, strides, dtype), True
        return lambda args, sizes: new_result(shape, strides, dtype), True
    compute = evaluator([*shape, *strides], graph.symbols)
    n = len(shape)
    new = ResultMemory(keep).make if keep is not None else new_result

    def make(args: list[Any], sizes: Sequence[int]) -> torch.Tensor:
        values = tuple(compute(sizes))
        return new(values[:n], values[n:], dtype)

    return make, True


def _view(spec: OutputSpec, graph: ImportedGraph) -> Callable[[torch.Tensor, Sequence[int]], torch.Tensor]:
    """How to make an output that shows the memory of another one."""
    if spec.kind == "same":
        return lambda base, sizes: base
    if spec.detached:
        attached = _view(replace(spec, detached=False), graph)
        return lambda base, sizes: attached(base.detach(), sizes)
    if any(spec.lazy):
        view = _view(replace(spec, lazy=(False, False)), graph)
        conj, neg = (f if wanted else _as_it_is for f, wanted in zip((torch.conj, torch._neg_view), spec.lazy))
        return lambda base, sizes: conj(neg(view(base, sizes)))
    assert spec.tensor is not None
    n, dtype = len(spec.tensor.shape), spec.tensor.dtype
    if all(isinstance(s, int) for s in (*spec.tensor.shape, *spec.tensor.strides, spec.offset)):
        shape, strides, offset = spec.tensor.shape, spec.tensor.strides, spec.offset
        return lambda base, sizes: _part(base, dtype, shape, strides, offset)  # type: ignore[arg-type]
    compute = evaluator([*spec.tensor.shape, *spec.tensor.strides, spec.offset], graph.symbols)

    def make(base: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        values = compute(sizes)
        return _part(base, dtype, values[:n], values[n : 2 * n], values[-1])

    return make


def _as_it_is(t: torch.Tensor) -> torch.Tensor:
    return t


def _part(base: torch.Tensor, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
    """A view of the memory of `base`, `offset` elements of `dtype` after its first one."""
    if base.dtype == dtype:
        return base.as_strided(shape, strides, base.storage_offset() + offset)
    start = base.storage_offset() * base.element_size() // dtype.itemsize + offset
    return torch.empty(0, dtype=dtype, device=_CPU).set_(base.untyped_storage(), start, shape, strides)  # type: ignore[call-overload]
