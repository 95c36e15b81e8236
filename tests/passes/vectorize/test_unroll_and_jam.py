"""Rows that share what they read along the lanes: what the code has, and that it is right where rows or lanes are missing."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import built, kernel, padded, stages, untouched

rng = np.random.default_rng(0)
SQUARE = "%d = arith.subf %a0, %a1 : f32\n%p = arith.mulf %d, %d : f32\n%o = arith.addf %p, %a2 : f32"
TARGETS = ["host", "x86-64-v3"]


def distances(n: int, m: int, k: int) -> str:
    """Squares of the distances of `n` points to `m`, of `k` coordinates each."""
    body = generic("%r", [("%x", f"tensor<{n}x{k}xf32>"), ("%y", f"tensor<{m}x{k}xf32>")], f"tensor<{n}x{m}xf32>", ["i, k", "j, k", "i, j"], SQUARE, "ppr", "ijk", "0.0")
    return kernel([("%x", f"tensor<{n}x{k}xf32>"), ("%y", f"tensor<{m}x{k}xf32>")], body, [("%r", f"tensor<{n}x{m}xf32>")], [[m, 1]])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 9, 33])
@pytest.mark.parametrize("m, k", [(1, 3), (17, 3), (64, 2), (33, 9), (40, 4)])
@pytest.mark.parametrize("target", TARGETS)
def test_distances(n: int, m: int, k: int, target: str) -> None:
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((n, k), (m, k)))
    z = padded(np.zeros((n, m), np.float32))
    assert built(distances(n, m, k), target)(x, y, z) == 0
    np.testing.assert_allclose(z, ((x[:, None] - y) ** 2).sum(2), rtol=1e-5, atol=1e-6)
    assert untouched(z)


@pytest.mark.parametrize("target", ["znver3", "znver4"])
@pytest.mark.parametrize("n, joined", [(64, 4), (6, 3)])
def test_what_rows_share_is_put_together_once(n: int, joined: int, target: str) -> None:
    """As many permutations as for a single row; a subtraction for each coordinate of each row; nothing is spilled."""
    texts, one = stages(distances(n, 64, 3), target), stages(distances(n, 64, 3), target, "joined=1")
    assert f"joined={joined}," in texts["strategy"]
    permuted = [len(re.findall(r"\tv(?:perm|blend|shuf)\w+\t", t["asm"])) for t in (texts, one)]
    assert permuted[0] == permuted[1] > 0
    assert [t["asm"].count("vsubps") for t in (texts, one)] == [3 * joined, 3]
    assert not re.search(r"ymm\d+, -?\d*\(%rsp\)", texts["asm"])


@pytest.mark.parametrize("k, m", [(10, 64), (3, 3)], ids=["a loop", "few lanes"])
def test_rows_that_share_no_vectors_are_computed_one_by_one(k: int, m: int) -> None:
    assert "joined=1," in stages(distances(64, m, k), "znver3")["strategy"]


@pytest.mark.parametrize("place, joined", [("j * 3", 4), ("i * 64 + j * 3", 1), ("i floordiv 2 + j * 3", 1), ("j", 1)], ids=["shared", "own", "not known", "side by side"])
def test_rows_share_what_lies_apart(place: str, joined: int) -> None:
    size = 64 if place == "j" else 9999
    body = generic("%r", [("%x", f"tensor<{size}xf32>")], "tensor<64x64xf32>", [place, "i, j"])
    assert f"joined={joined}," in stages(kernel([("%x", f"tensor<{size}xf32>")], body, [("%r", "tensor<64x64xf32>")], [[64, 1]]), "znver3")["strategy"]


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_stored_with_a_sum_in_place(target: str) -> None:
    """The row that takes the place of those that are missing is not read again after it is stored."""
    t, y, row = "tensor<5x3x40xf32>", "tensor<40x3xf32>", "tensor<5x40xf32>"
    body = generic("%r", [("%x", t), ("%y", y)], t, ["i, k, j", "j, k", "i, k, j"], "arith.addf", loops="ikj")
    body += generic("%s", [("%r", t)], row, ["i, k, j", "i, j"], "arith.addf", "prp", "ikj", "0.0")
    text = kernel([("%x", t), ("%y", y)], body, [("%r", t), ("%s", row)], [[120, 40, 1], [40, 1]])
    x, z = (rng.standard_normal(s).astype(np.float32) for s in ((5, 3, 40), (40, 3)))
    x, out = padded(x), padded(np.zeros((5, 40), np.float32))
    want = x + z.T
    assert built(text, target)(x, z, x, out) == 0
    np.testing.assert_allclose(x, want, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(out, want.sum(1), rtol=1e-5, atol=1e-5)
    assert untouched(x) and untouched(out)


@pytest.mark.parametrize("batch", [2, 100])
@pytest.mark.parametrize("n", [4, 7])
def test_rows_of_a_batch(batch: int, n: int) -> None:
    """Blocks of rows are within an outer one, whether threads share these alone or the blocks."""
    x, y, z = f"tensor<{batch}x{n}x3xf32>", f"tensor<{batch}x20x3xf32>", f"tensor<{batch}x{n}x20xf32>"
    body = generic("%r", [("%x", x), ("%y", y)], z, ["b, i, k", "b, j, k", "b, i, j"], SQUARE, "pppr", "bijk", "0.0")
    text = kernel([("%x", x), ("%y", y)], body, [("%r", z)], [[n * 20, 20, 1]])
    assert "joined=4," in stages(text, "znver3")["strategy"]
    points, others = (rng.standard_normal((batch, s, 3)).astype(np.float32) for s in (n, 20))
    out = padded(np.zeros((batch, n, 20), np.float32))
    assert built(text, "host")(points, others, out) == 0
    np.testing.assert_allclose(out, ((points[:, :, None] - others[:, None]) ** 2).sum(3), rtol=1e-5, atol=1e-6)
    assert untouched(out)


@pytest.mark.parametrize("target", TARGETS)
def test_in_place(target: str) -> None:
    """Rows that are read and stored at the same place, the last of them for those that are missing, too."""
    t, row = "tensor<5x30xf32>", "tensor<60xf32>"
    body = generic("%r", [("%x", t), ("%y", row)], t, ["i, j", "j * 2", "i, j"], "arith.addf")
    text = kernel([("%x", t), ("%y", row)], body, [("%r", t)], [[30, 1]])
    assert "joined=3," in stages(text, "znver3")["strategy"]
    x, y = padded(rng.standard_normal((5, 30)).astype(np.float32)), rng.standard_normal(60).astype(np.float32)
    want = x + y[::2]
    assert built(text, target)(x, y, x) == 0
    np.testing.assert_allclose(x, want, rtol=1e-6, atol=1e-6)
    assert untouched(x)
