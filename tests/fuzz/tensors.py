"""Input tensors of fuzzed programs, from a few words that a reproducer can spell out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

KINDS = ("normal", "small integers", "positive", "special")


def tensor(shape: Sequence[int], dtype: torch.dtype, seed: int = 0, kind: str = "normal") -> torch.Tensor:
    """A contiguous tensor that `seed` decides. Kinds, for floats and integers:

    normal          N(0, 1); -20 to 20 (u8: 0 to 20)
    small integers  -3 to 3 (u8: 0 to 3): ties, zeros, divisors that are zero
    positive        0.5 to 1.5; 1 to 9
    special         N(0, 1) with zeros of both signs, infinities and NaN; the ends of the type's range and their neighbours
    """
    g = torch.Generator().manual_seed(seed)
    shape = tuple(shape)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=g).bool()
    if not dtype.is_floating_point:
        ends = torch.iinfo(dtype)
        low, high = {"normal": (-20, 20), "small integers": (-3, 3), "positive": (1, 9), "special": (-20, 20)}[kind]
        x = torch.randint(max(low, ends.min), high + 1, shape, generator=g).to(dtype)
        some = [ends.min, ends.max, ends.max - 1, 0]
        return _mix(x, torch.tensor(some, dtype=dtype), g) if kind == "special" else x
    if kind == "small integers":
        return torch.randint(-3, 4, shape, generator=g).to(dtype)
    x = torch.rand(shape, generator=g, dtype=torch.float64) + 0.5 if kind == "positive" else torch.randn(shape, generator=g, dtype=torch.float64)
    x = x.to(dtype)
    some = [0.0, -0.0, float("inf"), float("-inf"), float("nan")]
    return _mix(x, torch.tensor(some, dtype=dtype), g) if kind == "special" else x


def _mix(x: torch.Tensor, special: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    """`x` with about a third of its elements from `special`."""
    chosen = special[torch.randint(0, len(special), x.shape, generator=g)]
    return torch.where(torch.rand(x.shape, generator=g) < 0.3, chosen, x)
