"""Layer, group and batch normalisation, and their gradients where the decomposition would be long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...dialects.mlir import arith, ir, math
from ..dtypes import compute_dtype, scalar
from ..extents import floordiv
from ..graph_builder import GraphBuilder, Operand, T
from ..registry import Unsupported, lowers
from .reductions import centre, count_of, out_dtype, out_shape_of, square_sum

aten = torch.ops.aten


def _inverse_deviation(b: GraphBuilder, squares: T, count: Operand, eps: float) -> T:
    """1 / sqrt(squares / count + eps)"""
    d = squares.dtype

    def body(u: ir.Value, n: ir.Value) -> ir.Value:
        return math.rsqrt(arith.addf(arith.divf(u, n), scalar(d, eps)))

    return b.pointwise(squares.shape, [squares, count], d, d, d, body)


def _affine(b: GraphBuilder, rest: T, scale: T, weight: T | None, bias: T | None, out: torch.dtype, mean: T | None = None) -> T:
    """(rest - mean) * scale * weight + bias"""
    d = scale.dtype

    def body(u: ir.Value, *factors: ir.Value) -> ir.Value:
        left = list(factors)
        u = arith.subf(u, left.pop(0)) if mean is not None else u
        u = arith.mulf(u, left.pop(0))
        if weight is not None and bias is not None:
            return math.fma(u, *left)
        u = arith.mulf(u, left.pop(0)) if weight is not None else u
        return arith.addf(u, left.pop(0)) if bias is not None else u

    return b.pointwise(rest.shape, [rest, *(p for p in (mean, scale, weight, bias) if p is not None)], d, d, out, body)


@lowers(aten.native_layer_norm.default)
def layer_norm(b: GraphBuilder, node: Any, x: T, shape: Any, weight: T | None, bias: T | None, eps: float) -> list[T]:
    """Two passes over the row: mean, then the mean square of what is left (Welford's accuracy, no recurrence)."""
    dims = list(range(x.rank - len(shape), x.rank))
    mean, rest = centre(b, x, dims, compute_dtype(x.dtype))
    scale = _inverse_deviation(b, square_sum(b, rest, dims), count_of(x, dims), eps)
    y = _affine(b, rest, scale, weight, bias, x.dtype)
    return [y, b.convert(mean, out_dtype(node, 1)), b.convert(scale, out_dtype(node, 2))]


@lowers(aten.native_group_norm.default)
def group_norm(
    b: GraphBuilder, node: Any, x: T, weight: T | None, bias: T | None, n: Any, c: Any, hw: Any, groups: int, eps: float
) -> list[T]:
    """The channel dim is split, spatial dims stay as they are: [N, G, C/G, *spatial] is a view in any memory order."""
    inner = floordiv(x.shape[1], groups)
    split = b.reshape(x, [x.shape[0], groups, inner, *x.shape[2:]])
    dims = list(range(2, split.rank))
    mean, rest = centre(b, split, dims, compute_dtype(x.dtype))
    scale = _inverse_deviation(b, square_sum(b, rest, dims), count_of(split, dims), eps)
    per_channel = [groups, inner, *[1] * (x.rank - 2)]
    weight, bias = (None if p is None else b.reshape(p, per_channel) for p in (weight, bias))
    y = b.reshape(_affine(b, split, scale, weight, bias, x.dtype, mean), x.shape)
    stats = [b.reshape(b.convert(t, out_dtype(node, i)), out_shape_of(node, i)) for i, t in ((1, mean), (2, scale))]
    return [y, *stats]


def _channels(b: GraphBuilder, p: T | None, x: T) -> T | None:
    """[C] -> [C, 1, ...], to broadcast over the batch and the spatial dims of x."""
    return None if p is None else b.reshape(p, [x.shape[1], *[1] * (x.rank - 2)])


def _apply_statistics(
    b: GraphBuilder, x: T, weight: T | None, bias: T | None, mean: T, var: T, eps: float, out: torch.dtype
) -> T:
    """x * scale + shift: one multiplication and one addition an element. Both factors depend on the channel only, in ops of
    their own, so that they are computed once where the statistics and parameters stay the same."""
    d = compute_dtype(x.dtype)
    mean, var, weight, bias = (_channels(b, p, x) for p in (mean, var, weight, bias))

    def deviation(v: ir.Value, w: ir.Value | None = None) -> ir.Value:
        scale = math.rsqrt(arith.addf(v, scalar(d, eps)))
        return scale if w is None else arith.mulf(scale, w)

    def offset(m: ir.Value, scale: ir.Value, shift: ir.Value | None = None) -> ir.Value:
        product = arith.mulf(arith.negf(m), scale)
        return product if shift is None else arith.addf(product, shift)

    scale = b.pointwise(var.shape, [var, *([] if weight is None else [weight])], d, d, d, deviation)
    shift = b.pointwise(var.shape, [mean, scale, *([] if bias is None else [bias])], d, d, d, offset)
    return b.pointwise(x.shape, [x, scale, shift], d, d, out, math.fma)


def _training(
    b: GraphBuilder, x: T, weight: T | None, bias: T | None, running: Sequence[T], momentum: float, eps: float,
    out: torch.dtype,
) -> tuple[T, T, T, list[T]]:  # fmt: skip
    """(y, mean, inverse deviation, new running statistics) of the batch."""
    d = compute_dtype(x.dtype)
    dims = [0, *range(2, x.rank)]
    count = count_of(x, dims)
    mean, rest = centre(b, x, dims, d)
    squares = square_sum(b, rest, dims)
    scale = _inverse_deviation(b, squares, count, eps)
    y = _affine(b, rest, scale, _channels(b, weight, x), _channels(b, bias, x), out)
    flat = [b.reshape(t, [x.shape[1]]) for t in (mean, squares, scale)]

    def blend(old: ir.Value, new: ir.Value) -> ir.Value:
        return arith.addf(arith.mulf(scalar(d, 1 - momentum), old), arith.mulf(scalar(d, momentum), new))

    def blend_variance(old: ir.Value, u: ir.Value, n: ir.Value) -> ir.Value:
        return blend(old, arith.divf(u, arith.subf(n, scalar(d, 1))))

    updated = []
    if running:
        kind = running[0].dtype
        updated = [
            b.pointwise(flat[0].shape, [running[0], flat[0]], d, d, kind, blend),
            b.pointwise(flat[1].shape, [running[1], flat[1], count], d, d, kind, blend_variance),
        ]
    return y, flat[0], flat[2], updated


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    b: GraphBuilder, node: Any, x: T, weight: T | None, bias: T | None, mean: T, var: T, momentum: float, eps: float
) -> list[T]:
    y = _apply_statistics(b, x, weight, bias, mean, var, eps, out_dtype(node, 0))
    return [y, *(b.full(out_shape_of(node, i), out_dtype(node, i), 0) for i in (1, 2))]


