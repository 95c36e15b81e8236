"""Random numbers: a seed repeats them, the generator moves on as in eager mode, the statistics are right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from mlirc.tests.semantics.agree import compiled

R = torch.randn
N = 40_000

SOURCES = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout of an expression": lambda x: (F.dropout(x.exp() + 1, 0.5) * 2).sum(1),
    "two dropouts": lambda x: F.dropout(F.dropout(x, 0.5), 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.2, training=True),
    "feature_dropout": lambda x: F.dropout2d(x.view(1, 8, -1, 10), 0.5, training=True),
    "rand": lambda x: torch.rand(x.shape) + x,
    "rand_like": lambda x: torch.rand_like(x) * x,
    "randn": lambda x: torch.randn(x.shape[0], 3).t() + 1,
    "randn_like": lambda x: x + torch.randn_like(x) * 0.1,
    "bernoulli": lambda x: torch.bernoulli(torch.sigmoid(x)) * 3,
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.25) + x,
    "normal_": lambda x: torch.empty_like(x).normal_(2.0, 3.0).sum(0),
    "normal": lambda x: torch.normal(x, 0.5),
    "uniform_": lambda x: torch.empty_like(x).uniform_(-1, 4) * 2,
    "exponential_": lambda x: torch.empty_like(x).exponential_(2.0) + 1,
    "randint": lambda x: torch.randint(-3, 9, (7, x.shape[1])) * 2,
    "randperm": lambda x: x[torch.randperm(x.shape[0])],
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 4, replacement=True) + 1,
    "rrelu": lambda x: F.rrelu(x, training=True) + 1,
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, hard=True),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 2, -1, 10)] * 3, dropout_p=0.2),
    "several": lambda x: (torch.rand(3), F.dropout(x, 0.5), torch.randn(2), torch.rand(3)),
    "in place": lambda x: x.clone().uniform_().add_(torch.rand(())),
}


def flat(tree):
    return torch.cat([t.double().flatten() for t in torch.utils._pytree.tree_leaves(tree)])


@pytest.mark.parametrize("name", SOURCES)
def test_seeds(name):
    """The same seed gives the same numbers and leaves the generator in the same state; calls differ."""
    ours = compiled(SOURCES[name])
    x = R(40, 10)
    ours(x)
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        runs.append([ours(x), torch.get_rng_state(), ours(x), torch.get_rng_state()])
    torch.testing.assert_close(*runs, rtol=0, atol=0)
    first, after, second, end = runs[0]
    assert not torch.equal(flat(first), flat(second)) and not torch.equal(after, end)
    torch.set_rng_state(after)
    assert torch.equal(flat(ours(x)), flat(second))
    torch.manual_seed(6)
    assert not torch.equal(flat(ours(x)), flat(first))
    expected = SOURCES[name](x)
    for g, e in zip(torch.utils._pytree.tree_leaves(first), torch.utils._pytree.tree_leaves(expected)):
        assert (g.shape, g.dtype, g.stride()) == (e.shape, e.dtype, e.stride())


DEFAULT = ("dropout", "several", "rand", "multinomial")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in DEFAULT else pytest.mark.sweep) for n in SOURCES])
def test_seeds_of_eager_mode(name):
    """With the option `rng=aten` the numbers are those of eager mode, and the generator ends where it leaves it."""
    f = SOURCES[name]
    ours = torch.compile(f, backend="mlirc", options={"strict": True, "rng": "aten"})
    x = R(40, 10)
    torch.manual_seed(5)
    expected = [f(x), f(x)]
    state = torch.get_rng_state()
    torch.manual_seed(5)
    got = [ours(x), ours(x)]
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(got, expected)


def test_order_of_eager_mode():
    """Numbers are drawn in the order of the program, also where the kernel that needs the later ones makes what the earlier ones need."""

    def f(x):
        y = x * 2
        return torch.multinomial(y.abs(), 2), y + torch.rand(8), torch.multinomial(y.exp(), 2) + torch.randperm(2)

    ours = torch.compile(f, backend="mlirc", options={"strict": True, "rng": "aten"})
    x = R(8)
    for _ in range(2):
        torch.manual_seed(5)
        expected = f(x)
        torch.manual_seed(5)
        torch.testing.assert_close(ours(x), expected)


def test_generators_are_left_alone():
    ours = compiled(lambda x: F.dropout(x, 0.5))
    x = torch.ones(100)
    ours(x)
    torch.manual_seed(1)
    with torch.random.fork_rng():
        a = ours(x)
    b = ours(x)
    assert torch.equal(a, b)
    before = torch.get_rng_state()
    compiled(lambda x: F.dropout(x, 0.0, training=True) + F.dropout(x, 0.5, training=False))(x)
    assert torch.equal(torch.get_rng_state(), before)
    generator = torch.Generator().manual_seed(3)
    draw = compiled(lambda x: x + torch.rand(4, generator=generator))
    expected = torch.rand(4, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(draw(torch.zeros(4)), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_statistics():
    torch.manual_seed(0)
    f = compiled(lambda x: (F.dropout(x, 0.3), torch.rand(N), torch.randn(N), torch.bernoulli(x * 0.2), torch.randint(0, 10, (N,))))
    dropped, uniform, normal, coin, dice = f(torch.ones(N))
    assert abs((dropped == 0).double().mean() - 0.3) < 0.02
    torch.testing.assert_close(dropped[dropped != 0], torch.full_like(dropped[dropped != 0], 1 / 0.7))
    assert 0 <= uniform.min() and uniform.max() < 1
    for values, mean, deviation in ((uniform, 0.5, 12**-0.5), (normal, 0, 1), (coin, 0.2, 0.4), (dice.float(), 4.5, 8.25**0.5)):
        assert abs(values.mean() - mean) < 0.05 * deviation
        assert abs(values.std() - deviation) < 0.02 * deviation
    for values in (uniform, normal):  # neighbours have nothing to do with each other
        assert abs(torch.corrcoef(torch.stack([values[1:], values[:-1]]))[0, 1]) < 0.03


@pytest.mark.parametrize("mode", ["plain", "checkpoint", "checkpoint outside"])
def test_dropout_in_backward_is_that_of_forward(mode):
    """Also where activation checkpointing computes forward again."""
    torch.manual_seed(0)
    layer, last = nn.Linear(20, 30), nn.Linear(30, 4)

    def block(x):
        return F.dropout(layer(x).relu(), 0.5)

    def model(x):
        y = checkpoint(block, x, use_reentrant=False) if mode == "checkpoint" else block(x)
        return last(y).square().sum()

    aten = {"strict": True, "rng": "aten"}  # the numbers of eager mode, to compare with
    ours = torch.compile(model, backend="mlirc", options=aten)
    if mode == "checkpoint outside":
        inner = torch.compile(block, backend="mlirc", options=aten)

        def ours(x):
            return last(checkpoint(inner, x, use_reentrant=False)).square().sum()

    parameters = [*layer.parameters(), *last.parameters()]
    for seed in range(3):
        x = R(8, 20, requires_grad=True)
        runs = []
        for f in (model, ours):
            torch.manual_seed(seed)
            loss = f(x)
            runs.append([loss, *torch.autograd.grad(loss, [x, *parameters])])
        torch.testing.assert_close(runs[1], runs[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["plain", "checkpoint", "checkpoint outside"])
def test_dropout_gradients_are_the_mask(mode):
    block = lambda x: F.dropout(x.exp(), 0.4).log1p()  # noqa: E731
    again = lambda f: lambda x: checkpoint(f, x, use_reentrant=False)  # noqa: E731
    f = compiled(again(block) if mode == "checkpoint" else block)
    f = again(f) if mode == "checkpoint outside" else f
    for _ in range(3):
        x = torch.zeros(1000, requires_grad=True)
        y = f(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        kept = y.detach() > 0
        assert 0.5 < kept.double().mean() < 0.7
        torch.testing.assert_close(gradient, torch.where(kept, (1 / 0.6) / (1 + 1 / 0.6), 0.0))
