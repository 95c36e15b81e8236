"""sin, cos, sincos and tan.

The argument is reduced as Cody and Waite do, by three pieces of pi/2, in f64 below 2^45, in f32 below 2^17. Larger arguments, which hardly
any program has, take a branch: in f32 reduction in f64, by two pieces, and above 2^45 an exact product by 2/pi; in f64 libm.
"""

from __future__ import annotations

import math as pymath

from . import libm
from .num import F32, F64, Num, copysign, fma, polynomial, round_even, select, unlikely

# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 in r^2 on |r| < pi / 4; minimax, errors of sin(r) / r and cos(r):
# 3.7e-9 and 1.1e-10, 3.5e-18 and 4.9e-20.
_SIN = {
    "f32": (-0.166666552, 0.0083321901, -0.000195184082),
    "f64": (
        -0.16666666666666632, 0.008333333333322455, -0.00019841269829813473, 2.755731368760623e-06,
        -2.505075672070873e-08, 1.589668224982658e-10,
    ),
}  # fmt: skip
_COS = {
    "f32": (0.0416666456, -0.00138873013, 2.44306702e-05),
    "f64": (
        0.0416666666666666, -0.0013888888888874441, 2.480158728963635e-05, -2.755731438749091e-07,
        2.087572706285256e-09, -1.1359802705118089e-11,
    ),
}  # fmt: skip

# pi / 2 as a sum of f64, none of them negative: -0 would not survive.
_HALF_PI = (1.5707963267948966, 6.123233995736765e-17, 1.082856673921914e-32)
_LARGE = 2.0**45
# The same of f32. With x below 2^17 k * _HALF_PI_F32[0] and x are multiples of 2^-24 less than 1 apart, so that their difference is exact.
_HALF_PI_F32 = (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15)
_LARGE_F32 = 2.0**17
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


def _reduce(x: Num) -> tuple[Num, Num, Num | None]:
    """(quadrant, r, rest) with x = quadrant * pi/2 + r + rest, |r| <= pi/4, up to `_LARGE`, and for f32 beyond; no rest is none.

    The quadrant is an integer as wide as x, right in its two low bits.
    """
    if x.format is F64:
        return *_reduce_in_f64(x), None
    t = fma(x, 2 / pymath.pi, F32.magic)
    k = t - F32.magic
    exact = fma(k, -_HALF_PI_F32[0], x)
    second = k * _HALF_PI_F32[1]
    r = exact - second
    # What is lost of r (Dekker's sum), of the second piece, and the third one.
    rest = fma(k, -_HALF_PI_F32[2], (exact - r - second) - fma(k, _HALF_PI_F32[1], -second))

    def wide() -> tuple[Num, Num, Num]:
        quadrant, reduced = _reduce_in_f64(x)
        return quadrant.to_i32(), reduced.to_f32(), x.like(0.0)

    return unlikely(abs(x) > _LARGE_F32, wide, (t.bits(), r, rest))


def _reduce_in_f64(x: Num) -> tuple[Num, Num]:
    """(quadrant, r) as in `_reduce`, an i64 and an f64."""
    wide = x.to_f64() if x.format is F32 else x
    t = fma(wide, 2 / pymath.pi, F64.magic)
    k = t - F64.magic
    # Exact: a small multiple of the last bit of _HALF_PI[0].
    r = fma(k, -_HALF_PI[0], wide)
    r = fma(k, -_HALF_PI[1], r)
    if x.format is F64:
        return t.bits(), fma(k, -_HALF_PI[2], r)
    t, r = unlikely(abs(wide) > _LARGE, lambda: _reduce_huge(wide), (t, r))
    return t.bits(), r


def _sin_and_cos(r: Num, rest: Num | None = None, name: str | None = None) -> tuple[Num, Num]:
    """Of r and, behind its last bit, a rest, |r| <= pi/4, as accurate as the format called `name`, which is that of r unless given."""
    name = name or r.format.name
    z = r * r
    cosine = fma(z, -0.5, 1.0)
    sine = fma(z * r, polynomial(z, _SIN[name]), r) if rest is None else fma(z * r, polynomial(z, _SIN[name]), rest) + r
    if rest is not None:
        cosine = fma(-r, rest, cosine)
    return copysign(sine, r), fma(z * z, polynomial(z, _COS[name]), cosine)  # for -0


def _sine_of_quadrant(sine: Num, cosine: Num, quadrant: Num) -> Num:
    """sin(quadrant * pi/2 + r) from sin(r) and cos(r)."""
    y = select((quadrant & 1).equals(1), cosine, sine)
    return (y.bits() ^ ((quadrant & 2) << (sine.format.bits - 2))).as_float()


def _or_libm_if_huge(x: Num, result: Num, symbol: str) -> Num:
    if x.format is F32:
        return result
    return unlikely(abs(x) > _LARGE, lambda: (libm.call(symbol, x),), (result,))[0]


def sincos(x: Num) -> tuple[Num, Num]:
    """(sin(x), cos(x))."""
    quadrant, r, rest = _reduce(x)
    parts = _sin_and_cos(r, rest)
    sine, cosine = _sine_of_quadrant(*parts, quadrant), _sine_of_quadrant(*parts, quadrant + 1)
    return _or_libm_if_huge(x, sine, "sin"), _or_libm_if_huge(x, cosine, "cos")


def sin(x: Num) -> Num:
    """Sine."""
    quadrant, r, rest = _reduce(x)
    return _or_libm_if_huge(x, _sine_of_quadrant(*_sin_and_cos(r, rest), quadrant), "sin")


def cos(x: Num) -> Num:
    """Cosine."""
    quadrant, r, rest = _reduce(x)
    return _or_libm_if_huge(x, _sine_of_quadrant(*_sin_and_cos(r, rest), quadrant + 1), "cos")


def tan(x: Num) -> Num:
    """Tangent."""
    # The quotient would have the errors of both: for f32 they are computed in f64, with the short polynomials.
    quadrant, r = _reduce_in_f64(x)
    sine, cosine = _sin_and_cos(r, name=x.format.name)
    odd = (quadrant & 1).equals(1)
    if x.format is F32:
        return (select(odd, -cosine, sine) / select(odd, sine, cosine)).to_f32()
    return _or_libm_if_huge(x, select(odd, -cosine, sine) / select(odd, sine, cosine), "tan")
