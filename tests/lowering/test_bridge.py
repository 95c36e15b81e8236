"""The text bridge, against arithmetic of our own and against MLIR's execution engine with its newer LLVM."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlirc.errors import CompileError
from mlirc.lowering.bridge import to_llvm22
from mlirc.tests.lowering.jit import Ours, Theirs, kernel

# MLIR type, its number of bits, exponent bits, numpy type of those bits
FORMATS = {"f16": (16, 5, np.uint16), "bf16": (16, 8, np.uint16), "f32": (32, 8, np.uint32), "f64": (64, 11, np.uint64)}


def _interesting(kind: str) -> list[int]:
    """Bits of zeros, denormals, normals, infinities and NaNs with payloads, of both signs; and of random values."""
    bits, exponent, _ = FORMATS[kind]
    mantissa = bits - 1 - exponent
    top = ((1 << exponent) - 1) << mantissa
    one = ((1 << (exponent - 1)) - 1) << mantissa
    quiet = 1 << (mantissa - 1)
    values = [0, 1, 2, quiet, 2 * quiet - 1, 2 * quiet, one, one + 1, one | quiet, top - 1, top]
    values += [top | quiet, top | quiet | 1, top | 1, top | quiet - 1, top | 2 * quiet - 1]
    rng = np.random.default_rng(0)
    values += [int(v) & (1 << (bits - 1)) - 1 for v in rng.integers(0, 1 << 63, 48 - len(values))]
    return values + [v | 1 << (bits - 1) for v in values]


@pytest.mark.parametrize("kind", FORMATS)
def test_constants_keep_their_bits(kind):
    bits, _, dtype = FORMATS[kind]
    values = _interesting(kind)
    n = len(values)
    hexes = [f"0x{v:0{bits // 4}X}" for v in values]
    lines = []
    for i, h in enumerate(hexes):  # scalars, splats
        lines += [f"%c{i} = arith.constant {h} : {kind}", f"%i{i} = arith.constant {i} : index"]
        lines += [f"memref.store %c{i}, %a0[%i{i}] : memref<{n}x{kind}>"]
        lines += [f"%s{i} = arith.constant dense<{h}> : vector<4x{kind}>"]
        lines += [f"vector.store %s{i}, %a1[%i{i}, %zero] : memref<{n}x4x{kind}>, vector<4x{kind}>"]
    for i in range(0, n, 8):
        lines += [f"%v{i} = arith.constant dense<[{', '.join(hexes[i : i + 8])}]> : vector<8x{kind}>"]
        lines += [f"vector.store %v{i}, %a2[%i{i}] : memref<{n}x{kind}>, vector<8x{kind}>"]
    text = kernel("\n".join(lines), f"{n}x{kind}", f"{n}x4x{kind}", f"{n}x{kind}")
    for engine in (Ours(text), Theirs(text)):
        out = [np.zeros(n, dtype), np.zeros((n, 4), dtype), np.zeros(n, dtype)]
        engine("k", *out)
        want = np.array(values, dtype)
        np.testing.assert_array_equal(out[0], want)
        np.testing.assert_array_equal(out[1], np.repeat(want[:, None], 4, 1))
        np.testing.assert_array_equal(out[2], want)


def _bits_of(literal: str, kind: str) -> int:
    """What the bridge makes of a constant, read back through llvmlite's own printer."""
    text = to_llvm22(f"@g = global {kind} {literal}\n")
    return int(re.search(r"0x[HR]?([0-9A-F]+)\n", text)[1], 16)


def _nearest(text: str, dtype: type[np.floating]) -> np.floating:
    """The value nearest to a decimal, in exact arithmetic; the even one of two."""
    near = dtype(float(text))
    candidates = [np.nextafter(near, dtype(-np.inf)), near, np.nextafter(near, dtype(np.inf))]
    return min(
        (c for c in candidates if np.isfinite(c)), key=lambda c: (abs(Fraction(float(c)) - Fraction(text)), int(c.view(BITS[dtype])) & 1)
    )


BITS = {np.float16: np.uint16, np.float32: np.uint32, np.float64: np.uint64}


