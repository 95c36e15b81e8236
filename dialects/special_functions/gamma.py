"""The logarithm of the gamma function, and its first two derivatives."""

from __future__ import annotations

import math as pymath

from ..math_expansions.num import Num, copysign, polynomial, round_even, select, trunc
from .elementary import leading_first, log, sin, tan

# log(gamma(2 + t)) / t in t - 1/2, for 0 < t < 1, to 1e-17.
_NEAR_TWO = (
    0.5693657409458384, 0.2675817993988097, -0.044805842697384565, 0.010877001514193397, -0.0030951822936200616,
    0.0009610979287877325, -0.00031505925026741326, 0.00010710020416941931, -3.7353370737188277e-05, 1.327579031351773e-05,
    -4.786368568704811e-06, 1.7450418649108809e-06, -6.421957669345574e-07, 2.3795630765384484e-07, -8.759051909844919e-08,
    3.281104524659661e-08, -1.4719145482131672e-08, 5.565111801917945e-09,
)  # fmt: skip

# Stirling's series for them, in 1/x^2, the highest power first, for x > 13 (as in Cephes) and x > 10.
_STIRLING = (
    8.11614167470508450300e-4, -5.95061904284301438324e-4, 7.93650340457716943945e-4, -2.77777777730099687205e-3,
    8.33333333333331927722e-2,
)  # fmt: skip
_TRIGAMMA = (7 / 6, -691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6)
_DIGAMMA = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)


def lgamma(x: Num) -> Num:
    """log |gamma(x)|: inf at the poles 0, -1, ... and at both ends."""
    reflected = x < 0.5
    t = select(reflected, 1.0 - x, x)
    # gamma(t) = product * gamma(u) with u in [2, 3).
    u, over, under = t, t.like(1.0), t.like(1.0)
    for _ in range(11):
        high = u >= 3.0
        u = select(high, u - 1.0, u)
        over = select(high, over * u, over)
    for _ in range(2):
        low = u < 2.0
        under = select(low, under * u, under)
        u = select(low, u + 1.0, u)
    near = log(over / under) + (u - 2.0) * polynomial(u - 2.5, _NEAR_TWO)
    far = (t - 0.5) * (log(t) - 1.0) + (leading_first(1.0 / (t * t), _STIRLING) / t + (0.5 * pymath.log(2 * pymath.pi) - 0.5))
    y = select(t < 13.0, near, far)
    # gamma(x) gamma(1 - x) = pi / sin(pi x)
    sine = abs(sin((x - round_even(x)) * pymath.pi))
    y = select(reflected, log(sine.like(pymath.pi) / sine) - y, y)
    return select(x.equals(-pymath.inf), x.like(pymath.inf), y)


def digamma(x: Num) -> Num:
    """The derivative of log(gamma): NaN at -1, -2, ..., and infinite at 0 with the sign of -x, as in ATen."""
    t = select(x < 0.0, 1.0 - x, x)
    # digamma(t) = digamma(t + 1) - 1 / t, the fractions summed as one.
    over, under = t.like(0.0), t.like(1.0)
    for _ in range(10):
        low = t < 10.0
        over = select(low, over * t + under, over)
        under = select(low, under * t, under)
        t = select(low, t + 1.0, t)
    inverse = 1.0 / t
    square = inverse * inverse
    y = log(t) - inverse * 0.5 - square * leading_first(square, _DIGAMMA) - over / under
    part = x - trunc(x)
    pole = select(part.equals(0.0), x.like(pymath.nan), x.like(pymath.pi) / tan(part * pymath.pi))
    y = select(x < 0.0, y - pole, y)
    return select(x.equals(0.0), copysign(x.like(pymath.inf), -x), y)


def trigamma(x: Num) -> Num:
    """The second derivative of log(gamma): inf at 0, -1, ..."""
    reflected = x < 0.5
    t = select(reflected, 1.0 - x, x)
    # trigamma(t) = trigamma(t + 1) + 1 / t^2, the fractions summed as one.
    over, under = t.like(0.0), t.like(1.0)
    for _ in range(10):
        low, square = t < 10.0, t * t
        over = select(low, over * square + under, over)
        under = select(low, under * square, under)
        t = select(low, t + 1.0, t)
    inverse = 1.0 / t
    square = inverse * inverse
    y = inverse + square * 0.5 + inverse * square * leading_first(square, _TRIGAMMA) + over / under
    sine = sin((x - round_even(x)) * pymath.pi)
    return select(reflected, sine.like(pymath.pi**2) / (sine * sine) - y, y)
