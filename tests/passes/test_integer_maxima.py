"""Maxima of bf16 and f16 are taken of integers: the same element wins, whatever its sign, and NaN stays."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from mlirc.passes.integer_maxima import integer_maxima
from mlirc.tests.frontend.compare import compare
from mlirc.tests.passes.graph_text import check, function, generic
from mlirc.tests.passes.vectorize.kernels import kernel, stages

X, M = "tensor<3x8xbf16>", "tensor<3xbf16>"


def reduction(body: str = "arith.maximumf", init: str = "0xFF80", x: str = X, m: str = M) -> str:
    return function([("%x", x)], generic("%m", [("%x", x)], m, ["i, j", "i"], body, "pr", "ij", init), [("%m", m)])


@pytest.mark.parametrize("kind,lowest,nans", [("bf16", "0xFF80", 127), ("f16", "0xFC00", 1023)])
def test_the_reduction_is_one_of_keys(kind, lowest, nans):
    check(
        reduction(init=lowest, x=f"tensor<3x8x{kind}>", m=f"tensor<3x{kind}>"),
        integer_maxima,
        f"""
        CHECK-DAG: %[[NANS:.*]] = arith.constant {nans} : i16
        CHECK-DAG: %[[LEAST:.*]] = arith.constant -32768 : i16
        CHECK: %[[START:.*]] = linalg.fill ins(%[[LEAST]] : i16)
        CHECK: %[[KEYS:.*]] = linalg.generic {{{{.*}}}} ins(%arg0 : tensor<3x8x{kind}>) outs(%[[START]] : tensor<3xi16>)
        CHECK: arith.bitcast %{{{{.*}}}} : {kind} to i16
        CHECK: %[[KEY:.*]] = arith.subi %{{{{.*}}}}, %[[NANS]] : i16
        CHECK: arith.maxsi %[[KEY]]
        CHECK: linalg.generic {{{{.*}}}} ins(%[[KEYS]] : tensor<3xi16>) outs(%{{{{.*}}}} : tensor<3x{kind}>)
        CHECK: arith.addi %{{{{.*}}}}, %[[NANS]] : i16
        CHECK: arith.bitcast %{{{{.*}}}} : i16 to {kind}
        CHECK-NOT: maximumf
        """,
        clean=True,
    )


@pytest.mark.parametrize(
    "text",
    [
        reduction(init="0xFF800000", x="tensor<3x8xf32>", m="tensor<3xf32>"),
        reduction(init="0.0"),
        reduction(body="%v = arith.negf %a0 : bf16\n%o = arith.maximumf %v, %a1 : bf16"),
    ],
    ids=["wider", "from a number", "of what is computed"],
)
def test_others_stay(text):
    check(text, integer_maxima, "CHECK: arith.maximumf\nCHECK-NOT: maxsi", clean=True)


def every(dtype: torch.dtype) -> torch.Tensor:
    """All numbers of 16 bits, NaN of both signs and denormals among them, in some order."""
    return torch.randperm(1 << 16, generator=torch.Generator().manual_seed(0)).to(torch.uint16).view(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels last"])
def test_every_number(dtype, last):
    x = every(dtype).reshape(1, 64, 32, 32)
    x = x.contiguous(memory_format=torch.channels_last) if last else x

    def f(x):
        return F.max_pool2d(x, 2), F.max_pool2d(x, 3, 2, 1, return_indices=True), F.max_pool2d(x[:, :, 1:, 1:], 3, 1, dilation=2, ceil_mode=True)

    compiled = torch.compile(f, backend="mlirc", options={"strict": True})
    for _ in range(2):
        torch.testing.assert_close(compiled(x), f(x), rtol=0, atol=0, equal_nan=True)
        x = torch.where(x.isnan(), torch.finfo(dtype).min, x)


@pytest.mark.parametrize("size", [1, 3, 17, 33])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_odd_sizes(size, dynamic):
    x = torch.randn(2, size, size + 1, 5).bfloat16()
    compare(lambda x: [F.max_pool2d(x, (1, 3), 1), F.adaptive_max_pool2d(x, (1, 2)), F.max_pool1d(x[0], 2, 2, 1)], x, dynamic=dynamic)


def test_what_was_all_padding_or_infinite():
    x = torch.full((1, 3, 8, 8), float("-inf"), dtype=torch.bfloat16)
    assert torch.compile(lambda x: F.max_pool2d(x, 3, 2, 1), backend="mlirc", options={"strict": True})(x).eq(float("-inf")).all()


KEYS = """%b = arith.bitcast %a0 : bf16 to i16
%c15 = arith.constant 15 : i16
%turn = arith.constant 0x7fff : i16
%nans = arith.constant 127 : i16
%s = arith.shrsi %b, %c15 : i16
%t = arith.andi %s, %turn : i16
%u = arith.xori %b, %t : i16
%k = arith.subi %u, %nans : i16
%o = arith.maxsi %k, %a1 : i16"""


@pytest.mark.parametrize("target,register", [("x86-64-v3", "ymm"), ("skylake-avx512", "zmm")])
def test_a_register_of_16_bits_is_compared_at_once(target, register):
    x, m = "tensor<9x64xbf16>", "tensor<64xi16>"
    body = generic("%m", [("%x", x)], m, ["j, i", "i"], KEYS, "pr", "ij", "-32768")
    asm = stages(kernel([("%x", x)], body, [("%m", m)], [[1]]), target)["asm"]
    assert re.search(rf"vpmaxsw\s.*%{register}", asm)
    assert not re.search(r"vpmovzxwd|vmaxps|vcmp\w*ps", asm)
