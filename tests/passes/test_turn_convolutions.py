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


def narrow(channels: int = 64, columns: int = 3, channels_last: bool = True, kind: str = "bf16") -> str:
    """3 x 3 of [1, channels, 20, 20], which is a view of a channels-last image, lanes along the lines."""
    planes, last = f"tensor<1x{channels}x20x20x{kind}>", f"tensor<1x20x20x{channels}x{kind}>"
    x, w, y = last if channels_last else planes, f"tensor<3x3x{channels}x{columns}x{kind}>", f"tensor<1x{columns}x18x18xf32>"
    body = PRODUCT if kind == "bf16" else "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"
    maps = ["n, h + i, w + j, c" if channels_last else "n, c, h + i, w + j", "i, j, c, o", "n, o, h, w"]
    op = generic("%y", [("%x", x), ("%w", w)], y, maps, body, "pppprrr", ["n", "o", "h", "w", "c", "i", "j"], "0.0", "convolution")
    return function([("%x", x), ("%w", w)], op, [("%y", y)])


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


@pytest.mark.parametrize(
    "text", [narrow(channels_last=False), narrow(kind="f32"), narrow(channels=3)], ids=["planes", "f32", "few channels"]
)
def test_others_stay_as_they_are(text):
    check(text, run, "CHECK-NOT: linalg.transpose\nCHECK: mlirc.kind = \"convolution\"")
    check(narrow(), lambda f: turn_convolutions(f, REGISTERS), "CHECK-NOT: linalg.transpose")


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("channels,columns,size", [(64, 3, 7), (40, 1, 3), (33, 4, 3), (16, 2, 5)])
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
