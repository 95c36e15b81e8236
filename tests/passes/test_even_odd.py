"""Vectors full of bf16 with the even lanes first: the same values, and no moves across the register."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.dialects.mlir import ir
from mlirc.lowering.target import Target
from mlirc.passes.even_odd import even_odd
from mlirc.passes.round_in_place import round_in_place
from mlirc.tests.frontend.elementwise import matches
from mlirc.tests.passes.vectorize.kernels import kernel, stages

V, W = "vector<32xbf16>", "vector<32xf32>"


def rewritten(body: str, arguments: str = "") -> str:
    """A kernel on two inputs %m and %n, an output %o and a place %i."""
    with ir.Context():
        text = f"func.func @k(%m: memref<?xbf16>, %n: memref<?xbf16>, %o: memref<?xbf16>, %i: index{arguments}) {{\n{body}\nreturn\n}}"
        module = ir.Module.parse(text)
        round_in_place(module, Target.parse("x86-64-v4"))
        even_odd(module, 32)
        assert module.operation.verify()
        return str(module)


LOAD = f"%a = vector.load %m[%i] : memref<?xbf16>, {V}\n%x = arith.extf %a : {V} to {W}\n"
STORE = f"%r = arith.truncf %y : {W} to {V}\nvector.store %r, %o[%i] : memref<?xbf16>, {V}\n"


def test_widening_is_a_shift_and_a_mask():
    text = rewritten(LOAD + f"%y = arith.addf %x, %x : {W}\n" + STORE)
    assert "arith.extf" not in text and "arith.shli" in text
    assert text.count("vector.bitcast") == 2


def test_what_an_instruction_narrowed_is_in_order():
    """It is widened as what is loaded is, and its operands stay as they are."""
    halves = "".join(f"%h{n} = vector.load %g[%i] : memref<?xf32>, vector<16xf32>\n" for n in (0, 1))
    call = '%a = llvm.call_intrinsic "llvm.x86.avx512bf16.cvtne2ps2bf16.512"(%h1, %h0) {mlirc.narrowed} : (vector<16xf32>, vector<16xf32>) -> '
    text = rewritten(halves + call + f"{V}\n%x = arith.extf %a : {V} to {W}\n%y = arith.addf %x, %x : {W}\n" + STORE, ", %g: memref<?xf32>")
    assert "arith.extf" not in text and text.count("arith.shli") == 1 and text.count("vector.bitcast") == 2


def test_what_is_masked_in_memory_keeps_its_order():
    body = f"""
    %z = arith.constant dense<0.0> : {V}
    %mask = vector.create_mask %i : vector<32xi1>
    %a = vector.maskedload %m[%i], %mask, %z : memref<?xbf16>, vector<32xi1>, {V} into {V}
    %x = arith.extf %a : {V} to {W}
    %one = arith.constant dense<1.0> : {W}
    %y = arith.select %mask, %x, %one : vector<32xi1>, {W}
    %r = arith.truncf %y : {W} to {V}
    vector.maskedstore %o[%i], %mask, %r : memref<?xbf16>, vector<32xi1>, {V}"""
    text = rewritten(body)
    # One mask for memory, two halves for what is computed.
    assert text.count("vector.create_mask") == 3
    assert "vector.maskedload %arg0[%arg3], %0," in text


@pytest.mark.parametrize("op", [
    f"%b = vector.load %m[%i] : memref<?xbf16>, {V}\n%c = arith.negf %b : {V}\nvector.store %c, %n[%i] : memref<?xbf16>, {V}",
    f"%f = vector.load %g[%i] : memref<?xf32>, {W}\n%s = arith.addf %f, %x : {W}\nvector.store %s, %g[%i] : memref<?xf32>, {W}",
])  # fmt: skip
def test_what_else_is_in_memory_is_shuffled(op):
    text = rewritten(LOAD + op + f"\n%y = arith.addf %x, %x : {W}\n" + STORE, ", %g: memref<?xf32>")
    assert "arith.extf" not in text and "[0, 2, 4, 6," in text and "[0, 16, 1, 17," in text


@pytest.mark.parametrize("op", [
    f"%e = vector.extract %x[1] : f32 from {W}\n%y = vector.broadcast %e : f32 to {W}",
    f"%y = vector.shuffle %x, %x [{', '.join(str(31 - i) for i in range(32))}] : {W}, {W}",
    f"%h = vector.extract_strided_slice %x {{offsets = [0], sizes = [16], strides = [1]}} : {W} to vector<16xf32>\n%y = vector.shuffle %h, %h [{', '.join(str(i % 16) for i in range(32))}] : vector<16xf32>, vector<16xf32>",
])  # fmt: skip
def test_a_function_that_wants_the_order_stays(op):
    text = rewritten(LOAD + op + "\n" + STORE)
    assert "arith.extf" in text and "arith.shli" not in text


def test_halves_in_any_order():
    """Sums of all lanes start with two halves, whatever is in which; vectors of other lengths are none of the pass's business."""
    halves = [f"%h{at} = vector.extract_strided_slice %x {{offsets = [{at}], sizes = [16], strides = [1], mlirc.any_order}} : {W} to vector<16xf32>\n" for at in (0, 16)]
    sums = "%h = arith.addf %h0, %h16 : vector<16xf32>\n%s = vector.shuffle %h, %h [1, 0] : vector<16xf32>, vector<16xf32>\n%t = vector.reduction <add>, %s : vector<2xf32> into f32\n"
    text = rewritten(LOAD + "".join(halves) + sums + f"%b = vector.broadcast %t : f32 to {W}\n%y = arith.addf %x, %b : {W}\n" + STORE)
    assert "arith.extf" not in text and "[0, 2, 4, 6," not in text and text.count("mlirc.any_order") == 2


