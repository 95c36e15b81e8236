"""fmod: what a division leaves, with the sign of the dividend. It is exact.

The rounded quotient, cut off, is the true one or one more: rounding keeps the order, and integers below 2^24 (f32; 2^53 for f64) are numbers
of the format. What is left of x, in one fma, is a number of the format in both cases, and one divisor is added where it is negative. Larger
quotients, which hardly any program has, take a branch: for f32 steps of 52 bits in f64 (all are below 2^277), libm for f64.
"""

from __future__ import annotations

from . import libm
from .num import F32, Num, copysign, fma, select, trunc, unlikely

_STEPS = (260, 208, 156, 104, 52, 0)
"""Powers of two by which the divisor is multiplied: what the step before has left is less than 2^52 times that."""


def fmod(x: Num, y: Num) -> Num:
    """x - y * trunc(x / y). NaN for infinite x and for y of zero; x for infinite y."""
    dividend, divisor = abs(x), abs(y)
    quotient = dividend / divisor
    rest = _left(dividend, divisor, quotient)
    large = 2.0**24 if x.format is F32 else 2.0**53
    far = _in_steps if x.format is F32 else _in_libm
    (rest,) = unlikely(quotient > large, lambda: (far(dividend, divisor),), (rest,))
    return copysign(rest, x)


def _left(dividend: Num, divisor: Num, quotient: Num) -> Num:
    """Of numbers that are not negative."""
    rest = fma(trunc(quotient), -divisor, dividend)
    rest = select(rest < 0.0, rest + divisor, rest)
    return select(dividend < divisor, dividend, rest)  # infinite divisors, too


def _in_steps(dividend: Num, divisor: Num) -> Num:
    rest, wide = dividend.to_f64(), divisor.to_f64()
    for power in _STEPS:
        part = wide * 2.0**power
        rest = _left(rest, part, rest / part)
    return rest.to_f32()


def _in_libm(dividend: Num, divisor: Num) -> Num:
    return libm.call("fmod", dividend, divisor)
