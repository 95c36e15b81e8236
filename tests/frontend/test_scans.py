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


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 16, 17, 33, 70])
def test_scans_along_the_lanes(dtype, size):
    x = values(dtype, 3, size)
    check(lambda x: (x.cumsum(1), x.cumprod(1), (x + 1).cumsum(1) * 2), x)
    if dtype.is_floating_point:
        check(lambda x: (x.sigmoid().cumsum(1), x.tanh().cumprod(1), x[:, ::2].exp().cumsum(1), x.t().cumsum(1)), x)
        x[1, size // 2] = float("nan")
        x[2, size // 2] = float("inf")
        check(lambda x: (x.cumsum(1), x.cumprod(1)), x)


def test_scans_of_an_unknown_number_of_elements():
    f = torch.compile(lambda x: (x.sin().cumsum(1), x.cumprod(1)), backend="mlirc", dynamic=True, options={"strict": True})
    for size in (5, 16, 17, 40):
        x = R(3, size)
        for got, want in zip(f(x), (x.double().sin().cumsum(1), x.double().cumprod(1))):
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "dtype, smalls, larges",
    [(torch.float32, [1e-38] * 8, [1e38] * 9), (torch.bfloat16, [1e-19] * 2, [1e20] * 2), (torch.float64, [1e-150] * 2, [1e160] * 2)],
    ids=["f32", "bf16", "f64"],
)
def test_products_of_what_is_large_only_by_itself(dtype, smalls, larges):
    """Factors whose product is infinite, in a vector behind one whose product is near to zero."""
    row = [1.0] * (16 - len(smalls)) + smalls + larges + [0.5] * 16
    check(lambda x: x.cumprod(1), torch.tensor([row], dtype=dtype))


def test_long_scans_add_up_in_more_digits_than_they_store():
    """As in ATen: what one total loses, all that follow lose. And a product beyond the largest f32 may come back."""
    x = torch.rand(3, 100_001)
    f = torch.compile(lambda x: (x.cumsum(1), x.t().contiguous().cumsum(0)), backend="mlirc", options={"strict": True})
    rows, columns = f(x)
    exact = x.double().cumsum(1)
    assert (rows - exact).abs().max() < 0.005 and (columns.t() - exact).abs().max() < 0.005, "half an ulp of 50000 is 0.002"
    check(lambda x: x.cumprod(0), torch.tensor([1e30, 1e30, 1e-30, 1e-25, 0.0, 3.0]))
