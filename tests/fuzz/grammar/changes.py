"""In-place ops: on inputs, on intermediate values, on views of both."""

from __future__ import annotations

from ..choices import Choices
from ..program import Program
from .rules import axis, number, partner, rule


@rule(4)
def change(p: Program, c: Choices) -> bool:
    v = p.value(c)
    target = str(v)
    if v.dim and c.chance(2):
        d = axis(c, v)
        target = c.pick((f"{v}[..., ::2]", f"{v}[:1]", f"{v}[1:]", f"{v}.select({d}, 0)", f"{v}.transpose({d}, 0)", f"{v}.narrow({d}, 0, 1)", f"{v}.view(-1)", f"{v}[..., -1]", f"{v}.diagonal()", f"{v}.unsqueeze(0)[:, 1:]"))
        value = c.pick((number(c, v), f"{v}[..., :1]" if "select" not in target else number(c, v)))
    else:
        value = number(c, v) if c.chance(2) else partner(p, c, v)
    if c.chance(3) and target.endswith("]"):
        return p.change(f"{target} = {value}")
    return p.change(
        c.pick(
            ("{t}.add_({w})", "{t}.mul_({w})", "{t}.copy_({w})", "{t}.fill_({n})", "{t}.zero_()", "{t}.relu_()", "{t}.clamp_(min={n})", "{t}.sub_({w}, alpha=2)", "{t}.masked_fill_({t} > 0, {n})", "{t}.tanh_()", "{t}.div_({w})", "{t}.neg_()", "{t}.sigmoid_()", "{t}.addcmul_({w}, {w})", "{t}.exp_()", "{t}.abs_()", "{t}.clamp_(-1, 1)", "{t}.floor_()")
        ).format(t=target, w=value, n=number(c, v))
    )


@rule(2)
def placed_change(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: v.dim > 0 and v.size(0) > 0)
    if v is None:
        return False
    n = v.size(0)
    i = c.below(n)
    return p.change(
        c.pick((f"{v}[{i}] = {v}[{c.below(n)}] * 2", f"{v}.index_add_(0, torch.tensor([{i}, 0]), {v}[:2])" if n > 1 else f"{v}[0] += 1", f"{v}[torch.tensor([{i}, 0])] = {number(c, v)}", f"{v}.index_copy_(0, torch.tensor([{i}]), {v}[:1] + 1)", f"{v}[{v} > 0] = {number(c, v)}", f"{v}.index_put_((torch.tensor([{i}, {i}]),), {v}[:1] + 1, accumulate=True)", f"{v}.scatter_(0, torch.zeros_like({v}, dtype=torch.int64)[:1], 3)", f"{v}.index_fill_(0, torch.tensor([{i}]), 2)", f"{v}[{i}:] -= {v}[{i}]", f"{v}.t_()", f"{v}.unsqueeze_(0)", f"{v}.squeeze_()"))
    )


@rule(3)
def through_a_view(p: Program, c: Choices) -> bool:
    """A view is written to, and its base is read, or the other way round."""
    v = p.value(c, lambda v: v.dim > 0)
    if v is None:
        return False
    if c.chance(2) and not p.add(f"{v} * 1"):  # so that there is nobody else who has it
        return False
    base = p.values[-1] if c.chance(2) else v
    d = axis(c, base)
    # No windows with gaps between them: what lies there is lost by AOTAutograd.
    view = c.pick(("{b}.view(-1)", "{b}[1:]", "{b}.transpose(0, {d})", "{b}[..., ::2]", "{b}.select({d}, 0)", "{b}.mT", "{b}.diagonal()", "{b}.unsqueeze({d})", "{b}.reshape(-1)[1:]", "{b}[..., -1]", "{b}.narrow({d}, 0, 1)", "{b}.expand(1, *{b}.shape)[0]", "{b}.view(-1)[::3]", "{b}.unfold({d}, 1, 1)", "{b}.detach()"))
    if not p.add(view.format(b=base, d=d)):
        return False
    view_name = p.values[-1].name
    target, other = (str(base), view_name) if c.chance(3) else (view_name, str(base))
    n = number(c, base)
    done = p.change(c.pick(("{t}.mul_({n})", "{t}.add_(1)", "{t}.copy_({t} * 2)", "{t}.fill_({n})", "{t}.neg_()", "{t}[:1] = {n}", "{t}.copy_({t}.flip(0))", "{t}.cumsum_(0)", "{t}.masked_fill_({t} > 0, {n})", "{t}.transpose(0, -1).sub_(1)", "{t}.index_fill_(0, torch.tensor([0]), {n})")).format(t=target, n=n))
    return p.add(c.pick(("{o} + 1", "{o}.sum(0)", "{o}.flatten() * 2", "{o}.clone()", "torch.cat([{o}.reshape(-1), {t}.reshape(-1)])", "{o} * {o}")).format(o=other, t=target)) or done
