"""How functions become graphs: breaks, arguments that are numbers or containers, recompilation, symbolic and unknown sizes, modes."""

from __future__ import annotations

import dataclasses
from collections import namedtuple

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

from mlirc.tests.semantics.agree import agree, compiled

R = torch.randn


@pytest.fixture
def config():
    """Dynamo's configuration, put back afterwards."""
    with torch._dynamo.config.patch():
        yield torch._dynamo.config


# Graph breaks


def prints(x):
    y = x * 2
    print("", end="")
    return y.sum(0) + x[0]


def branches(x):
    if x.sum() > 0:
        return x + 1
    return x.neg().exp(), x


def reads_a_number(x):
    n = int(x.abs().sum().item()) % 3 + 1
    x = x * n
    return x[:n], float(x[0, 0]), n


def loops_over_data(x):
    total = torch.zeros(())
    while total < 3:
        total = total + x.abs().sum() + 0.5
    return total


def goes_through_numpy(x):
    a = x.numpy() * 2
    return torch.from_numpy(a) + 1, torch.as_tensor(a.sum())


def lists_and_strings(x):
    return [str(int(v)) for v in (x.sum(1) * 0).tolist()], x * 2


def writes_around_a_break(x):
    x.add_(1)
    torch._dynamo.graph_break()
    y = x[1:]
    y.mul_(2)
    torch._dynamo.graph_break()
    return x, y


def sorts_in_python(x):
    return sorted(x.sum(1), key=float)


BREAKING = [prints, branches, reads_a_number, loops_over_data, goes_through_numpy, lists_and_strings, writes_around_a_break, sorts_in_python]


@pytest.mark.parametrize("f", BREAKING, ids=lambda f: f.__name__)
def test_graph_breaks(f):
    ours = agree(f, R(4, 5))
    agree(f, -R(4, 5).abs(), ours=ours)
    agree(f, R(4, 5).abs(), ours=ours)
    agree(f, R(7, 5).abs(), ours=ours)


def test_fullgraph():
    agree(lambda x: x.softmax(-1) @ x.t(), R(4, 5), fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(prints, fullgraph=True)(R(4, 5))
    counters.clear()
    net = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(32, 2))
    compiled(net, fullgraph=True)(R(2, 3, 10)).sum().backward()
    assert counters["stats"]["unique_graphs"] == 1


def test_disabled_parts():
    calls = []

    @torch.compiler.disable
    def outside(x):
        calls.append(torch.compiler.is_compiling())
        return x.sin()

    agree(lambda x: outside(x * 2) + 1, R(4))
    assert calls and not any(calls)
    agree(lambda x: x + (1 if torch.compiler.is_compiling() else 1), R(4))


# Arguments


Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    mask: torch.Tensor | None = None
    scale: float = 1.0


def test_containers():
    def f(x, items, table, pair):
        y = sum(items) * table["w"] + pair.left
        return {"y": y, "parts": (y[0], [y[1:], None]), "pair": Pair(y.sum(), pair.right), "n": len(items), "keys": [*table]}

    agree(f, R(3), [R(3), R(3)], {"w": R(3), "unused": None}, Pair(R(3), 4))

    def g(batch: Batch):
        y = batch.x * batch.scale
        if batch.mask is not None:
            y = y.masked_fill(batch.mask, 0)
        return Batch(y, batch.mask, batch.scale + 1)

    ours = compiled(g)
    for batch in (Batch(R(4)), Batch(R(4), R(4) > 0), Batch(R(4), None, 3.0), Batch(R(4), R(4) > 0, -1.0)):
        got, expected = ours(batch), g(batch)
        torch.testing.assert_close(dataclasses.asdict(got), dataclasses.asdict(expected))

    def h(x, *rest, scale=1.0, **named):
        return [x * scale + sum(rest), {k: v * 2 for k, v in named.items()}]

    ours = compiled(h)
    for args, named in (((R(3),), {}), ((R(3), R(3)), {"a": R(2)}), ((R(3), 2), {"scale": 5, "b": 7})):
        torch.testing.assert_close(ours(*args, **named), h(*args, **named))


