"""tanh, sinh, cosh and their inverses."""

from __future__ import annotations

import math as pymath
from collections.abc import Callable

from .exponential import LN2, expm1_reduced, split
from .logarithm import log1p
from .num import F32, Num, copysign, fma, select, sqrt


def tanh(x: Num) -> Num:
    """h / (h + 1) for h = expm1(2 |x|) / 2, so that nothing cancels near zero."""
    name = x.format.name
    a = abs(x).at_most({"f32": 9.1, "f64": 20.0}[name])  # where it has rounded to 1
    k, scale = split(a, 2 / pymath.log(2))
    hi, lo = LN2[name]
    r = fma(k, -lo / 2, fma(k, -hi / 2, a))
    h = fma(expm1_reduced(r, 2.0), scale, fma(scale, 0.5, -0.5))
    y = h / (h + 1.0)
    # h - h h / (h + 1): the same, but the rounding of h + 1 and of the division counts less while h is small.
    y = select(a < 0.3, fma(-h, y, h), y)
    return copysign(y, x)


def _quarter_exp(x: Num) -> tuple[Num, Num]:
    """(p, s) with e^x = 4 s (1 + p), which does not overflow before sinh and cosh do; x must not be negative."""
    name = x.format.name
    x = x.at_most({"f32": 89.5, "f64": 710.6}[name])
    k, scale = split(x, 1 / pymath.log(2), exponent_offset=-2)
    hi, lo = LN2[name]
    return expm1_reduced(fma(k, -lo, fma(k, -hi, x))), scale


def sinh(x: Num) -> Num:
    """Hyperbolic sine, from e = expm1(|x|): (e + e / (e + 1)) / 2."""
    p, scale = _quarter_exp(abs(x))
    quarter = fma(p, scale, scale - 0.25)
    result = quarter + quarter / fma(quarter, 4.0, 1.0)
    # Quarters of subnormals lose bits; there sinh(x) = x.
    tiny = abs(x) < x.format.smallest_normal * 16
    return select(tiny, x, copysign(result + result, x))


def cosh(x: Num) -> Num:
    """Hyperbolic cosine: (e^|x| + e^-|x|) / 2."""
    p, scale = _quarter_exp(abs(x))
    quarter = fma(p, scale, scale)
    result = quarter + 0.0625 / quarter
    return result + result


def _through_f64(function: Callable[[Num], Num]) -> Callable[[Num], Num]:
    """Compute f32 in f64: for functions too rare to deserve a formula that keeps its accuracy in f32."""

    def wrapped(x: Num) -> Num:
        return function(x.to_f64()).to_f32() if x.format is F32 else function(x)

    wrapped.__doc__ = function.__doc__
    return wrapped


@_through_f64
def asinh(x: Num) -> Num:
    """Inverse hyperbolic sine: log1p(a + a^2 / (1 + sqrt(a^2 + 1))) for a = |x|, and log(2 a) where a^2 is too large."""
    a = abs(x)
    large = a > 2.0**28
    square = a * a
    y = log1p(select(large, a - 1.0, a + square / (sqrt(square + 1.0) + 1.0)))
    return copysign(y + select(large, x.like(pymath.log(2)), x.like(0.0)), x)


@_through_f64
def acosh(x: Num) -> Num:
    """Inverse hyperbolic cosine: log1p(t + sqrt(2 t + t^2)) for t = x - 1, and log(2 x) where t^2 is too large."""
    t = x - 1.0
    large = x > 2.0**28
    y = log1p(select(large, t, t + sqrt(fma(t, t, t + t))))
    y = y + select(large, x.like(pymath.log(2)), x.like(0.0))
    return select(x < 1.0, x.like(pymath.nan), y)


@_through_f64
def atanh(x: Num) -> Num:
    """Inverse hyperbolic tangent: log1p(2 a / (1 - a)) / 2 for a = |x|."""
    a = abs(x)
    return copysign(log1p((a + a) / (1.0 - a)) * 0.5, x)
