"""Activation functions and their gradients as scalar formulas."""

from __future__ import annotations

from typing import Any

import torch

from ...dialects import own
from ...dialects.mlir import arith, ir, math
from ..dtypes import scalar
from ..graph_builder import GraphBuilder, T
from ..registry import lowers
from . import scalars as s
from .pointwise import Kind, apply

aten = torch.ops.aten
Value = ir.Value

# sqrt(1/2), sqrt(2/pi), 1/sqrt(2 pi), and the cubic coefficient of the tanh form of GELU (Hendrycks & Gimpel 2016)
SQRT_HALF, SQRT_2_PI, INV_SQRT_2PI, CUBIC = 0.7071067811865476, 0.7978845608028654, 0.3989422804014327, 0.044715


def _tanh_gelu(d: torch.dtype, x: Value) -> Value:
    """tanh(sqrt(2/pi) (x + 0.044715 x^3))"""
    cube = arith.mulf(x, arith.mulf(x, x))
    return math.tanh(arith.mulf(scalar(d, SQRT_2_PI), arith.addf(x, arith.mulf(scalar(d, CUBIC), cube))))


def gelu(d: torch.dtype, x: Value, approximate: str = "none") -> Value:
    """Infinity at infinity, where ATen's f32 vectors and their tails have NaN; NaN at minus infinity, as in ATen."""
    return own.function("gelu_tanh" if approximate == "tanh" else "gelu", x)


def gelu_backward(d: torch.dtype, grad: Value, x: Value, approximate: str = "none") -> Value:
    half, one = scalar(d, 0.5), scalar(d, 1)
    if approximate == "tanh":
        t = _tanh_gelu(d, x)
        slope = arith.mulf(scalar(d, SQRT_2_PI), arith.addf(one, arith.mulf(scalar(d, 3 * CUBIC), arith.mulf(x, x))))
        left = arith.mulf(half, arith.addf(one, t))
        right = arith.mulf(arith.mulf(half, x), arith.mulf(arith.subf(one, arith.mulf(t, t)), slope))
    else:
        left = arith.mulf(half, arith.addf(one, math.erf(arith.mulf(x, scalar(d, SQRT_HALF)))))
        density = math.exp(arith.mulf(scalar(d, -0.5), arith.mulf(x, x)))
        right = arith.mulf(x, arith.mulf(density, scalar(d, INV_SQRT_2PI)))
    return arith.mulf(grad, arith.addf(left, right))


def silu_backward(d: torch.dtype, grad: Value, x: Value) -> Value:
    y, one = s.sigmoid(d, x), scalar(d, 1)
    return arith.mulf(arith.mulf(grad, y), arith.addf(one, arith.mulf(x, arith.subf(one, y))))


def _ramp(d: torch.dtype, x: Value) -> Value:
    """min(max(x + 3, 0), 6)"""
    return arith.minimumf(arith.maximumf(arith.addf(x, scalar(d, 3)), scalar(d, 0)), scalar(d, 6))


