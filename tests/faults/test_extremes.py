"""Very deep, very wide, empty, of high rank, and beyond 32 bits."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

STRICT = {"strict": True, "cache": False}
R = torch.randn


def agrees(f, *args, **kwargs):
    torch._dynamo.reset()
    with torch.no_grad():
        got = torch.compile(f, backend="mlirc", options=STRICT, **kwargs)(*args)
        torch.testing.assert_close(got, f(*args), rtol=1e-4, atol=1e-4, equal_nan=True)


def chain(n):
    def f(x):
        for i in range(n):
            x = x * 1.01 + 0.1 if i % 2 else torch.tanh(x)
        return x

    return f


def layers(n):
    linear = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(n)])

    def f(x):
        for layer in linear:
            x = torch.relu(layer(x)) + x * 0.1
        return x

    return f


def test_deep():
    agrees(chain(120), R(4, 8))
    agrees(layers(24), R(3, 8))


@pytest.mark.sweep
def test_very_deep():
    agrees(chain(1400), R(4, 8))  # 2,100 nodes
    agrees(layers(300), R(3, 8))


def total(*tensors):
    out = tensors[0]
    for t in tensors[1:]:
        out = out + t
    return out


def test_many_arguments():
    many = [R(5) for _ in range(1000)]
    agrees(lambda *xs: torch.cat(xs), *many)
    agrees(total, *many[:100])
    agrees(lambda *xs: [x + 1 for x in xs], *many[:30])


@pytest.mark.sweep
def test_very_many_arguments_and_results():
    many = [R(5) for _ in range(1000)]
    agrees(total, *many)
    agrees(lambda *xs: [x + 1 for x in xs], *many)
    agrees(lambda x: [x + i for i in range(1000)], R(3))


def test_huge_constants():
    weight = R(1 << 20)
    agrees(lambda x: x + torch.tensor(list(range(3000))), R(3000))
    agrees(lambda x: (x * weight).sum(), R(1 << 20))
    agrees(lambda x: x * torch.arange(1 << 33, (1 << 33) + 5) + (1 << 40), torch.ones(5, dtype=torch.int64))


EMPTY = {
    "reductions": (lambda x: (x.sum(), x.sum(0), x.mean(), x.prod(1), x.any(), x.logsumexp(0)), (5, 0)),
    "softmax": (lambda x: (x.softmax(-1), x.softmax(0), x.cumsum(1), x.argsort(1)), (5, 0)),
    "products": (lambda x: (x @ x.t(), x.t() @ x, x.t() @ torch.ones(x.shape[0], 3)), (0, 4)),
    "inner": (lambda x: (x @ x.t(), torch.ones(3, x.shape[0]) @ x), (4, 0)),
    "norms": (lambda x: (F.layer_norm(x, (4,)), x.exp().amax(1), F.normalize(x)), (0, 4)),
    "convolution": (lambda x: F.conv2d(x, torch.ones(2, 3, 3, 3)), (0, 3, 8, 8)),
    "views": (lambda x: x.view(0, 2, 2).transpose(1, 2).reshape(-1, 2) + 1, (0, 4)),
    "joins": (lambda x: (torch.cat([x, x + 1, torch.ones(3, 2)], 1), torch.stack([x, x]), F.pad(x, (1, 2))), (3, 0)),
    "indices": (lambda x: (x[torch.zeros(0, dtype=torch.int64)], x.gather(0, torch.zeros(0, 2, dtype=torch.int64))), (3, 2)),
    "pooling": (lambda x: (F.max_pool2d(x, 2), F.interpolate(x, scale_factor=2)), (0, 2, 4, 4)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", EMPTY)
def test_empty(name, dynamic):
    f, shape = EMPTY[name]
    agrees(f, torch.empty(shape), dynamic=dynamic)


def test_sizes_that_become_empty():
    f = torch.compile(lambda x: ((x * 2).softmax(-1), x.sum(0), x @ x.t()), backend="mlirc", options=STRICT, dynamic=True)
    for n in (5, 2, 0, 7, 1, 0):
        x = R(n, 3)
        torch.testing.assert_close(f(x), ((x * 2).softmax(-1), x.sum(0), x @ x.t()), rtol=1e-4, atol=1e-4)


def test_high_ranks():
    x = R(*[2] * 12)
    agrees(lambda x: (x * 2).sum((0, 3, 7)).exp(), x)
    agrees(lambda x: x.permute(list(range(11, -1, -1))) + 1, x)
    agrees(lambda x: (x[..., ::2] + 1).softmax(5), x)
    agrees(lambda x: x.flip(0, 5, 11).reshape(64, 64) @ x.reshape(64, 64), x)
    agrees(lambda x: (x * 2).sum((0, 3, 7)).exp(), R(*[1, 2] * 8, *[1] * 9))
    agrees(lambda x: (x + 1).exp(), R([1] * 64))  # the most that torch's iterators take
    agrees(lambda x: (x.transpose(0, 63) + 1).sum(5), R(*[1] * 32, 2, *[1] * 31))


def test_places_beyond_32_bits():
    """Expanded tensors reach far without memory."""
    one = torch.ones(1, 1)
    agrees(lambda x: x.expand(1 << 20, 1 << 13)[-2:, -10:] + 1, one)
    agrees(lambda x: x[(1 << 20) - 2 :, :3] * 2, one.expand(1 << 20, 1 << 13))
    agrees(lambda x, i: x[i] + 1, torch.ones(1).expand(1 << 40), torch.tensor([0, -1, (1 << 40) - 1, -(1 << 40), 1 << 35]))
    with pytest.raises(IndexError):
        agrees(lambda x, i: x[i] + 1, torch.ones(1).expand(1 << 40), torch.tensor([1 << 40]))


def test_more_than_memory():
    one = torch.ones(1, 1)
    for f in (
        lambda x: x.expand(1 << 22, 1 << 22) + 1,
        # What is sorted is stored; what is the same for all elements would not be, and sums of it take hours.
        lambda x: torch.sort(x.expand(1 << 20, 1 << 22) + 1)[0].sum(),
    ):
        with pytest.raises((RuntimeError, MemoryError), match="allocate"):
            agrees(f, one)
    # Sizes whose product does not fit 64 bits exist for a moment only.
    f = torch.compile(lambda x, n: x.expand(n, n) + 1, backend="mlirc", options=STRICT, dynamic=True)
    assert f(one, 3).sum() == 18
    for n in (1 << 22, 1 << 31, 1 << 40):
        with pytest.raises((RuntimeError, MemoryError)):
            f(one, n)
    assert f(one, 4).sum() == 32
    f = torch.compile(lambda x, n: x.expand(n, n).cumsum(0).sum(), backend="mlirc", options=STRICT, dynamic=True)
    torch.testing.assert_close(f(one, 3), torch.tensor(18.0))
    for n in (1 << 22, 1 << 31, 1 << 32, 1 << 40):
        with pytest.raises((RuntimeError, MemoryError)):
            f(one, n)


def _available():
    with open("/proc/meminfo") as info:
        return int(next(line for line in info if line.startswith("MemAvailable")).split()[1]) << 10


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
@pytest.mark.skipif(not os.path.exists("/proc/meminfo") or _available() < 14 << 30, reason="takes 14 GiB of memory")
def test_more_than_2_31_elements(dtype):
    n = (1 << 31) + 17
    x = torch.zeros(n, dtype=dtype)
    x[-3:], x[5] = 1, 1

    def f(x):
        return x ^ 1, x[-20:] | x[:20]

    torch.testing.assert_close(torch.compile(f, backend="mlirc", options=STRICT)(x), f(x))
    i = torch.tensor([n - 1, -n, 5, 1 << 31, n - 4])
    agrees(lambda x, i: (x[i], x.index_select(0, i.abs() % n), x.flip(0)[-30:]), x, i)
    agrees(lambda x: (x.any(), x.view(-1, 5, 17)[..., 3].sum(0)) if x.dtype == torch.bool else x.amax(), x[: n // 85 * 85])
    x.resize_(0)
