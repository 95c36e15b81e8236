"""Convolutions with few output channels have their lanes along these where tiles multiply them."""

from __future__ import annotations

import pytest
import torch

from mlirc.passes.pack import PackShape
from mlirc.passes.turn_convolutions import turn_convolutions
from mlirc.tests.frontend.compare import compare
from mlirc.tests.passes.graph_text import check, function, generic
from mlirc.tests.passes.test_fill_tiles import PRODUCT, TILES

REGISTERS = PackShape(32, frozenset({"bf16"}))


def narrow(channels: int = 64, columns: int = 3, taps: int = 3, channels_last: bool = True, padded: bool = False, kind: str = "bf16") -> str:
    """Of [1, channels, 20, 20], or a channels-last image, perhaps padded to that; lanes along the lines."""
    out = 21 - taps
    planes, last = f"tensor<1x{channels}x20x20x{kind}>", f"tensor<1x20x20x{channels}x{kind}>"
    x, w, y = last if channels_last else planes, f"tensor<{taps}x{taps}x{channels}x{columns}x{kind}>", f"tensor<1x{columns}x{out}x{out}xf32>"
    body = PRODUCT if kind == "bf16" else "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"
    maps = ["n, h + i, w + j, c" if channels_last else "n, c, h + i, w + j", "i, j, c, o", "n, o, h, w"]
    image, argument, pad = "%x", x, ""
    if padded:
        image, argument = "%p", f"tensor<1x{channels}x16x14xbf16>"
        pad = "%seven = arith.constant 7.0 : bf16\n%p = tensor.pad %x low[0, 0, 1, 2] high[0, 0, 3, 4] {\n^bb0(%a: index, %b: index, %c: index, %d: index):\n"
        pad += f"tensor.yield %seven : bf16\n}} : {argument} to {x}\n"
    op = generic("%y", [(image, x), ("%w", w)], y, maps, body, "pppprrr", ["n", "o", "h", "w", "c", "i", "j"], "0.0", "convolution")
    return function([("%x", argument), ("%w", w)], pad + op, [("%y", y)])


def run(f):
    assert turn_convolutions(f, TILES) == ("linalg.transpose" in str(f))


def test_results_are_stored_channels_last_and_transposed_back():
    check(narrow(), run, """
        CHECK: #[[OUT:.*]] = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d2, d3, d1)>
        CHECK: %[[INIT:.*]] = linalg.fill {{.*}} -> tensor<1x18x18x3xf32>
        CHECK: %[[Y:.*]] = linalg.generic {indexing_maps = [#{{.*}}, #{{.*}}, #[[OUT]]], {{.*}}ins(%arg0, %arg1 {{.*}}outs(%[[INIT]] {{.*}}mlirc.kind = "convolution"
        CHECK: %[[BACK:.*]] = linalg.transpose ins(%[[Y]] : tensor<1x18x18x3xf32>) {{.*}}permutation = [0, 3, 1, 2]
        CHECK: return %[[BACK]]
    """, clean=True)  # fmt: skip


def test_images_of_planes_are_copied():
    check(narrow(taps=7, channels_last=False), run, """
        CHECK-DAG: #[[PLANES:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d3, d1, d2)>
        CHECK-DAG: #[[IMAGE:.*]] = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d2 + d5, d3 + d6, d4)>
        CHECK: %[[X:.*]] = linalg.generic {indexing_maps = [#[[PLANES]], {{.*}}ins(%arg0 {{.*}}outs(%{{.*}} : tensor<1x20x20x64xbf16>)
        CHECK: linalg.generic {indexing_maps = [#[[IMAGE]], {{.*}}ins(%[[X]], %arg1 {{.*}}mlirc.kind = "convolution"
    """, clean=True)  # fmt: skip


def test_padding_makes_that_copy():
    check(narrow(taps=7, channels_last=False, padded=True), run, """
        CHECK: %[[VALUE:.*]] = arith.constant 7.0
        CHECK: %[[T:.*]] = linalg.transpose ins(%arg0 : tensor<1x64x16x14xbf16>) {{.*}}permutation = [0, 2, 3, 1]
        CHECK: %[[X:.*]] = tensor.pad %[[T]] low[0, 1, 2, 0] high[0, 3, 4, 0]
        CHECK: tensor.yield %[[VALUE]]
        CHECK: linalg.generic {{.*}}ins(%[[X]], %arg1 {{.*}}mlirc.kind = "convolution"
    """, clean=True)  # fmt: skip


def of_groups(channels: int, channels_last: bool = True) -> str:
    """8 of `channels` each, 3 x 3."""
    planes, last = f"tensor<1x8x{channels}x20x20xbf16>", f"tensor<1x20x20x8x{channels}xbf16>"
    x, w, y = last if channels_last else planes, f"tensor<3x3x8x{channels}x4xbf16>", "tensor<1x8x4x18x18xf32>"
    maps = ["n, h + i, w + j, g, c" if channels_last else "n, g, c, h + i, w + j", "i, j, g, c, o", "n, g, o, h, w"]
    op = generic("%y", [("%x", x), ("%w", w)], y, maps, PRODUCT, "ppppprrr", ["n", "g", "o", "h", "w", "c", "i", "j"], "0.0", "convolution")
    return function([("%x", x), ("%w", w)], op, [("%y", y)])


def test_groups_of_few_channels_are_turned_where_these_lie_last():
    check(of_groups(4), run, """
        CHECK: #[[OUT:.*]] = affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d0, d3, d4, d1, d2)>
        CHECK: %[[Y:.*]] = linalg.generic {indexing_maps = [#{{.*}}, #{{.*}}, #[[OUT]]], {{.*}}outs(%{{.*}} : tensor<1x18x18x8x4xf32>)
        CHECK: linalg.transpose ins(%[[Y]] {{.*}}permutation = [0, 3, 4, 1, 2]
    """, clean=True)  # fmt: skip
    check(of_groups(4, channels_last=False), run, "CHECK-NOT: linalg.transpose\nCHECK: mlirc.kind = \"convolution\"")


@pytest.mark.parametrize(
    "text", [narrow(channels_last=False), narrow(kind="f32"), narrow(channels=3)], ids=["planes, few taps", "f32", "few channels"]
)
def test_others_stay_as_they_are(text):
    check(text, run, "CHECK-NOT: linalg.transpose\nCHECK: mlirc.kind = \"convolution\"")
    check(narrow(), lambda f: turn_convolutions(f, REGISTERS), "CHECK-NOT: linalg.transpose")


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("channels,columns,size", [(64, 3, 7), (40, 1, 3), (33, 4, 3), (16, 2, 5), (32, 4, 7)])
def test_values(channels, columns, size, dynamic):
    """Behind and in front of elementwise ops, of images in both orders of memory, the result as it is and reduced."""
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(channels, columns, size, padding=1).bfloat16()

    def f(x):
        y = torch.nn.functional.conv2d(x.relu(), conv.weight.to(x.dtype), conv.bias.to(x.dtype), padding=1)
        return y.tanh(), y.float().sum(1), y

    x = torch.randn(2, channels, 17, 33).bfloat16()
    with torch.no_grad():
        for image in (x, x.contiguous(memory_format=torch.channels_last)):
            compare(f, image, dynamic=dynamic)
