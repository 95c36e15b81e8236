"""sigmoid, silu, mish and gelu, small results included: nothing cancels, and nothing underflows before the result does.

Each is x times a fraction of e = e^-|t|, where e stays apart as a b (1 + p) (`exponential.exp_parts`).
"""

from __future__ import annotations

import math as pymath
import struct

from .error_function import erf
from .exponential import EXPM1, LN2, exp_parts, split
from .num import F32, Num, copysign, fma, polynomial, select

# Below this, e^t and t e^t are 0; here p is positive, so that -0 (1 + p) = -0.
_FAR = {"f32": -110.0, "f64": -761.0}


def _power(t: Num, rest: Num | None = None) -> tuple[Num, Num, Num]:
    """`exp_parts` for any t <= 0, with a = 0 where e^t is so small that even t e^t is 0."""
    far = _FAR[t.format.name]
    p, a, b = exp_parts(t.at_least(far), rest)
    return p, select(t < far, t.like(0.0), a), b


def _over_one_plus_exp(x: Num | None, t: Num, rest: Num | None = None) -> Num:
    """x / (1 + e^-(t + rest)), where `rest` is what the rounding of t took away; x is 1 if None."""
    negative = t < 0.0
    p, a, b = _power(-abs(t), None if rest is None else select(negative, rest, -rest))
    small = a if x is None else x * a
    numerator = select(negative, fma(small, p, small) * b, t.like(1.0) if x is None else x)
    power = a * b
    denominator = fma(power, p, power + 1.0)
    q = numerator / denominator
    # What the denominator lost in rounding would count twice in results just below a power of two.
    lost = fma(power, p, power - (denominator - 1.0))
    return select(negative if x is None else q < 0.0, fma(-q, lost, q), q)


def sigmoid(x: Num) -> Num:
    """1 / (1 + e^-x)."""
    return _over_one_plus_exp(None, x)


def silu(x: Num) -> Num:
    """x sigmoid(x); NaN at -inf, as in torch."""
    return _over_one_plus_exp(x, x)


def mish(x: Num) -> Num:
    """x tanh(log(1 + e^x)); NaN at -inf, as in torch.

    With e = e^-|x| this is x (1 - 2 e^2 / (1 + 2 e + 2 e^2)) above zero and x e (1 - e (1 + e) / (2 + 2 e + e^2)) below.
    """
    negative = x < 0.0
    p, a, b = _power(-abs(x))
    small = x * a
    e = fma(a, p, a) * b
    base = select(negative, fma(small, p, small) * b, x.at_most(1e4))
    if x.format is F32:
        e = e.to_f64()  # f32 would round five times on the way to the quotient
    double = e + e
    factor = select(negative, e, double)
    numerator = fma(factor, e, select(negative, e, e.like(0.0)))
    denominator = fma(factor, e, double + select(negative, e.like(2.0), e.like(1.0)))
    ratio = numerator / denominator
    ratio = ratio.to_f32() if x.format is F32 else ratio
    return copysign(fma(-base, ratio, select(negative, base, x)), x)  # for -0


# The normal distribution function at x = -a, for a up to 14.6: e^(-a^2 / 2) u S(v) with u = c / (a + 2.5) and v = c - 5 u; minimax,
# relative error 5.9e-9. With less than 2.5 the polynomial is longer, with more the rounding of v counts for more. The factor c
# makes the rounding of the first coefficients small.
_TAIL = (
    0.721891046, -0.452593088, 0.14070861, 0.0100610089, -0.0182297714, -0.00183694786, 0.00292325206, 0.00085680763,
    -0.000351143011, -0.000234244508, -2.90062599e-05,
)  # fmt: skip
_TAIL_FACTOR = 0.978896558


def gelu(x: Num) -> Num:
    """x times the normal distribution function of x; NaN at -inf, as in torch. For f64, from erf, with its absolute error."""
    if x.format is not F32:
        return (x * 0.5) * (erf(x * pymath.sqrt(0.5)) + 1.0)
    a = abs(x).at_most(14.6)
    p, scale = _half_square_power(a)
    top, rest = _two_piece_quotient(a)
    # a (1 + p) (top + rest), rounded once
    product = a * top
    small = (product + fma(product, p, fma(a, rest, fma(a, top, -product)))) * scale * 2.0**-64
    # Below zero x counts for nothing, but for -inf.
    return fma(x, select(x < 0.0, x.like(0.0), x.like(1.0)), -small)


def _half_square_power(a: Num) -> tuple[Num, Num]:
    """(p, s) with e^(-a^2 / 2) = 2^-64 s (1 + p), for 0 <= a < 14.6."""
    square = a * a
    hi, lo = LN2[a.format.name]
    k, scale = split(square, -0.5 / pymath.log(2), 64)
    # What is left of a^2 is -2 r, in two pieces, for the r of `exp_parts`.
    exact, rest = fma(k, 2 * hi, square), fma(k, 2 * lo, fma(a, a, -square))
    left = exact + rest
    coefficients = [c * (-0.5) ** (i + 1) for i, c in enumerate(EXPM1[a.format.name])]
    return (exact + fma(left * left, polynomial(left, coefficients), rest)) * -0.5, scale


def _two_piece_quotient(a: Num) -> tuple[Num, Num]:
    """u S(v) as a sum of two numbers."""
    bottom = a + 2.5
    u = _TAIL_FACTOR / bottom
    # u (1 + e) is the quotient before rounding.
    e = fma(-u, (2.5 - bottom) + a, fma(-u, bottom, _TAIL_FACTOR)) * (1 / _TAIL_FACTOR)
    v = fma(u * -5.0, e, fma(u, -5.0, _TAIL_FACTOR))
    slope = polynomial(v, _TAIL[1:])
    s = fma(v, slope, _TAIL[0])
    s_rest = fma(v, slope, _TAIL[0] - s)
    quotient = s * u
    return quotient, fma(quotient, e, fma(u, s_rest, fma(s, u, -quotient)))


# 2 sqrt(2 / pi), and 0.044715 times it, as sums of two f64.
_TWICE_SQRT_2_PI = ((1.5957691216057308, -9.96930880911092e-17), (0.07135481627260025, -6.175149918155315e-19))


def _in_two_pieces(x: Num, high: float, low: float) -> tuple[float, float]:
    """A sum of two f64 as one of two numbers of the format of x."""
    if x.format is not F32:
        return high, low
    rounded = struct.unpack("f", struct.pack("f", high))[0]
    return rounded, high - rounded


def gelu_tanh(x: Num) -> Num:
    """x (1 + tanh(u)) / 2 for u = sqrt(2/pi) (x + 0.044715 x^3) (Hendrycks & Gimpel 2016); NaN at -inf, as in torch.

    It is x / (1 + e^-2u). 2 u is needed to twice the precision: where it is large, its rounding would show in the exponential.
    """
    (linear, linear_rest), (cubic, cubic_rest) = (_in_two_pieces(x, *pieces) for pieces in _TWICE_SQRT_2_PI)
    a = x.at_most(40.0).at_least(-40.0)
    square = a * a
    product = square * cubic
    product_rest = fma(square, cubic, -product) + fma(fma(a, a, -square), cubic, square * cubic_rest)
    slope = product + linear
    back = slope - linear
    slope_rest = ((linear - (slope - back)) + (product - back)) + (product_rest + linear_rest)
    t = a * slope
    return _over_one_plus_exp(x, t, fma(a, slope_rest, fma(a, slope, -t)))
