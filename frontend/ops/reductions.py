"""Sums, extrema, norms and statistics. Every reduction has one result; what ATen returns in pairs is two of them."""

from __future__ import annotations

import functools
import math as pymath
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...dialects.mlir import arith, ir, math
from ...dialects.own import function
from ..dtypes import cast, compute_dtype, scalar
from ..extents import normal, product, same
from ..graph_builder import GraphBuilder, Operand, Scalar, T
from ..registry import Unsupported, lowers
from . import scalars as s
from .pointwise import out_shape

aten, prims = torch.ops.aten, torch.ops.prims


def all_dims(x: T, dims: Any) -> list[int]:
    """ATen's `dim` argument as a list: None and [] are all of them."""
    if dims is None or dims == []:
        return list(range(x.rank))
    return [d % max(x.rank, 1) for d in ([dims] if isinstance(dims, int) else dims)]


def count_of(x: T, dims: Sequence[int]) -> Operand:
    """How many elements a reduction over `dims` takes."""
    count = product([x.shape[d] for d in dims] if x.rank else [])
    return count if isinstance(count, int) else Scalar(count)


def out_dtype(node: Any, i: int | None = None) -> torch.dtype:
    value = node.meta["val"]
    return (value if i is None else value[i]).dtype


REDUCTIONS: dict[Any, str] = {
    aten.sum.dim_IntList: "add",
    aten.sum.default: "add",
    aten.prod.default: "mul",
    aten.prod.dim_int: "mul",
    aten.amax.default: "max",
    aten.amin.default: "min",
    aten.max.default: "max",
    aten.min.default: "min",
    aten.any.default: "or",
    aten.any.dim: "or",
    aten.any.dims: "or",
    aten.all.default: "and",
    aten.all.dim: "and",
    aten.all.dims: "and",
    prims.sum.default: "add",
    prims.prod.default: "mul",
    prims.amax.default: "max",
    prims.amin.default: "min",
}


def _check_elements(x: T, dims: Sequence[int]) -> None:
    """Extrema of nothing are an error, which ATen words."""
    if any(same(x.shape[d], 0) for d in dims if x.rank):
        raise Unsupported("an extremum of no elements is an error")


@lowers(*REDUCTIONS)
def reduction(
    b: GraphBuilder, node: Any, x: T, dims: Any = None, keepdim: bool = False, *, dtype: Any = None, output_dtype: Any = None
) -> T:
    combine, out = REDUCTIONS[node.target], out_dtype(node)
    compute = torch.bool if combine in ("and", "or") else compute_dtype(out)
    if dims == [] and node.target in (aten.any.dims, aten.all.dims):  # no dims at all, unlike those of other reductions
        return b.convert(b.convert(x, torch.bool), out)
    if combine in ("max", "min"):
        _check_elements(x, all_dims(x, dims))
    return b.convert(b.reduce(x, all_dims(x, dims), combine, keepdim, compute), out)


