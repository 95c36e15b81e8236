"""Ops that read a tensor at computed positions: flip, roll, windows, diagonals, and writing one tensor into another."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from ...dialects import builders
from ...dialects.mlir import arith, ir, tensor
from ..dtypes import cast, compute_dtype, scalar
from ..extents import Extent, floordiv, normal, product, same
from ..graph_builder import GraphBuilder, T
from ..registry import Unsupported, lowers
from .padding import extent
from .pointwise import out_shape
from .views import clamp_bound, position

aten, prims = torch.ops.aten, torch.ops.prims
INT = arith.CmpIPredicate


@lowers(aten.flip.default, prims.rev.default)
def flip(b: GraphBuilder, node: Any, x: T, dims: Sequence[int]) -> T:
    dims = [d % x.rank for d in dims] if x.rank else []  # numbers in tensors have a dim 0, too

    def body(at: list[ir.Value]) -> ir.Value:
        for d in dims:
            at[d] = arith.subi(arith.subi(b.index(x.shape[d]), builders.index(1)), at[d])
        return tensor.extract(x.value, at)

    return b.from_indices(x.shape, [], x.dtype, body)


@lowers(aten.roll.default)
def roll(b: GraphBuilder, node: Any, x: T, shifts: Any, dims: Any = ()) -> T:
    shifts = [extent(s) for s in ([shifts] if not isinstance(shifts, (list, tuple)) else shifts)]
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims:
        return b.reshape(_roll(b, b.reshape(x, [product(x.shape)]), shifts, [0]), x.shape)
    return _roll(b, x, shifts, [d % x.rank for d in dims])


def _roll(b: GraphBuilder, x: T, shifts: Sequence[Extent], dims: Sequence[int]) -> T:
    total: dict[int, Extent] = {d: 0 for d in dims}
    for d, s in zip(dims, shifts):
        total[d] = normal(total[d] + s)

    def body(at: list[ir.Value]) -> ir.Value:
        for d, shift in total.items():
            size = x.shape[d]
            if isinstance(size, int) and isinstance(shift, int):
                size, amount = b.index(size), builders.index(shift % max(size, 1))
            else:
                size = b.index(size)
                amount = arith.remsi(b.index(shift), size)
                amount = arith.select(
                    arith.cmpi(INT.slt, amount, builders.index(0)), arith.addi(amount, size), amount
                )
            i = arith.subi(at[d], amount)
            at[d] = arith.select(arith.cmpi(INT.slt, i, builders.index(0)), arith.addi(i, size), i)
        return tensor.extract(x.value, at)

    return b.from_indices(x.shape, [], x.dtype, body)


@lowers(aten.unfold.default, aten.unfold_copy.default)
def unfold(b: GraphBuilder, node: Any, x: T, dim: int, size: int, step: int) -> T:
    if x.rank == 0:
        return b.reshape(x, out_shape(node))
    places = [ir.AffineDimExpr.get(d) for d in range(x.rank)]
    places[dim % x.rank] = places[dim % x.rank] * step + ir.AffineDimExpr.get(x.rank)
    return b.windows(x, out_shape(node), ir.AffineMap.get(x.rank + 1, 0, places))


@lowers(aten.im2col.default)
def im2col(b: GraphBuilder, node: Any, x: T, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]) -> T:
    """Windows of an image: [..., channels * kernel, places]."""
    if not (x.dtype.is_floating_point or x.dtype == torch.bool):
        raise Unsupported("im2col of integers or complex numbers: eager mode refuses them")
    lead = x.rank - 2
    x = b.pad(x, [0] * lead + list(padding), [0] * lead + list(padding), 0) if any(padding) else x
    dim = ir.AffineDimExpr.get
    windows = [floordiv(n - d * (k - 1) - 1, s) + 1 for n, k, d, s in zip(x.shape[lead:], kernel_size, dilation, stride)]
    read = [dim(d) for d in range(lead)]
    read += [dim(lead + 2 + i) * s + dim(lead + i) * d for i, (d, s) in enumerate(zip(dilation, stride))]
    out = b.windows(x, [*x.shape[:lead], *kernel_size, *windows], ir.AffineMap.get(lead + 4, 0, read))
    return b.reshape(out, out_shape(node))


@lowers(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(b: GraphBuilder, node: Any, x: T, offset: int = 0, dim1: int = 0, dim2: int = 1) -> T:
    dim1, dim2 = dim1 % x.rank, dim2 % x.rank
    row, column = max(0, -offset), max(0, offset)

    def body(at: list[ir.Value]) -> ir.Value:
        *rest, i = at
        found = {dim1: arith.addi(i, builders.index(row)), dim2: arith.addi(i, builders.index(column))}
        return tensor.extract(x.value, [found[d] if d in found else rest.pop(0) for d in range(x.rank)])

    return b.from_indices(out_shape(node), [], x.dtype, body)


@lowers(aten.tril.default, aten.triu.default)
def triangle(b: GraphBuilder, node: Any, x: T, diagonal: Any = 0) -> T:
    keep = INT.sle if node.target is aten.tril.default else INT.sge

    def body(at: list[ir.Value], u: ir.Value) -> ir.Value:
        inside = arith.cmpi(keep, arith.subi(at[-1], at[-2]), b.index(extent(diagonal)))
        return arith.select(inside, u, scalar(x.dtype, 0))

    return b.from_indices(x.shape, [x], x.dtype, body)


# One tensor written into another


def _write(b: GraphBuilder, x: T, source: T, dim: int, start: Extent, step: Extent) -> T:
    """x with `source` at start, start + step, ... along `dim`."""
    offsets: list[Extent] = [0] * x.rank
    steps: list[Extent] = [1] * x.rank
    offsets[dim], steps[dim] = start, step
    sizes = (b.sizes(n) for n in (offsets, source.shape, steps))
    return T(builders.insert_slice(source.value, x.value, *sizes), x.shape, x.dtype)


@lowers(aten.slice_scatter.default)
def slice_scatter(
    b: GraphBuilder, node: Any, x: T, source: T, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> T:
    dim %= x.rank
    source = b.convert(source, x.dtype)
    if same(source.shape[dim], x.shape[dim]):
        return source
    if same(source.shape[dim], 0):
        return x
    return _write(b, x, source, dim, clamp_bound(start, x.shape[dim], 0), extent(step))


@lowers(aten.select_scatter.default)
def select_scatter(b: GraphBuilder, node: Any, x: T, source: T, dim: int, index: Any) -> T:
    dim %= x.rank
    source = b.reshape(b.convert(source, x.dtype), [*x.shape[:dim], 1, *x.shape[dim + 1 :]])
    if same(x.shape[dim], 1):
        return source
    return _write(b, x, source, dim, position(index, x.shape[dim]), 1)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(b: GraphBuilder, node: Any, x: T, source: T, offset: int = 0, dim1: int = 0, dim2: int = 1) -> T:
    """x with `source` on a diagonal: each element asks whether it is on it."""
    dim1, dim2 = dim1 % x.rank, dim2 % x.rank
    source = b.convert(source, x.dtype)
    if same(source.shape[-1], 0):
        return x

    def body(at: list[ir.Value], u: ir.Value) -> ir.Value:
        i, j = at[dim1], at[dim2]
        on = arith.cmpi(INT.eq, arith.addi(i, builders.index(offset)), j)
        # The k-th entry lies in row k (offset >= 0) or in column k.
        k = arith.select(on, i if offset >= 0 else j, builders.index(0))
        rest = [p for d, p in enumerate(at) if d not in (dim1, dim2)]
        return arith.select(on, tensor.extract(source.value, [*rest, k]), u)

    return b.from_indices(x.shape, [x], x.dtype, body)


@lowers(aten.slice_backward.default)
def slice_backward(b: GraphBuilder, node: Any, grad: T, sizes: Any, dim: int, start: Any, end: Any, step: Any) -> T:
    shape = out_shape(node)
    zeros = b.full(shape, grad.dtype, 0)
    dim %= grad.rank
    begin = clamp_bound(start, shape[dim], 0)
    if same(grad.shape[dim], 0):
        return zeros
    if step == 1:
        low: list[Extent] = [begin if d == dim else 0 for d in range(grad.rank)]
        high = [s - low[d] - grad.shape[d] for d, s in enumerate(shape)]
        return b.pad(grad, low, high, 0)
    return _write(b, zeros, grad, dim, begin, extent(step))


@lowers(aten.select_backward.default)
def select_backward(b: GraphBuilder, node: Any, grad: T, sizes: Any, dim: int, index: Any) -> T:
    shape = out_shape(node)
    dim %= len(shape)
    begin = position(index, shape[dim])
    grad = b.reshape(grad, [*shape[:dim], 1, *shape[dim + 1 :]])
    low: list[Extent] = [begin if d == dim else 0 for d in range(grad.rank)]
    return b.pad(grad, low, [s - low[d] - grad.shape[d] for d, s in enumerate(shape)], 0)


@lowers(aten.col2im.default)
def col2im(
    b: GraphBuilder, node: Any, x: T, size: Any, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    stride: Sequence[int],
) -> T:  # fmt: skip
    """An element is the sum of what the patches that it lies in hold of it.

    Of a kernel of k taps every s-th one meets an element where patches are s apart: k / s candidates rather than k.
    """
    if not x.dtype.is_floating_point and x.dtype != torch.bool:
        raise Unsupported("col2im of integers is an error")
    shape = out_shape(node)
    if all(n == 1 for n in (*kernel, *stride)) and not any(padding):
        return b.reshape(x, shape)
    counts = [floordiv(n + 2 * p - d * (k - 1) - 1, s) + 1 for n, k, d, p, s in zip(shape[-2:], kernel, dilation, padding, stride)]
    patches = b.reshape(x, [*x.shape[:-2], shape[-3], *kernel, *counts])
    near = all(s == 1 or (s >= LONG_STEP and d == 1) for d, s in zip(dilation, stride))
    if near and all(p <= d * (k - 1) for k, d, p in zip(kernel, dilation, padding)):
        return b.convert(_add_by_patch(b, patches, shape, dilation, padding, stride), x.dtype)
    return b.convert(_add_by_place(b, patches, shape, dilation, padding, stride), x.dtype)


LONG_STEP = 16
"""From patch to patch, from which on places are counted by patches."""


def _add_by_patch(b: GraphBuilder, patches: T, shape: Sequence[Extent], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]) -> T:
    """The sums of `patches`, [..., *kernel, *counts], with two dims, [patch, place in it], for those that have long steps: neighbours are next to one
    another in what is summed up. Taps and patches that there are not are zeros around the others."""
    lead, dim, acc = len(shape) - 2, ir.AffineDimExpr.get, compute_dtype(patches.dtype)
    places: list[Extent] = []
    taps, turns, low, high, candidates, whole = [], [], [], [], [], []
    for i, (n, d, p, s) in enumerate(zip(shape[lead:], dilation, padding, stride)):
        k, count, at = patches.shape[lead + i], patches.shape[lead + 2 + i], lead + len(places)
        patch = floordiv(n + p + s - 1, s)
        places += [patch] if s == 1 else [patch, s]
        candidates.append(-(-k // s))
        low.append(d * (candidates[i] - 1))
        high.append(normal(patch - count))
        whole.append(patch * s)
        taps.append((at, s))
        turns.append((at, d))
    loops = lead + len(places)
    read = [dim(n) for n in range(lead)]
    read += [dim(loops + i) * s + (dim(at + 1) if s > 1 else 0) for i, (at, s) in enumerate(taps)]
    read += [dim(at) - dim(loops + i) * d + low[i] for i, (at, d) in enumerate(turns)]
    behind = [c * s - k for c, s, k in zip(candidates, stride, patches.shape[lead:])]
    around = [0] * (lead + 2) + low, [0] * lead + behind + high
    padded = b.pad(patches, *around, 0) if any(not same(n, 0) for side in around for n in side) else patches
    out = b.window_reduce([*shape[:lead], *places], candidates, [(padded, ir.AffineMap.get(loops + 2, 0, read))], "add", acc, lambda at, u: cast(u, patches.dtype, acc))
    return b.slice(b.reshape(out, [*shape[:lead], *whole]), [0] * lead + list(padding), shape, [1] * len(shape))


def _add_by_place(b: GraphBuilder, patches: T, shape: Sequence[Extent], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]) -> T:
    """The sums of `patches`, [..., *kernel, *counts], at every place."""
    lead, acc = len(shape) - 2, compute_dtype(patches.dtype)
    kernel, counts = patches.shape[lead : lead + 2], patches.shape[lead + 2 :]
    steps = [s // math.gcd(d, s) for d, s in zip(dilation, stride)]

    def body(at: list[ir.Value]) -> ir.Value:
        taps, found, inside = [], [], []
        for i, (k, d, p, s) in enumerate(zip(kernel, dilation, padding, stride)):
            place = arith.addi(at[lead + i], builders.index(p))
            tap = arith.addi(_first_tap(place, d, s), arith.muli(at[lead + 2 + i], builders.index(steps[i])))
            rest = arith.subi(place, arith.muli(tap, builders.index(d)))
            patch = arith.divsi(rest, builders.index(s))
            inside.append(arith.cmpi(INT.eq, arith.muli(patch, builders.index(s)), rest))
            inside.append(arith.cmpi(INT.ult, patch, b.index(counts[i])))
            if k % steps[i]:
                inside.append(arith.cmpi(INT.ult, tap, builders.index(k)))
            taps.append(tap)
            found.append(patch)
        ok = functools.reduce(arith.andi, inside)
        where = [arith.select(ok, v, builders.index(0)) for v in (*taps, *found)]
        return arith.select(ok, cast(tensor.extract(patches.value, [*at[:lead], *where]), patches.dtype, acc), scalar(acc, 0))

    return b.window_reduce(shape, [-(-k // step) for k, step in zip(kernel, steps)], [], "add", acc, body)


def _first_tap(place: ir.Value, dilation: int, step: int) -> ir.Value:
    """The first tap whose place is `place` modulo the steps between patches, if any is."""
    common = math.gcd(dilation, step)
    if step == common:
        return builders.index(0)
    turns = pow(dilation // common, -1, step // common)
    place = place if common == 1 else arith.divsi(place, builders.index(common))
    place = place if turns == 1 else arith.muli(place, builders.index(turns))
    return arith.remsi(place, builders.index(step // common))
