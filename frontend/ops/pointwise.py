"""Elementwise ops, from tables: the scalar body and the type promotion of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.inductor_prims  # which registers prims.fma
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._prims_common import elementwise_dtypes

from ...dialects import own
from ...dialects.mlir import arith, ir, math
from ..dtypes import cast, compute_dtype, scalar
from ..extents import normal, same
from ..graph_builder import GraphBuilder, Operand, Scalar, T
from ..registry import Unsupported, lowers
from . import scalars as s
from .scalars import add, mul, sub

aten, prims = torch.ops.aten, torch.ops.prims
Body = Callable[..., ir.Value]


def meta(x: Any) -> Any:
    """What type promotion wants to see of an argument of an FX node."""
    x = x.meta["val"] if isinstance(x, torch.fx.Node) else x
    for symbolic, number in ((torch.SymInt, 1), (torch.SymFloat, 1.0), (torch.SymBool, True)):
        if isinstance(x, symbolic):
            return number
    return x


def promote(raw: list[Any], kind: Kind = Kind.DEFAULT) -> torch.dtype:
    """The dtype to compute in, as ATen's type promotion of the FX node's arguments has it."""
    return compute_dtype(elementwise_dtypes(*map(meta, raw), type_promotion_kind=kind)[0])


def _of_tensors(raw: list[Any], body: Body) -> Body:
    """`body` on arguments rounded to the 16-bit type that they share in ATen, for ops that jump where a number is a little larger:
    ATen's scalars have the dtype of the tensors there, `x > 0.1` compares with what 0.1 is in bf16."""
    half = _half(raw)
    if half is None:
        return body
    given = [getattr(meta(x), "dtype", None) == half for x in raw]
    return lambda d, *v: body(d, *(x if same else _rounded(x, d, half) for x, same in zip(v, given)))


def _half(raw: list[Any]) -> torch.dtype | None:
    """The 16-bit float type that ATen promotes these arguments to; None if it is another."""
    common = elementwise_dtypes(*map(meta, raw), type_promotion_kind=Kind.DEFAULT)[1]
    return common if common in (torch.bfloat16, torch.float16) else None


def _rounded(x: ir.Value, d: torch.dtype, half: torch.dtype) -> ir.Value:
    """A value of dtype `d` with the precision of `half`."""
    return cast(cast(x, d, half), half, d)


def out_shape(node: torch.fx.Node) -> tuple[Any, ...]:
    return tuple(normal(s) for s in node.meta["val"].shape)


def apply(b: GraphBuilder, node: torch.fx.Node, args: list[Operand], raw: list[Any], kind: Kind, body: Any) -> T:
    """Build one elementwise node: `body(dtype, *scalars)`; comparisons give bool."""
    compute = promote(raw, kind)
    result = torch.bool if kind == Kind.ALWAYS_BOOL else compute
    return b.pointwise(out_shape(node), args, compute, result, node.meta["val"].dtype, lambda *v: body(compute, *v))


def add_scaled(
    b: GraphBuilder, x: T, y: T, alpha: Scalar | float, beta: Scalar | float, compute: torch.dtype, out: torch.dtype
) -> T:
    """alpha * x + beta * y over the shape of x. With beta = 0, NaN in y is ignored."""
    if beta == 0:
        return b.pointwise(x.shape, [x, alpha], compute, compute, out, lambda u, a: mul(compute, u, a))

    def body(u: ir.Value, v: ir.Value) -> ir.Value:
        u = u if alpha == 1 else mul(compute, u, b.factor(alpha, compute))
        if beta == 1:
            return add(compute, u, v)
        factor = b.factor(beta, compute)
        v = mul(compute, v, factor)
        if isinstance(beta, Scalar):
            zero = scalar(compute, 0)
            v = arith.select(s.ne(compute, factor, zero), v, zero)
        return add(compute, u, v)

    return b.pointwise(x.shape, [x, y], compute, compute, out, body)


def _plain(op: Callable[[ir.Value], ir.Value]) -> Body:
    return lambda d, x: op(x)


