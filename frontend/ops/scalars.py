"""Scalar arithmetic as ATen does it: bodies of elementwise ops. `d` is the torch dtype of all operands.

Integer division checks its divisor: zero sets the kernel's status, and the smallest integer over -1 wraps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...dialects import own
from ...dialects.mlir import arith, cf, ir, math
from ..dtypes import cast, is_unsigned, scalar

FLOAT, INT = arith.CmpFPredicate, arith.CmpIPredicate
Value = ir.Value


def add(d: torch.dtype, x: Value, y: Value) -> Value:
    if d == torch.bool:
        return arith.ori(x, y)
    return arith.addf(x, y) if d.is_floating_point else arith.addi(x, y)


def sub(d: torch.dtype, x: Value, y: Value) -> Value:
    return arith.subf(x, y) if d.is_floating_point else arith.subi(x, y)


def mul(d: torch.dtype, x: Value, y: Value) -> Value:
    if d == torch.bool:
        return arith.andi(x, y)
    return arith.mulf(x, y) if d.is_floating_point else arith.muli(x, y)


def neg(d: torch.dtype, x: Value) -> Value:
    return arith.negf(x) if d.is_floating_point else arith.subi(scalar(d, 0), x)


def compare(predicate: str):  # type: ignore[no-untyped-def]
    """A comparison `eq ne lt le gt ge`; ordered for floats but `ne`, which is true for NaN."""

    def body(d: torch.dtype, x: Value, y: Value) -> Value:
        if d.is_floating_point:
            return arith.cmpf(FLOAT.UNE if predicate == "ne" else getattr(FLOAT, "O" + predicate.upper()), x, y)
        sign = "" if predicate in ("eq", "ne") else "u" if is_unsigned(d) else "s"
        return arith.cmpi(getattr(INT, sign + predicate), x, y)

    return body


eq, ne, lt, le, gt, ge = (compare(p) for p in ("eq", "ne", "lt", "le", "gt", "ge"))


def maximum(d: torch.dtype, x: Value, y: Value) -> Value:
    """NaN if either is."""
    if d.is_floating_point:
        return arith.maximumf(x, y)
    return (arith.maxui if is_unsigned(d) else arith.maxsi)(x, y)


def minimum(d: torch.dtype, x: Value, y: Value) -> Value:
    if d.is_floating_point:
        return arith.minimumf(x, y)
    return (arith.minui if is_unsigned(d) else arith.minsi)(x, y)


def fmax(d: torch.dtype, x: Value, y: Value) -> Value:
    """The other one if one is NaN."""
    return arith.maxnumf(x, y) if d.is_floating_point else maximum(d, x, y)


def fmin(d: torch.dtype, x: Value, y: Value) -> Value:
    return arith.minnumf(x, y) if d.is_floating_point else minimum(d, x, y)


def absolute(d: torch.dtype, x: Value) -> Value:
    if d.is_floating_point:
        return math.absf(x)
    return x if is_unsigned(d) else math.absi(x)


def sign(d: torch.dtype, x: Value) -> Value:
    """-1, 0 or 1; 0 for NaN."""
    if d == torch.bool:
        return x
    zero, one = scalar(d, 0), scalar(d, 1)
    up = arith.select(gt(d, x, zero), one, zero)
    return up if is_unsigned(d) else arith.select(lt(d, x, zero), scalar(d, -1), up)


def signbit(d: torch.dtype, x: Value) -> Value:
    if d.is_floating_point:
        return lt(d, math.copysign(scalar(d, 1), x), scalar(d, 0))
    return scalar(torch.bool, False) if is_unsigned(d) else lt(d, x, scalar(d, 0))


def isnan(d: torch.dtype, x: Value) -> Value:
    return arith.cmpf(FLOAT.UNO, x, x) if d.is_floating_point else scalar(torch.bool, False)


def isinf(d: torch.dtype, x: Value) -> Value:
    if not d.is_floating_point:
        return scalar(torch.bool, False)
    return eq(d, math.absf(x), scalar(d, float("inf")))


def isfinite(d: torch.dtype, x: Value) -> Value:
    if not d.is_floating_point:
        return scalar(torch.bool, True)
    return lt(d, math.absf(x), scalar(d, float("inf")))


def invert(d: torch.dtype, x: Value) -> Value:
    return arith.xori(x, scalar(d, True if d == torch.bool else -1))


def rounding(op):  # type: ignore[no-untyped-def]
    """floor, ceil, ...: integers are their own."""
    return lambda d, x: op(x) if d.is_floating_point else x


floor, ceil, trunc, round_even = (rounding(f) for f in (math.floor, math.ceil, math.trunc, math.roundeven))


def sigmoid(d: torch.dtype, x: Value) -> Value:
    return own.function("sigmoid", x)


# Division


def _divisor(d: torch.dtype, y: Value) -> tuple[Value, Value | None]:
    """(a divisor that does not trap, whether the divisor was -1) after the check for zero."""
    zero, one = scalar(d, 0), scalar(d, 1)
    nonzero = ne(d, y, zero)
    cf.assert_(nonzero, "ZeroDivisionError")
    if is_unsigned(d):
        return arith.select(nonzero, y, one), None
    minus = eq(d, y, scalar(d, -1))
    return arith.select(arith.andi(nonzero, arith.xori(minus, scalar(torch.bool, True))), y, one), minus


def divide(d: torch.dtype, x: Value, y: Value) -> Value:
    """True division of floats."""
    return arith.divf(x, y)


def _exact(v: Value) -> Value:
    return v


def divide_trunc(d: torch.dtype, x: Value, y: Value, step: Callable[[Value], Value] = _exact) -> Value:
    """`step` rounds what a step gives."""
    if d.is_floating_point:
        return math.trunc(step(arith.divf(x, y)))
    safe, minus = _divisor(d, y)
    if minus is None:
        return arith.divui(x, safe)
    return arith.select(minus, neg(d, x), arith.divsi(x, safe))


def divide_floor(d: torch.dtype, x: Value, y: Value, step: Callable[[Value], Value] = _exact) -> Value:
    """As Python's `//`: exact for floats, from the remainder. `step` rounds what a step gives."""
    if d.is_floating_point:
        zero, one = scalar(d, 0), scalar(d, 1)
        quotient, rest = step(arith.divf(x, y)), arith.remf(x, y)
        exact = step(arith.divf(step(arith.subf(x, rest)), y))
        exact = arith.select(_opposite(d, rest, y), step(arith.subf(exact, one)), exact)
        down = math.floor(exact)
        down = arith.select(gt(d, arith.subf(exact, down), scalar(d, 0.5)), arith.addf(down, one), down)
        down = arith.select(ne(d, exact, zero), down, math.copysign(zero, quotient))
        return arith.select(eq(d, y, zero), quotient, down)
    safe, minus = _divisor(d, y)
    if minus is None:
        return arith.divui(x, safe)
    quotient, rest = arith.divsi(x, safe), arith.remsi(x, safe)
    quotient = arith.select(_opposite(d, rest, safe), arith.subi(quotient, scalar(d, 1)), quotient)
    return arith.select(minus, neg(d, x), quotient)


