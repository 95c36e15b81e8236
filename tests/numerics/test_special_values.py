"""NaN, infinities, subnormals, zeros of either sign and casts as in eager mode, bit for bit but for the payload of NaN."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.tests.frontend.compare import OPTIONS

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
INF, NAN = float("inf"), float("nan")


def compiled(f, *inputs):
    torch._dynamo.reset()
    return torch.compile(f, backend="mlirc", dynamic=False, options=OPTIONS)(*inputs)


def equal(f, *inputs, zeros=True):
    """Assert that results are the same; with `zeros`, so are the signs of zeros."""
    for i, (e, g) in enumerate(zip(f(*inputs), compiled(f, *inputs), strict=True)):
        assert (e.dtype, e.shape) == (g.dtype, g.shape)
        right = e == g
        if e.is_floating_point():
            right = right & (torch.signbit(e) == torch.signbit(g)) if zeros else right
            right = right | (e.isnan() & g.isnan())
        bad = (~right).nonzero()
        assert not len(bad), f"result {i}: {g[tuple(bad[0])]} instead of {e[tuple(bad[0])]} at {tuple(bad[0].tolist())}"


def numbers(dtype):
    info = torch.finfo(dtype)
    few = [0.0, 0.5, 1.0, 1.5, 2.5, 3.5, 0.1, 100.0, 1e4, info.smallest_normal, info.smallest_normal / 4, info.max, info.eps, 1 + info.eps]
    few += [1 / info.eps, 0.5 / info.eps + 0.5, 0.49999997, INF, NAN]
    return torch.tensor([*few, *(-v for v in few)], dtype=torch.float64).to(dtype)


def pairs(dtype):
    x, y = torch.meshgrid(numbers(dtype), numbers(dtype), indexing="ij")
    return x.flatten().clone(), y.flatten().clone()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_extrema_keep_nan(dtype):
    def extrema(x, y):
        out = [torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), torch.fmin(x, y), x.clamp(-1, 1), x.clamp(min=y), x.clamp(max=2)]
        return [*out, F.relu(x), F.relu6(x), F.leaky_relu(x), F.hardtanh(x), F.threshold(x, 0.1, 7)]

    equal(extrema, *pairs(dtype), zeros=False)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", [1, 3, 17, 33])
def test_reductions_keep_nan(dtype, size):
    for place in {0, size // 2, size - 1}:
        x = torch.linspace(-3, 3, size).to(dtype).repeat(5, 1)
        x[1, place] = NAN
        x[2, place] = INF
        x[3] = -INF
        equal(lambda x: (x.amax(1), x.amin(1), *x.max(1), *x.min(1), x.argmax(1), x.argmin(0), x.argmax()[None], x.amax(0)), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_comparisons_and_tests(dtype):
    def comparisons(x, y):
        out = [x < y, x <= y, x > y, x >= y, x == y, x != y, x.isnan(), x.isinf(), x.isfinite(), x.isposinf(), x.isneginf(), x.signbit()]
        return [*out, x.to(torch.bool), torch.logical_not(x), torch.isclose(x, y), torch.isclose(x, y, equal_nan=True), x.sign(), -x, x.abs()]

    equal(comparisons, *pairs(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rounding(dtype):
    equal(lambda x, y: (x.round(), x.floor(), x.ceil(), x.trunc(), torch.copysign(x, y), x.nan_to_num()), *pairs(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_arithmetic_on_subnormals(dtype):
    tiny = torch.finfo(dtype).smallest_normal
    x = tiny * torch.tensor([0.25, -0.5, 0.75, 1.0, 1.5, -2.0, 0.0, -0.0, 3e-5], dtype=dtype)
    x, y = (t.flatten().clone() for t in torch.meshgrid(x, torch.cat([x, torch.tensor([0.5, 2.0, 1.0], dtype=dtype)]), indexing="ij"))
    equal(lambda x, y: (x + y, x - y, x * y, x / y, x.sqrt(), x * 0.5, x * 4, x.abs(), torch.maximum(x, y)), x, y)


@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_casts_between_floats(source):
    equal(lambda x: [x.to(d) for d in FLOATS], torch.cat([numbers(source), numbers(torch.float32).to(source), numbers(torch.float16).to(source)]))


@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_casts_to_integers_in_range(source):
    """Towards zero. Out of range, C++ leaves the result undefined, and eager mode's differs between vectors and their tails."""
    for target in INTEGERS:
        info = torch.iinfo(target)
        values = [0.0, -0.0, 0.9, 1.5, 2.5, 100.25, 127.0, -0.9, -1.5, -100.75, -127.0]
        x = torch.tensor([v for v in values if v > info.min - 1], dtype=source)
        equal(lambda x, t=target: (x.to(t),), x.repeat(5))


