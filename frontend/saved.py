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

from .imported import ImportedGraph, OutputSpec


def saved_outputs(gm: torch.fx.GraphModule, direction: str) -> range:
    """Which outputs of the graph being compiled, if it is a forward graph, are saved for its backward graph and nothing else."""
    context = torch._guards.TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    # Where ops have effects (the check of a decomposition), tokens come before all other outputs, which AOTAutograd counts here and there.
    if direction != "forward" or metadata is None or metadata.tokens:
        return range(0)
    return range(*metadata.tensors_saved_for_backwards_slice.indices(len(gm.graph.output_node().args[0])))


def follow_bases(outputs: Sequence[OutputSpec], saved: range) -> None:
    """Views of outputs that may lie as they are made lie as these, if they are saved and whole; if there are others, nothing is moved."""
    whole = {i: o for i, o in enumerate(outputs) if o.base >= 0 and i in saved and _shows_all(o, outputs[o.base])}
    for i, o in enumerate(outputs):
        if o.base >= 0 and i not in whole:
            outputs[o.base].order = None
    for o in whole.values():
        o.order = outputs[o.base].order


def _shows_all(view: OutputSpec, base: OutputSpec) -> bool:
    return view.kind == "same" or view.tensor == base.tensor and view.offset == 0 and not any(view.lazy)


def loose_results(graph: ImportedGraph) -> list[int]:
    """The results of the program that may lie as they are made."""
    return [n for n, o in enumerate(o for o in graph.outputs if o.kind == "tensor") if o.order is not None]


def lay(graph: ImportedGraph, lying: Mapping[int, Sequence[int]]) -> None:
    """Have the outputs of the graph lie so: strides of dims in the program's order, by the number of the result."""
    tensors = [i for i, o in enumerate(graph.outputs) if o.kind == "tensor"]
    for n, strides in lying.items():
        output = graph.outputs[tensors[n]]
        assert output.order is not None and output.tensor is not None
        output.tensor = replace(output.tensor, strides=_logical(output.order, strides))
    for o in graph.outputs:
        if o.base >= 0 and o.order is not None:
            o.tensor = graph.outputs[o.base].tensor


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