@given(st.floats(-60000, 60000), st.integers(1, 17))
def test_decimals_round_to_nearest(value, digits):
    text = f"{value:.{digits}e}"
    assert _bits_of(text, "double") == np.float64(text).view(np.uint64)
    assert _bits_of(text, "float") == np.float64(_nearest(text, np.float32)).view(np.uint64)
    assert _bits_of(text, "half") == _nearest(text, np.float16).view(np.uint16)


@pytest.mark.parametrize(
    ("literal", "kind", "bits"),
    [
        ("f0x3F800001", "float", 0x3FF0000020000000),
        ("f0x00000001", "float", 0x36A0000000000000),
        ("f0x807FFFFF", "float", 0xB80FFFFFC0000000),
        ("f0x3FF0000000000001", "double", 0x3FF0000000000001),
        ("f0x3C01", "half", 0x3C01),
        ("f0x3F81", "bfloat", 0x3F81),
        ("+inf", "half", 0x7C00),
        ("-inf", "bfloat", 0xFF80),
        ("+qnan", "bfloat", 0x7FC0),
        ("-qnan", "double", 0xFFF8000000000000),
        ("+nan(0x1)", "float", 0x7FF8000020000000),
        ("-snan(0x1)", "float", 0xFFF0000020000000),
        ("8.890000e+01", "float", 0x40563999A0000000),
        ("8.890000e+01", "bfloat", 0x42B2),
        ("-0.000000e+00", "float", 0x8000000000000000),
        ("1.000000e-45", "float", 0x36A0000000000000),
        ("1.000000e-60", "float", 0),
        # Just above the middle between two floats, and the middle itself in double: rounding twice would go down.
        ("1.00000005960464477540", "float", 0x3FF0000020000000),
    ],
)
def test_spellings(literal, kind, bits):
    assert _bits_of(literal, kind) == bits


def test_constants_are_found_by_the_type_before_them():
    text = (
        '@s = constant [30 x i8] c"float 8.89e+01 ;\\22 float 1.0\\00"\n'
        "define float @float.1(float %a, <2 x half> %b) { ; float 1.0\n"
        "  %1 = fadd float %a, 1.000000e-01\n"
        "  %2 = select i1 true, half +inf, half 1.000000e-01\n"
        "  %3 = phi double [ +inf, %l ], [ 1.000000e-01, %m ]\n"
        "  %4 = call bfloat @float.1(float %half.1, bfloat -qnan)\n"
        "  store <2 x half> <half +inf, half 0.000000e+00>, ptr %half, align 4\n"
    )
    assert to_llvm22(text) == (
        '@s = constant [30 x i8] c"float 8.89e+01 ;\\22 float 1.0\\00"\n'
        "define float @float.1(float %a, <2 x half> %b) { ; float 1.0\n"
        "  %1 = fadd float %a, 0x3FB99999A0000000\n"
        "  %2 = select i1 true, half 0xH7C00, half 0xH2E66\n"
        "  %3 = phi double [ 0x7FF0000000000000, %l ], [ 0x3FB999999999999A, %m ]\n"
        "  %4 = call bfloat @float.1(float %half.1, bfloat 0xRFFC0)\n"
        "  store <2 x half> <half 0xH7C00, half 0xH0000>, ptr %half, align 4\n"
    )


def test_attributes_that_only_help_an_optimiser_are_dropped():
    text = "attributes #0 = { nocallback nocreateundeforpoison nofree nosync }"
    assert to_llvm22(text) == "attributes #0 = { nocallback nofree nosync }"


@pytest.mark.parametrize(
    "line",
    [
        "@g = global x86_fp80 1.000000e+00",
        "@g = global fp128 +inf",
        "@g = global i32 1.000000e+00",
        "@g = global float f0x3C00",
        "@g = global half +nan(0x200)",
        "@g = global half 1.000000e+06",
        "@g = global half +qsnan",
    ],
)
def test_what_is_not_known_is_an_error_with_the_line(line):
    with pytest.raises(CompileError, match=re.escape(line)):
        to_llvm22(f"@a = global float +inf\n{line}\n")


