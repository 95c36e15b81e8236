"""What a compiled forward keeps for its backward: layouts, changes made meanwhile, hooks, budgets, and what backward may write to."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.tests.semantics.agree import agree, compiled

R = torch.randn


def test_a_saved_tensor_that_was_changed():
    """Autograd's check for values that backward needs and that were overwritten."""
    ours = compiled(lambda x, w: (x * w).exp())
    for call in (lambda x, w: (x * w).exp(), ours):
        x, w = R(5, requires_grad=True), R(5, requires_grad=True)
        y = call(x, w)
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("cut", [lambda x: x[..., 1:], lambda x: x[:, ::2], lambda x: x.mT[2:], lambda x: x[..., 3:4].expand(-1, 7)])
def test_saved_tensors_with_gaps(cut, dynamic):
    """The backward graph reads what the forward graph leaves it by the strides that the trace has for it, which copy an input's."""

    def through_a_view(x, w):
        y = x.slice_scatter(x[5:] - 1, 0, 5)
        return y @ w.mT + (w @ y.mT).sum(), y

    x = cut(R(33, 16))
    agree(through_a_view, x, R(3, x.shape[1], requires_grad=True), dynamic=dynamic)

    def written(x, w):
        if not any(s == 0 for s in x.stride()):
            x[5:] -= 1
        return (x @ w.mT).reshape(-1) + (w @ x.mT).reshape(-1)

    agree(written, x, R(3, x.shape[1], requires_grad=True), dynamic=dynamic)


def test_what_backward_graphs_are_given():
    """Nothing but the backward graph itself sees to it that what it reads lies as in its trace."""

    def f(x, w):
        y = torch.tanh(x).t()
        return (y @ w).exp().permute(1, 0) @ w

    def gradients(f, x, w, packed, unpacked):
        with torch.autograd.graph.saved_tensors_hooks(packed, unpacked):
            y = f(x, w)
        return torch.autograd.grad(y.sum(), (x, w))

    def contiguous(t):
        return t.clone(memory_format=torch.contiguous_format)

    def turned(t):
        return t.mT.contiguous().mT if t.dim() > 1 else t

    for dynamic in (False, True):
        ours = compiled(f, dynamic=dynamic)
        for n in (6, 17, 17):
            x, w = (R(n, n, dtype=torch.float64, requires_grad=True) for _ in range(2))
            for packed in (lambda t: t, contiguous, turned, torch._neg_view, lambda t: torch.stack([t, t], -1)[..., 1]):
                unpacked = torch.neg if packed is torch._neg_view else (lambda t: t)
                expected, got = (gradients(g, x, w, packed, unpacked) for g in (f, ours))
                torch.testing.assert_close(got, expected)
            with pytest.raises(RuntimeError, match="saved"):
                gradients(ours, x, w, lambda t: t, lambda t: t[1:])


def test_parameters_moved_before_backward():
    net = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 3))
    ours = compiled(net)
    x = R(2, 8, 9, 9, requires_grad=True)
    for memory_format in (torch.channels_last, torch.contiguous_format, torch.channels_last):
        outputs = [g(x).sum() for g in (net, ours)]
        net.to(memory_format=memory_format)
        expected, got = (torch.autograd.grad(y, x) for y in outputs)
        torch.testing.assert_close(got, expected)
    y = ours(x).sum()
    net[0].weight.data = torch.empty(0)
    with pytest.raises(RuntimeError, match="saved"):
        y.backward()


class Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, count):
        ctx.save_for_backward(count)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        ctx.saved_tensors[0].add_(g)
        return g * 2, None


def test_what_backward_graphs_write_to():
    def run(f, change):
        x, count = torch.ones(4, 6, requires_grad=True), torch.zeros(4, 6)
        y = f(x, count)
        count.data = change(count)
        return torch.autograd.grad(y, x, torch.full((4, 6), 3.0)), count, count.stride()

    ours = compiled(lambda x, count: Counted.apply(x, count))
    for change in (lambda t: t, lambda t: t.mT.contiguous().mT, lambda t: t):
        torch.testing.assert_close(run(ours, change), run(Counted.apply, change))


