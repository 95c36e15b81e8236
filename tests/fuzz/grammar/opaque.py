"""Ops of `custom`: the compiler calls them in the middle of a graph."""

from __future__ import annotations

from ..choices import Choices
from ..program import Program
from .rules import partner, rule


@rule(3)
def kept_by_op(p: Program, c: Choices) -> bool:
    v = p.value(c)
    n = len(p.lines)
    x = c.pick(("{v}", "{v} * 2", "{v}.mT" if v.dim > 1 else "{v}", "({v} + 1).flatten()", "torch.relu({v})", "{v}[1:]" if v.dim else "{v}")).format(v=v)
    if c.chance(4):
        return p.add(f"custom.keep_result({x}, {n})", names=2)
    if c.chance(3) and v.dim >= 2:
        return p.add(f"custom.keep_view({x}, {c.pick((str(v), f'{v} + 1', f'{partner(p, c, v)} * 1'))}, {n})")
    return p.add(f"custom.keep({x}, {n})")


@rule(2)
def written_by_op(p: Program, c: Choices) -> bool:
    v = p.value(c)
    target = c.pick(("{v}", "{v}[1:]" if v.dim else "{v}", "{v}.mT" if v.dim > 1 else "{v}", "{v}[..., ::2]" if v.dim else "{v}", "{v}.view(-1)")).format(v=v)
    w = c.pick([str(w) for w in p.values if w.dtype == v.dtype and all(a.shape == b.shape for a, b in zip(v.tensors, w.tensors))])
    if c.chance(3):
        return p.add(f"custom.take_out({target}, {len(p.lines)})")
    return p.change(c.pick((f"custom.double({target})", f"custom.add_into({w}, {v})", f"custom.exchange({v}, {w})" if w != v.name else f"custom.double({v})", f"custom.add_into({v} + 1, {w})")))


@rule(1)
def given_back(p: Program, c: Choices) -> bool:
    """In an expression: whether the result shares memory with the argument is nobody's business."""
    v = p.value(c)
    return p.add(f"custom.same({v} * {c.pick((2, 3))}) + 1") or p.add(f"custom.same({v}.clone()).logical_not()")
