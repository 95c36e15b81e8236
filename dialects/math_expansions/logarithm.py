"""log, log2, log10 and log1p.

x = 2^e * (1 + m) with m between about -1/3 and 1/3, taken apart with integer arithmetic on the bits.
"""

from __future__ import annotations

import math as pymath

from .num import F32, Format, Num, fma, polynomial, select

# f32: log(1 + m), log2(1 + m) and log10(1 + m) as m c0 + m^2 (c1 + ...); minimax, relative errors 5.7e-9, 4e-8, 1.3e-8.
_LOG = (1.0, -0.5, 0.333332062, -0.249997377, 0.200108096, -0.166818976, 0.140002549, -0.121733077, 0.140095711, -0.129207507)
_LOG2 = (1.44269502, -0.721346855, 0.480897844, -0.360772491, 0.288666278, -0.23705636, 0.20224835, -0.220933467, 0.20118171)
_LOG10 = (0.434294492, -0.217147082, 0.144763529, -0.108601041, 0.0869224146, -0.0713953152, 0.0606605113, -0.066354841, 0.0612526424)
# f64: (log((1 + s) / (1 - s)) - 2 s) / s^3 in s^2; minimax, 3e-19 of the logarithm.
_ATANH = (
    0.666666666666666, 0.4000000000005664, 0.2857142855586014, 0.22222224290526768, 0.18181666344678615,
    0.15391093702981004, 0.13173945331865716, 0.13840481466919471,
)  # fmt: skip

# The bits of 0.66677: where x = 2^e * (1 + m) changes from one e to the next. A bit more than 2/3, so that log10 is above 1/8
# (and the unit in its last place twice as large) wherever e log10(2) and log10(1 + m) cancel.
_SPLIT = {"f32": 0x3F2AB170, "f64": 0x3FE5562E09FE8683}


def _exponent_mask(x: Num) -> int:
    """Sign and exponent bits."""
    return -(1 << x.format.mantissa)


def _exponent_to_float(exponent: Num, form: Format) -> Num:
    """The value of an exponent that still sits in its place above the mantissa."""
    if form is F32:
        return exponent.to_float() * 2.0**-form.mantissa
    # AVX2 neither shifts i64 arithmetically nor converts it to f64; the upper half, an i32, it can.
    return (exponent.shift_right_unsigned(32).to_i32() >> (form.mantissa - 32)).to_f64()


def log1p_reduced(m: Num) -> Num:
    """log(1 + m) for |m| < 0.334."""
    if m.format is F32:
        return fma(m * m, polynomial(m, _LOG[1:]), m)
    # fdlibm's form: with s = m / (2 + m), log(1 + m) = 2 s + s R(s^2) = m - s (m - R).
    s = m / (m + 2.0)
    z = s * s
    return fma(-s, m - z * polynomial(z, _ATANH), m)


def decompose(x: Num) -> tuple[Num, Num]:
    """(e, m), both floats, with x = 2^e * (1 + m) and |m| < 0.334, for any positive finite x."""
    form = x.format
    small = x < form.smallest_normal
    x = select(small, x * 2.0**form.mantissa, x)
    correction = select(small, x.like(-float(form.mantissa)), x.like(0.0))
    bits = x.bits()
    exponent = (bits - _SPLIT[form.name]) & _exponent_mask(x)
    m = (bits - exponent).as_float() - 1.0
    if form is F32:
        return fma(exponent.to_float(), 2.0**-form.mantissa, correction), m
    return _exponent_to_float(exponent, form) + correction, m


def _at_the_borders(x: Num, result: Num) -> Num:
    """-inf at zero, NaN below, inf at inf, NaN at NaN; `result` elsewhere."""
    result = select(x < pymath.inf, result, x)
    return select(x > 0.0, result, select(x.equals(0.0), x.like(-pymath.inf), x.like(pymath.nan)))


def log(x: Num) -> Num:
    """Natural logarithm."""
    e, m = decompose(x)
    return _at_the_borders(x, fma(e, pymath.log(2), log1p_reduced(m)))


def log2(x: Num) -> Num:
    """Base-2 logarithm; exact for powers of two."""
    e, m = decompose(x)
    if x.format is F32:
        fraction = fma(m, _LOG2[0], m * m * polynomial(m, _LOG2[1:]))
    else:
        fraction = log1p_reduced(m) * (1 / pymath.log(2))
    return _at_the_borders(x, e + fraction)


def log10(x: Num) -> Num:
    """Base-10 logarithm."""
    e, m = decompose(x)
    if x.format is F32:
        # log10(2) in two pieces; the lower one joins where the sum is small.
        rest = fma(e, -1.43209889e-08, m * m * polynomial(m, _LOG10[1:]))
        return _at_the_borders(x, fma(e, 0.30103001, fma(m, _LOG10[0], rest)))
    return _at_the_borders(x, fma(e, pymath.log10(2), log1p_reduced(m) * (1 / pymath.log(10))))


def log1p(x: Num) -> Num:
    """log(1 + x), accurate near zero."""
    form = x.format
    # Minus the exponent of 1 + x (for |m| < 0.334), still in place, as the integer `down`.
    bits = (x + 1.0).bits()
    down = (_SPLIT[form.name] + (1 << form.mantissa) - 1 - bits) & _exponent_mask(x)
    # 2^-e (1 + x) - 1 = 2^-e x - (1 - 2^-e), without rounding 1 + x first. The signs keep -0; 4 * 2^-e, because 2^-e
    # can be subnormal.
    scale = (down + ((form.bias + 2) << form.mantissa)).as_float()
    m = (x.bits() + down).as_float() - fma(scale, -0.25, 1.0)
    result = fma(_exponent_to_float(down, form), -pymath.log(2), log1p_reduced(m))
    result = select(x < pymath.inf, result, x)
    return select(x > -1.0, result, select(x.equals(-1.0), x.like(-pymath.inf), x.like(pymath.nan)))
