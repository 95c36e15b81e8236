"""What MLIR becomes: the pipeline's reach, our own rewrites, and what is refused."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
import torch
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

from mlirc.dialects.mlir import ir
from mlirc.errors import CompileError
from mlirc.lowering.to_llvm import PIPELINE, lower_to_llvm_ir
from mlirc.tests.lowering.jit import Ours, assembly, kernel, lower


def filecheck(text: str, checks: str) -> None:
    options = Options(match_filename="checks")
    parser = Parser(options, io.StringIO(checks), *pattern_for_opts(options))
    assert Matcher(options, FInput("module", text), parser).run() == 0


# Each reads memrefs %a0 and %a1 of 8x16xf32 and writes %a2, likewise.
M = "memref<8x16xf32>"
V = "vector<8x16xf32>"
READ = (
    "%pad = arith.constant 0.0 : f32\n"
    f"%x = vector.transfer_read %a0[%zero, %zero], %pad {{in_bounds = [true, true]}} : {M}, {V}\n"
    f"%y = vector.transfer_read %a1[%zero, %zero], %pad {{in_bounds = [true, true]}} : {M}, {V}\n"
)
WRITE = f"\nvector.transfer_write %r, %a2[%zero, %zero] {{in_bounds = [true, true]}} : {V}, {M}"
CONSTRUCTS = {
    "fma of two dimensions": (f"%r = vector.fma %x, %y, %x : {V}", lambda x, y: np.float32(x * np.float64(y) + x)),
    "transpose": (
        f"%p = vector.transpose %x, [1, 0] : {V} to vector<16x8xf32>\n%r = vector.shape_cast %p : vector<16x8xf32> to {V}",
        lambda x, y: x.T.reshape(8, 16),
    ),
    "broadcast and inner reduction": (
        "%z = arith.constant dense<0.0> : vector<8xf32>\n"
        f"%p = vector.multi_reduction <maximumf>, %x, %z [1] : {V} to vector<8xf32>\n"
        "%q = vector.shape_cast %p : vector<8xf32> to vector<8x1xf32>\n"
        f"%r = vector.broadcast %q : vector<8x1xf32> to {V}",
        lambda x, y: np.maximum(x.max(1, keepdims=True), 0) + 0 * x,
    ),
    "outer reduction": (
        f"%z = arith.constant dense<0.0> : vector<16xf32>\n%p = vector.multi_reduction <maximumf>, %x, %z [0] : {V} to vector<16xf32>\n"
        f"%r = vector.broadcast %p : vector<16xf32> to {V}",
        lambda x, y: np.maximum(x.max(0, keepdims=True), 0) + 0 * x,
    ),
    "slices": (
        f"%p = vector.extract_strided_slice %x {{offsets = [2, 4], sizes = [4, 8], strides = [1, 1]}} : {V} to vector<4x8xf32>\n"
        f"%r = vector.insert_strided_slice %p, %y {{offsets = [1, 3], strides = [1, 1]}} : vector<4x8xf32> into {V}",
        lambda x, y: np.block([[y[:1]], [y[1:5, :3], x[2:6, 4:12], y[1:5, 11:]], [y[5:]]]),
    ),
    "transfers over the edge": (
        f"%two = arith.constant 2 : index\n%t = arith.constant 10 : index\n%r = vector.transfer_read %a0[%two, %t], %pad : {M}, {V}",
        lambda x, y: np.pad(x[2:, 10:], ((0, 2), (0, 10))),
    ),
    "transposed transfer": (
        "%p = vector.transfer_read %a0[%zero, %zero], %pad"
        f" {{in_bounds = [true, true], permutation_map = affine_map<(a, b) -> (b, a)>}} : {M}, vector<16x8xf32>\n"
        f"%r = vector.shape_cast %p : vector<16x8xf32> to {V}",
        lambda x, y: x.T.reshape(8, 16),
    ),
    "gather of two dimensions": (
        f"%i = arith.constant dense<3> : vector<8x16xi32>\n%m = arith.cmpf olt, %x, %y : {V}\n"
        f"%r = vector.gather %a0[%zero, %zero][%i], %m, %y : {M}, vector<8x16xi32>, vector<8x16xi1>, {V} into {V}",
        lambda x, y: np.where(x < y, x[0, 3], y),
    ),
    "mask of two dimensions": (
        "%three = arith.constant 3 : index\n%l = memref.dim %a0, %three : memref<8x16xf32>\n"
        f"%n = arith.constant 5 : index\n%m = vector.create_mask %n, %three : vector<8x16xi1>\n"
        f"%r = arith.select %m, %x, %y : vector<8x16xi1>, {V}",
        lambda x, y: np.where((np.arange(8)[:, None] < 5) & (np.arange(16) < 3), x, y),
    ),
    "contraction": (
        f"%z = arith.constant dense<0.0> : vector<8x8xf32>\n"
        "%p = vector.contract {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,"
        ' affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}'
        f" %x, %y, %z : {V}, {V} into vector<8x8xf32>\n"
        f"%r = vector.insert_strided_slice %p, %y {{offsets = [0, 0], strides = [1, 1]}} : vector<8x8xf32> into {V}",
        lambda x, y: np.hstack([x @ y.T, y[:, 8:]]),
    ),
    "subview": (
        "%one = arith.constant 1 : index\n"
        "%s = memref.subview %a0[%one, 0] [4, 16] [2, 1] : memref<8x16xf32> to memref<4x16xf32, strided<[32, 1], offset: ?>>\n"
        "%p = vector.load %s[%one, %zero] : memref<4x16xf32, strided<[32, 1], offset: ?>>, vector<16xf32>\n"
        f"%r = vector.broadcast %p : vector<16xf32> to {V}",
        lambda x, y: x[3] + 0 * x,
    ),
    "affine and scratch": (
        "%s = memref.alloca() {alignment = 64} : memref<8x16xf32>\n"
        "affine.for %i = 0 to 8 {\n affine.for %j = 0 to 16 {\n"
        " %e = affine.load %a0[7 - %i, (%j + 3) mod 16] : memref<8x16xf32>\n affine.store %e, %s[%i, %j] : memref<8x16xf32>\n }\n}\n"
        f"%r = vector.transfer_read %s[%zero, %zero], %pad {{in_bounds = [true, true]}} : {M}, {V}",
        lambda x, y: np.roll(x[::-1], -3, 1),
    ),
}


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_constructs_of_the_vector_dialect_run(name):
    body, expected = CONSTRUCTS[name]
    x, y = np.random.default_rng(0).standard_normal((2, 8, 16)).astype(np.float32)
    out = np.zeros_like(x)
    Ours(kernel(READ + body + WRITE, "8x16xf32", "8x16xf32", "8x16xf32"))("k", x, y, out)
    np.testing.assert_allclose(out, expected(x, y), rtol=1e-6, atol=1e-6)


def _transpose(size: int, kind: str) -> str:
    block = f"vector<{size}x{size}x{kind}>"
    memref = f"memref<{size}x{size}x{kind}>"
    return kernel(
        f"%pad = arith.constant {'0' if kind[0] == 'i' else '0.0'} : {kind}\n"
        f"%x = vector.transfer_read %a0[%zero, %zero], %pad {{in_bounds = [true, true]}} : {memref}, {block}\n"
        f"%r = vector.transpose %x, [1, 0] : {block} to {block}\n"
        f"vector.transfer_write %r, %a1[%zero, %zero] {{in_bounds = [true, true]}} : {block}, {memref}",
        f"{size}x{size}x{kind}",
        f"{size}x{size}x{kind}",
    )


@pytest.mark.parametrize("size", [4, 8, 12, 16, 32])
@pytest.mark.parametrize(
    ("kind", "dtype"), [("i8", np.uint8), ("bf16", np.uint16), ("f16", np.uint16), ("f32", np.uint32), ("f64", np.uint64)]
)
def test_transposes(size, kind, dtype):
    x = np.random.default_rng(0).integers(0, 1 << 63, (size, size), dtype=np.uint64).astype(dtype)
    out = np.zeros_like(x)
    Ours(_transpose(size, kind))("k", x, out)
    np.testing.assert_array_equal(out, x.T)


@pytest.mark.parametrize(
    ("size", "kind", "target", "shuffles"), [(16, "f32", "x86-64-v4", 64), (8, "f32", "x86-64-v3", 24), (16, "bf16", "x86-64-v4", 64)]
)
def test_transposes_take_n_log_n_shuffles(size, kind, target, shuffles):
    instructions = re.findall(r"^\t(v[a-z]\w*)", assembly(_transpose(size, kind), target), re.MULTILINE)
    # Beside a load and a store for each row, vzeroupper, and index vectors.
    assert len(instructions) <= shuffles + 2 * size + 3


@pytest.mark.parametrize("lanes", [4, 16, 32, 64, 128])
def test_masks_of_any_count(lanes):
    body = (
        "%c = memref.load %a0[%zero] : memref<1xi64>\n%n = arith.index_cast %c : i64 to index\n"
        f"%m = vector.create_mask %n : vector<{lanes}xi1>\n%r = arith.extui %m : vector<{lanes}xi1> to vector<{lanes}xi8>\n"
        f"vector.store %r, %a1[%zero] : memref<{lanes}xi8>, vector<{lanes}xi8>"
    )
    run = Ours(kernel(body, "1xi64", f"{lanes}xi8"))
    for count in (-(2**40), -1, 0, 1, 3, lanes - 1, lanes, lanes + 1, 127, 128, 256, 2**31, 2**32, 2**32 + 3, 2**40 + 1):
        out = np.full(lanes, 7, np.uint8)
        run("k", np.array([count]), out)
        np.testing.assert_array_equal(out, np.arange(lanes) < count, err_msg=str(count))


def test_masks_compare_32_bit_numbers():
    filecheck(
        lower("func.func @k(%n: index) -> vector<16xi1> {\n%m = vector.create_mask %n : vector<16xi1>\nreturn %m : vector<16xi1> }"),
        """
        // CHECK: call i64 @llvm.smax.i64(i64 %0, i64 0)
        // CHECK: call i64 @llvm.smin.i64(i64 %{{.*}}, i64 16)
        // CHECK: icmp {{.*}} <16 x i32>
        // CHECK-NOT: <16 x i64>
        """,
    )


def _conversion(source: str, target: str, op: str, lanes: int = 16) -> Ours:
    body = (
        f"%x = vector.load %a0[%zero] : memref<{lanes}x{source}>, vector<{lanes}x{source}>\n"
        f"%r = arith.{op} %x : vector<{lanes}x{source}> to vector<{lanes}x{target}>\n"
        f"vector.store %r, %a1[%zero] : memref<{lanes}x{target}>, vector<{lanes}x{target}>"
    )
    return Ours(kernel(body, f"{lanes}x{source}", f"{lanes}x{target}"))


def _some_floats() -> np.ndarray:
    """Floats of all kinds, with many that lie between two bf16 or f16 values, and denormals."""
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32)
    raw[::4] &= 0xFFFF8000  # on the middle, or exact
    raw[1::8] &= 0x807FFFFF  # denormals
    raw[2::8] = (raw[2::8] & 0x8FFFFFFF) | 0x38000000  # the range of f16
    raw[:8] = [0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7FC00000, 0x7F800001, 0xFFFFFFFF]
    return raw.view(np.float32)


@pytest.mark.parametrize(("kind", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_narrow_floats_round_as_torch_does(kind, dtype):
    x = _some_floats()
    expected = torch.from_numpy(x).to(dtype)
    out = np.zeros(x.shape, np.uint16)
    run = _conversion("f32", kind, "truncf")
    for i in range(0, len(x), 16):
        run("k", x[i : i + 16], out[i : i + 16])
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(out[numbers], expected.view(torch.uint16).numpy()[numbers])
    assert torch.from_numpy(out).view(dtype).isnan().numpy()[~numbers].all()
    if kind == "bf16":
        assert set(out[~numbers] & 0x7FFF) == {0x7FC0}


@pytest.mark.parametrize(("kind", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
@pytest.mark.parametrize("wide", [("f32", np.float32), ("f64", np.float64)])
def test_narrow_floats_widen_exactly(kind, dtype, wide):
    x = np.arange(1 << 16).astype(np.uint16)
    out = np.zeros(x.shape, wide[1])
    run = _conversion(kind, wide[0], "extf")
    for i in range(0, len(x), 16):
        run("k", x[i : i + 16], out[i : i + 16])
    np.testing.assert_array_equal(out, torch.from_numpy(x).view(dtype).double().numpy())


@pytest.mark.parametrize(("kind", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_f64_narrows_through_f32_as_torch_does(kind, dtype):
    near_middle = 1 + 2.0**-8 + 2.0**-40 if kind == "bf16" else 1 + 2.0**-11 + 2.0**-40
    x = np.array([near_middle, -near_middle, 1e-45, 1e300, 0.1, -0.0, np.inf, 3e-8] * 2)
    out = np.zeros(16, np.uint16)
    _conversion("f64", kind, "truncf")("k", x, out)
    np.testing.assert_array_equal(out, torch.from_numpy(x).to(dtype).view(torch.uint16).numpy())


def test_each_use_of_a_zeroed_tile_has_its_own():
    text = """
    func.func @k(%c: memref<16x32xf32>) {
      %0 = arith.constant 0 : index
      %16 = arith.constant 16 : index
      %z = x86.amx.tile_zero : !x86.amx.tile<16x16xf32>
      x86.amx.tile_store %c[%0, %0], %z : memref<16x32xf32>, !x86.amx.tile<16x16xf32>
      x86.amx.tile_store %c[%0, %16], %z : memref<16x32xf32>, !x86.amx.tile<16x16xf32>
      return
    }"""
    filecheck(
        lower(text),
        """
        // CHECK: [[A:%.*]] = call x86_amx @llvm.x86.tilezero.internal
        // CHECK: tilestored64.internal({{.*}} x86_amx [[A]])
        // CHECK: [[B:%.*]] = call x86_amx @llvm.x86.tilezero.internal
        // CHECK: tilestored64.internal({{.*}} x86_amx [[B]])
        """,
    )


def test_source_lines_reach_llvm_ir():
    text = """
    func.func @k(%a: f32) -> f32 {
      %0 = arith.addf %a, %a : f32 loc(fused["add", "layer"("model.py":12:3), "model.py":14:3])
      %1 = arith.mulf %0, %a : f32 loc("other.py":20:5)
      return %1 : f32 loc("model.py":30:1)
    } loc("model.py":1:1)"""
    with ir.Context():
        llvm_ir = lower_to_llvm_ir(ir.Module.parse(text), locations=True)
    filecheck(
        llvm_ir,
        """
        // CHECK: fadd {{.*}} !dbg [[ADD:![0-9]+]]
        // CHECK: fmul {{.*}} !dbg [[MUL:![0-9]+]]
        // CHECK-DAG: [[ADD]] = !DILocation(line: 12, column: 3
        // CHECK-DAG: [[MUL]] = !DILocation(line: 20, column: 5
        // CHECK-DAG: !DIFile(filename: "other.py"
        """,
    )


def test_the_observer_sees_every_pass_in_order():
    seen: list[tuple[str, str]] = []
    with ir.Context():
        module = ir.Module.parse("func.func @k(%a: f32) -> f32 {\n%0 = arith.addf %a, %a : f32\nreturn %0 : f32 }")
        lower_to_llvm_ir(module, lambda name, m: seen.append((name, str(m))))
    assert [name for name, _ in seen] == ["expand-for-x86", *PIPELINE, "split-tile-zeros"]
    assert "arith.addf" in seen[0][1] and "llvm.fadd" in seen[-1][1]


@pytest.mark.parametrize(
    ("op", "kind", "named"),
    [
        ("%r = math.erf %x : vector<16xf32>", "f32", "math.erf"),
        ("%r = math.fma %x, %x, %x : vector<16xf16>", "f16", "f16 has no lowering.*llvm.fma.v16f16"),
        ('%r = "builtin.unrealized_conversion_cast"(%x) : (vector<16xf32>) -> vector<16xf32>', "f32", None),
        ("%i = arith.constant dense<0.0> : vector<f32>\n%r, %s = vector.scan <add>, %x, %i {inclusive = true, reduction_dim = 0}"
         " : vector<16xf32>, vector<f32>", "f32", "vector.scan"),
        ('%w = builtin.unrealized_conversion_cast %x : vector<16xf32> to i7\n'
         "%r = builtin.unrealized_conversion_cast %w : i7 to vector<16xf32>", "f32", None),
        ("%w = builtin.unrealized_conversion_cast %x : vector<16xf32> to i7\n%v = arith.uitofp %w : i7 to f32\n"
         "%r = vector.broadcast %v : f32 to vector<16xf32>", "f32", "builtin.unrealized_conversion_cast"),
    ],
)  # fmt: skip
def test_what_has_no_lowering_is_named(op, kind, named):
    text = f"func.func @k(%x: vector<16x{kind}>) -> vector<16x{kind}> {{\n{op}\nreturn %r : vector<16x{kind}> }}"
    if named is None:
        lower(text)  # casts that cancel out are no obstacle
        return
    with pytest.raises(CompileError, match=named):
        lower(text)


AT = {
    "subview": "%s = memref.subview %a[%i, %i][2, 2][1, 1] : memref<8x16xf32> to memref<2x2xf32, strided<[16, 1], offset: ?>>\n"
    "memref.store %v, %s[%i, %i] : memref<2x2xf32, strided<[16, 1], offset: ?>>",
    "two dimensions": "%x = vector.transfer_read %a[%i, %i], %v : memref<8x16xf32>, vector<4x16xf32>\n"
    "vector.transfer_write %x, %a[%i, %i] : vector<4x16xf32>, memref<8x16xf32>",
    "a column": "%x = vector.transfer_read %a[%i, %i], %v {permutation_map = affine_map<(d0, d1) -> (d0)>} : memref<8x16xf32>, vector<4xf32>\n"
    "vector.transfer_write %x, %a[%i, %i] : vector<4xf32>, memref<8x16xf32>",
    "a mask": "%m = vector.create_mask %i : vector<16xi1>\n%x = vector.load %a[%i, %i] : memref<8x16xf32>, vector<16xf32>\n"
    "%s = vector.mask %m { vector.reduction <add>, %x : vector<16xf32> into f32 } : vector<16xi1> -> f32\n"
    "memref.store %s, %a[%i, %i] : memref<8x16xf32>",
}


@pytest.mark.parametrize("body", AT.values(), ids=AT)
def test_what_nobody_watches_is_lowered_as_what_is_watched(body):
    """Passes that have nothing to do are left out then: ops at places that are not known become affine ones on the way."""
    text = f"func.func @f(%a: memref<8x16xf32>, %i: index, %v: f32) {{\n{body}\nreturn\n}}"
    with ir.Context(), ir.Location.unknown():
        alone, watched = (lower_to_llvm_ir(ir.Module.parse(text), see) for see in (None, lambda name, module: None))
    assert alone == watched