@lowers(aten.mean.dim, aten.mean.default)
def mean(b: GraphBuilder, node: Any, x: T, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> T:
    out = out_dtype(node)
    d, dims = compute_dtype(out), all_dims(x, dims)
    total = b.reduce(x, dims, "add", keepdim, d)
    return b.pointwise(total.shape, [total, count_of(x, dims)], d, d, out, arith.divf)


# Where the extremum is


def arg_extremum(b: GraphBuilder, x: T, top: T, dim: int, keepdim: bool) -> T:
    """The first index along `dim` at which x equals `top` (its extremum, dim kept); NaN is found too."""

    def body(at: list[ir.Value], u: ir.Value, m: ir.Value) -> ir.Value:
        found = s.eq(x.dtype, u, m)
        if x.dtype.is_floating_point:
            found = arith.ori(found, s.isnan(x.dtype, u))
        i = arith.index_cast(ir.IntegerType.get_signless(64), at[dim])
        return arith.select(found, i, scalar(torch.int64, torch.iinfo(torch.int64).max))

    where = b.from_indices(x.shape, [x, top], torch.int64, body)
    return b.reduce(where, [dim], "min", keepdim, torch.int64)


def is_used(node: Any, i: int) -> bool:
    """Whether result i of a node with several is read."""
    return any(len(user.args) > 1 and user.args[1] == i for user in node.users)


@lowers(aten.max.dim, aten.min.dim)
def max_dim(b: GraphBuilder, node: Any, x: T, dim: int, keepdim: bool = False) -> list[T | None]:
    combine = "max" if node.target is aten.max.dim else "min"
    if x.rank == 0:
        return [x, b.full((), torch.int64, 0)]
    dim %= x.rank
    _check_elements(x, [dim])
    top = b.reduce(x, [dim], combine, True, x.dtype)
    where = arg_extremum(b, x, top, dim, keepdim) if is_used(node, 1) else None
    return [b.reshape(top, out_shape_of(node, 0)), where]


def out_shape_of(node: Any, i: int) -> tuple[Any, ...]:
    return tuple(normal(size) for size in node.meta["val"][i].shape)


@lowers(aten.argmax.default, aten.argmin.default)
def argmax(b: GraphBuilder, node: Any, x: T, dim: int | None = None, keepdim: bool = False) -> T:
    if x.rank == 0:
        return b.full((), torch.int64, 0)
    flat = b.reshape(x, [product(x.shape)]) if dim is None else x
    dim = 0 if dim is None else dim % x.rank
    top = b.reduce(flat, [dim], "max" if node.target is aten.argmax.default else "min", True, x.dtype)
    return b.reshape(arg_extremum(b, flat, top, dim, False), out_shape(node))


# Variance


def centre(b: GraphBuilder, x: T, dims: Sequence[int], d: torch.dtype) -> tuple[T, T]:
    """(mean over `dims`, dims kept; x less its mean), computed in `d`."""
    total = b.reduce(x, dims, "add", True, d)
    middle = b.pointwise(total.shape, [total, count_of(x, dims)], d, d, d, arith.divf)
    return middle, b.pointwise(x.shape, [x, middle], d, d, d, arith.subf)


def square_sum(b: GraphBuilder, x: T, dims: Sequence[int], keepdim: bool = True) -> T:
    return b.reduce(x, dims, "add", keepdim, x.dtype, lambda u: arith.mulf(u, u))


def _variance(b: GraphBuilder, x: T, dims: Any, correction: Any, keepdim: bool, out: torch.dtype, root: bool) -> tuple[T, T]:
    """Two passes: the mean, then the mean square of what is left, less the square of its mean, by which the first one was rounded.

    That is the corrected two-pass algorithm of Chan, Golub and LeVeque ("Algorithms for computing the sample variance", The American
    Statistician 37, 1983): with a mean of 10^6 deviations the rounding alone would be half a percent of the variance in f32.
    """
    d, dims = compute_dtype(x.dtype), all_dims(x, dims)
    middle, rest = centre(b, x, dims, d)
    squares, left = square_sum(b, rest, dims, keepdim), b.reduce(rest, dims, "add", keepdim, d)
    correction = 1 if correction is None else correction

    def body(u: ir.Value, left: ir.Value, n: ir.Value) -> ir.Value:
        u = arith.maximumf(arith.subf(u, arith.divf(arith.mulf(left, left), n)), scalar(d, 0))
        less = b.number(correction, d) if isinstance(correction, Scalar) else scalar(d, correction)
        n = arith.maximumf(arith.subf(n, less), scalar(d, 0))
        u = arith.divf(u, n)
        return math.sqrt(u) if root else u

    return b.pointwise(squares.shape, [squares, left, count_of(x, dims)], d, d, out, body), middle


@lowers(aten.var.correction, aten.std.correction)
def var(b: GraphBuilder, node: Any, x: T, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> T:
    return _variance(b, x, dims, correction, keepdim, out_dtype(node), node.target is aten.std.correction)[0]


@lowers(prims.var.default)
def prims_var(b: GraphBuilder, node: Any, x: T, dims: Any, correction: Any = 1, *, output_dtype: Any = None) -> T:
    return _variance(b, x, dims, correction, False, out_dtype(node), False)[0]


@lowers(aten.var_mean.correction, aten.std_mean.correction)
def var_mean(b: GraphBuilder, node: Any, x: T, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> list[T]:
    root = node.target is aten.std_mean.correction
    spread, middle = _variance(b, x, dims, correction, keepdim, out_dtype(node, 0), root)
    return [spread, b.reshape(b.convert(middle, out_dtype(node, 1)), out_shape_of(node, 1))]


# Norms and softmax


@lowers(aten.linalg_vector_norm.default)
def vector_norm(
    b: GraphBuilder, node: Any, x: T, ord: float = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> T:
    out = out_dtype(node)
    d, dims = compute_dtype(out), all_dims(x, dims)
    if ord in (pymath.inf, -pymath.inf):
        return b.convert(b.reduce(x, dims, "max" if ord > 0 else "min", keepdim, d, math.absf), out)
    if ord == 0:
        nonzero = lambda u: cast(s.ne(d, u, scalar(d, 0)), torch.bool, d)  # noqa: E731
        return b.convert(b.reduce(x, dims, "add", keepdim, d, nonzero), out)
    term = (lambda u: arith.mulf(u, u)) if ord == 2 else lambda u: s.power_by(d, math.absf(u), ord)
    total = b.reduce(x, dims, "add", keepdim, d, term)
    return b.pointwise(total.shape, [total], d, d, out, lambda u: s.power_by(d, u, 1 / ord))


def finite_max(b: GraphBuilder, x: T, dims: Sequence[int], d: torch.dtype) -> T:
    """The maximum of what is not NaN, or 0 where it is infinite: subtracting it must not give NaN."""
    top = b.reduce(x, dims, "maxnum", True, d)
    return b.pointwise(top.shape, [top], d, d, d, lambda m: arith.select(s.isinf(d, m), scalar(d, 0), m))


def softmax_exp(out: torch.dtype) -> Callable[[ir.Value], ir.Value]:
    """exp of what is not above zero, as good as results of this type need it; in f32 for those of 16 bits."""
    if out == torch.float64:
        return math.exp
    return functools.partial(function, "softmax_exp" if out == torch.float32 else "coarse_softmax_exp")


@lowers(aten.logsumexp.default)
def logsumexp(b: GraphBuilder, node: Any, x: T, dims: Any, keepdim: bool = False) -> T:
    out = out_dtype(node)
    d, dims = compute_dtype(out), all_dims(x, dims)
    top = finite_max(b, x, dims, d)
    shifted = b.pointwise(x.shape, [x, top], d, d, d, arith.subf)
    total = b.reduce(shifted, dims, "add", True, d, math.exp)
    y = b.pointwise(total.shape, [total, top], d, d, out, lambda u, m: arith.addf(math.log(u), m))
    return b.reshape(y, out_shape(node))


@lowers(aten._softmax.default, aten._log_softmax.default, aten._safe_softmax.default)
def softmax(b: GraphBuilder, node: Any, x: T, dim: int, *_: Any, dtype: Any = None) -> T:
    out = out_dtype(node)
    d = compute_dtype(out)
    if not d.is_floating_point:
        return b.full(x.shape, out, 0)  # ATen has none for integers, which shows where there are some
    safe = node.target is aten._safe_softmax.default  # a row of -inf only gives zeros
    # NaN need not be in the maximum to be in the sum.
    top = finite_max(b, x, [dim], d) if safe else b.reduce(x, [dim], "maxnum", True, d)
    if node.target is aten._log_softmax.default:
        shifted = b.pointwise(x.shape, [x, top], d, d, d, arith.subf)
        # Good as f32 needs it, whatever the result: its logarithm is small where the sum is hardly more than one.
        total = b.reduce(shifted, [dim], "add", True, d, softmax_exp(d))
        return b.pointwise(x.shape, [shifted, total], d, d, out, lambda u, t: arith.subf(u, math.log(t)))
    exp = softmax_exp(out)
    power = b.pointwise(x.shape, [x, top], d, d, d, lambda u, m: exp(arith.subf(u, m)))
    total = b.reduce(power, [dim], "add", True, d)
    if safe:
        one = lambda t: arith.select(s.eq(d, t, scalar(d, 0)), scalar(d, 1), t)  # noqa: E731
        total = b.pointwise(total.shape, [total], d, d, d, one)
    # One division for a row; the total is at least one where it is not NaN.
    return b.pointwise(x.shape, [power, total], d, d, out, lambda u, t: arith.mulf(u, arith.divf(scalar(d, 1), t)))


@lowers(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def softmax_backward(b: GraphBuilder, node: Any, grad: T, y: T, dim: int, input_dtype: torch.dtype) -> T:
    out = out_dtype(node)
    d = compute_dtype(y.dtype)
    if node.target is aten._log_softmax_backward_data.default:
        total = b.reduce(grad, [dim], "add", True, d)
        body = lambda g, v, t: arith.subf(g, arith.mulf(math.exp(v), t))  # noqa: E731
    else:
        weighted = b.pointwise(y.shape, [grad, y], d, d, d, arith.mulf)
        total = b.reduce(weighted, [dim], "add", True, d)
        body = lambda g, v, t: arith.mulf(v, arith.subf(g, t))  # noqa: E731
    return b.pointwise(y.shape, [grad, y, total], d, d, out, body)


__all__ = ["all_dims", "arg_extremum", "centre", "count_of", "finite_max", "is_used", "out_dtype", "out_shape_of", "square_sum"]
