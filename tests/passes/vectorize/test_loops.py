"""Kernels of elementwise ops and reductions, against numpy, for all kinds of sizes; nothing is written outside the result."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mlirc.lowering.target import Target
from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import built, kernel, padded, stages, strategy, untouched

TARGETS = ["x86-64-v3", "host"]
SIZES = [(1, 1), (3, 5), (17, 33), (2, 70), (70, 2), (16, 64), (5, 1000)]
rng = np.random.default_rng(0)


def arrays(*shapes, dtype=np.float32):
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def softmax(t: str, row: str) -> str:
    body = generic("%m", [("%x", t)], row, ["i, j", "i"], "arith.maximumf", "pr", "ij", "0xFF800000")
    body += generic("%e", [("%x", t), ("%m", row)], t, ["i, j", "i", "i, j"], "%s = arith.subf %a0, %a1 : f32\n%o = math.exp %s : f32")
    body += generic("%n", [("%e", t)], row, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
    return body + generic("%r", [("%e", t), ("%n", row)], t, ["i, j", "i", "i, j"], "arith.divf")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n,m", SIZES)
def test_softmax(n, m, target):
    t, row = f"tensor<{n}x{m}xf32>", f"tensor<{n}xf32>"
    run = built(kernel([("%x", t)], softmax(t, row), [("%r", t), ("%m", row)], [[m, 1], [1]]), target)
    (x,) = arrays((n, m))
    y, maxima = padded(np.zeros((n, m), np.float32)), padded(np.zeros(n, np.float32))
    assert run(x, y, maxima) == 0
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(maxima, x.max(1))
    assert untouched(y) and untouched(maxima)


def reduced(n, m, by):
    """The result of a reduction of n x m elements, its maps and iterators: of each row, or of each column."""
    return (f"tensor<{n}xf32>", ["i, j", "i"], "pr") if by == "rows" else (f"tensor<{m}xf32>", ["i, j", "j"], "rp")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n,m", SIZES)
@pytest.mark.parametrize("by", ["rows", "columns"])
def test_extremes_keep_nan(n, m, by, target):
    t, (out, maps, kinds) = f"tensor<{n}x{m}xf32>", reduced(n, m, by)
    body = generic("%r", [("%x", t)], out, maps, "arith.maximumf", kinds, "ij", "0xFF800000")
    body += generic("%s", [("%x", t)], out, maps, "arith.minimumf", kinds, "ij", "0.5")
    run = built(kernel([("%x", t)], body, [("%r", out), ("%s", out)], [[1], [1]]), target)
    axis = 1 if by == "rows" else 0
    for nans in (0, 1, 7):
        (x,) = arrays((n, m))
        x.reshape(-1)[rng.integers(0, n * m, nans)] = np.nan
        size = n if by == "rows" else m
        high, low = padded(np.zeros(size, np.float32)), padded(np.zeros(size, np.float32))
        assert run(x, high, low) == 0
        np.testing.assert_array_equal(high, x.max(axis))
        np.testing.assert_array_equal(low, np.minimum(x.min(axis), np.float32(0.5)))
        assert untouched(high) and untouched(low)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n,m", SIZES)
@pytest.mark.parametrize("by", ["rows", "columns"])
def test_maxima_drop_nan(n, m, by, target):
    t, (out, maps, kinds) = f"tensor<{n}x{m}xf32>", reduced(n, m, by)
    body = generic("%r", [("%x", t)], out, maps, "arith.maxnumf", kinds, "ij", "0xFF800000")
    run = built(kernel([("%x", t)], body, [("%r", out)], [[1]]), target)
    axis = 1 if by == "rows" else 0
    for nans in (0, 1, 7, n * m):
        (x,) = arrays((n, m))
        x.reshape(-1)[rng.permutation(n * m)[:nans]] = np.nan
        high = padded(np.zeros(n if by == "rows" else m, np.float32))
        assert run(x, high) == 0
        np.testing.assert_array_equal(high, np.where(np.isnan(x), -np.inf, x).max(axis))
        assert untouched(high)


def test_a_maximum_without_nan_is_one_instruction():
    t, out = "tensor<16x48xf32>", "tensor<16xf32>"
    body = generic("%r", [("%x", t)], out, ["i, j", "i"], "arith.maxnumf", "pr", "ij", "0xFF800000")
    asm = stages(kernel([("%x", t)], body, [("%r", out)], [[1]]), "x86-64-v4")["asm"]
    assert "vmaxps" in asm and "vcmp" not in asm


def test_sums_start_with_their_first_element():
    """Not with a zero that it is added to: -0.0 is what changes no number."""
    t, out = "tensor<16x48xf32>", "tensor<16xf32>"
    body = generic("%r", [("%x", t)], out, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
    text = kernel([("%x", t)], body, [("%r", out)], [[1]])
    additions = re.findall(r"vaddps.*%zmm\d+\n", stages(text, "x86-64-v4")["asm"])
    assert len(additions) == 2, "for three vectors"
    run = built(text)
    x, y = np.full((16, 48), -0.0, np.float32), padded(np.ones(16, np.float32))
    assert run(x, y) == 0 and not np.signbit(y).any(), "as eager mode: 0.0 is what the sum starts from"


def test_one_lane_is_hidden():
    """Else LLVM widens it with what is undefined, and every row waits for the one before."""
    t, row = "tensor<16x49xf32>", "tensor<16xf32>"
    assert "vinsertf32x4" not in stages(kernel([("%x", t)], softmax(t, row), [("%r", t)], [[49, 1]]))["asm"]


def test_softmax_with_sizes_as_arguments():
    t, row = "tensor<?x?xf32>", "tensor<?xf32>"
    body = softmax(t, row)
    for name, sizes in (("%em", "%n"), ("%ee", "%n, %c"), ("%en", "%n"), ("%er", "%n, %c")):
        body = body.replace(f"{name} = tensor.empty()", f"{name} = tensor.empty({sizes})")
    body = body.replace("%n = linalg", "%q = linalg").replace("ins(%e, %n :", "ins(%e, %q :")
    named = {"%x": 'mlirc.sizes = ["a", "b"], mlirc.strides = ["c", "1"]', "%n": 'mlirc.name = "a"', "%c": 'mlirc.name = "b"', "%step": 'mlirc.name = "c"'}
    text = kernel([("%x", t), ("%n", "index"), ("%c", "index"), ("%step", "index")], body, [("%r", t)], [["b", "1"]], named)
    run = built(text)
    for n, m in [*SIZES, (0, 5), (4, 0)]:
        (whole,) = arrays((n, m + 3))
        y = padded(np.zeros((n, m), np.float32))
        assert run(whole, n, m, m + 3, y) == 0
        x = whole[:, :m]
        if n and m:
            e = np.exp(x - x.max(1, keepdims=True))
            np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)
        assert untouched(y)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n,m", SIZES)
def test_transposed_operand(n, m, target):
    t, s = f"tensor<{n}x{m}xf32>", f"tensor<{m}x{n}xf32>"
    body = generic("%r", [("%x", t), ("%y", s)], t, ["i, j", "j, i", "i, j"], "arith.addf")
    run = built(kernel([("%x", t), ("%y", s)], body, [("%r", t)], [[m, 1]]), target)
    x, y = arrays((n, m), (m, n))
    out = padded(np.zeros((n, m), np.float32))
    assert run(x, y, out) == 0
    np.testing.assert_array_equal(out, x + y.T)
    assert untouched(out)


@pytest.mark.parametrize("m, target, lanes", [
    (4096, "znver4", 128), (384, "znver4", 128), (320, "znver4", 64), (2100, "znver4", 128), (1000, "znver4", 32), (100, "znver4", 16), (4096, "x86-64-v3", 32),
])  # fmt: skip
def test_vectors_that_are_reduced_side_by_side(m: int, target: str, lanes: int) -> None:
    """As many as have sums, and whatever is NaN, in half of the registers, if they fill a row, or most of it; nothing is spilled."""
    t, out = f"tensor<64x{m}xf32>", f"tensor<{m}xf32>"
    for combiner, neutral in (("arith.addf", "0.0"), ("arith.maximumf", "0xFF800000")):
        body = generic("%r", [("%x", t)], out, ["i, j", "j"], combiner, "rp", "ij", neutral)
        texts = stages(kernel([("%x", t)], body, [("%r", out)], [[1]]), target)
        assert f'"lanes={lanes}, ' in texts["strategy"]
        assert not re.search(r"[xyz]mm\d+, [-\d]*\(%rsp\)", texts["asm"])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n, m", [(1, 128), (3, 384), (33, 2100), (64, 1000), (130, 2049), (600, 257)])
def test_sums_and_maxima_side_by_side(n: int, m: int, target: str) -> None:
    t, out = f"tensor<{n}x{m}xf32>", f"tensor<{m}xf32>"
    for combiner, neutral, reference in (("arith.addf", "0.0", np.sum), ("arith.maximumf", "0xFF800000", np.max)):
        body = generic("%r", [("%x", t)], out, ["i, j", "j"], combiner, "rp", "ij", neutral)
        run = built(kernel([("%x", t)], body, [("%r", out)], [[1]]), target)
        (x,) = arrays((n, m))
        x[n // 2, m - 1], x[0, m // 2] = np.nan, np.inf
        got = padded(np.zeros(m, np.float32))
        assert run(x, got) == 0
        np.testing.assert_allclose(got, reference(x, 0), rtol=1e-4, atol=1e-4)
        assert untouched(got)


def test_windows_have_no_loops():
    """Nine elements are read one by one; ten, of which none is a window, in a loop."""
    for height, loops in ((9, 2), (10, 3)):
        t, out = f"tensor<64x{height}x48xf32>", "tensor<64x48xf32>"
        body = generic("%r", [("%x", t)], out, ["i, j, k", "i, k"], "arith.maximumf", "prp", "ijk", "0xFF800000")
        text = stages(kernel([("%x", t)], body, [("%r", out)], [[48, 1]]))["vector"]
        assert text.count("scf.for") == loops


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n,m", SIZES)
def test_column_sums(n, m, target):
    t, column = f"tensor<{n}x{m}xf32>", f"tensor<{m}xf32>"
    body = generic("%r", [("%x", t)], column, ["i, j", "j"], "arith.addf", "rp", "ij", "0.5")
    run = built(kernel([("%x", t)], body, [("%r", column)], [[1]]), target)
    (x,) = arrays((n, m))
    out = padded(np.zeros(m, np.float32))
    assert run(x, out) == 0
    np.testing.assert_allclose(out, x.sum(0) + 0.5, rtol=1e-4, atol=1e-4)
    assert untouched(out)


@pytest.mark.parametrize("dtype,name", [(np.float64, "f64"), (np.float16, "f16"), (np.int8, "i8"), (np.int16, "i16"), (np.int64, "i64")])
def test_types(dtype, name):
    add = "arith.addf" if np.issubdtype(dtype, np.floating) else "arith.addi"
    for n, m in ((3, 5), (7, 100)):
        t = f"tensor<{n}x{m}x{name}>"
        run = built(kernel([("%x", t), ("%y", t)], generic("%r", [("%x", t), ("%y", t)], t, body=add), [("%r", t)], [[m, 1]]))
        x, y = ((10 * a).astype(dtype) for a in arrays((n, m), (n, m)))
        out = padded(np.zeros((n, m), dtype))
        assert run(x, y, out) == 0
        np.testing.assert_array_equal(out, x + y)
        assert untouched(out)


NARROWER = [
    (np.int32, np.int8, "trunci"), (np.int32, np.int16, "trunci"), (np.int64, np.int8, "trunci"), (np.int64, np.int32, "trunci"),
    (np.int16, np.int8, "trunci"), (np.float32, np.int8, "fptosi"), (np.float32, np.float16, "truncf"), (np.float64, np.float32, "truncf"),
]  # fmt: skip


@pytest.mark.parametrize("target", [*TARGETS, "skylake-avx512"])
@pytest.mark.parametrize("source,result,cast", NARROWER)
def test_one_lane_that_gets_narrower(source, result, cast, target):
    """A vector and one element more: LLVM stores that one in the width that it had before."""
    a, b = (f"{'f' if np.dtype(d).kind == 'f' else 'i'}{8 * np.dtype(d).itemsize}" for d in (source, result))
    for n in (1, 3, 9, 17, 33, 65):
        x, y = f"tensor<5x{n}x{a}>", f"tensor<5x{n}x{b}>"
        body = generic("%r", [("%x", x)], y, body=f"%o = arith.{cast} %a0 : {a} to {b}")
        run = built(kernel([("%x", x)], body, [("%r", y)], [[n + 7, 1]]), target)
        values = rng.integers(-99, 99, (5, n)).astype(source)
        whole = np.full((5, n + 7), 77, result)
        assert run(values, whole) == 0
        np.testing.assert_array_equal(whole[:, :n], values.astype(result))
        assert (whole[:, n:] == 77).all()


def test_bool_is_a_byte():
    t, b = "tensor<37xf32>", "tensor<37xi1>"
    body = generic("%p", [("%x", t), ("%y", t)], b, body="%o = arith.cmpf olt, %a0, %a1 : f32") + generic("%r", [("%p", b), ("%q", b)], b, body="arith.xori")
    run = built(kernel([("%x", t), ("%y", t), ("%q", b)], body, [("%r", b)], [[1]]))
    x, y = arrays(37, 37)
    q = rng.integers(0, 2, 37).astype(np.uint8)
    out = padded(np.zeros(37, np.uint8))
    assert run(x, y, q, out) == 0
    np.testing.assert_array_equal(out, (x < y) ^ (q != 0))
    assert untouched(out)


def test_results_with_strides():
    """A write into a view: gaps between the elements stay as they are."""
    t = "tensor<5x7xf32>"
    run = built(kernel([("%x", t)], generic("%r", [("%x", t)], t, body="arith.negf"), [("%r", t)], [[30, 2]]))
    (x,) = arrays((5, 7))
    whole = np.full((5, 30), 77, np.float32)
    assert run(x, whole) == 0
    np.testing.assert_array_equal(whole[:, :14:2], -x)
    whole[:, :14:2] = 77
    assert (whole == 77).all()


def test_padding_and_windows():
    t, p = "tensor<5x7xf32>", "tensor<8x10xf32>"
    body = f"%z = arith.constant 9.0 : f32\n%p = tensor.pad %x low[1, 2] high[2, 1] {{\n^bb0(%i: index, %j: index):\ntensor.yield %z : f32\n}} : {t} to {p}\n"
    body += generic("%r", [("%p", p)], p, body="arith.negf")
    run = built(kernel([("%x", t)], body, [("%r", p)], [[10, 1]]))
    (x,) = arrays((5, 7))
    out = padded(np.zeros((8, 10), np.float32))
    assert run(x, out) == 0
    np.testing.assert_array_equal(out, -np.pad(x, ((1, 2), (2, 1)), constant_values=9))
    assert untouched(out)


def test_concatenation():
    parts = ["tensor<4x3xf32>", "tensor<4x33xf32>", "tensor<4x1xf32>"]
    whole = "tensor<4x37xf32>"
    body = generic("%b", [("%y", parts[1])], parts[1], body="arith.negf") + f"%r = tensor.concat dim(1) %x, %b, %z : ({', '.join(parts)}) -> {whole}\n"
    run = built(kernel(list(zip(("%x", "%y", "%z"), parts)), body, [("%r", whole)], [[37, 1]]))
    x, y, z = arrays((4, 3), (4, 33), (4, 1))
    out = padded(np.zeros((4, 37), np.float32))
    assert run(x, y, z, out) == 0
    np.testing.assert_array_equal(out, np.concatenate([x, -y, z], 1))
    assert untouched(out)


def test_assertions_set_the_status():
    t, i = "tensor<40xf32>", "tensor<37xi64>"
    gather = """
        %n = arith.constant 40 : index
        %i = arith.index_cast %a0 : i64 to index
        %ok = arith.cmpi ult, %i, %n : index
        cf.assert %ok, "IndexError: index out of range"
        %zero = arith.constant 0 : index
        %j = arith.select %ok, %i, %zero : index
        %o = tensor.extract %x[%j] : tensor<40xf32>"""
    body = generic("%r", [("%y", i)], "tensor<37xf32>", body=gather)
    run = built(kernel([("%x", t), ("%y", i)], body, [("%r", "tensor<37xf32>")], [[1]]))
    (x,) = arrays(40)
    y = rng.integers(0, 40, 37)
    out = padded(np.zeros(37, np.float32))
    assert run(x, y, out) == 0
    np.testing.assert_array_equal(out, x[y])
    for place, bad in ((0, 40), (36, -1), (20, 1 << 50)):
        wrong = y.copy()
        wrong[place] = bad
        assert run(x, wrong, out) == 1
    assert untouched(out)


def test_vectors_and_masks_in_the_text():
    """Full vectors in the loop, one mask for the rest, no loop over single elements."""
    t = "tensor<100xf32>"
    text = kernel([("%x", t)], generic("%r", [("%x", t)], t, body="arith.negf"), [("%r", t)], [[1]])
    vector = stages(text, "x86-64-v4")["vector"]
    assert "vector<16xf32>" in vector and "vector.maskedstore" in vector and "memref.store" not in vector
    assert "vector<8xf32>" in stages(text, "x86-64-v3")["vector"]


def test_host_is_tested_with_its_own_vectors():
    assert Target.parse("host").vector_bits >= 128


def test_maxima_do_not_order_zeros():
    t, row = "tensor<8x64xf32>", "tensor<8xf32>"
    assembly = stages(kernel([("%x", t)], softmax(t, row), [("%r", t)], [[64, 1]]), "skylake-avx512")["asm"]
    assert "vmaxps" in assembly and "vpmovd2m" not in assembly


def test_sums_of_products_multiply_and_add_at_once():
    t, row = "tensor<4x640xf32>", "tensor<4xf32>"
    body = generic("%s", [("%x", t), ("%y", t)], row, ["i, j", "i, j", "i"], "%p = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %p : f32", "pr", "ij", "0.0")
    text = kernel([("%x", t), ("%y", t)], body, [("%s", row)], [[1]])
    assembly = stages(text, "skylake-avx512")["asm"]
    assert assembly.count("vfmadd") == 4 and "vmulps" not in assembly
    run = built(text)
    x, y = arrays((4, 640), (4, 640))
    got = padded(np.zeros(4, np.float32))
    assert run(x, y, got) == 0
    np.testing.assert_allclose(got, (x * y).sum(1), rtol=1e-4, atol=1e-4)
    assert untouched(got)


def test_a_kernel_is_the_same_code_every_time():
    """Several values are kept from phase to phase, in the order that the ops have; each sum has a buffer for the vectors of rows, and a table."""
    t, row = "tensor<8x40xf32>", "tensor<8xf32>"
    body = ""
    for n in range(6):
        body += generic(f"%e{n}", [("%x", t)], t, ["i, j", "i, j"], f"%k = arith.constant {n}.0 : f32\n%s = arith.addf %a0, %k : f32\n%o = math.exp %s : f32")
        body += generic(f"%n{n}", [(f"%e{n}", t)], row, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
        body += generic(f"%r{n}", [(f"%e{n}", t), (f"%n{n}", row)], t, ["i, j", "i", "i, j"], "arith.divf")
    text = kernel([("%x", t)], body, [(f"%r{n}", t) for n in range(6)], [[40, 1]] * 6)
    first, *others = [stages(text, "x86-64-v3")["vector"] for _ in range(4)]
    assert first.count("memref.alloca") == 3 * 6 and all(other == first for other in others)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kinds,shape,axes", [("prp", (16, 30011, 16), (1,)), ("rpr", (30011, 16, 9), (0, 2)), ("prrp", (16, 701, 9, 16), (1, 2))])
def test_long_sums_of_columns(kinds, shape, axes, target):
    """They are put together from sums of blocks: one after the other, a tenth 30,000 times is off by 2e-4."""
    loops, out = "ijkl"[: len(shape)], [n for axis, n in enumerate(shape) if axis not in axes]
    kept = [loop for axis, loop in enumerate(loops) if axis not in axes]
    t, small = (f"tensor<{'x'.join(map(str, s))}xf32>" for s in (shape, out))
    body = generic("%r", [("%x", t)], small, [", ".join(loops), ", ".join(kept)], "arith.addf", kinds, loops, "0.5")
    text = kernel([("%x", t)], body, [("%r", small)], [[out[1], 1] if len(out) == 2 else [1]])
    assert strategy(text, target).split is None
    x, r = np.full(shape, 0.1, np.float32), padded(np.zeros(out, np.float32))
    assert built(text, target)(x, r) == 0 and untouched(r)
    np.testing.assert_allclose(r, 0.5 + x.sum(axes, dtype=np.float64), rtol=1e-5)


def scaled(n: int, m: int) -> str:
    """Rows that are divided by a number of their own, and then by their sum; the columns multiplied by one of theirs."""
    t, row, column = f"tensor<{n}x{m}xf32>", f"tensor<{n}xf32>", f"tensor<{m}xf32>"
    body = generic("%d", [("%x", t), ("%c", row)], t, ["i, j", "i", "i, j"], "arith.divf")
    body += generic("%s", [("%d", t)], row, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
    body += generic("%e", [("%d", t), ("%s", row)], t, ["i, j", "i", "i, j"], "arith.divf")
    body += generic("%r", [("%e", t), ("%v", column)], t, ["i, j", "j", "i, j"], "arith.mulf")
    return kernel([("%x", t), ("%c", row), ("%v", column)], body, [("%r", t)], [[m, 1]])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n,m", SIZES)
def test_rows_with_numbers_of_their_own(n, m, target):
    x, c, v = arrays((n, m), (n,), (m,))
    y = padded(np.zeros((n, m), np.float32))
    assert built(scaled(n, m), target)(np.abs(x), np.abs(c) + 1, v, y) == 0
    e = np.abs(x) / (np.abs(c) + 1)[:, None]
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True) * v, rtol=1e-5)
    assert untouched(y)


def test_what_is_the_same_along_a_row_is_computed_in_front_of_it():
    """Once for all vectors, though what these store may lie anywhere, for all that LLVM knows."""
    t, row = "tensor<8x768xf32>", "tensor<8xf32>"
    body = generic("%d", [("%x", t), ("%c", row)], t, ["i, j", "i", "i, j"], "arith.divf")
    vectors = stages(kernel([("%x", t), ("%c", row)], body, [("%d", t)], [[768, 1]]))["vector"]
    rows, vector = vectors[: vectors.index("return")].split("scf.for")[1:]
    assert (rows.count("memref.load"), vector.count("memref.load"), vector.count("vector.load")) == (1, 0, 4)
