"""Where the epilogue of a contraction ends: what a later kernel reads is stored in few bytes."""

from __future__ import annotations

import re

import pytest
import torch

from mlirc import driver
from mlirc.tests.passes.graph_text import function, generic, matmul
from mlirc.tests.passes.test_fuse import ROW, SUM, groups

H, F = "tensor<4x16xbf16>", "tensor<4x16xf32>"
ARGUMENTS = [("%x", "tensor<4x8xf32>"), ("%w", "tensor<8x16xf32>")]
TO_BF16 = "%o = arith.truncf %a0 : f32 to bf16"
TO_F32 = "%o = arith.extf %a0 : bf16 to f32"


def product_and(*ops: str) -> str:
    return matmul("%m", "%x", "%w", 4, 8, 16) + generic("%h", [("%m", F)], H, body=TO_BF16) + "".join(ops)


WIDE = generic("%c", [("%h", H)], F, body=TO_F32)
SQUARE = generic("%s", [("%c", F)], F, body="%o = arith.mulf %a0, %a0 : f32")


def summed(value: str) -> str:
    return generic("%n", [(value, F)], ROW, **SUM)


CONTRACTION, SUMMED = "arith.mulf+arith.addf", "arith.addf"


def test_casts_and_squares_go_with_the_norm():
    scaled = generic("%r", [("%c", F), ("%n", ROW)], F, ["i, j", "i", "i, j"], "%o = arith.subf %a0, %a1 : f32")
    for results in ([("%r", F)], [("%r", F), ("%h", H)]):
        found = groups(function(ARGUMENTS, product_and(WIDE, SQUARE, summed("%s"), scaled), results))
        assert found[CONTRACTION] == found["arith.truncf"]
        assert found["arith.extf"] == found["arith.mulf"] == found[SUMMED] == found["arith.subf"] != found[CONTRACTION]


def test_what_reads_an_argument_goes_too():
    """An argument has no maker, which was compared with the ops that go."""
    weighted = generic("%s", [("%c", F), ("%g", F)], F, body="%o = arith.mulf %a0, %a1 : f32")
    scaled = generic("%r", [("%c", F), ("%n", ROW)], F, ["i, j", "i", "i, j"], "%o = arith.subf %a0, %a1 : f32")
    text = function([*ARGUMENTS, ("%g", F)], product_and(WIDE, weighted, summed("%s"), scaled), [("%r", F), ("%h", H)])
    found = groups(text)
    assert found[CONTRACTION] == found["arith.truncf"] != found[SUMMED]


def test_what_takes_no_less_room_stays():
    shifted = generic("%c", [("%m", F)], F, body="%o = arith.negf %a0 : f32")
    found = groups(function(ARGUMENTS, matmul("%m", "%x", "%w", 4, 8, 16) + shifted + summed("%c"), [("%n", ROW)]))
    assert found[CONTRACTION] == found["arith.negf"] != found[SUMMED]


def test_what_costs_more_than_memory_stays():
    exponential = generic("%s", [("%c", F)], F, body="%o = math.exp %a0 : f32")
    found = groups(function(ARGUMENTS, product_and(WIDE, exponential, summed("%s")), [("%n", ROW)]))
    assert found[CONTRACTION] == found["arith.extf"] == found["math.exp"] != found[SUMMED]


def test_what_is_stored_anyway_stays():
    found = groups(function(ARGUMENTS, product_and(WIDE, summed("%c")), [("%n", ROW), ("%c", F)]))
    assert found[CONTRACTION] == found["arith.extf"] != found[SUMMED]


def rms_norm(x, w, r, s):
    h = x @ w + r
    wide = h.float()
    return s * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(h.dtype), h


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 17])
def test_a_residual_and_its_norm(rows, dtype, dynamic, monkeypatch):
    """As in Llama and T5: the product stores one tensor, and the norm is one kernel, which reads it."""
    seen = []
    compile_kernels = driver.compile_kernels
    monkeypatch.setattr(driver, "compile_kernels", lambda kernels, *rest: seen.extend(kernels) or compile_kernels(kernels, *rest))
    torch.manual_seed(0)
    args = [torch.randn(s).to(dtype) for s in ((rows, 40), (40, 33), (rows, 33), (33,))]
    torch._dynamo.reset()
    got = torch.compile(rms_norm, backend="mlirc", dynamic=dynamic)(*args)
    for g, want in zip(got, rms_norm(*(a.double() for a in args))):
        torch.testing.assert_close(g.double(), want, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=2e-2 if dtype == torch.bfloat16 else 1e-5)
    results = {k.name: re.search(r"mlirc.result_strides = \[(.*?\])\]", k.text)[1].count("[") for k in seen}
    assert set(results.values()) == {1} and [name for name in results if "add" in name] == [seen[-2].name, seen[-1].name], results
