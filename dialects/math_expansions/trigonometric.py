"""sin, cos, sincos and tan (f32; see `passes.expand_math` for f64).

The argument is reduced in f64, where two pieces of pi/2 do for every f32 below 2^45. Larger ones, which hardly any
program has, take a branch with an exact product by 2/pi.
"""

from __future__ import annotations

import math as pymath

from .num import F64, Num, copysign, fma, polynomial, round_even, select, unlikely

# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 in r^2 on |r| < pi / 4; minimax, 3.7e-9 and 1.1e-10.
_SIN = (-0.166666552, 0.0083321901, -0.000195184082)
_COS = (0.0416666456, -0.00138873013, 2.44306702e-05)

# pi / 2 as a sum of two f64.
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17)
# 2 / pi in digits of 29 bits: enough to have 2^128 * 2 / pi right to 2^-75.
_DIGITS = (0x145F306D, 0x19391054, 0x14FE13AB, 0x1D1F534D, 0x1B81B6C5, 0x05664F10, 0x1C820FF2)


def _reduce_huge(x: Num) -> tuple[Num, Num]:
    """(t, r) as in `_reduce`, for any f64 that was an f32.

    x times each digit is exact, as is its remainder modulo 4. Their sum is off by 2^-52, which shows in the result
    only where that is below 2^-28.
    """
    quarters = x.like(0.0)
    for i, digit in enumerate(_DIGITS):
        product = x * (digit * 2.0 ** (-29 * (i + 1)))
        quarters = quarters + fma(round_even(product * 0.25), -4.0, product)
    t = quarters + F64.magic
    return t, (quarters - (t - F64.magic)) * _HALF_PI[0]


def _reduce(x: Num) -> tuple[Num, Num]:
    """(quadrant, r) with x = quadrant * pi/2 + r, |r| <= pi/4; the quadrant as i32, right in its two low bits."""
    wide = x.to_f64()
    t = fma(wide, 2 / pymath.pi, F64.magic)
    k = t - F64.magic
    r = fma(k, -_HALF_PI[1], fma(k, -_HALF_PI[0], wide))
    t, r = unlikely(abs(wide) > 2.0**45, lambda: _reduce_huge(wide), (t, r))
    return t.bits().to_i32(), r.to_f32()


def _sin_and_cos(r: Num) -> tuple[Num, Num]:
    z = r * r
    sine = copysign(fma(z * r, polynomial(z, _SIN), r), r)  # for -0
    return sine, fma(z * z, polynomial(z, _COS), fma(z, -0.5, 1.0))


def _sine_of_quadrant(sine: Num, cosine: Num, quadrant: Num) -> Num:
    """sin(quadrant * pi/2 + r) from sin(r) and cos(r)."""
    y = select((quadrant & 1).equals(1), cosine, sine)
    return (y.bits() ^ ((quadrant & 2) << 30)).as_float()


def sincos(x: Num) -> tuple[Num, Num]:
    """(sin(x), cos(x))."""
    quadrant, r = _reduce(x)
    sine, cosine = _sin_and_cos(r)
    return _sine_of_quadrant(sine, cosine, quadrant), _sine_of_quadrant(sine, cosine, quadrant + 1)


def sin(x: Num) -> Num:
    """Sine."""
    quadrant, r = _reduce(x)
    return _sine_of_quadrant(*_sin_and_cos(r), quadrant)


def cos(x: Num) -> Num:
    """Cosine."""
    quadrant, r = _reduce(x)
    return _sine_of_quadrant(*_sin_and_cos(r), quadrant + 1)


def tan(x: Num) -> Num:
    """Tangent."""
    quadrant, r = _reduce(x)
    sine, cosine = _sin_and_cos(r)
    odd = (quadrant & 1).equals(1)
    return select(odd, -cosine, sine) / select(odd, sine, cosine)
