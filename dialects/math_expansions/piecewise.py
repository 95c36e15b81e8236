"""Functions of a vector of 16 f32 as one polynomial for each of 16 intervals, whose coefficients are read from registers.

    %i = bits of 1 + scale a, from the two first of the mantissa on      a quarter of an octave of 1 + scale a each
    %d = a - centers[%i]
    %y = (coefficients[6][%i] d + coefficients[5][%i]) d + ...           vpermps with a table as its operand

AVX-512 picks 16 of 16 numbers in one instruction; so functions need no division, and GELU takes 43
instructions instead of 55, tanh 21 instead of 28. (The intervals are those of a floating-point number, as
in P. T. P. Tang, "Table-lookup algorithms for elementary functions and their error analysis", ARITH 1991.)

The centers are numbers near the middle at which the function is almost an f32, so that the first coefficient is not rounded (S. Gal,
"Computing elementary functions: a new approach for achieving high accuracy and good performance", 1986); a - center is exact.
"""

from __future__ import annotations

import math as pymath
from dataclasses import dataclass

from ..mlir import ir, llvm
from .exponential import EXPM1, LN2, split
from .num import Num, constant, copysign, fma, polynomial, select
from .scaled import LANES


@dataclass(frozen=True)
class _Table:
    """A function on 0 <= a < 15 / scale, a polynomial in a - center for each interval, minimax in the relative error; the first center is 0."""

    scale: float
    centers: tuple[float, ...]
    coefficients: tuple[tuple[float, ...], ...]
    """Of each degree, those of all intervals."""

    def locate(self, a: Num) -> tuple[Num, Num]:
        """(the number of the interval, a - center)."""
        place = fma(a, self.scale, 1.0).bits().shift_right_unsigned(a.format.mantissa - 2)
        return place, a - _pick(self.centers, place)

    def slope(self, place: Num, d: Num) -> Num:
        """(function - constant) / d."""
        *rest, result = [_pick(c, place) for c in self.coefficients[1:]]
        for c in reversed(rest):
            result = fma(result, d, c)
        return result

    def constant(self, place: Num) -> Num:
        return _pick(self.coefficients[0], place)


def _pick(table: tuple[float, ...], place: Num) -> Num:
    """For each lane, the number of the interval that the four low bits of `place` name."""
    # 1 has the exponent 127: the first interval is the one with the bits 1100.
    first = LANES - 4
    numbers = tuple(table[(n - first) % LANES] for n in range(LANES))
    kind = ir.VectorType.get([LANES], ir.F32Type.get())
    return Num(llvm.call_intrinsic(kind, "llvm.x86.avx512.permvar.sf.512", [constant(kind, numbers), place.value], [], []))


# a e^(a^2 / 2) times the normal distribution function at -a, for a < 15: relative error 2.0e-9.
_GELU = _Table(
    scale=1.0,
    centers=(0.0, 0.375056833, 0.625069201, 0.875006735, 1.2503258, 1.7500906, 2.25020766, 2.75072646, 3.50034928, 4.50023365,
             5.50031614, 6.50108194, 8.00060368, 10.0026989, 12.0000782, 14.00033),
    coefficients=(
        (0.0, 0.142367765, 0.202111468, 0.244800225, 0.28848058, 0.324160337, 0.345723897, 0.35950917, 0.372212499, 0.381616861,
         0.38688609, 0.390104651, 0.392981231, 0.395068973, 0.396227688, 0.39693734),
        (0.5, 0.283359826, 0.200309664, 0.144894198, 0.0926112235, 0.0543497168, 0.0338884741, 0.022226382, 0.0127722546,
         0.00683090836, 0.00402602414, 0.00255196216, 0.00142695697, 0.000752713298, 0.000443433004, 0.00028217872),
        (-0.398941994, -0.203436494, -0.134227112, -0.0907503515, -0.0525646023, -0.0272234827, -0.0150903324, -0.00886375923,
         -0.00437611854, -0.00195508078, -0.00098398875, -0.000542372523, -0.00025279721, -0.000108726163, -5.39777066e-05,
         -2.96424496e-05),
        (0.249986827, 0.116245605, 0.0721873343, 0.0459778011, 0.024396522, 0.0112932278, 0.00562528009, 0.00298586115,
         0.00127988867, 0.000482626318, 0.000208917059, 0.000100641999, 3.92887778e-05, 1.38362348e-05, 5.80319102e-06,
         2.75464345e-06),
        (-0.132754669, -0.0569125451, -0.0334616266, -0.0201928634, -0.00989524648, -0.0041331551, -0.00186556124,
         -0.000901358319, -0.000338455953, -0.000108655797, -4.06954241e-05, -1.7206301e-05, -5.65671462e-06, -1.63699667e-06,
         -5.81760276e-07, -2.38810657e-07),
        (0.0607205965, 0.0248982832, 0.0139157344, 0.00798923895, 0.00366947846, 0.0013905497, 0.000571717334, 0.000252623082,
         8.50287906e-05, 2.32804541e-05, 7.55629389e-06, 2.8111449e-06, 7.96279153e-07, 1.88247682e-07, 5.6474704e-08,
         2.0029276e-08),
        (-0.0199398603, -0.00983349979, -0.00526217371, -0.00285698986, -0.00122913055, -0.00042829357, -0.000160540076,
         -6.3982181e-05, -1.94861041e-05, -4.59858256e-06, -1.33085746e-06, -4.52420409e-07, -1.0359738e-07, -2.03541575e-08,
         -4.92170971e-09, -1.65298608e-09),
    ),
)  # fmt: skip


