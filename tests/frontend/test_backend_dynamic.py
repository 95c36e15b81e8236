"""One compilation for many sizes."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch._dynamo.utils import counters

from mlirc.tests.frontend.compare import compare, kernels

R = torch.randn
SIZES = [(5, 7), (3, 70), (33, 17), (128, 3), (2, 2)]


def repeated_mask(x):
    keep = torch.arange(x.shape[1])[None] < x.shape[0]
    return torch.where(keep, x, float("-inf")).softmax(1)


CASES = {
    "elementwise": (lambda x, y: torch.tanh(x + y) * x, lambda n, m: (R(n, m), R(m))),
    "softmax": (lambda x: (x.softmax(-1), x.softmax(0)), lambda n, m: (R(n, m),)),
    "norms": (lambda x: (F.layer_norm(x, x.shape[-1:]), x.var(0), x.std()), lambda n, m: (R(n, m),)),
    "reductions": (lambda x: (x.sum(), x.sum(0), x.mean(1), x.amax(0), x.argmax(1)), lambda n, m: (R(n, m),)),
    "matmul": (lambda x, y: x @ y, lambda n, m: (R(n, m), R(m, n + 1))),
    "linear": (lambda x, w: F.linear(x, w).relu(), lambda n, m: (R(n, m, 16), R(40, 16))),
    "bmm": (lambda x, y: x @ y, lambda n, m: (R(3, n, m), R(3, m, n))),
    "transposes": (lambda x: (x.t().contiguous() + 1, x.t().reshape(-1) * 2), lambda n, m: (R(n, m),)),
    "heads": (lambda x: x.view(*x.shape[:2], 4, 8).transpose(1, 2).reshape(x.shape[0], -1), lambda n, m: (R(n, m, 32),)),
    "images": (
        lambda x, w: (F.conv2d(x, w, padding=1, stride=2), F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)),
        lambda n, m: (R(2, 3, n + 3, m + 3), R(5, 3, 3, 3)),
    ),
    "depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=w.shape[0]), lambda n, m: (R(2, n, m, 4), R(n, 1, 3, 3))),
    "resize": (lambda x: (F.interpolate(x, scale_factor=1.5), F.interpolate(x, scale_factor=0.7, mode="bilinear")), lambda n, m: (R(1, 2, n + 1, m + 1),)),
    "cat": (lambda x, y: torch.cat([x, y], 1) * 2, lambda n, m: (R(n, m), R(n, m + 1))),
    "slices": (lambda x: (x[1:, :-1] + x[:-1, 1:], x.unfold(1, 2, 1) * 2, x.roll(1, 0).flip(1)), lambda n, m: (R(n + 1, m + 1),)),
    "embedding": (lambda w, i: F.embedding(i, w), lambda n, m: (R(10, n), torch.randint(0, 10, (m, 3)))),
    "numbers": (lambda x: x / x.shape[0] + x.numel() + x.shape[1] ** 2 + torch.arange(x.shape[1]), lambda n, m: (R(n, m),)),
    "mask": (repeated_mask, lambda n, m: (R(n, m),)),
    "group norm": (lambda x: F.group_norm(x, 2), lambda n, m: (R(n, 4, m),)),
    "pad to eight": (lambda x: F.pad(x, (0, (-x.shape[1]) % 8)), lambda n, m: (R(n, m),)),
    "two paddings": (lambda x: (F.pad(F.pad(x, (x.shape[0], 0)), (x.shape[1], x.shape[0])), F.pad(F.pad(x, (0, -(-x.shape[0] // 3))), (0, 0, 0, 2))), lambda n, m: (R(n, m),)),
    "stack": (lambda x: torch.stack([x, x * 2], 1).flatten(0, 1), lambda n, m: (R(n, m),)),
    "split": (lambda x: x.split(x.shape[0] // 2)[0] * 2, lambda n, m: (R(2 * n, m),)),
    "einsum": (lambda x, y: torch.einsum("bnd,bmd->bnm", x, y).softmax(-1), lambda n, m: (R(2, n, 8), R(2, m, 8))),
    "repeat": (lambda x: x.repeat(2, 3) + 1, lambda n, m: (R(n, m),)),
    "channels last": (lambda x: x.relu() * 2, lambda n, m: (R(2, 3, n, m).to(memory_format=torch.channels_last),)),
    "outputs with broadcasts": (lambda x: ((x[:, None] + 1).expand(-1, 3), x * 2), lambda n, m: (R(n),)),
}


@pytest.mark.parametrize("name", CASES)
def test_sizes(name):
    f, build = CASES[name]
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(f, backend="mlirc", dynamic=True, options={"strict": True})
    for size in SIZES:
        compare(f, *build(*size), compiled=compiled)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("name", ["elementwise", "softmax", "norms", "linear", "bmm", "heads", "einsum"])
def test_kernels_are_as_many_as_with_static_sizes(name):
    f, build = CASES[name]
    args = build(12, 20)
    compare(f, *args, dynamic=False)
    static = kernels()
    compare(f, *args, dynamic=True)
    assert len(kernels()) == len(static)


def test_sizes_become_dynamic_by_themselves():
    compiled = torch.compile(lambda x: (x + 1).softmax(-1), backend="mlirc", options={"strict": True})
    counters.clear()
    for n in (5, 6, 7, 80, 81):
        x = R(3, n)
        torch.testing.assert_close(compiled(x), (x + 1).softmax(-1))
    assert counters["stats"]["unique_graphs"] == 2


def of_a_number(x, w, n):
    return x.var(0, correction=n), torch.var_mean(x, correction=n), torch.addmm(x, x, w, beta=n), x + n, F.threshold(x, n, 0.5)


def test_numbers_that_a_lowering_wants_to_know():
    """A lowering that wants to know a number leaves the op to ATen."""
    compiled = torch.compile(of_a_number, backend="mlirc", dynamic=True, options={"strict": True})
    x, w = R(5, 7), R(7, 7)
    for n in (2, 3):
        torch.testing.assert_close(compiled(x, w, n), of_a_number(x, w, n))
    assert set(counters["mlirc_aten"]) == {"aten.threshold.default"}


@pytest.mark.parametrize("part", [lambda x: x[0:-1:2], lambda x: x[: x.shape[0] // 2], lambda x: x[1:], lambda x: x.chunk(2)[1]])
def test_one_that_only_the_guards_know(part):
    """A part is one row, and is broadcast: torch's guard may read `s // 2 < 2`."""
    x, y = R(4, 3)[1:3], R(1, 40)
    f = lambda x, y: torch.maximum(part(x)[:, 0], (y + 1).softmax(0)) + part(x)[:, :1]  # noqa: E731
    torch.testing.assert_close(torch.compile(f, backend="mlirc", dynamic=True)(x, y), f(x, y))


