"""The functions that are measured: what torch calls them, and what they are in long double."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from . import reference as r


@dataclass(frozen=True)
class Function:
    """A function of one or two tensors, and its reference on arrays of long double of their values."""

    name: str
    call: Callable[..., torch.Tensor]
    reference: r.Function
    composed: str = ""
    """Why the errors have no bound: torch defines the function by steps in which something cancels or is rounded."""

    @property
    def target(self) -> float:
        """The largest error in ulp that f32 may have."""
        return float("inf") if self.composed else 4.0 if self.name == "pow" else 2.0


def _table(*rows: tuple[Any, ...]) -> dict[str, Function]:
    return {row[0]: Function(*row) for row in rows}


UNARY = _table(
    ("abs", torch.abs, np.abs),
    ("neg", torch.neg, np.negative),
    ("reciprocal", torch.reciprocal, lambda x: 1 / x),
    ("square", torch.square, np.square),
    ("sqrt", torch.sqrt, np.sqrt),
    ("rsqrt", torch.rsqrt, lambda x: 1 / np.sqrt(x)),
    ("exp", torch.exp, np.exp),
    ("exp2", torch.exp2, np.exp2),
    ("expm1", torch.expm1, np.expm1),
    ("log", torch.log, np.log),
    ("log2", torch.log2, np.log2),
    ("log10", torch.log10, np.log10),
    ("log1p", torch.log1p, np.log1p),
    ("sin", torch.sin, np.sin),
    ("cos", torch.cos, np.cos),
    ("tan", torch.tan, np.tan),
    ("asin", torch.asin, np.arcsin),
    ("acos", torch.acos, np.arccos),
    ("atan", torch.atan, np.arctan),
    ("sinh", torch.sinh, np.sinh),
    ("cosh", torch.cosh, np.cosh),
    ("tanh", torch.tanh, np.tanh),
    ("asinh", torch.asinh, np.arcsinh),
    ("acosh", torch.acosh, np.arccosh),
    ("atanh", torch.atanh, np.arctanh),
    ("erf", torch.erf, r.erf),
    ("erfc", torch.erfc, r.erfc),
    ("sigmoid", torch.sigmoid, r.sigmoid),
    ("logit", torch.logit, r.logit, "log(x / (1 - x)): near 1/2 it cancels"),
    ("sinc", torch.sinc, r.sinc, "sin(pi x) / (pi x): pi x is rounded"),
    ("ndtr", torch.special.ndtr, r.ndtr, "1 + erf(x / sqrt(2)) cancels"),
    ("entr", torch.special.entr, r.entr),
    ("silu", F.silu, r.silu),
    ("mish", F.mish, r.mish),
    ("softplus", F.softplus, r.softplus),
    ("logsigmoid", F.logsigmoid, r.log_sigmoid),
    ("softsign", F.softsign, lambda x: x / (1 + np.abs(x)), "1 + |x| is rounded to the format"),
    ("tanhshrink", F.tanhshrink, r.tanhshrink, "x - tanh(x) cancels"),
    ("gelu", F.gelu, r.gelu),
    ("gelu (tanh)", lambda x: F.gelu(x, approximate="tanh"), r.gelu_tanh),
    ("elu", F.elu, lambda x: np.where(x > 0, x, np.expm1(x))),
    ("celu 1.5", lambda x: F.celu(x, 1.5), lambda x: np.where(x > 0, x, 1.5 * np.expm1(x / 1.5))),
    ("x ** 3", lambda x: x**3, lambda x: x * x * x),
    ("x ** 2.5", lambda x: x**2.5, lambda x: np.power(x, np.longdouble(2.5))),
    # At -0 and -inf ATen has other results in f16 than in the other types.
    ("x ** -0.5", lambda x: x.abs() ** -0.5, lambda x: 1 / np.sqrt(np.abs(x))),
    ("1.5 ** x", lambda x: 1.5**x, lambda x: np.power(np.longdouble(1.5), x)),
    ("round", torch.round, np.rint),
    ("floor", torch.floor, np.floor),
    ("ceil", torch.ceil, np.ceil),
    ("trunc", torch.trunc, np.trunc),
    ("frac", torch.frac, lambda x: x - np.trunc(x)),
)

BINARY = _table(
    ("x / y", torch.div, np.divide),
    ("pow", torch.pow, np.power),
    ("atan2", torch.atan2, np.arctan2),
    ("hypot", torch.hypot, np.hypot),
    ("fmod", torch.fmod, np.fmod),
    ("remainder", torch.remainder, r.remainder),
    ("logaddexp", torch.logaddexp, r.logaddexp, "max + log1p cancels where the result is near zero"),
    ("logaddexp2", torch.logaddexp2, r.logaddexp2, "max + log2 cancels where the result is near zero"),
    ("xlogy", torch.xlogy, r.xlogy),
    ("xlog1py", torch.special.xlog1py, r.xlog1py, "a logarithm, rounded, times x"),
    ("copysign", torch.copysign, np.copysign),
)
