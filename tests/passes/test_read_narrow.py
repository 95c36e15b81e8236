"""Weights of bytes are read as they are by products of few rows, and kept widened for others."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.benchmarks.verdict import same
from mlirc.passes.read_narrow import read_narrow
from mlirc.tests.frontend.compare import OPTIONS, left_to_aten
from mlirc.tests.lowering.test_to_llvm import filecheck
from mlirc.tests.passes.graph_text import function, generic, transformed, with_weights
from mlirc.tests.passes.vectorize.kernels import kernel, stages

PRODUCT = "%u = arith.extf %a0 : bf16 to f32\n%v = arith.extf %a1 : bf16 to f32\n%m = arith.mulf %u, %v : f32\n%o = arith.addf %a2, %m : f32"


def product(rows: int, cast: str = "%o = arith.sitofp %a0 : i8 to bf16", weights: Sequence[int] = (1,)) -> str:
    """[rows, 20] times bytes, [64, 20]."""
    x, w, wide, y = f"tensor<{rows}x20xbf16>", "tensor<64x20xi8>", "tensor<64x20xbf16>", f"tensor<{rows}x64xf32>"
    body = generic("%c", [("%w", w)], wide, body=cast)
    body += generic("%y", [("%x", x), ("%c", wide)], y, ["i, k", "j, k", "i, j"], PRODUCT, "ppr", "ijk", "0.0", "contraction")
    return with_weights(function([("%x", x), ("%w", w)], body, [("%y", y)]), *weights)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("op", ["sitofp", "uitofp"])
def test_few_rows_read_bytes(rows, op):
    filecheck(transformed(product(rows, f"%o = arith.{op} %a0 : i8 to bf16"), read_narrow, clean=True), f"""
        CHECK-NOT: tensor<64x20xbf16>
        CHECK: linalg.generic {{{{.*}}}}ins(%arg0, %arg1 : tensor<{rows}x20xbf16>, tensor<64x20xi8>)
        CHECK: ^bb0(%{{{{.*}}}}: bf16, %[[B:.*]]: i8, %{{{{.*}}}}: f32)
        CHECK: %[[W:.*]] = arith.{op} %[[B]] : i8 to f32
        CHECK: arith.mulf %{{{{.*}}}}, %[[W]] : f32
    """)  # fmt: skip


SCALED = "%f = arith.sitofp %a0 : i8 to bf16\n%o = arith.addf %f, %f : bf16"


@pytest.mark.parametrize("text", [product(5), product(1, SCALED), product(1, weights=())], ids=["many rows", "more than widened", "no weight"])
def test_others_read_copies(text):
    filecheck(transformed(text, read_narrow, clean=True), "CHECK: ins(%{{.*}}, %{{.*}} : tensor<{{.*}}x20xbf16>, tensor<64x20xbf16>)")


class Quantised(nn.Module):
    """A linear layer with weights of bytes: `after` the product, or `before` it, or ATen's op."""

    def __init__(self, n: int, k: int, dtype: torch.dtype, scaled: str, bytes_: torch.dtype) -> None:
        super().__init__()
        lowest = 0 if bytes_ == torch.uint8 else -128
        self.register_buffer("weight", torch.randint(lowest, lowest + 256, (n, k)).to(bytes_))
        self.register_buffer("scales", (torch.rand(n) / 100 + 0.001).to(dtype))
        self.scaled = scaled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scaled == "by ATen":
            return torch.ops.aten._weight_int8pack_mm(x, self.weight, self.scales)
        if self.scaled == "before":
            return F.linear(x, self.weight.to(x.dtype) * self.scales[:, None])
        return F.linear(x, self.weight.to(x.dtype)) * self.scales

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x.double(), self.weight.double()) * self.scales.double()


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scaled,n,k", [(s, n, k) for s in ("after", "before") for n, k in [(64, 64), (33, 50), (17, 3)]] + [("by ATen", 64, 64)])
@pytest.mark.parametrize("rows", [0, 1, 3, 4, 5, 33])
def test_linear_layers(dtype, scaled, rows, n, k):
    torch.manual_seed(0)
    model, x = Quantised(n, k, dtype, scaled, torch.int8), torch.randn(rows, k).to(dtype)
    torch._dynamo.reset()
    with torch.no_grad():
        assert same([model(x)], [torch.compile(model, backend="mlirc", options=OPTIONS)(x)], [model.reference(x)], dtype)
    assert not left_to_aten()


@pytest.mark.parametrize("rows", [1, 4, 7])
def test_unsigned_bytes(rows):
    model, x = Quantised(64, 40, torch.bfloat16, "after", torch.uint8), torch.randn(rows, 40).bfloat16()
    torch._dynamo.reset()
    with torch.no_grad():
        assert same([model(x)], [torch.compile(model, backend="mlirc", options=OPTIONS)(x)], [model.reference(x)], torch.bfloat16)


@pytest.mark.parametrize("target", ["znver5", "sapphirerapids", "znver3"])
def test_the_product_itself_reads_bytes(target):
    """A load of 16 or 8 bytes that widens them."""
    body = "%u = arith.sitofp %a1 : i8 to f32\n%m = arith.mulf %a0, %u : f32\n%o = arith.addf %a2, %m : f32"
    x, w, y = "tensor<1x256xf32>", "tensor<2x256x32xi8>", "tensor<1x64xf32>"
    text = kernel([("%x", x), ("%w", w)], generic("%y", [("%x", x), ("%w", w)], y, ["i, k", "j floordiv 32, k, j mod 32", "i, j"], body, "ppr", "ijk", "0.0", "contraction"), [("%y", y)], [[64, 1]])
    asm = stages(text, target)["asm"]
    assert re.search(r"vpmovsxbd\t\S*\(", asm) and "vcvtdq2ps" in asm and "vfmadd" in asm
