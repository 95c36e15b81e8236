"""asin, acos, atan and atan2 (f32; see `passes.expand_math` for f64)."""

from __future__ import annotations

from .num import Num, copysign, fma, polynomial, select, sqrt

# (asin(t) - t) / t^3 in t^2 on 0 < t < 1/2, and (atan(t) - t) / t^3 in t^2 on 0 < t < 1; minimax, 4.9e-9 and 2.6e-9.
_ASIN = (0.166667521, 0.0749530643, 0.0454697721, 0.0241807736, 0.0421664119)
_ATAN = (
    -0.333332986, 0.199985296, -0.142640159, 0.109508805, -0.0839930475, 0.0578812771, -0.0310967118, 0.0108684087,
    -0.00178272079,
)  # fmt: skip

# pi / 2 as a sum of two f32.
_HALF_PI = (1.57079637, -4.37113883e-08)


def _asin_of_small(x: Num) -> tuple[Num, Num, Num]:
    """(|x| > 1/2, t, y) with asin(|x|) = t + y where that is false and pi/2 - 2 (t + y) where it is true; y is small."""
    a = abs(x)
    large = a > 0.5
    z = select(large, fma(a, -0.5, 0.5), a * a)
    root = sqrt(z)
    t = select(large, root, a)
    # What the rounding of the root took away.
    lost = select(large & (z > 0.0), fma(-root, root, z) / (root + root), x.like(0.0))
    return large, t, fma(t * z, polynomial(z, _ASIN), lost)


def asin(x: Num) -> Num:
    """Arc sine; NaN outside [-1, 1]."""
    large, t, y = _asin_of_small(x)
    complement = fma(t, -2.0, _HALF_PI[0]) + fma(y, -2.0, _HALF_PI[1])
    return copysign(select(large, complement, t + y), x)


def acos(x: Num) -> Num:
    """Arc cosine; NaN outside [-1, 1]."""
    large, t, y = _asin_of_small(x)
    y = t + y
    positive = select(large, y + y, x.like(_HALF_PI[0]) - (y - _HALF_PI[1]))
    # acos(-a) = pi - acos(a), from pi / 2 + asin(a) where a is small
    negative = select(large, fma(y, -2.0, 2 * _HALF_PI[1]) + 2 * _HALF_PI[0], (y + _HALF_PI[1]) + _HALF_PI[0])
    return select(x < 0.0, negative, positive)


def _atan_of_fraction(q: Num) -> Num:
    z = q * q
    return fma(q * z, polynomial(z, _ATAN), q)


def atan(x: Num) -> Num:
    """Arc tangent."""
    a = abs(x)
    large = a > 1.0
    y = _atan_of_fraction(select(large, 1.0 / a, a))
    return copysign(select(large, (_HALF_PI[1] - y) + _HALF_PI[0], y), x)


def atan2(y: Num, x: Num) -> Num:
    """The angle of (x, y), with C's results for zeros and infinities of either sign."""
    ay, ax = abs(y), abs(x)
    steep = ay > ax
    small, large = select(steep, ax, ay), select(steep, ay, ax)
    q = select(small.equals(large), y.like(1.0), small / large)  # also for inf / inf
    q = select(ay.equals(0.0), ay, q)  # 0 / 0 is 0 here; a NaN in x comes back at the end
    angle = _atan_of_fraction(q)
    angle = select(steep, (_HALF_PI[1] - angle) + _HALF_PI[0], angle)
    negative = x.bits() < 0  # the sign bit: -0 counts
    angle = select(negative, (2 * _HALF_PI[1] - angle) + 2 * _HALF_PI[0], angle)
    return copysign(select(x.compare("UNO", y), x + y, angle), y)
