"""Gathers and scatters, with indices that are computed, given or constant."""

from __future__ import annotations

from ..choices import Choices
from ..program import Program, Value
from .rules import axis, number, rule


def indices(p: Program, c: Choices, n: int, length: int) -> str:
    """One-dimensional indices below n, as an expression."""
    made = [f"torch.tensor({[c.below(n) for _ in range(length)]})", f"(torch.arange({length}) % {n})", f"((torch.arange({length}) * 3 + 1) % {n})"]
    given = [v for v in p.values if v.dim == 1 and str(v.dtype) in ("torch.int64", "torch.int32") and v.all_fixed and v.size(0) == length]
    if given:
        made.insert(0, f"({given[-1]} % {n})")
    return c.pick(made)


def indexable(v: Value) -> bool:
    return v.dim > 0 and all(v.size(d) for d in range(v.dim))


@rule(4)
def gather(p: Program, c: Choices) -> bool:
    v = p.value(c, indexable)
    if v is None:
        return False
    d = axis(c, v)
    n = v.size(d)
    k = 1 + c.below(4)
    i = indices(p, c, n, k)
    options = [f"{v}.index_select({d}, {i})", f"torch.take_along_dim({v}, {v}.argsort({d}), {d})", f"{v}.gather({d}, ({v} > 0).long() * ({v}.shape[{d}] - 1))", f"{v}[{i}]" if d in (0, -v.dim) else f"{v}[..., {i}]"]
    options += [f"{v}.gather({d}, {v}.argmax({d}, keepdim=True))", f"{v}[{i} - {n}]" if d in (0, -v.dim) else f"{v}[..., -1]"]
    if v.dim >= 2:
        j = indices(p, c, v.size(1), k)
        m = indices(p, c, v.size(0), k)
        options += [f"{v}[{m}, {j}]", f"{v}[:, {j}]", f"{v}[{m}[:, None], {j}]", f"{v}[1:][:, {j}]", f"{v}[{m}, 0]"]
        if v.dim == 2:
            options += [f"F.embedding({m}, {v})", f"F.embedding({m}.reshape(1, -1), {v})"]
    return p.add(c.pick(options))


@rule(3)
def scatter(p: Program, c: Choices) -> bool:
    v = p.value(c, indexable)
    if v is None:
        return False
    d = axis(c, v)
    n = v.size(d)
    k = 1 + c.below(min(n, 4))
    i = indices(p, c, n, k)
    source = f"{v}.narrow({d}, 0, {k})"
    options = [
        f"{v}.index_add({d}, {i}, {source})", f"{v}.index_copy({d}, torch.arange({k}), {source} * 2)", f"{v}.index_fill({d}, {i}, {number(c, v)})",
        f"{v}.scatter({d}, {v}.argmax({d}, keepdim=True), {number(c, v)})", f"{v}.scatter_add({d}, ({v} > 0).long() * ({v}.shape[{d}] - 1), {v})",
        f"{v}.index_put(({i},), {v}[{i}], accumulate=True)" if d in (0, -v.dim) else f"{v}.index_add({d}, {i}, {source}, alpha=2)",
        f"{v}.scatter_reduce({d}, ({v} > 0).long() * ({v}.shape[{d}] - 1), {v}, '{c.pick(('amax', 'sum', 'amin', 'mean', 'prod'))}', include_self={c.chance(2)})",
        f"{v}.slice_scatter({source} * 2, {d}, 0, {k})", f"{v}.select_scatter({v}.select({d}, 0), {d}, {c.below(n)})", f"{v}.masked_scatter({v} > 0, {v}.flip(0))",
        f"torch.zeros_like({v}).index_add_({d}, {i}, {source})", f"{v}.diagonal_scatter({v}.diagonal() * 2)", f"torch.bucketize({v}, torch.tensor([-1, 0, 1]).to({v.dtype}))",
    ]  # fmt: skip
    return p.add(c.pick(options))


@rule(1)
def ordering(p: Program, c: Choices) -> bool:
    v = p.value(c, indexable)
    if v is None:
        return False
    d = axis(c, v)
    options = [f"F.one_hot({v}.argmax({d}), {v.size(d)})" if v.fixed(d) else f"{v}.argsort({d}, stable=True)", f"{v}.argsort({d}, stable=True)", f"torch.sort({v}, {d}, stable=True)[0]", f"torch.topk({v}, 1, {d})[0]", f"torch.searchsorted(torch.arange(5).to({v.dtype}), {v})"]
    return p.add(c.pick(options))


