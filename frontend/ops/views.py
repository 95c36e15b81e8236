"""Views and copies. All are index arithmetic; a copy is made only where an op needs another order in memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._sympy.functions import Max, Min

from ...dialects.mlir import arith, ir, tensor
from ..extents import Extent, floordiv, guards, normal, same
from ..graph_builder import GraphBuilder, T
from ..registry import lowers
from .padding import extent
from .pointwise import out_shape

aten, prims = torch.ops.aten, torch.ops.prims


@lowers(
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.squeeze, aten.unsqueeze.default,
    aten._reshape_alias.default, aten.view_copy.default, aten.unsqueeze_copy.default, aten.squeeze_copy,
    aten.flatten.using_ints, prims.collapse_view.default, prims.split_dim.default,
)  # fmt: skip
def view(b: GraphBuilder, node: Any, x: T, *_: Any) -> T:
    return b.reshape(x, out_shape(node))


@lowers(aten.permute.default, aten.permute_copy.default, prims.transpose.default)
def permute(b: GraphBuilder, node: Any, x: T, dims: list[int]) -> T:
    return b.permute(x, dims)


@lowers(aten.t.default, aten.numpy_T.default, aten.mT.default)
def t(b: GraphBuilder, node: Any, x: T) -> T:
    order = list(range(x.rank))
    return b.permute(x, order[:-2] + order[-2:][::-1])


@lowers(aten.transpose.int, aten.transpose_copy.int, aten.swapaxes.default)
def transpose(b: GraphBuilder, node: Any, x: T, i: int, j: int) -> T:
    order = list(range(x.rank))
    if order:
        order[i], order[j] = order[j], order[i]
    return b.permute(x, order)


@lowers(aten.expand.default, aten.expand_copy.default)
def expand(b: GraphBuilder, node: Any, x: T, sizes: Any, implicit: bool = False) -> T:
    return b.expand(x, out_shape(node))


@lowers(prims.broadcast_in_dim.default)
def broadcast_in_dim(b: GraphBuilder, node: Any, x: T, shape: Any, dims: Sequence[int]) -> T:
    sizes: list[Extent] = [1] * len(shape)
    for d, size in zip(dims, x.shape):
        sizes[d] = size
    return b.expand(b.reshape(x, sizes), out_shape(node))


@lowers(
    aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, aten.contiguous.default,
    aten.alias_copy.default, aten.detach_copy.default, aten.lift_fresh.default, aten.lift.default, prims.clone.default,
    prims.view_of.default, aten._conj.default, aten.conj_physical.default, aten.resolve_conj.default,
    aten.resolve_neg.default, aten.real.default,
)  # fmt: skip
def clone(b: GraphBuilder, node: Any, x: T, *_: Any, memory_format: Any = None) -> T:
    # Values are immutable here; whoever needs another order in memory asks for it itself.
    return x


@lowers(aten._to_copy.default, aten.to.dtype, prims.device_put.default)
def to_copy(b: GraphBuilder, node: Any, x: T, *_: Any, **__: Any) -> T:
    return b.convert(x, node.meta["val"].dtype)


# Slices


def clamp_bound(bound: Any, size: Extent, default: Extent) -> Extent:
    """A bound of a Python slice as a position within [0, size]."""
    if bound is None:
        return default
    e = extent(bound)
    if isinstance(e, int):
        if e == 0 or e >= sys.maxsize:
            return 0 if e == 0 else size
        if isinstance(size, int):
            return max(0, min(e + size if e < 0 else e, size))
    if same(e, size):
        return size
    if guards.get().negative(e):
        return normal(Max(0, size + e))
    return normal(Min(e, size))


@lowers(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_(b: GraphBuilder, node: Any, x: T, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> T:
    dim %= x.rank
    shape = out_shape(node)
    if same(shape[dim], x.shape[dim]):
        return x
    offsets: list[Extent] = [0] * x.rank
    offsets[dim] = clamp_bound(start, x.shape[dim], 0)
    if not isinstance(step, int):

        def body(at: list[ir.Value]) -> ir.Value:
            at[dim] = arith.addi(b.index(offsets[dim]), arith.muli(at[dim], b.index(extent(step))))
            return tensor.extract(x.value, at)

        return b.from_indices(shape, [], x.dtype, body)
    steps = [step if d == dim else 1 for d in range(x.rank)]
    return b.slice(x, offsets, shape, steps)


def _narrow(b: GraphBuilder, x: T, dim: int, start: Extent, length: Extent) -> T:
    offsets: list[Extent] = [0] * x.rank
    offsets[dim] = start
    return b.slice(x, offsets, [length if d == dim else s for d, s in enumerate(x.shape)], [1] * x.rank)


def position(index: Any, size: Extent) -> Extent:
    """An index into a dim; negative ones count from the end."""
    e = extent(index)
    return normal(e + size) if guards.get().negative(e) else e


@lowers(aten.select.int, aten.select_copy.int)
def select(b: GraphBuilder, node: Any, x: T, dim: int, index: Any) -> T:
    dim %= x.rank
    one = _narrow(b, x, dim, position(index, x.shape[dim]), 1)
    return b.reshape(one, [*x.shape[:dim], *x.shape[dim + 1 :]])


@lowers(aten.narrow.default, aten.narrow_copy.default)
def narrow(b: GraphBuilder, node: Any, x: T, dim: int, start: Any, length: Any) -> T:
    dim %= x.rank
    return _narrow(b, x, dim, position(start, x.shape[dim]), extent(length))


@lowers(
    aten.split.Tensor, aten.split_with_sizes.default, aten.split_with_sizes_copy.default, aten.chunk.default,
    aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default, aten.unsafe_chunk.default, aten.split.sizes,
)  # fmt: skip
def split(b: GraphBuilder, node: Any, x: T, sizes: Any, dim: int = 0) -> list[T]:
    dim %= x.rank
    out, start = [], normal(0)
    for part in node.meta["val"]:
        length = normal(part.shape[dim])
        out.append(_narrow(b, x, dim, start, length))
        start = normal(start + length)
    return out


@lowers(aten.unbind.int, aten.unbind_copy.int)
def unbind(b: GraphBuilder, node: Any, x: T, dim: int = 0) -> list[T]:
    return [select(b, node, x, dim, i) for i in range(len(node.meta["val"]))]


# Joining and repeating


@lowers(aten.cat.default, aten.concat.default, prims.cat.default)
def cat(b: GraphBuilder, node: Any, xs: Sequence[T], dim: int = 0) -> T:
    out = node.meta["val"]
    shape = out_shape(node)
    # ATen skips tensors of shape [0], whatever the rank of the others.
    xs = [x for x in xs if x.rank == out.dim() and not (x.rank == 1 and same(x.shape[0], 0))]
    if not xs:
        return b.full(shape, out.dtype, 0)
    y = b.concat([b.convert(x, out.dtype) for x in xs], dim % out.dim())
    return T(y.value, shape, y.dtype) if _statics(shape) == _statics(y.shape) else y


def _statics(shape: Sequence[Extent]) -> list[int | None]:
    return [s if isinstance(s, int) else None for s in shape]


@lowers(aten.stack.default)
def stack(b: GraphBuilder, node: Any, xs: Sequence[T], dim: int = 0) -> T:
    out = node.meta["val"]
    dim %= out.dim()
    rows = [b.reshape(b.convert(x, out.dtype), [*x.shape[:dim], 1, *x.shape[dim:]]) for x in xs]
    return b.concat(rows, dim)


@lowers(aten.repeat.default)
def repeat(b: GraphBuilder, node: Any, x: T, repeats: Sequence[Any]) -> T:
    times = [extent(r) for r in repeats]
    sizes = [1] * (len(times) - x.rank) + list(x.shape)
    pairs = [p for r, s in zip(times, sizes) for p in ((s,) if same(r, 1) else (r, s))]
    ones = [p for r, s in zip(times, sizes) for p in ((s,) if same(r, 1) else (1, s))]
    return b.reshape(b.expand(b.reshape(x, ones), pairs), out_shape(node))


@lowers(aten.pixel_shuffle.default)
def pixel_shuffle(b: GraphBuilder, node: Any, x: T, factor: int) -> T:
    *lead, c, h, w = x.shape
    n = len(lead)
    x = b.reshape(x, [*lead, floordiv(c, factor * factor), factor, factor, h, w])
    return b.reshape(b.permute(x, [*range(n), n, n + 3, n + 1, n + 4, n + 2]), out_shape(node))


@lowers(aten.pixel_unshuffle.default)
def pixel_unshuffle(b: GraphBuilder, node: Any, x: T, factor: int) -> T:
    *lead, c, h, w = x.shape
    n = len(lead)
    x = b.reshape(x, [*lead, c, floordiv(h, factor), factor, floordiv(w, factor), factor])
    return b.reshape(b.permute(x, [*range(n), n, n + 2, n + 4, n + 1, n + 3]), out_shape(node))