def elu(d: torch.dtype, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    low = arith.mulf(math.expm1(arith.mulf(x, scalar(d, input_scale))), scalar(d, float(alpha) * float(scale)))
    # Zero is its own result, whatever alpha is.
    return arith.select(s.lt(d, x, scalar(d, 0)), low, arith.mulf(x, scalar(d, scale)))


def softplus(d: torch.dtype, x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    u = arith.mulf(x, scalar(d, beta))
    return arith.select(s.gt(d, u, scalar(d, threshold)), x, arith.divf(math.log1p(math.exp(u)), scalar(d, beta)))


def leaky_relu(d: torch.dtype, x: Value, slope: float = 0.01) -> Value:
    return arith.select(s.gt(d, x, scalar(d, 0)), x, arith.mulf(x, scalar(d, slope)))


def leaky_relu_backward(d: torch.dtype, grad: Value, x: Value, slope: float, is_result: bool) -> Value:
    return arith.select(s.gt(d, x, scalar(d, 0)), grad, arith.mulf(grad, scalar(d, slope)))


def threshold_backward(d: torch.dtype, grad: Value, x: Value, threshold: float) -> Value:
    return arith.select(s.le(d, x, scalar(d, threshold)), scalar(d, 0), grad)


def threshold(d: torch.dtype, x: Value, threshold: float, value: float) -> Value:
    return arith.select(s.le(d, x, scalar(d, threshold)), scalar(d, value), x)


def hardtanh_backward(d: torch.dtype, grad: Value, x: Value, low: float, high: float) -> Value:
    """Zero at NaN, as ATen's vectors have it (not their tails)."""
    inside = arith.andi(s.gt(d, x, scalar(d, low)), s.lt(d, x, scalar(d, high)))
    return arith.select(inside, grad, scalar(d, 0))


def hardswish_backward(d: torch.dtype, grad: Value, x: Value) -> Value:
    """NaN at NaN, which torch's decomposition takes for a large number."""
    slope = arith.addf(arith.divf(x, scalar(d, 3)), scalar(d, 0.5))
    right = arith.select(s.ge(d, x, scalar(d, 3)), grad, arith.mulf(grad, slope))
    return arith.select(s.le(d, x, scalar(d, -3)), scalar(d, 0), right)


def elu_backward(
    d: torch.dtype, grad: Value, alpha: float, scale: float, input_scale: float, is_result: bool, x: Value
) -> Value:
    """NaN at NaN, which torch's decomposition takes for a positive number."""
    low = scalar(d, float(alpha) * float(scale))
    if is_result:
        slope = arith.addf(x, low)
    else:
        slope = arith.mulf(low, math.exp(arith.mulf(x, scalar(d, input_scale))))
    left = arith.mulf(arith.mulf(grad, scalar(d, input_scale)), slope)
    return arith.select(s.gt(d, x, scalar(d, 0)), arith.mulf(grad, scalar(d, scale)), left)


def sigmoid_backward(d: torch.dtype, grad: Value, y: Value) -> Value:
    return arith.mulf(arith.mulf(grad, arith.subf(scalar(d, 1), y)), y)


def tanh_backward(d: torch.dtype, grad: Value, y: Value) -> Value:
    return arith.mulf(grad, arith.subf(scalar(d, 1), arith.mulf(y, y)))


ACTIVATIONS: dict[Any, Any] = {
    aten.gelu.default: gelu,
    aten.gelu_backward.default: gelu_backward,
    aten.silu.default: lambda d, x: own.function("silu", x),
    aten.silu_backward.default: silu_backward,
    aten.hardswish.default: lambda d, x: arith.divf(arith.mulf(x, _ramp(d, x)), scalar(d, 6)),
    aten.hardsigmoid.default: lambda d, x: arith.divf(_ramp(d, x), scalar(d, 6)),
    aten.mish.default: lambda d, x: own.function("mish", x),
    aten.elu.default: elu,
    aten.softplus.default: softplus,
    aten.leaky_relu.default: leaky_relu,
    aten.leaky_relu_backward.default: leaky_relu_backward,
    aten.threshold.default: threshold,
    aten.threshold_backward.default: threshold_backward,
    aten.hardtanh_backward.default: hardtanh_backward,
    aten.hardswish_backward.default: hardswish_backward,
    aten.sigmoid_backward.default: sigmoid_backward,
    aten.tanh_backward.default: tanh_backward,
}


@lowers(*ACTIVATIONS)
def activation(b: GraphBuilder, node: Any, *args: Any, **kwargs: Any) -> T:
    """Tensor arguments come first; the numbers behind them are constants of the formula."""
    tensors = [a for a in args if isinstance(a, T)]
    numbers = args[len(tensors) :]
    formula = ACTIVATIONS[node.target]
    raw = list(node.args[: len(tensors)])
    return apply(b, node, list(tensors), raw, Kind.DEFAULT, lambda d, *v: formula(d, *v, *numbers, **kwargs))


@lowers(aten.elu_backward.default)
def elu_gradient(b: GraphBuilder, node: Any, grad: T, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: T) -> T:
    def body(d: torch.dtype, g: Value, u: Value) -> Value:
        return elu_backward(d, g, alpha, scale, input_scale, is_result, u)

    return apply(b, node, [grad, x], [node.args[0], node.args[5]], Kind.DEFAULT, body)
