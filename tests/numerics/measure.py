"""Measuring a function in a format: the worst error, where it is, and how many results are the nearest number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from . import points
from .formats import F32, F64, FORMATS, Format, same, ulps
from .functions import BINARY, UNARY, Function

OPTIONS = {"strict": True, "fallback": False}
"""All of it has to be compiled."""

FULL, SAMPLE = 1, 16
"""Steps through the points of f32 and f64: for the table, and for a quick run."""


@dataclass(frozen=True)
class Row:
    """A line of the table. `worst` in ulp, `at` the arguments there, `nearest` the share of correctly rounded results."""

    function: str
    format: str
    worst: float
    at: tuple[float, ...]
    nearest: float
    eager: float


def cases() -> list[tuple[Function, Format]]:
    """What the table has rows for."""
    return [(function, form) for form in FORMATS.values() for function in (*UNARY.values(), *BINARY.values())]


def arguments(function: Function, form: Format, step: int) -> tuple[torch.Tensor, ...]:
    """Every `step`-th of the points for a function: all numbers of f16 and bf16, a million of f32, 100,000 of f64."""
    count = 100_000 if form is F64 else 1_000_000
    if function.name in BINARY:
        return tuple(x[points.kept(len(x), step)] for x in points.pairs(form, count))
    if form in (F32, F64):
        x = points.spread(form, count)
        return (x[points.kept(len(x), step)],)
    return (points.every(form),)


def compiled(function: Function, *inputs: torch.Tensor, target: str = "host") -> torch.Tensor:
    """What the function compiled for a target gives."""
    torch._dynamo.reset()
    return torch.compile(function.call, backend="mlirc", dynamic=False, options={**OPTIONS, "target": target})(*inputs)


def measure(function: Function, form: Format, inputs: tuple[torch.Tensor, ...], eager: bool = True, target: str = "host") -> Row:
    """The row of a function of `inputs`, all in `form`. Without `eager`, that column is NaN."""
    values = [form.to_long(x) for x in inputs]
    with np.errstate(all="ignore"):
        exact = function.reference(*values)
    got = form.to_long(compiled(function, *inputs, target=target))
    error = ulps(form, got, exact)
    worst = int(np.argmax(error))
    # The sign of a zero counts where the exact result is zero, and `ulps` sees it there.
    nearest = float(np.mean(same(np.abs(got), np.abs(form.round(exact))) & (error < np.inf)))
    theirs = float(ulps(form, form.to_long(function.call(*inputs)), exact).max()) if eager else float("nan")
    return Row(function.name, form.name, float(error[worst]), tuple(float(v[worst]) for v in values), nearest, theirs)