@lowers(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    b: GraphBuilder, node: Any, x: T, weight: T | None, bias: T | None, mean: T, var: T, training: bool, momentum: float,
    eps: float,
) -> list[T]:  # fmt: skip
    if not training:
        return [*batch_norm_inference(b, node, x, weight, bias, mean, var, momentum, eps), mean, var]
    y, m, r, updated = _training(b, x, weight, bias, [mean, var], momentum, eps, out_dtype(node, 0))
    return [y, b.convert(m, out_dtype(node, 1)), b.convert(r, out_dtype(node, 2)), *updated]


@lowers(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    b: GraphBuilder, node: Any, x: T, weight: T | None, bias: T | None, training: bool, momentum: float, eps: float
) -> list[T]:
    y, m, r, _ = _training(b, x, weight, bias, [], momentum, eps, out_dtype(node, 0))
    return [y, b.convert(m, out_dtype(node, 1)), b.convert(r, out_dtype(node, 2))]


@lowers(aten.native_batch_norm.default)
def native_batch_norm(
    b: GraphBuilder, node: Any, x: T, weight: T | None, bias: T | None, mean: T | None, var: T | None, training: bool,
    momentum: float, eps: float,
) -> list[T]:  # fmt: skip
    if training and mean is not None:
        raise Unsupported("batch norm that writes its running statistics")
    if training:
        return batch_norm_no_stats(b, node, x, weight, bias, training, momentum, eps)
    assert mean is not None and var is not None
    return batch_norm_inference(b, node, x, weight, bias, mean, var, momentum, eps)


