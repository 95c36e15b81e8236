"""Random weights that count: a fresh model has norms, biases and layer scales that are constant, and hide mistakes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


@torch.no_grad()
def redraw(module: nn.Module, args: tuple = (), kwargs: dict[str, Any] | None = None) -> nn.Module:
    """Redraw every constant parameter of `module` in place, and its batch norms' running statistics; return it.

    Ones (gains) become U(0.8, 1.2), other constants of up to one non-unit dimension that are not called a bias (layer
    scales, which start near 0) become U(0.3, 0.6), everything else N(0, 0.05). Running statistics are taken from one
    call on `args` and `kwargs`, so that activations keep their size through the depth of the network. Leaves the module in eval mode.
    """
    module.eval()
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point() or parameter.numel() == 0 or parameter.max() - parameter.min() > 1e-4:
            continue
        if (parameter - 1).abs().max() < 1e-3:
            parameter.uniform_(0.8, 1.2)
        elif parameter.squeeze().dim() <= 1 and not any(word in name.rsplit(".", 1)[-1] for word in ("bias", "token", "pos")):
            parameter.uniform_(0.3, 0.6)
        else:
            parameter.normal_(0, 0.05)

    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is not None]
    hooks = [norm.register_forward_pre_hook(_take_statistics) for norm in norms]
    if hooks:
        module(*args, **(kwargs or {}))
        for hook in hooks:
            hook.remove()
        module.train().eval()  # modules that keep what they computed from weights drop it when the mode changes
    return module


def _take_statistics(norm: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """Set running statistics to those of the input, which the norm then uses. One value per channel has none."""
    values = inputs[0].transpose(0, 1).flatten(1)
    if values.shape[1] < 2:
        return
    variance = values.var(1)
    norm.running_mean.copy_(values.mean(1))
    # A dead channel would be divided by the square root of eps, and rounding errors in it blown up.
    norm.running_var.copy_(variance.clamp_min(0.1 * variance.mean().item() + 1e-5))
