"""exp, exp2 and expm1.

The argument is split as k * ln2 + r; a minimax polynomial gives e^r, and 2^k is put together from its bits. k comes
out of the low bits of a sum with a large constant (`Format.magic`), where the exponent's bias is already added, so
that one shift makes 2^k of it. (Where 2^k may be subnormal or too large, it is the product of two powers.)
"""

from __future__ import annotations

import math as pymath

from .num import Num, fma, polynomial, select

# ln2 in two pieces; the first has trailing zeros enough for its product with any k here to be exact.
LN2 = {"f32": (0.693359375, -2.12194440e-4), "f64": (0.693147180369123816490, 1.90821492927058770002e-10)}

# (e^r - 1 - r) / r^2, minimax fits: relative error of e^r 1.5e-8 and 1.1e-17 on |r| < ln2 ...
_EXP = {
    "f32": (0.500000358, 0.166666165, 0.0416611917, 0.00833595917, 0.00141056173, 0.000196315683),
    "f64": (
        0.4999999999999993, 0.1666666666666694, 0.0416666666667023, 0.008333333333269246, 0.0013888888883544063,
        0.0001984126989316241, 2.480159084806018e-05, 2.7557300570062954e-06, 2.755615390029163e-07,
        2.505503675956399e-08, 2.106266712400675e-09, 1.5936052271540888e-10,
    ),
}  # fmt: skip
# ... of e^r - 1 1.4e-8 and 2.3e-17 on |r| < ln2 / 2.
EXPM1 = {
    "f32": (0.49999997, 0.16666545, 0.0416674651, 0.00836642366, 0.0013868328),
    "f64": (
        0.5000000000000006, 0.16666666666666674, 0.04166666666658077, 0.008333333333374935, 0.001388888892923045,
        0.00019841269708002215, 2.480150851593763e-05, 2.7557438444710803e-06, 2.7624703503403304e-07,
        2.5040016360834146e-08,
    ),
}  # fmt: skip
# (2^r - 1) / r: relative error of 2^r 1.4e-8 and 1.1e-17 on |r| < 1.
_EXP2 = {
    "f32": (0.693147242, 0.240226686, 0.0555036627, 0.00961684063, 0.00133416255, 0.000156457507, 1.49230682e-05),
    "f64": (
        0.6931471805599453, 0.2402265069591003, 0.05550410866482287, 0.009618129107637471, 0.0013333558146306917,
        0.0001540353038712945, 1.5252733848292669e-05, 1.3215488740787089e-06, 1.0178078626251278e-07,
        7.0546080151723214e-09, 4.446084514436091e-10, 2.5908823757168656e-11, 1.3581419260857408e-12,
    ),
}  # fmt: skip

# Beyond these exp is 0 and inf, also after rounding.
_EXP_RANGE = {"f32": (-104.0, 89.0), "f64": (-745.2, 710.0)}
_EXP2_RANGE = {"f32": (-151.0, 129.0), "f64": (-1076.0, 1025.0)}


def split(x: Num, scale: float, exponent_offset: int = 0) -> tuple[Num, Num]:
    """(k as a float, 2^(k + exponent_offset)) for the integer k nearest to x * scale.

    k + exponent_offset must be a valid exponent; for NaN both are garbage.
    """
    form = x.format
    magic = form.magic + form.bias + exponent_offset
    t = fma(x, scale, magic)
    return t - magic, (t.bits() << form.mantissa).as_float()


def exp_parts(x: Num, rest: Num | None = None) -> tuple[Num, Num, Num]:
    """(p, a, b) with e^(x + rest) = a b (1 + p), |p| < 0.42, and a and b powers of two, for x in the range of `exp`.

    `rest` is small next to x. The result can be subnormal, a and b are not. More accurate than `exp`, and a bit longer.
    """
    form = x.format
    hi, lo = LN2[form.name]
    # As `split`, with twice the bias for the two exponents that share k.
    magic = form.magic + 2 * form.bias
    t = fma(x, 1 / pymath.log(2), magic)
    k = t - magic
    bits = t.bits()
    a, b = ((n.shift_right_unsigned(1) << form.mantissa).as_float() for n in (bits, bits + 1))
    # The part of x - k ln2 that is exact joins last.
    exact = fma(k, -hi, x)
    rest = k * -lo if rest is None else fma(k, -lo, rest)
    r = exact + rest
    return exact + fma(r * r, polynomial(r, EXPM1[form.name]), rest), a, b


