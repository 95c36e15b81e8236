"""Elementwise ops behind the merged result of a product run in the product's loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.passes.raise_collapses import raise_collapses
from mlirc.tests.frontend.elementwise import matches
from mlirc.tests.passes.graph_text import check, function, generic, matmul

DEEP, FLAT = "tensor<4x8xf32>", "tensor<32xf32>"
PRODUCT = matmul("%p", "%x", "%y", 4, 16, 8)
ARGUMENTS = [("%x", "tensor<4x16xf32>"), ("%y", "tensor<16x8xf32>")]
COLLAPSE = f"%c = tensor.collapse_shape %p [[0, 1]] : {DEEP} into {FLAT}\n"


def test_a_chain_is_computed_in_the_loops_of_the_product():
    body = PRODUCT + COLLAPSE + generic("%a", [("%c", FLAT)], FLAT) + generic("%b", [("%a", FLAT), ("%c", FLAT)], FLAT, body="arith.mulf")
    check(
        function(ARGUMENTS, body, [("%b", FLAT)]),
        raise_collapses,
        """
        CHECK: %[[P:.*]] = linalg.generic
        CHECK: %[[A:.*]] = linalg.generic
        CHECK-SAME: ins(%[[P]] : tensor<4x8xf32>) outs(%{{.*}} : tensor<4x8xf32>)
        CHECK: %[[B:.*]] = linalg.generic
        CHECK-SAME: ins(%[[A]], %[[P]] : tensor<4x8xf32>, tensor<4x8xf32>)
        CHECK: %[[C:.*]] = tensor.collapse_shape %[[B]]
        CHECK: return %[[C]]
        """,
        clean=True,
    )


def test_broadcasts_over_the_merged_dims_are_kept():
    three, two = "tensor<4x2x4xf32>", "tensor<8x4xf32>"
    multiply = "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"
    kinds = [("%x", "tensor<4x16xf32>"), ("%y", "tensor<16x2x4xf32>")]
    body = generic("%p", kinds, three, ["i, l", "l, j, k", "i, j, k"], multiply, "pppr", "ijkl", "0.0", "contraction")
    body += f"%c = tensor.collapse_shape %p [[0, 1], [2]] : {three} into {two}\n"
    body += generic("%a", [("%c", two), ("%v", "tensor<4xf32>")], two, ["i, j", "j", "i, j"], "arith.addf")
    check(
        function([*kinds, ("%v", "tensor<4xf32>")], body, [("%a", two)]),
        raise_collapses,
        """
        CHECK: %[[P:.*]] = linalg.generic
        CHECK: %[[A:.*]] = linalg.generic
        CHECK-SAME: ins(%[[P]], %arg2 : tensor<4x2x4xf32>, tensor<4xf32>)
        CHECK: tensor.collapse_shape %[[A]]
        """,
        clean=True,
    )


def test_scales_of_the_merged_dims_are_split():
    three, two, scale = "tensor<4x2x4xf32>", "tensor<4x8xf32>", "tensor<8x1xf32>"
    multiply = "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"
    kinds = [("%x", "tensor<4x2x16xf32>"), ("%y", "tensor<2x16x4xf32>")]
    body = generic("%p", kinds, three, ["i, g, l", "g, l, k", "i, g, k"], multiply, "pppr", "igkl", "0.0", "convolution")
    body += f"%c = tensor.collapse_shape %p [[0], [1, 2]] : {three} into {two}\n"
    body += generic("%a", [("%c", two), ("%v", scale)], two, ["i, j", "j, 0", "i, j"], "%o = arith.mulf %a0, %a1 : f32")
    check(
        function([*kinds, ("%v", scale)], body, [("%a", two)]),
        raise_collapses,
        """
        CHECK: #[[SCALE:.*]] = affine_map<(d0, d1, d2) -> (d1, d2, 0)>
        CHECK: %[[P:.*]] = linalg.generic
        CHECK: %[[V:.*]] = tensor.expand_shape %arg2 {{\\[\\[}}0, 1], [2]] output_shape [2, 4, 1]
        CHECK: %[[A:.*]] = linalg.generic {indexing_maps = [#{{.*}}, #[[SCALE]], #{{.*}}], {{.*}}ins(%[[P]], %[[V]] : tensor<4x2x4xf32>, tensor<2x4x1xf32>)
        CHECK: tensor.collapse_shape %[[A]]
        """,
        clean=True,
    )


@pytest.mark.parametrize("case", ["other merged operand", "no product"])
def test_what_stays(case):
    if case == "no product":
        body = generic("%p", [("%z", DEEP)], DEEP) + COLLAPSE + generic("%a", [("%c", FLAT)], FLAT)
        arguments = [("%z", DEEP)]
    else:
        body = PRODUCT + COLLAPSE + generic("%a", [("%c", FLAT), ("%v", FLAT)], FLAT, body="%o = arith.addf %a0, %a1 : f32")
        arguments = [*ARGUMENTS, ("%v", FLAT)]
    check(function(arguments, body, [("%a", FLAT)]), raise_collapses, "CHECK: tensor.collapse_shape\nCHECK: linalg.generic\nCHECK-NOT: tensor.collapse", clean=True)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_transposed_convolution_with_its_activation(dtype, dynamic):
    module = nn.ConvTranspose2d(6, 21, 2, 2).eval().to(dtype)
    x, y = torch.randn(2, 6, 5, 7, dtype=dtype), torch.randn(2, 3, 10, 14, dtype=dtype)
    with torch.no_grad():
        matches(lambda x, y: torch.cat([F.silu(module(x)), y], 1), x, y, dynamic=dynamic, factor=4)


def test_a_product_that_is_broadcast():
    """Its reader has more loops than the collapse has groups."""
    x, w = torch.randn(3, 3, 3), torch.randn(6, 1, 1)
    f = lambda x, w: F.conv1d(x, w, None, groups=3).expand(2, 3, 6, 3) + 1  # noqa: E731
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(f, backend="mlirc", options={"strict": True})(x, w), f(x, w))


@pytest.mark.parametrize("other", ["argument", "product"])
def test_symbolic_sizes_that_merge_in_the_other_order(other):
    """The types of both are ?x?, but n x m is not m x n: it read, and wrote, past the end."""
    x, w, y = torch.randn(5, 8), torch.randn(7, 8), torch.randn(7, 5)

    def f(x, w, y):
        z = y if other == "argument" else w @ x.t() + y
        return torch.relu((x @ w.t()).reshape(-1) + z.reshape(-1))

    matches(f, x, w, y, dynamic=True, factor=4)


def test_a_column_that_is_read_for_several_stays_merged():
    """The product has one column, and the op behind it three: its loops are not those of the product."""
    three, two, many = "tensor<4x2x1xf32>", "tensor<8x1xf32>", "tensor<8x3xf32>"
    multiply = "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"
    kinds = [("%x", "tensor<4x16xf32>"), ("%y", "tensor<16x2x1xf32>")]
    body = generic("%p", kinds, three, ["i, l", "l, j, k", "i, j, k"], multiply, "pppr", "ijkl", "0.0", "contraction")
    body += f"%c = tensor.collapse_shape %p [[0, 1], [2]] : {three} into {two}\n"
    body += generic("%a", [("%c", two), ("%v", "tensor<3xf32>")], many, ["i, 0", "j", "i, j"], "arith.mulf")
    check(
        function([*kinds, ("%v", "tensor<3xf32>")], body, [("%a", many)]),
        raise_collapses,
        """
        CHECK: %[[C:.*]] = tensor.collapse_shape
        CHECK: linalg.generic
        CHECK-SAME: ins(%[[C]], %arg2 : tensor<8x1xf32>, tensor<3xf32>) outs(%{{.*}} : tensor<8x3xf32>)
        """,
        clean=True,
    )