def test_saved_tensors_hooks():
    """Tensors saved for backward go through the hooks: packed as bf16 here, and kept out of the way."""
    seen = []

    def pack(t):
        seen.append(t.shape)
        return t.double() if t.is_floating_point() else t

    def unpack(t):
        return t.float() if t.dtype == torch.float64 else t

    f = lambda x, w: (torch.tanh(x @ w) * x.exp()[:, :5]).softmax(-1)  # noqa: E731
    ours = compiled(f)
    x, w = R(4, 6, requires_grad=True), R(6, 5, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = ours(x, w)
    assert seen
    torch.testing.assert_close(torch.autograd.grad(y[0].square().sum(), (x, w)), torch.autograd.grad(f(x, w)[0].square().sum(), (x, w)))


def test_values_that_backward_needs_and_that_are_overwritten_later():
    """Backward gets what the argument was, whole or in part, not what it has become."""

    def whole(x, w):
        y = (x.clone() * w).sum(1)
        x.add_(1)
        return y, x

    def part(x, w):
        y = (x[:, ::2].clone() * w[::2]).sum(1)
        x.mul_(2)
        return y, x[:, ::2]

    def transposed(x, w):
        y = w[:4] * (x.t() + 0)[:, :4]
        x.t()[1:].fill_(3)
        return y

    def computed(x, w):
        y = (x.exp() * w).tanh()
        x.copy_(y.detach())
        return y.sum(), x

    for g in (whole, part, transposed, computed):
        for x in (R(5, 6), R(6, 5).t(), R(10, 12)[::2, ::2]):
            agree(g, x, R(6, requires_grad=True))
            agree(g, x, R(6, requires_grad=True), dynamic=True)


@pytest.mark.parametrize("budget", [1, 0.3, 0])
def test_a_budget_for_what_is_saved(budget):
    """Less memory, the same gradients, dropout included."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.wide, self.narrow, self.drop = nn.LayerNorm(24), nn.Linear(24, 96), nn.Linear(96, 24), nn.Dropout(0.2)

        def forward(self, x):
            return x + self.drop(self.narrow(F.gelu(self.wide(self.norm(x)))))

    torch.manual_seed(0)
    net = nn.Sequential(*[Block() for _ in range(3)])
    x = torch.randn(16, 24)
    results = []
    for limit in (1, budget):
        sizes = {}

        def keep(t, sizes=sizes):
            sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        torch._dynamo.reset()
        torch.manual_seed(1)
        with torch._functorch.config.patch(activation_memory_budget=limit):
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
                y = torch.compile(net, backend="mlirc")(x)
            results.append((sum(sizes.values()), torch.autograd.grad(y.square().sum(), list(net.parameters()))))
    (most, expected), (memory, got) = results
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert memory < 0.8 * most or budget == 1


def lying(seen):
    """Whether each 4-dim tensor that was saved has its second dim innermost."""
    return {tuple(t.shape): t.stride(1) == 1 for t in seen if t.dim() == 4}


class Convs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24), nn.Conv2d(24, 33, 3, 2)

    def forward(self, x):
        return self.second(F.max_pool2d(F.relu(self.norm(self.first(x))), 3, 1))


def gradients(call, module, x, seen):
    for p in module.parameters():
        p.grad = None
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t.contiguous()):
        y = call(x)
    y.square().sum().backward()
    return [y.detach(), *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("dynamic", [False, True])
def test_saved_tensors_lie_as_they_are_made(dynamic):
    """Channels-last, between channels-last convolutions, if no size is a symbol; what the user gets lies as in eager mode, and so may what
    hooks give back."""
    torch.manual_seed(0)
    module, x = Convs(), R(2, 3, 11, 13)
    made, expected = [], []
    got = gradients(compiled(module, dynamic=dynamic), module, x, made)
    wanted = gradients(module, module, x, expected)
    # What a convolution of 24 channels gives, its norm's and the pool's results; the image itself is the user's.
    assert {(2, 24, 11, 13), (2, 24, 9, 11)} <= lying(made).keys()
    assert all(last == (not dynamic and shape[1] == 24) for shape, last in lying(made).items() if shape[0] == 2)
    for a, b in zip(wanted, got):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert a.stride() == b.stride()


def test_what_is_saved_and_returned_lies_as_in_eager_mode():
    def f(x, w):
        y = F.conv2d(x, w).relu()
        return y, y.sin(), y[:, 1:]

    agree(f, R(2, 3, 9, 9), R(20, 3, 3, 3, requires_grad=True))


def test_a_gradient_that_is_a_saved_tensor():
    """It gets the strides of eager mode."""

    def f(x, w, v):
        return F.conv2d(x, w).relu() * v

    agree(f, R(2, 3, 9, 9), R(20, 3, 3, 3), R(2, 20, 7, 7, requires_grad=True))


def test_effects_do_not_move_what_is_saved():
    """The check of a decomposition's errors puts a token in front of the results: each lies as it did before, and so do gradients."""

    def f(x):
        return torch.linalg.cholesky(x.mT @ x + 4 * torch.eye(x.shape[-1]))

    x, w = torch.randn(5, 3, requires_grad=True), torch.randn(3, 3)
    (want,) = torch.autograd.grad((f(x) * w).sum(), x)
    compiled = torch.compile(f, backend="mlirc")(x)
    assert compiled.stride() == f(x).stride()
    (got,) = torch.autograd.grad((compiled * w).sum(), x)
    torch.testing.assert_close(got, want)