@lowers(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    b: GraphBuilder, node: Any, grad: T, x: T, weight: T | None, running_mean: T | None, running_var: T | None,
    mean: T | None, scale: T | None, training: bool, eps: float, mask: Sequence[bool],
) -> list[T | None]:  # fmt: skip
    """Gradients of input, weight and bias; `mean` and `scale` (the inverse deviation) were saved by the forward pass."""
    d = compute_dtype(x.dtype)
    dims = [0, *range(2, x.rank)]
    if not training:
        assert running_mean is not None and running_var is not None
        mean = running_mean
        inverse = lambda v: math.rsqrt(arith.addf(v, scalar(d, eps)))  # noqa: E731
        scale = b.pointwise(running_var.shape, [running_var], d, d, d, inverse)
    m, r, w = (_channels(b, p, x) for p in (mean, scale, weight))
    products = b.pointwise(x.shape, [grad, x, m], d, d, d, lambda g, u, v: arith.mulf(g, arith.subf(u, v)))  # type: ignore[list-item]
    weighted = b.reduce(products, dims, "add", False, d)
    total = b.reduce(grad, dims, "add", False, d)
    out: list[T | None] = [None, None, None]
    if mask[0]:
        inputs: list[Operand] = [grad, x, m, r, _channels(b, weighted, x), _channels(b, total, x), count_of(x, dims)]  # type: ignore[list-item]

        def body(g: ir.Value, u: ir.Value, mu: ir.Value, rs: ir.Value, dot: ir.Value, sum_: ir.Value, n: ir.Value, *ws: ir.Value) -> ir.Value:
            if training:
                slope = arith.mulf(arith.mulf(arith.divf(dot, n), rs), rs)
                g = arith.subf(arith.subf(g, arith.mulf(arith.subf(u, mu), slope)), arith.divf(sum_, n))
            factor = arith.mulf(rs, ws[0]) if ws else rs
            return arith.mulf(g, factor)

        out[0] = b.pointwise(x.shape, [*inputs, *([w] if w is not None else [])], d, d, x.dtype, body)
    if mask[1]:
        out[1] = b.pointwise(weighted.shape, [weighted, scale], d, d, out_dtype(node, 1), arith.mulf)  # type: ignore[list-item]
    if mask[2]:
        out[2] = b.convert(total, out_dtype(node, 2))
    return out


@lowers(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    b: GraphBuilder, node: Any, grad: T, x: T, shape: Any, mean: T, scale: T, weight: T | None, bias: T | None,
    mask: Sequence[bool],
) -> list[T | None]:  # fmt: skip
    """With xhat = (x - mean) * scale and g = grad * weight: (g - mean(g) - xhat * mean(g * xhat)) * scale."""
    d = compute_dtype(x.dtype)
    inner = list(range(x.rank - len(shape), x.rank))
    outer = list(range(x.rank - len(shape)))
    normal = b.pointwise(x.shape, [x, mean, scale], d, d, d, lambda u, m, r: arith.mulf(arith.subf(u, m), r))
    out: list[T | None] = [None, None, None]
    if mask[0]:
        g = grad if weight is None else b.pointwise(x.shape, [grad, weight], d, d, d, arith.mulf)
        total = b.reduce(g, inner, "add", True, d)
        dot = b.reduce(b.pointwise(x.shape, [g, normal], d, d, d, arith.mulf), inner, "add", True, d)

        def body(u: ir.Value, v: ir.Value, r: ir.Value, sum_: ir.Value, dot_: ir.Value, n: ir.Value) -> ir.Value:
            u = arith.subf(u, arith.divf(sum_, n))
            return arith.mulf(arith.subf(u, arith.mulf(v, arith.divf(dot_, n))), r)

        out[0] = b.pointwise(x.shape, [g, normal, scale, total, dot, count_of(x, inner)], d, d, x.dtype, body)
    if mask[1]:
        products = b.pointwise(x.shape, [grad, normal], d, d, d, arith.mulf)
        out[1] = b.convert(b.reduce(products, outer, "add", False, d), out_dtype(node, 1))
    if mask[2]:
        out[2] = b.convert(b.reduce(grad, outer, "add", False, d), out_dtype(node, 2))
    return out

