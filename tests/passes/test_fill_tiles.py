"""Convolutions of bf16 with few or odd channels have reductions in whole tiles."""

from __future__ import annotations

import pytest

from mlirc.passes.fill_tiles import fill_tiles
from mlirc.passes.pack import PackShape
from mlirc.tests.passes.graph_text import check, function, generic

TILES = PackShape(32, frozenset({"bf16"}), 16)
PRODUCT = "%u = arith.extf %a0 : bf16 to f32\n%v = arith.extf %a1 : bf16 to f32\n%m = arith.mulf %u, %v : f32\n%o = arith.addf %a2, %m : f32"


def convolution(channels: int, taps: int, stride: int = 1, dilation: int = 1, columns: int = 64, kind: str = "bf16") -> str:
    """Of [1, 20, 20, channels], the loops n, h, w, o, kh, kw, c."""
    out = (20 - (taps - 1) * dilation - 1) // stride + 1
    x, w, y = f"tensor<1x20x20x{channels}x{kind}>", f"tensor<{taps}x{taps}x{channels}x{columns}x{kind}>", f"tensor<1x{out}x{out}x{columns}xf32>"
    maps = [f"n, h * {stride} + i * {dilation}, w * {stride} + j * {dilation}, c", "i, j, c, o", "n, h, w, o"]
    body = PRODUCT if kind == "bf16" else "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"
    op = generic("%y", [("%x", x), ("%w", w)], y, maps, body, "pppprrr", ["n", "h", "w", "o", "i", "j", "c"], "0.0", "convolution")
    return function([("%x", x), ("%w", w)], op, [("%y", y)])


def run(f):
    fill_tiles(f, TILES)


def test_taps_of_few_channels_are_merged():
    check(convolution(3, 7, stride=2), run, """
        CHECK-DAG: #[[SEES:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2 * 6 + d3)>
        CHECK-DAG: #[[IMAGE:.*]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1 * 2 + d4, d2, d5)>
        CHECK-DAG: #[[WEIGHT:.*]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d4, d3, d5)>
        CHECK: %[[LINES:.*]] = tensor.collapse_shape %arg0 {{\\[\\[}}0], [1], [2, 3]] : tensor<1x20x20x3xbf16> into tensor<1x20x60xbf16>
        CHECK: %[[TAPS:.*]] = linalg.generic {indexing_maps = [#[[SEES]], {{.*}}ins(%[[LINES]] : tensor<1x20x60xbf16>) outs(%{{.*}} : tensor<1x20x7x21xbf16>)
        CHECK: %[[X:.*]] = tensor.pad %[[TAPS]] low[0, 0, 0, 0] high[0, 0, 0, 11]
        CHECK: linalg.generic {{.*}}ins(%arg1 : tensor<7x7x3x64xbf16>) outs(%{{.*}} : tensor<7x64x7x3xbf16>)
        CHECK: %[[W:.*]] = tensor.pad %{{.*}} low[0, 0, 0] high[0, 0, 11]
        CHECK: linalg.generic {indexing_maps = [#[[IMAGE]], #[[WEIGHT]], {{.*}}ins(%[[X]], %[[W]] : tensor<1x20x7x32xbf16>, tensor<7x64x32xbf16>)
    """)  # fmt: skip


@pytest.mark.parametrize("channels, dilation, columns", [(48, 1, 64), (3, 2, 64), (24, 1, 8)])
def test_channels_are_padded_where_that_is_no_more_work_or_taps_do_not_touch(channels, dilation, columns):
    """For few output channels, too, if there are several to read."""
    whole = -(-channels // 32) * 32
    check(convolution(channels, 3, dilation=dilation, columns=columns), run, f"""
        CHECK: %[[X:.*]] = tensor.pad %arg0 low[0, 0, 0, 0] high[0, 0, 0, {whole - channels}]
        CHECK: %[[W:.*]] = tensor.pad %arg1 low[0, 0, 0, 0] high[0, 0, {whole - channels}, 0]
        CHECK: linalg.generic {{{{.*}}}}ins(%[[X]], %[[W]] : tensor<1x20x20x{whole}xbf16>, tensor<3x3x{whole}x{columns}xbf16>)
    """)  # fmt: skip


def grouped(channels: int) -> str:
    x, w, y = f"tensor<1x20x20x4x{channels}xbf16>", f"tensor<3x3x4x{channels}x16xbf16>", "tensor<1x18x18x4x16xf32>"
    maps = ["n, h + i, w + j, g, c", "i, j, g, c, o", "n, h, w, g, o"]
    op = generic("%y", [("%x", x), ("%w", w)], y, maps, PRODUCT, "ppppprrr", ["n", "h", "w", "g", "o", "i", "j", "c"], "0.0", "convolution")
    return function([("%x", x), ("%w", w)], op, [("%y", y)])


@pytest.mark.parametrize("channels", [7, 40])
def test_channels_of_groups_are_padded(channels):
    """Where they are no whole words, or more than a row of a tile has."""
    whole = -(-channels // 32) * 32
    check(grouped(channels), run, f"""
        CHECK: %[[X:.*]] = tensor.pad %arg0 low[0, 0, 0, 0, 0] high[0, 0, 0, 0, {whole - channels}]
        CHECK: %[[W:.*]] = tensor.pad %arg1 low[0, 0, 0, 0, 0] high[0, 0, 0, {whole - channels}, 0]
        CHECK: linalg.generic {{{{.*}}}}ins(%[[X]], %[[W]] : tensor<1x20x20x4x{whole}xbf16>, tensor<3x3x4x{whole}x16xbf16>)
    """)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [convolution(64, 3), convolution(3, 3, columns=8), convolution(24, 1), convolution(24, 3, kind="f32"), grouped(8)],
    ids=["whole", "few columns", "one tap", "f32", "rows of a group"],
)
def test_others_stay_as_they_are(text):
    check(text, run, "CHECK-NOT: tensor.pad\nCHECK-NOT: collapse_shape\nCHECK: mlirc.kind = \"convolution\"")
    check(convolution(3, 7), lambda f: fill_tiles(f, PackShape(32, frozenset({"bf16"}))), "CHECK-NOT: tensor.pad")
