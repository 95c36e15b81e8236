"""fmod, remainder and floor_divide of floats: exact, whatever the quotient, and without a library for f32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import kernel, stages

BITS_OF = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16, torch.float16: torch.int16}
SPECIAL = [0.0, -0.0, 1, -1, 0.5, float("inf"), -float("inf"), float("nan"), 1e-45, -3e-45, 1e-38, 3e38, -3e38, 0.1, 7, 2.0**24, 2.0**24 + 2, 5e-324, 1e308]


def any_bits(n: int, dtype: torch.dtype) -> torch.Tensor:
    kind = torch.iinfo(BITS_OF[dtype])
    return torch.randint(kind.min, kind.max, (n,), dtype=BITS_OF[dtype]).view(dtype)


def pairs(kind: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    n = 20_001
    if kind == "any bits":
        return any_bits(n, dtype), any_bits(n, dtype)
    if kind == "multiples":  # and their neighbours
        y = torch.randn(n).to(dtype)
        x = (y.double() * torch.randint(-(2**24), 2**24, (n,))).to(dtype)
        return torch.where(torch.rand(n) < 0.5, x, torch.nextafter(x, x.new_tensor(float("inf")))), y
    if kind == "special":
        x = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
        return x.repeat(len(x)), x.repeat_interleave(len(x))
    return (torch.randn(n) * 100).to(dtype), torch.randn(n).to(dtype)


@pytest.mark.parametrize("dtype", BITS_OF)
@pytest.mark.parametrize("kind", ["usual", "multiples", "special", "any bits"])
@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
def test_exact(dtype, kind, target):
    """Against the C library; eager mode is wrong for quotients beyond 2^100 or so."""
    torch.manual_seed(0)
    x, y = pairs(kind, dtype)
    torch._dynamo.reset()
    got = torch.compile(torch.fmod, backend="mlirc", options={"strict": True, "target": target})(x, y)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    with np.errstate(invalid="ignore"):
        expected = torch.from_numpy(np.fmod(x.to(wide).numpy(), y.to(wide).numpy())).to(dtype)
    assert torch.equal(got.isnan(), expected.isnan())
    there = ~expected.isnan()
    assert torch.equal(got[there], expected[there]) and torch.equal(got[there].signbit(), expected[there].signbit())


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", BITS_OF)
@pytest.mark.parametrize("kind", ["usual", "special"])
@pytest.mark.parametrize("n", [1, 17, 361])
def test_what_is_made_of_it_is_what_eager_mode_gives(dtype, kind, n):
    def f(x, y):
        return x % y, x // y, x % 0.3, x // 0.7, torch.remainder(x, -2.0)

    torch.manual_seed(0)
    x, y = (t[:n] for t in pairs(kind, dtype))
    if kind == "special":  # of large quotients the eager mode's remainder is not always right
        small = ~((x / y).abs() > 2.0**40)
        x = torch.where(small & (x.abs() < 2.0**20), x, 0.0)
    torch._dynamo.reset()
    for got, expected in zip(torch.compile(f, backend="mlirc", options={"strict": True})(x, y), f(x, y)):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype, target", [("f32", "x86-64-v3"), ("f32", "x86-64-v4"), ("bf16", "x86-64-v4"), ("f64", "x86-64-v4")])
def test_no_library_for_f32(dtype, target):
    t = f"tensor<1000x{dtype}>"
    body = generic("%r", [("%x", t), ("%y", t)], t, ["i", "i", "i"], f"%o = arith.remf %a0, %a1 : {dtype}", "p", "i")
    text = stages(kernel([("%x", t), ("%y", t)], body, [("%r", t)], [[1]]), target)["asm"]
    assert ("fmod" in text) == (dtype == "f64")
    assert "vdivps" in text or dtype == "f64"
