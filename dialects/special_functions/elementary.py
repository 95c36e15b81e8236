"""Ops of the math dialect on `Num`, and series."""

from __future__ import annotations

from collections.abc import Sequence

from ..math_expansions.num import Num, fma
from ..mlir import math


def exp(x: Num) -> Num:
    return Num(math.exp(x.value))


def log(x: Num) -> Num:
    return Num(math.log(x.value))


def sin(x: Num) -> Num:
    return Num(math.sin(x.value))


def cos(x: Num) -> Num:
    return Num(math.cos(x.value))


def tan(x: Num) -> Num:
    return Num(math.tan(x.value))


def erf(x: Num) -> Num:
    return Num(math.erf(x.value))


def leading_first(x: Num, coefficients: Sequence[float]) -> Num:
    """A polynomial, the coefficient of the highest power first."""
    result = x.like(coefficients[0])
    for c in coefficients[1:]:
        result = fma(result, x, c)
    return result


def chebyshev(x: Num, coefficients: Sequence[float]) -> Num:
    """c[n-1]/2 + c[n-2] T1(x/2) + ... for x in [-2, 2], by Clenshaw's recurrence (the form of Cephes' chbevl)."""
    b0, b1, b2 = x.like(coefficients[0]), x.like(0.0), x.like(0.0)
    for c in coefficients[1:]:
        b0, b1, b2 = fma(x, b0, c - b1), b0, b1
    return (b0 - b2) * 0.5
