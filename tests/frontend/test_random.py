"""Random numbers: the generator's known answers, the distributions, and that a seed repeats them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from mlirc.frontend import philox
from mlirc.frontend.philox import ops
from mlirc.options import Options
from mlirc.tests.frontend.compare import OPTIONS, left_to_aten

N = 100_003


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def compiled(f, **options):
    return torch.compile(f, backend="mlirc", dynamic=options.pop("dynamic", None), options={**OPTIONS, **options})


def seeded(f, *args, seed=7):
    torch.manual_seed(seed)
    return f(*args)


def test_philox_known_answers():
    """The vectors of Random123 for philox4x32-10 with a zero counter and key, and with positions as counters."""
    assert [int(w) for w in philox.words(torch.tensor(0), [1])] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    key = 0x299F31D0_A4093822
    (w, *_) = philox.words(torch.tensor(key), [3])
    assert len(set(w.tolist())) == 3 and all(0 <= v < 2**32 for v in w.tolist())


@pytest.mark.parametrize("seed", [0, -1, 0x299F31D0A4093822])
def test_kernels_draw_what_the_definition_says(seed):
    def f(seed):
        floats = [ops.rand(seed, [5, 37], d) for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16)]
        bounds = [(0, 10), (-5, 250), (-(2**31), 2**31), (0, 2**32), (-(2**60), 2**61), (-(2**63), 2**63 - 1)]
        whole = [ops.randint(seed, low, high, [203], torch.int64) for low, high in bounds]
        return floats, whole, [ops.bernoulli(seed, p, [3, 67]) for p in (0.0, 0.3, 1.0)], ops.randint(seed, 0, 100, [70], torch.uint8)

    s = torch.tensor(seed)
    for mine, theirs in zip(torch.utils._pytree.tree_leaves(compiled(f)(s)), torch.utils._pytree.tree_leaves(f(s)), strict=True):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)
    normal = lambda s: [ops.randn(s, [501], d) for d in (torch.float32, torch.float64)]  # noqa: E731
    for mine, theirs in zip(compiled(normal)(s), normal(s)):
        torch.testing.assert_close(mine, theirs, rtol=1e-5 if mine.dtype == torch.float32 else 1e-12, atol=1e-6)


def _ks(x: torch.Tensor, cdf) -> float:
    """Kolmogorov and Smirnov's distance times sqrt(n); above 1.95 with probability 0.001."""
    x = cdf(x.double().flatten().sort().values)
    n = x.numel()
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    return float(torch.maximum((x - steps[:-1]).abs().max(), (x - steps[1:]).abs().max())) * math.sqrt(n)


def _normal_cdf(x):
    return torch.special.ndtr(x)


