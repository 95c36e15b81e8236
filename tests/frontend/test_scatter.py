"""Writes at positions that data decides."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mlirc.tests.frontend.compare import compare, kernels, left_to_aten

aten = torch.ops.aten
R = torch.randn
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def indices(n, *shape, dtype=torch.int64):
    return torch.randint(0, n, shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def values(dtype, *shape):
    if dtype.is_floating_point:
        return R(shape).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 9, shape).to(dtype)


def check(f, *args, **kwargs):
    out = compare(f, *args, **kwargs)
    assert not left_to_aten()
    return out


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
def test_dtypes(dtype):
    def f(x, i, s, j):
        out = [x.index_add(0, i, s), x.index_copy(0, i[:3].long(), s[:3]), x.scatter_add(1, j, s)]
        if x.dtype != torch.bool:
            out += [x.scatter_reduce(1, j, s, r) for r in ("amax", "amin", "prod")]
        return out

    duplicates = torch.tensor([3, 5, 0, 3, 3, 1, 0], dtype=torch.int32)
    check(f, values(dtype, 7, 12), duplicates, values(dtype, 7, 12), indices(12, 7, 12))


@pytest.mark.parametrize("dim,shape,n", [(0, (6,), 50), (0, (6, 37), 50), (1, (3, 6, 5), 11), (-1, (3, 40, 6), 9), (1, (2, 6, 3, 5, 4), 7)])
def test_index_add(dim, shape, n):
    """One to five dims, duplicates; rows along the lanes, several dims that merge, and no lanes at all."""
    source = list(shape)
    source[dim] = n
    check(lambda x, i, s: x.index_add(dim, i, s, alpha=2), R(shape), indices(6, n), R(source))


@pytest.mark.parametrize("shape", [(0,), (0, 4)])
def test_scatter_at_no_places(shape):
    """An empty index may have another rank than the tensor."""
    f = lambda x, i, s: [x.scatter(1, i, 2.0), x.scatter(1, i, s), x.scatter_add(1, i, s), x.scatter_reduce(1, i, s, "amax")]  # noqa: E731
    check(f, R(3, 4), torch.empty(shape, dtype=torch.int64), R(3, 4))


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce, include):
    """The updates are smaller than the tensor and than their source."""
    args = R(9, 33), indices(8, 40, 20), R(41, 25)
    check(lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=include), *args)
    args = R(40, 21), indices(20, 30, 33), R(30, 33)
    check(lambda x, i, s: x.scatter_reduce(1, i, s, reduce, include_self=include), *args)


def test_scatter_reduce_integers():
    args = torch.randint(-9, 9, (5, 6)), indices(5, 20, 6), torch.randint(-9, 9, (20, 6))
    check(lambda x, i, s: [x.scatter_reduce(0, i, s, r, include_self=e) for r in ("mean", "amax", "sum") for e in (True, False)], *args)


def test_index_reduce():
    args = R(5, 6), indices(4, 20), R(20, 6)
    check(lambda x, i, s: [x.index_reduce(0, i, s, r, include_self=e) for r in ("mean", "amax", "prod") for e in (True, False)], *args)


def test_nan_goes_through():
    source = R(8, 17)
    source[2, 3] = float("nan")
    check(lambda x, i, s: [x.scatter_reduce(0, i, s, r) for r in ("amax", "amin", "sum")], R(4, 17), indices(4, 8, 17), source)


def test_the_last_write_stays():
    x, i, s = torch.zeros(4, 40), torch.tensor([1, 3, 1, 1]), R(4, 40)
    check(lambda x, i, s: (x.index_copy(0, i, s), aten.index_put(x, (i,), s)), x, i, s)


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize(
    "where,shape",
    [
        ((torch.tensor([0, -1, 3]),), (3, 6, 5)),
        ((None, torch.tensor([0, -1, 3])), (7, 3, 5)),
        ((None, None, torch.tensor([4, -2])), (7, 6, 2)),
        ((torch.tensor([[0], [-1]]), torch.tensor([0, 2, 5])), (2, 3, 5)),
        ((torch.tensor([1, -2]), None, torch.tensor([4, 0])), (2, 6)),
        ((torch.tensor(2),), (6, 5)),
        ((torch.tensor([0, 3]),), (1,)),
        ((torch.zeros(0, dtype=torch.int64),), (0, 6, 5)),
        ((torch.ones(7, dtype=torch.bool), ), ()),
        ((None, R(6, 5) > 0), ()),
    ],
)  # fmt: skip
def test_index_put(where, shape, accumulate):
    check(lambda x, w, v: aten.index_put(x, w, v, accumulate), R(7, 6, 5), where, R(shape))


def test_index_put_of_a_transposed_tensor():
    check(lambda x, i, v: aten.index_put(x.transpose(0, 1), (i,), v), R(7, 6, 5), torch.tensor([0, -1, 3]), R(3, 7, 5))


def test_one_element():
    def f(x, i, s):
        return x.index_add(0, i, s), x.scatter(0, i, s), x.scatter_add(0, i, s), x.put(i, s, accumulate=True)

    check(f, R(()), torch.tensor(0), R(()))


def test_nothing_to_write():
    def f(x, i, s, j):
        return x.index_add(0, i, s), x.index_copy(0, i, s), x.scatter_add(0, j, s), x.scatter_reduce(0, j, s, "mean", include_self=False)

    check(f, R(4, 5), torch.zeros(0, dtype=torch.int64), R(0, 5), torch.zeros(0, 5, dtype=torch.int64))
    check(f, R(4, 5), torch.zeros(0, dtype=torch.int64), R(0, 5), torch.zeros(0, 5, dtype=torch.int64), dynamic=True)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x.index_add(0, i, R(i.shape[0], 20)),
        lambda x, i: x.scatter_add(0, i[:, None].expand(-1, 20), torch.ones(i.shape[0], 20)),
        lambda x, i: x.scatter_add(1, i[None].expand(4, -1), torch.ones(4, i.shape[0])),
        lambda x, i: aten.index_put(x, (i,), torch.ones(20)),
        lambda x, i: x.t().index_copy(0, i, torch.ones(i.shape[0], 4)),
    ],
)
@pytest.mark.parametrize("bad", [-21, 20])
def test_out_of_range(f, bad):
    x = R(4, 20)
    compiled = torch.compile(f, backend="mlirc", options={"strict": True})
    compiled(x, torch.tensor([0, 3, 1]))
    before = x.clone()
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([0, bad, 1]))
    assert torch.equal(x, before)
    compiled(x, torch.tensor([0, 3, 1]))


@pytest.mark.parametrize("places", [[], [0], [7, 7]])
def test_no_index_is_out_of_range_where_sums_have_no_elements(places):
    n = len(places)
    f = lambda x, y, i: (x.index_add(0, i, x.new_ones(n, 3)), y.index_add(0, i, x.new_ones(n, 0)), x.clone().index_add_(0, i, x.new_ones(n, 3)))  # noqa: E731
    check(f, R(0, 3), R(3, 0), torch.tensor(places, dtype=torch.int64))


def test_negative_is_out_of_range_but_for_index_put():
    compiled = torch.compile(lambda x, i: x.index_add(0, i, torch.ones(1, 3)), backend="mlirc")
    with pytest.raises(IndexError):
        compiled(R(4, 3), torch.tensor([-1]))


def test_what_is_added_is_computed_on_the_way():
    """Messages of a graph network: gathered, weighted and summed in one kernel; others clear the sums, and compute the weights."""
    def f(x, edges, w):
        out = torch.zeros_like(x)
        return out.index_add(0, edges[1], x[edges[0]] * torch.sigmoid(w)[:, None])

    check(f, R(10, 48), indices(10, 2, 60), R(60))
    assert len(kernels()) == 3, kernels()


# The memory that is written into


def updated(cache, i, v):
    cache.index_copy_(1, i, v)
    return cache.sum(-1)


def test_cache_is_written_in_place():
    check(updated, R(2, 64, 16), torch.tensor([5, 9]), R(2, 2, 16))
    assert len(kernels()) == 2, kernels()


def test_nothing_is_written_if_an_index_is_out_of_range():
    compiled = torch.compile(updated, backend="mlirc", options={"strict": True})
    cache, v = R(2, 64, 16), R(2, 2, 16)
    compiled(cache, torch.tensor([5, 9]), v)
    assert torch.equal(cache[:, 9], v[:, 1])
    before = cache.clone()
    for bad in (64, -1):
        with pytest.raises(IndexError):
            compiled(cache, torch.tensor([5, bad]), v + 1)
    assert torch.equal(cache, before)


def gathered(cache, i, v, j):
    cache.index_add_(0, i, v[j])
    return cache.sum()


def at_gathered(cache, i, v, j):
    cache.index_copy_(0, i[j], v)
    return cache.sum()


def divided(cache, i, v, j):
    cache[i] = v // j[:, None]
    return cache.sum()


@pytest.mark.parametrize("f,kind,bad", [(gathered, torch.float32, 9999), (at_gathered, torch.float32, 9999), (divided, torch.int64, 0)])
@pytest.mark.parametrize("width,large", [(5, 4), (130, 4), (130, 0)])
def test_nothing_is_written_if_an_update_cannot_be_computed(f, kind, bad, width, large, bucket_above):
    """Nor if what says where it goes cannot. One after the other, and from buckets."""
    rows = 64
    bucket_above(large)
    compiled = torch.compile(f, backend="mlirc", options={"strict": True})
    cache, v, i, j = values(kind, rows, width), values(kind, rows, width), torch.arange(rows), torch.ones(rows, dtype=torch.int64)
    if f == at_gathered:
        j = j.cumsum(0) - 1  # several copies to one row are undefined
    expected = cache.clone()
    f(expected, i, v, j)
    compiled(cache, i, v, j)
    torch.testing.assert_close(cache, expected)
    j[rows // 2] = bad
    with pytest.raises((IndexError, RuntimeError)):
        compiled(cache, i, v + 1, j)
    torch.testing.assert_close(cache, expected)


def checked_before(cache, i, v, z, j):
    y = z[j]
    cache.index_add_(0, i, v)
    return y + 1


def checked_in_the_kernel_of_a_reader(cache, i, v, z, j):
    y = z[j]
    cache.index_add_(0, i, v)
    return y + cache.sum(0)


def checked_before_the_second(cache, i, v, z, j):
    cache.index_add_(0, i, v)
    y = z[j] * 2
    z.index_add_(0, i, v)
    return (y + cache.sum(0)).relu()


@pytest.mark.parametrize("f", [checked_before, checked_in_the_kernel_of_a_reader, checked_before_the_second])
def test_what_fails_before_a_write_leaves_inputs_alone(f):
    """As in eager mode, though what is computed is wanted only after it."""
    compiled = torch.compile(f, backend="mlirc", options={"strict": True})
    args = R(40, 7), torch.arange(30), R(30, 7), R(40, 7), torch.arange(20)
    theirs, ours = ([t.clone() for t in args] for _ in range(2))
    torch.testing.assert_close(compiled(*ours), f(*theirs))
    for t in (theirs, ours):
        t[4][11] = 40
        with pytest.raises(IndexError):
            (f if t is theirs else compiled)(*t)
    torch.testing.assert_close(ours, theirs)


def twice(cache, i, v):
    cache.index_copy_(0, i, v)
    cache[i + 1] = v * 2
    return cache * 2


def by_element(cache, i, v):
    cache.scatter_add_(0, i[:, None] + torch.arange(16) % 3, v)
    return cache.sum()


def read_before(cache, i, v):
    old = cache.mean(0)
    cache.index_copy_(0, i, v)
    return old, cache.mean(0)


def from_itself(cache, i, v):
    cache.index_copy_(0, i, cache[:2] + v)
    return cache.exp()


def two_caches(a, i, v, b):
    a.index_copy_(0, i, v)
    b.index_copy_(0, i, a[:2])
    return a @ b.t()


def swapped(a, i, v, b):
    t = a.index_copy(0, i, v)
    a.copy_(b.index_copy(0, i, v))
    b.copy_(t)
    return t


def returned(cache, i, v):
    return cache.index_copy_(0, i, v), cache.t(), cache.clone()


def not_written_back(x, i, v):
    y = x.index_copy(0, i, v)
    z = y.index_add(0, i, v)
    return y, z, x + 1


def computed(x, i, v):
    y = (x * 2).relu()
    return y.index_add(0, i, v), y


CACHE = R(20, 16)


@pytest.mark.parametrize("f", [twice, by_element, read_before, from_itself, returned, not_written_back, computed])
@pytest.mark.parametrize("cache", [CACHE, R(16, 20).t(), R(20, 40)[:, 4:20]], ids=["dense", "transposed", "slice"])
def test_in_place(f, cache):
    check(f, cache, torch.tensor([3, 7]), R(2, 16), strides=False)


@pytest.mark.parametrize("f", [two_caches, swapped])
def test_two_in_place(f):
    check(f, R(20, 16), torch.tensor([3, 7]), R(2, 16), R(20, 16))


def test_result_does_not_change_with_the_next_call():
    """What depends on weights alone is kept from call to call: not what is written into."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(R(6, 8))
            self.register_buffer("rows", torch.tensor([1, 1, 4]))

        def forward(self, x):
            return self.table.index_add(0, self.rows, self.table[:3] * 2) @ x

    with torch.no_grad():
        m = Model().eval()
        compiled = torch.compile(m, backend="mlirc")
        x = R(8, 3)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), m(x))


