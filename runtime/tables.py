"""Tables of functions of a bf16, which kernels read instead of computing them (`passes.tabulate`): one of each in a process."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .abi import BF16_TABLE
from .expressions import MARK, evaluate

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_tables: dict[str, NDArray[np.float32]] = {}


def bf16_table(symbol: str) -> int:
    """The address of the table with this symbol, 0 if there is none: f32[65536], by the bits of a bf16, the nearest bf16 to its function."""
    name = symbol.removeprefix(BF16_TABLE)
    if name == symbol:
        return 0
    if name not in _tables:
        table = _table(name)
        if table is None:
            return 0
        _tables.setdefault(name, table)  # of two threads, one provides it
    return int(_tables[name].ctypes.data)


def _table(name: str) -> NDArray[np.float32] | None:
    arguments = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):
        if name.startswith(MARK):
            return evaluate(name, arguments, {**_FUNCTIONS, "exp": np.exp}, nearest_bf16)
        return nearest_bf16(_FUNCTIONS[name](arguments.astype(np.float64))) if name in _FUNCTIONS else None


def nearest_bf16(x: NDArray[np.float64]) -> NDArray[np.float32]:
    """Each number, of any shape, as the nearest bf16, ties to even, rounded once; a NaN has no payload."""
    last_bit = np.maximum(np.frexp(x)[1] - 8, -133)  # of 8, or fewer of a subnormal
    rounded = np.ldexp(np.rint(np.ldexp(x, -last_bit)), last_bit)
    with np.errstate(over="ignore"):
        return np.where(np.isnan(x), np.float32(np.nan), rounded.astype(np.float32))


def _each(function: Callable[[float], float]) -> Callable[[Floats], Floats]:
    """A function of the standard library, which numpy has not."""
    return lambda x: np.fromiter(map(function, x.tolist()), np.float64, x.size)


def _gelu_tanh(x: Floats) -> Floats:
    return x / (1 + np.exp(x * (1 + 0.044715 * x * x) * -math.sqrt(8 / math.pi)))


_FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {
    "gelu": lambda x: x * 0.5 * _each(math.erfc)(x * -math.sqrt(0.5)),
    "gelu_tanh": _gelu_tanh,
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "erf": _each(math.erf),
}
"""In f64, where none of them cancels. At infinities as in torch, whose gelu, silu and mish of -inf are NaN."""
