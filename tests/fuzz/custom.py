"""Ops that a compiler does not know: they keep what they are given, write to it, or give it back.

What they keep is looked at again after the call: memory that is used for something else in between shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LOG: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
"""Number in the program -> what was kept, and a copy of it from then. An op whose result nobody uses may be left out."""


def _keep(number: int, x: torch.Tensor) -> None:
    LOG[number] = (x.detach(), x.detach().clone())


@torch.library.custom_op("mlirc_fuzz::keep", mutates_args=())
def keep(x: torch.Tensor, number: int) -> torch.Tensor:
    """A copy of x; keeps x."""
    _keep(number, x)
    return x.clone()


@torch.library.custom_op("mlirc_fuzz::keep_view", mutates_args=())
def keep_view(x: torch.Tensor, y: torch.Tensor, number: int) -> torch.Tensor:
    """A copy of x; keeps a view of y."""
    _keep(number, y.detach()[..., 1:].mT)
    return x.clone()


@torch.library.custom_op("mlirc_fuzz::keep_result", mutates_args=())
def keep_result(x: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two results, of which it keeps the second."""
    both = x.clone(), torch.empty_like(x).copy_(x.flip(0))
    _keep(number, both[1])
    return both


@torch.library.custom_op("mlirc_fuzz::double", mutates_args=("x",))
def double(x: torch.Tensor) -> None:
    x.mul_(2)


@torch.library.custom_op("mlirc_fuzz::add_into", mutates_args=("out",))
def add_into(x: torch.Tensor, out: torch.Tensor) -> None:
    out.add_(x)


@torch.library.custom_op("mlirc_fuzz::take_out", mutates_args=("x",))
def take_out(x: torch.Tensor, number: int) -> torch.Tensor:
    """What x was before it is all ones; keeps x."""
    out = x.clone()
    x.fill_(1)
    _keep(number, x)
    return out


@torch.library.custom_op("mlirc_fuzz::exchange", mutates_args=("x", "y"))
def exchange(x: torch.Tensor, y: torch.Tensor) -> None:
    z = x.clone()
    x.copy_(y)
    y.copy_(z)


_LIBRARY = torch.library.Library("mlirc_fuzz", "FRAGMENT")
_LIBRARY.define("same(Tensor x) -> Tensor")
_LIBRARY.impl("same", lambda x: x, "CompositeExplicitAutograd")
same: Callable[..., Any] = torch.ops.mlirc_fuzz.same
"""Gives back its argument, and its schema does not say so: for arguments and results that nobody else has."""

keep.register_fake(lambda x, number: torch.empty_like(x))
keep_view.register_fake(lambda x, y, number: torch.empty_like(x))
keep_result.register_fake(lambda x, number: (torch.empty_like(x), torch.empty_like(x)))
take_out.register_fake(lambda x, number: torch.empty_like(x))
torch.library.register_fake("mlirc_fuzz::same", lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype), lib=_LIBRARY)

torch.library.register_autograd("mlirc_fuzz::same", lambda ctx, g: g, lib=_LIBRARY)
keep.register_autograd(lambda ctx, g: (g, None))
keep_view.register_autograd(lambda ctx, g: (g, None, None))
keep_result.register_autograd(lambda ctx, g, h: (g + h.flip(0), None))
