"""round (halves away from zero) and clampf: LLVM would call a library, or knows no such op."""

from __future__ import annotations

from .num import F32, Num, copysign, select, trunc


def round_half_away(x: Num) -> Num:
    """The nearest integer; halves away from zero."""
    below_half = 0.5 - 2.0 ** (-25 if x.format is F32 else -54)  # with 0.5 itself, 0.49999997 would round up
    return trunc(x + copysign(x.like(below_half), x))


def clampf(x: Num, low: Num, high: Num) -> Num:
    """min(max(x, low), high); NaN stays NaN."""
    x = select(x < low, low, x)
    return select(x > high, high, x)
