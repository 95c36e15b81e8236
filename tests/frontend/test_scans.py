"""Running sums and products."""

from __future__ import annotations

import pytest
import torch

from .test_scatter import FLOATS, R, check, values


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool])
def test_scans(dtype):
    def f(x):
        return [g(x, d) for g in (torch.cumsum, torch.cumprod) for d in range(x.dim())]

    check(f, values(dtype, 5, 1, 7, 37))
    check(lambda x: (x.cumsum(0), x.flip(0).cumsum(0).flip(0)), values(dtype, 19))


def test_scan_details():
    check(lambda x: (x.cumsum(0, dtype=torch.float64), x.exp().cumsum(1), x.t().cumsum(0), x.sum().cumsum(0)), R(40, 33))
    check(lambda x: (x.cumsum(0), x.cumprod(1)), R(0, 4))
    x = R(3, 5).requires_grad_()
    check(lambda x: torch.autograd.grad((x.cumsum(1) * x.cumprod(0)).sum(), x), x)


def test_long_scans_add_up_in_more_digits_than_they_store():
    """As in ATen: what one total loses, all that follow lose. And a product beyond the largest f32 may come back."""
    x = torch.rand(3, 100_001)
    f = torch.compile(lambda x: (x.cumsum(1), x.t().contiguous().cumsum(0)), backend="mlirc", options={"strict": True})
    rows, columns = f(x)
    exact = x.double().cumsum(1)
    assert (rows - exact).abs().max() < 0.005 and (columns.t() - exact).abs().max() < 0.005, "half an ulp of 50000 is 0.002"
    check(lambda x: x.cumprod(0), torch.tensor([1e30, 1e30, 1e-30, 1e-25, 0.0, 3.0]))
