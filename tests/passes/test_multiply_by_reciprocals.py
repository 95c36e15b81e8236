"""Divisions of a vector by one number: products, and the same quotients."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from mlirc import driver
from mlirc.dialects.mlir import ir
from mlirc.lowering.target import Target
from mlirc.passes.multiply_by_reciprocals import SMALL, multiply_by_reciprocals

INF, NAN = float("inf"), float("nan")
V = "vector<16xf32>"


def rewritten(body: str, result: str = V) -> str:
    with ir.Context():
        module = ir.Module.parse(f"func.func @k(%x: {V}, %z: {V}, %c: f32) -> {result} {{\n{body}\nreturn %y : {result}\n}}")
        multiply_by_reciprocals(module)
        assert module.operation.verify()
        return str(module)


SPREAD = f"%v = vector.broadcast %c : f32 to {V}\n"


def test_one_number_is_divided_by_once():
    text = rewritten(SPREAD + f"%p = arith.divf %x, %v : {V}\n%q = arith.divf %z, %v : {V}\n%y = arith.addf %p, %q : {V}")
    assert re.findall("arith.divf .*: (.*)", text) == ["f32"]
    assert text.count("math.fma") == 4, "two corrections each"


def test_of_what_is_rounded_to_bf16_the_product_is_near_enough():
    text = rewritten(SPREAD + f"%p = arith.divf %x, %v : {V}\n%y = arith.truncf %p : {V} to vector<16xbf16>", "vector<16xbf16>")
    assert re.findall("arith.divf .*: (.*)", text) == ["f32"] and "math.fma" not in text


@pytest.mark.parametrize("number, left", [("6.0", False), ("0.7", False), ("-3.0e-3", False), ("8.0", True), ("1.0e-30", True), ("0x7F800000", True)])
def test_constants(number, left):
    """By a power of two LLVM multiplies; what would be scaled is rare."""
    text = rewritten(f"%v = arith.constant dense<{number}> : {V}\n%y = arith.divf %x, %v : {V}")
    assert ("arith.divf" in text) == left and text.count("math.fma") == (0 if left else 2)


def test_short_vectors_stay():
    body = "%w = vector.broadcast %c : f32 to vector<4xf32>\n%u = arith.constant dense<3.0> : vector<4xf32>\n%y = arith.divf %u, %w : vector<4xf32>"
    assert "vector<4xf32>" in "".join(re.findall("arith.divf.*", rewritten(body, "vector<4xf32>")))


@pytest.mark.parametrize("body", [f"%y = arith.divf %x, %z : {V}", f"%v = vector.broadcast %c : f32 to {V}\n%y = arith.divf %v, %x : {V}"])
def test_divisors_that_differ_stay(body):
    assert f": {V}" in "".join(re.findall("arith.divf.*", rewritten(body)))


ROWS = """
#d = affine_map<(m, n) -> (m, n)>
#r = affine_map<(m, n) -> (m)>
func.func @kernel(%x: tensor<33x70xf32>, %c: tensor<33xf32>) -> tensor<33x70xf32> attributes {mlirc.result_strides = [["70", "1"]]} {
  %e = tensor.empty() : tensor<33x70xf32>
  %0 = linalg.generic {indexing_maps = [#d, #r, #d], iterator_types = ["parallel", "parallel"]}
      ins(%x, %c : tensor<33x70xf32>, tensor<33xf32>) outs(%e : tensor<33x70xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %q = arith.divf %a, %b : f32
    linalg.yield %q : f32
  } -> tensor<33x70xf32>
  return %0 : tensor<33x70xf32>
}"""


@pytest.mark.parametrize("target", ["haswell", "znver5", "sapphirerapids"])
@pytest.mark.parametrize("text", [ROWS, ROWS.replace("%q = arith.divf %a, %b", "%s = arith.constant 8.0 : f32\n    %q = arith.divf %a, %s")], ids=["rows", "power of two"])
def test_no_vector_is_divided(text, target):
    seen = {}
    driver.compile_kernel(text, Target.parse(target), "k", lambda name, what: seen.update({name: str(what)}))
    assert "vdivps" not in seen["asm"] and "vmulps" in seen["asm"]


SPECIAL = [0.0, -0.0, 1.0, -3.0, INF, -INF, NAN, 1e-45, -1e-45, 1e-40, 7e-39, 2.0**-126, SMALL, SMALL / 2, 5e-30, 2.0**127, -3e38, 1 / 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("columns", [1, 3, 17, 33, 1200])
def test_quotients_are_those_of_division(dtype, columns):
    """Bit by bit; where they or what is left of the dividend are denormal, to one step."""
    torch.manual_seed(columns)
    wide = lambda n: torch.randn(n) * torch.exp(torch.randn(n) * 25)  # noqa: E731
    c = torch.cat([torch.tensor(SPECIAL), wide(60)])[:, None].to(dtype)
    x = torch.cat([torch.tensor(SPECIAL), wide(1200)])[torch.randperm(1200 + len(SPECIAL))][:columns].expand(len(c), -1).contiguous().to(dtype)
    torch._dynamo.reset()
    got, expected = torch.compile(lambda x, c: x / c, backend="mlirc")(x, c), x / c
    assert torch.equal(got.isnan(), expected.isnan()) and torch.equal(got.signbit()[~got.isnan()], expected.signbit()[~got.isnan()])
    exact = (expected.abs() > 2.0**-124) & (x.abs() > 2.0**-100) | (expected == 0) | expected.isnan()
    if dtype == torch.bfloat16:  # 99.9%, as all functions
        torch.testing.assert_close(got, expected, rtol=2**-7, atol=0, equal_nan=True)
        assert (got[exact] != expected[exact])[~expected[exact].isnan()].float().mean() < 1e-3
    else:
        torch.testing.assert_close(got[exact], expected[exact], rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(got, expected, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("by", [3.0, 6.0, 0.7, -1e-3, 1e-30, 2.0**40])
def test_quotients_of_constants(dtype, by):
    x = torch.cat([torch.tensor([n for n in SPECIAL if not 0 < abs(n) < 2.0**-100]), torch.randn(300)]).to(dtype)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(lambda x: (x / by, (x + 1) / by), backend="mlirc", options={"rounding": "ops"})(x), (x / by, (x + 1) / by), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("f", [lambda x: F.normalize(x, dim=-1), lambda x: (x - x.mean(-1, True)) / (x.std(-1, keepdim=True) + 1e-6), lambda x: x / x.abs().sum(0)])
def test_norms_by_division(f):
    x = torch.randn(33, 70)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(f, backend="mlirc")(x).double(), f(x.double()), rtol=1e-5, atol=1e-6)
