"""Nearest and linear resampling in one to three dims: weighted reads at computed positions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...dialects import builders
from ...dialects.mlir import arith, ir, math, tensor
from ..dtypes import cast, compute_dtype, scalar
from ..extents import Extent, floordiv, same
from ..graph_builder import GraphBuilder, Scalar, T
from ..registry import Unsupported, lowers
from .pointwise import out_shape

aten = torch.ops.aten
Value = ir.Value
F32 = torch.float32


def _real(v: Value) -> Value:
    return cast(arith.index_cast(ir.IntegerType.get_signless(64), v), torch.int64, F32)


def _position(v: Value) -> Value:
    return arith.index_cast(ir.IndexType.get(), arith.fptosi(ir.IntegerType.get_signless(64), v))


def _scale(b: GraphBuilder, size: Extent, out: Extent, given: Any, corners: bool = False, copies: bool = False) -> Callable[[], Value]:
    """Source positions a step of the result, as an f32 made in the body.

    Where it `copies`, a result as large as its source is one, whatever factor (1.04) was `given` and rounded down to it, as in ATen.
    """
    if isinstance(given, Scalar):
        raise Unsupported("scale factor known only at run time")
    if corners:
        if same(out, 1):
            return lambda: scalar(F32, 0)
        size, out = size - 1, out - 1
    elif given and not copies:
        return lambda: scalar(F32, 1 / given)
    elif given and isinstance(size, int) and isinstance(out, int):
        return lambda: scalar(F32, 1 if size == out else 1 / given)
    elif given:
        alike = lambda: arith.cmpi(arith.CmpIPredicate.eq, b.index(out), b.index(size))  # noqa: E731
        return lambda: arith.select(alike(), scalar(F32, 1), scalar(F32, 1 / given))
    if isinstance(size, int) and isinstance(out, int):
        return lambda: scalar(F32, size / out)
    if corners:  # a single output has no step
        return lambda: arith.divf(_real(b.index(size)), _real(arith.maxsi(b.index(out), builders.index(1))))
    return lambda: arith.divf(_real(b.index(size)), _real(b.index(out)))


NEAREST = {
    aten.upsample_nearest1d: 1, aten.upsample_nearest2d: 2, aten.upsample_nearest3d: 3,
    aten._upsample_nearest_exact1d: 1, aten._upsample_nearest_exact2d: 2, aten._upsample_nearest_exact3d: 3,
}  # fmt: skip
LINEAR = {aten.upsample_linear1d: 1, aten.upsample_bilinear2d: 2, aten.upsample_trilinear3d: 3}


def _scales(node: Any, rest: Sequence[Any], r: int) -> list[Any]:
    """The scale factors given to either overload: a list (.vec), or one argument a dim (.default)."""
    if node.target._overloadname == "vec":
        return list(rest[0]) if rest and rest[0] is not None else [None] * r
    return (list(rest) + [None] * r)[:r]


@lowers(*(getattr(p, o) for p in NEAREST for o in ("default", "vec")))
def nearest(b: GraphBuilder, node: Any, x: T, size: Any, *rest: Any) -> T:
    packet = node.target.overloadpacket
    r = NEAREST[packet]
    exact = "exact" in packet.__name__
    lead, sizes, out = x.shape[:-r], x.shape[-r:], out_shape(node)[-r:]
    scales = _scales(node, rest, r)
    factors = [floordiv(o, i) for i, o in zip(sizes, out)]
    if all(same(f * i, o) and (not g or same(f, g)) for f, i, o, g in zip(factors, sizes, out, scales)):
        # Whole factors: every element is repeated.
        ones = b.reshape(x, [*lead, *(v for i in sizes for v in (i, 1))])
        return b.reshape(b.expand(ones, [*lead, *(v for p in zip(sizes, factors) for v in p)]), [*lead, *out])
    steps = [_scale(b, i, o, g) for i, o, g in zip(sizes, out, scales)]

    def body(at: list[Value]) -> Value:
        place = at[: len(lead)]
        for v, step, i in zip(at[len(lead) :], steps, sizes):
            u = arith.addf(_real(v), scalar(F32, 0.5)) if exact else _real(v)
            p = _position(math.floor(arith.mulf(u, step())))
            place.append(arith.minsi(p, arith.subi(b.index(i), builders.index(1))))
        return tensor.extract(x.value, place)

    return b.from_indices([*lead, *out], [], x.dtype, body)


@lowers(*(getattr(p, o) for p in LINEAR for o in ("default", "vec")))
def linear(b: GraphBuilder, node: Any, x: T, size: Any, corners: bool, *rest: Any) -> T:
    r = LINEAR[node.target.overloadpacket]
    lead, sizes, out = x.shape[:-r], x.shape[-r:], out_shape(node)[-r:]
    if not x.dtype.is_floating_point:
        raise Unsupported("linear resampling of integers")
    steps = [_scale(b, i, o, g, corners, copies=True) for i, o, g in zip(sizes, out, _scales(node, rest, r))]
    d = compute_dtype(x.dtype)

    def neighbours(v: Value, step: Value, i: Extent) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
        """((position, weight) of the lower, of the upper neighbour)"""
        half = scalar(F32, 0.5)
        if corners:
            p = arith.mulf(step, _real(v))
        else:
            p = arith.subf(arith.mulf(step, arith.addf(_real(v), half)), half)
            p = arith.maximumf(p, scalar(F32, 0))
        last = arith.subi(b.index(i), builders.index(1))
        low = arith.minsi(_position(p), last)
        weight = cast(arith.subf(p, _real(low)), F32, d)
        return (low, arith.subf(scalar(d, 1), weight)), (arith.minsi(arith.addi(low, builders.index(1)), last), weight)

    def body(at: list[Value]) -> Value:
        sides = [neighbours(v, step(), i) for v, step, i in zip(at[len(lead) :], steps, sizes)]
        total = None
        for corner in itertools.product(*sides):
            value = cast(tensor.extract(x.value, [*at[: len(lead)], *(p for p, _ in corner)]), x.dtype, d)
            for _, weight in corner:
                value = arith.mulf(value, weight)
            total = value if total is None else arith.addf(total, value)
        return cast(total, d, x.dtype)

    return b.from_indices([*lead, *out], [], x.dtype, body)
