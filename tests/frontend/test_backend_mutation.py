"""Inputs that are changed in place, outputs that alias inputs or each other."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlirc.tests.frontend.compare import compare, replica

R = torch.randn


def add_one(x):
    x.add_(1)
    return x * 2


def shift(x):
    x[1:] = x[1:] + x[:-1]
    return x.sum()


def swap(x, y):
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return x + y


def transpose(x):
    x.copy_(x.t() + 1)


def flip(x):
    x.copy_(x.flip(0))
    return x


def through_view(x):
    v = x[2:5]
    v.mul_(3)
    return v, x


def twice(x):
    x.relu_()
    return x, x, x.view(-1)


def cross(x, y):
    x.add_(y.sum())
    y.mul_(x.sum())
    return x.mean(0)


def set_items(x, v):
    x[:, 3] = v
    x[0] = 1
    return x.clone()


def set_strided(x):
    x[::2, 1::3] = x[1::2, 1::3] * 2
    return x + 1


def index_copy(cache, i, v):
    cache.index_copy_(0, i, v)
    return cache.sum(1)


def both(x, y):
    x.mul_(2)
    return y + 1


def late(x):
    y = x.exp()
    x.zero_()
    return y, x + 1


def converts(x, y):
    x.copy_(y)
    return x + y


def transposed_in_place(x):
    x.t_()
    return x * 2


SHARED = R(20)
CASES = {
    "add": (add_one, R(7, 5)),
    "add to a transposed input": (add_one, R(7, 5).t()),
    "add to a slice": (add_one, R(9, 9)[1:6, ::2]),
    "shift": (shift, R(18, 33)),
    "shift in parallel": (shift, R(900, 133)),
    "swap": (swap, R(9, 9), R(9, 9)),
    "transpose": (transpose, R(70, 70)),
    "transpose in parallel": (transpose, R(500, 500)),
    "flip": (flip, R(999, 33)),
    "view": (through_view, R(9, 5)),
    "the same output three times": (twice, R(9, 5)),
    "two inputs that need each other": (cross, R(5, 6), R(5, 6)),
    "set items": (set_items, R(5, 6), R(5)),
    "set strided": (set_strided, R(6, 11)),
    "index_copy": (index_copy, R(10, 4), torch.tensor([2, 5]), R(2, 4)),
    "overlapping arguments": (both, SHARED[:10], SHARED[5:15]),
    "the same argument twice": (both, SHARED, SHARED),
    "read before the write": (late, R(4, 5)),
    "copy with a conversion and a broadcast": (converts, R(4, 5), torch.arange(5)),
    "copy of a number": (lambda x: (x * 2).copy_(-1) + 1, R(4, 5)),
    "t_": (transposed_in_place, R(3, 4)),
    "outputs that alias each other": (lambda x: (y := x + 1, y, y.t(), y[0]), R(9, 5)),
    "views of an input": (lambda x: (x.view(-1), x.t(), x[1]), R(3, 4)),
    "input passed through": (lambda x: (x, x + 1), R(3, 4)),
    "a constant output": (lambda x: (torch.ones(3), 5, None, x.shape[0], x + 1), R(3, 4)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_mutation(name, dynamic):
    f, *args = CASES[name]
    compare(f, *args, dynamic=dynamic)


def test_aliases_are_aliases():
    f = torch.compile(lambda x: (x.view(-1), x.add_(1)), backend="mlirc", options={"strict": True})
    x = R(3, 4)
    flat, same = f(x)
    assert same is x or same.data_ptr() == x.data_ptr()
    assert flat.data_ptr() == x.data_ptr()
    g = torch.compile(lambda x: (y := x + 1, y[1:]), backend="mlirc", options={"strict": True})
    y, part = g(x)
    assert part.data_ptr() == y[1:].data_ptr()


def test_buffers_and_many_calls():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("total", torch.zeros(5))

        def forward(self, x):
            self.count += 1
            self.total.mul_(0.9).add_(x.mean(0), alpha=0.1)
            return x * self.count + self.total

    torch.manual_seed(0)
    eager, ours = Counter(), Counter()
    compiled = torch.compile(ours, backend="mlirc", options={"strict": True})
    for _ in range(3):
        x = R(7, 5)
        torch.testing.assert_close(compiled(x), eager(x))
    assert ours.count == 3
    torch.testing.assert_close(ours.total, eager.total)


def test_an_error_comes_before_the_writes():
    def f(x, i):
        x.add_(1)
        return x[i]

    compiled = torch.compile(f, backend="mlirc", options={"strict": True})
    x = R(5, 4)
    kept = x.clone()
    compiled(replica(x), torch.tensor([4]))
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([7]))
    assert torch.equal(x, kept)