def test_casts_between_integers():
    for source in INTEGERS:
        info = torch.iinfo(source)
        values = [v for v in (info.min, info.max, info.max // 2, -129, -128, -1, 0, 1, 127, 128, 255, 256) if info.min <= v <= info.max]
        equal(lambda x: [x.to(d) for d in (*INTEGERS, *FLOATS, torch.bool)], torch.tensor(values, dtype=source).repeat(3))


@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_negative_floats_and_nan_as_small_integers(source):
    """What ATen does on x86 where C++ leaves it open: through a wider integer, so that -1.0 is 255."""
    x = torch.tensor([-1.0, -2.5, -128.0, 255.0, 256.0, 300.0], dtype=source)
    got = compiled(lambda x: (x.to(torch.uint8), x.to(torch.bool), (x * NAN).to(torch.bool)), x)
    assert got[0].tolist() == [255, 254, 128, 255, 0, 44]
    assert got[1].all() and got[2].all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_of_extremes(dtype):
    x = torch.linspace(-4, 4, 6 * 33).reshape(6, 33).to(dtype)
    x[1, 3:] = -INF
    x[2] = -INF
    x[3, 5] = INF
    x[4] = torch.finfo(dtype).max / 4
    x[5, 7] = NAN

    def softmaxes(x):
        return x.softmax(1), x.log_softmax(1), x.logsumexp(1)

    # In f64: eager mode's own logsumexp of f16 is off by more than the tolerance.
    for e, g in zip(softmaxes(x.double()), compiled(softmaxes, x)):
        torch.testing.assert_close(g, e.to(dtype), equal_nan=True)
    assert all(torch.equal(e.isnan(), g.isnan()) for e, g in zip(softmaxes(x), compiled(softmaxes, x)))


SIZE = 10_000_000


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 2e-6), (torch.bfloat16, 4e-3), (torch.float64, 1e-12)], ids=str)
def test_long_reductions(dtype, bound):
    """Ten million positive numbers, relative to the result; against f64."""
    x = torch.rand(SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float32).add_(0.5).to(dtype)
    wide = x.double()

    def reductions(x):
        return x.sum(), x.mean(), x.var(), x.norm(), x.amax(), x.logsumexp(0)

    for name, e, g in zip(("sum", "mean", "var", "norm", "amax", "logsumexp"), reductions(wide), compiled(reductions, x)):
        assert abs(g.double() - e) <= bound * abs(e), f"{name}: {g.item()} instead of {e.item()}"
    assert compiled(torch.argmax, x) == x.argmax()


def test_long_sums_of_integers():
    x = torch.randint(-(2**31), 2**31 - 1, (SIZE,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    equal(lambda x: (x.sum()[None], x.sum(dtype=torch.int32)[None], x.amax()[None], x.argmin()[None]), x)


GRADIENTS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "selu": F.selu,
    "elu": lambda x: F.elu(x, 2.0),
    "celu": lambda x: F.celu(x, 1.5),
    "leaky_relu": F.leaky_relu,
    "threshold": lambda x: F.threshold(x, 0.5, 7.0),
    "softplus": F.softplus,
    "clamp": lambda x: x.clamp(-1, 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_activations(dtype):
    """Of NaN and infinities, and where the incoming gradient is one. Multiples of two vectors: eager mode's tails differ at NaN."""
    x, g = torch.meshgrid(torch.tensor([0.0, 1, -1, 3, -3, 6, 0.5, INF, -INF, NAN, 20, -20]), torch.tensor([1.0, -2, 0, INF, NAN]), indexing="ij")
    x, g = (t.flatten().repeat_interleave(64).to(dtype) for t in (x, g))

    def gradients(f):
        inputs = [x.clone().requires_grad_() for _ in GRADIENTS]
        outputs = f(*inputs)
        return outputs, torch.autograd.grad(outputs, inputs, [g] * len(outputs))

    def activations(*inputs):
        return [f(u) for f, u in zip(GRADIENTS.values(), inputs)]

    torch._dynamo.reset()
    expected, got = gradients(activations), gradients(torch.compile(activations, backend="mlirc", options=OPTIONS))
    for name, *pairs in zip(GRADIENTS, *(v for p in zip(expected, got) for v in p)):
        for e, v in (pairs[:2], pairs[2:]):
            torch.testing.assert_close(v, e, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")


def test_elu_of_zero():
    equal(lambda x: (F.elu(x, INF), F.elu(x, -1.0)), torch.tensor([0.0, -0.0, 1.0]).repeat(11))
