"""searchsorted, bucketize and repeat_interleave against eager mode."""

from __future__ import annotations

import pytest
import torch

from mlirc.tests.frontend.compare import OPTIONS, compare, left_to_aten


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_searchsorted(dtype, dynamic):
    """Ties, values outside, infinities and NaN; rows of their own; both sides; 32-bit results."""
    torch.manual_seed(0)
    line = (torch.randn(37) * 5).to(dtype).sort().values
    rows = (torch.randn(3, 17) * 5).to(dtype).sort().values
    x = torch.cat([line[::3], (torch.randn(20) * 9).to(dtype)])
    if dtype.is_floating_point:
        x = torch.cat([x, torch.tensor([float("inf"), -float("inf"), float("nan"), -0.0]).to(dtype)])

    def f(line, rows, x):
        y = x[:24].reshape(3, 8)
        return [
            *(torch.searchsorted(line, x, right=right) for right in (False, True)),
            torch.searchsorted(line, x[: x.shape[0] // 2 * 2].reshape(-1, 2).mT, side="right"),
            torch.searchsorted(rows, y, out_int32=True),
            torch.bucketize(x, line),
            torch.bucketize(x[::2], line, right=True, out_int32=True),
            torch.searchsorted(line, 1),
            torch.bucketize(2, line, right=True),
        ]

    compare(f, line, rows, x, dynamic=dynamic)
    assert not left_to_aten()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_numbers_have_the_dtype_of_the_sequence(dtype):
    line = torch.tensor([0.0, 0.1, 0.2, 0.3]).to(dtype)
    compare(lambda line: [f(right) for right in (False, True) for f in (
        lambda r: torch.searchsorted(line, 0.1, right=r), lambda r: torch.bucketize(0.3, line, right=r)
    )], line)  # fmt: skip


def test_sizes_and_order():
    """Sequences of 0, 1, 2, ... elements; not sorted; sorted by a permutation; in transposed memory."""
    x = torch.randn(19)
    compare(lambda x, *lines: [torch.searchsorted(a, x) for a in lines], x, *(torch.randn(n).sort().values for n in (0, 1, 2, 3, 4, 5, 31, 32, 33)))
    compare(lambda a, x: (torch.searchsorted(a, x), torch.searchsorted(a, x, right=True)), torch.tensor([3.0, 1, float("nan"), 2, 0, 5]), x)
    a = torch.randn(2, 13)
    compare(lambda a, x, order: torch.searchsorted(a, x, sorter=order), a, torch.randn(2, 5), a.argsort())
    compare(lambda a, x: torch.searchsorted(a.mT, x.mT), torch.randn(13, 3).sort(0).values, torch.randn(7, 3))
    assert not left_to_aten()


def test_sorter_out_of_range():
    f = torch.compile(lambda a, x, order: torch.searchsorted(a, x, sorter=order), backend="mlirc")
    with pytest.raises(Exception, match="out of range"):
        f(torch.randn(40), torch.randn(5), torch.full((40,), 40))


def repeated(x, r, size):
    return x.repeat_interleave(r, dim=0, output_size=size) + 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_repeats(dtype, dynamic):
    f = torch.compile(repeated, backend="mlirc", options=OPTIONS, dynamic=dynamic)
    for counts in ([1, 0, 6], [0, 0, 1, 2, 0], [4], [0, 3], [0, 0]):
        x, r = torch.randn(len(counts), 5), torch.tensor(counts, dtype=dtype)
        torch.testing.assert_close(f(x, r, sum(counts)), repeated(x, r, sum(counts)))


@pytest.mark.parametrize("counts, size", [([1, 0, 6], 5), ([1, 0, 6], 9), ([1, -1, 6], 6), ([1, -1, 6], 7), ([3], 2), ([0], 1)])
def test_wrong_repeats_raise_as_in_eager_mode(counts, size):
    x, r = torch.randn(len(counts), 5), torch.tensor(counts)
    with pytest.raises(RuntimeError) as expected:
        repeated(x, r, size)
    with pytest.raises(RuntimeError, match=str(expected.value)):
        torch.compile(repeated, backend="mlirc", options={**OPTIONS, "fallback": False})(x, r, size)
