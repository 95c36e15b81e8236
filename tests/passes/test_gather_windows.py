"""Gradients of convolutions' weights, sums over positions, become products with what each tap sees."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlirc.passes.gather_windows import gather_windows
from mlirc.passes.pack import PackShape
from mlirc.tests.frontend.compare import compare
from mlirc.tests.passes.graph_text import check, function, generic
from mlirc.tests.passes.test_fill_tiles import PRODUCT, convolution

WORDS = PackShape(32, frozenset({"bf16"}))
F32_PRODUCT = "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"


def gradient(kind: str = "bf16", size: int = 10, columns: int = 5, stride: int = 1) -> str:
    """Of a weight of 3x3 taps, from 6 to so many channels, the sum over two images."""
    out = (size - 3) // stride + 1
    x, g, w = f"tensor<2x{size}x{size}x6x{kind}>", f"tensor<2x{out}x{out}x{columns}x{kind}>", f"tensor<3x3x6x{columns}xf32>"
    maps = [f"n, h * {stride} + i, w * {stride} + j, c", "n, h, w, o", "i, j, c, o"]
    body = PRODUCT if kind == "bf16" else F32_PRODUCT
    op = generic("%y", [("%x", x), ("%g", g)], w, maps, body, "pppprrr", ["i", "j", "c", "o", "n", "h", "w"], "0.0", "convolution")
    return function([("%x", x), ("%g", g)], op, [("%y", w)])


def run(f):
    gather_windows(f, WORDS)


@pytest.mark.parametrize("stride, out", [(1, 8), (2, 4)])
def test_what_each_tap_sees_lies_in_lines(stride, out):
    lines = "d1 + d4, d2 + d5" if stride == 1 else f"d4 * {stride} + d1, d5 * {stride} + d2"
    check(gradient(stride=stride), run, f"""
        CHECK-DAG: #[[SEES:.*]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d3, {lines}, d0)>
        CHECK: %[[TAPS:.*]] = linalg.generic {{indexing_maps = [#[[SEES]], {{{{.*}}}}ins(%arg0 {{{{.*}}}}outs(%{{{{.*}}}} : tensor<6x3x3x2x{out}x{out}xbf16>)
        CHECK: %[[X:.*]] = tensor.collapse_shape %[[TAPS]] {{{{\\[\\[}}}}0, 1, 2], [3, 4, 5]] : {{{{.*}}}} into tensor<54x{2 * out * out}xbf16>
        CHECK: %[[G:.*]] = tensor.collapse_shape %arg1 {{{{\\[\\[}}}}0, 1, 2], [3]] : {{{{.*}}}} into tensor<{2 * out * out}x5xbf16>
        CHECK: %[[Y:.*]] = linalg.generic {{{{.*}}}}["parallel", "parallel", "reduction"]{{{{.*}}}}ins(%[[X]], %[[G]] {{{{.*}}}}mlirc.kind = "contraction"
        CHECK: %[[T:.*]] = linalg.transpose ins(%[[Y]] : tensor<54x5xf32>) {{{{.*}}}}permutation = [1, 0]
        CHECK: %[[W:.*]] = tensor.expand_shape %[[T]] {{{{\\[\\[}}}}0], [1, 2, 3]] {{{{.*}}}} into tensor<5x6x3x3xf32>
        CHECK: %[[R:.*]] = linalg.transpose ins(%[[W]] {{{{.*}}}}permutation = [2, 3, 1, 0]
        CHECK: return %[[R]]
    """, clean=True)  # fmt: skip


def test_f32_only_where_positions_are_few():
    """Of 16 for each output channel, the copy takes as long as it saves."""
    check(gradient("f32", 8), run, "CHECK: tensor.collapse_shape")
    check(gradient("f32", 9), run, "CHECK-NOT: collapse_shape\nCHECK: mlirc.kind = \"convolution\"")
    check(gradient("bf16", 12), run, "CHECK: tensor.collapse_shape")


GROUPED = function(
    [("%x", "tensor<2x9x9x4x8xbf16>"), ("%g", "tensor<2x7x7x4x16xbf16>")],
    generic(
        "%y", [("%x", "tensor<2x9x9x4x8xbf16>"), ("%g", "tensor<2x7x7x4x16xbf16>")], "tensor<3x3x4x8x16xf32>",
        ["n, h + i, w + j, g, c", "n, h, w, g, o", "i, j, g, c, o"], PRODUCT, "ppppprrr", ["i", "j", "g", "c", "o", "n", "h", "w"], "0.0", "convolution",
    ),
    [("%y", "tensor<3x3x4x8x16xf32>")],
)  # fmt: skip


@pytest.mark.parametrize("text", [convolution(24, 3), GROUPED, gradient().replace("tensor<2x", "tensor<?x")], ids=["forward", "groups", "a symbol"])
def test_others_stay_as_they_are(text):
    check(text, run, "CHECK-NOT: collapse_shape\nCHECK: mlirc.kind = \"convolution\"")


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize(
    "conv, shape",
    [
        (lambda: nn.Conv2d(17, 33, 3, padding=1), (3, 17, 5, 7)),
        (lambda: nn.Conv2d(16, 48, 3, 2, 1), (1, 16, 9, 9)),
        (lambda: nn.Conv2d(32, 64, 1), (1, 32, 3, 3)),
        (lambda: nn.Conv1d(3, 40, 5, dilation=2), (2, 3, 33)),
        (lambda: nn.Conv3d(4, 33, 3, padding=1), (1, 4, 3, 3, 3)),
        (lambda: nn.ConvTranspose2d(24, 12, 3, 2, 1), (2, 24, 4, 5)),
    ],
    ids=["odd", "stride", "one tap", "1d", "3d", "transposed"],
)
def test_gradients(conv, shape, target, dtype):
    """An odd number of positions does not fill words; both layouts of images."""
    torch.manual_seed(0)
    module = conv().to(dtype)

    def f(x, *weights):
        y = torch.func.functional_call(module, dict(zip(("weight", "bias"), weights)), (x,))
        return torch.autograd.grad(y.square().sum(), weights)

    weights = [p.detach().clone().requires_grad_() for p in module.parameters()]
    x = torch.randn(shape, dtype=dtype)
    last = x.movedim(1, -1).contiguous().movedim(-1, 1)
    for image in (x, last):
        compare(f, image, *weights, options={"target": target}, strides=False)
