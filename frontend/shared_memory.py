"""Which tensors of a graph show the same memory, and where in it they begin."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from .extents import Extent, normal, same


def shows(view: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether the view shows the numbers that the base has in memory, or their conjugates, at a place that can be told."""
    made = not base.is_conj() and not base.is_neg()
    return made and (view.dtype == base.dtype or same(normal(base.storage_offset()), 0))


def distance(view: torch.Tensor, base: torch.Tensor) -> Extent:
    """Where the view begins after the base, in elements of the view."""
    start = normal(base.storage_offset())
    return normal(normal(view.storage_offset()) - (start if view.dtype == base.dtype else 0))  # type: ignore[operator]


def is_detached(view: torch.fx.Node, base: torch.fx.Node) -> bool:
    """Whether a view is one of what has been detached from its base."""
    node: Any = view
    while isinstance(node, torch.fx.Node) and node is not base:
        if node.target is torch.ops.aten.detach.default:
            return True
        node = node.args[0] if node.args else None
    return False


def storage(value: Any) -> int | None:
    """Equal for (fake) tensors that share memory."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    return value.untyped_storage()._cdata
