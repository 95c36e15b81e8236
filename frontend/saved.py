"""Tensors that a forward graph saves for its backward graph lie in memory as the forward graph makes them.

Nobody else sees them, so that the channels-last result of a convolution need not be stored once more in the order that eager mode has.
AOTAutograd is told their strides, and hands fake tensors that lie so to the compiler of the backward graph
(`torch._guards.TracingContext.report_output_strides`, made for Inductor, which does the same).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from ..dialects.mlir import ir
from ..passes.results import LOOSE
from .imported import ImportedGraph, OutputSpec


def saved_outputs(count: int) -> range:
    """Which of so many outputs of the forward graph being compiled are saved for its backward graph and nothing else."""
    context = torch._guards.TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    return range(0) if metadata is None else range(*metadata.tensors_saved_for_backwards_slice.indices(count))


def mark_loose(graph: ImportedGraph, function: ir.Operation) -> None:
    """Tell the graph passes which results may lie as they are made."""
    tensors = [o for o in graph.outputs if o.kind == "tensor"]
    function.attributes[LOOSE] = ir.DenseI64ArrayAttr.get([n for n, o in enumerate(tensors) if o.order is not None], function.context)


def lay(graph: ImportedGraph, lying: Mapping[int, Sequence[int]]) -> None:
    """Have the outputs of the graph lie so: strides of dims in the program's order, by the number of the result."""
    tensors = [i for i, o in enumerate(graph.outputs) if o.kind == "tensor"]
    for n, strides in lying.items():
        output = graph.outputs[tensors[n]]
        assert output.order is not None and output.tensor is not None
        graph.outputs[tensors[n]] = replace(output, tensor=replace(output.tensor, strides=_logical(output.order, strides)))


def _logical(order: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    by_dim = dict(zip(order, strides))
    return tuple(by_dim[d] for d in range(len(order)))


def report_strides(graph: ImportedGraph) -> None:
    """Tell AOTAutograd how the outputs of a forward graph lie."""
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        context.output_strides.extend(_strides(o) for o in graph.outputs[: graph.returned])


def _strides(output: OutputSpec) -> tuple[int, ...] | None:
    if output.order is None or output.tensor is None:
        return None
    assert all(isinstance(s, int) for s in output.tensor.strides)
    return tuple(output.tensor.strides)  # type: ignore[arg-type]


def relaid(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> dict[torch.fx.Node, torch.Tensor]:
    """The placeholders of a backward graph whose arguments lie otherwise than in eager mode, and fake tensors that lie as those."""
    places = gm.graph.find_nodes(op="placeholder")
    pairs = [(n, n.meta.get("val"), x) for n, x in zip(places, inputs)]
    return {n: x for n, value, x in pairs if isinstance(x, torch.Tensor) and isinstance(value, torch.Tensor) and _lies_otherwise(value, x)}


def _lies_otherwise(value: torch.Tensor, x: torch.Tensor) -> bool:
    if torch.strided not in (value.layout, x.layout) or value.layout != x.layout or value.shape != x.shape:
        return False
    numbers = (*value.stride(), *x.stride(), *x.shape)
    return all(isinstance(n, int) for n in numbers) and value.stride() != x.stride()
