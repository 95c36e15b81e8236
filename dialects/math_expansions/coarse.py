"""gelu, silu and sigmoid for results that are rounded to bf16 right away, and exp for a softmax whose result is: relative error below
2^-18, half the instructions.

One bf16 in a thousand then rounds the other way, by one ulp at most.
"""

from __future__ import annotations

import math as pymath

from .exponential import split
from .num import Num, fma, polynomial, select

# e^(a^2 / 2) times the normal distribution function at -a is w S(a w) for w = 1 / (a + 2.78), up to 13.3: 2^-20.3. The first is half of
# 2.78: a half at zero.
_TAIL = (1.39, -1.69325612, 0.596821688, 0.293607482, -0.0333749703, -0.286227405, 0.131653214)

# 2^r = 1 + r P(r) on |r| < 1/2: relative error 2^-22.5.
_EXP2_HALF = (0.693147004, 0.240222424, 0.0555073358, 0.00967151299, 0.00132647273)

# Both are exact at zero: half of a subnormal bf16 lies between two of them, and must do so here.

_SPARE = 64
"""Powers of two that a polynomial takes over from the scale."""


def exp(x: Num) -> Num:
    """e^x for x <= 0; 1 at 0, and 0 below e^-87, whatever it is there, as `exponential.exp_to_one`."""
    factor = 1 / pymath.log(2)
    k, scale = split(x, factor)
    r = fma(x, factor, -k)
    return select(x < -87.0, x.like(0.0), fma(r, polynomial(r, _EXP2_HALF), 1.0) * scale)


def _exp2(x: Num, factor: float) -> tuple[Num, Num]:
    """(p, s) with 2^(x factor) = p s, for -190 < x factor <= 0: s is normal where the product is not."""
    k, scale = split(x, factor, _SPARE)
    r = fma(x, factor, -k)
    one = 2.0**-_SPARE
    return fma(r, polynomial(r, [c * one for c in _EXP2_HALF]), one), scale


def gelu(x: Num) -> Num:
    """x times the normal distribution function of x; as `activations.gelu` at infinities."""
    a = abs(x).at_most(14.7)
    p, scale = _exp2(a * a, -0.5 / pymath.log(2))
    w = 1.0 / (a + 2.0 * _TAIL[0])
    below = polynomial(a * w, _TAIL) * w * p * scale
    return x * select(x < 0.0, below, 1.0 - below)


def _over_one_plus_exp2(x: Num | None, t: Num) -> Num:
    """x / (1 + 2^-t); x is 1 if None."""
    p, scale = _exp2((-abs(t)).at_least(-180.0), 1.0)
    small = p * scale
    share = select(t < 0.0, small, t.like(1.0)) / (1.0 + small)
    return share if x is None else x * share


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
