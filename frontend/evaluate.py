"""Numbers that Python computes at run time: sizes, strides and scalars as expressions of a graph's symbols."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter


def evaluator(exprs: Sequence[Any], symbols: Sequence[sympy.Symbol]) -> Callable[[Sequence[int]], list[Any]]:
    """A function from the values of `symbols` to those of torch's expressions `exprs` (or plain numbers)."""
    printer = PythonPrinter()
    code = ", ".join(printer.doprint(e) if isinstance(e, sympy.Basic) else repr(e) for e in exprs)
    arguments = ", ".join(str(s) for s in symbols)
    f = eval(f"lambda {arguments}: [{code}]", {"math": math, "torch": torch})  # noqa: S307 - torch's own text
    return lambda values: f(*values)