UNARY_FLOAT: dict[Any, Body] = {
    getattr(aten, name): _plain(getattr(math, name))
    for name in (
        "acos acosh asin asinh atan atanh cos cosh erf erfc exp exp2 expm1 log log10 log1p log2 rsqrt sin sinh sqrt tan tanh"
    ).split()
} | {
    aten.sigmoid: s.sigmoid,
    aten.reciprocal: lambda d, x: arith.divf(scalar(d, 1), x),
    aten.deg2rad: lambda d, x: arith.mulf(x, scalar(d, 0.017453292519943295)),
    aten.rad2deg: lambda d, x: arith.mulf(x, scalar(d, 57.29577951308232)),
}
UNARY: dict[Any, Body] = {
    aten.abs.default: s.absolute,
    aten.neg.default: s.neg,
    aten.sign.default: s.sign,
    aten.sgn.default: s.sign,
    aten.floor.default: s.floor,
    aten.ceil.default: s.ceil,
    aten.trunc.default: s.trunc,
    aten.fix.default: s.trunc,
    aten.round.default: s.round_even,
    aten.frac.default: lambda d, x: sub(d, x, s.trunc(d, x)),
    aten.square.default: lambda d, x: mul(d, x, x),
    aten.bitwise_not.default: s.invert,
    aten.relu.default: lambda d, x: s.maximum(d, x, scalar(d, 0)),
    aten.positive.default: lambda d, x: x,
}
BINARY: dict[Any, Body] = {
    aten.mul: mul,
    aten.maximum.default: s.maximum,
    aten.minimum.default: s.minimum,
    aten.fmax.default: s.fmax,
    aten.fmin.default: s.fmin,
    aten.remainder: s.remainder,
    aten.fmod: s.fmod,
    aten.bitwise_and: lambda d, x, y: arith.andi(x, y),
    aten.bitwise_or: lambda d, x, y: arith.ori(x, y),
    aten.bitwise_xor: lambda d, x, y: arith.xori(x, y),
    aten.bitwise_left_shift: s.shift_left,
    aten.bitwise_right_shift: s.shift_right,
    aten.__lshift__: s.shift_left,
    aten.__rshift__: s.shift_right,
    aten.__and__: lambda d, x, y: arith.andi(x, y),
    aten.__or__: lambda d, x, y: arith.ori(x, y),
    aten.__xor__: lambda d, x, y: arith.xori(x, y),
}
BINARY_FLOAT: dict[Any, Body] = {
    aten.div.Tensor: s.divide,
    aten.div.Scalar: s.divide,
    aten.true_divide.Tensor: s.divide,
    aten.true_divide.Scalar: s.divide,
    aten.atan2.default: lambda d, x, y: own.function("atan2", x, y),
    aten.copysign: lambda d, x, y: math.copysign(x, y),
    aten.hypot.default: s.hypot,
    aten.ldexp.Tensor: s.ldexp,
}
JUMPS = (s.remainder, s.fmod)
COMPARE: dict[Any, Body] = {getattr(aten, p): s.compare(p) for p in ("eq", "ne", "lt", "le", "gt", "ge")} | {
    aten.isnan.default: s.isnan,
    aten.isinf.default: s.isinf,
    aten.isfinite.default: s.isfinite,
    aten.signbit.default: s.signbit,
    aten.isposinf.default: lambda d, x: s.eq(d, x, scalar(d, float("inf"))) if d.is_floating_point else scalar(torch.bool, 0),
    aten.isneginf.default: lambda d, x: s.eq(d, x, scalar(d, float("-inf"))) if d.is_floating_point else scalar(torch.bool, 0),
}
LOGICAL: dict[Any, Body] = {
    aten.logical_and.default: arith.andi,
    aten.logical_or.default: arith.ori,
    aten.logical_xor.default: arith.xori,
    aten.logical_not.default: lambda x: s.invert(torch.bool, x),
}


def _register(table: dict[Any, Body], kind: Kind) -> None:
    for op, body in table.items():

        def lowering(b: GraphBuilder, node: Any, *args: Any, _body: Body = body, **kwargs: Any) -> T:
            if kwargs:
                raise Unsupported(f"{node.target} with {', '.join(kwargs)}")
            raw = list(node.args)
            jumps = kind == Kind.ALWAYS_BOOL or _body in JUMPS
            return apply(b, node, list(args), raw, kind, _of_tensors(raw, _body) if jumps else _body)

        lowers(op)(lowering)


_register(UNARY_FLOAT, Kind.INT_TO_FLOAT)
_register(BINARY_FLOAT, Kind.INT_TO_FLOAT)
_register(UNARY, Kind.DEFAULT)
_register(BINARY, Kind.DEFAULT)
_register(COMPARE, Kind.ALWAYS_BOOL)


@lowers(*LOGICAL)
def logical(b: GraphBuilder, node: Any, *args: T) -> T:
    return b.pointwise(out_shape(node), args, torch.bool, torch.bool, torch.bool, LOGICAL[node.target])


