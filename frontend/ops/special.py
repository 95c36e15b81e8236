"""Special functions, and ops that look at the bits of a float."""

from __future__ import annotations

from typing import Any

import torch

from ...dialects.math_expansions.num import Num
from ...dialects.mlir import arith, ir, math
from ...dialects.special_functions import bessel, error, gamma, modified_bessel
from ..dtypes import cast, compute_dtype, mlir_type, scalar
from ..graph_builder import GraphBuilder, T
from ..registry import Unsupported, lowers
from . import scalars as s
from .pointwise import Kind, out_shape, promote

aten = torch.ops.aten
Value = ir.Value
F64 = torch.float64

FUNCTIONS: dict[Any, Any] = {
    aten.lgamma.default: gamma.lgamma,
    aten.digamma.default: gamma.digamma,
    aten.erfinv.default: error.erfinv,
    aten.special_erfcx.default: error.erfcx,
    aten.i0.default: modified_bessel.i0,
    aten.special_i0e.default: modified_bessel.i0e,
    aten.special_i1.default: modified_bessel.i1,
    aten.special_i1e.default: modified_bessel.i1e,
    aten.special_modified_bessel_i0.default: modified_bessel.i0,
    aten.special_modified_bessel_i1.default: modified_bessel.i1,
    aten.special_modified_bessel_k0.default: modified_bessel.k0,
    aten.special_modified_bessel_k1.default: modified_bessel.k1,
    aten.special_scaled_modified_bessel_k0.default: modified_bessel.k0e,
    aten.special_scaled_modified_bessel_k1.default: modified_bessel.k1e,
    aten.special_ndtri.default: error.ndtri,
    aten.special_spherical_bessel_j0.default: bessel.spherical_j0,
    aten.special_bessel_j0.default: bessel.j0,
    aten.special_bessel_j1.default: bessel.j1,
    aten.special_bessel_y0.default: bessel.y0,
    aten.special_bessel_y1.default: bessel.y1,
}


@lowers(*FUNCTIONS)
def special(b: GraphBuilder, node: Any, x: T) -> T:
    return _in_f64(b, node, x, FUNCTIONS[node.target])


def _in_f64(b: GraphBuilder, node: Any, x: T, function: Any) -> T:
    """Computed in f64 and rounded once."""
    out = node.meta["val"].dtype
    wide = promote([node.args[-1]], Kind.INT_TO_FLOAT)

    def body(v: Value) -> Value:
        return cast(function(Num(cast(v, wide, F64))).value, F64, wide)

    return b.pointwise(x.shape, [x], wide, wide, out, body)


@lowers(aten.polygamma.default)
def polygamma(b: GraphBuilder, node: Any, n: int, x: T) -> T:
    if n > 1:
        raise Unsupported("a derivative of the gamma function beyond the second: a sum whose length depends on data")
    return _in_f64(b, node, x, gamma.trigamma if n == 1 else gamma.digamma)


def _bits(d: torch.dtype) -> torch.dtype:
    return {8: torch.int64, 4: torch.int32, 2: torch.int16}[d.itemsize]


@lowers(aten.nextafter.default)
def nextafter(b: GraphBuilder, node: Any, x: T, y: T) -> T:
    """The neighbour of x on the side of y, in the operands' own format."""
    d = node.meta["val"].dtype
    i = _bits(d)

    def body(u: Value, v: Value) -> Value:
        bits = arith.bitcast(mlir_type(i), u)
        zero = scalar(d, 0)
        away = s.eq(torch.bool, s.lt(d, u, v), s.gt(d, u, zero))  # from zero, where a number grows by a bit
        step = arith.select(away, scalar(i, 1), scalar(i, -1))
        near = arith.bitcast(mlir_type(d), arith.addi(bits, step))
        tiny = math.copysign(arith.bitcast(mlir_type(d), scalar(i, 1)), v)
        near = arith.select(s.eq(d, u, zero), tiny, near)
        near = arith.select(s.eq(d, u, v), v, near)
        nan = arith.ori(s.isnan(d, u), s.isnan(d, v))
        return arith.select(nan, scalar(d, float("nan")), near)

    return b.pointwise(out_shape(node), [x, y], d, d, d, body)


@lowers(aten.frexp.Tensor)
def frexp(b: GraphBuilder, node: Any, x: T) -> list[T]:
    """x = mantissa * 2^exponent with 0.5 <= |mantissa| < 1; zeros, infinities and NaN are their own mantissas."""
    d = compute_dtype(x.dtype)
    if not d.is_floating_point:
        raise Unsupported("frexp of integers")
    i = _bits(d)
    digits, bias = (52, 1023) if d == F64 else (23, 127)
    exponents = 2 * bias + 1

    def split(v: Value) -> tuple[Value, Value]:
        small = s.lt(d, math.absf(v), scalar(d, 2.0 ** (1 - bias)))
        normal = arith.select(small, arith.mulf(v, scalar(d, 2.0**digits)), v)
        bits = arith.bitcast(mlir_type(i), normal)
        raw = arith.andi(arith.shrui(bits, scalar(i, digits)), scalar(i, exponents))
        exponent = arith.subi(raw, arith.select(small, scalar(i, bias - 1 + digits), scalar(i, bias - 1)))
        mantissa = arith.andi(bits, scalar(i, ~(exponents << digits)))
        mantissa = arith.bitcast(mlir_type(d), arith.ori(mantissa, scalar(i, (bias - 1) << digits)))
        own = arith.ori(s.eq(d, v, scalar(d, 0)), arith.xori(s.isfinite(d, v), scalar(torch.bool, 1)))
        return arith.select(own, v, mantissa), arith.select(own, scalar(i, 0), exponent)

    mantissa = b.pointwise(x.shape, [x], d, d, x.dtype, lambda v: split(v)[0])
    return [mantissa, b.pointwise(x.shape, [x], d, i, torch.int32, lambda v: split(v)[1])]


@lowers(aten.view.dtype, aten.view_copy.dtype)
def view_as_dtype(b: GraphBuilder, node: Any, x: T, dtype: torch.dtype) -> T:
    if x.dtype == dtype:
        return x
    if x.dtype.itemsize != dtype.itemsize:
        raise Unsupported("a view that cuts or joins elements")
    if torch.bool in (x.dtype, dtype):
        raise Unsupported("the bytes of bools")
    kind = mlir_type(dtype)
    if kind == mlir_type(x.dtype):
        return T(x.value, x.shape, dtype)
    return b.pointwise(x.shape, [x], x.dtype, dtype, dtype, lambda v: arith.bitcast(kind, v))
