"""Reads at positions that a tensor holds, against eager mode, and what happens to positions out of range."""

from __future__ import annotations

import pytest
import torch

from mlirc.tests.frontend.elementwise import expressions, function, matches

READS = expressions("""
F.embedding(k, x[:, 0])
x.index_select(0, i)
x.index_select(1, i)
x.gather(1, g)
torch.take_along_dim(x, g, 1)
x[0, 0].gather(0, g[0, 0, 0] % 6)
x[0, 0].gather(0, g[0, :2, :0])
x[0, 0, 0].gather(0, g[0, 0, :1] * 0)
torch.diagonal_scatter(x, x[:3, :, 0].T, -1, 0, 2)
torch.diagonal_scatter(x[0], x[0, :6, 0], 2, 1, 0)
x[i]
x[:, i]
x[..., j]
x[i, :, j]
x[:, i, j]
x[i, i]
x[k]
x[:, k]
x[k, :, k]
x[k[:, :1], k]
x[0, i]
x[i.int()]
x[-i - 1]
x.take(i)
torch.as_strided_scatter(x, x[0, :3, :2], (3, 2), (7, 2), 5)
torch.as_strided_scatter(x, x[0, :3, :2], (3, 2), (1, 1))
x[torch.arange(3)[:, None], torch.arange(2)]
""")


def tensors():
    x = torch.randn(4, 18, 6)
    i, j = torch.randint(0, 4, (7,)), torch.randint(0, 6, (7,))
    return x, i, j, torch.randint(0, 18, (4, 9, 6)), torch.randint(0, 4, (2, 3))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_reads(dynamic):
    functions = [function(t, "x, i, j, g, k") for t in READS]
    matches(lambda *t: [f(*t) for f in functions], *tensors(), dynamic=dynamic)


@pytest.mark.parametrize("text", ["x[i]", "x.index_select(0, i)", "F.embedding(i, x)", "x[:, i]"])
def test_out_of_range(text):
    x, i = torch.randn(4, 4), torch.tensor([0, 1, 2, 3, 0, 7])
    with pytest.raises(IndexError):
        torch.compile(function(text, "x, i"), backend="mlirc")(x, i)


def test_a_number_has_one_index():
    f = torch.compile(lambda x, i: torch.index_select(x, 0, i) * 2, backend="mlirc")
    assert f(torch.tensor(5.0), torch.tensor([0])) == f(torch.tensor(5.0), torch.tensor(0)) == 10
    for bad in (1, -1):
        with pytest.raises(IndexError):
            f(torch.tensor(5.0), torch.tensor([bad]))


def test_one_element_at_a_computed_index_of_a_product():
    """It is read at its own place, whatever the index, which nobody knows to be zero when kernels are formed."""

    def f(x, w, i):
        y = (x.T @ w).T
        return y + y.index_select(0, i)

    x, w = torch.randn(5, 1), torch.randn(5, 1)
    matches(f, x, w, torch.tensor([0]), factor=4)
    with pytest.raises(IndexError):
        torch.compile(f, backend="mlirc")(x, w, torch.tensor([1]))


def test_mask_of_another_shape():
    def f(x, m):
        x = x.clone()
        x[m] = 1
        return x

    with pytest.raises(IndexError):
        torch.compile(f, backend="mlirc")(torch.randn(4, 3), torch.tensor([True]))


def write_slice(x, i, s):
    y = x.clone()
    y.index_copy_(1, i, s)
    return y


def write_cache(x, i, s):
    x.index_copy_(1, i, s)
    return x.sum()


@pytest.mark.parametrize("f", [write_slice, write_cache])
def test_one_slice_is_written(f):
    matches(f, torch.randn(4, 18, 6), torch.tensor([5]), torch.randn(4, 1, 6), factor=4)


def test_scatter_of_one_element_a_line():
    def f(x, i):
        return x.scatter(1, i, 1.0), x.scatter(1, i, x), x.scatter_add(1, i, x)

    matches(f, torch.randn(4, 6), torch.randint(0, 6, (4, 1)))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_writes_to_parts_of_what_is_repeated(dtype, dynamic):
    """The trace writes all of the repetitions, of which most have the value from before."""

    def f(x):
        y = x.clone()
        shown = y.as_strided((2, 3, 2), (0, 2, 1), 1)
        before = shown.logical_not()
        shown[0] = shown[1].logical_not()
        shown[1, :2, 1] = shown[0, 1:, 0]
        x.as_strided((2, 1), (0, 0))[1] = x[1, 1]
        return before, y, shown + 1, x + 1

    matches(f, (torch.randn(4, 5) * 2).to(dtype), dynamic=dynamic)
