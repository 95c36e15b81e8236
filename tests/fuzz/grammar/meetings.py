"""Values that have the same number of elements, or the same sizes in another order, meet: n x m and m x n are not the same."""

from __future__ import annotations

from ..choices import Choices
from ..program import Program, Value
from .rules import FLOATS, order, rule


def matrix(v: Value) -> bool:
    return v.dim >= 2 and v.floating


def twin(p: Program, c: Choices, v: Value) -> Value:
    """Another value with as many elements in each set of sizes, if there is one; v itself otherwise."""
    same = [w for w in p.values if w is not v and all(a.numel() == b.numel() for a, b in zip(v.tensors, w.tensors))]
    others = [w for w in same if any(a.shape != b.shape for a, b in zip(v.tensors, w.tensors))]
    candidates = others if others and not c.chance(3) else same
    return candidates[-1 - c.below(len(candidates))] if candidates else v


@rule(4)
def crossed_products(p: Program, c: Choices) -> bool:
    """A product of all rows with all rows, both ways round."""
    v = p.value(c, lambda v: matrix(v) and v.fixed(v.dim - 1) and (v.dim == 2 or c.chance(3)))
    if v is None and p.dynamic and p.add_input(f"tensor((n0, {1 + c.below(9)}), {c.pick(FLOATS)}, {len(p.inputs)})"):
        v = p.values[-1]
    if v is None:
        return False
    fits = lambda w: w is not v and w.dim >= 2 and w.dtype == v.dtype and w.fixed(w.dim - 1) and w.size(w.dim - 1) == v.size(v.dim - 1)  # noqa: E731
    w = p.value(c, fits)
    if w is None or c.chance(4):
        rows = c.pick(("n1", "n0")) if p.dynamic else str(c.pick((5, 3, 1, 8, 17)))
        n = len(p.inputs)
        if not p.add_input(f"tensor(({rows}, {v.size(v.dim - 1)}), {v.dtype}, {n})"):
            return False
        w = p.values[-1]
    a, b = f"({v} @ {w}.mT)", f"({w} @ {v}.mT)"
    return p.add(
        c.pick(
            (
                "{a}.reshape(-1) + {b}.reshape(-1)", "{a}.flatten() * {b}.mT.flatten()", "torch.relu({a}.reshape(-1) - {b}.flatten())", "{a} + {b}.mT", "torch.stack([{a}.reshape(-1), {b}.reshape(-1)])",
                "{a}.mT.reshape(-1, {a}.shape[0]) + {b}", "torch.cat([{a}.flatten(), {b}.flatten()]).softmax(0)", "{a}.reshape(-1).sigmoid() * {b}.view(-1)", "{a} @ {b} / 8", "torch.maximum({a}.flatten(0, 1), {b}.mT.flatten(0, 1))",
                "{a}", "({a} + 1).reshape({b}.shape) + {b}",
            )
        ).format(a=a, b=b)
    )  # fmt: skip


@rule(4)
def meeting(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: v.dim >= 1)
    if v is None:
        return False
    w = twin(p, c, v)
    options = [
        "{v}.reshape(-1) + {w}.reshape(-1)", "{v}.mT.reshape(-1) * {w}.flatten()", "{v}.reshape({w}.shape) + {w}", "torch.cat([{v}.flatten(), {w}.flatten()])", "torch.where({v}.reshape(-1) > 0, {v}.reshape(-1), {w}.flatten())",
        "{w}.view({v}.shape) - {v}", "torch.stack([{v}.mT.flatten(), {w}.reshape(-1)], -1)", "{v}.reshape(-1, {w}.shape[0]) + {w}.reshape(-1, {w}.shape[0])", "{v}.T.flatten().view({w}.shape) * {w}",
        "({v}.reshape(-1) * {w}.reshape(-1)).sum()", "{v}.reshape({w}.shape).sum(0) + {w}.amax(0)", "{v}.flatten()[None] + {w}.reshape(1, -1)", "{v}.reshape(-1, 1) * {w}.reshape(1, -1)[:, :7]", "{v}.reshape({w}.shape).softmax(-1) * {w}.sum(-1, keepdim=True)",
    ]  # fmt: skip
    if v.floating and w.dtype == v.dtype:
        options += ["torch.dot({v}.reshape(-1), {w}.flatten()) / 64", "{v}.reshape({w}.shape) @ {w}.mT / 8", "{v}.reshape(1, -1) @ {w}.reshape(-1, 1) / 64"]
    return p.add(c.pick(options).format(v=v, w=w))


@rule(2)
def merged_dims(p: Program, c: Choices) -> bool:
    """Dims in another order, merged and taken apart again."""
    v = p.value(c, lambda v: v.dim >= 2)
    if v is None:
        return False
    moved = order(c, v.dim)
    d = c.below(v.dim)
    x = f"{v}.permute({moved})"
    return p.add(
        c.pick(
            (
                "{x}.reshape(-1)", "{x}.flatten(0, {d})", "{x}.flatten({d})", "{x}.reshape({v}.shape[{d}], -1)", "{x}.reshape(-1, {v}.shape[{d}]).mT", "{x}.reshape({v}.shape)", "{x}.contiguous().view({v}.shape) + {v}",
                "{x}.reshape(-1).view({v}.shape[{d}], -1)", "{v}.flatten(0, 1).unflatten(0, ({v}.shape[1], {v}.shape[0]))", "{x}.reshape(-1).softmax(0)", "{x}.flatten().reshape({x}.shape).sum({d})", "{x}.flatten({d}).amax(-1)",
            )
        ).format(x=x, v=v, d=d)
    )  # fmt: skip


@rule(1)
def sizes_as_numbers(p: Program, c: Choices) -> bool:
    """What is computed from sizes; equal in one call, and not in another."""
    v = p.value(c, lambda v: v.dim >= 1)
    if v is None:
        return False
    d, e = c.below(v.dim), c.below(v.dim)
    return p.add(
        c.pick(
            (
                "{v} * ({v}.shape[{d}] - {v}.shape[{e}] + 1)", "{v}.sum({d}) / max({v}.shape[{d}], 1)", "torch.arange({v}.shape[{d}] * {v}.shape[{e}]) % 5", "torch.ones({v}.shape[{d}], {v}.shape[{e}]).tril()",
                "{v}.narrow({d}, 0, {v}.shape[{d}] // 2)", "{v}.narrow({d}, ({v}.shape[{d}] + 1) // 2, {v}.shape[{d}] // 2)", "torch.full(({v}.shape[{d}], {v}.numel()), 0.5).sum(1)", "F.pad({v}, (0, {v}.shape[{d}] % 4))",
                "{v}[..., : min({v}.shape[{d}], {v}.shape[{e}])]", "{v}.new_zeros({v}.shape[{d}] + {v}.shape[{e}]).add_(1)",
            )
        ).format(v=v, d=d, e=e)
    )  # fmt: skip
