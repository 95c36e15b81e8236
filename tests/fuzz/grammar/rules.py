"""The table of rules, and what several of them need."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..choices import Choices
from ..program import Program, Value

Rule = Callable[[Program, Choices], bool]
RULES: list[Rule] = []
"""A rule occurs as often as its weight; the simplest ones come first."""

FLOATS = ("torch.float32", "torch.float64", "torch.bfloat16", "torch.float16")
INTEGERS = ("torch.int64", "torch.int32", "torch.int16", "torch.int8", "torch.uint8")
DTYPES = ("torch.float32", "torch.bfloat16", "torch.int64", "torch.float64", "torch.int32", "torch.float16", "torch.bool", "torch.int8", "torch.uint8", "torch.int16")


def rule(weight: int = 1) -> Callable[[Rule], Rule]:
    def register(f: Rule) -> Rule:
        RULES.extend([f] * weight)
        return f

    return register


def floating(v: Value) -> bool:
    return v.floating


def number(c: Choices, like: Value) -> str:
    """A Python number that fits a tensor of this type."""
    if like.floating:
        return c.pick(("2.0", "0.5", "-1.5", "3", "1", "0", "0.3333", "-1", "True"))
    return c.pick(("2", "1", "3", "-1", "0", "7", "-5", "1.5", "True"))


def axis(c: Choices, v: Value) -> int:
    """A dimension of v, counted from either end; 0 for a scalar."""
    d = c.below(v.dim) if v.dim else 0
    return d - v.dim if v.dim and c.chance(3) else d


def axes(c: Choices, v: Value) -> list[int]:
    """One or more dimensions of v."""
    chosen = [d for d in range(v.dim) if c.chance(2)]
    return chosen or ([c.below(v.dim)] if v.dim else [])


def order(c: Choices, n: int) -> list[int]:
    """A permutation of range(n)."""
    rest = list(range(n))
    return [rest.pop(-1 - c.below(len(rest))) for _ in range(n)]


def size(c: Choices, v: Value, d: int) -> str:
    """The size of a dimension, as a number where it is one in every set."""
    if v.fixed(d) and not c.chance(4):
        return str(v.size(d))
    return f"{v}.shape[{d}]"


MOST_PARTS = 100
"""Of one dimension, each a value of its own: torch takes minutes to trace thousands."""


def few(v: Value, d: int) -> str:
    """v, or as much of it as has no more than MOST_PARTS parts along d."""
    if max(t.shape[d] for t in v.tensors) <= MOST_PARTS:
        return str(v)
    return f"{v}.narrow({d}, 0, {min(MOST_PARTS, v.size(d))})"


def broadcasts(a: Value, b: Value) -> bool:
    for x, y in zip(a.tensors, b.tensors):
        try:
            torch.broadcast_shapes(x.shape, y.shape)
        except RuntimeError:
            return False
    return True


def partner(p: Program, c: Choices, v: Value, where: Callable[[Value], bool] | None = None) -> str:
    """An operand that broadcasts with v: another value, a part of v, or v itself."""
    others = [w for w in p.values if w is not v and broadcasts(v, w) and (where is None or where(w))]
    if others and not c.chance(4):
        return str(others[-1 - c.below(len(others))])
    if v.dim and c.chance(2):
        d = axis(c, v)
        return c.pick((f"{v}.flip({d})", f"{v}.narrow({d}, 0, 1)", f"{v}.roll(1, {d})", f"{v}.amax({d}, keepdim=True)"))
    return str(v)
