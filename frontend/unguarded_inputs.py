"""What graphs are called with that no guard looks at, brought to the layout that their trace has for it.

Dynamo's guards hold the arguments of a forward graph to what was traced. Nothing does that for tensors saved for backward: hooks
on saved tensors give back what they like, and `p.data = ...` (`module.to(memory_format=...)`, sharded weights) gives a parameter
other memory in between. Gradients of outputs may be conjugates or negatives that are still to be made. A graph within a graph gets what
torch's loops make of their operands: slices of a turned tensor, traced as if they were its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards
from torch._subclasses.fake_tensor import FakeTensor

from .aten import laid_out
from .evaluate import evaluator
from .imported import ImportedGraph, TensorSpec


class UnguardedInputs:
    """Sizes, strides and dtypes of the tensors among a graph's placeholders."""

    def __init__(self, graph: ImportedGraph) -> None:
        given = graph.inputs[: len(graph.inputs) - len(graph.constants) - graph.seeds]
        tensors = [(i, spec) for i, spec in enumerate(given) if isinstance(spec, TensorSpec)]
        self.places = [(i, spec.dtype, evaluator([*spec.shape, *spec.strides], graph.symbols)) for i, spec in tensors]
        self.writes = graph.writes
        self._last: TensorGuards | None = None
        """Of the last call whose arguments were all as expected: one native call compares all of them."""

    def prepare(self, args: list[Any], sizes: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Replace arguments that lie otherwise by copies; (argument, copy) for those that the graph writes to.

        Raises RuntimeError for an argument of another shape or dtype.
        """
        tensors = [args[i] for i, _, _ in self.places]
        if self._last is not None and self._last.check(*tensors):
            return []
        changed = []
        for (i, dtype, compute), tensor in zip(self.places, tensors):
            if isinstance(tensor, FakeTensor):
                return []
            numbers = compute(sizes)
            shape, strides = tuple(numbers[: len(numbers) // 2]), tuple(numbers[len(numbers) // 2 :])
            if tensor.dtype != dtype or tensor.shape != shape or tensor.layout != torch.strided or tensor.device.type != "cpu":
                is_now = f"{tensor.dtype} {list(tensor.shape)}, {tensor.layout} on {tensor.device}"
                raise RuntimeError(f"a graph was given a tensor of {is_now}, where one of {dtype} {list(shape)} was saved, or traced")
            made = tensor.resolve_conj().resolve_neg()
            made = laid_out(made, strides) if tensor.numel() else made
            if made is not tensor:
                args[i] = made
                changed.append((i, tensor))
        if not changed and tensors:
            shapes, layouts = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
            self._last = TensorGuards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=layouts)
        return [(tensor, args[i]) for i, tensor in changed if i in self.writes]
