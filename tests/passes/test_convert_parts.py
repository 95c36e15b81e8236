"""A concatenation that is only converted is one of converted parts."""

from __future__ import annotations

import pytest
import torch

from mlirc.passes.convert_parts import convert_parts
from mlirc.tests.frontend.compare import compare, kernels
from mlirc.tests.passes.graph_text import check, function, generic

PART, WHOLE, FLAT = "tensor<4x8x1xf32>", "tensor<4x8x2xf32>", "tensor<4x16xf32>"
CONCAT = f"%c = tensor.concat dim(2) %x, %y : ({PART}, {PART}) -> {WHOLE}\n"
FLATTEN = f"%v = tensor.collapse_shape %c [[0], [1, 2]] : {WHOLE} into {FLAT}\n"
NARROW = generic("%n", [("%v", FLAT)], "tensor<4x16xbf16>", body="%o = arith.truncf %a0 : f32 to bf16")
ARGUMENTS = [("%x", PART), ("%y", PART)]


def test_through_a_reshape() -> None:
    check(
        function(ARGUMENTS, CONCAT + FLATTEN + NARROW, [("%n", "tensor<4x16xbf16>")]),
        convert_parts,
        """
        CHECK: %[[A:.*]] = linalg.generic {{.*}} ins(%arg0 : tensor<4x8x1xf32>) outs(%{{.*}} : tensor<4x8x1xbf16>)
        CHECK: arith.truncf
        CHECK: %[[B:.*]] = linalg.generic {{.*}} ins(%arg1 : tensor<4x8x1xf32>) outs(%{{.*}} : tensor<4x8x1xbf16>)
        CHECK: %[[C:.*]] = tensor.concat dim(2) %[[A]], %[[B]] {{.*}} -> tensor<4x8x2xbf16>
        CHECK: %[[V:.*]] = tensor.collapse_shape %[[C]] {{.*}} into tensor<4x16xbf16>
        CHECK: return %[[V]]
        """,
        clean=True,
    )


@pytest.mark.parametrize(
    ("behind", "results"),
    [
        (NARROW, [("%n", "tensor<4x16xbf16>"), ("%v", FLAT)]),  # somebody else reads it
        (generic("%n", [("%v", FLAT), ("%v", FLAT)], FLAT, body="arith.mulf"), [("%n", FLAT)]),  # twice
        (generic("%n", [("%v", FLAT)], "tensor<16x4xf32>", ["j, i", "i, j"]), [("%n", "tensor<16x4xf32>")]),  # in another order
    ],
)
def test_others_stay(behind: str, results: list[tuple[str, str]]) -> None:
    check(
        function(ARGUMENTS, CONCAT + FLATTEN + behind, results),
        convert_parts,
        f"""
        CHECK: tensor.concat dim(2) %arg0, %arg1 {{{{.*}}}} -> {WHOLE}
        CHECK: linalg.generic
        CHECK-NOT: linalg.generic
        """,
        clean=True,
    )


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_rotated_pairs_are_one_kernel(dynamic: bool) -> None:
    def rotate(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        a, b = x.float()[..., ::2], x.float()[..., 1::2]
        return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2).to(x.dtype)

    compare(rotate, torch.randn(3, 33, 16).bfloat16(), torch.randn(33, 8), torch.randn(33, 8), dynamic=dynamic)
    assert "to_copy" in kernels()[-1] and "mul" in kernels()[-1]


def test_many_parts_stay() -> None:
    compare(lambda x: torch.cat([x + i for i in range(5)]).exp(), torch.randn(3, 5))
    assert len(kernels()) == 2


def test_no_parts_and_parts_of_nothing() -> None:
    compare(lambda x, y: torch.cat([x, y], 1).relu(), torch.randn(3, 0), torch.randn(3, 5))
    compare(lambda x: torch.cat([x], 1).exp(), torch.randn(3, 5))