NUMBERS = {
    "int": (lambda x, n: x * n + n // 2, (1, 2, 3, 7, -4, 0, 1 << 40)),
    "float": (lambda x, s: x * s + (s + 2), (0.5, 1.0, -2.0, 3.25, float("inf"), 0.0)),
    "bool": (lambda x, b: x + 1 if b else x * 2 + b, (True, False, True)),
    "mixed": (lambda x, v: x * v, (1, 1.0, True, 2, 2.5, False)),
    "size": (lambda x, n: (x[:n] * 2, x.new_zeros(n, 2), torch.arange(n)), (1, 2, 3, 4, 5, 0)),
    "dim": (lambda x, d: x.sum(d), (0, 1, -1, 0)),
    "string": (lambda x, s: F.interpolate(x[None, None], scale_factor=2, mode=s), ("nearest", "bilinear", "nearest")),
    "dtype": (lambda x, d: x.to(d) + 1, (torch.float64, torch.int32, torch.float32, torch.bfloat16)),
    "none": (lambda x, y: x if y is None else x + y, (None, 2, None)),
    "complex": (lambda x, c: (x * c).real, (1j, 2 + 1j, 3.0)),
    "float in a reduction": (lambda x, p: (x.abs() ** p).sum() ** (1 / p), (2.0, 3.0, 1.5, 4.0)),
    "float as eps": (lambda x, e: F.layer_norm(x, (5,), eps=e), (1e-5, 1e-2, 1.0)),
    "int as divisor": (lambda x, n: (x * 10).long() // n + (x * 10).long() % n, (3, 2, 5, 7, -3)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [None, True], ids=["default", "dynamic"])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_change(name, dynamic):
    f, values = NUMBERS[name]
    ours = compiled(f, dynamic=dynamic)
    x = R(4, 5)
    for value in values:
        agree(f, x, value, ours=ours, calls=1)


def test_numbers_from_elsewhere():
    """Globals, closures, attributes of modules."""
    scale = 2.0

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps, self.rate = 0, 0.5

        def forward(self, x):
            self.steps += 1
            return x * self.rate + self.steps + scale

    eager, ours = Net(), Net()
    f = compiled(ours)
    for n in range(6):
        scale = 2.0 + n
        eager.rate = ours.rate = 0.5 * n
        x = R(4)
        torch.testing.assert_close(f(x), eager(x))
    assert ours.steps == 6


def test_methods():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(R(5, 5))

        @torch.compile(backend="mlirc", options={"strict": True})
        def step(self, x, times=1):
            for _ in range(times):
                x = torch.tanh(x @ self.w)
            return x

        def forward(self, x):
            return self.step(x, times=2) + 1

    a, b, x = Net(), Net(), R(3, 5)
    for net in (a, b, a):
        with torch.no_grad():
            torch.testing.assert_close(net(x), torch.tanh(torch.tanh(x @ net.w) @ net.w) + 1)
    net.forward = compiled(net.forward)
    torch.testing.assert_close(net(x), torch.tanh(torch.tanh(x @ net.w) @ net.w) + 1)


# Recompilation and sizes


def test_recompilation_limit(config):
    config.recompile_limit, config.fail_on_recompile_limit_hit = 3, False
    f = lambda x, k: x * 2 + len(k)  # noqa: E731
    ours = compiled(f)
    for n in range(6):
        agree(f, R(4), "k" * n, ours=ours, calls=1)
    full = compiled(lambda x, k: x * 3 + len(k), fullgraph=True)
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        for n in range(6):
            full(R(4), "k" * n)


def test_ranks_dtypes_and_strides_that_change():
    f = lambda x: (x.sum(-1), x * 2, x.flatten()[:3])  # noqa: E731
    ours = compiled(f)
    for x in (R(4, 5), R(4, 5).double(), R(5, 4).t(), R(3, 4, 5), R(8, 10)[::2, ::2], R(4, 5).bfloat16(), R(6, 7), R(4, 5)):
        agree(f, x, ours=ours, calls=1)


def test_marked_sizes():
    def f(x, y):
        return torch.cat([x, y]).softmax(0), x.shape[0] * y.sum(), x[:, None] + y[: x.shape[1]]

    ours = compiled(f)
    for n in (3, 4, 9, 1, 2, 30):
        x, y = R(n, 5), R(7, 5)
        torch._dynamo.mark_dynamic(x, 0) if n > 1 else None
        got, expected = ours(x, y), f(x, y)
        torch.testing.assert_close(got, expected)
    x = R(6, 5)
    torch._dynamo.maybe_mark_dynamic(x, 1)
    torch._dynamo.mark_static(x, 0)
    agree(f, x, R(7, 5), ours=ours)


def test_results_that_are_conditions_on_sizes():
    def f(x):
        a, b = x.shape
        return a > 3, x * 2, a == b, x.numel() / 3

    ours = compiled(f, dynamic=True)
    for a, b in ((5, 4), (2, 4), (3, 7), (4, 4)):
        agree(f, R(a, b), ours=ours)
        agree(f, R(a, b, requires_grad=True), ours=ours)


UNKNOWN = {
    "nonzero": lambda x: x.nonzero() * 2,
    "masked_select": lambda x: x[x > 0].exp() + 1,
    "unique": lambda x: (x * 3).round().unique().cumsum(0),
    "nonzero as indices": lambda x: (x[(x[:, 0] > 0).nonzero().squeeze(1)] * 2).sum(0),
    "repeat_interleave": lambda x: x.repeat_interleave((x[:, 0] > 0).long() + 1, dim=0) + 1,
    "item as a factor": lambda x: x * x.sum().item() + 1,
    "item of an integer": lambda x: x * (x.sum() * 10).long().item(),
    "item as a size": lambda x: torch.zeros((x > 0).sum().item()) + 1,
    "tolist as sizes": lambda x: sum(p.sum() for p in x[:, 0].split([*torch.tensor([1, 2, x.shape[0] - 3]).tolist()])),
    "bincount": lambda x: torch.bincount((x.flatten() * 2).abs().long()) * 2,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_sizes_and_numbers_that_depend_on_data(name, config):
    config.capture_dynamic_output_shape_ops = True
    config.capture_scalar_outputs = True
    f = UNKNOWN[name]
    torch.manual_seed(0)
    ours = agree(f, R(6, 5))
    for x in (R(6, 5), R(6, 5).abs(), R(9, 5)):
        agree(f, x, ours=ours, calls=1)
    if name != "item as a factor":
        agree(f, -R(6, 5).abs(), ours=ours, calls=1)


# Modes of the process


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_autocast(dtype):
    net = nn.Sequential(nn.Linear(24, 40), nn.LayerNorm(40), nn.GELU(), nn.Linear(40, 8))
    conv = nn.Conv2d(3, 5, 3)

    def inside(x, image):
        with torch.autocast("cpu", dtype):
            y = net(x)
            with torch.autocast("cpu", enabled=False):
                z = y.float() @ y.float().t()
            return y, z, y.softmax(-1), conv(image), (x @ x.t()).sum(), torch.cat([y, x[:, :8]])

    x, image = R(6, 24), R(1, 3, 8, 8)
    with torch.no_grad():
        agree(inside, x, image, calls=1)
    # Gradients pass through values of 8 or 11 bits, rounded after each op in eager mode, and less often in ours.
    agree(lambda x: inside(x, image)[0].float().square().sum(), R(6, 24, requires_grad=True), calls=1, tolerance=3e-2)
    ours = compiled(net)
    for enabled in (True, False, True):
        with torch.autocast("cpu", dtype, enabled=enabled):
            got, expected = ours(x), net(x)
            assert got.dtype == expected.dtype == (dtype if enabled else torch.float32)
            torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


def test_default_dtype():
    f = lambda x: (torch.ones(3) * 2, torch.tensor(1.5) + x, torch.arange(3) / 2, x.long().float().mean(), torch.full((2,), 0.5))  # noqa: E731
    ours = agree(f, R(4))
    torch.set_default_dtype(torch.float64)
    try:
        agree(f, R(4), ours=ours)
        agree(f, R(4).float(), ours=ours)
        agree(lambda x: (x * 0.1 + 1).sum(), R(100), ours=None)
    finally:
        torch.set_default_dtype(torch.float32)
    agree(f, R(4), ours=ours)


def test_other_settings_of_the_process():
    f = lambda x: (x @ x.t(), x.cumsum(0), x.index_add(0, torch.tensor([0, 0, 1]), x[:3]))  # noqa: E731
    ours = agree(f, R(8, 8))
    torch.use_deterministic_algorithms(True)
    try:
        agree(f, R(8, 8), ours=ours)
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.device("cpu"):
        agree(lambda x: torch.ones(3) + x, R(3))
    agree(f, R(8, 8), ours=ours)


def test_empty_graphs():
    agree(lambda x: x, R(3))
    agree(lambda x: None, R(3))
    agree(lambda x: (x, 5), R(3))
    agree(lambda x: x[:], R(3))
    agree(lambda: torch.zeros(3))
    agree(lambda: torch.arange(6).view(2, 3).t())
