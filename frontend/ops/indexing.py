"""Reads at positions that a tensor holds: embedding, gather, index. Every index is checked, as in eager mode.

A write is here too where each element of the result has one possible source, so that it can be asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...dialects import builders
from ...dialects.mlir import arith, ir, tensor
from ..dtypes import cast, compute_dtype, scalar
from ..extents import Extent, product, same
from ..graph_builder import GraphBuilder, T
from ..registry import Unsupported, lowers
from . import scalars as s
from .pointwise import out_shape

aten = torch.ops.aten
Value = ir.Value


def _check_extent(extent: Extent, shape: Sequence[Extent]) -> None:
    """There is no place that could be read instead of one that is not there. An error, if anything is read, which ATen words."""
    if same(extent, 0) and not same(product(shape), 0):
        raise Unsupported("an index into no elements is an error")


@lowers(aten.embedding.default)
def embedding(b: GraphBuilder, node: Any, weight: T, indices: T, *_: Any) -> T:
    _check_extent(weight.shape[0], out_shape(node))

    def body(at: list[Value], i: Value) -> Value:
        return tensor.extract(weight.value, [b.checked_index(i, indices.dtype, weight.shape[0], wrap=False), at[-1]])

    return b.from_indices(out_shape(node), [b.reshape(indices, [*indices.shape, 1])], weight.dtype, body)


@lowers(aten.index_select.default)
def index_select(b: GraphBuilder, node: Any, x: T, dim: int, index: T) -> T:
    if x.rank == 0:
        line = b.reshape(x, [1])
        found = b.from_indices([1], [b.reshape(index, [1])], x.dtype, lambda at, i: tensor.extract(line.value, [b.checked_index(i, index.dtype, 1, wrap=False)]))
        return b.reshape(found, [])
    dim %= x.rank
    _check_extent(x.shape[dim], out_shape(node))
    aligned = b.reshape(index, [*index.shape, *[1] * (x.rank - dim - index.rank)])

    def body(at: list[Value], i: Value) -> Value:
        at[dim] = b.checked_index(i, index.dtype, x.shape[dim], wrap=False)
        return tensor.extract(x.value, at)

    return b.from_indices(out_shape(node), [aligned], x.dtype, body)


@lowers(aten.gather.default)
def gather(b: GraphBuilder, node: Any, x: T, dim: int, index: T, *, sparse_grad: bool = False) -> T:
    if same(product(index.shape), 0):  # an empty index may have any rank
        return b.full(out_shape(node), x.dtype, 0)
    # Numbers in tensors stand for one line.
    x, index = (b.reshape(t, [1]) if t.rank == 0 else t for t in (x, index))
    dim %= x.rank
    _check_extent(x.shape[dim], index.shape)

    def body(at: list[Value], i: Value) -> Value:
        at[dim] = b.checked_index(i, index.dtype, x.shape[dim], wrap=False)
        return tensor.extract(x.value, at)

    return b.reshape(b.from_indices(index.shape, [index], x.dtype, body), out_shape(node))


def index_layout(x: T, indices: Sequence[T | None]) -> tuple[list[int], int]:
    """(which dims of x are indexed, where the dims of the index tensors stand in the result)"""
    dims = [d for d, i in enumerate(indices) if i is not None]
    for d in dims:
        if indices[d].dtype in (torch.bool, torch.uint8):  # type: ignore[union-attr]
            raise Unsupported("boolean mask: the size of the result depends on data")
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    return dims, dims[0] if adjacent else 0


def _read(b: GraphBuilder, node: Any, x: T, indices: Sequence[T | None], checked: bool) -> T:
    dims, place = index_layout(x, indices)
    shape = out_shape(node)
    for d in dims:
        _check_extent(x.shape[d], shape)
    rank = len(shape) - (x.rank - len(dims))  # of the index tensors, broadcast
    trailing = len(shape) - place - rank
    given = [indices[d] for d in dims]
    inputs = [b.reshape(i, [*i.shape, *[1] * trailing]) for i in given]  # type: ignore[union-attr]

    def body(at: list[Value], *values: Value) -> Value:
        rest = at[:place] + at[place + rank :]
        where = []
        for d in range(x.rank):
            if d not in dims:
                where.append(rest.pop(0))
                continue
            k = dims.index(d)
            dtype = given[k].dtype  # type: ignore[union-attr]
            where.append(b.checked_index(values[k], dtype, x.shape[d]) if checked else _inside(b, values[k], dtype, x.shape[d]))
        return tensor.extract(x.value, where)

    return b.from_indices(shape, inputs, x.dtype, body)


def _inside(b: GraphBuilder, value: Value, dtype: torch.dtype, extent: Any) -> Value:
    """An index that whoever made it vouches for; negative ones count from the end."""
    i = arith.index_cast(ir.IndexType.get(), cast(value, dtype, torch.int64))
    negative = arith.cmpi(arith.CmpIPredicate.slt, i, builders.index(0))
    return arith.select(negative, arith.addi(i, b.index(extent)), i)


@lowers(aten.index.Tensor)
def index(b: GraphBuilder, node: Any, x: T, indices: Sequence[T | None]) -> T:
    return _read(b, node, x, indices, checked=True)


@lowers(aten._unsafe_index.Tensor)
def unsafe_index(b: GraphBuilder, node: Any, x: T, indices: Sequence[T | None]) -> T:
    return _read(b, node, x, indices, checked=False)


@lowers(aten.take.default)
def take(b: GraphBuilder, node: Any, x: T, index: T) -> T:
    flat = b.reshape(x, [product(x.shape)])
    _check_extent(flat.shape[0], index.shape)

    def body(at: list[Value], i: Value) -> Value:
        return tensor.extract(flat.value, [b.checked_index(i, index.dtype, flat.shape[0])])

    return b.from_indices(index.shape, [index], x.dtype, body)


@lowers(aten.masked_select.default, aten.nonzero.default)
def depends_on_data(b: GraphBuilder, node: Any, *_: Any) -> T:
    raise Unsupported("the size of the result depends on data")


# Writes with one possible source for each element


@lowers(aten.nll_loss_backward.default)
def nll_loss_backward(
    b: GraphBuilder, node: Any, grad: T, x: T, target: T, weight: T | None, reduction: int, ignore: int, total: T
) -> T:
    """-weight * grad (/ total for the mean) at the target's class, zero elsewhere."""
    d = compute_dtype(x.dtype)
    column = b.reshape(target, [*target.shape, 1])
    if reduction == 0:  # one gradient a row
        grad = b.reshape(grad, [*grad.shape, 1])
    inputs = [column, grad, *([total] if reduction == 1 else []), *([weight] if weight is not None else [])]

    def body(at: list[Value], t: Value, g: Value, *rest: Value) -> Value:
        left = [cast(v, i.dtype, d) for v, i in zip(rest, inputs[2:])]
        g = cast(g, grad.dtype, d)
        g = arith.divf(g, left.pop(0)) if reduction == 1 else g
        g = arith.mulf(g, left.pop(0)) if weight is not None else g
        t = cast(t, target.dtype, torch.int64)
        class_ = arith.index_cast(ir.IntegerType.get_signless(64), at[-1])
        here = arith.andi(s.eq(torch.int64, t, class_), s.ne(torch.int64, t, scalar(torch.int64, ignore)))
        return cast(arith.select(here, arith.negf(g), scalar(d, 0)), d, x.dtype)

    return b.from_indices(x.shape, inputs, x.dtype, body)
