"""Special functions against mpmath, and ops on the bits of floats."""

from __future__ import annotations

import mpmath as mp
import pytest
import torch

from mlirc.tests.frontend.compare import OPTIONS, compare, left_to_aten

INF, NAN = float("inf"), float("nan")
aten = torch.ops.aten
LINE = (-40.0, 60.0)
EXACT = {
    "lgamma": (lambda x: mp.re(mp.loggamma(x)) if x > 0 else mp.log(abs(mp.gamma(x))), (-40.0, 200.0)),
    "digamma": (mp.digamma, (-40.0, 200.0)),
    "trigamma": (lambda x: mp.psi(1, x), (-40.0, 200.0)),
    "erfinv": (mp.erfinv, (-0.9999, 0.9999)),
    "special.erfcx": (lambda x: mp.exp(x * x) * mp.erfc(x), (-5.0, 60.0)),
    "i0": (lambda x: mp.besseli(0, x), LINE),
    "special.i0e": (lambda x: mp.besseli(0, x) * mp.exp(-abs(x)), LINE),
    "special.i1": (lambda x: mp.besseli(1, x), LINE),
    "special.i1e": (lambda x: mp.besseli(1, x) * mp.exp(-abs(x)), LINE),
    "special.modified_bessel_i0": (lambda x: mp.besseli(0, x), LINE),
    "special.modified_bessel_i1": (lambda x: mp.besseli(1, x), LINE),
    "special.modified_bessel_k0": (lambda x: mp.besselk(0, x), (0.001, 60.0)),
    "special.modified_bessel_k1": (lambda x: mp.besselk(1, x), (0.001, 60.0)),
    "special.scaled_modified_bessel_k0": (lambda x: mp.besselk(0, x) * mp.exp(x), (0.001, 60.0)),
    "special.scaled_modified_bessel_k1": (lambda x: mp.besselk(1, x) * mp.exp(x), (0.001, 60.0)),
    "special.ndtri": (lambda p: mp.sqrt(2) * mp.erfinv(2 * p - 1), (0.0001, 0.9999)),
    "special.spherical_bessel_j0": (lambda x: mp.sin(x) / x, LINE),
    "special.bessel_j0": (lambda x: mp.besselj(0, x), LINE),
    "special.bessel_j1": (lambda x: mp.besselj(1, x), LINE),
    "special.bessel_y0": (lambda x: mp.bessely(0, x), (0.001, 60.0)),
    "special.bessel_y1": (lambda x: mp.bessely(1, x), (0.001, 60.0)),
}


def same(f, *args):
    torch._dynamo.reset()
    for got, expected in zip(torch.compile(f, backend="mlirc", options=OPTIONS)(*args), f(*args), strict=True):
        assert got.dtype == expected.dtype and torch.equal(got, expected)


def named(name):
    if name == "trigamma":
        return lambda x: torch.polygamma(1, x)
    module, _, function = name.rpartition(".")
    return getattr(getattr(torch, module) if module else torch, function)


@pytest.mark.parametrize("name", EXACT)
def test_special_function(name):
    """f64 to 1e-12 of the value or of 1 (near a zero), f32 to 1e-6; special values as in eager mode. J and Y are as ATen's."""
    exact, (low, high) = EXACT[name]
    torch.manual_seed(0)
    x = torch.cat([torch.rand(150, dtype=torch.float64) * (high - low) + low, torch.linspace(max(low, -3), min(high, 3), 52).double() * 0.9995])
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, INF, -INF, NAN, 1e30, -1e30, 1e-30, 8.0, 5.0, 13.0])
    torch._dynamo.reset()
    f = named(name)
    c = torch.compile(lambda *x: [f(v) for v in x], backend="mlirc", options=OPTIONS)
    got, narrow, odd = c(x, x.float(), special)
    with mp.workdps(30):
        right = torch.tensor([float(exact(mp.mpf(v))) for v in x.tolist()], dtype=torch.float64)
        right32 = torch.tensor([float(exact(mp.mpf(v))) for v in x.float().tolist()], dtype=torch.float64)
    wide, small = (2e-6, 1e-4) if "bessel_j" in name or "bessel_y" in name else (1e-12, 1e-6)
    assert ((got - right).abs() / right.abs().clamp(min=1)).max() < wide
    assert ((narrow.double() - right32).abs() / right32.abs().clamp(min=1e-2)).max() < small
    by = 1e-8 if name == "trigamma" else 1e-11  # ATen's series is that short
    torch.testing.assert_close(got, f(x), rtol=by, atol=by)
    if name == "trigamma":  # infinite at the poles, where ATen divides by the rounded sine of a multiple of pi
        poles = (special < 0) & (special == special.trunc())
        assert odd[poles & special.isfinite()].isposinf().all()
        odd, special = odd[~poles], special[~poles]
    torch.testing.assert_close(odd, f(special), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", ["lgamma", "digamma", "erfinv", "special.erfcx", "i0", "special.i1", "special.i0e", "special.log_ndtr", "special.ndtr"])
def test_gradient(name):
    f = named(name)
    x = (torch.rand(5, 37, dtype=torch.float64) * 0.9 + 0.05).requires_grad_()

    def run(x):
        return torch.autograd.grad(f(x).sum(), x)[0]

    torch._dynamo.reset()
    y = torch.compile(f, backend="mlirc", options=OPTIONS)(x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], run(x), rtol=1e-8 if f is torch.digamma else 1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32], ids=str)
def test_other_dtypes(dtype):
    x = (torch.randn(3, 35) * 3).to(dtype)
    compare(lambda x: [named(n)(x) for n in ("lgamma", "i0")] + [torch.special.i1(x.float())], x)
    compare(lambda x: torch.lgamma(x.mT), x[:, ::2])


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e-45, -1e-45, 1.2e-38, 3.4028235e38, 1.5, 1e-40, 256.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_nextafter(dtype):
    x, y = (t.contiguous().to(dtype) for t in torch.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    torch._dynamo.reset()
    got, expected = torch.compile(torch.nextafter, backend="mlirc", options=OPTIONS)(x, y), torch.nextafter(x, y)
    assert torch.equal(got.isnan(), expected.isnan()) and torch.equal(got.nan_to_num(), expected.nan_to_num())
    assert torch.equal(got.signbit()[~got.isnan()], expected.signbit()[~got.isnan()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_frexp(dtype):
    x = torch.cat([SPECIAL, torch.randn(33) * 100]).to(dtype)
    torch._dynamo.reset()
    got, expected = torch.compile(torch.frexp, backend="mlirc", options=OPTIONS)(x), torch.frexp(x)
    finite = x.isfinite()
    torch.testing.assert_close(got.mantissa, expected.mantissa, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.exponent[finite], expected.exponent[finite])


def test_view_as_dtype():
    x = torch.randn(5, 9)
    f = lambda x: (x.view(torch.int32) & 255, (x.view(torch.int32) ^ 1).view(torch.float32), x.bfloat16().view(torch.int16) + 1)  # noqa: E731
    same(f, x)
    assert not left_to_aten()
    same(lambda x: (x + 1).view(torch.int16) + 1, x)
