"""GELU of a vector of eight f32 as one polynomial for each of four intervals, whose coefficients AVX picks in a register.

    %i = exponent of 1 + a            an octave of 1 + a each
    %d = a - centers[%i]
    %y = (coefficients[9][%i] d + coefficients[8][%i]) d + ...           vpermilps, which knows four numbers a half

As `piecewise`, in AVX2. A division and what makes up for its rounding are a long chain, of which a CPU has two or three under way; this one is
half as long: on a Zen 3, 262144 elements take 0.34 instead of 0.48 ms, a linear layer of 196 x 384 x 1536 with it 2.91 instead of 3.15.
"""

from __future__ import annotations

from ..mlir import ir, llvm
from .num import Num, constant, fma, select
from .piecewise import half_square_power

LANES = 8
_INTERVALS = 4

# e^(a^2 / 2) times the normal distribution function at -a, for a < 14.65, and for a > 1 times a: polynomials in a - center, minimax, relative
# error 5e-10 in the first interval, 1.6e-8 in the third.
_CENTERS = (0.47077512741088867, 1.8063873052597046, 4.7227396965026855, 10.3095703125)
_GELU = (
    (0.35627192, 0.32713574, 0.38304505, 0.3952901),
    (-0.23121832, 0.051388998, 0.006028021, 0.000689708),
    (0.123710044, -0.025392298, -0.0016627699, -9.685805e-05),
    (-0.057659492, 0.010405569, 0.00039645805, 1.1995408e-05),
    (0.02414143, -0.0037652936, -8.636005e-05, -1.3825066e-06),
    (-0.009259458, 0.0012386907, 1.7491717e-05, 1.501554e-07),
    (0.0032950405, -0.00037844956, -3.3364292e-06, -1.5513432e-08),
    (-0.001100048, 0.000112828704, 6.7010353e-07, 1.7630213e-09),
    (0.00036137304, -3.216707e-05, -1.4036186e-07, -2.1527533e-10),
    (-0.00010445367, 5.737631e-06, 1.7121687e-08, 1.471605e-11),
)


def gelu(x: Num) -> Num:
    """As `activations.gelu`: x times the normal distribution function of x, at most 2 ulp, small results included; NaN at -inf."""
    a = abs(x).at_most(14.6)
    p, scale = half_square_power(a)
    place = (a + 1.0).bits().shift_right_unsigned(a.format.mantissa)
    d = a - _pick(_CENTERS, place)
    first, second, *others = (_pick(c, place) for c in _GELU)
    # Two chains, of the even and the odd powers.
    square = d * d
    slope = fma(fma(_horner(others[1::2], square), d, _horner(others[::2], square)), d, second)
    # In two pieces, rounded once with the factor.
    top = fma(slope, d, first)
    rest = fma(slope, d, first - top)
    factor = a.at_most(1.0)
    product = factor * top
    small = (product + fma(product, p, fma(factor, rest, fma(factor, top, -product)))) * scale * 2.0**-64
    # Below zero x counts for nothing, but for -inf.
    return fma(x, select(x < 0.0, x.like(0.0), x.like(1.0)), -small)


def _horner(coefficients: list[Num], x: Num) -> Num:
    *rest, result = coefficients
    for c in reversed(rest):
        result = fma(result, x, c)
    return result


def _pick(table: tuple[float, ...], place: Num) -> Num:
    """For each lane, the number of the interval that the two low bits of `place` name."""
    # 1 has the exponent 127: the first interval is the one with the bits 11.
    numbers = tuple(table[(n + 1) % _INTERVALS] for n in range(_INTERVALS))
    kind = ir.VectorType.get([LANES], ir.F32Type.get())
    return Num(llvm.call_intrinsic(kind, "llvm.x86.avx.vpermilvar.ps.256", [constant(kind, numbers * 2), place.value], [], []))
