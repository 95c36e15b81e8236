"""Is a backend's output right: PyTorch's own rule, `torch._dynamo.utils.same` against an fp64 run of the same weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 1e-2}


def cast(tree: Any, dtype: torch.dtype) -> Any:
    """Fresh copies of all tensors of a pytree, the floating-point ones in `dtype`. Aliases among them are not kept."""

    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        requires_grad = x.requires_grad
        x = x.detach().clone()
        return (x.to(dtype) if x.is_floating_point() else x).requires_grad_(requires_grad)

    return pytree.tree_map(one, tree)


def tensors(output: Any) -> list[torch.Tensor]:
    """The tensors of a model's output, in order."""
    if hasattr(output, "to_tuple"):
        output = output.to_tuple()
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def reference(
    module: torch.nn.Module,
    args: tuple,
    kwargs: dict[str, Any],
    precision: torch.dtype = torch.float64,
    work: Callable[..., list[torch.Tensor]] | None = None,
) -> list[torch.Tensor]:
    """The outputs of a copy of `module` in fp64, or another precision, or what `work(module, call, args, kwargs)` gives, such as
    `training.step`; floating-point ones are fp64 in any case."""
    own = copy.deepcopy(module).to(precision)
    args, kwargs = cast((args, kwargs), precision)
    results = work(own, own, args, kwargs) if work else tensors(own(*args, **kwargs))
    return [x.double() if x.is_floating_point() else x for x in results]


def same(eager: list[torch.Tensor], got: list[torch.Tensor], fp64: list[torch.Tensor] | None, dtype: torch.dtype) -> bool:
    """Whether `got` is as near to `fp64` as `eager` is, or within the tolerance of `dtype` of it.

    Without an fp64 run, within that tolerance of `eager`. NaN equals NaN.
    """
    from torch._dynamo.utils import same as dynamo_same

    if len(eager) != len(got) or (fp64 is not None and len(fp64) != len(eager)):
        return False
    return all(
        a.shape == b.shape and a.dtype == b.dtype and dynamo_same(a, b, c, tol=TOLERANCE[dtype], equal_nan=True)
        for a, b, c in zip(eager, got, fp64 or [None] * len(eager))
    )


def relative_errors(eager: list[torch.Tensor], got: list[torch.Tensor], least: float = 0.0) -> list[float]:
    """For each output its largest difference over its largest magnitude, of finite numbers, or `least` if that is more.

    Infinite where a number is finite in one of the two only, or infinite with another sign; 0 where shapes differ.
    """
    errors = []
    for a, b in zip(eager, got):
        if not a.numel() or a.shape != b.shape:
            errors.append(0.0)
            continue
        a, b = a.detach().double(), b.detach().double()
        equal = (a == b) | (a.isnan() & b.isnan())
        finite = a.isfinite()
        apart = torch.where(equal, 0.0, torch.where(finite & b.isfinite(), (a - b).abs(), torch.inf))
        size = torch.where(finite, a.abs(), 0.0).max()
        errors.append((apart.max() / size.clamp_min(max(least, 1e-30))).item())
    return errors


def relative_error(eager: list[torch.Tensor], got: list[torch.Tensor], least: float = 0.0) -> float:
    """The largest of `relative_errors`."""
    return max(relative_errors(eager, got, least), default=0.0)
