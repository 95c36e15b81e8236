"""Large results are stored past the caches, wherever they begin, and others are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mlirc.dialects.mlir import ir
from mlirc.passes.strategy import ContractionStrategy, LoopStrategy
from mlirc.passes.stream_stores import stream_stores
from mlirc.tests.frontend.compare import OPTIONS, compare
from mlirc.tests.lowering.test_to_llvm import filecheck
from mlirc.tests.passes.graph_text import generic, matmul
from mlirc.tests.passes.vectorize.kernels import built, kernel, stages, strategy

TWO = """
func.func @f(%m: memref<?xf32>, %k: memref<?xbf16>, %v: vector<16xf32>, %w: vector<16xbf16>, %i: index) {
  vector.store %v, %m[%i] {nontemporal = true} : memref<?xf32>, vector<16xf32>
  vector.store %w, %k[%i] {nontemporal = true} : memref<?xbf16>, vector<16xbf16>
  vector.store %v, %m[%i] : memref<?xf32>, vector<16xf32>
  return
}
"""


def streamed(text: str) -> str:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        stream_stores(module)
        assert module.operation.verify()
        return str(module)


def test_stores_ask_where_the_memory_begins():
    filecheck(streamed(TWO), """
        CHECK: %[[M:.*]] = memref.extract_aligned_pointer_as_index %arg0
        CHECK: arith.muli %arg4, %c4
        CHECK: %[[C:.*]] = arith.constant 63 : index
        CHECK: arith.andi %{{.*}}, %[[C]]
        CHECK: scf.if
        CHECK: vector.store %arg2, %arg0[%arg4] {alignment = 64 : i64, nontemporal = true}
        CHECK: else
        CHECK: vector.store %arg2, %arg0[%arg4] : memref<?xf32>
        CHECK: arith.constant 31 : index
        CHECK: scf.if
        CHECK: vector.store %arg3, %arg1[%arg4] {alignment = 32 : i64, nontemporal = true}
        CHECK: vector.store %arg2, %arg0[%arg4] : memref<?xf32>
        CHECK: llvm.x86.sse.sfence
        CHECK-NEXT: return
    """)  # fmt: skip


def test_the_fence_is_where_no_other_function_goes_on():
    text = streamed(TWO + "func.func @g(%m: memref<?xf32>, %k: memref<?xbf16>, %v: vector<16xf32>, %w: vector<16xbf16>, %i: index) {\n"
                    "call @f(%m, %k, %v, %w, %i) : (memref<?xf32>, memref<?xbf16>, vector<16xf32>, vector<16xbf16>, index) -> ()\nreturn\n}\n")  # fmt: skip
    filecheck(text, "CHECK: func @f\nCHECK-NOT: sfence\nCHECK: func @g\nCHECK: call @f\nCHECK-NEXT: llvm.call_intrinsic \"llvm.x86.sse.sfence\"")


def test_other_functions_stay_as_they_are():
    text = TWO.replace(" {nontemporal = true}", "")
    with ir.Context():
        assert streamed(text) == str(ir.Module.parse(text))


def doubled(rows: int, columns: int, element: str = "f32", strides: tuple[int, int] | None = None) -> str:
    kind = f"tensor<{rows}x{columns}x{element}>"
    return kernel([("%x", kind)], generic("%y", [("%x", kind)], kind, body="%o = arith.addf %a0, %a0 : " + element), [("%y", kind)], [strides or (columns, 1)])


MB16 = 1 << 22
"""Elements of f32."""


@pytest.mark.parametrize(
    ("text", "target", "wanted"),
    [
        (doubled(4096, 1024), "x86-64-v4", True),
        (doubled(4096, 1023), "x86-64-v4", False),
        (doubled(4200, 1023), "x86-64-v4", True),
        (doubled(4200, 1023, strides=(1040, 1)), "x86-64-v4", True),
        (doubled(4200, 1023, strides=(1030, 1)), "x86-64-v4", False),
        (doubled(4200, 1023, strides=(1, 4200)), "x86-64-v4", False),
        (doubled(4096, 1024), "znver4", False),
        (doubled(8192, 1024), "znver4", True),
        (doubled(4096, 1024, "bf16"), "x86-64-v3", False),
        (doubled(8192, 1024, "bf16"), "x86-64-v3", True),
    ],
    ids=["16 MB", "less", "odd, in one", "apart", "apart by no vectors", "transposed", "AMD", "AMD, more", "bf16", "bf16, more"],
)  # fmt: skip
def test_what_is_large(text, target, wanted):
    chosen = strategy(text, target)
    assert isinstance(chosen, LoopStrategy) and chosen.streamed == [0] * wanted


def test_what_is_read_again_is_not_streamed():
    """Of a softmax the exponentials, if they are a result, too."""
    kind, row = "tensor<4096x1024xf32>", "tensor<4096xf32>"
    body = generic("%e", [("%x", kind)], kind)
    body += generic("%s", [("%e", kind)], row, ["i, j", "i"], "%o = arith.addf %a0, %a1 : f32", "pr", "ij", "0.0")
    body += generic("%y", [("%e", kind), ("%s", row)], kind, ["i, j", "i", "i, j"], "%o = arith.divf %a0, %a1 : f32")
    chosen = strategy(kernel([("%x", kind)], body, [("%e", kind), ("%y", kind)], [(1024, 1), (1024, 1)]))
    assert isinstance(chosen, LoopStrategy) and chosen.streamed == [1]


def test_what_takes_the_place_of_an_argument_is_not_streamed():
    """Its lines are in the cache already."""
    text = doubled(4096, 1024).replace("mlirc.result_strides", "mlirc.overwrites, mlirc.result_strides")
    chosen = strategy(text)
    assert isinstance(chosen, LoopStrategy) and chosen.streamed == []


@pytest.mark.parametrize(
    ("target", "element", "register"), [("x86-64-v4", "f32", "zmm"), ("x86-64-v4", "bf16", "ymm"), ("x86-64-v3", "f32", "ymm"), ("x86-64-v3", "bf16", "xmm")]
)
def test_instructions(target, element, register):
    """Each vector one way or the other, and a fence at the end."""
    code = stages(doubled(8192, 1024, element), target)["asm"]
    assert any("vmovnt" in line and f"%{register}" in line for line in code.splitlines())
    assert "sfence" in code and any("vmovup" in line or "vmovdqu" in line for line in code.splitlines())


def product(rows: int, columns: int = 1024, epilogue: str = "", pitch: int | None = None) -> str:
    """[rows, 8] times [8, columns] in f32."""
    wide = f"tensor<{rows}x{columns}xf32>"
    body = matmul("%y", "%a", "%b", rows, 8, columns)
    result = "%y"
    if epilogue:
        body, result = body + generic("%z", [("%y", wide)], wide, body=epilogue), "%z"
    return kernel([("%a", f"tensor<{rows}x8xf32>"), ("%b", f"tensor<8x{columns}xf32>")], body, [(result, wide)], [(pitch or columns, 1)])


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3"])
@pytest.mark.parametrize(("text", "wanted"), [(product(4096), True), (product(4095), False), (product(4200, 1021), False), (product(4200, 1021, pitch=1024), True)])
def test_large_results_of_products(text, wanted, target):
    chosen = strategy(text, target)
    assert isinstance(chosen, ContractionStrategy) and chosen.streamed == [0] * wanted
    code = stages(text, target)["asm"]
    assert ("vmovnt" in code) == ("sfence" in code) == wanted


def test_a_called_epilogue_has_no_fence_of_its_own():
    text = product(4096, epilogue="%e = math.exp %a0 : f32\n%t = math.tanh %e : f32\n%o = math.erf %t : f32")
    chosen = strategy(text)
    assert isinstance(chosen, ContractionStrategy) and chosen.called_epilogue and chosen.streamed == [0]
    code = stages(text)["vector"], stages(text)["math"]
    assert "nontemporal" in code[0] and code[1].count("sfence") == 2, "the body, and the function that has threads run it"


@pytest.mark.parametrize("begin", [0, 1, 8])
def test_results_begin_anywhere(begin):
    run = built(doubled(4096, 1024))
    x = np.random.default_rng(0).standard_normal((4096, 1024), np.float32)
    memory = np.full(MB16 + 64, 7, np.float32)
    first = -memory.ctypes.data % 64 // 4 + begin
    assert run(x, memory[first:]) == 0
    assert np.array_equal(memory[first : first + MB16], 2 * x.reshape(-1))
    assert (memory[:first] == 7).all() and (memory[first + MB16 :] == 7).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers(dtype):
    """Of norms, whose rows are no multiple of a vector; through guarded memory, which begins anywhere; and of what a caller has."""
    columns, rows = 1000, 32 * 1024 * 1024 // dtype.itemsize // 1000 + 3
    x = torch.randn(rows, columns).to(dtype)
    compare(lambda x: F.layer_norm(x, (columns,)) + 1, x)
    compare(lambda x: (x[:, :992].exp(), x.sum()), x, options=OPTIONS | {"guard_pages": "end"})
    y = torch.empty(rows * columns + 1, dtype=dtype)[1:]
    compare(lambda x, y: y.copy_(x.reshape(-1) * 2), x, y)


LAYERS = {
    "linear": lambda x, w: F.linear(x, w),
    "gelu": lambda x, w: F.gelu(F.linear(x, w)) + 1,
    "both": lambda x, w: ((y := F.linear(x, w)), y.relu()),
    "added": lambda x, w: F.linear(x, w) + x.sum(-1, keepdim=True),
    "conv": lambda x, w: F.conv2d(x[: 8 * 96 * 96].view(8, 96, 96, -1).permute(0, 3, 1, 2), w[:128, :, None, None]).relu(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LAYERS)
def test_products(name, dtype):
    x, w = torch.randn(73728, 17).to(dtype), torch.randn(128 if dtype == torch.bfloat16 else 64, 17).to(dtype)
    compare(LAYERS[name], x, w)


def test_two_threads_see_what_was_stored():
    x = torch.randn(4096, 1537)
    compare(lambda x: (x * 2).sum(0) + (x + 1).amax(0), x)
    compiled = torch.compile(lambda x: (x * 2, x + 1), backend="mlirc", options=OPTIONS)
    assert all(map(torch.equal, compiled(x), (x * 2, x + 1)))