@lowers(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Tensor, aten.rsub.Scalar)
def add_sub(b: GraphBuilder, node: Any, x: Operand, y: Operand, alpha: Any = 1) -> T:
    packet = node.target.overloadpacket
    op = add if packet is aten.add else sub

    def body(d: torch.dtype, u: ir.Value, v: ir.Value) -> ir.Value:
        if packet is aten.rsub:
            u, v = v, u if alpha == 1 else mul(d, u, b.factor(alpha, d))
        elif alpha != 1:
            v = mul(d, v, b.factor(alpha, d))
        return op(d, u, v)

    # A number is rounded to the type of a 16-bit tensor first, as in ATen: 0.7 - 0.7 is 0.
    raw = list(node.args[:2])
    return apply(b, node, [x, y], raw, Kind.DEFAULT, _of_tensors(raw, body))


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide)
def div_mode(b: GraphBuilder, node: Any, x: Operand, y: Operand, *, rounding_mode: str | None = "floor") -> T:
    raw = list(node.args[:2])
    if rounding_mode is None:
        return apply(b, node, [x, y], raw, Kind.INT_TO_FLOAT, s.divide)
    divide = {"floor": s.divide_floor, "trunc": s.divide_trunc}[rounding_mode]
    return apply(b, node, [x, y], raw, Kind.DEFAULT, _in_half(raw, divide))


def _in_half(raw: list[Any], divide: Body) -> Body:
    """A division to whole numbers: of 16-bit floats ATen rounds both operands and each step to their type, but for one number
    to divide by, with which it computes in f32."""
    half, divisor = _half(raw), meta(raw[1])
    if half is None:
        return divide
    one = all(same(normal(n), 1) for n in getattr(divisor, "shape", ()))

    def body(d: torch.dtype, u: ir.Value, v: ir.Value) -> ir.Value:
        u = _rounded(u, d, half)
        return divide(d, u, v) if one else divide(d, u, _rounded(v, d, half), lambda w: _rounded(w, d, half))

    return body


@lowers(aten.pow.Tensor_Scalar)
def pow_scalar(b: GraphBuilder, node: Any, x: T, exponent: Any) -> T:
    if isinstance(exponent, Scalar):
        return apply(b, node, [x, exponent], list(node.args), Kind.BOOL_TO_LONG, s.power)
    if exponent < 0 and not node.meta["val"].dtype.is_floating_point:
        raise Unsupported("a negative power of integers is an error")
    # Of f16 alone ATen takes no square root for these: another result at -inf and -0.
    general = node.meta["val"].dtype == torch.float16 and exponent in (0.5, -0.5)
    power = (lambda d, u: math.powf(u, scalar(d, exponent))) if general else lambda d, u: s.power_by(d, u, exponent)
    return apply(b, node, [x], list(node.args), Kind.BOOL_TO_LONG, power)


@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_tensor(b: GraphBuilder, node: Any, x: Operand, exponent: T) -> T:
    return apply(b, node, [x, exponent], list(node.args), Kind.BOOL_TO_LONG, s.power)


@lowers(aten.clamp, aten.clamp_min, aten.clamp_max, aten.hardtanh.default)
def clamp(b: GraphBuilder, node: Any, x: T, *given: Any, **named: Any) -> T:
    packet = node.target.overloadpacket
    if packet is aten.hardtanh:
        given = (*given, -1.0, 1.0)[:2] if not given else (*given, 1.0)[:2]
    low, high = (*given, None, None)[:2] if packet is not aten.clamp_max else (None, given[0])
    low, high = named.get("min", named.get("min_val", low)), named.get("max", named.get("max_val", high))
    raw = [n for n in (*node.args, *node.kwargs.values()) if n is not None]

    def body(d: torch.dtype, u: ir.Value, *limits: ir.Value) -> ir.Value:
        left = list(limits)
        u = s.maximum(d, u, left.pop(0)) if low is not None else u
        return s.minimum(d, u, left.pop(0)) if high is not None else u

    return apply(b, node, [x, *(v for v in (low, high) if v is not None)], raw, Kind.DEFAULT, body)


@lowers(aten.angle.default)
def angle(b: GraphBuilder, node: Any, x: T) -> T:
    def body(d: torch.dtype, u: ir.Value) -> ir.Value:
        out = arith.select(s.lt(d, u, scalar(d, 0)), scalar(d, 3.141592653589793), scalar(d, 0))
        return arith.select(s.isnan(d, u), u, out)

    return apply(b, node, [x], [node.args[0]], Kind.INT_TO_FLOAT, body)