def exp(x: Num) -> Num:
    """e^x; subnormal results included."""
    name = x.format.name
    low, high = _EXP_RANGE[name]
    x = x.at_most(high)
    # x = 2 k ln2 + r: both halves of the scale are 2^k, which never leaves the normal range.
    k, scale = split(x, 0.5 / pymath.log(2))
    hi, lo = LN2[name]
    # The part of r that is exact joins last.
    exact, rest = fma(k, -2 * hi, x), k * (-2 * lo)
    r = exact + rest
    y = (exact + fma(r * r, polynomial(r, _EXP[name]), rest)) + 1.0
    return _zero_below(low, x, y * scale * scale)


def exp_to_one(x: Num) -> Num:
    """e^x of f32 for x <= 0, as far as a softmax needs it: at most 1 ulp away, 1 at 0, and 0 below e^-87, whatever it is there
    (2^-126 is nothing beside the 1 of the sum). Two thirds of the instructions of `exp`."""
    k, scale = split(x, 1 / pymath.log(2))
    hi, lo = LN2["f32"]
    r = fma(k, -lo, fma(k, -hi, x))
    return _zero_below(-87.0, x, polynomial(r, (1.0, 1.0, *EXPM1["f32"])) * scale)


def _zero_below(low: float, x: Num, y: Num) -> Num:
    """0 where x < low and y may be anything: there is no underflow, which takes CPUs long, where -inf masks most of a row."""
    return select(x < low, x.like(0.0), y)


def exp2(x: Num) -> Num:
    """2^x; exact for integers, subnormal results included."""
    name = x.format.name
    low, high = _EXP2_RANGE[name]
    x = x.at_most(high)
    k, scale = split(x, 0.5)
    r = fma(k, -2.0, x)
    return _zero_below(low, x, fma(r, polynomial(r, _EXP2[name]), 1.0) * scale * scale)


def expm1_reduced(r: Num, factor: float = 1.0) -> Num:
    """(e^(factor * r) - 1) / factor for |factor * r| < ln2 / 2; `factor` is a power of two."""
    coefficients = [c * factor ** (i + 1) for i, c in enumerate(EXPM1[r.format.name])]
    return fma(r * r, polynomial(r, coefficients), r)


def expm1(x: Num) -> Num:
    """e^x - 1."""
    name = x.format.name
    x = x.at_least({"f32": -18.0, "f64": -38.0}[name]).at_most(_EXP_RANGE[name][1])
    # Everything at half its size, because 2^k overflows before the result does.
    k, half_scale = split(x, 1 / pymath.log(2), exponent_offset=-1)
    hi, lo = LN2[name]
    r = fma(k, -lo, fma(k, -hi, x))
    half = fma(expm1_reduced(r), half_scale, half_scale - 0.5)
    # Halves of subnormals lose bits, and there expm1(x) = x; also for -0.
    return select(abs(x) < x.format.smallest_normal * 2, x, half + half)


# (2^r - 1) / r on |r| < 1/2 to 4.7e-11.
_EXP2_COARSE = (
    0.6931471807046701, 0.2402265106703256, 0.055504103655673515, 0.00961803805634739, 0.0013333935251431575,
    0.00015466782384841312, 1.5196154063636541e-05,
)  # fmt: skip


def exp2_in_f64(x: Num) -> Num:
    """2^x for f64 x, |x| < 1022, to 36 bits: a step of f32 functions that must not lose accuracy midway."""
    k, scale = split(x, 1.0)
    r = x - k
    return fma(r, polynomial(r, _EXP2_COARSE), 1.0) * scale
