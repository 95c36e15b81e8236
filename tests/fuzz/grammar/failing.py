"""A line that raises in eager mode, somewhere in a program: an index out of range, an integer divided by zero, a class that is none."""

from __future__ import annotations

from collections.abc import Sequence

from ..choices import Choices

# {v}: a value of the program, flat; {x}: one that may be written to; {k}: a number that is too large for some sizes or for all.
READS = (
    "{v}.index_select(0, torch.tensor([{k}]))", "{v}[torch.full((3,), {k})]", "{v}[torch.arange({v}.numel()) + 1]", "{v}.gather(0, torch.tensor([0, -{k} - 1]))",
    "torch.take({v}, torch.tensor([[{k}, 0]]))", "F.embedding(torch.full((2,), {k}), {v}[:, None])", "torch.zeros(4)[({v} != {v} + 1).long() * 4]",
    "torch.ones(3).long() // ({v}[:1] != {v}[:1] + 1).long().sub(1).repeat(3)", "torch.ones({v}.numel(), dtype=torch.int32) % torch.zeros({v}.numel(), dtype=torch.int32)",
    "torch.fmod(torch.arange(5), torch.tensor([1, 2, 0, 1, 2]) * {v}.shape[0])", "torch.div(torch.arange({v}.numel()), torch.arange({v}.numel()), rounding_mode='floor')",
    "torch.zeros({v}.numel()).index_add(0, torch.full(({v}.numel(),), {k}), torch.ones({v}.numel()))", "torch.zeros(5).scatter(0, torch.full((2,), {k}), 1.0)",
    "torch.zeros({v}.numel() + 1).index_copy(0, torch.tensor([{k}]), torch.ones(1))", "torch.zeros(3, 4).index_put((torch.tensor([0, {k}]),), torch.tensor(1.0), accumulate=True)",
    "F.one_hot(torch.full((2,), {k}), {v}.numel())", "F.cross_entropy(torch.zeros(2, {v}.numel() + 1), torch.tensor([0, {k}]))", "F.nll_loss(torch.zeros(3, 4), torch.full((3,), {k}))",
    "torch.zeros(3).scatter_reduce(0, torch.tensor([{k}]), torch.ones(1), 'amax')", "torch.zeros(4, 3).index_fill(1, torch.tensor([{k}]), 2.0)", "{v}.reshape(-1, 1)[0, {k} - {k} + 1:].sum() + {v}[torch.tensor({k})]",
    "torch.zeros(2, 3).gather(1, torch.full((2, 1), {k}))", "torch.take_along_dim(torch.zeros(2, 3), torch.full((1, 1), {k}), 0)", "F.embedding_bag(torch.full((1, 2), {k}), {v}[:, None].float(), mode='sum')",
    "torch.remainder(7, torch.tensor([3, 0]) * {v}.shape[0])", "torch.bincount(torch.tensor([1, -1]) * {v}.numel())", "torch.multinomial(torch.zeros(3) * {v}.shape[0], 2)",
)  # fmt: skip
WRITES = (
    "{x}.index_add_(0, torch.tensor([{k}]), {x}.narrow(0, 0, 1))", "{x}.index_fill_(0, torch.tensor([0, {k}]), 1)", "{x}[torch.tensor([0, {k}])] = 1", "{x}.index_copy_(0, torch.tensor([{k}]), {x}[:1])",
    "{x}.reshape(-1)[torch.tensor([{k}])] += 1", "{x}.view(-1).scatter_(0, torch.tensor([0, {k}]), 1)", "{x}.index_put_((torch.tensor([{k}]),), {x}[:1], accumulate=True)", "{x}.view(-1).put_(torch.tensor([{k}]), torch.ones(1).to({x}.dtype))",
)  # fmt: skip


def failing(c: Choices, readable: Sequence[str], written: Sequence[str], name: str) -> tuple[str, bool]:
    """The line, and whether it makes a value, `name`. `readable` are tensors, `written` those with dims."""
    k = c.pick(("99999", "{n}", "{n} - 1 + {n} // 3", "-{n} - 1", "9", "33"))
    if written and c.chance(4):
        x = c.pick(written)
        return c.pick(WRITES).format(x=x, k=k.format(n=f"{x}.shape[0]")), False
    v = f"{c.pick(readable)}.reshape(-1)"
    return f"{name} = {c.pick(READS).format(v=v, k=k.format(n=f'{v}.numel()'))}", True