def gelu(x: Num) -> Num:
    """As `activations.gelu`: x times the normal distribution function of x, at most 2 ulp, small results included; NaN at -inf.

    The table has a e^(a^2 / 2) times the normal distribution function at -a.
    """
    a = abs(x).at_most(14.6)
    p, scale = half_square_power(a)
    place, d = _GELU.locate(a)
    # What the table has, in two pieces, so that it is rounded once.
    slope, first = _GELU.slope(place, d), _GELU.constant(place)
    top = fma(slope, d, first)
    rest = fma(slope, d, first - top)
    small = (top + fma(top, p, rest)) * scale * 2.0**-64
    # Below zero x counts for nothing, but for -inf.
    return fma(x, select(x < 0.0, x.like(0.0), x.like(1.0)), -small)


def half_square_power(a: Num) -> tuple[Num, Num]:
    """(p, s) with e^(-a^2 / 2) = 2^-64 s (1 + p), for 0 <= a < 14.6; p is less exact than that of `activations`."""
    square = a * a
    hi, lo = LN2["f32"]
    k, scale = split(square, -0.5 / pymath.log(2), 64)
    # What is left of a^2 is -2 r, for the r of e^r = 1 + p.
    left = fma(k, 2 * hi, square) + fma(k, 2 * lo, fma(a, a, -square))
    coefficients = [c * (-0.5) ** (i + 1) for i, c in enumerate(EXPM1["f32"])]
    return fma(left * left, polynomial(left, coefficients), left) * -0.5, scale


# For a < 9.2: relative error 2e-9, and 6e-9 in the last interval, where the result rounds to 1.
_TANH = _Table(
    scale=1.625,
    centers=(0.0, 0.230763838, 0.384599745, 0.538396776, 0.769159496, 1.07668328, 1.384601, 1.69206607, 2.15376329, 2.76920533,
             3.38445497, 3.99979925, 4.92241001, 6.15241623, 7.38318539, 8.61538506),
    coefficients=(
        (0.0, 0.226753041, 0.366695404, 0.491773427, 0.646440446, 0.791965902, 0.881977379, 0.934409857, 0.973424256,
         0.992165267, 0.997704744, 0.999329031, 0.999893963, 0.99999094, 0.999999225, 0.99999994),
        (1.0, 0.948583066, 0.865534484, 0.758158922, 0.582114756, 0.372790009, 0.222115889, 0.126878217, 0.0524451882,
         0.0156080918, 0.00458524795, 0.00134149066, 0.000212080748, 1.81213527e-05, 1.54556244e-06, 1.31488918e-07),
        (-1.07725214e-07, -0.215094075, -0.317387491, -0.372842371, -0.376302481, -0.295236975, -0.195901185, -0.118556254,
         -0.0510514416, -0.0154857952, -0.00457472168, -0.00134059414, -0.000212038824, -1.81021787e-05, -1.44854005e-06,
         -4.22898069e-07),
        (-0.333323359, -0.267420471, -0.172127634, -0.0693668127, 0.0492078587, 0.109554879, 0.0987441316, 0.0684885681,
         0.0322153866, 0.0101609416, 0.00303540961, 0.000892383512, 0.000140952718, 1.20397226e-05, 1.03086927e-06,
         8.73563266e-08),
        (-0.000300485437, 0.132329002, 0.16889666, 0.158383429, 0.0936139226, 0.0116504608, -0.0217891559, -0.024477344,
         -0.0143407304, -0.00492029171, -0.00150379282, -0.000444871082, -7.0606693e-05, -6.15455474e-06, -1.19843173e-06,
         2.00836735e-06),
        (0.137292579, 0.0800053552, 0.014853538, -0.0375758447, -0.0631099567, -0.0375052877, -0.00895844493, 0.00276312558,
         0.00433986774, 0.00185877981, 0.000598752405, 0.000179924755, 3.01239997e-05, 2.59178614e-06, 2.1103682e-07,
         1.88211757e-08),
        (-0.0238072015, -0.0659918264, -0.06658905, -0.0412407294, 0.00168856059, 0.019059578, 0.0106977774, 0.00289828726,
         -0.000593230128, -0.000530725985, -0.000191527375, -6.0302842e-05, -9.70429846e-06, -6.25133225e-07, 1.1318582e-06,
         -3.61876459e-06),
    ),
)  # fmt: skip


def tanh(x: Num) -> Num:
    """Hyperbolic tangent, at most 2 ulp; 1 from where it has rounded to 1."""
    a = abs(x).at_most(9.1)
    place, d = _TANH.locate(a)
    return copysign(fma(_TANH.slope(place, d), d, _TANH.constant(place)), x)