def test_a_number_that_only_another_op_knows():
    """A reshape to three rows of one makes the size of its source a number; the type of the scan's operand does not say so."""
    x = R(3)
    f = lambda x: (torch.cumsum(-x, 0), (-x).reshape(3, -1), torch.softmax(-x, 0))  # noqa: E731
    for got, expected in zip(torch.compile(f, backend="mlirc", dynamic=True, options={"strict": True})(x), f(x)):
        torch.testing.assert_close(got, expected)


def test_marked_dims():
    compiled = torch.compile(lambda x, w: (x @ w).relu(), backend="mlirc", options={"strict": True})
    w = R(16, 24)
    for n in (4, 9, 100):
        x = R(n, 16)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x, w), (x @ w).relu(), rtol=1e-4, atol=1e-4)


def cut(x, n):
    parts = [x[n:] * 2, x[:n] * 2, x[-n:] * 2, x[:-n] + 1, x.narrow(1, n, 2) + 1, x[n] + 1, x[:, -n] * 2, x.chunk(n, 0)[0] + 1]
    return [*parts, x.split(n, 0)[0] + 1, torch.cat([x[:n], x[n:] * 2]), x.flip(0)[n:], x.diagonal(n) * 2, x.slice_scatter(x[:1] * 2, 0, n, n + 1)]


