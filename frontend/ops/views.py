"""Views and copies. All are index arithmetic; a copy is made only where an op needs another order in memory."""

from __future__ import annotations

from typing import Any

import torch

from ..graph_builder import GraphBuilder, T, normal
from ..registry import lowers

aten = torch.ops.aten


def _shape(node: Any) -> tuple[Any, ...]:
    return tuple(normal(s) for s in node.meta["val"].shape)


@lowers(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.squeeze, aten.unsqueeze.default)
def view(b: GraphBuilder, node: Any, x: T, *_: Any) -> T:
    return b.reshape(x, _shape(node))


@lowers(aten.permute.default)
def permute(b: GraphBuilder, node: Any, x: T, dims: list[int]) -> T:
    return b.permute(x, dims)


@lowers(aten.t.default)
def t(b: GraphBuilder, node: Any, x: T) -> T:
    return b.permute(x, list(reversed(range(x.rank))))


@lowers(aten.transpose.int)
def transpose(b: GraphBuilder, node: Any, x: T, i: int, j: int) -> T:
    order = list(range(x.rank))
    order[i], order[j] = order[j], order[i]
    return b.permute(x, order)


@lowers(aten.expand.default)
def expand(b: GraphBuilder, node: Any, x: T, sizes: Any, implicit: bool = False) -> T:
    return b.expand(x, _shape(node))


@lowers(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)
def clone(b: GraphBuilder, node: Any, x: T, *, memory_format: Any = None) -> T:
    # Values are immutable here; whoever needs another order in memory asks for it itself.
    return x


@lowers(aten._to_copy.default, aten.to.dtype)
def to_copy(b: GraphBuilder, node: Any, x: T, *_: Any, **__: Any) -> T:
    return b.convert(x, node.meta["val"].dtype)
