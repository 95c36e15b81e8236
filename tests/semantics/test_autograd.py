"""Gradients through compiled functions: modes, hooks, graphs used twice, second derivatives, functions of the user's."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad

from mlirc.tests.semantics.agree import agree, compiled

R = torch.randn


def f(x, w):
    return (torch.tanh(x @ w) * x.exp()[:, : w.shape[1]]).softmax(-1)


def leaves(*shapes):
    return [R(s, requires_grad=True) for s in shapes]


def test_which_inputs_need_gradients():
    x, w = R(4, 6), R(6, 5)
    ours = compiled(f)
    for needs in ((False, False), (True, False), (False, True), (True, True), (False, False)):
        agree(f, x.clone().requires_grad_(needs[0]), w.clone().requires_grad_(needs[1]), ours=ours)
    agree(lambda x, w: (f(x, w), x * 2, w.detach() + 1, (x > 0)), *leaves((4, 6), (6, 5)))
    agree(lambda x, w: (f(x.detach(), w), w.sum().item() * 0 + 1), *leaves((4, 6), (6, 5)))


def test_modes_of_one_compiled_function():
    """Grad mode, no_grad, inference mode and back; tensors of one mode in the other."""
    ours = compiled(f)
    x, w = leaves((4, 6), (6, 5))
    for context in (torch.enable_grad, torch.no_grad, torch.inference_mode, torch.enable_grad, torch.inference_mode, torch.no_grad):
        with context():
            got, expected = ours(x, w), f(x, w)
            torch.testing.assert_close(got, expected)
            assert got.requires_grad == expected.requires_grad and got.is_inference() == expected.is_inference()
    with torch.inference_mode():
        made = R(4, 6)
        torch.testing.assert_close(ours(made, w), f(made, w))
    with torch.no_grad():
        torch.testing.assert_close(ours(made, w), f(made, w))
    agree(f, x, w, ours=ours)


def test_modes_set_inside():
    def g(x, w):
        with torch.no_grad():
            scale = (x @ w).abs().amax()
        y = f(x, w) / scale
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        z = x.exp()
        torch.set_grad_enabled(before)
        with torch.enable_grad():
            u = x.sin()
        return y, z, scale, u

    agree(g, *leaves((4, 6), (6, 5)))
    with torch.no_grad():
        ours = compiled(g)
        x, w = leaves((4, 6), (6, 5))
        got, expected = ours(x, w), g(x, w)
        torch.testing.assert_close(got, expected)
        assert [t.requires_grad for t in got] == [t.requires_grad for t in expected]

    def leaves_it_off(x):
        torch.set_grad_enabled(False)
        return x * 2

    for call in (leaves_it_off, compiled(leaves_it_off)):
        y = call(R(3, requires_grad=True))
        assert not torch.is_grad_enabled() and not y.requires_grad
        torch.set_grad_enabled(True)


def test_second_derivatives():
    """Eager's values, or an error; never a wrong number."""
    ours = compiled(lambda x: (x.tanh() ** 3).sum())
    x = R(5, requires_grad=True)
    (expected,) = torch.autograd.grad((x.tanh() ** 3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(expected.sum(), x)
    (got,) = torch.autograd.grad(ours(x), x, create_graph=True)
    torch.testing.assert_close(got, expected)
    try:
        (mine,) = torch.autograd.grad(got.sum(), x)
    except RuntimeError as e:
        assert "double backward" in str(e) or "not have been used in the graph" in str(e)
    else:
        torch.testing.assert_close(mine, second)


def test_second_derivatives_inside():
    def g(x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (first,) = torch.autograd.grad((y.tanh() ** 3).sum(), y, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), y)
        return second

    with pytest.raises(RuntimeError, match="not have been used|double backward"):
        compiled(g)(R(5))  # autograd.grad breaks the graph, and what comes before it is a compiled function of its own


def test_graphs_used_twice():
    ours = compiled(f)
    x, w = leaves((4, 6), (6, 5))
    y = ours(x, w)
    first = torch.autograd.grad(y.sum() + y[0].exp().sum(), (x, w), retain_graph=True)
    again = torch.autograd.grad(y.sum() + y[0].exp().sum(), (x, w), retain_graph=True)
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    expected = torch.autograd.grad(f(x, w)[1].square().sum(), (x, w))
    torch.testing.assert_close(torch.autograd.grad(y[1].square().sum(), (x, w)), expected)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), (x, w))


def test_backward_in_parts():
    def g(x):
        y = x.sin()
        return y * 2, y.exp(), x.detach() * 3, (x * 5).long()

    ours = compiled(g)
    x = R(6, requires_grad=True)
    for use in ((0,), (1,), (0, 1)):
        got = torch.autograd.grad([ours(x)[i].sum() for i in use], x)
        torch.testing.assert_close(got, torch.autograd.grad([g(x)[i].sum() for i in use], x))


def test_gradients_of_every_layout():
    """Incoming gradients that are expanded, transposed, with gaps, or zero."""
    ours = compiled(lambda x: (x.exp(), (x * 2).t(), x.sum()))
    x = R(6, 8, requires_grad=True)
    base = R(16, 16)
    for a, b, c in (
        (torch.ones(()).expand(6, 8), R(6, 8).t(), R(())),
        (base[:12:2, ::2], base.t()[:8, :6], R(2)[1]),
        (base.as_strided((6, 8), (1, 9), 3), torch.zeros(8, 6), R(1).expand(1)[0]),
        (None, R(8, 6), None),
    ):
        used = [(o, g) for o, g in zip(ours(x), (a, b, c)) if g is not None]
        wanted = [(o, g) for o, g in zip((x.exp(), (x * 2).t(), x.sum()), (a, b, c)) if g is not None]
        got, expected = [torch.autograd.grad([o for o, _ in pairs], x, [g for _, g in pairs]) for pairs in (used, wanted)]
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_lazy_gradients_of_outputs(dtype):
    """A gradient that comes as a conjugate or negative still to be made, after one that does not, and before."""

    def f(x):
        return x * x, x

    ours = compiled(f)
    x, plain = R(5, 7, dtype=dtype, requires_grad=True), R(5, 7, dtype=dtype)
    for g in (plain, torch._neg_view(plain), plain.conj(), torch._neg_view(plain).conj(), plain):
        expected, got = (torch.autograd.grad(h(x), x, (g, plain)) for h in (f, ours))
        torch.testing.assert_close(got, expected)