@rule(4)
def awkward_indices(p: Program, c: Choices) -> bool:
    """Several times the same, from the end, none at all."""
    v = p.value(c, indexable)
    if v is None:
        return False
    n, k = v.size(0), 1 + c.below(4)
    least = min(v.size(d) for d in range(v.dim))
    i = c.pick(
        (
            f"torch.tensor({[c.below(n) - c.pick((0, n)) for _ in range(k)]})", f"torch.full(({k},), {c.below(n)})", "torch.tensor([], dtype=torch.int64)", f"torch.tensor({[0, 0, *(c.below(n) for _ in range(k))]})", f"torch.arange({k}).neg() % {n} - {n}",
            f"torch.zeros(0, {k}, dtype=torch.int64)", f"torch.tensor({[[c.below(n) for _ in range(k)]] * 2})", f"({v}.flatten()[:5] > 0).long()" if n > 1 else "torch.zeros(3, dtype=torch.int32)", f"(-1 - torch.arange({k}) % {least}).to(torch.int32)",
        )
    )  # fmt: skip
    at = f"{v}[{i}]"
    options = [
        at, f"{at} * 2 + 1", f"{v}.index_put(({i},), {at} * 2, accumulate=True)", f"{v}.index_put(({i},), torch.ones((), dtype={v.dtype}))", f"{v}.index_add(0, {i}, {at})", f"{v}.index_select(0, {i})", f"{v}.index_fill(0, {i}, 2)",
        f"{v}.take({i})", f"{v}[..., {i}]", f"{v}.put({i}, {v}.take({i}) + 1, accumulate=True)", f"F.embedding({i}, {v})", f"F.embedding({i}, {v}, padding_idx=0)", f"{v}[{i}, {i}]", f"{v}[:, {i}]", f"{v}[{i}, ..., -1]", f"{v}[None, {i}]",
        f"torch.zeros_like({v}).index_put_(({i},), {at}, accumulate=True)", f"{v}.scatter_add(0, ({i}).reshape(-1, *[1] * ({v}.dim() - 1)).expand(-1, *{v}.shape[1:]), {v}.index_select(0, ({i}) * 0))", f"{v}.gather(0, ({i}).reshape(-1, *[1] * ({v}.dim() - 1)).expand(-1, *{v}.shape[1:]))",
        f"{v}.index_reduce(0, {i}, {at}, '{c.pick(('amax', 'mean', 'prod', 'amin'))}', include_self={c.chance(2)})", f"F.embedding_bag(({i}).reshape(1, -1), {v}, mode='{c.pick(('sum', 'mean', 'max'))}')", f"{v}.scatter_reduce(0, ({i}).reshape(-1, *[1] * ({v}.dim() - 1)), {v}[:1], 'sum')",
        f"torch.cat([{at}.flatten(), {v}.flatten()])", f"{at}.sum(0)", f"{at}.amax()", f"{v}[{v}.argsort(0, stable=True)[:1]]", f"{v}[[0, -1, 0]]", f"{v}[[], :]" if v.dim > 1 else f"{v}[[]]",
    ]  # fmt: skip
    return p.add(c.pick(options))


@rule(1)
def written_in_places(p: Program, c: Choices) -> bool:
    v = p.value(c, indexable)
    if v is None:
        return False
    n = v.size(0)
    i = c.pick((f"torch.tensor([{c.below(n)}, -1])", "torch.tensor([0, 0])", "torch.tensor([], dtype=torch.int64)", f"[{c.below(n)}, -{1 + c.below(n)}]", f"{v}.argmax(0)" if v.dim == 1 else "torch.tensor([-1])"))
    return p.change(c.pick((f"{v}[{i}] = {number(c, v)}", f"{v}[{i}] += 1", f"{v}.index_put_((torch.tensor([0, 0]),), {v}[:1], accumulate=True)", f"{v}[..., {i}] = {number(c, v)}", f"{v}.index_add_(0, torch.tensor([0, 0, 0]), {v}[[0, -1, 0]])", f"{v}.index_copy_(0, torch.tensor([], dtype=torch.int64), {v}[:0])")))
