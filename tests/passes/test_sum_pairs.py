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


@pytest.mark.parametrize("body, factors", [
    (f"%s = arith.addf %acc, %x {{mlirc.total}} : {W}", ("%arg0", None)),
    (f"%s = math.fma %x, %x, %acc {{mlirc.total}} : {W}", ("%arg0", "%arg0")),
    (f"%s = math.fma %x, %y, %acc {{mlirc.total}} : {W}", ("%arg0", "%arg1")),
])  # fmt: skip
def test_products_are_of_two_vectors(body, factors):
    (found,) = re.findall(r"x86.avx512.dot %\w+, (%\w+), (%\w+)", rewritten(body))
    assert found[0] == factors[0] and factors[1] in (None, found[1])


@pytest.mark.parametrize("body, target", [
    (SUM.replace(" {mlirc.total}", ""), "znver4"),  # each lane is wanted
    (f"%z = arith.mulf %x, %y : {W}\n%s = arith.addf %z, %acc {{mlirc.total}} : {W}", "znver4"),  # rounded between
    (f"%z = arith.subf %x, %y : {W}\n%s = math.fma %z, %x, %acc {{mlirc.total}} : {W}", "znver4"),  # no bf16
    (SUM, "sapphirerapids"),
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
    """Norms with a large mean, NaN, infinity and zeros; sums, means and moments that are results have their denormals."""
    x = torch.randn(40, size) + torch.linspace(0, 300, 40)[:, None]
    x[1, 0], x[2, size // 2], x[3] = float("nan"), float("inf"), 0
    small = torch.full((40, size), 3e-39)
    w, b = torch.randn(size), torch.randn(size)

    def f(x, small, w, b):
        square = x.float().square().mean(-1, keepdim=True)
        moments = torch.var_mean(small.float(), -1)
        return F.layer_norm(x, (size,), w, b), (x.float() * torch.rsqrt(square + 1e-6)).to(x.dtype), small.sum(-1), small.float().mean(-1), moments[1]

    with torch.no_grad():
        half = [t.bfloat16() for t in (x, small, w, b)]
        exact = f(*(t.double() for t in half))
        got, eager = torch.compile(f, backend="mlirc")(*half), f(*half)
    assert same(eager, got, exact, equal_nan=True)
    for sums in got[2:]:
        assert (sums != 0).all(), "denormals"