def test_accumulated_gradients():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    other = copy.deepcopy(net)
    ours = compiled(net)
    for _ in range(3):
        x = R(5, 6)
        ours(x).square().sum().backward()
        other(x).square().sum().backward()
        for p, q in zip(net.parameters(), other.parameters()):
            torch.testing.assert_close(p.grad, q.grad)
            p.grad.mul_(0.5), q.grad.mul_(0.5)


def run_hooks(wrap):
    torch.manual_seed(0)
    log = []
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    net[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    net[1].register_forward_hook(lambda m, args, out: out + 1)
    net[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 3,))
    net[0].weight.register_hook(lambda g: g * 10)
    net[2].weight.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))
    x = R(5, 6, requires_grad=True)
    x.register_hook(lambda g: log.append(g.clone()))
    y = wrap(net)(x)
    y.register_hook(lambda g: g * 0.5)
    y.square().sum().backward()
    return [y, x.grad, *[p.grad for p in net.parameters()], *log]


def test_hooks():
    torch.testing.assert_close(run_hooks(compiled), run_hooks(lambda net: net))


def test_hooks_on_tensors_inside():
    def g(x):
        y = x.sin()
        y.register_hook(lambda grad: grad * 2)
        return (y * x).sum()

    agree(g, R(6, requires_grad=True))


def test_hooks_added_later():
    """Dynamo looks for them if it is told to."""
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        net = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        ours, x = compiled(net), R(3, 6)
        torch.testing.assert_close(ours(x), net(x))
        handle = net[0].register_forward_hook(lambda m, args, out: out * 7)
        torch.testing.assert_close(ours(x), net(x))
        handle.remove()
        torch.testing.assert_close(ours(x), net(x))


class Scaled(torch.autograd.Function):
    """A function whose backward is not the derivative of its forward."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x.exp() * scale

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() * ctx.scale, None


class Marked(torch.autograd.Function):
    """Writes to its argument, and has an output without gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        flags = x > 0
        ctx.mark_non_differentiable(flags)
        ctx.save_for_backward(flags)
        return x, flags

    @staticmethod
    def backward(ctx, g, _):
        return g * 2 * ctx.saved_tensors[0]


def test_functions_of_the_users():
    agree(lambda x: Scaled.apply(x * 2, 3.0).sum(0), R(4, 5, requires_grad=True))
    agree(lambda x: Marked.apply(x + 1), R(4, 5, requires_grad=True))
    agree(lambda x: Scaled.apply(compiled(lambda y: y.sin())(x), 0.5), R(4, 5, requires_grad=True))


def test_writes_that_need_gradients():
    def g(x, w):
        y = x * 1
        y[1:] = y[:-1].clone() * w
        y.t()[0].mul_(3)
        y[:, ::2] += w[::2]
        return y.sum(0), y

    agree(g, *leaves((5, 6), (6,)))

    def writes_to_input(x, w):
        x.mul_(w)
        x[0] = 1
        return x.exp()

    agree(lambda x, w: compiled(writes_to_input)(x * 1, w), *leaves((5, 6), (6,)), ours=lambda x, w: compiled(writes_to_input)(x * 1, w))
    agree(writes_to_input, R(5, 6), R(6, requires_grad=True))
    agree(writes_to_input, R(5, 6, requires_grad=True), R(6))  # eager refuses: a leaf


def test_checkpointed_and_frozen_parts():
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
    net[0].requires_grad_(False)
    x = R(5, 6)

    def run(x):
        return torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False).square().sum()

    ours = compiled(run)
    for call in (run, ours):
        net.zero_grad()
        call(x).backward()
        assert net[0].weight.grad is None
        if call is run:
            expected = net[2].weight.grad.clone()
    torch.testing.assert_close(net[2].weight.grad, expected)


def test_anomaly_mode_and_graph_attributes():
    ours = compiled(f)
    x, w = leaves((4, 6), (6, 5))
    with torch.autograd.detect_anomaly(check_nan=True):
        ours(x, w)[0].square().sum().backward()
    y = ours(x, w)
    assert y.grad_fn is not None and not y.is_leaf
    y.retain_grad()
    y.sum().backward()
    torch.testing.assert_close(y.grad, torch.ones_like(y))
    with pytest.raises(RuntimeError, match="does not require grad"):
        ours(x.detach(), w.detach()).sum().backward()


def test_losses():
    x, t = R(6, 9, requires_grad=True), torch.randint(0, 9, (6,))
    agree(lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1, weight=torch.arange(9.0)), x, t)
    agree(lambda x, t: F.nll_loss(x.log_softmax(-1), t, ignore_index=3), x, t)


def test_forward_mode():
    """Not silently without derivatives."""
    ours = compiled(lambda x: (x * 2).sin())
    with forward_ad.dual_level():
        x = forward_ad.make_dual(R(4), R(4))
        with pytest.raises(RuntimeError, match="forward-mode"):
            ours(x)
        ours(R(4))
    ours(R(4))
