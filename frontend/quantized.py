"""The ops that `torch.ao.quantization` and exported quantised programs use, taken apart as their reference code is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

_MODULE = "torch.ao.quantization.fx._decomposed"


def _quantize_per_tensor(
    x: torch.Tensor, scale: torch.Tensor | float, zero_point: torch.Tensor | int, low: int, high: int, dtype: torch.dtype
) -> torch.Tensor:
    """The reference asks tensors for their numbers. What is clamped fits 32 bits, which all vectors convert to; it converts through 64."""
    scale = scale.to(torch.float32) if isinstance(scale, torch.Tensor) else scale
    rounded = torch.clamp(torch.round(x.to(torch.float32) * (1.0 / scale)) + zero_point, low, high)
    return rounded.to(torch.int32).to(dtype) if dtype.itemsize == 1 else rounded.to(dtype)


def _dequantize_per_tensor(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, low: int, high: int, dtype: torch.dtype,
    *, out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    out_dtype = out_dtype or torch.float32
    return ((x.to(out_dtype) - zero_point) * scale).to(out_dtype)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Of the ops whose library has been loaded: nobody else can have them in a graph."""
    if _MODULE not in sys.modules:
        return {}
    reference, ops = sys.modules[_MODULE], torch.ops.quantized_decomposed
    names = ("dequantize_per_tensor", "quantize_per_channel", "dequantize_per_channel")
    out: dict[Any, Callable[..., Any]] = {getattr(ops, n).default: getattr(reference, n) for n in names}
    out[ops.quantize_per_tensor.default] = out[ops.quantize_per_tensor.tensor] = _quantize_per_tensor
    out[ops.dequantize_per_tensor.tensor] = _dequantize_per_tensor
    return out
