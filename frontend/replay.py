"""Outputs that are views of an input, made by the view ops of the graph on the input itself.

AOTAutograd throws the output away and makes the view again. It goes by the memory of what it got, and an input that was written
to is another tensor in the functional graph than in the call: without gaps, and at the start of its storage.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx
import torch.utils._pytree as pytree

from .evaluate import evaluator
from .extents import normal, same

# The functional graph writes to a tensor without gaps, of which `flatten` is a view; in the call it is a copy.
_NO_VIEW = """an output that torch.compile takes for a view of an input that was written to is a copy in eager mode: {} is no view of \
an input with strides {} (AOTAutograd's analysis; with other backends the output's values are wrong). \
Return a clone of it: `.clone()`"""


@dataclass
class Replay:
    """View ops from an input to an output: (op, arguments after the tensor, keyword arguments), numbers as expressions."""

    input: int
    steps: list[tuple[Any, tuple[Any, ...], dict[str, Any]]]
    strided: tuple[tuple[int, ...], tuple[int, ...], int] | None = None
    """Shape, strides, and elements from the first one of the input, where these numbers say all: one op in place of several."""


def aliases_of_inputs(n_outputs: int) -> dict[int, int]:
    """Graph output -> input that it is a view of, as AOTAutograd found for the graph that is being compiled."""
    from torch._functorch._aot_autograd.schemas import OutputType

    metadata = getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
    if metadata is None:
        return {}
    tokens = len(metadata.tokens)  # of ops with effects: the first inputs and outputs
    first = tokens + metadata.num_mutated_inp_runtime_indices
    found = {first + i: tokens + o.base_idx for i, o in enumerate(metadata.output_info) if o.output_type is OutputType.alias_of_input}
    return {i: base for i, base in found.items() if i < n_outputs}


def replay_of(output: torch.fx.Node, place: torch.fx.Node, number: int) -> Replay | None:
    """How `output` comes from the placeholder `place`, or from what is written to it; None if not by views alone."""
    steps: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
    n, new = output, _written_to(place)
    while n not in (place, new) and _is_view(n):
        numbers = torch.fx.node.map_arg((n.args[1:], n.kwargs), lambda a: _expr(a.meta.get("val")))
        steps.append((n.target, *numbers))
        n = n.args[0]  # type: ignore[assignment]
    root, value = n.meta["val"], place.meta["val"]
    same_sizes = len(root.shape) == len(value.shape) and all(same(normal(a), normal(b)) for a, b in zip(root.shape, value.shape))
    if root.dtype != value.dtype or not same_sizes or not steps or (new is not None and n not in (place, new)):
        return None
    return Replay(number, steps[::-1], _strided(output.meta["val"], value) if n is place else None)


def _written_to(place: torch.fx.Node) -> torch.fx.Node | None:
    """What the graph writes to an input in the end, which may be a view itself: `x.t().add_(1)` writes a transposed sum to x."""
    copies = [u for u in place.users if u.target is torch.ops.aten.copy_.default and u.args[0] is place]
    return copies[-1].args[1] if copies else None  # type: ignore[return-value]


def _strided(output: torch.Tensor, place: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
    """The view of an input as it is in the call; None if numbers are symbols, or the elements are another type's or other values."""
    geometry = [tuple(map(normal, x)) for t in (place, output) for x in (t.shape, t.stride(), (t.storage_offset(),))]
    kind = [(t.dtype, t.is_conj(), t.is_neg()) for t in (place, output)]
    if kind[0] != kind[1] or any(not isinstance(x, int) for part in geometry for x in part):
        return None
    _, _, (first,), shape, strides, (offset,) = geometry
    return shape, strides, offset - first  # type: ignore[operator, return-value]


def _is_view(n: torch.fx.Node) -> bool:
    """Also of the parts of a split, and taking one of them."""
    if n.op != "call_function":
        return False
    if n.target is operator.getitem:
        return _is_view(n.args[0])  # type: ignore[arg-type]
    if not isinstance(n.target, torch._ops.OpOverload):
        return False
    first = n.target._schema.arguments[0] if n.target._schema.arguments else None
    alias = first.alias_info if first is not None else None
    return alias is not None and not alias.is_write and n.target.namespace == "aten"


def _expr(value: Any) -> Any:
    return normal(value) if isinstance(value, torch.SymInt) else value


def replayer(replay: Replay, symbols: Sequence[sympy.Symbol]) -> Callable[[list[Any], Sequence[int]], torch.Tensor]:
    """A function from the arguments of a call, and the values of `symbols`, to the view."""
    if replay.strided is not None:
        shape, strides, offset = replay.strided

        def part(args: list[Any], sizes: Sequence[int]) -> torch.Tensor:
            base = args[replay.input]
            return base.as_strided(shape, strides, base.storage_offset() + offset)

        return part
    leaves, tree = pytree.tree_flatten([(args, kwargs) for _, args, kwargs in replay.steps])
    targets = [t for t, _, _ in replay.steps]
    places = [i for i, x in enumerate(leaves) if isinstance(x, sympy.Basic)]
    compute = evaluator([leaves[i] for i in places], symbols) if places else None

    def make(args: list[Any], sizes: Sequence[int]) -> torch.Tensor:
        values = list(leaves)
        for i, x in zip(places, compute(sizes) if compute else ()):
            values[i] = x
        out = args[replay.input]
        for target, (rest, kwargs) in zip(targets, pytree.tree_unflatten(values, tree)):
            try:
                out = target(out, *rest, **kwargs)
            except RuntimeError as e:
                raise RuntimeError(_NO_VIEW.format(target, list(out.stride()))) from e
        return out

    return make