def _vector(body: str, kind: str = "f32", out: str = "f32", lanes: int = 16) -> str:
    """A kernel with two vectors read, `%x` and `%y`, and the vector `%r` written."""
    load = "\n".join(f"%{v} = vector.load %a{i}[%zero] : memref<{lanes}x{kind}>, vector<{lanes}x{kind}>" for i, v in enumerate("xy"))
    store = f"vector.store %r, %a2[%zero] : memref<{lanes}x{out}>, vector<{lanes}x{out}>"
    return kernel(f"{load}\n{body}\n{store}", f"{lanes}x{kind}", f"{lanes}x{kind}", f"{lanes}x{out}")


V = "vector<16xf32>"
MASK = f"%m = arith.cmpf olt, %x, %y : {V}"
KERNELS = {
    "fma": _vector(f"%r = math.fma %x, %y, %x : {V}"),
    "contracted": _vector(f"%r = vector.fma %x, %y, %x : {V}"),
    "not contracted": _vector(f"%p = arith.mulf %x, %y : {V}\n%r = arith.addf %p, %x : {V}"),
    "maximum": _vector(f"%p = arith.maximumf %x, %y : {V}\n%q = arith.minimumf %x, %y : {V}\n%r = arith.divf %p, %q : {V}"),
    "maxnum": _vector(f"%p = arith.maxnumf %x, %y : {V}\n%q = arith.minnumf %x, %y : {V}\n%r = arith.subf %p, %q : {V}"),
    "rounding": _vector(
        f"%p = math.roundeven %x : {V}\n%q = math.floor %y : {V}\n%s = math.ceil %y : {V}\n%t = math.trunc %x : {V}\n"
        f"%u = arith.mulf %p, %q : {V}\n%w = arith.mulf %s, %t : {V}\n%r = math.copysign %u, %w : {V}"
    ),
    "sqrt": _vector(f"%p = math.absf %x : {V}\n%q = math.sqrt %p : {V}\n%r = arith.negf %q : {V}"),
    "select": _vector(f"%i = arith.constant dense<0x7F800000> : {V}\n{MASK}\n%r = arith.select %m, %i, %y : vector<16xi1>, {V}"),
    "masked load": _vector(
        f"{MASK}\n%c = arith.constant dense<88.9> : {V}\n"
        f"%p = vector.maskedload %a0[%zero], %m, %c : memref<16xf32>, vector<16xi1>, {V} into {V}\n"
        f"vector.maskedstore %a1[%zero], %m, %p : memref<16xf32>, vector<16xi1>, {V}\n"
        f"%r = vector.load %a1[%zero] : memref<16xf32>, {V}"
    ),
    "masked tail": _vector(
        f"%n = arith.constant 11 : index\n%l = memref.load %a0[%n] : memref<16xf32>\n%o = arith.fptosi %l : f32 to i64\n"
        f"%e = arith.constant 7 : i64\n%q = arith.andi %o, %e : i64\n%w = arith.index_cast %q : i64 to index\n"
        f"%m = vector.create_mask %w : vector<16xi1>\n%r = vector.maskedload %a0[%zero], %m, %y : memref<16xf32>, vector<16xi1>, {V} into {V}"
    ),
    "gather": _vector(
        f"{MASK}\n%i = arith.constant dense<[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]> : vector<16xi32>\n"
        f"%r = vector.gather %a0[%zero][%i], %m, %y : memref<16xf32>, vector<16xi32>, vector<16xi1>, {V} into {V}"
    ),
    "scatter": _vector(
        f"{MASK}\n%i = arith.constant dense<[15, 1, 14, 0, 13, 2, 12, 3, 4, 5, 6, 11, 10, 7, 9, 8]> : vector<16xi32>\n"
        f"vector.scatter %a1[%zero][%i], %m, %x : memref<16xf32>, vector<16xi32>, vector<16xi1>, {V}\n"
        f"%r = vector.load %a1[%zero] : memref<16xf32>, {V}"
    ),
    "ordered sum": _vector(f"%s = vector.reduction <add>, %x : {V} into f32\n%r = vector.broadcast %s : f32 to {V}"),
    "largest": _vector(f"%s = vector.reduction <maximumf>, %x : {V} into f32\n%r = vector.broadcast %s : f32 to {V}"),
    "transpose": _vector(
        f"%p = vector.shape_cast %x : {V} to vector<4x4xf32>\n%q = vector.transpose %p, [1, 0] : vector<4x4xf32> to vector<4x4xf32>\n"
        f"%r = vector.shape_cast %q : vector<4x4xf32> to {V}"
    ),
    "shuffle": _vector(f"%r = vector.shuffle %x, %y [0, 16, 1, 17, 2, 18, 3, 19, 31, 15, 30, 14, 29, 13, 28, 12] : {V}, {V}"),
    "loop": _vector(
        "%one = arith.constant 1 : index\n%end = arith.constant 5 : index\n"
        f"%r = scf.for %i = %zero to %end step %one iter_args(%s = %x) -> ({V}) {{\n"
        f"%c = arith.constant dense<0.1> : {V}\n%t = vector.fma %s, %c, %y : {V}\nscf.yield %t : {V} }}"
    ),
    "integers": _vector(
        "%p = arith.floordivsi %x, %y : vector<16xi32>\n%q = arith.maxsi %p, %x : vector<16xi32>\n"
        "%s = math.ctpop %q : vector<16xi32>\n%r = arith.shrsi %q, %s : vector<16xi32>",
        "i32",
        "i32",
    ),
    "f32 to bf16": _vector(f"%r = arith.truncf %x : {V} to vector<16xbf16>", out="bf16"),
    "bf16 to f32": _vector(f"%r = arith.extf %x : vector<16xbf16> to {V}", "bf16"),
    "bf16 sum": _vector("%r = arith.addf %x, %y : vector<16xbf16>", "bf16", "bf16"),
    "f32 to f16": _vector(f"%r = arith.truncf %x : {V} to vector<16xf16>", out="f16"),
    "f16 to f32": _vector(f"%r = arith.extf %x : vector<16xf16> to {V}", "f16"),
    "f16 product": _vector("%r = arith.mulf %x, %y : vector<16xf16>", "f16", "f16"),
    "f64 to f16": _vector("%r = arith.truncf %x : vector<16xf64> to vector<16xf16>", "f64", "f16"),
    "f64 to bf16": _vector("%r = arith.truncf %x : vector<16xf64> to vector<16xbf16>", "f64", "bf16"),
    "bf16 to f64": _vector("%r = arith.extf %x : vector<16xbf16> to vector<16xf64>", "bf16", "f64"),
    "f64": _vector("%c = arith.constant dense<0.1> : vector<16xf64>\n%r = math.fma %x, %c, %y : vector<16xf64>", "f64", "f64"),
}
NUMPY = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "f64": np.uint64, "i32": np.uint32}