def made(x, n):
    out = [x.repeat(n, 1) + 1, torch.full((n,), n) + x[0, 0], torch.arange(0, 9 * n, n) + x, torch.eye(n) * x[0, 0], torch.linspace(0, 1, n) + x[0, 0]]
    return [*out, F.pad(x, (n, n)), x[:6].reshape(n, -1) + 1, x[None].expand(n, -1, -1) * 2, x.unfold(1, n, 1) * 2, x[:, torch.arange(n)] * 2, torch.stack([x] * 3)[:n] + 1]


def counted(x, n):
    out = [x**n, x.clamp(-n, n), x / n + x // n + x % n, x.tril(n), x.triu(-n), x.masked_fill(x > 0, n), torch.where(x > n, x, n), x.sum() + n * x.shape[0] ** 2]
    return [*out, F.avg_pool1d(x[None], n), F.max_pool1d(x[None], n), F.interpolate(x[None, None], size=(n, n), mode="bilinear"), (x * 10).to(torch.int32) // n]


@pytest.mark.parametrize("f", [cut, made, counted])
def test_numbers_as_arguments(f):
    compiled = torch.compile(f, backend="mlirc", dynamic=True, options={"strict": True})
    x = R(7, 9)
    for n in (3, 2):
        compare(f, x, n, compiled=compiled)


def test_numbers_may_be_negative():
    def f(x, n):
        return x * n + n, torch.full_like(x, n).clamp(min=0), x[n:] * 2 if n < 0 else x[:n], x.clamp(max=n)

    compiled = torch.compile(f, backend="mlirc", dynamic=True, options={"strict": True})
    x = R(7, 9)
    for n in (3, -2, 5, -4):
        compare(f, x, n, compiled=compiled)


def test_steps_known_at_run_time():
    def f(x, n):
        return x[::n] * 2, x[:, 1:-1:n] + 1, x.slice_scatter(x[::n] * 2, 0, 0, None, n)

    compiled = torch.compile(f, backend="mlirc", dynamic=True, options={"strict": True, "fallback": False})
    x = R(7, 9, requires_grad=True)
    for n in (3, 2):
        compare(f, x, n, compiled=compiled)


def test_factors_and_amounts_known_at_run_time():
    """Integers and floats (a learning rate that changes): one graph, in kernels."""

    def f(x, n, a):
        out = [torch.add(x, x * 2, alpha=a), torch.sub(x, 3, alpha=n), torch.rsub(x, x * 2, alpha=n), x.addcmul(x, x, value=a)]
        out += [x.roll(n, 0), x.roll((-n, n), (1, 0)), x.roll(n), torch.roll(x, x.shape[1] // 2, 1)]
        return [*out, torch.addmm(x, x, x.t() @ x, beta=a, alpha=n), torch.baddbmm(x[None], x[None], (x.t() @ x)[None], beta=n, alpha=a)]

    compiled = torch.compile(f, backend="mlirc", dynamic=True, options={"strict": True, "fallback": False})
    for n, a in ((3, 0.5), (2, 0.0), (19, -1.5)):
        compare(f, R(7, 9), n, a, compiled=compiled)
    x = R(7, 9)
    x[0, 0] = float("nan")
    g = lambda x, y, a: torch.addmm(x, y, y.t() @ y, beta=a)  # noqa: E731 - what is taken zero times is not read
    compiled = torch.compile(g, backend="mlirc", dynamic=True, options={"strict": True, "fallback": False})
    for a in (0.5, 0.0):
        compare(g, x, R(7, 9), a, compiled=compiled)


def test_a_slice_that_begins_at_the_end():
    """The last of two pieces of 3 rows has one row: a number. What is behind it has a symbol's size, and nothing in it."""

    def f(x):
        last = x.chunk(2, 0)[-1].clamp(-1, 0.5)
        return last.reshape(-1) + 1, last[1:], last[1:] * 2

    compiled = torch.compile(f, backend="mlirc", dynamic=True, options={"strict": True})
    for n in (3, 4, 7, 2):
        compare(f, torch.randn(n, 4), compiled=compiled)