def test_same_result_for_any_number_of_threads():
    x, i, s = torch.zeros(50, 700), indices(50, 2000), R(2000, 700)
    compiled = torch.compile(lambda x, i, s: x.index_add(0, i, s), backend="mlirc")
    threads = torch.get_num_threads()
    results = []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            results.append(compiled(x, i, s))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


# Dynamic sizes


def test_dynamic():
    def f(x, i, s, j):
        y = x.index_add(0, i, s * 2).relu()
        y = aten.index_put(y, (None, j), y[:, j] + 1)
        return y.scatter_reduce(0, i[:, None].expand(-1, x.shape[1]), s, "mean"), y.cumsum(0), y.cumsum(1)

    compiled = torch.compile(f, backend="mlirc", dynamic=True, options={"strict": True})
    for n, k, e in ((7, 33, 40), (5, 17, 3), (12, 64, 100), (4, 2, 1)):
        j = torch.randperm(k)[: k // 2]
        compare(f, R(n, k), indices(n, e), R(e, k), j, compiled=compiled)


# Training


def test_embedding_gradient():
    def f(w, i, v):
        y = F.embedding(i, w, padding_idx=3) * v
        return torch.autograd.grad(y.pow(2).sum(), (w, v))

    check(f, R(50, 24).requires_grad_(), indices(50, 4, 30), R(4, 30, 24).requires_grad_())
    check(f, R(50, 24).bfloat16().requires_grad_(), indices(5, 40), R(40, 24).bfloat16().requires_grad_())


def test_gradients_of_reads():
    def f(x, i, j):
        y = x[i, 1:] * x.index_select(0, i)[:, 1:] + x.gather(1, j)[:, 1:]
        return torch.autograd.grad(y.sin().sum(), x)

    check(f, R(9, 12).requires_grad_(), indices(9, 7), indices(12, 7, 12))


class SAGE(nn.Module):
    """A layer of GraphSAGE with mean aggregation, on an edge list."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.own, self.others = nn.Linear(n_in, n_out), nn.Linear(n_in, n_out, bias=False)

    def forward(self, x, edges):
        source, target = edges
        total = torch.zeros_like(x).index_add_(0, target, x[source])
        degree = torch.zeros(x.shape[0], dtype=x.dtype).scatter_add_(0, target, torch.ones_like(target, dtype=x.dtype))
        return self.own(x) + self.others(total / degree.clamp(min=1)[:, None])


@pytest.mark.parametrize("dynamic", [False, True])
def test_graph_network(dynamic):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = SAGE(12, 32), SAGE(32, 5)

        def forward(self, x, edges):
            return self.b(F.relu(self.a(x, edges)), edges)

    torch.manual_seed(0)
    net = Net()

    def loss(x, edges):
        return torch.autograd.grad(net(x, edges).log_softmax(-1)[:, 0].sum(), list(net.parameters()))

    compiled = torch.compile(loss, backend="mlirc", dynamic=dynamic, options={"strict": True})
    for n, e in ((20, 90), (31, 64)):
        x, edges = R(n, 12), indices(n, 2, e)
        for got, want in zip(compiled(x, edges), loss(x, edges)):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(3, 7), (40,), (1,), (2, 65)])
def test_embedding_gradient_of_few_rows(shape, dtype):
    """Rows that occur twice are summed in f32 before they are rounded, as in a table of f32."""
    torch.manual_seed(0)
    i = torch.randint(0, 9, shape) * 100 + 7
    w, g = torch.randn(1100, 33).to(dtype).requires_grad_(), torch.randn(*shape, 33).to(dtype)

    def f(w, i, g):
        return torch.autograd.grad(F.embedding(i, w, padding_idx=107), w, g)[0]

    compare(f, w, i, g)
    exact = torch.zeros(1100, 33).index_add_(0, i.flatten(), g.flatten(0, -2).float())
    exact[107] = 0
    assert torch.equal(torch.compile(f, backend="mlirc")(w, i, g), exact.to(dtype))


@pytest.mark.parametrize("bad", [None, 0, 20, 39, 47])
def test_indices_are_checked_some_at_a_time(bad):
    """Whole vectors of them, and those that are left; what is out of range is an error, whichever it is, and duplicates come in order."""
    index = indices(9, 3, 48)
    if bad is not None:
        index[1, bad] = 9
    sources = R(3, 48), torch.randint(0, 99, (3, 48))

    def f(i, x, n):
        zeros, fives, ones = x.new_zeros(3, 9), x.new_full((3, 9), 5.0), n.new_ones(3, 9)
        return zeros.scatter_add(1, i, x), fives.scatter(1, i, x), ones.scatter_add(1, i, n)

    for size in (48, 47, 17, 3):
        torch._dynamo.reset()
        args = index[:, :size], *(x[:, :size] for x in sources)
        if bad is not None and bad < size:
            with pytest.raises(IndexError):
                torch.compile(f, backend="mlirc")(*args)
        else:
            check(f, *args)
