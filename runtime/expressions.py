"""Expressions of one bf16, spelled so that they can be part of a symbol: what a table holds that a kernel asks for.

    c3f000000__mul0v1__r2         x * 0.5, rounded to bf16

Steps are numbered from 1 on, and 0 is the argument, widened to f32. `c` is a constant (the bits of an f32), `r` rounds to bf16, all
others compute in f32, as kernels do. No import of torch: workers spell them, and the process that loads a kernel evaluates them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MARK = "of__"
"""How the name of such a table begins."""

BINARY: dict[str, Callable[[Any, Any], Any]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
UNARY: dict[str, Callable[[Any], Any]] = {"neg": np.negative, "abs": np.abs, "sqrt": np.sqrt}
"""Exact in f32, or rounded once."""

_STEP = re.compile(r"(?P<name>[a-z_]+)(?P<first>\d+)(?:v(?P<second>\d+))?")


def spelled(steps: list[str]) -> str:
    """The name of a table with this list of steps."""
    return MARK + "__".join(steps)


def evaluate(
    name: str,
    arguments: NDArray[np.float32],
    functions: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]],
    nearest_bf16: Callable[[NDArray[np.float64]], NDArray[np.float32]],
) -> NDArray[np.float32] | None:
    """What the expression makes of f32 arguments; None for what is no spelling of one. `functions`, in f64, are rounded to f32."""
    values = [arguments]
    for step in name.removeprefix(MARK).split("__"):
        if re.fullmatch("c[0-9a-f]{8}", step):
            values.append(np.full_like(arguments, np.uint32(int(step[1:], 16)).view(np.float32)))
            continue
        parts = _STEP.fullmatch(step)
        if parts is None or any(int(n) >= len(values) for n in parts.group("first", "second") if n is not None):
            return None
        x, operation = values[int(parts["first"])], parts["name"]
        if operation in BINARY and parts["second"] is not None:
            values.append(BINARY[operation](x, values[int(parts["second"])]))
        elif operation in UNARY:
            values.append(UNARY[operation](x))
        elif operation == "r":
            values.append(nearest_bf16(x.astype(np.float64)))
        elif operation in functions:
            values.append(functions[operation](x.astype(np.float64)).astype(np.float32))
        else:
            return None
    return values[-1]
