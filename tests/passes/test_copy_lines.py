"""Copies of windows read lines."""

from __future__ import annotations

import pytest

from mlirc.passes.copy_lines import copy_lines
from mlirc.tests.passes.graph_text import check, function, generic


def windows(maps: list[str], image: str, result: str, body: str = "%o = arith.addf %a0, %a0 : bf16") -> str:
    """A copy, or another elementwise op."""
    loops = ["a", "b", "c", "d", "e", "f"][: result.count("x")]
    return function([("%x", image)], generic("%y", [("%x", image)], result, maps, body, loops=loops), [("%y", result)])


def copied(text: str) -> str:
    """The op without arithmetic."""
    return text.replace("%o = arith.addf %a0, %a0 : bf16\n", "").replace("linalg.yield %o", "linalg.yield %a0")


TAPS = (["d, b + e, c + f, a", "a, b, c, d, e, f"], "tensor<2x8x8x6xbf16>", "tensor<6x3x3x2x6x6xbf16>")


def test_windows_of_a_channels_last_image():
    check(copied(windows(*TAPS)), copy_lines, """
        CHECK-DAG: #[[PLANES:.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d2, d3, d0)>
        CHECK-DAG: #[[LINES:.*]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d3, d1 + d4, d2 + d5)>
        CHECK: %[[P:.*]] = linalg.generic {indexing_maps = [#[[PLANES]], {{.*}}ins(%arg0 : {{.*}}outs(%{{.*}} : tensor<6x2x8x8xbf16>) attrs = {{.*}}mlirc.pack
        CHECK: linalg.generic {indexing_maps = [#[[LINES]], {{.*}}ins(%[[P]] : tensor<6x2x8x8xbf16>) outs(%{{.*}} : tensor<6x3x3x2x6x6xbf16>)
    """)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        windows(*TAPS),
        copied(windows(["d, a, b + e, c + f", "a, b, c, d, e, f"], "tensor<2x6x8x8xbf16>", TAPS[2])),
        copied(windows(["b, a", "a, b"], "tensor<8x6xbf16>", "tensor<6x8xbf16>")),
        copied(windows(["c, b", "a, b, c"], "tensor<8x6xbf16>", "tensor<?x6x8xbf16>").replace("tensor.empty() : tensor<?x6x8", "tensor.empty(%n) : tensor<?x6x8").replace("%x: tensor", "%n: index, %x: tensor")),
        copied(windows(["a + b", "a, b"], "tensor<8xbf16>", "tensor<4x5xbf16>")),
    ],
    ids=["arithmetic", "planes", "read once", "a symbol", "one dim"],
)  # fmt: skip
def test_others_stay_as_they_are(text):
    check(text, copy_lines, "CHECK-COUNT-1: = linalg.generic\nCHECK-NOT: = linalg.generic")
