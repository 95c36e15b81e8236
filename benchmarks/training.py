"""Steps of training a whole model: forward, a loss, backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from . import verdict

NOISE = 1e-6
"""Of the largest number in any gradient."""


def prepare(module: nn.Module) -> nn.Module:
    """The module in training mode, with nothing dropped at random, so that steps can be compared."""
    module.train()
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for holder in (part, getattr(part, "config", None)):
            for name, value in list(vars(holder).items()) if holder is not None else []:
                if "drop" in name and isinstance(value, float):
                    setattr(holder, name, 0.0)
    return module


def step(module: nn.Module, call: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """One step of `module`, which `call` is or runs: the first differentiable output, the gradients of the parameters, and the buffers.

    The loss is a sum of that output's elements with random factors. Raises ValueError where there is none.
    """
    module.zero_grad(set_to_none=True)
    output = next((t for t in verdict.tensors(call(*args, **kwargs)) if t.requires_grad), None)
    if output is None:
        raise ValueError("no output of the model is differentiable: it cannot be trained")
    output.backward(_factors(tuple(output.shape), output.dtype))
    # What the output does not depend on has no gradient in eager mode, and one of zeros where the whole module is one graph.
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters() if p.requires_grad]
    return [output.detach(), *gradients, *(b.detach() for b in module.buffers() if b.is_floating_point())]


def names(module: nn.Module) -> list[str]:
    """What each result of a step is."""
    gradients = [f"the gradient of {n}" for n, p in module.named_parameters() if p.requires_grad]
    return ["the output", *gradients, *(f"the buffer {n}" for n, b in module.named_buffers() if b.is_floating_point())]


def least_magnitude(module: nn.Module, results: list[torch.Tensor]) -> float:
    """What errors of the `results` of a step are relative to at least: gradients that are zero but for rounding, as those of biases before
    a batch norm, have none of their own."""
    of = [r.detach() for n, r in zip(names(module), results) if n.startswith("the gradient of") and r.numel()]
    return NOISE * max((torch.where(r.isfinite(), r.abs(), 0.0).max().item() for r in of), default=0.0)


@functools.lru_cache
def _factors(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The same in all dtypes, but for rounding."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
