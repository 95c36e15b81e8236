"""Guards on where the arguments of a graph lie, for the graphs that this matters to.

Dynamo recompiles when sizes, strides or dtypes change, and when one tensor is given twice. It takes no note of arguments that
begin to overlap (`f(x[:9], y)`, then `f(x[:9], x[5:14])`), nor of storage offsets. The first is wrong in a graph that writes
to an argument: AOTAutograd has ordered its reads and writes for the arguments it saw. The second is wrong in a graph with an
`as_strided` whose offset counts from the start of the storage, and in one that writes to arguments that overlap: AOTAutograd gives
it the tensor that they are views of, whole, in their place.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch._dynamo.guards import _get_closure_vars
from torch._guards import Guard, TracingContext

MAX_TENSORS = 64
"""A graph that writes to more arguments than these (a fused optimiser) has no guard on overlaps: it would take longer than ours."""
MAX_STATES = 16
"""An argument may be a view of a parameter or buffer. If either is written to, both are looked at: where there are no more such
parameters and buffers than these, as the statistics of many batch norms are."""


def guard_memory(gm: torch.fx.GraphModule, traced: Sequence[torch.fx.GraphModule]) -> None:
    """Add guards for Dynamo's graph `gm`, of which AOTAutograd has just made the graphs `traced`, backward included."""
    context = TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    if context is None or metadata is None:
        return
    places = gm.graph.find_nodes(op="placeholder")
    # Where arguments overlap, AOTAutograd has put one in the place of several: which are written to is not known.
    merged = len(metadata.input_info) < len(places)
    written = [merged or i.mutates_data for i in metadata.input_info] if len(metadata.input_info) <= len(places) else []
    sources, states, any_written = [], [], False
    for node, writes in itertools.zip_longest(places, written, fillvalue=merged):
        source = getattr(node, "_dynamo_source", None)
        of_module = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
        is_tensor = isinstance(node.meta.get("example_value"), torch.Tensor)
        if source is None or not is_tensor or source.is_ephemeral():
            continue
        if of_module:
            states.append((source, writes))
        else:
            sources.append(source)
            any_written |= writes
    if not sources:
        return
    shared_with = [source for source, writes in states if writes or any_written]
    watched = sources + (shared_with if len(shared_with) <= MAX_STATES else [])
    if any(i.mutates_data for i in metadata.input_info) and 1 < len(watched) and len(sources) <= MAX_TENSORS:
        context.guards_context.dynamo_guards.add(Guard(sources[0], _Installer("overlaps", overlaps, watched)))
        if merged:
            context.guards_context.dynamo_guards.add(Guard(sources[0], _Installer("shared", shared, watched)))
    # AOTAutograd's graphs show those of functions that Dynamo does not look into, too; but also its own, of merged arguments.
    hidden = not merged and any(map(_counts_from_storage, traced))
    if hidden or any("as_strided" in str(n.target) for n in gm.graph.nodes):
        context.guards_context.dynamo_guards.add(Guard(sources[0], _Installer("offsets", offsets, sources)))


def _counts_from_storage(graph: torch.fx.GraphModule) -> bool:
    """Whether there is an `as_strided` of a placeholder or of a view of one."""
    places = {_storage(n) for n in graph.graph.find_nodes(op="placeholder")} - {None}
    return any("as_strided" in str(n.target) and _storage(n.args[0]) in places for n in graph.graph.nodes)  # type: ignore[arg-type]


def _storage(n: torch.fx.Node) -> int | None:
    value = n.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


class _Installer:
    """What Dynamo calls to make a guard: `describe` of the tensors has to stay what it is now."""

    def __init__(self, name: str, describe: Any, sources: Sequence[Any]) -> None:
        self.__name__ = f"mlirc_{name}"
        self.__code__ = describe.__code__  # Dynamo sorts guards by line
        self.describe = describe
        self.sources = sources

    def __call__(self, builder: Any, guard: Guard) -> None:
        names = [s.name for s in self.sources]
        expected = self.describe(*[builder.get(s) for s in self.sources])
        code = [f"{self.__name__}({', '.join(names)}) == {expected!r}"]
        closure = {**_get_closure_vars(), self.__name__: self.describe}
        builder.add_python_lambda_leaf_guard_to_root(code, code, closure_vars=closure, is_epilogue=True)


def offsets(*tensors: torch.Tensor) -> tuple[int, ...]:
    """Where each tensor begins in its storage, in elements."""
    return tuple([t.storage_offset() for t in tensors])


def overlaps(*tensors: torch.Tensor) -> tuple[tuple[int, int, int], ...]:
    """(i, j, bytes from the start of tensor i to that of tensor j) for the pairs whose spans of memory overlap."""
    spans = sorted([(t.data_ptr(), _end(t), i) for i, t in enumerate(tensors) if type(t) in _PLAIN and t.layout is torch.strided])
    found = []
    for k, (start, end, i) in enumerate(spans):
        for later, _, j in spans[k + 1 :]:
            if later >= end:
                break
            found.append((i, j, later - start))
    return tuple(found)


def shared(*tensors: torch.Tensor) -> tuple[object, ...]:
    """Where tensors that overlap lie in what they are views of, and what that is."""
    return tuple([_place(tensors[i]) for i in sorted({i for pair in overlaps(*tensors) for i in pair[:2]})])


def _place(t: torch.Tensor) -> tuple[object, ...]:
    base = t if t._base is None else t._base
    return t.storage_offset(), t.untyped_storage().nbytes(), base.dtype, tuple(base.shape), base.stride(), base.storage_offset()


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _end(t: torch.Tensor) -> int:
    """The address behind the last element."""
    if t.is_contiguous():
        return t.data_ptr() + t.nbytes
    if not t.numel():
        return t.data_ptr()
    return t.data_ptr() + (1 + sum([(n - 1) * s for n, s in zip(t.shape, t.stride())])) * t.element_size()