@lowers(aten.where.self)
def where(b: GraphBuilder, node: Any, condition: T, x: T, y: T) -> T:
    out = node.meta["val"].dtype
    return b.pointwise(out_shape(node), [condition, x, y], [torch.bool, out, out], out, out, arith.select)


@lowers(aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where_scalar(b: GraphBuilder, node: Any, condition: T, x: Operand, y: Operand) -> T:
    return where(b, node, condition, x, y)  # type: ignore[arg-type]


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(b: GraphBuilder, node: Any, x: T, mask: T, value: Operand) -> T:
    return where(b, node, mask, value, x)  # type: ignore[arg-type]


@lowers(aten.addcmul.default, aten.addcdiv.default)
def addcmul(b: GraphBuilder, node: Any, x: T, y: T, z: T, *, value: Any = 1) -> T:
    op = arith.divf if node.target is aten.addcdiv.default else None

    def body(d: torch.dtype, u: ir.Value, v: ir.Value, w: ir.Value) -> ir.Value:
        v = v if value == 1 else mul(d, b.factor(value, d), v)
        return add(d, u, op(v, w) if op else mul(d, v, w))

    return apply(b, node, [x, y, z], list(node.args[:3]), Kind.DEFAULT, body)


@lowers(prims.fma.default)
def fma(b: GraphBuilder, node: Any, x: Operand, y: Operand, z: Operand) -> T:
    """x * y + z, rounded once: what Dynamo makes of `addcmul_` and `addcdiv_` with a value, as optimizers have them."""

    def body(d: torch.dtype, u: ir.Value, v: ir.Value, w: ir.Value) -> ir.Value:
        return math.fma(u, v, w) if d.is_floating_point else add(d, mul(d, u, v), w)

    return apply(b, node, [x, y, z], list(node.args), Kind.DEFAULT, body)


@lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(b: GraphBuilder, node: Any, x: T, end: T, weight: Operand) -> T:
    def body(d: torch.dtype, u: ir.Value, v: ir.Value, w: ir.Value) -> ir.Value:
        # From the nearer end, so that weight 1 gives the end itself.
        step = arith.subf(v, u)
        near = arith.addf(u, arith.mulf(w, step))
        far = arith.subf(v, arith.mulf(step, arith.subf(scalar(d, 1), w)))
        return arith.select(s.lt(d, math.absf(w), scalar(d, 0.5)), near, far)

    return apply(b, node, [x, end, weight], list(node.args), Kind.DEFAULT, body)


@lowers(aten.round.decimals)
def round_decimals(b: GraphBuilder, node: Any, x: T, *, decimals: int) -> T:
    def body(d: torch.dtype, u: ir.Value) -> ir.Value:
        if not d.is_floating_point:
            return u
        ten = scalar(d, 10.0 ** abs(decimals))
        there, back = (arith.divf, arith.mulf) if decimals < 0 else (arith.mulf, arith.divf)
        return back(math.roundeven(there(u, ten)), ten)

    return apply(b, node, [x], [node.args[0]], Kind.DEFAULT, body)


@lowers(aten.nan_to_num.default)
def nan_to_num(b: GraphBuilder, node: Any, x: T, nan: Any = None, posinf: Any = None, neginf: Any = None) -> T:
    if not x.dtype.is_floating_point:
        return x
    limits = torch.finfo(x.dtype)
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf

    def body(d: torch.dtype, u: ir.Value) -> ir.Value:
        out = arith.select(s.eq(d, u, scalar(d, float("inf"))), scalar(d, high), u)
        out = arith.select(s.eq(d, u, scalar(d, float("-inf"))), scalar(d, low), out)
        return arith.select(s.isnan(d, u), scalar(d, nan or 0.0), out)

    return apply(b, node, [x], [node.args[0]], Kind.DEFAULT, body)


@lowers(prims.convert_element_type.default)
def convert_element_type(b: GraphBuilder, node: Any, x: T, dtype: torch.dtype) -> T:
    return b.convert(x, dtype)


@lowers(aten.copy.default)
def copy(b: GraphBuilder, node: Any, x: T, source: Operand, non_blocking: bool = False) -> T:
    if not isinstance(source, T):
        return b.full(x.shape, x.dtype, source)
    return b.expand(b.convert(source, x.dtype), x.shape)
