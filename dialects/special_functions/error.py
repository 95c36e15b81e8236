"""The scaled complement of erf, and its inverse."""

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
