"""Graphs that the program cannot stand for as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from .dtypes import STORABLE
from .imported import source_of
from .memory_order import hint
from .registry import LeaveGraph

aten = torch.ops.aten

_WRITES_TO_PART = (
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
    aten.as_strided_scatter.default,
)


def check_inputs(places: Sequence[torch.fx.Node]) -> None:
    """Raises LeaveGraph if the program cannot take one of these placeholders."""
    for n in places:
        value = n.meta.get("val")
        # A float that sizes give (label smoothing saves one for backward) is computed anew from these.
        given = isinstance(value, torch.SymFloat) and all(s.is_integer for s in value.node.expr.free_symbols)
        if isinstance(value, (torch.SymFloat, torch.SymBool)) and not given:
            raise LeaveGraph(f"the input {n.name} is a {type(value).__name__}", node=n.name)
        if not isinstance(value, torch.Tensor):
            continue
        what = {
            f"on {value.device}": value.device.type != "cpu",
            f"{value.layout}": value.layout != torch.strided,
            f"a {type(value).__name__}": type(value) not in (FakeTensor, torch.Tensor, torch.nn.Parameter),
            f"of {value.dtype}": value.dtype not in STORABLE,
            "a lazy conjugate": value.is_conj() or value.is_neg(),
        }
        for reason, wrong in what.items():
            if wrong:
                raise LeaveGraph(f"the input {n.name} is {reason}", node=n.name)


def check_nodes(nodes: Sequence[torch.fx.Node]) -> None:
    """Raises LeaveGraph for a tensor that is made elsewhere than on the CPU (kernels would make it there), and for one whose elements
    share memory with each other: ops that write to a part of a tensor copy its strides, so that the other elements change, too."""
    for n in nodes:
        if n.target in _WRITES_TO_PART and _overlaps_itself(n.meta["val"]):
            raise LeaveGraph("it writes to a tensor that overlaps itself", node=n.format_node(), source=source_of(n))
        for value in torch.utils._pytree.tree_leaves(n.meta.get("val")):
            if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                raise LeaveGraph(f"{n.name} is on {value.device}", node=n.format_node(), source=source_of(n))


def _overlaps_itself(t: torch.Tensor) -> bool:
    """Whether elements may share memory, as those of windows do. Not repeated ones (stride 0), of which ATen makes a plain copy."""
    extent = 1
    for stride, size in sorted((hint(s), hint(n)) for n, s in zip(t.shape, t.stride())):
        if size > 1:
            if stride == 0:
                return False
            if stride < extent:
                return True
            extent += (size - 1) * stride
    return False
