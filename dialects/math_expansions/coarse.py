"""gelu, silu and sigmoid for results that are rounded to bf16 right away, and exp for a softmax whose result is: relative error below
2^-18, half the instructions.

One bf16 in a thousand then rounds the other way, by one ulp at most.
"""

from __future__ import annotations

import math as pymath

from .exponential import split
from .num import Num, fma, polynomial, select

# 2^r = 1 + r P(r) on |r| < 1: relative error 2^-21.8.
_EXP2 = (1.0, 0.693148313, 0.240224739, 0.0554926566, 0.00962316407, 0.00135870152, 0.000151899409)

# e^(a^2 / 2) times the normal distribution function at -a is w S(a w) for w = 1 / (a + 2.5), up to 14.7: 2^-20.9.
_TAIL = (1.25, -1.24342658, 0.170170074, 0.290263756, 0.0431321602, -0.0507781046, -0.139935121, 0.0796614571)

# 2^r = 1 + r P(r) on |r| < 1/2: relative error 2^-22.5.
_EXP2_HALF = (0.693147004, 0.240222424, 0.0555073358, 0.00967151299, 0.00132647273)

# The first two are exact at zero: half of a subnormal bf16 lies between two of them, and must do so here.


def exp(x: Num) -> Num:
    """e^x for x <= 0; 1 at 0, and 0 below e^-87, whatever it is there, as `exponential.exp_to_one`."""
    factor = 1 / pymath.log(2)
    k, scale = split(x, factor)
    r = fma(x, factor, -k)
    return select(x < -87.0, x.like(0.0), fma(r, polynomial(r, _EXP2_HALF), 1.0) * scale)


def _exp2_parts(x: Num) -> tuple[Num, Num]:
    """(p, s) with 2^x = p s s, for -250 < x < 250: p s may be normal where 2^x is not."""
    k, scale = split(x, 0.5)
    return polynomial(fma(k, -2.0, x), _EXP2), scale


def gelu(x: Num) -> Num:
    """x times the normal distribution function of x; as `activations.gelu` at infinities."""
    a = abs(x).at_most(14.7)
    # e^(-a^2 / 2) is 2^(2 e), of which half the exponent is rounded, and what is left of it taken twice in the polynomial.
    square, factor = a * a, -0.25 / pymath.log(2)
    k, scale = split(square, factor)
    p = polynomial(fma(square, factor, -k), [c * 2.0**i for i, c in enumerate(_EXP2)])
    w = 1.0 / (a + 2.5)
    tail = polynomial(a * w, _TAIL) * w
    small = (tail * p * scale) * (a * scale)
    # Below zero x counts for nothing, but for -inf.
    return fma(x, select(x < 0.0, x.like(0.0), x.like(1.0)), -small)


def _over_one_plus_exp2(x: Num | None, t: Num) -> Num:
    """x / (1 + 2^-t); x is 1 if None."""
    negative = t < 0.0
    far = t < -240.0
    p, scale = _exp2_parts((-abs(t)).at_least(-240.0))
    half = p * select(far, t.like(0.0), scale)
    one = t.like(1.0) if x is None else x
    return select(negative, (one * half) * scale, one) / fma(half, scale, 1.0)


def sigmoid(x: Num) -> Num:
    """1 / (1 + e^-x)."""
    return _over_one_plus_exp2(None, x * (1 / pymath.log(2)))


def silu(x: Num) -> Num:
    """x sigmoid(x); NaN at -inf, as in torch."""
    return _over_one_plus_exp2(x, x * (1 / pymath.log(2)))


def gelu_tanh(x: Num) -> Num:
    """As `activations.gelu_tanh`."""
    a = x.at_most(40.0).at_least(-40.0)
    linear = 2 * pymath.sqrt(2 / pymath.pi) / pymath.log(2)
    return _over_one_plus_exp2(x, a * fma(a * a, 0.044715 * linear, linear))
