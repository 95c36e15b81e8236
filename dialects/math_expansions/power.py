"""powf, fpowi, cbrt and rsqrt (powf, fpowi and cbrt for f32; see `passes.expand_math` for f64)."""

from __future__ import annotations

import math as pymath

from .exponential import exp2_in_f64
from .num import Num, copysign, polynomial, select, sqrt, trunc

# log2((1 + s) / (1 - s)) / s in s^2 on |s| < 0.172; minimax, 8e-14.
_LOG2 = (
    2.8853900817778473, 0.9617966941187547, 0.5770779406828253, 0.4122094323228642, 0.31989794044084635,
    0.2830159683779391,
)  # fmt: skip
_SQRT_HALF = 0x3FE6A09E667F3BCD


def _log2_in_f64(x: Num) -> Num:
    """log2 of a non-negative f64 that was an f32 (so never subnormal), to 43 bits; 0 and inf go to -inf and inf."""
    bits = x.bits()
    exponent = (bits - _SQRT_HALF) & -(1 << 52)
    m = (bits - exponent).as_float()  # in [sqrt(1/2), sqrt(2))
    e = (exponent.shift_right_unsigned(32).to_i32() >> 20).to_f64()
    s = (m - 1.0) / (m + 1.0)
    y = s * polynomial(s * s, _LOG2) + e
    y = select(x < pymath.inf, y, x)
    return select(x.equals(0.0), x.like(-pymath.inf), y)


def _power(base: Num, exponent: Num) -> Num:
    """base^exponent as an f32 for a non-negative base that was an f32; NaN for 1^inf and 0^0."""
    t = _log2_in_f64(base) * exponent
    return exp2_in_f64(t.at_least(-200.0).at_most(200.0)).to_f32()


def powf(x: Num, y: Num) -> Num:
    """x^y with C99's special cases, computed as exp2(y log2|x|) in f64."""
    result = _power(abs(x).to_f64(), y.to_f64())
    result = select(abs(x).equals(1.0), _one_unless_nan(y), result)
    half = y * 0.5
    is_integer = trunc(y).equals(y)
    is_odd = is_integer & half.compare("UNE", trunc(half))
    sign = select(is_odd, x, x.like(1.0))
    result = copysign(result, sign)
    undefined = (x < 0.0) & (x > -pymath.inf) & y.compare("UNE", trunc(y))
    result = select(undefined, x.like(pymath.nan), result)
    one = x.equals(1.0) | y.equals(0.0)
    return select(one, x.like(1.0), result)


def _one_unless_nan(y: Num) -> Num:
    return select(y.compare("UNO", y), y, y.like(1.0))


def fpowi(x: Num, n: Num) -> Num:
    """x^n for an integer n (i32)."""
    result = _power(abs(x).to_f64(), n.to_f64())
    result = copysign(result, select((n & 1).equals(1), x, x.like(1.0)))
    return select(n.equals(0), x.like(1.0), result)


def cbrt(x: Num) -> Num:
    """Cube root, of negative numbers too."""
    wide = abs(x).to_f64()
    return copysign(_power(wide, wide.like(1 / 3)), x)


def rsqrt(x: Num) -> Num:
    """1 / sqrt(x)."""
    return 1.0 / sqrt(x)