GATED = """
  %e = tensor.empty() : tensor<64x768xbf16>
  %r = linalg.generic {indexing_maps = [#m, #m, #m], iterator_types = ["parallel", "parallel"]}
    ins(%x, %y : tensor<64x768xbf16>, tensor<64x768xbf16>) outs(%e : tensor<64x768xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %c: bf16):
    %u = arith.extf %a : bf16 to f32
    %v = arith.extf %b : bf16 to f32
    %w = arith.mulf %u, %v : f32
    %q = arith.truncf %w : f32 to bf16
    linalg.yield %q : bf16
  } -> tensor<64x768xbf16>
"""


@pytest.mark.parametrize(("target", "moves"), [("znver4", "vpternlogd"), ("x86-64-v4", "vpternlogd"), ("x86-64-v3", "vpblendw")])
def test_instructions(target, moves):
    t = "tensor<64x768xbf16>"
    text = kernel([("%x", t), ("%y", t)], GATED.replace("#m", "affine_map<(i, j) -> (i, j)>"), [("%r", t)], [[768, 1]])
    assembly = stages(text, target)["asm"]
    assert moves in assembly and "vpermt2w" not in assembly and "vpmovzxwd" not in assembly and "vpmovdw" not in assembly and "vpackusdw" not in assembly
    assert ("vpdpwssd" in assembly) == (target == "znver4")


SIZES = [1, 17, 31, 32, 33, 49, 63, 64, 65, 97, 160, 770]


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_values(size, dynamic):
    x, y, w = torch.randn(5, size).bfloat16(), torch.randn(5, size).bfloat16(), torch.randn(size).bfloat16()
    x[0, 0], x[1, -1], x[2, size // 2] = float("nan"), float("inf"), 1e-39

    def f(x, y, w):
        return (
            x + y, torch.where(x > y, x * w, y - 1), F.gelu(y) * w, torch.softmax(y, -1), F.layer_norm(y, (y.shape[-1],), w), y.sum(-1), x.amax(-1),
            y.sum(0), F.relu(x), y.mT.contiguous() + 1, (x * 2).float(), y.mean(-1, keepdim=True) - y, x.argmax(-1), (x.double() + 1).bfloat16(),
        )

    matches(f, x, y, w, dynamic=dynamic, factor=2)


def test_rows_that_are_read_as_they_lie():
    x, w = torch.randn(3, 40, 66).bfloat16(), torch.randn(66).bfloat16()
    matches(lambda x, w: ((x[:, 1:] * w)[..., :65], x[..., 1:] + x[..., :-1], x[:, ::2] * 2, x.flip(-1) * 2, F.pad(x, (3, 2)) + 1), x, w)


@pytest.mark.parametrize("size", [17, 20, 30, 40, 72, 100])
def test_rows_of_two_dims_that_are_kept(size):
    """A row of 7 x 20 elements is kept in vectors that do not overlap: in any order of the lanes, each has its own."""
    x, w = torch.randn(16, 7, 160).bfloat16(), torch.randn(3, size, 7, 64).bfloat16()

    def f(x, w):
        z = torch.tanh(x[..., :size])
        return z - z.amax((1, 2), keepdim=True), F.layer_norm(z, (7, size)), F.layer_norm(w.permute(0, 3, 2, 1), (7, size))

    matches(f, x, w, factor=2)
