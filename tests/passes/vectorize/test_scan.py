"""Running totals along the lanes."""

from __future__ import annotations

import re

import pytest

from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import kernel, stages


def scanned(size: int, combine: str) -> str:
    x = f"tensor<40x{size}xf32>"
    body = generic("%t", [("%x", x)], x, body="math.tanh")
    body += f'    %y = "mlirc.scan"(%t) {{combine = "{combine}", dim = 1 : i64}} : ({x}) -> {x}\n'
    return kernel([("%x", x)], body, [("%y", x)], [[size, 1]])


@pytest.mark.parametrize("size, lanes", [(64, 16), (70, 16), (7, 8), (2, 4)])
@pytest.mark.parametrize("combine", ["arith.addf", "arith.mulf"])
def test_what_leads_to_totals_is_computed_in_vectors(size: int, lanes: int, combine: str) -> None:
    """Of as many lanes as a row has elements, at most; totals are f64, in registers of eight."""
    texts = stages(scanned(size, combine), "skylake-avx512")
    assert f"lanes={lanes}," in texts["strategy"] and "lane=1," in texts["strategy"]
    body = texts["vector"]
    assert not re.search(r"memref\.(load|store)", body), "no element by itself"
    assert re.search(rf"{combine} [^\n]* : vector<{min(lanes // 2, 8)}xf64>", body)
