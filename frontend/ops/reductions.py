"""Reductions, and the normalisations that are made of them."""

from __future__ import annotations

from typing import Any

import torch

from ...dialects.mlir import arith, math
from ..dtypes import cast, compute_dtype, scalar
from ..graph_builder import GraphBuilder, T, product
from ..registry import lowers

aten = torch.ops.aten


def size_scale(b: GraphBuilder, x: T, dims: list[int]) -> Any:
    """The number of elements that a reduction over `dims` takes, as an operand."""
    from ..graph_builder import Scalar

    count = product([x.shape[d] for d in dims])
    return count if isinstance(count, int) else Scalar(count)


@lowers(aten.mean.dim, aten.mean.default)
def mean(b: GraphBuilder, node: Any, x: T, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> T:
    out = node.meta["val"].dtype
    compute = compute_dtype(out)
    dims = list(range(x.rank)) if not dims else [d % max(x.rank, 1) for d in dims]
    total = b.reduce(x, dims, "add", keepdim, compute)
    count = size_scale(b, x, dims)
    return b.pointwise(total.shape, [total, count], compute, compute, out, lambda u, n: arith.divf(u, n))


@lowers(aten._softmax.default, aten._log_softmax.default)
def softmax(b: GraphBuilder, node: Any, x: T, dim: int, half_to_float: bool) -> T:
    out = node.meta["val"].dtype
    d = compute_dtype(out)
    top = b.reduce(x, [dim], "max", True, d)
    if node.target is aten._log_softmax.default:
        shifted = b.pointwise(x.shape, [x, top], d, d, d, lambda u, m: arith.subf(u, m))
        total = b.reduce(shifted, [dim], "add", True, d, math.exp)
        return b.pointwise(x.shape, [shifted, total], d, d, out, lambda u, s: arith.subf(u, math.log(s)))
    power = b.pointwise(x.shape, [x, top], d, d, d, lambda u, m: math.exp(arith.subf(u, m)))
    total = b.reduce(power, [dim], "add", True, d)
    return b.pointwise(x.shape, [power, total], d, d, out, lambda u, s: arith.divf(u, s))


@lowers(aten.native_layer_norm.default)
def layer_norm(b: GraphBuilder, node: Any, x: T, shape: Any, weight: T | None, bias: T | None, eps: float) -> list[T]:
    """Two passes over the row: mean, then the mean square of what is left (Welford's accuracy, no recurrence)."""
    dims = list(range(x.rank - len(shape), x.rank))
    d = compute_dtype(x.dtype)
    count = size_scale(b, x, dims)
    total = b.reduce(x, dims, "add", True, d)
    mean = b.pointwise(total.shape, [total, count], d, d, d, arith.divf)
    centred = b.pointwise(x.shape, [x, mean], d, d, d, arith.subf)
    squares = b.reduce(centred, dims, "add", True, d, lambda u: arith.mulf(u, u))
    scale = b.pointwise(
        squares.shape, [squares, count], d, d, d, lambda u, n: math.rsqrt(arith.addf(arith.divf(u, n), scalar(d, eps)))
    )
    affine = [p for p in (weight, bias) if p is not None]

    def body(u: Any, s: Any, *params: Any) -> Any:
        left = list(params)
        u = arith.mulf(u, s)
        if weight is not None:
            u = arith.mulf(u, left.pop(0))
        return arith.addf(u, left.pop(0)) if bias is not None else u

    y = b.pointwise(x.shape, [centred, scale, *affine], d, d, x.dtype, body)
    metas = node.meta["val"]
    return [y, b.convert(mean, metas[1].dtype), b.convert(scale, metas[2].dtype)]


__all__ = ["cast", "layer_norm", "mean", "softmax"]