def fmod(d: torch.dtype, x: Value, y: Value) -> Value:
    """The remainder with the sign of the dividend."""
    if d.is_floating_point:
        return arith.remf(x, y)
    safe, _ = _divisor(d, y)
    return (arith.remui if is_unsigned(d) else arith.remsi)(x, safe)


def remainder(d: torch.dtype, x: Value, y: Value) -> Value:
    """The remainder with the sign of the divisor (Python's `%`)."""
    if d.is_floating_point:
        rest = arith.remf(x, y)
        return arith.select(_opposite(d, rest, y), arith.addf(rest, y), rest)
    safe, minus = _divisor(d, y)
    if minus is None:
        return arith.remui(x, safe)
    rest = arith.remsi(x, safe)
    return arith.select(_opposite(d, rest, safe), arith.addi(rest, safe), rest)


def _opposite(d: torch.dtype, rest: Value, y: Value) -> Value:
    """Whether a remainder is not zero and has the other sign than the divisor."""
    zero = scalar(d, 0)
    return arith.andi(ne(d, rest, zero), arith.xori(lt(d, rest, zero), lt(d, y, zero)))


# Bits


def shift_left(d: torch.dtype, x: Value, n: Value) -> Value:
    """0 where the amount is negative or not below the width."""
    inside = arith.cmpi(INT.ult, n, scalar(d, d.itemsize * 8))
    return arith.select(inside, arith.shli(x, arith.select(inside, n, scalar(d, 0))), scalar(d, 0))


