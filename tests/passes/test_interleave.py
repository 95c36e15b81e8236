"""Independent chains of a marked loop take turns; ops with effects keep their order."""

from __future__ import annotations

import re

import pytest
import torch

from mlirc.dialects.mlir import ir
from mlirc.passes.interleave import interleave
from mlirc.tests.frontend.compare import compare
from mlirc.tests.lowering.test_to_llvm import filecheck
from mlirc.tests.passes.graph_text import generic, matmul
from mlirc.tests.passes.vectorize.kernels import kernel, stages, strategy

LOOP = """
func.func @f(%m: memref<?xf32>, %k: memref<?xf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.for %i = %c0 to %n step %c1 {
    %a0 = vector.load %m[%i] : memref<?xf32>, vector<8xf32>
    %a1 = arith.addf %a0, %a0 : vector<8xf32>
    %a2 = arith.mulf %a1, %a1 : vector<8xf32>
    %b0 = vector.load %k[%i] : memref<?xf32>, vector<8xf32>
    %b1 = arith.addf %b0, %b0 : vector<8xf32>
    %b2 = arith.mulf %b1, %b1 : vector<8xf32>
    vector.store %a2, %m[%i] : memref<?xf32>, vector<8xf32>
    %s = vector.load %m[%c0] : memref<?xf32>, vector<8xf32>
    %b3 = arith.addf %b2, %s : vector<8xf32>
    vector.store %b3, %k[%i] : memref<?xf32>, vector<8xf32>
  } {mlirc.interleave}
  return
}
"""


def interleaved(text: str) -> str:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        interleave(module)
        module.operation.verify()
        return str(module)


def test_chains_take_turns():
    filecheck(
        interleaved(LOOP),
        """
        CHECK: scf.for
        CHECK: %[[A0:.*]] = vector.load
        CHECK: %[[B0:.*]] = vector.load
        CHECK-NEXT: %[[A1:.*]] = arith.addf %[[A0]], %[[A0]]
        CHECK-NEXT: %[[B1:.*]] = arith.addf %[[B0]], %[[B0]]
        CHECK-NEXT: %[[A2:.*]] = arith.mulf %[[A1]], %[[A1]]
        CHECK-NEXT: %[[B2:.*]] = arith.mulf %[[B1]], %[[B1]]
        CHECK-NEXT: vector.store %[[A2]]
        CHECK-NEXT: %[[S:.*]] = vector.load
        CHECK-NEXT: %[[B3:.*]] = arith.addf %[[B2]], %[[S]]
        CHECK-NEXT: vector.store %[[B3]]
        CHECK-NOT: mlirc.interleave
        """,
    )


VECTORS = """
func.func @f(%m: memref<?xf32>, %k: memref<?xf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  scf.for %i = %c0 to %n step %c16 {
    %a0 = vector.load %m[%i] : memref<?xf32>, vector<8xf32>
    %a1 = arith.addf %a0, %a0 : vector<8xf32>
    vector.store %a1, %k[%i] : memref<?xf32>, vector<8xf32>
    %j = arith.addi %i, %c8 : index
    %b0 = vector.load %m[%j] : memref<?xf32>, vector<8xf32>
    %b1 = arith.addf %b0, %b0 : vector<8xf32>
    vector.store %b1, %k[%j] : memref<?xf32>, vector<8xf32>
  } {mlirc.interleave}
  return
}
"""


def test_vectors_take_turns():
    filecheck(
        interleaved(VECTORS),
        """
        CHECK: scf.for
        CHECK: %[[A0:.*]] = vector.load
        CHECK: %[[A1:.*]] = arith.addf %[[A0]], %[[A0]]
        CHECK: %[[B0:.*]] = vector.load
        CHECK: vector.store %[[A1]]
        CHECK: vector.store
        """,
    )


def test_loads_of_what_is_stored_stay_behind():
    same = VECTORS.replace("%k[", "%m[")
    filecheck(
        interleaved(same),
        """
        CHECK: scf.for
        CHECK: vector.load
        CHECK: vector.store
        CHECK: vector.load
        CHECK: vector.store
        """,
    )


def test_stores_stay_behind_loads_before_them():
    """Even if the load has to wait for another: it may be the same memory."""
    filecheck(
        interleaved("""
        func.func @f(%at: memref<?xindex>, %m: memref<?xf32>, %k: memref<?xf32>, %x: vector<8xf32>, %n: index) {
          %c0 = arith.constant 0 : index
          %c8 = arith.constant 8 : index
          scf.for %i = %c0 to %n step %c8 {
            %j = memref.load %at[%i] : memref<?xindex>
            %a = vector.load %m[%j] : memref<?xf32>, vector<8xf32>
            vector.store %x, %k[%i] : memref<?xf32>, vector<8xf32>
            vector.store %a, %k[%i] : memref<?xf32>, vector<8xf32>
          } {mlirc.interleave}
          return
        }"""),
        """
        CHECK: memref.load
        CHECK-NEXT: %[[A:.*]] = vector.load
        CHECK-NEXT: vector.store
        CHECK-NEXT: vector.store %[[A]]
        """,
    )


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [torch.nn.functional.gelu, torch.exp, torch.log1p, torch.nn.functional.mish])
@pytest.mark.parametrize("n", [1, 17, 64, 129, 4099])
def test_functions_of_vectors_in_turns(function, n, dtype):
    compare(function, torch.randn(3, n).to(dtype).abs())
    compare(lambda x: function(x).sum(-1), torch.randn(3, n).to(dtype).abs())


