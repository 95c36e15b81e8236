"""Large results are stored past the caches, wherever they begin, and others are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mlirc.dialects.mlir import ir
from mlirc.lowering.target import Target
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


CALLER = """
func.func @g(%m: memref<?xf32>, %k: memref<?xbf16>, %v: vector<16xf32>, %w: vector<16xbf16>, %i: index) {
  call @f(%m, %k, %v, %w, %i) : (memref<?xf32>, memref<?xbf16>, vector<16xf32>, vector<16xbf16>, index) -> ()
  return
}
"""
THREADS = """
func.func @h() {
  %f = func.constant @f : (memref<?xf32>, memref<?xbf16>, vector<16xf32>, vector<16xbf16>, index) -> ()
  return
}
"""


@pytest.mark.parametrize(("more", "fences"), [("", "f"), (CALLER, "g"), (CALLER + THREADS, "fgh")], ids=["alone", "called", "run by threads, too"])
def test_the_fence_is_at_the_end_of_what_a_thread_runs(more, fences):
    functions = streamed(TWO + more).split("func.func @")[1:]
    assert [f[0] for f in functions if "sfence" in f] == list(fences)


def test_other_functions_stay_as_they_are():
    text = TWO.replace(" {nontemporal = true}", "")
    with ir.Context():
        assert streamed(text) == str(ir.Module.parse(text))


def doubled(rows: int, columns: int, element: str = "f32", strides: tuple[int, int] | None = None) -> str:
    kind, add = f"tensor<{rows}x{columns}x{element}>", "arith.addi" if element == "i64" else "arith.addf"
    return kernel([("%x", kind)], generic("%y", [("%x", kind)], kind, body=f"%o = {add} %a0, %a0 : {element}"), [("%y", kind)], [strides or (columns, 1)])


def summed(channels: int) -> str:
    """[80000, 3, channels] to [80000, channels], with the lanes along the channels."""
    wide, kind = f"tensor<80000x3x{channels}xbf16>", f"tensor<80000x{channels}xf32>"
    narrow = f"tensor<80000x{channels}xbf16>"
    body = generic("%s", [("%x", wide)], kind, ["i, k, j", "i, j"], "%w = arith.extf %a0 : bf16 to f32\n%o = arith.addf %w, %a1 : f32", "ppr", "ijk", "0.0")
    body += generic("%y", [("%s", kind)], narrow, body="%o = arith.truncf %a0 : f32 to bf16")
    return kernel([("%x", wide)], body, [("%y", narrow)], [(channels, 1)])


@pytest.mark.parametrize(
    ("text", "target", "wanted"),
    [
        (doubled(4096, 1024), "x86-64-v4", True),
        (doubled(4096, 1023), "x86-64-v4", False),
        (doubled(4200, 1023), "x86-64-v4", True),
        (doubled(4200, 1023, strides=(1040, 1)), "x86-64-v4", True),
        (doubled(4200, 1023, strides=(1030, 1)), "x86-64-v4", False),
        (doubled(4200, 1023, strides=(1, 4200)), "x86-64-v4", False),
        (doubled(4096, 1024), "znver4", True),
        (doubled(4096, 1024, "bf16"), "x86-64-v3", False),
        (doubled(8192, 1024, "bf16"), "x86-64-v3", True),
        (doubled(2048, 1024, "i64"), "x86-64-v4", True),
        (doubled(1 << 20, 7, strides=(16, 1)), "x86-64-v4", False),
        (summed(272), "x86-64-v3", False),
    ],
    ids=["16 MB", "less", "odd, in one", "apart", "apart by no vectors", "transposed", "AMD", "bf16", "bf16, more", "i64", "less than a vector", "parts of lines"],
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
    ("target", "element", "register"),
    [("x86-64-v4", "f32", "zmm"), ("x86-64-v4", "bf16", "ymm"), ("x86-64-v4", "i64", "zmm"), ("x86-64-v3", "f32", "ymm"), ("x86-64-v3", "bf16", "xmm")],
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


@pytest.mark.parametrize(
    ("text", "target", "wanted"),
    [
        (product(4096), "x86-64-v4", True),
        (product(4095), "x86-64-v4", False),
        (product(4200, 1021), "x86-64-v4", False),
        (product(4200, 1021, pitch=1024), "x86-64-v4", True),
        (product(4096), "x86-64-v3", False),
    ],
    ids=["16 MB", "less", "odd", "odd, apart", "three vectors of half a line"],
)
def test_large_results_of_products(text, target, wanted):
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


@pytest.mark.parametrize(("element", "begin"), [("f32", 0), ("f32", 1), ("f32", 8), ("i64", 0), ("i64", 3), ("i64", 8)])
def test_results_begin_anywhere(element, begin):
    dtype = np.dtype(np.float32 if element == "f32" else np.int64)
    shape = (8192, 1024 * 4 // dtype.itemsize)
    text = doubled(*shape, element)
    assert streams(text)
    x = np.random.default_rng(0).integers(-1000, 1000, shape).astype(dtype)
    memory = np.full(x.size + 64, 7, dtype)
    first = -memory.ctypes.data % 128 // dtype.itemsize + begin
    assert built(text)(x, memory[first:]) == 0
    assert np.array_equal(memory[first : first + x.size], 2 * x.reshape(-1))
    assert (memory[:first] == 7).all() and (memory[first + x.size :] == 7).all()


def streams(text: str) -> bool:
    return bool(strategy(text, Target.host()).streamed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers(dtype, outlined):
    """Of norms, and through guarded memory, which begins anywhere."""
    columns, rows = 992, 32 * 1024 * 1024 // dtype.itemsize // 992 + 3
    x = torch.randn(rows, 1000).to(dtype)
    for f, options in (
        (lambda x: F.layer_norm(x[:, :columns], (columns,)) + 1, {}),
        (lambda x: (x[:, :columns].exp(), x.sum()), {"guard_pages": "end"}),
    ):
        outlined.clear()
        compare(f, x, options=OPTIONS | options)
        assert any(streams(k.text) for k in outlined)


LAYERS = {
    "linear": lambda x, w: F.linear(x, w),
    "gelu": lambda x, w: F.gelu(F.linear(x, w)) + 1,
    "both": lambda x, w: ((y := F.linear(x, w)), y.relu()),
    "added": lambda x, w: F.linear(x, w) + x.sum(-1, keepdim=True),
    "conv": lambda x, w: F.conv2d(x.view(8, 128, 128, -1).permute(0, 3, 1, 2), w[:, :, None, None]).relu(),
}


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LAYERS)
def test_products(name, dtype, outlined):
    x, w = torch.randn(131072, 17).to(dtype), torch.randn(256 // dtype.itemsize, 17).to(dtype)
    compare(LAYERS[name], x, w)
    if not Target.host().has_avx512:
        pytest.skip("products with AVX2 store a vector and a half of a line at a time")
    assert any(streams(k.text) for k in outlined)


def test_two_threads_see_what_was_stored(outlined):
    x, threads = torch.randn(8192, 1536), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        compare(lambda x: (x * 2).sum(0) + (x + 1).amax(0), x)
        compiled = torch.compile(lambda x: (x * 2, x + 1), backend="mlirc", options=OPTIONS)
        assert all(map(torch.equal, compiled(x), (x * 2, x + 1)))
    finally:
        torch.set_num_threads(threads)
    assert any(streams(k.text) for k in outlined)
