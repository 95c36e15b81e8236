"""Short runs of neighbours are reduced last; what is broadcast along them is stored."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.passes.split_reductions import split_reductions
from mlirc.passes.spread_broadcasts import spread_broadcasts
from mlirc.tests.frontend.compare import compare
from mlirc.tests.passes.graph_text import check, function, generic

R = torch.randn
X, S = "tensor<2x25x3x4xf32>", "tensor<2x3xf32>"


def test_the_runs_are_reduced_in_a_second_step():
    body = generic("%s", [("%x", X)], S, ["i, j, k, l", "i, k"], "%v = math.exp %a0 : f32\n%o = arith.addf %v, %a1 : f32", "prpr", "ijkl", "1.0")
    check(
        function([("%x", X)], body, [("%s", S)]),
        split_reductions,
        """
        CHECK-DAG: #[[KEPT:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
        CHECK-DAG: #[[SUMS:.*]] = affine_map<(d0, d1, d2) -> (d0, d1)>
        CHECK: %[[P:.*]] = linalg.generic {indexing_maps = [#{{.*}}, #[[KEPT]]], iterator_types = ["parallel", "reduction", "parallel", "parallel"]} ins(%arg0
        CHECK: math.exp
        CHECK: -> tensor<2x3x4xf32>
        CHECK: linalg.generic {indexing_maps = [#{{.*}}, #[[SUMS]]], iterator_types = ["parallel", "parallel", "reduction"]} ins(%[[P]]
        CHECK-NOT: math.exp
        CHECK: arith.addf
        """,
        clean=True,
    )


@pytest.mark.parametrize("wide,maps", [("2x25x3x64", ["i, j, k, l", "i, k"]), ("2x9x3x4", ["i, j, k, l", "i, k"]), ("2x25x3x4", ["i, k, j, l", "i, k"])])
def test_long_runs_few_of_them_and_rows_are_left(wide, maps):
    x, s = f"tensor<{wide}xf32>", f"tensor<2x{25 if maps[0] == 'i, k, j, l' else 3}xf32>"
    body = generic("%s", [("%x", x)], s, maps, "arith.addf", "prpr", "ijkl", "0.0")
    check(function([("%x", x)], body, [("%s", s)]), split_reductions, "CHECK-COUNT-1: linalg.generic\nCHECK-NOT: linalg.generic", clean=True)


def test_what_is_broadcast_along_the_runs_is_stored():
    """And fused with nothing that reads it."""
    body = generic("%y", [("%x", X), ("%m", S)], X, ["i, j, k, l", "i, k", "i, j, k, l"], "arith.subf", "pppp", "ijkl")
    check(
        function([("%x", X), ("%m", S)], body, [("%y", X)]),
        spread_broadcasts,
        """
        CHECK: #[[WIDE:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
        CHECK: #[[SPREAD:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
        CHECK: %[[C:.*]] = linalg.generic {{.*}} ins(%arg1 : tensor<2x3xf32>) outs(%{{.*}} : tensor<2x3x4xf32>) attrs = {mlirc.stored = "stored for each element of a run"}
        CHECK: linalg.generic {indexing_maps = [#[[WIDE]], #[[SPREAD]], #[[WIDE]]], {{.*}} ins(%arg0, %[[C]] :
        """,
        clean=True,
    )


@pytest.mark.parametrize("dtype,dynamic", [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False), (torch.int32, False)])
def test_reductions_of_short_rows(dtype, dynamic):
    f = lambda x: (x.sum((0, 2)), x.amax((0, 2)), (x > 9).any(2).any(0), x.float().mean((0, 2)), x.float().logsumexp((0, 2)))  # noqa: E731
    for shape in ((19, 6, 5), (40, 3, 32), (17, 1, 7), (33, 5, 33)):
        compare(f, (R(shape) * 5).to(dtype), dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
def test_norms_of_short_rows(dynamic):
    compare(lambda x: F.batch_norm(x, None, None, training=True), R(19, 6, 5), dynamic=dynamic)
    x = R(2, 24, 5, 7).to(memory_format=torch.channels_last)
    compare(lambda x: (F.group_norm(x, 3), F.silu(F.group_norm(x, 6)).half()), x, dynamic=dynamic)
    compare(lambda x, s: (x.unflatten(1, (3, -1)) * s[:, :, None]).flatten(1), R(64, 24), R(64, 3), dynamic=dynamic)
