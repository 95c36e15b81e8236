"""The order in which the dims of a (fake) tensor lie in memory, and its sizes and strides as expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .extents import Extent, normal, product, same, without_max
from .imported import TensorSpec


def tensor_strides(value: torch.Tensor) -> tuple[Any, ...]:
    return tuple(value.stride()) if value.layout == torch.strided else ()


def tensor_spec(value: torch.Tensor) -> TensorSpec:
    return TensorSpec(
        tuple(normal(s) for s in value.shape), tuple(normal(s) for s in tensor_strides(value)), value.dtype
    )


def packed(value: torch.Tensor, order: Sequence[int]) -> TensorSpec:
    """Sizes, and the strides of memory without gaps in which dims lie in this order."""
    spec = tensor_spec(value)
    strides: list[Extent] = [1] * len(order)
    for k, d in enumerate(order):
        strides[d] = product([spec.shape[later] for later in order[k + 1 :]])
    return TensorSpec(spec.shape, tuple(strides), spec.dtype)


def hint(x: Any) -> int:
    return x if isinstance(x, int) else x.node.hint if isinstance(x, torch.SymInt) else int(x)


def memory_order(value: torch.Tensor) -> list[int]:
    """Logical dims sorted by falling stride; dims of size one stay where they are."""
    strides = [hint(s) for s in value.stride()]
    moving = [d for d, s in enumerate(value.shape) if not (isinstance(s, int) and s == 1)]
    ranked = iter(sorted(moving, key=lambda d: (-strides[d], d)))
    return [next(ranked) if d in moving else d for d in range(value.dim())]


def dense(sizes: Sequence[Extent], strides: Sequence[Extent]) -> bool:
    """Whether the strides are those of a row-major tensor without gaps."""
    for d in range(len(sizes)):
        if same(sizes[d], 1):
            continue
        # Strides of contiguous tensors have Max(1, s) for a size s; it differs where there are no elements.
        step = product(sizes[d + 1 :])
        if not same(strides[d], step) and not same(normal(without_max(strides[d])), step):
            return False
    return True


def fills(value: torch.Tensor, spec: TensorSpec) -> bool:
    """Whether the tensor has memory for each element, next to each other, but for dims that are broadcast."""
    order = memory_order(value)
    real = [d for d in order if not same(spec.strides[d], 0)]
    return dense([spec.shape[d] for d in real], [spec.strides[d] for d in real])


def inverse(order: Sequence[int]) -> list[int]:
    return [list(order).index(d) for d in range(len(order))]