@pytest.mark.parametrize("name", KERNELS)
def test_same_bits_as_the_newer_llvm(name):
    text = KERNELS[name]
    kinds = [k for _, k in re.findall(r"to memref<(\d+x)(\w+)>", text)]
    rng = np.random.default_rng(1)
    # Nonzero integers; floats of every kind: half random bits (NaNs, denormals, ...), half near one.
    inputs = []
    for kind in kinds[:2]:
        raw = rng.integers(1, 1 << 31, (64, 16)).astype(NUMPY[kind])
        if kind != "i32":
            raw = rng.integers(0, 1 << 63, (64, 16), dtype=np.uint64).astype(NUMPY[kind])
            if kind in ("f32", "f64"):
                raw[::2] = rng.standard_normal((32, 16)).astype(kind.replace("f", "float")).view(NUMPY[kind])
        inputs.append(raw)
    results = []
    for engine in (Ours(text), Theirs(text)):
        rows = []
        for x, y in zip(*(a.copy() for a in inputs)):
            out = np.zeros(16, NUMPY[kinds[2]])
            engine("k", x, y, out)
            rows.append(np.concatenate([out, y.astype(out.dtype)]))
        results.append(np.array(rows))
    # Which NaN comes out of arithmetic on two is nobody's promise; all else is bits.
    ours, theirs = (_one_nan(r, kinds[2]) for r in results)
    np.testing.assert_array_equal(ours, theirs)


def _one_nan(raw: np.ndarray, kind: str) -> np.ndarray:
    if kind == "i32":
        return raw
    bits, exponent, _ = FORMATS[kind]
    top = ((1 << exponent) - 1) << (bits - 1 - exponent)
    magnitude = raw & raw.dtype.type((1 << (bits - 1)) - 1)
    return np.where(magnitude > top, raw.dtype.type(top + 1), raw)