def shift_right(d: torch.dtype, x: Value, n: Value) -> Value:
    """Arithmetic for signed integers; an amount out of range leaves only the sign."""
    bits = d.itemsize * 8
    inside = arith.cmpi(INT.ult, n, scalar(d, bits))
    if is_unsigned(d):
        return arith.select(inside, arith.shrui(x, arith.select(inside, n, scalar(d, 0))), scalar(d, 0))
    return arith.shrsi(x, arith.select(inside, n, scalar(d, bits - 1)))


# Powers


def hypot(d: torch.dtype, x: Value, y: Value) -> Value:
    """sqrt(x^2 + y^2); infinite if either is, even if the other one is NaN. In f64 for f32, scaled for f64."""
    f64 = torch.float64
    infinite = arith.ori(isinf(d, x), isinf(d, y))
    if d == f64:
        top = maximum(d, absolute(d, x), absolute(d, y))
        small, large = lt(d, top, scalar(d, 2.0**-500)), gt(d, top, scalar(d, 2.0**500))
        scale, back = (
            arith.select(large, scalar(d, 2.0**-i), arith.select(small, scalar(d, 2.0**i), scalar(d, 1))) for i in (600, -600)
        )
        x, y = arith.mulf(x, scale), arith.mulf(y, scale)
        root = arith.mulf(math.sqrt(math.fma(x, x, arith.mulf(y, y))), back)
    else:
        x, y = cast(x, d, f64), cast(y, d, f64)
        root = cast(math.sqrt(math.fma(x, x, arith.mulf(y, y))), f64, d)
    return arith.select(infinite, scalar(d, float("inf")), root)


def power_by(d: torch.dtype, x: Value, exponent: float | int) -> Value:
    """A power with an exponent known now; 2, 3, 0.5, ... as eager computes them."""
    one = scalar(d, 1)
    if d == torch.bool:
        return x if exponent else one
    if not d.is_floating_point:
        return _multiply_up(d, x, int(exponent))
    if exponent in (0.5, -0.5):
        return math.sqrt(x) if exponent > 0 else math.rsqrt(x)
    if exponent in (0, 1, 2, 3, -1, -2):
        y = _multiply_up(d, x, abs(int(exponent)))
        return y if exponent >= 0 else arith.divf(one, y)
    return math.powf(x, scalar(d, exponent))


def ldexp(d: torch.dtype, x: Value, y: Value) -> Value:
    """x 2^y, also where 2^y alone is too large or too small: f32 by way of f64, f64 in three steps."""
    if d == torch.float32:
        return cast(arith.mulf(cast(x, d, torch.float64), math.exp2(cast(y, d, torch.float64))), torch.float64, d)
    near = arith.minimumf(arith.maximumf(y, scalar(d, -3000)), scalar(d, 3000))
    third = math.trunc(arith.divf(near, scalar(d, 3)))
    rest = arith.subf(arith.subf(near, third), third)
    out = x
    for part in (third, third, rest):
        out = arith.mulf(out, math.exp2(part))
    return arith.select(isinf(d, y), arith.mulf(x, math.exp2(y)), out)  # zero times infinity is NaN


def _multiply_up(d: torch.dtype, x: Value, n: int) -> Value:
    out = None
    while n:
        if n & 1:
            out = x if out is None else mul(d, out, x)
        n >>= 1
        x = mul(d, x, x) if n else x
    return scalar(d, 1) if out is None else out


def power(d: torch.dtype, x: Value, y: Value) -> Value:
    """Integers by repeated squaring; a negative power of an integer is 0 but for 1 and -1."""
    if d.is_floating_point:
        return math.powf(x, y)
    zero, one = scalar(d, 0), scalar(d, 1)
    out, base = one, x
    bits = d.itemsize * 8 - (not is_unsigned(d))
    for bit in range(bits):
        on = ne(d, arith.andi(y, scalar(d, 1 << bit)), zero)
        out = arith.select(on, mul(d, out, base), out)
        base = mul(d, base, base) if bit + 1 < bits else base
    if is_unsigned(d):
        return out
    odd = ne(d, arith.andi(y, one), zero)
    inverse = arith.select(eq(d, x, one), one, zero)
    inverse = arith.select(eq(d, x, scalar(d, -1)), arith.select(odd, scalar(d, -1), one), inverse)
    return arith.select(lt(d, y, zero), inverse, out)
