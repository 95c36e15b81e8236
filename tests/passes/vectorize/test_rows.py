"""Short rows, in blocks of which one phase is done before the next: against numpy, for whole blocks and rests; and what the code has."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import built, kernel, padded, stages, strategy, untouched

TARGETS = ["x86-64-v3", "host"]
JOINED = ["joined=2", "joined=4", "joined=3, unroll=1", "joined=8, unroll=2"]
"""Pins of `joined_rows`, which is to come to the same."""
rng = np.random.default_rng(0)


def softmax(n: int, m: int, maximum: str) -> str:
    t, row = f"tensor<{n}x{m}xf32>", f"tensor<{n}xf32>"
    body = generic("%m", [("%x", t)], row, ["i, j", "i"], maximum, "pr", "ij", "0xFF800000")
    body += generic("%e", [("%x", t), ("%m", row)], t, ["i, j", "i", "i, j"], "%s = arith.subf %a0, %a1 : f32\n%o = math.exp %s : f32")
    body += generic("%n", [("%e", t)], row, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
    body += generic("%r", [("%e", t), ("%n", row)], t, ["i, j", "i", "i, j"], "arith.divf")
    return kernel([("%x", t)], body, [("%r", t), ("%m", row)], [[m, 1], [1]])


@pytest.mark.sampled
@pytest.mark.parametrize("n,rows,pin", [*((n, rows, "") for n, rows in ((8, 2), (9, 2), (24, 4), (70, 16), (141, 32))), *((9, 2, pin) for pin in JOINED)])
@pytest.mark.parametrize("m", [49, 130])
@pytest.mark.parametrize("maximum", ["arith.maximumf", "arith.maxnumf"])
@pytest.mark.parametrize("target", TARGETS)
def test_softmax(target, maximum, m, n, rows, pin):
    """With the maximum that keeps NaN, of each row for itself, and with the one that drops it, of several rows in one vector."""
    text = softmax(n, m, maximum)
    if m == 49:
        assert strategy(text, target).rows == rows
    run = built(text, target, pin)
    x = rng.standard_normal((n, m)).astype(np.float32)
    x[1, m - 1] = x[4, 3] = np.nan
    x[2] = -np.inf
    x[3, 5] = np.inf
    y, maxima = padded(np.zeros((n, m), np.float32)), padded(np.zeros(n, np.float32))
    assert run(x, y, maxima) == 0
    with np.errstate(invalid="ignore"):
        largest = x.max(1) if maximum == "arith.maximumf" else np.where(np.isnan(x), -np.inf, x).max(1)
        e = np.exp(x - largest[:, None])
        np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(maxima, largest)
    assert untouched(y) and untouched(maxima)


REDUCTIONS = [
    ("arith.addf", "f32", np.float32, "0.5", lambda x: x.astype(np.float64).sum(1) + 0.5),
    ("arith.addf", "f64", np.float64, "0.5", lambda x: x.sum(1) + 0.5),
    ("arith.mulf", "f32", np.float32, "2.0", lambda x: x.astype(np.float64).prod(1) * 2),
    ("arith.maxnumf", "f64", np.float64, "0.0", lambda x: np.maximum(x.max(1), 0)),
    ("arith.addi", "i64", np.int64, "7", lambda x: x.sum(1) + 7),
    ("arith.maxsi", "i32", np.int32, "-2147483648", lambda x: x.max(1)),
    ("arith.minsi", "i16", np.int16, "32767", lambda x: x.min(1)),
    ("arith.ori", "i32", np.int32, "0", lambda x: np.bitwise_or.reduce(x, 1)),
]


@pytest.mark.parametrize("op,kind,dtype,init,expected", REDUCTIONS, ids=[f"{r[0]}-{r[1]}" for r in REDUCTIONS])
@pytest.mark.parametrize("n,m,pin", [(133, 1, ""), (70, 17, ""), (35, 33, ""), (9, 130, ""), (35, 33, "joined=2"), (9, 130, "joined=2")])
@pytest.mark.parametrize("target", TARGETS)
def test_results_of_rows(target, n, m, pin, op, kind, dtype, init, expected):
    t, row = f"tensor<{n}x{m}x{kind}>", f"tensor<{n}x{kind}>"
    text = kernel([("%x", t)], generic("%r", [("%x", t)], row, ["i, j", "i"], op, "pr", "ij", init), [("%r", row)], [[1]])
    run = built(text, target, pin)
    x = (rng.standard_normal((n, m)) * (1 if "f" in kind else 1000)).astype(dtype)
    if op == "arith.mulf":
        x = (1 + x / 16).astype(dtype)
    y = padded(np.zeros(n, dtype))
    assert run(x, y) == 0
    np.testing.assert_allclose(y, expected(x), rtol=1e-4, atol=1e-5)
    assert untouched(y)


def norm(n: int, m: int, kind: str) -> str:
    """A layer norm without weights; in f32 it also returns the reciprocal of the deviation."""
    t, wide, row = f"tensor<{n}x{m}x{kind}>", f"tensor<{n}x{m}xf32>", f"tensor<{n}xf32>"
    widen, narrow = ("%w = arith.extf %a0 : bf16 to f32\n", "%o = arith.truncf %p : f32 to bf16") if kind == "bf16" else ("", "%o = arith.mulf %a0, %a1 : f32")
    x = "%w" if widen else "%a0"
    body = generic("%s", [("%x", t)], row, ["i, j", "i"], f"{widen}%o = arith.addf {x}, %a1 : f32" if widen else "arith.addf", "pr", "ij", "0.0")
    body += generic("%m", [("%s", row)], row, ["i", "i"], f"%k = arith.constant {m}.0 : f32\n%o = arith.divf %a0, %k : f32", "p", "i")
    body += generic("%d", [("%x", t), ("%m", row)], wide, ["i, j", "i", "i, j"], f"{widen}%o = arith.subf {x}, %a1 : f32")
    body += generic("%v", [("%d", wide)], row, ["i, j", "i"], "%q = arith.mulf %a0, %a0 : f32\n%o = arith.addf %q, %a1 : f32", "pr", "ij", "0.0")
    scale = f"%k = arith.constant {m}.0 : f32\n%t = arith.divf %a0, %k : f32\n%c = arith.constant 1.0e-05 : f32\n%u = arith.addf %t, %c : f32\n%o = math.rsqrt %u : f32"
    body += generic("%i", [("%v", row)], row, ["i", "i"], scale, "p", "i")
    body += generic("%r", [("%d", wide), ("%i", row)], t, ["i, j", "i", "i, j"], f"%p = arith.mulf %a0, %a1 : f32\n{narrow}" if widen else narrow)
    results = [("%r", t)] if widen else [("%r", t), ("%i", row)]
    return kernel([("%x", t)], body, results, [[m, 1], [1]][: len(results)])


@pytest.mark.parametrize("pin", ["", *JOINED])
@pytest.mark.parametrize("n,m", [(70, 96), (141, 49), (9, 200), (33, 33), (32, 768)])
@pytest.mark.parametrize("target", TARGETS)
def test_norms(target, n, m, pin):
    run = built(norm(n, m, "f32"), target, pin)
    x = rng.standard_normal((n, m)).astype(np.float32) + 3
    y, scale = padded(np.zeros((n, m), np.float32)), padded(np.zeros(n, np.float32))
    assert run(x, y, scale) == 0
    d = x.astype(np.float64) - x.astype(np.float64).mean(1, keepdims=True)
    expected = 1 / np.sqrt((d * d).mean(1) + 1e-5)
    np.testing.assert_allclose(scale, expected, rtol=1e-5)
    np.testing.assert_allclose(y, d * expected[:, None], rtol=1e-4, atol=1e-5)
    assert untouched(y) and untouched(scale)


def test_what_is_computed_of_sums_is_computed_for_several_rows():
    """The 16 rows of a half of a block: one division for their means, one root, and no number for itself."""
    asm = stages(norm(3136, 96, "f32"), "znver5")["asm"]
    assert len(re.findall(r"vsqrtps.*zmm", asm)) == 1 and "vsqrtss" not in asm and "vdivss" not in asm
    assert len(re.findall(r"prefetcht0", asm)) > 0, "the next block is fetched"


def test_vectors_of_bf16_stay_whole():
    """What combines the lanes of 32 numbers does not mind their order (see `passes.even_odd`)."""
    asm = stages(norm(3136, 96, "bf16"), "znver5")["asm"]
    assert "vpmovzxwd" not in asm and "vpslld\t$16" in asm


@pytest.mark.parametrize("target", ["znver4", "sapphirerapids"])
def test_a_rounding_to_bf16_is_one_instruction(target):
    """LLVM makes a product and a sum of every other `vpdpwssd`, unless it is told that they take no longer together."""
    asm = stages(norm(3136, 96, "bf16"), target)["asm"]
    assert "vpdpwssd" in asm and "vpmaddwd" not in asm


def test_integers_are_divided_row_by_row():
    """Of a block that is not full, the rest of the sums is not there, and may be zero."""
    n, m = 35, 17
    t, row = f"tensor<{n}x{m}xi32>", f"tensor<{n}xi32>"
    body = generic("%s", [("%x", t)], row, ["i, j", "i"], "arith.addi", "pr", "ij", "0")
    body += generic("%q", [("%s", row)], row, ["i", "i"], "%k = arith.constant 1000000 : i32\n%o = arith.divsi %k, %a0 : i32", "p", "i")
    body += generic("%r", [("%x", t), ("%q", row)], t, ["i, j", "i", "i, j"], "arith.addi")
    run = built(kernel([("%x", t)], body, [("%r", t)], [[m, 1]]))
    x = rng.integers(1, 9, (n, m), dtype=np.int32)
    y = padded(np.zeros((n, m), np.int32))
    assert run(x, y) == 0
    np.testing.assert_array_equal(y, x + 1000000 // x.sum(1, keepdims=True))


def weighted(n: int, m: int) -> str:
    """Each element times the sum of its row, and times a weight of f16 that all rows have."""
    t, row = f"tensor<{n}x{m}xf32>", f"tensor<{n}xf32>"
    body = generic("%s", [("%x", t)], row, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
    product = "%p = arith.mulf %a0, %a1 : f32\n%v = arith.extf %a2 : f16 to f32\n%o = arith.mulf %p, %v : f32"
    body += generic("%r", [("%x", t), ("%s", row), ("%w", f"tensor<{m}xf16>")], t, ["i, j", "i", "j", "i, j"], product)
    return kernel([("%x", t), ("%w", f"tensor<{m}xf16>")], body, [("%r", t)], [[m, 1]])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n,m", [(8, 192), (9, 200), (8, 1000), (35, 33)])
@pytest.mark.parametrize("pin", ["joined=1, stores_together=true", "joined=2", "joined=4"])
def test_what_rows_share_is_read_once(pin, n, m, target):
    """By two rows that are stored together, or by all that are side by side; whole vectors and a rest, and one row that is alone."""
    text = weighted(n, m)
    assert strategy(text, target).rows > 1
    run = built(text, target, pin)
    x, w = rng.standard_normal((n, m)).astype(np.float32), rng.standard_normal(m).astype(np.float16)
    y = padded(np.zeros((n, m), np.float32))
    assert run(x, w, y) == 0
    np.testing.assert_allclose(y, x * x.sum(1, keepdims=True) * w, rtol=1e-4, atol=1e-5)
    assert untouched(y)


def test_the_loop_of_what_rows_share():
    """A loop over rows with one for the sum of each, and one over pairs of rows with one for the products of both."""
    chosen, text = strategy(weighted(16, 1024)), stages(weighted(16, 1024), pin="joined=1, unroll=4, stores_together=true")["vector"]
    assert chosen.joined == 2
    last = text.split("scf.for")[-1]
    assert last.count("vector.load") == 3 * 4 and last.count("vector.store") == 2 * 4


@pytest.mark.parametrize("target", TARGETS)
def test_blocks_of_an_inner_loop_are_alike(target):
    """49 rows of each of 64 windows: 13 three times and 10, of which up to 7 have their sums in one vector of 8."""
    t, row = "tensor<64x49x49xf32>", "tensor<64x49xf32>"
    body = generic("%s", [("%x", t), ("%y", "tensor<49x49xf32>")], row, ["i, j, k", "j, k", "i, j"], "%p = arith.mulf %a0, %a1 : f32\n%o = arith.addf %p, %a2 : f32", "ppr", "ijk", "0.0")
    body += generic("%r", [("%x", t), ("%s", row)], t, ["i, j, k", "i, j", "i, j, k"], "arith.mulf")
    text = kernel([("%x", t), ("%y", "tensor<49x49xf32>")], body, [("%r", t)], [[2401, 49, 1]])
    chosen = strategy(text, target)
    assert chosen.rows == 13 and chosen.combined == 7
    run = built(text, target)
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((64, 49, 49), (49, 49)))
    z = padded(np.zeros(x.shape, np.float32))
    assert run(x, y, z) == 0
    np.testing.assert_allclose(z, x * (x * y).sum(2, keepdims=True), rtol=1e-4, atol=1e-4)
    assert untouched(z)
