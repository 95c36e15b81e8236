"""Compiled functions in use: many calls, threads, errors, instances, weights that change."""

from __future__ import annotations

import copy
import gc
import threading

import numpy as np
import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

import mlirc
from mlirc.tests.frontend.compare import compare

R = torch.randn
STRICT = {"strict": True}


def compiled(f, **kwargs):
    return torch.compile(f, backend="mlirc", options=STRICT, **kwargs)


@pytest.fixture
def threads():
    """Any number of threads in a test, the old one afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def work(x, w):
    y = F.layer_norm(x @ w, (w.shape[1],))
    return F.gelu(y).softmax(-1), y.sum(0), y.amax(1), torch.cat([y, x], 1)


@pytest.mark.parametrize("rows", [3, 700])
def test_number_of_threads_changes(rows, threads):
    f = compiled(work)
    x, w = R(rows, 65), R(65, 130)
    with torch.no_grad():
        for n in (2, 1, 3, 1, 2):
            threads(n)
            for got, expected in zip(f(x, w), work(x, w)):
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def in_threads(n, run):
    """Run `run(i)` in n threads at once; raises what one of them raised."""
    errors = []

    def body(i):
        try:
            run(i)
        except BaseException as e:
            errors.append(e)

    started = [threading.Thread(target=body, args=(i,)) for i in range(n)]
    for t in started:
        t.start()
    for t in started:
        t.join()
    if errors:
        raise errors[0]


def test_threads_call_one_function():
    f = compiled(work)
    w = R(65, 130)
    f(R(300, 65), w)

    def run(i):
        with torch.no_grad():
            for k in range(20):
                x = torch.full((300, 65), float(i + 1)) + torch.arange(65) * k
                for got, expected in zip(f(x, w), work(x, w)):
                    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)

    in_threads(3, run)


def test_threads_with_calls_into_aten():
    def g(x):
        return x.sort()[0] * 2 + x.exp(), x.cumsum(0).sin()

    f = compiled(g)
    f(R(500))

    def run(i):
        for k in range(30):
            x = torch.sin(torch.arange(500) * (i + 1.0) + k)
            for got, expected in zip(f(x), g(x)):
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)

    in_threads(3, run)


def test_indices_out_of_range():
    f = compiled(lambda w, i: F.embedding(i, w) * 2)
    w = R(10, 70)
    good = torch.randint(0, 10, (50,))
    torch.testing.assert_close(f(w, good), w[good] * 2)
    for bad in (10, -1, 1 << 40, -(1 << 62)):
        wrong = good.clone()
        wrong[33] = bad
        with pytest.raises(IndexError, match="out of range"):
            f(w, wrong)
        torch.testing.assert_close(f(w, good), w[good] * 2)
    for g, good, bad in (
        (lambda x, i: x[i], torch.tensor([0, -5, 4]), torch.tensor([5])),
        (lambda x, i: x[:, i], torch.tensor([0, -3, 2]), torch.tensor([-4])),
        (lambda x, i: x.index_select(0, i), torch.tensor([0, 4]), torch.tensor([5])),
        (lambda x, i: x.gather(0, i[:, None]), torch.tensor([0, 4]), torch.tensor([5])),
    ):
        f = compiled(g, dynamic=True)
        x = R(5, 3)
        torch.testing.assert_close(f(x, good), g(x, good))
        with pytest.raises((IndexError, RuntimeError)):
            f(x, torch.cat([bad, bad]))


def test_integer_division_by_zero():
    functions = [lambda x, y: x // y, lambda x, y: x % y, lambda x, y: torch.fmod(x, y), lambda x, y: torch.div(x, y, rounding_mode="trunc")]
    for g in functions:
        for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
            f = compiled(g)
            x, y = torch.arange(40, dtype=dtype), torch.full((40,), 3, dtype=dtype)
            assert torch.equal(f(x, y), g(x, y))
            y[37] = 0
            with pytest.raises(RuntimeError, match="ZeroDivisionError") as eager:
                g(x, y)
            with pytest.raises(RuntimeError, match="ZeroDivisionError") as ours:
                f(x, y)
            assert type(ours.value) is type(eager.value)
            if dtype == torch.int64:  # the one quotient that does not fit
                x[5], y[5], y[37] = torch.iinfo(dtype).min, -1, 1
                f(x, y)


def test_errors_in_parallel(threads):
    threads(2)
    f = compiled(lambda w, i: F.embedding(i, w).sum(1))
    w, good = R(100, 64), torch.randint(0, 100, (5000,))
    bad = good.clone()
    bad[::7] = 100
    for _ in range(5):
        with pytest.raises(IndexError):
            f(w, bad)
        torch.testing.assert_close(f(w, good), w[good].sum(1), rtol=1e-4, atol=1e-4)


class Block(nn.Module):
    def __init__(self, width=33):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(3, 3, 3, padding=1)
        self.batch = nn.BatchNorm1d(3)

    def forward(self, x):
        return x + self.batch(self.conv(self.down(F.gelu(self.up(self.norm(x))))))


def agree(f, module, *args):
    with torch.no_grad():
        expected = module(*args)
        torch.testing.assert_close(f(*args), expected, rtol=1e-4, atol=1e-5 * max(1.0, expected.abs().max().item()))


def test_instances_of_one_class():
    blocks = [Block().eval() for _ in range(4)]
    run = compiled(lambda block, x: block(x))
    x = R(5, 3, 33)
    for _ in range(2):
        for block in blocks:
            agree(lambda x, block=block: run(block, x), block, x)
    stack = nn.Sequential(*blocks)
    agree(compiled(stack), stack, x)
    del blocks[1:3], stack
    gc.collect()
    fresh = Block().eval()
    agree(lambda x: run(fresh, x), fresh, x)


def test_weights_that_change():
    block = Block().eval()
    f = compiled(block)
    x = R(5, 3, 33)
    agree(f, block, x)
    with torch.no_grad():
        block.up.weight.mul_(1.5)
        agree(f, block, x)
        block.conv.weight.add_(0.1)
        block.batch.running_var.mul_(2)
        agree(f, block, x)
        block.load_state_dict(copy.deepcopy(Block().state_dict()))
        agree(f, block, x)
        block.down.weight.data.mul_(0.5)
        agree(f, block, x)
        block.down.weight.data = R(33, 66)
        agree(f, block, x)
        block.up.weight = nn.Parameter(R(66, 33))
        agree(f, block, x)
        block.up.weight.numpy()[20, 10] = 3.0  # one element: nothing can see that
        mlirc.invalidate()
        agree(f, block, x)
    optimizer = torch.optim.SGD(block.parameters(), lr=1e-5)
    for _ in range(2):
        block(x).square().sum().backward()
        optimizer.step()
        agree(f, block, x)


def test_weights_are_packed_once():
    from mlirc.runtime import weights

    computed = []
    real = weights.WeightTable._compute

    def counted(self, *args):
        computed.append(args[0])
        return real(self, *args)

    with pytest.MonkeyPatch.context() as m:
        m.setattr(weights.WeightTable, "_compute", counted)
        block, x = Block().eval(), R(5, 3, 33)
        f = compiled(block)
        for _ in range(3):
            agree(f, block, x)
        gc.collect()
        with torch.inference_mode():
            f(x)
        graphs = len(computed)
        assert graphs >= 1
        for _ in range(3):
            agree(f, block, x)
        assert len(computed) == graphs


def test_weights_at_the_same_address():
    """A second model whose weights lie where those of the first one were, with the same first and last elements."""
    run = compiled(lambda w, x: w(x))
    x = R(70, 33)
    memory = np.zeros((64, 33), dtype=np.float32)
    for scale in (1.0, 2.0, 3.0, 4.0):
        layer = nn.Linear(33, 64, bias=False)
        memory[10:20] = scale
        layer.weight = nn.Parameter(torch.from_numpy(memory))
        agree(lambda x, layer=layer: run(layer, x), layer, x)
        del layer
        gc.collect()


def test_inference_mode_and_frozen_parameters():
    block = Block().eval().requires_grad_(False)
    f = compiled(block)
    x = R(5, 3, 33)
    torch.testing.assert_close(f(x), block(x), rtol=1e-4, atol=1e-4)
    with torch.inference_mode():
        torch.testing.assert_close(f(x), block(x), rtol=1e-4, atol=1e-4)
        y = R(5, 3, 33)
        torch.testing.assert_close(f(y), block(y), rtol=1e-4, atol=1e-4)


def test_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(12, 16), nn.Linear(16, 12, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, i):
            return self.out(self.embed(i).relu())

    m = Tied()
    f = compiled(m)
    i = torch.randint(0, 12, (3, 5))
    agree(f, m, i)
    with torch.no_grad():
        m.embed.weight.neg_()
    agree(f, m, i)


def test_several_graphs():
    def g(x):
        y = x * 2 + 1
        torch._dynamo.graph_break()
        z = y.sum(0)
        print("", end="")
        return y, z.softmax(0)

    counters.clear()
    compare(g, R(9, 5))
    assert counters["mlirc"]["graphs"] >= 2


def test_many_calls_leave_nothing_behind():
    import resource

    f = compiled(lambda x: (x @ x.t()).softmax(-1).sum(0), dynamic=True)
    inputs = [R(30 + k, 64) for k in range(20)]
    for x in inputs:
        f(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(25):
        for x in inputs:
            f(x)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_results_do_not_share_memory_between_calls():
    f = compiled(lambda x: (x + 1, (x * 2).sum(0)))
    x = R(50, 50)
    first = f(x)
    kept = [t.clone() for t in first]
    f(x + 5)
    for a, b in zip(first, kept):
        assert torch.equal(a, b)


def test_nested_calls_in_autograd():
    m = nn.Sequential(nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 1))
    f = compiled(m)
    x = R(5, 9)
    for _ in range(3):
        m.zero_grad()
        f(x).sum().backward()
        got = [p.grad.clone() for p in m.parameters()]
        m.zero_grad()
        m(x).sum().backward()
        for p, g in zip(m.parameters(), got):
            torch.testing.assert_close(g, p.grad)
    # Two forward passes before their backward passes: each keeps its own activations.
    a, b = f(x), f(x * 2)
    m.zero_grad()
    (a.sum() + b.sum()).backward()
    got = [p.grad.clone() for p in m.parameters()]
    m.zero_grad()
    (m(x).sum() + m(x * 2).sum()).backward()
    for p, g in zip(m.parameters(), got):
        torch.testing.assert_close(g, p.grad)


def test_weights_that_another_graph_writes():
    class Changing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.zeros(64, 33))

        def forward(self, x):
            return x @ self.weight.t()

        def change(self):
            self.weight[20:30, 3:9] += 1

    ours, eager = Changing(), Changing()
    f, change = compiled(ours), compiled(ours.change)
    x = R(70, 33)
    with torch.no_grad():
        for _ in range(3):
            agree(f, eager, x)
            version = ours.weight._version
            change()
            eager.change()
            assert ours.weight._version > version
    with torch.inference_mode():
        change()
        eager.change()
        agree(f, eager, x)
