"""Which arguments of a graph are weights: what is computed from them alone is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from .imported import ImportedGraph, TensorSpec


def leave_out_uncounted(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Take Dynamo's mark off the inference tensors among the inputs of its graph, which are what a module keeps, but no parameters.

    Nobody counts the writes to them: a cache that is made and filled row by row under `torch.inference_mode()`.
    """
    for node, x in zip(gm.graph.find_nodes(op="placeholder"), example_inputs):
        if uncounted(x):
            node.meta.get("tensor_dict", {}).pop("_dynamo_static_input_type", None)


def uncounted(x: Any) -> bool:
    """Whether a tensor is written to and nobody counts it, as far as one can tell."""
    return isinstance(x, torch.Tensor) and x.is_inference() and not isinstance(x, torch.nn.Parameter)


def static_inputs() -> list[int]:
    """The placeholders of the graph being compiled that are parameters or buffers of the model."""
    context = torch._guards.TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    return list(getattr(metadata, "static_input_indices", None) or [])


def weight_inputs(graph: ImportedGraph, static: Sequence[int]) -> list[int]:
    """Those of the `static` placeholders that are tensors and that the graph does not write to."""
    return [i for i in static if isinstance(graph.inputs[i], TensorSpec) and i not in graph.writes]
