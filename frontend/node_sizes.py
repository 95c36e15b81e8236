"""What is symbolic in the values of FX nodes."""

from __future__ import annotations

from typing import Any

import sympy
import torch
import torch.fx

from .extents import normal
from .memory_order import tensor_strides


def symbolic(value: Any) -> list[torch.SymInt]:
    """The SymInts in a node's value."""
    leaves = torch.utils._pytree.tree_leaves(value)
    flat = [s for v in leaves for s in (v.shape if isinstance(v, torch.Tensor) else (v,))]
    return [s for s in flat if isinstance(s, torch.SymInt)]


def is_ragged(n: torch.fx.Node) -> bool:
    """Whether a placeholder is the size of a nested tensor in its uneven dim, which is no number: it only tells such tensors apart."""
    value = n.meta.get("val")
    return isinstance(value, torch.SymInt) and value.node.is_nested_int()


def extents_of(n: torch.fx.Node) -> list[sympy.Expr]:
    """What is symbolic in the sizes, strides and numbers of a node's value."""
    out: list[sympy.Expr] = []
    for value in torch.utils._pytree.tree_leaves(n.meta.get("val")):
        extents: list[Any] = []
        if isinstance(value, torch.Tensor):
            extents = [*value.shape, *tensor_strides(value)]
        elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            extents = [value.node.expr]
        for x in extents:
            x = normal(x) if isinstance(x, (torch.SymInt, sympy.Basic)) else x
            if isinstance(x, sympy.Basic):
                out.append(x)
    return out
