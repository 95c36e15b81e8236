"""Sums of bf16 that only their total is read of: in pairs where the CPU multiplies these fast, and nothing else."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import same

from mlirc.dialects.mlir import ir
from mlirc.lowering.target import Target
from mlirc.passes.sum_pairs import sum_pairs
from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import stages
from mlirc.tests.passes.vectorize.test_rows import norm

B, W = "vector<32xbf16>", "vector<32xf32>"


def rewritten(body: str, target: str = "znver4") -> str:
    with ir.Context():
        text = f"func.func @k(%a: {B}, %b: {B}, %acc: {W}) -> {W} {{\n%x = arith.extf %a : {B} to {W}\n%y = arith.extf %b : {B} to {W}\n{body}\nreturn %s : {W}\n}}"
        module = ir.Module.parse(text)
        sum_pairs(module, Target.parse(target))
        assert module.operation.verify()
        return str(module)


SUM = f"%s = arith.addf %x, %acc {{mlirc.total}} : {W}"


def test_a_sum_is_a_product_with_ones():
    text = rewritten(SUM)
    (dot,) = re.findall(r"x86.avx512.dot (%\w+), %arg0, (%\w+)", text)
    assert f"{dot[0]} = vector.extract_strided_slice %arg2 {{mlirc.any_order, offsets = [0], sizes = [16]" in text
    assert f"{dot[1]} = arith.constant dense<1.000000e+00> : {B}" in text
    assert "arith.extf %arg0" not in text, "nobody wants it wide any more"


def test_in_either_order():
    assert "x86.avx512.dot" in rewritten(f"%s = arith.addf %acc, %x {{mlirc.total}} : {W}")


@pytest.mark.parametrize("body, target", [
    (SUM.replace(" {mlirc.total}", ""), "znver4"),  # each lane is wanted
    (f"%z = arith.mulf %x, %y : {W}\n%s = arith.addf %z, %acc {{mlirc.total}} : {W}", "znver4"),  # rounded between
    (f"%s = math.fma %x, %y, %acc {{mlirc.total}} : {W}", "znver4"),  # may be in different orders, and products may be denormal
    (SUM, "sapphirerapids"),
    (SUM, "cooperlake"),
    (SUM, "x86-64-v4"),
    (SUM, "x86-64-v3"),
])  # fmt: skip
def test_what_stays(body, target):
    text = rewritten(body, target)
    assert "x86.avx512.dot" not in text


@pytest.mark.parametrize("target", ["znver4", "sapphirerapids"])
def test_the_mean_of_a_norm(target):
    """One instruction for a vector of 32; the deviations from it are no bf16."""
    assert len(re.findall("vdpbf16ps", stages(norm(128, 768, "bf16"), target)["asm"])) == (2 if target == "znver4" else 0)


def test_means_that_are_results_have_their_denormals():
    """A mean of bf16 beside the norm."""
    t, row = "tensor<64x128xbf16>", "tensor<64xbf16>"
    text = norm(64, 128, "bf16").replace('[["128", "1"]]', '[["128", "1"], ["1"]]').replace(f"-> ({t})", f"-> ({t}, {row})")
    narrow = generic("%n", [("%m", "tensor<64xf32>")], row, ["i", "i"], "%o = arith.truncf %a0 : f32 to bf16", "p", "i")
    text = text.replace(f"return %r : {t}", f"{narrow}return %r, %n : {t}, {row}")
    seen = stages(text, "znver4")
    assert "vector<32xbf16>" in seen["vector"] and "vdpbf16ps" not in seen["asm"]


@pytest.mark.parametrize("size", [33, 49, 64, 97, 768, 770])
def test_values(size):
    """Norms with a large mean, NaN, infinity and zeros."""
    x = torch.randn(40, size) + torch.linspace(0, 300, 40)[:, None]
    x[1, 0], x[2, size // 2], x[3] = float("nan"), float("inf"), 0
    w, b = torch.randn(size), torch.randn(size)

    def f(x, w, b):
        return F.layer_norm(x, (size,), w, b)

    with torch.no_grad():
        half = [t.bfloat16() for t in (x, w, b)]
        got, eager, exact = torch.compile(f, backend="mlirc")(*half), f(*half), f(*(t.double() for t in half))
    assert same(eager, got, exact, equal_nan=True)


def centred(x):
    return x - x.float().mean(-1, keepdim=True)


def by_deviation(x):
    d = x - x.float().mean(-1, keepdim=True)
    return (d / d.abs().mean(-1, keepdim=True)).bfloat16()


@pytest.mark.parametrize("value, f", [
    (3e-39, lambda x: x / x.sum(-1, keepdim=True)),
    (3e-39, lambda x: (x.float().sum(-1, keepdim=True) + x.float() * 0).bfloat16()),
    (3e-39, centred),
    (3e-39, by_deviation),
    (1e-20, lambda x: (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True))).bfloat16()),
    (1e-20, lambda x: x / x.norm(dim=-1, keepdim=True)),
], ids=["share", "sum", "centred", "by the deviation", "RMS norm", "norm"])  # fmt: skip
def test_small_numbers_that_count(value, f):
    x = (value * torch.linspace(1, 3, 256)).bfloat16().expand(64, 256).contiguous()
    got, exact = torch.compile(f, backend="mlirc")(x), f(x.double())
    torch.testing.assert_close(got.double(), exact.double(), rtol=0.05, atol=value / 20)


@pytest.mark.parametrize("f", [
    lambda x, y: x * torch.tanh(y), lambda x, y: x * F.pad(y[:, 2:], (2, 0)), lambda x, y: x * F.gelu(y),
    lambda x, y: x.float() * F.relu(y).float(), lambda x, y: x * y[:, torch.arange(63, -1, -1)],
], ids=["tanh", "pad", "gelu", "relu", "gather"])  # fmt: skip
def test_sums_of_products_of_lanes_in_other_orders(f):
    def g(x, y):
        return (x * f(x, y).sum(-1, keepdim=True)).to(x.dtype)

    x, y = torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    assert same(g(x, y), torch.compile(g, backend="mlirc")(x, y), g(x.double(), y.double()))
