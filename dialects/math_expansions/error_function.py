"""erf, and erfc of f32 (see `passes.expand_math` for that of f64)."""

from __future__ import annotations

import math as pymath

from .exponential import LN2, exp2_in_f64, expm1_reduced, split
from .num import F32, Num, copysign, fma, polynomial, select

# (-log(erfc(t)) - t) / t on 0 < t < 3.95; minimax in the relative error of erf that it causes, 4.3e-9.
_LOG_ERFC = (
    0.128379166, 0.636619568, 0.102776304, -0.0191478301, -0.000169467152, 0.00167560903, -0.000637306948,
    0.000118839234, -9.38471021e-06,
)  # fmt: skip


# f64: log(erfc(t)) on 1 < t < 6, of which it takes 1.1e-16 of erf, and (erf(t) - t) / t in t^2 on 0 < t < 1, 1.4e-17.
_LOG_ERFC_F64 = (
    -1.8337121481369084e-06, -1.1283616726514498, 0.3633026595341481 - 1, -0.10256042051450194, 0.018727746481430583,
    0.0007626610722082658, -0.002273277164249932, 0.0010508804666547146, -0.00030688667527362015, 6.255335971947507e-05,
    -8.53901398202041e-06, 6.058568115992508e-07, 2.2031581595382745e-08, -9.917520895823296e-09, 9.47229012966109e-10,
    -3.3905688623255435e-11,
)  # fmt: skip
_ERF_F64 = (
    0.12837916709551256, -0.37612638903183343, 0.11283791670936949, -0.02686617064195863, 0.005223977596729056,
    -0.0008548325483890304, 0.00012055280408504905, -1.4924462250530992e-05, 1.6444080766433943e-06,
    -1.6183198807336255e-07, 1.361201580705918e-08, -7.596540311624846e-10,
)  # fmt: skip


def erf(x: Num) -> Num:
    """-expm1(log(erfc(|x|))), with the logarithm as one polynomial; for f64, a polynomial of its own below 1."""
    if x.format is F32:
        # From 0 to where erf has rounded to 1, and no other formula near zero.
        t = abs(x).at_most(3.95)
        return copysign(_minus_expm1(-fma(t, polynomial(t, _LOG_ERFC), t)), x)
    t = abs(x).at_most(6.0)
    near_zero = fma(x, polynomial(x * x, _ERF_F64), x)
    return select(t < 1.0, near_zero, copysign(_minus_expm1(polynomial(t, _LOG_ERFC_F64)), x))


def _minus_expm1(x: Num) -> Num:
    """1 - e^x for -40 < x <= 0; absolute error."""
    hi, lo = LN2[x.format.name]
    k, scale = split(x, 1 / pymath.log(2))
    r = fma(k, -(hi + lo), x)
    return fma(expm1_reduced(r), -scale, 1.0 - scale)


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
