"""Parts of a tensor that are written in its memory: in vectors along the rows, wherever they begin."""

from __future__ import annotations

import numpy as np
import pytest

from .kernels import built, kernel, padded, stages, untouched


def part(rows: int, columns: int, begin: tuple[int, int]) -> str:
    """`rows` x `columns` written into 40 x 100."""
    x, y = "tensor<40x100xf32>", f"tensor<{rows}x{columns}xf32>"
    attributes = f'combine = "set", index_map = affine_map<(d0, d1) -> ()>, mlirc.offsets = array<i64: {begin[0]}, {begin[1]}>, operandSegmentSizes = array<i32: 1, 1, 0>, target = array<i64: 0, 1>'
    return kernel([("%x", x), ("%y", y)], f'%r = "mlirc.scatter"(%x, %y) {{{attributes}}} : ({x}, {y}) -> {x}', [("%r", x)], [[100, 1]])


def test_vectors_are_stored() -> None:
    text = stages(part(38, 70, (1, 3)))["vector"]
    assert "vector.store" in text and "vector.maskedstore" in text
    assert not [line for line in text.splitlines() if "memref.store" in line and "xf32" in line]
    assert "arith.cmpi ult" not in text, "no index is checked"


@pytest.mark.parametrize("rows, columns, begin", [(38, 70, (1, 3)), (1, 100, (39, 0)), (40, 1, (0, 99)), (3, 17, (0, 83)), (40, 33, (0, 1)), (2, 3, (37, 96))])
@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
def test_only_the_part_is_written(rows: int, columns: int, begin: tuple[int, int], target: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 100), np.float32), rng.standard_normal((rows, columns), np.float32)
    want, got = x.copy(), padded(x)
    want[begin[0] : begin[0] + rows, begin[1] : begin[1] + columns] = y
    assert built(part(rows, columns, begin), target)(x, y, got) == 0
    np.testing.assert_array_equal(got, want)
    assert untouched(got)
