"""Random numbers in the kernel: the same arithmetic as `frontend.philox`, element by element."""

from __future__ import annotations

import math as pymath
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...dialects import builders
from ...dialects.mlir import arith, cf, ir, math
from ..dtypes import cast, compute_dtype, mlir_type, scalar
from ..graph_builder import GraphBuilder, Scalar, T
from ..philox import DIGITS, MULTIPLIERS, ROUNDS, WEYL, ops, threshold
from ..registry import lowers
from .pointwise import out_shape

Value = ir.Value
F32, F64, I32, I64 = torch.float32, torch.float64, torch.int32, torch.int64


def _low(v: Value) -> Value:
    return arith.trunci(mlir_type(I32), v)


def _high(v: Value) -> Value:
    return _low(arith.shrui(v, scalar(I64, 32)))


def _wide(v: Value) -> Value:
    return arith.extui(mlir_type(I64), v)


def words(seed: Value, position: Value) -> list[Value]:
    """The four i32 words for an i64 seed and position."""
    c = [_low(position), _high(position), scalar(I32, 0), scalar(I32, 0)]
    key = [_low(seed), _high(seed)]
    for i in range(ROUNDS):
        a, b = (arith.muli(_wide(c[k]), scalar(I64, m)) for k, m in zip((0, 2), MULTIPLIERS))
        keys = [arith.addi(k, scalar(I32, i * w)) for k, w in zip(key, WEYL)]
        c = [
            arith.xori(arith.xori(_high(b), c[1]), keys[0]),
            _low(b),
            arith.xori(arith.xori(_high(a), c[3]), keys[1]),
            _low(a),
        ]
    return c


def _draw(b: GraphBuilder, node: Any, seed: T, out: torch.dtype, body: Callable[[list[Value]], Value]) -> T:
    shape = out_shape(node)

    def element(at: list[Value], s: Value) -> Value:
        place = builders.index(0)
        for i, n in zip(at, shape):
            place = arith.addi(arith.muli(place, b.index(n)), i)
        return body(words(s, arith.index_cast(mlir_type(I64), place)))

    return b.from_indices(shape, [seed], out, element)


def _fraction(w: Sequence[Value], digits: int) -> Value:
    """The leading `digits` bits of a word as an f32 in [0, 1), or those of two words as an f64."""
    if len(w) == 2:
        bits = arith.ori(arith.shli(_wide(w[0]), scalar(I64, 21)), _wide(arith.shrui(w[1], scalar(I32, 11))))
        return arith.mulf(arith.sitofp(mlir_type(F64), bits), scalar(F64, 2.0**-53))
    bits = arith.shrui(w[0], scalar(I32, 32 - digits))
    return arith.mulf(arith.sitofp(mlir_type(F32), bits), scalar(F32, 2.0**-digits))


@lowers(ops.rand.default)
def rand(b: GraphBuilder, node: Any, seed: T, size: Any, dtype: torch.dtype) -> T:
    def body(w: list[Value]) -> Value:
        if dtype == F64:
            return _fraction(w[:2], 53)
        return cast(_fraction(w[:1], DIGITS[dtype]), F32, dtype)

    return _draw(b, node, seed, dtype, body)


@lowers(ops.randn.default)
def randn(b: GraphBuilder, node: Any, seed: T, size: Any, dtype: torch.dtype) -> T:
    d = F64 if dtype == F64 else F32

    def body(w: list[Value]) -> Value:
        if d == F64:
            radius, angle = arith.addf(_fraction(w[:2], 53), scalar(d, 2.0**-54)), _fraction(w[2:], 53)
        else:
            radius = arith.mulf(arith.uitofp(mlir_type(d), w[0]), scalar(d, 2.0**-32))
            radius, angle = arith.addf(radius, scalar(d, 2.0**-33)), _fraction(w[1:2], 24)
        radius = math.sqrt(arith.mulf(scalar(d, -2), math.log(radius)))
        return cast(arith.mulf(radius, math.cos(arith.mulf(scalar(d, 2 * pymath.pi), angle))), d, dtype)

    return _draw(b, node, seed, dtype, body)


@lowers(ops.randint.default)
def randint(b: GraphBuilder, node: Any, seed: T, low: Any, high: Any, size: Any, dtype: torch.dtype) -> T:
    known = isinstance(low, int) and isinstance(high, int)

    def number(x: Any) -> Value:
        return b.number(x, I64) if isinstance(x, Scalar) else scalar(I64, x)

    def body(w: list[Value]) -> Value:
        span = scalar(I64, high - low) if known else arith.subi(number(high), number(low))
        few = arith.shrui(arith.muli(_wide(w[0]), span), scalar(I64, 32))
        if known and high - low <= 2**32:
            offset = few
        else:
            wide = arith.ori(arith.shli(_wide(w[0]), scalar(I64, 32)), _wide(w[1]))
            offset = arith.remui(wide, span)
            if not known:
                offset = arith.select(arith.cmpi(arith.CmpIPredicate.ule, span, scalar(I64, 2**32)), few, offset)
        return cast(arith.addi(number(low), offset), I64, dtype)

    return _draw(b, node, seed, dtype, body)


@lowers(ops.bernoulli.default)
def bernoulli(b: GraphBuilder, node: Any, seed: T, p: float, size: Any) -> T:
    def body(w: list[Value]) -> Value:
        return arith.cmpi(arith.CmpIPredicate.ult, _wide(w[0]), scalar(I64, threshold(p)))

    return _draw(b, node, seed, torch.bool, body)


@lowers(ops.probability.default)
def probability(b: GraphBuilder, node: Any, p: T) -> T:
    def body(v: Value) -> Value:
        order = arith.CmpFPredicate
        inside = arith.andi(arith.cmpf(order.OGE, v, scalar(d, 0)), arith.cmpf(order.OLE, v, scalar(d, 1)))
        cf.assert_(inside, "ProbabilityError")
        return v

    d = compute_dtype(p.dtype)
    return b.pointwise(p.shape, [p], d, d, p.dtype, body)
