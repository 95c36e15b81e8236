"""Views, rearrangements, joining and splitting."""

from __future__ import annotations

from ..choices import Choices
from ..program import Program, Value
from .rules import axis, few, order, partner, rule, size


def has_dims(v: Value) -> bool:
    return v.dim > 0


@rule(5)
def view(p: Program, c: Choices) -> bool:
    v = p.value(c, has_dims)
    if v is None:
        return False
    d, e = axis(c, v), axis(c, v)
    return p.add(
        c.pick(
            (
                "{v}.transpose({d}, {e})", f"{v}.permute({order(c, v.dim)})", "{v}.unsqueeze({d})", "{v}.mT", "{v}.squeeze()", "{v}.squeeze({d})", "{v}.movedim({d}, {e})",
                "{v}.transpose({d}, {e}).contiguous()", "{v}.unsqueeze(-1)", "{v}.T", "{v}.detach()", "{v}.view_as({v})", "{v}.swapaxes({d}, {e}).clone()",
            )
        ).format(v=v, d=d, e=e)
    )  # fmt: skip


@rule(5)
def slicing(p: Program, c: Choices) -> bool:
    v = p.value(c, has_dims)
    if v is None:
        return False
    d = c.below(v.dim)
    n = v.size(d)
    full = ":, " * d
    low = c.below(max(n, 1))
    high = low + c.below(n - low + 1)
    parts = [f"{low}:", f"{low}:{high}", "::2", f"{low}", "-1:", ":-1", "1::3", f"{low}:-1:2", "-1", "1:", f"{low}::{2 + c.below(3)}", f"-{low + 1}:", f"{low}:100", "None"]
    first = c.pick(parts)
    second = f", {c.pick(('::2', '1:', '-1', ':1', 'None'))}" if c.chance(3) and d + 1 < v.dim else ""
    if c.chance(4):
        return p.add(f"{v}[..., {first}]")
    return p.add(f"{v}[{full}{first}{second}]")


@rule(3)
def part(p: Program, c: Choices) -> bool:
    v = p.value(c, has_dims)
    if v is None:
        return False
    d = axis(c, v)
    n = v.size(d)
    i = c.below(max(n, 1))
    k = 1 + c.below(max(n - i, 1))
    return p.add(
        c.pick(
            ("{v}.select({d}, {i})", "{v}.narrow({d}, {i}, {k})", "{v}.unfold({d}, {k}, {s})", "torch.diagonal({v})", "{v}.diagonal({i})", "torch.tril({v}, {i})", "torch.triu({v}, -{i})", "{v}.narrow({d}, {v}.shape[{d}] - {k}, {k})", "torch.diag_embed({v})", "{v}.chunk(2, {d})[-1]")
        ).format(v=v, d=d, i=i, k=k, s=1 + c.below(3))
    )


@rule(4)
def reshape(p: Program, c: Choices) -> bool:
    v = p.value(c, has_dims)
    if v is None:
        return False
    d = c.below(v.dim)
    a, b = size(c, v, 0), size(c, v, v.dim - 1)
    options = [f"{v}.reshape(-1)", f"{v}.reshape({a}, -1)", f"{v}.reshape(-1, {b})", f"{v}.flatten({d})", f"{v}.flatten(0, {d})", f"{v}.view(-1, {b})", f"{v}.reshape({b}, -1)", f"{v}.reshape({v}.numel())", f"{v}.view({v}.shape)"]
    n = v.size(d)
    for k in (2, 3, 5):
        if v.fixed(d) and n % k == 0 and n:
            options.append(f"{v}.unflatten({d}, ({k}, {n // k}))")
            options.append(f"{v}.unflatten({d}, (-1, {k}))")
    options += [f"{v}.unflatten({d}, (1, -1))", f"{v}.reshape(1, *{v}.shape, 1)", f"{v}.reshape({', '.join(f'{v}.shape[{i}]' for i in order(c, v.dim))})"]
    return p.add(c.pick(options))


@rule(3)
def expansion(p: Program, c: Choices) -> bool:
    v = p.value(c)
    n = 1 + c.below(4)
    options = [f"{v}.expand({n}, *{v}.shape)", f"{v}.repeat({n}, {', '.join('1' for _ in range(v.dim)) or 1})", f"{v}.broadcast_to(2, *{v}.shape)"]
    if v.dim:
        d = axis(c, v)
        options += [f"{v}.repeat_interleave({n}, {d})", f"{v}.unsqueeze({d}).expand({', '.join('-1' if i != (d % (v.dim + 1) if d >= 0 else d + v.dim + 1) else str(n) for i in range(v.dim + 1))})", f"torch.tile({v}, ({n}, 2))", f"{v}.narrow({d}, 0, 1).expand_as({v})"]
    return p.add(c.pick(options))


@rule(3)
def rearrangement(p: Program, c: Choices) -> bool:
    v = p.value(c, has_dims)
    if v is None:
        return False
    d, e = axis(c, v), axis(c, v)
    k = c.below(4) - 1
    return p.add(c.pick(("{v}.flip({d})", "{v}.roll({k}, {d})", "{v}.flip({d}, {e})", "{v}.roll({k})", "{v}.rot90(1, ({d}, {e}))", "{v}.roll(({k}, 1), ({d}, {e}))", "torch.fliplr({v})")).format(v=v, d=d, e=e, k=k))


@rule(1)
def strided(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: v.numel >= 4 and v.all_fixed)
    if v is None:
        return False
    a, b = 1 + c.below(3), 1 + c.below(3)
    return p.add(f"{v}.as_strided(({a}, {b}), ({1 + c.below(3)}, {c.below(3)}), {c.below(2)})") if c.chance(2) else p.add(f"{v}.contiguous().as_strided(({a}, {b}), ({c.below(3)}, {c.below(2)}))")


@rule(3)
def joining(p: Program, c: Choices) -> bool:
    v = p.value(c)
    same = lambda w: all(a.shape == b.shape for a, b in zip(v.tensors, w.tensors))  # noqa: E731
    w = p.value(c, same)
    d = axis(c, v)
    n = max(v.size(d), 1) if v.dim else 1
    if v.dim and c.chance(2):
        pieces = c.pick((f"{v}, {w}", f"{w}, {v}, {v}", f"{v}.narrow({d}, 0, {1 + c.below(n)}), {w}", f"{v}, {w} * 2, {v}.narrow({d}, {c.below(n)}, 1)", f"{v}, {v}.narrow({d}, 0, 0)"))
        return p.add(f"torch.cat([{pieces}], {d})")
    return p.add(c.pick((f"torch.stack([{v}, {w}], {d})", f"torch.stack([{v}, {w}, {v}], -1)", f"torch.hstack([{v}, {w}])", f"torch.vstack([{v}, {w}])", f"torch.outer({v}.flatten()[:7], {w}.flatten()[:5])", f"torch.cat([{v}, {partner(p, c, v)}], -1)")))


@rule(2)
def splitting(p: Program, c: Choices) -> bool:
    v = p.value(c, has_dims)
    if v is None:
        return False
    d = axis(c, v)
    n = v.size(d)
    if n < 2:
        return p.add(f"{few(v, d)}.unbind({d})[0]")
    k = 1 + c.below(n - 1)
    return p.add(c.pick((f"{v}.tensor_split([{k}], {d})", f"{v}.chunk(2, {d})", f"torch.split({v}, [{k}, {v}.shape[{d}] - {k}], {d})", f"{v}.split({v}.shape[{d}] - {k}, {d})[:2]", f"{few(v, d)}.unbind({d})[:2]")), names=2)