def test_functions_take_turns_in_place():
    def f(x):
        return x.exp_().mul_(2)

    compare(f, torch.randn(5, 1000))


def test_others_stay():
    with ir.Context(), ir.Location.unknown():
        assert interleaved(LOOP.replace(" {mlirc.interleave}", "")) == str(ir.Module.parse(LOOP.replace(" {mlirc.interleave}", "")))


def rounded(m: int, k: int, n: int, factors: int) -> str:
    """A product of bf16, multiplied by constants in bf16."""
    operands = [("%x", f"tensor<{m}x{k}xbf16>"), ("%w", f"tensor<{k}x{n}xbf16>")]
    product = "%u = arith.extf %a0 : bf16 to f32\n%v = arith.extf %a1 : bf16 to f32\n%q = arith.mulf %u, %v : f32\n%o = arith.addf %a2, %q : f32"
    body = generic("%p", operands, f"tensor<{m}x{n}xf32>", ["i, k", "k, j", "i, j"], product, "ppr", "ijk", "0.0", "contraction")
    kind = f"tensor<{m}x{n}xbf16>"
    step = "%c{0} = arith.constant {1} : f32\n%m{0} = arith.mulf %e{0}, %c{0} : f32\n%r{0} = arith.truncf %m{0} : f32 to bf16\n%e{2} = arith.extf %r{0} : bf16 to f32\n"
    lines = "".join(step.format(i, 1.1 + i / 7, i + 1) for i in range(factors))
    lines = "%r = arith.truncf %a0 : f32 to bf16\n%e0 = arith.extf %r : bf16 to f32\n" + lines + f"%o = arith.truncf %e{factors} : f32 to bf16"
    body += generic("%y", [("%p", f"tensor<{m}x{n}xf32>")], kind, body=lines)
    return kernel(operands, body, [("%y", kind)], [[n, 1]])


@pytest.mark.parametrize("cpu", ["znver4", "znver3", "skylake-avx512"])
def test_no_sum_leaves_its_register_for_a_long_epilogue(cpu):
    text = rounded(256, 768, 96, 6)
    assert strategy(text, cpu).called_epilogue and not strategy(rounded(256, 768, 96, 1), cpu).called_epilogue
    asm = stages(text, cpu)["asm"]
    functions = re.split(r"\n(?=\w+:)", asm)
    parts = [part for f in functions for part in re.split(r"\n(?=\.L)", f)]
    products = [part for part in parts if len(re.findall(r"vdpbf16ps|vfmadd231ps", part)) >= 8 and re.search(r"\bj[a-z]+\t", part)]
    assert products and not any(re.search(r"vmov\w+\s.*\(%rsp\)", part) for part in products)
    assert len([f for f in functions if "_epilogue" in f.split(":")[0]]) <= 2, "tiles of all heights have one for pairs of rows, and one for the last"


def gelu_behind_a_product(m: int, k: int, n: int) -> str:
    operands = [("%x", f"tensor<{m}x{k}xf32>"), ("%w", f"tensor<{k}x{n}xf32>")]
    kind = f"tensor<{m}x{n}xf32>"
    body = matmul("%p", "%x", "%w", m, k, n) + generic("%y", [("%p", kind)], kind, body='%o = "mlirc.gelu"(%a0) : (f32) -> f32')
    return kernel(operands, body, [("%y", kind)], [[n, 1]])


@pytest.mark.parametrize("cpu", ["znver4", "znver3"])
def test_rows_behind_a_product_take_turns(cpu):
    """Two at a time in whole tiles: one after the other, the first ops of their vectors would be 38 ops apart each."""
    text = gelu_behind_a_product(256, 768, 96)
    s = strategy(text, cpu)
    assert s.epilogue_rows == 2 and not s.called_epilogue
    lines = stages(text, cpu)["math"].splitlines()
    at = [n for n, line in enumerate(lines) if "math.absf" in line]
    vectors = s.epilogue_rows * s.columns
    assert any(at[n + vectors - 1] - at[n] < 50 for n in range(len(at) - vectors + 1))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("m,n", [(1, 40), (13, 64), (33, 17), (40, 96)])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_functions_behind_a_product(m, n, dtype, dynamic):
    def f(x, w, r):
        return torch.nn.functional.gelu(x @ w) + r, torch.nn.functional.silu(x @ w)

    compare(f, torch.randn(m, 30).to(dtype), torch.randn(30, n).to(dtype), torch.randn(m, n).to(dtype), dynamic=dynamic)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("m,n", [(1, 40), (33, 17), (40, 96)])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_long_epilogues(m, n, dtype, dynamic):
    """A GELU written out, with a residual and a second result."""

    def f(x, w, b, r):
        y = torch.nn.functional.linear(x, w, b)
        z = 0.5 * y * (1 + torch.tanh(0.79788456 * (y + 0.044715 * torch.pow(y, 3))))
        return z + r, z * 2

    torch.manual_seed(0)
    compare(f, *(torch.randn(*s).to(dtype) for s in ((m, 24), (n, 24), (n,), (m, n))), dynamic=dynamic)
