"""The scaled complement of erf, and inverses of erf and of the normal distribution."""

from __future__ import annotations

import math as pymath

from ..math_expansions.num import Num, copysign, select, sqrt
from .elementary import chebyshev, erf, exp, leading_first, log

# erfcx(x) / w in w = 4 / (4 + x) (the variable is that of S. G. Johnson's erfcx), Chebyshev series on 0 < w < 1 to 1e-16.
_ERFCX = (
    -1.7731101098614216e-19, -5.330348620976706e-18, 4.5614021668587424e-18, 1.439307385939613e-16, -6.328710766283216e-17,
    -4.117340917819795e-15, -2.1146895449719368e-15, 1.2127675803047086e-13, 2.6158087668552376e-13,
    -3.392130686829068e-12, -1.7034898438296283e-11, 6.872156425953403e-11, 8.633411694990956e-10, 9.47991756520455e-10,
    -3.0291767735991394e-08, -2.1747767703449563e-07, -1.1988713758412045e-07, 9.72854595199015e-06,
    0.00010340451975756189, 0.000682254183283808, 0.003443493262717524, 0.014227107557117175, 0.049571317930027586,
    0.14758035457222363, 0.37635823567636745, 0.8160489390982629,
)  # fmt: skip


def erfcx(x: Num) -> Num:
    """exp(x^2) erfc(x); below zero 2 exp(x^2) - erfcx(-x)."""
    w = 4.0 / (abs(x) + 4.0)
    y = w * chebyshev(w * 4.0 - 2.0, _ERFCX)
    return select(x < 0.0, exp(x * x) * 2.0 - y, y)


def erfinv(y: Num) -> Num:
    """A rational start and two steps of Newton's method, as in ATen; NaN outside of [-1, 1]."""
    t = abs(y)
    square = y * y
    over = leading_first(square, (-0.140543331, 0.914624893, -1.645349621, 0.886226899))
    under = leading_first(square, (0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0))
    z = sqrt(-log((1.0 - t) * 0.5))
    tail = leading_first(z, (1.641345311, 3.429567803, -1.624906493, -1.970840454))
    tail = copysign(tail, y) / leading_first(z, (1.637067800, 3.543889200, 1.0))
    x = select(t > 0.7, tail, y * over / under)
    for _ in range(2):
        x = x - (erf(x) - y) / (exp(-(x * x)) * (2 / pymath.sqrt(pymath.pi)))
    return select(t.equals(1.0), copysign(x.like(pymath.inf), y), x)


# Of ndtri (Cephes), highest power first: around 1/2, and for z = sqrt(-2 log p) up to 8 and beyond.
_OVER0 = (
    -59.96335010141079, 98.00107541859997, -56.67628574690703, 13.931260938727968, -1.2391658386738125,
)  # fmt: skip
_UNDER0 = (
    1.0, 1.9544885833814176, 4.676279128988815, 86.36024213908905, -225.46268785411937, 200.26021238006066,
    -82.03722561683334, 15.90562251262117, -1.1833162112133,
)  # fmt: skip
_OVER1 = (
    4.0554489230596245, 31.525109459989388, 57.16281922464213, 44.08050738932008, 14.684956192885803, 2.1866330685079025,
    -0.1402560791713545, -0.03504246268278482, -0.0008574567851546854,
)  # fmt: skip
_UNDER1 = (
    1.0, 15.779988325646675, 45.39076351288792, 41.3172038254672, 15.04253856929075, 2.504649462083094,
    -0.14218292285478779, -0.03808064076915783, -0.0009332594808954574,
)  # fmt: skip
_OVER2 = (
    3.2377489177694603, 6.915228890689842, 3.9388102529247444, 1.3330346081580755, 0.20148538954917908,
    0.012371663481782003, 0.00030158155350823543, 2.6580697468673755e-06, 6.239745391849833e-09,
)  # fmt: skip
_UNDER2 = (
    1.0, 6.02427039364742, 3.6798356385616087, 1.3770209948908132, 0.21623699359449663, 0.013420400608854318,
    0.00032801446468212774, 2.8924786474538068e-06, 6.790194080099813e-09,
)  # fmt: skip


def ndtri(p: Num) -> Num:
    """x of which the normal distribution is p, by the quotients of the Cephes library; NaN outside of [0, 1]."""
    edge = 0.13533528323661269189  # exp(-2)
    upper = p > 1.0 - edge
    tail = select(upper, 1.0 - p, p)
    y = tail - 0.5
    square = y * y
    middle = (y + y * square * leading_first(square, _OVER0) / leading_first(square, _UNDER0)) * pymath.sqrt(2 * pymath.pi)
    x = sqrt(log(tail) * -2.0)
    z = 1.0 / x
    near = leading_first(z, _OVER1) / leading_first(z, _UNDER1)
    far = leading_first(z, _OVER2) / leading_first(z, _UNDER2)
    x = x - log(x) / x - z * select(x < 8.0, near, far)
    x = select(tail > edge, middle, select(upper, x, -x))
    x = select(p.equals(0.0), p.like(-pymath.inf), x)
    return select(p.equals(1.0), p.like(pymath.inf), x)
