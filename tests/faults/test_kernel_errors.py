"""A call that fails leaves everything as it was: inputs, buffers, the function itself."""

from __future__ import annotations

import resource

import pytest
import torch
import torch.nn.functional as F

STRICT = {"strict": True, "cache": False}


def compiled(f, **kwargs):
    return torch.compile(f, backend="mlirc", options=STRICT, **kwargs)


def fails_alike(f, good, bad, error, **kwargs):
    """`f(*bad)` raises, and no argument is changed; `f(*good)` is right before and after."""
    g = compiled(f, **kwargs)
    for _ in range(2):
        ours, theirs = [a.clone() for a in good], [a.clone() for a in good]
        torch.testing.assert_close(g(*ours), f(*theirs))
        torch.testing.assert_close(ours, theirs)
        kept = [a.clone() for a in bad]
        with pytest.raises(error):
            g(*bad)
        for a, b in zip(bad, kept):
            assert torch.equal(a, b)


INDEX = (IndexError, RuntimeError)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x.add_(1)[i] * 2,
        lambda x, i: (x.mul_(2), F.embedding(i, x))[1],
        lambda x, i: x.index_add_(0, i, x[: i.shape[0]].clone()),
        lambda x, i: x.index_copy_(0, i, x[: i.shape[0]] * 2),
        lambda x, i: x.scatter_(0, i[:, None].expand(-1, x.shape[1]), 1.5),
        lambda x, i: x.index_put_((i,), x[: i.shape[0]] + 1, accumulate=True),
        lambda x, i: (x.copy_(x.exp()), x.gather(0, i[:, None]))[1],
        lambda x, i: x.sub_(x.index_select(0, i).sum()),
    ],
    ids=["index", "embedding", "index_add_", "index_copy_", "scatter_", "index_put_", "gather", "index_select"],
)
def test_indices_mutate_nothing(f, dynamic):
    good, bad = torch.tensor([3, 0, 4]), torch.tensor([3, 5, 4])
    fails_alike(f, [torch.randn(5, 4), good], [torch.randn(5, 4), bad], INDEX, dynamic=dynamic)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: x.add_(1) // y,
        lambda x, y: x.remainder_(y),
        lambda x, y: (x.mul_(3), torch.fmod(x, y))[1],
        lambda x, y: x.floor_divide_(y).neg_(),
    ],
    ids=["floordiv", "remainder_", "fmod", "floor_divide_"],
)
def test_division_mutates_nothing(f):
    x, y = torch.arange(50), torch.arange(1, 51)
    zero = y.clone()
    zero[33] = 0
    fails_alike(f, [x.clone(), y], [x.clone(), zero], RuntimeError)


def test_buffers_of_a_module():
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(3))
            self.table = torch.nn.Embedding(6, 3)

        def forward(self, i):
            self.calls += 1
            return self.table(i).sum(0) + self.calls

    m = Counts()
    f = compiled(m)
    with torch.no_grad():
        f(torch.tensor([1, 5]))
        with pytest.raises(IndexError):
            f(torch.tensor([1, 6]))
        assert m.calls.tolist() == [1.0, 1.0, 1.0]
        f(torch.tensor([1, 5]))
        assert m.calls.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x[i] + 1,
        lambda x, i: F.embedding(i, x.exp()),
        lambda x, i: x.index_select(0, i) * 2,
        lambda x, i: x.gather(0, i[:, None]),
        lambda x, i: x.take(i),
        lambda x, i: x.index_copy(0, i, torch.ones(i.shape[0], 4)),
    ],
)
def test_indices_into_nothing(f):
    """There is not even a place to read something else from."""
    g = compiled(f)
    for i in (torch.tensor([0, 1]), torch.tensor([-1])):
        with pytest.raises(INDEX):
            g(torch.zeros(0, 4), i)
    none = torch.zeros(0, dtype=torch.int64)
    torch.testing.assert_close(g(torch.zeros(0, 4), none), f(torch.zeros(0, 4), none))


def test_a_failing_call_into_aten():
    """Halfway through the graph an op of ATen raises: what it says comes through, nothing is written."""
    f = lambda x, a: x.add_(torch.linalg.cholesky(a).sum() * 2 + x.exp().sum())  # noqa: E731
    a = torch.eye(4) * 3
    fails_alike(f, [torch.randn(7), a], [torch.randn(7), -a], torch.linalg.LinAlgError)


def test_a_failing_backward():
    f = compiled(lambda w, i: F.embedding(i, w).square().sum())
    w, i = torch.randn(6, 3, requires_grad=True), torch.tensor([1, 5])
    loss = f(w, i)
    i[0] = 6  # what forward saved is the tensor itself
    with pytest.raises(RuntimeError):
        loss.backward()
    assert w.grad is None
    i[0] = 1
    f(w, i).backward()
    torch.testing.assert_close(w.grad, torch.zeros(6, 3).index_add(0, i, 2 * w.detach()[i]))


@pytest.fixture
def little_memory():
    """Address space for 1 GiB more than what is used now."""
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_no_memory_for_outputs_or_intermediates(little_memory):
    def outputs(x, n):
        return x.expand(n, x.shape[1]) + 1

    def intermediates(x, n):
        y = (x.expand(n, x.shape[1]) + 1).cumsum(0)
        return x.add_(1), y.cumsum(0)[-1]

    for f in (outputs, intermediates):
        g = compiled(f, dynamic=True)
        x = torch.randn(1, 1024)
        torch.testing.assert_close(g(x.clone(), 50), f(x.clone(), 50), rtol=1e-4, atol=1e-4)
        kept = x.clone()
        little_memory()
        with pytest.raises((RuntimeError, MemoryError), match="allocate"):
            g(x, 1 << 20)  # 4 GiB
        assert torch.equal(x, kept)
        torch.testing.assert_close(g(x.clone(), 60), f(x.clone(), 60), rtol=1e-4, atol=1e-4)
