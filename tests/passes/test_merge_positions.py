"""Convolutions become products with all positions of an image as rows: those of one element always, narrow ones for targets with tiles."""

from __future__ import annotations

import pytest
import torch

from mlirc.passes.merge_positions import merge_positions
from mlirc.passes.pack import PackShape
from mlirc.tests.frontend.compare import compare
from mlirc.tests.passes.graph_text import check, function, generic, with_weights
from mlirc.tests.passes.test_fill_tiles import convolution

PRODUCT = "%u = arith.extf %a0 : bf16 to f32\n%v = arith.extf %a1 : bf16 to f32\n%m = arith.mulf %u, %v : f32\n%o = arith.addf %a2, %m : f32"


TILES = PackShape(32, frozenset({"bf16"}), 16)


REGISTERS = PackShape(32, frozenset({"bf16"}))


def run(f):
    merge_positions(f, TILES)


@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize("shape", [TILES, REGISTERS], ids=["tiles", "registers"])
def test_a_kernel_of_one_element(shape, kind):
    check(convolution(24, 1, kind=kind), lambda f: merge_positions(f, shape), f"""
        CHECK: %[[X:.*]] = tensor.collapse_shape %arg0 {{{{\\[\\[}}}}0], [1, 2], [3]] : tensor<1x20x20x24x{kind}> into tensor<1x400x24x{kind}>
        CHECK: %[[W:.*]] = tensor.collapse_shape %arg1 {{{{.*}}}} into tensor<24x64x{kind}>
        CHECK: %[[Y:.*]] = linalg.generic {{{{.*}}}}["parallel", "parallel", "parallel", "reduction"]{{{{.*}}}}ins(%[[X]], %[[W]] {{{{.*}}}}mlirc.kind = "contraction"
        CHECK: tensor.expand_shape %[[Y]] {{{{.*}}}} : tensor<1x400x64xf32> into tensor<1x20x20x64xf32>
    """, clean=True)  # fmt: skip


def test_narrow_images():
    """Of 20 positions, three apart, every line has seven."""
    check(convolution(24, 2, stride=3), run, """
        CHECK-DAG: #[[SEES:.*]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1 * 3 + d3, d2 * 3 + d4, d5)>
        CHECK: %[[TAPS:.*]] = linalg.generic {indexing_maps = [#[[SEES]], {{.*}}ins(%arg0 : {{.*}}outs(%{{.*}} : tensor<1x7x7x2x2x24xbf16>)
        CHECK: %[[X:.*]] = tensor.collapse_shape %[[TAPS]] {{\\[\\[}}0, 1, 2], [3, 4, 5]] : {{.*}} into tensor<49x96xbf16>
        CHECK: %[[W:.*]] = tensor.collapse_shape %arg1 {{\\[\\[}}0, 1, 2], [3]] : {{.*}} into tensor<96x64xbf16>
        CHECK: linalg.generic {{.*}}ins(%[[X]], %[[W]] {{.*}}mlirc.kind = "contraction"
        CHECK: tensor.expand_shape {{.*}} : tensor<49x64xf32> into tensor<1x7x7x64xf32>
    """, clean=True)  # fmt: skip


def planes(size: int, step: int) -> str:
    """Windows of an image of three planes, read as a channels-last one."""
    places = (20 - size) // step + 1
    x, t, w, y = "tensor<1x3x20x20xbf16>", "tensor<1x20x20x3xbf16>", f"tensor<{size}x{size}x3x64xbf16>", f"tensor<1x{places}x{places}x64xf32>"
    body = f"%e = tensor.empty() : {t}\n%t = linalg.transpose ins(%x : {x}) outs(%e : {t}) permutation = [0, 2, 3, 1]\n"
    maps = [f"n, h * {step} + i, w * {step} + j, c", "i, j, c, o", "n, h, w, o"]
    op = generic("%y", [("%t", t), ("%w", w)], y, maps, PRODUCT, "pppprrr", ["n", "h", "w", "o", "i", "j", "c"], "0.0", "convolution")
    return function([("%x", x), ("%w", w)], body + op, [("%y", y)])


def test_patches_of_planes():
    """Elements of a line follow one another in the rows; windows that overlap are not copied."""
    check(planes(4, 4), lambda f: merge_positions(f, REGISTERS), """
        CHECK: #[[PATCHES:.*]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1 * 4 + d4, d2 * 4 + d5, d3)>
        CHECK: linalg.generic {indexing_maps = [#[[PATCHES]], {{.*}}outs(%{{.*}} : tensor<1x5x5x3x4x4xbf16>)
        CHECK: %[[X:.*]] = tensor.collapse_shape {{.*}} into tensor<25x48xbf16>
        CHECK: linalg.transpose ins(%arg1 : {{.*}} permutation = [2, 0, 1, 3]
        CHECK: %[[W:.*]] = tensor.collapse_shape {{.*}} into tensor<48x64xbf16>
        CHECK: linalg.generic {{.*}}ins(%[[X]], %[[W]] {{.*}}mlirc.kind = "contraction"
    """, clean=True)  # fmt: skip
    for text in (planes(4, 3), with_weights(planes(4, 4)), convolution(24, 4, stride=4)):
        check(text, lambda f: merge_positions(f, REGISTERS), "CHECK-NOT: collapse_shape\nCHECK: mlirc.kind = \"convolution\"")


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("h,w,size", [(32, 32, 16), (13, 34, 4), (7, 3, 3), (5, 9, 2)])
def test_patches(h, w, size, dynamic):
    """Of planes, of a channels-last image and of one that is computed; the last lines may be in no patch."""
    conv = torch.nn.Conv2d(3, 40, size, stride=size).bfloat16()

    def f(*images):
        w, b = conv.weight.to(images[0].dtype), conv.bias.to(images[0].dtype)
        return [torch.nn.functional.conv2d(x, w, b, stride=size) for x in (*images, images[0].relu())]

    torch.manual_seed(0)
    x = torch.randn(2, 3, h, w).bfloat16()
    with torch.no_grad():
        compare(f, x, x.contiguous(memory_format=torch.channels_last), dynamic=dynamic)


DEPTHWISE = function(
    [("%x", "tensor<1x9x9x64xbf16>"), ("%w", "tensor<3x3x64xbf16>")],
    generic(
        "%y", [("%x", "tensor<1x9x9x64xbf16>"), ("%w", "tensor<3x3x64xbf16>")], "tensor<1x7x7x64xf32>", ["n, h + i, w + j, o", "i, j, o", "n, h, w, o"],
        PRODUCT, "pppprr", ["n", "h", "w", "o", "i", "j"], "0.0", "convolution",
    ),
    [("%y", "tensor<1x7x7x64xf32>")],
)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [convolution(24, 3), convolution(24, 1, stride=2), convolution(24, 2, stride=3, kind="f32"), with_weights(convolution(24, 2, stride=3)), DEPTHWISE],
    ids=["wide", "strided", "f32", "no weight", "depthwise"],
)
def test_others_stay_as_they_are(text):
    check(text, run, "CHECK-NOT: collapse_shape\nCHECK: mlirc.kind = \"convolution\"")
    check(convolution(24, 2, stride=3), lambda f: merge_positions(f, REGISTERS), "CHECK-NOT: collapse_shape")
