"""Padding moves in front of a concatenation, and both are one kernel."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.passes.pad_concats import pad_concats
from mlirc.tests.frontend.elementwise import matches
from mlirc.tests.passes.graph_text import check, function

X, Y, BOTH = "tensor<4x3xf32>", "tensor<4x5xf32>", "tensor<4x8xf32>"
CONCAT = f"%c = tensor.concat dim(1) %x, %y : ({X}, {Y}) -> {BOTH}\n"


def pad(name, low, high, result):
    region = f"{{\n^bb0(%i: index, %j: index):\ntensor.yield %z : f32\n}} : {BOTH} to {result}\n"
    return f"%z = arith.constant 2.0 : f32\n{name} = tensor.pad %c low{low} high{high} {region}"


def test_each_operand_is_padded():
    wide = "tensor<7x8xf32>"
    check(
        function([("%x", X), ("%y", Y)], CONCAT + pad("%p", [1, 0], [2, 0], wide), [("%p", wide)]),
        pad_concats,
        """
        CHECK: %[[A:.*]] = tensor.pad %arg0 low[1, 0] high[2, 0]
        CHECK: tensor<4x3xf32> to tensor<7x3xf32>
        CHECK: %[[B:.*]] = tensor.pad %arg1 low[1, 0] high[2, 0]
        CHECK: tensor<4x5xf32> to tensor<7x5xf32>
        CHECK: %[[C:.*]] = tensor.concat dim(1) %[[A]], %[[B]] {mlirc.sizes = ["7", "8"]}
        CHECK: return %[[C]]
        """,
        clean=True,
    )


@pytest.mark.parametrize("along", [True, False], ids=["padded along the concatenated dim", "read by others too"])
def test_what_stays(along):
    wide = "tensor<4x9xf32>" if along else "tensor<5x8xf32>"
    body = CONCAT + pad("%p", [0, 1] if along else [1, 0], [0, 0], wide)
    results = [("%p", wide)] if along else [("%p", wide), ("%c", BOTH)]
    check(function([("%x", X), ("%y", Y)], body, results), pad_concats, "CHECK: tensor.concat {{.*}} %arg0, %arg1\nCHECK: tensor.pad", clean=True)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_convolution_of_a_concatenation(dtype, dynamic):
    """Channels that are no whole vectors; operands that are computed, and read by others."""

    def f(x, y, w):
        y = torch.relu(y)
        return F.conv2d(torch.cat([x + 1, y, x], 1), w, padding=(1, 2)), y

    x, y = (torch.randn(2, c, 7, 9, dtype=dtype).contiguous(memory_format=torch.channels_last) for c in (5, 19))
    matches(f, x, y, torch.randn(6, 29, 3, 3, dtype=dtype), dynamic=dynamic, factor=8)
