"""Bessel functions of both kinds, of the orders 0 and 1, by the formulas of the Cephes library (Moshier 1989).

Up to 5, quotients of polynomials in x^2, which hold the first zeros as factors; beyond, the amplitude and phase form
sqrt(2 / (pi x)) (P cos(x - phase) - 5/x Q sin(x - phase)) with quotients in (5/x)^2. The denominators lack Cephes' leading
term, as they do in ATen, whose values these are; by that they are off by up to 1e-6 near 5.
"""

from __future__ import annotations

import math as pymath
from collections.abc import Sequence

from ..math_expansions.num import Num, select, sqrt
from .elementary import cos, leading_first, log, sin

# Highest power first. "Over" and "under" are numerators and denominators.
_P0_OVER = (
    0.0007969367292973471, 0.08283523921074408, 1.239533716464143, 5.447250030587687, 8.74716500199817, 5.303240382353949,
    1.0,
)  # fmt: skip
_P0_UNDER = (
    0.0009244088105588637, 0.08562884743544745, 1.2535274390105895, 5.470977403304171, 8.761908832370695,
    5.306052882353947, 1.0,
)  # fmt: skip
_Q0_OVER = (
    -0.011366383889846916, -1.2825271867050931, -19.553954425773597, -93.20601521237683, -177.68116798048806,
    -147.07750515495118, -51.41053267665993, -6.050143506007285,
)  # fmt: skip
_Q0_UNDER = (
    64.3178256118178, 856.4300259769806, 3882.4018360540163, 7240.467741956525, 5930.727011873169, 2062.0933166032783,
    242.0057402402914,
)  # fmt: skip
_J0_OVER = (
    -4794432209.782018, 1956174919465.5657, -249248344360967.72, 9708622510473064.0,
)  # fmt: skip
_J0_UNDER = (
    499.563147152651, 173785.4016763747, 48440965.83399621, 11185553704.535683, 2112775201154.892, 310518229857422.56,
    3.1812195594320496e+16, 1.7108629408104315e+18,
)  # fmt: skip
_Y0_OVER = (
    15592.436785523574, -14663929.59039716, 5435264770.518765, -982136065717.9115, 87590639439536.7, -3466283033847297.0,
    4.4273326857256984e+16, -1.8495080043698668e+16,
)  # fmt: skip
_Y0_UNDER = (
    1041.2835366425984, 626107.330137135, 268919633.39381415, 86400248710.3935, 20297961275010.555, 3171577528429750.5,
    2.5059625617265306e+17,
)  # fmt: skip
_P1_OVER = (
    0.0007621256162081731, 0.07313970569409176, 1.1271960812968493, 5.112079511468076, 8.424045901417724,
    5.214515986823615, 1.0,
)  # fmt: skip
_P1_UNDER = (
    0.0005713231280725487, 0.06884559087544954, 1.105142326340617, 5.073863861286015, 8.399855543276042, 5.209828486823619,
    1.0,
)  # fmt: skip
_Q1_OVER = (
    0.05108625947501766, 4.982138729512334, 75.82382841325453, 366.7796093601508, 710.8563049989261, 597.4896124006136,
    211.68875710057213, 25.207020585802372,
)  # fmt: skip
_Q1_UNDER = (
    74.23732770356752, 1056.4488603826283, 4986.410583376536, 9562.318924047562, 7997.041604473507, 2826.1927851763908,
    336.0936078106983,
)  # fmt: skip
_J1_OVER = (
    -899971225.7055594, 452228297998.19403, -72749424522181.83, 3682957328638529.0,
)  # fmt: skip
_J1_UNDER = (
    620.8364781180543, 256987.25675774884, 83514679.14319493, 22151159547.97925, 4749141220799.914, 784369607876235.9,
    8.952223361846274e+16, 5.322786203326801e+18,
)  # fmt: skip
_Y1_OVER = (
    1263204747.9017804, -647355876379.1603, 114509511541823.73, -8127702555013251.0, 2.024394757135949e+17,
    -7.788771962659501e+17,
)  # fmt: skip
_Y1_UNDER = (
    594.3015923461282, 235564.09294306856, 73481194.44597217, 18760131610.870617, 3882312774962.3857, 620557727146953.8,
    6.871410873553005e+16, 3.9727060811656064e+18,
)  # fmt: skip


def _quotient(x: Num, over: Sequence[float], under: Sequence[float]) -> Num:
    return leading_first(x, over) / leading_first(x, under)


def _far(x: Num, order: int, second: bool) -> Num:
    """For x > 5, of the first or second kind."""
    p, q = ((_P0_OVER, _P0_UNDER), (_Q0_OVER, _Q0_UNDER)) if order == 0 else ((_P1_OVER, _P1_UNDER), (_Q1_OVER, _Q1_UNDER))
    inverse = 5.0 / x
    square = inverse * inverse
    a, b = _quotient(square, *p), inverse * _quotient(square, *q)
    angle = x - (2 * order + 1) * pymath.pi / 4
    wave = a * sin(angle) + b * cos(angle) if second else a * cos(angle) - b * sin(angle)
    return wave * pymath.sqrt(2 / pymath.pi) / sqrt(x)


def _j0_near(x: Num) -> Num:
    square = x * x
    zeros = (square - 5.78318596294678452118) * (square - 30.4712623436620863991)
    return zeros * _quotient(square, _J0_OVER, _J0_UNDER)


def _j1_near(x: Num) -> Num:
    square = x * x
    zeros = (square - 14.6819706421238932572) * (square - 49.2184563216946036703)
    return zeros * x * _quotient(square, _J1_OVER, _J1_UNDER)


def j0(x: Num) -> Num:
    t = abs(x)
    return select(t > 5.0, _far(t, 0, False), _j0_near(t))


def j1(x: Num) -> Num:
    t = abs(x)
    y = select(t > 5.0, _far(t, 1, False), _j1_near(t))
    return select(x < 0.0, -y, y)


def _second_kind(x: Num, near: Num, far: Num) -> Num:
    y = select(x > 5.0, far, near)
    y = select(x.equals(0.0), x.like(-pymath.inf), y)
    return select(x < 0.0, x.like(pymath.nan), y)


def y0(x: Num) -> Num:
    near = _quotient(x * x, _Y0_OVER, _Y0_UNDER) + log(x) * _j0_near(x) * (2 / pymath.pi)
    return _second_kind(x, near, _far(x, 0, True))


def y1(x: Num) -> Num:
    near = x * _quotient(x * x, _Y1_OVER, _Y1_UNDER) + (_j1_near(x) * log(x) - 1.0 / x) * (2 / pymath.pi)
    return _second_kind(x, near, _far(x, 1, True))


def spherical_j0(x: Num) -> Num:
    """sin(x) / x, by its series near zero."""
    series = leading_first(x * x, [(-1) ** k / pymath.factorial(2 * k + 1) for k in range(6, -1, -1)])
    y = select(abs(x) < 0.5, series, sin(x) / x)
    return select(abs(x).equals(pymath.inf), x.like(0.0), y)