CONTINUOUS = {
    "rand": (lambda: torch.rand(N), lambda x: x),
    "rand f64": (lambda: torch.rand(N, dtype=torch.float64), lambda x: x),
    "randn": (lambda: torch.randn(N), _normal_cdf),
    "randn f64": (lambda: torch.randn(N, dtype=torch.float64), _normal_cdf),
    "uniform": (lambda: torch.empty(N).uniform_(-3, 5), lambda x: (x + 3) / 8),
    "normal": (lambda: torch.empty(N).normal_(2, 3), lambda x: _normal_cdf((x - 2) / 3)),
    "normal of numbers": (lambda: torch.normal(2.0, 3.0, (N,)), lambda x: _normal_cdf((x - 2) / 3)),
    "normal of tensors": (lambda: torch.normal(torch.full((N,), 2.0), torch.full((N,), 3.0)), lambda x: _normal_cdf((x - 2) / 3)),
    "exponential": (lambda: torch.empty(N).exponential_(0.5), lambda x: 1 - torch.exp(-0.5 * x)),
    "cauchy": (lambda: torch.empty(N).cauchy_(1, 2), lambda x: 0.5 + torch.atan((x - 1) / 2) / math.pi),
    "log_normal": (lambda: torch.empty(N).log_normal_(0.5, 0.7), lambda x: _normal_cdf((x.log() - 0.5) / 0.7)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_distribution(name):
    draw, cdf = CONTINUOUS[name]
    c = compiled(draw)
    x = seeded(c)
    assert not left_to_aten()
    assert _ks(x, cdf) < 1.95 and x.isfinite().all()
    assert torch.equal(x, seeded(c)) and not torch.equal(x, c())
    # Neighbours and successive calls are independent: their ranks do not correlate.
    u, v = cdf(x.double()) - 0.5, cdf(c().double()) - 0.5
    for a, b in ((u[1:], u[:-1]), (u[16:], u[:-16]), (u, v)):
        assert abs((a * b).mean().item()) * 12 * math.sqrt(N) < 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_two_byte_floats(dtype):
    x, y = seeded(compiled(lambda: (torch.rand(N, dtype=dtype), torch.randn(N, dtype=dtype))))
    assert x.dtype == y.dtype == dtype and 0 <= x.min() and x.max() < 1
    assert abs(x.float().mean() - 0.5) < 0.01 and abs(y.float().mean()) < 0.02 and abs(y.float().std() - 1) < 0.02


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("low,high", [(0, 1), (1, 2), (-3, -1), (-1, 0), (0.5, 3.3), (100, 101.5), (-0.3, 1e-3), (1, 1 + 2**-20)])
def test_the_end_is_left_out(dtype, low, high):
    f = lambda: torch.empty(N, dtype=dtype).uniform_(low, high)  # noqa: E731
    x = seeded(compiled(f))
    least, most = torch.tensor([low, high], dtype=dtype)
    assert not left_to_aten() and least <= x.min()
    assert x.max() < high or least == most
    if most - least > 20 * abs(most) * torch.finfo(dtype).eps:
        middle = (low + high) / 2
        assert abs(x.double().mean() - middle) < 0.02 * (high - low)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("low,high", [(0, 1000), (0, 2048), (-2051, 5), (-3, 2049), (0, 7), (-4099, 4099)])
def test_integers_in_floats_stay_below_the_end(dtype, low, high):
    draw = lambda: (torch.randint(low, high, (N,), dtype=dtype), torch.empty(N, dtype=dtype).random_(low, high))  # noqa: E731
    eager = seeded(draw)
    for x, e in zip(seeded(compiled(draw)), eager, strict=True):
        assert x.min() == e.min() and x.max() == e.max() and x.max().item() < high
    assert not left_to_aten()


DISCRETE = {
    "randint": (lambda: torch.randint(0, 10, (N,)), [0.1] * 10),
    "randint low": (lambda: torch.randint(-2, 2, (N,), dtype=torch.int32) + 2, [0.25] * 4),
    "randint_like": (lambda: torch.randint_like(torch.zeros(N), 1, 4), [0, 1 / 3, 1 / 3, 1 / 3]),
    "random": (lambda: torch.empty(N, dtype=torch.int64).random_(5), [0.2] * 5),
    "bernoulli": (lambda: torch.bernoulli(torch.full((N,), 0.3)), [0.7, 0.3]),
    "bernoulli_": (lambda: torch.empty(N).bernoulli_(0.3), [0.7, 0.3]),
    "bernoulli of a tensor": (lambda: torch.empty(N).bernoulli_(torch.full((N,), 0.3)), [0.7, 0.3]),
    "geometric": (lambda: torch.empty(N).geometric_(0.4), [0, 0.4, 0.24, 0.144, 0.0864]),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_frequencies(name):
    draw, expected = DISCRETE[name]
    c = compiled(draw)
    x = seeded(c)
    assert not left_to_aten() and x.dtype == draw().dtype
    for value, p in enumerate(expected):
        assert abs((x == value).double().mean() - p) <= 4 * math.sqrt(p * (1 - p) / N), value
    assert torch.equal(x, seeded(c)) and not torch.equal(x, c())


def test_state_of_the_generator():
    """What manual_seed, get_rng_state and fork_rng do to eager mode they do to compiled functions."""
    c = compiled(lambda x: F.dropout(x) + torch.rand_like(x))
    x = torch.randn(50, 7)
    first = seeded(c, x)
    state = torch.get_rng_state()
    second = c(x)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    with torch.random.fork_rng():
        assert torch.equal(c(x), second)
    assert torch.equal(c(x), second)


def test_numbers_do_not_depend_on_threads_shapes_or_fusion():
    f = lambda x: torch.rand(x.shape[0], 1000)  # noqa: E731
    x, threads = torch.zeros(70), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = seeded(compiled(f), x)
        torch.set_num_threads(2)
        two = seeded(compiled(f), x)
    finally:
        torch.set_num_threads(threads)
    torch._dynamo.reset()
    dynamic = seeded(compiled(f, dynamic=True), x)
    fused = seeded(compiled(lambda x: (f(x).T + 1).sum(0)), x)
    assert torch.equal(one, two) and torch.equal(one, dynamic)
    torch.testing.assert_close(fused, (one + 1).sum(1), rtol=1e-5, atol=1e-5)


def test_dynamic_bounds():
    f = lambda x: torch.randint(0, x.shape[0], (x.shape[0],))  # noqa: E731
    c = compiled(f, dynamic=True)
    for n in (3, 70):
        x = torch.zeros(n)
        drawn = seeded(c, x)
        assert drawn.min() >= 0 and drawn.max() < n and not left_to_aten()
        torch._dynamo.reset()
        assert torch.equal(drawn, seeded(compiled(f, dynamic=False), x))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_dropout(p):
    """Each element is zero or scaled; backward has the same mask; nothing happens in inference."""
    c = compiled(lambda x: F.dropout(x, p))
    x = torch.ones(301, 33, requires_grad=True)
    y = seeded(c, x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach()) and not left_to_aten()
    scale = 1 / (1 - p) if p < 1 else 0.0
    assert torch.equal(y.detach(), torch.where(y.detach() != 0, scale, 0.0))
    assert abs((y == 0).double().mean() - p) <= 4 * math.sqrt(p * (1 - p) / y.numel())
    assert torch.equal(compiled(lambda x: F.dropout(x, p, training=False))(x), x)


def test_dropout_in_a_model():
    layer = torch.nn.TransformerEncoderLayer(32, 2, 64, dropout=0.2, batch_first=True)
    c = compiled(layer)
    x = torch.randn(2, 9, 32)
    outs, grads = [], []
    for _ in range(2):
        layer.zero_grad()
        y = seeded(c, x)
        y.sum().backward()
        outs.append(y.detach())
        grads.append(layer.linear1.weight.grad.clone())
    assert torch.equal(outs[0], outs[1]) and torch.equal(grads[0], grads[1])
    assert not any("dropout" in op or "bernoulli" in op for op in left_to_aten())


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "around"])
def test_activation_checkpointing(inside):
    """What backward computes again uses the numbers of forward."""
    w = torch.randn(16, 16)

    def block(x):
        return F.dropout(torch.tanh(x @ w), 0.5) * (torch.rand_like(x) > 0.3)

    if inside:
        f = compiled(lambda x: checkpoint(block, x, use_reentrant=False))
    else:
        inner = compiled(block)
        f = lambda x: checkpoint(inner, x, use_reentrant=False)  # noqa: E731
    x = torch.randn(8, 16, requires_grad=True)
    y = seeded(f, x)
    (got,) = torch.autograd.grad(y.sum(), x)
    scale = torch.where(y != 0, 2.0, 0.0)
    pre = torch.tanh(x @ w)
    torch.testing.assert_close(y, pre * scale)
    (expected,) = torch.autograd.grad((pre * scale.detach()).sum(), x)
    torch.testing.assert_close(got, expected)


def test_noise_in_backward():
    """Gumbel-softmax and rrelu: gradients belong to the noise of forward."""
    x = torch.randn(64, 10, requires_grad=True)
    c = compiled(lambda x: F.gumbel_softmax(x, tau=0.7))
    y = seeded(c, x)
    (got,) = torch.autograd.grad(y.pow(2).sum(), x)
    expected = (2 * y * y - y * (2 * y * y).sum(-1, keepdim=True)) / 0.7
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    c = compiled(lambda x: F.rrelu(x, 0.1, 0.3, training=True))
    y = seeded(c, x)
    (got,) = torch.autograd.grad(y.sum(), x)
    assert not left_to_aten()
    slope = torch.where(x > 0, 1.0, got)
    torch.testing.assert_close(y, x * slope)
    assert ((slope >= 0.1) & (slope <= 0.3) | (x > 0)).all()


def test_memory_order():
    x = torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    f = lambda x: (torch.rand_like(x), torch.randn_like(x), F.dropout(x + 1), torch.empty_like(x).bernoulli_())  # noqa: E731
    assert [y.stride() for y in compiled(f)(x)] == [x.stride()] * 4
    f = lambda x: (torch.bernoulli(x), torch.bernoulli(x[:, 1:]))  # noqa: E731
    assert [y.stride() for y in compiled(f)(x)] == [y.stride() for y in f(x)] == [(60, 20, 5, 1), (40, 20, 5, 1)]
    f = lambda x: (torch.bernoulli(x, 0.3), x.bernoulli(0.3), x.permute(3, 2, 1, 0).bernoulli(0.3), x.clone().bernoulli_(0.3))  # noqa: E731
    assert [y.stride() for y in compiled(f)(x)] == [y.stride() for y in f(x)] == [(60, 20, 5, 1)] * 2 + [(24, 6, 2, 1), x.stride()]


def test_option_aten():
    """With rng="aten" the numbers are those of eager mode."""

    def f(x):
        y = F.dropout(x + 1) * 2 + torch.rand_like(x), torch.randint(0, 9, (7,))
        return *y, torch.bernoulli(x.sigmoid()), x.clone().exponential_(), torch.normal(0.0, 1.0, (5,))

    x = torch.randn(33, 7)
    for mine, theirs in zip(seeded(compiled(f, rng="aten"), x), seeded(f, x)):
        torch.testing.assert_close(mine, theirs)
    assert "aten.rand_like.default" in left_to_aten()
    with pytest.raises(ValueError, match="native, aten"):
        Options.make({"rng": "cuda"})


def test_left_to_aten():
    """Generators of the user's, and draws that are not independent."""
    g = torch.Generator()
    f = lambda: torch.rand(40, generator=g)  # noqa: E731
    assert torch.equal(compiled(f)(), (g.manual_seed(g.initial_seed()), f())[1])
    p = torch.tensor([0.2, 0.3, 0.5])
    f = lambda p: (torch.randperm(9), torch.multinomial(p, 2))  # noqa: E731
    for mine, theirs in zip(seeded(compiled(f), p), seeded(f, p)):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("f", [lambda x: x.clone().uniform_(3, 1), lambda x: x.clone().bernoulli_(2.0)])
def test_bounds_are_checked(f):
    with pytest.raises(RuntimeError, match="expects"):
        torch.compile(f, backend="mlirc")(torch.zeros(3))


INTEGERS = [
    lambda: torch.randint(0, 257, (3,), dtype=torch.uint8),
    lambda: torch.randint(-129, 5, (3,), dtype=torch.int8),
    lambda: torch.randint(0, 3, (3,), dtype=torch.bool),
    lambda: torch.randint(0, 100000, (3,), dtype=torch.float16),
    lambda: torch.randint_like(torch.zeros(3, dtype=torch.int8), 300),
    lambda: torch.normal(torch.tensor([1, 2]), 0.0),
]


@pytest.mark.parametrize("case", range(len(INTEGERS)))
def test_integers_outside_of_the_type_are_refused(case):
    for f in (INTEGERS[case], torch.compile(INTEGERS[case], backend="mlirc")):
        with pytest.raises(RuntimeError, match="out of bounds|not implemented for"):
            f()


@pytest.mark.parametrize("bad", [1.5, -0.1, math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_probabilities_are_checked(bad, dtype):
    p = torch.rand(5, 67).to(dtype)
    functions = [
        lambda p: torch.bernoulli(p),
        lambda p: torch.bernoulli(p.t() * 1) + 1,
        lambda p: torch.zeros(5, 67).bernoulli_(p),
        lambda p: torch.where(torch.bernoulli(p[:, 3:]) > 0, 2.0, p[:, 3:]),
    ]
    wrong = p.clone()
    wrong[3, 65] = bad
    for f in functions:
        torch._dynamo.reset()
        g = compiled(f)
        g(p)
        for call in (f, g):
            with pytest.raises(RuntimeError, match="Expected p_in >= 0 && p_in <= 1"):
                call(wrong)
        g(p)
        assert torch.equal(g(p.round()).bool(), f(p.round()).bool())


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_probabilities_are_floats(dtype):
    p = torch.ones(3, dtype=dtype)
    for f in (lambda p: torch.bernoulli(p), lambda p: torch.zeros(3).bernoulli_(p)):
        with pytest.raises(NotImplementedError):
            torch.compile(f, backend="mlirc")(p)
    with pytest.raises(RuntimeError, match="nan"):
        torch.compile(lambda x: F.dropout(x, math.nan), backend="mlirc")(torch.ones(3))
