"""Machine code: which registers and instructions each target gets, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mlirc.errors import CompileError
from mlirc.lowering.bfloat import bfloat_as_bits
from mlirc.lowering.codegen import emit_assembly, emit_object, undefined_symbols
from mlirc.lowering.target import Target
from mlirc.tests.lowering.jit import Ours, assembly, kernel, lower

TARGETS = ["x86-64-v3", "x86-64-v4", "icelake-server", "sapphirerapids", "znver4"]

# y = x * b + x over an array of any size, in steps of 16 with a masked tail
LOOP = """
func.func @k(%x: memref<?xKIND>, %y: memref<?xKIND>, %n: index) {
  %0 = arith.constant 0 : index
  %16 = arith.constant 16 : index
  %c = arith.constant dense<0.1> : vector<16xf32>
  %z = arith.constant dense<0.0> : vector<16xKIND>
  scf.for %i = %0 to %n step %16 {
    %left = arith.subi %n, %i : index
    %m = vector.create_mask %left : vector<16xi1>
    %v = vector.maskedload %x[%i], %m, %z : memref<?xKIND>, vector<16xi1>, vector<16xKIND> into vector<16xKIND>
    WIDEN
    %r = vector.fma %w, %c, %w : vector<16xf32>
    NARROW
    vector.maskedstore %y[%i], %m, %o : memref<?xKIND>, vector<16xi1>, vector<16xKIND>
  }
  return
}"""


def _loop(kind: str) -> str:
    widen = f"%w = arith.extf %v : vector<16x{kind}> to vector<16xf32>"
    narrow = f"%o = arith.truncf %r : vector<16xf32> to vector<16x{kind}>"
    if kind == "f32":
        return LOOP.replace("WIDEN", "").replace("NARROW", "").replace("%w", "%v").replace("%o", "%r").replace("KIND", kind)
    return LOOP.replace("WIDEN", widen).replace("NARROW", narrow).replace("KIND", kind)


def _instructions(asm: str) -> list[str]:
    return re.findall(r"^\t([a-z]\w*)", asm, re.MULTILINE)


@pytest.mark.parametrize(("target", "register"), [("x86-64-v2", "xmm"), ("x86-64-v3", "ymm"), *((t, "zmm") for t in TARGETS[1:])])
def test_vectors_have_the_width_of_the_target(target, register):
    asm = assembly(_loop("f32"), target)
    widest = next(r for r in ("zmm", "ymm", "xmm") if r in asm)
    assert widest == register
    assert ("vfmadd" in asm) == (target != "x86-64-v2")


@pytest.mark.parametrize("target", TARGETS[1:])
@pytest.mark.parametrize("kind", ["f32", "bf16", "f16"])
def test_tails_are_masked_not_scalar(kind, target):
    asm = assembly(_loop(kind), target)
    assert re.search(r"vmov\w+\s.*\{%k\d\}", asm)
    assert len(_instructions(asm)) < 60
    assert not {"call", "callq", "vpextrw", "vpinsrw"} & set(_instructions(asm))


@pytest.mark.parametrize("target", ["x86-64-v2", *TARGETS])
def test_bf16_is_rounded_by_integers(target):
    """vcvtneps2bf16 flushes denormals, so it is not used where nobody asked for it."""
    asm = assembly(_loop("bf16"), target)
    assert "cvtneps2bf16" not in asm and "call" not in _instructions(asm)


@pytest.mark.parametrize("target", TARGETS)
def test_f16_is_converted_by_the_cpu(target):
    instructions = _instructions(assembly(_loop("f16"), target))
    assert {"vcvtph2ps", "vcvtph2psx"} & set(instructions)
    assert {"vcvtps2ph", "vcvtps2phx"} & set(instructions)
    assert "call" not in instructions and "callq" not in instructions


def test_f16_without_f16c_is_an_error():
    with pytest.raises(CompileError, match="f16c, which target x86-64-v2 lacks"):
        emit_object(lower(_loop("f16")), Target.parse("x86-64-v2"))


MOVES = """
func.func @k(%x: memref<32xKIND>, %y: memref<32xKIND>, %n: index, %c: vector<32xi1>) {
  %0 = arith.constant 0 : index
  %1 = arith.constant 1 : index
  %v = vector.load %x[%0] : memref<32xKIND>, vector<32xKIND>
  %w = vector.load %y[%0] : memref<32xKIND>, vector<32xKIND>
  %s = arith.select %c, %v, %w : vector<32xi1>, vector<32xKIND>
  %i:2 = vector.deinterleave %s : vector<32xKIND> -> vector<16xKIND>
  %j = vector.interleave %i#1, %i#0 : vector<16xKIND> -> vector<32xKIND>
  %e = vector.extract %j[3] : KIND from vector<32xKIND>
  %b = vector.broadcast %e : KIND to vector<32xKIND>
  %last = scf.for %k = %0 to %n step %1 iter_args(%a = %e) -> (KIND) {
    memref.store %a, %x[%k] : memref<32xKIND>
    %l = memref.load %y[%k] : memref<32xKIND>
    scf.yield %l : KIND
  }
  memref.store %last, %x[%n] : memref<32xKIND>
  vector.store %b, %y[%0] : memref<32xKIND>, vector<32xKIND>
  return
}"""


@pytest.mark.parametrize("target", TARGETS)
def test_moving_bf16_costs_what_moving_integers_costs(target):
    as_bf16, as_i16 = (assembly(MOVES.replace("KIND", kind), target) for kind in ("bf16", "i16"))
    assert _instructions(as_bf16) == _instructions(as_i16)


def test_moving_bf16_keeps_every_bit():
    """A loop-carried value, NaNs with payloads and denormals included."""
    body = (
        "%one = arith.constant 1 : index\n%n = arith.constant 16 : index\n%first = memref.load %a0[%zero] : memref<17xbf16>\n"
        "%r = scf.for %k = %zero to %n step %one iter_args(%a = %first) -> (bf16) {\n"
        "memref.store %a, %a1[%k] : memref<16xbf16>\n%next = arith.addi %k, %one : index\n"
        "%l = memref.load %a0[%next] : memref<17xbf16>\nscf.yield %l : bf16 }"
    )
    run = Ours(kernel(body, "17xbf16", "16xbf16"))
    for start in range(0, 1 << 16, 1024):
        x = np.arange(start, start + 17).astype(np.uint16)
        out = np.zeros(16, np.uint16)
        run("k", x, out)
        np.testing.assert_array_equal(out, x[:16])


def test_bf16_arithmetic_left_to_llvm_is_an_error():
    for line in (
        "%3 = fadd bfloat %1, %2",
        "%3 = fptrunc <4 x float> %1 to <4 x bfloat>",
        "%3 = fcmp olt <4 x bfloat> %1, %2",
        "%3 = call <4 x bfloat> @llvm.fma.v4bf16(<4 x bfloat> %1, <4 x bfloat> %1, <4 x bfloat> %1)",
    ):
        with pytest.raises(CompileError, match=re.escape(line)):
            bfloat_as_bits(f"define void @f() {{\n  {line}\n}}\n")


def test_intrinsics_of_bf16_and_i16_become_one():
    declare = "declare <4 x {0}> @llvm.masked.load.v4{1}.p0(ptr, <4 x i1>, <4 x {0}>)\n"
    call = "  %{2} = call <4 x {0}> @llvm.masked.load.v4{1}.p0(ptr %p, <4 x i1> %m, <4 x {0}> zeroinitializer)\n"
    text = declare.format("i16", "i16") + declare.format("bfloat", "bf16")
    text += "define void @f(ptr %p, <4 x i1> %m) {\n" + call.format("i16", "i16", 1) + call.format("bfloat", "bf16", 2)
    text += "  store <4 x bfloat> splat (bfloat 0xR3F80), ptr %p\n  ret void\n}\n"
    result = bfloat_as_bits(text)
    assert "bf" not in result and result.count("declare") == 1 and "splat (i16 16256)" in result
    emit_object(text, Target.host())


DOT = """
func.func @k(%a: vector<16xf32>, %b: vector<32xbf16>, %c: vector<32xbf16>) -> vector<16xbf16> {
  %0 = x86.avx512.dot %a, %b, %c : vector<32xbf16> -> vector<16xf32>
  %1 = x86.avx512.cvt.packed.f32_to_bf16 %0 : vector<16xf32> -> vector<16xbf16>
  return %1 : vector<16xbf16>
}"""


@pytest.mark.parametrize("target", ["cooperlake", "sapphirerapids", "znver4"])
def test_bf16_instructions_are_there_for_who_asks(target):
    asm = assembly(DOT, target)
    assert "vdpbf16ps" in asm and "vcvtneps2bf16" in asm


AMX = """
func.func @k(%a: memref<32x?xbf16>, %b: memref<?x2x16x32xbf16>, %c: memref<32x32xf32>, %n: index) {
  %0 = arith.constant 0 : index
  %1 = arith.constant 1 : index
  %16 = arith.constant 16 : index
  %32 = arith.constant 32 : index
  %z = x86.amx.tile_zero : !F
  %r:4 = scf.for %k = %0 to %n step %1 iter_args(%x = %z, %y = %z, %u = %z, %v = %z) -> (!F, !F, !F, !F) {
    %kk = arith.muli %k, %32 : index
    %a0 = x86.amx.tile_load %a[%0, %kk] : memref<32x?xbf16> into !B
    %a1 = x86.amx.tile_load %a[%16, %kk] : memref<32x?xbf16> into !B
    %b0 = x86.amx.tile_load %b[%k, %0, %0, %0] : memref<?x2x16x32xbf16> into !B
    %b1 = x86.amx.tile_load %b[%k, %1, %0, %0] : memref<?x2x16x32xbf16> into !B
    %x1 = x86.amx.tile_mulf %a0, %b0, %x : !B, !B, !F
    %y1 = x86.amx.tile_mulf %a0, %b1, %y : !B, !B, !F
    %u1 = x86.amx.tile_mulf %a1, %b0, %u : !B, !B, !F
    %v1 = x86.amx.tile_mulf %a1, %b1, %v : !B, !B, !F
    scf.yield %x1, %y1, %u1, %v1 : !F, !F, !F, !F
  }
  x86.amx.tile_store %c[%0, %0], %r#0 : memref<32x32xf32>, !F
  x86.amx.tile_store %c[%0, %16], %r#1 : memref<32x32xf32>, !F
  x86.amx.tile_store %c[%16, %0], %r#2 : memref<32x32xf32>, !F
  x86.amx.tile_store %c[%16, %16], %r#3 : memref<32x32xf32>, !F
  return
}""".replace("!F", "!x86.amx.tile<16x16xf32>").replace("!B", "!x86.amx.tile<16x32xbf16>")


def test_amx_tiles_stay_in_registers():
    instructions = _instructions(assembly(AMX, "sapphirerapids"))
    counts = {name: instructions.count(name) for name in ("ldtilecfg", "tilezero", "tileloadd", "tdpbf16ps", "tilestored")}
    assert counts == {"ldtilecfg": 1, "tilezero": 4, "tileloadd": 4, "tdpbf16ps": 4, "tilestored": 4}
    assert instructions.index("ldtilecfg") < instructions.index("tilezero")


def test_amx_int8_compiles():
    text = """
    func.func @k(%a: memref<16x64xi8>, %c: memref<16x16xi32>) {
      %0 = arith.constant 0 : index
      %a0 = x86.amx.tile_load %a[%0, %0] : memref<16x64xi8> into !x86.amx.tile<16x64xi8>
      %z = x86.amx.tile_zero : !x86.amx.tile<16x16xi32>
      %r = x86.amx.tile_muli %a0 zext, %a0, %z : !x86.amx.tile<16x64xi8>, !x86.amx.tile<16x64xi8>, !x86.amx.tile<16x16xi32>
      x86.amx.tile_store %c[%0, %0], %r : memref<16x16xi32>, !x86.amx.tile<16x16xi32>
      return
    }"""
    assert "tdpbusd" in assembly(text, "sapphirerapids")


@pytest.mark.parametrize(("text", "target", "feature"), [(AMX, "x86-64-v4", "amx-"), (DOT, "icelake-server", "avx512bf16")])
def test_an_instruction_beyond_the_target_is_an_error(text, target, feature):
    with pytest.raises(CompileError, match=f"needs the CPU feature {feature}.*which target {target} lacks"):
        emit_object(lower(text), Target.parse(target))


def test_products_and_sums_are_not_contracted():
    text = "func.func @k(%a: vector<16xf32>, %b: vector<16xf32>) -> vector<16xf32> {{\n{}\nreturn %r : vector<16xf32> }}"
    separate = text.format("%p = arith.mulf %a, %b : vector<16xf32>\n%r = arith.addf %p, %a : vector<16xf32>")
    assert "vfmadd" not in assembly(separate, "x86-64-v4")
    allowed = separate.replace("%a, %b :", "%a, %b fastmath<contract> :").replace("%p, %a :", "%p, %a fastmath<contract> :")
    assert "vfmadd" in assembly(allowed, "x86-64-v4")
    assert "vfmadd" in assembly(text.format("%r = vector.fma %a, %b, %a : vector<16xf32>"), "x86-64-v4")


def test_code_is_the_same_every_time():
    text = lower(_loop("f32"))
    assert emit_object(text, Target.parse("znver4")) == emit_object(text, Target.parse("znver4"))


def test_strength_reduction_is_left_out_of_one_kernel_only():
    """Here an index times 5,000 is computed as it is written, and in the next kernel summed up."""
    text = """define void @k(ptr %p, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = mul i64 %i, 5000
  %a = getelementptr i8, ptr %p, i64 %at
  store i32 1, ptr %a
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
    target = Target.parse("x86-64-v3")
    before = emit_assembly(text, target)
    assert "imul" not in before and "imul" in emit_assembly(text, target, strength_reduction=False)
    assert emit_assembly(text, target) == before


def test_symbols_that_an_object_wants():
    text = "declare void @there(ptr)\ndefine void @here(ptr %p) {\n  call void @there(ptr %p)\n  ret void\n}\n"
    assert undefined_symbols(emit_object(text, Target.host())) == ["there"]
    assert undefined_symbols(emit_object(lower(_loop("f32")), Target.host())) == []
    with pytest.raises(CompileError, match="not a 64-bit ELF object"):
        undefined_symbols(b"MZ")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ret i32 7", "result type 'void': ret i32 7"),
        ("%x = frob i32 7", "expected instruction opcode: %x = frob i32 7"),
        ("call void @llvm.no.such.thing()", "llvm.no.such.thing"),
    ],
)
def test_what_llvm_rejects_is_named(line, reason):
    with pytest.raises(CompileError, match=re.escape(reason)):
        emit_object(f"declare void @llvm.no.such.thing()\ndefine void @f() {{\n  {line}\n  ret void\n}}\n", Target.host())
