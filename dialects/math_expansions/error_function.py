"""erf and erfc (f32; see `passes.expand_math` for f64)."""

from __future__ import annotations

import math as pymath

from .exponential import exp2_in_f64, expm1_reduced, split
from .num import Num, copysign, fma, polynomial, select

# (-log(erfc(t)) - t) / t on 0 < t < 3.95; minimax in the relative error of erf that it causes, 4.3e-9.
_LOG_ERFC = (
    0.128379166, 0.636619568, 0.102776304, -0.0191478301, -0.000169467152, 0.00167560903, -0.000637306948,
    0.000118839234, -9.38471021e-06,
)  # fmt: skip


def erf(x: Num) -> Num:
    """-expm1(log(erfc(|x|))), with the logarithm as one polynomial: one formula from 0 to where erf has rounded to 1."""
    t = abs(x).at_most(3.95)
    q = fma(t, polynomial(t, _LOG_ERFC), t)
    k, scale = split(q, -1 / pymath.log(2))
    r = fma(k, -pymath.log(2), -q)
    return copysign(fma(expm1_reduced(r), -scale, 1.0 - scale), x)


# log(erfc(t)) + t^2 - log(w) in w = 1 / (1 + t / 2), for 0 < t < 10.25; minimax, error 2.6e-9.
_LOG_SCALED_ERFC = (
    -1.265543105528377, 1.0008806826511056, 0.36415271720075093, 0.1593697537598982, -0.4200576526850063,
    0.8063380271416815, -1.8100030104345466, 1.8146494747644528, -0.5091025684265778, -0.41188980211925763,
    0.34795722812923385, -0.07675174707660858,
)  # fmt: skip


def erfc(x: Num) -> Num:
    """w exp(P(w) - x^2) in f64 (the form is that of Numerical Recipes' erfcc), and 2 minus that below zero."""
    x64 = x.to_f64()
    t = abs(x64).at_most(10.25)
    w = 1.0 / fma(t, 0.5, 1.0)
    y = w * exp2_in_f64(fma(-t, t, polynomial(w, _LOG_SCALED_ERFC)) * (1 / pymath.log(2)))
    return select(x64 < 0.0, 2.0 - y, y).to_f32()
