"""Products of few rows and of odd lengths, with all that follows them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc import driver
from mlirc.lowering.target import Target
from mlirc.tests.frontend.compare import compare

VECTOR = """
func.func @kernel(%x: tensor<1x1024x{kind}>, %w: tensor<80x1024x{kind}>) -> tensor<1x80xf32>
    attributes {{mlirc.result_strides = [["80", "1"]]}} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x80xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<1x80xf32>) -> tensor<1x80xf32>
  %0 = linalg.generic {{indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%x, %w : tensor<1x1024x{kind}>, tensor<80x1024x{kind}>) outs(%i : tensor<1x80xf32>) attrs = {{mlirc.kind = "contraction"}} {{
  ^bb0(%a: {kind}, %b: {kind}, %s: f32):
    {body}
    linalg.yield %t : f32
  }} -> tensor<1x80xf32>
  return %0 : tensor<1x80xf32>
}}
"""
"""A row times a matrix whose rows are contiguous."""
BODY = {
    "f32": "%p = arith.mulf %a, %b : f32\n    %t = arith.addf %s, %p : f32",
    "bf16": """%u = arith.extf %a : bf16 to f32
    %v = arith.extf %b : bf16 to f32
    %p = arith.mulf %u, %v : f32
    %t = arith.addf %s, %p : f32""",
}


@pytest.mark.parametrize(
    ("kind", "target", "product"),
    [("f32", "skylake-avx512", "vfmadd231ps"), ("f32", "x86-64-v3", "vfmadd231ps"), ("bf16", "znver4", "vdpbf16ps"), ("bf16", "x86-64-v3", "vfmadd")],
)
def test_a_row_times_a_matrix_reads_one_stream(kind: str, target: str, product: str) -> None:
    """The products of one column after the other, four vectors in flight, nothing spilled between them."""
    seen: dict[str, str] = {}
    text = VECTOR.format(kind=kind, body=BODY[kind])
    driver.compile_kernel(text, Target.parse(target), "k", lambda name, what: seen.update({name: str(what)}))
    assert f"dot_pairs={product == 'vdpbf16ps'}" in seen["strategy"] and "unroll=4" in seen["strategy"]
    loops = [part for part in seen["asm"].split("\n.L") if part.count(product) == 4 and "jl" in part]
    assert loops and all("(%rsp)" not in part[: part.rindex(product)] for part in loops)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 17])
def test_lengths(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for k, n in [(1, 1), (2, 33), (3, 16), (33, 17), (65, 40), (129, 70)]:
        w, v = torch.randn(n, k, dtype=dtype), torch.randn(k, n, dtype=dtype)
        compare(lambda x, w, v: (F.linear(x, w), x @ v), torch.randn(rows, k, dtype=dtype), w, v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [7, 16, 50])
def test_what_follows_has_the_lanes(n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.linear(x, w, b)
        return F.silu(y) * other, y.to(torch.float32), F.gelu(y).t()

    compare(f, *(torch.randn(*shape, dtype=dtype) for shape in ((1, 37), (n, 37), (n,), (1, n))))


def test_unaligned_rows() -> None:
    """Odd lengths and offsets put pairs of bf16 at any even address."""
    torch.manual_seed(0)
    x, w = torch.randn(400, dtype=torch.bfloat16), torch.randn(17 * 33 + 1, dtype=torch.bfloat16)
    for rows in (1, 9):
        compare(lambda x, w: x @ w.t(), x[1 : 1 + rows * 33].view(rows, 33), w[1:].view(17, 33))


def test_the_last_of_an_odd_row_is_alone() -> None:
    """What lies behind it, the next row or memory of others, takes no part: not even 0 * inf."""
    x = torch.full((9 * 34,), float("nan"), dtype=torch.bfloat16)
    rows = x.view(9, 34)[:, :33]
    rows.copy_(torch.randn(9, 33))
    w = torch.randn(40, 33, dtype=torch.bfloat16)
    compare(lambda x, w: x @ w.t(), rows, w)
