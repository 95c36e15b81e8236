"""The floating-point formats by their numbers, and errors in units in the last place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

LONG = np.longdouble
"""What references are computed in: 64 bits of mantissa on x86."""


@dataclass(frozen=True)
class Format:
    """A binary format: its torch dtype, explicit mantissa bits, smallest normal exponent and largest finite number."""

    name: str
    dtype: torch.dtype
    mantissa: int
    lowest_exponent: int
    largest: float

    def __str__(self) -> str:
        return self.name

    def to_long(self, x: torch.Tensor) -> np.ndarray:
        """The values of a tensor of this dtype, exactly."""
        with np.errstate(invalid="ignore"):  # signalling NaN
            return (x if self.dtype == torch.float64 else x.float()).numpy().astype(LONG)

    def unit(self, exact: np.ndarray) -> np.ndarray:
        """The unit in the last place at `exact`: of subnormals that of the smallest normal number."""
        _, exponent = np.frexp(np.where(np.isfinite(exact), exact, 0))
        exponent = np.where(exact == 0, self.lowest_exponent, exponent - 1)
        return np.ldexp(LONG(1), np.maximum(exponent, self.lowest_exponent) - self.mantissa)

    def round(self, exact: np.ndarray) -> np.ndarray:
        """The numbers of this format nearest to `exact`, halves to even; beyond the largest, infinity."""
        unit = self.unit(exact)
        with np.errstate(invalid="ignore", over="ignore"):
            rounded = np.where(np.isfinite(exact), np.rint(exact / unit) * unit, exact)
        return np.where(np.abs(rounded) > self.largest, np.copysign(LONG(np.inf), rounded), np.copysign(rounded, exact))


F64 = Format("f64", torch.float64, 52, -1022, float(np.finfo(np.float64).max))
F32 = Format("f32", torch.float32, 23, -126, float(np.finfo(np.float32).max))
F16 = Format("f16", torch.float16, 10, -14, 65504.0)
BF16 = Format("bf16", torch.bfloat16, 7, -126, float(torch.finfo(torch.bfloat16).max))
FORMATS = {f.name: f for f in (F64, F32, F16, BF16)}


def same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Equal, with the sign of zeros; NaN is equal to NaN."""
    return ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))


def ulps(form: Format, got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Errors in units in the last place; infinite where a NaN, an infinity or the sign of a true zero is wrong.

    An infinite result that came by overflow counts as the power of two after the largest number, and so does an exact result
    beyond that.
    """
    beyond = LONG(2.0) ** (2 - form.lowest_exponent)
    finite = np.isfinite(exact)
    exact = np.where(finite, np.clip(exact, -beyond, beyond), exact)
    overflown = np.isinf(got) & finite & (np.abs(exact) > form.largest / 2)
    value = np.where(overflown, np.copysign(beyond, got), got)
    with np.errstate(invalid="ignore"):
        error = np.abs(value - exact) / form.unit(exact)
    error = np.where(np.isfinite(value) & finite, error, np.where(same(got, exact), 0, np.inf))
    return np.where((exact == 0) & (got == 0) & ~same(got, exact), np.inf, error)
