"""mm, bmm, addmm, baddbmm: sums of products with the bias and the scale as elementwise ops behind them."""

from __future__ import annotations

from typing import Any

import torch

from ...dialects.mlir import arith
from ..dtypes import compute_dtype
from ..graph_builder import GraphBuilder, T
from ..registry import lowers
from .pointwise import add_scaled

aten = torch.ops.aten


@lowers(aten.mm.default)
def mm(b: GraphBuilder, node: Any, x: T, w: T) -> T:
    return b.convert(b.contract(x, w, ("mk", "kn", "mn"), (x.shape[0], w.shape[1])), x.dtype)


@lowers(aten._int_mm.default)
def int_mm(b: GraphBuilder, node: Any, x: T, w: T) -> T:
    """Sums in i32 of products of bytes."""
    return b.contract(x, w, ("mk", "kn", "mn"), (x.shape[0], w.shape[1]), acc=torch.int32)


@lowers(aten._weight_int8pack_mm.default)
def weight_int8pack_mm(b: GraphBuilder, node: Any, x: T, w: T, scales: T) -> T:
    """x [m, k] times bytes [n, k], each row of which has a scale; rounded once."""
    compute = compute_dtype(x.dtype)
    product = b.contract(x, b.convert(w, x.dtype), ("mk", "nk", "mn"), (x.shape[0], w.shape[0]))
    return b.pointwise(product.shape, [product, scales], compute, compute, x.dtype, lambda u, v: arith.mulf(u, v))


@lowers(aten.bmm.default)
def bmm(b: GraphBuilder, node: Any, x: T, w: T) -> T:
    return b.convert(b.contract(x, w, ("bmk", "bkn", "bmn"), (x.shape[0], x.shape[1], w.shape[2])), x.dtype)


@lowers(aten.addmm.default)
def addmm(b: GraphBuilder, node: Any, bias: T, x: T, w: T, *, beta: Any = 1, alpha: Any = 1) -> T:
    shape = (x.shape[0], w.shape[1])
    if alpha == 0 and x.dtype in (torch.float32, torch.float64):  # BLAS does not look at the product, NaN or not
        return b.full(shape, x.dtype, 0) if beta == 0 else b.expand(add_scaled(b, bias, bias, beta, 0, x.dtype, x.dtype), shape)
    product = b.contract(x, w, ("mk", "kn", "mn"), shape)
    return add_scaled(b, product, bias, alpha, beta, compute_dtype(x.dtype), x.dtype)


@lowers(aten.baddbmm.default)
def baddbmm(b: GraphBuilder, node: Any, bias: T, x: T, w: T, *, beta: Any = 1, alpha: Any = 1) -> T:
    product = b.contract(x, w, ("bmk", "bkn", "bmn"), (x.shape[0], x.shape[1], w.shape[2]))
    return add_scaled(b, product, bias, alpha, beta, compute_dtype(x.dtype), x.dtype)
