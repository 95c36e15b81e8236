"""What is broadcast is read, and computed with, where it is small."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from mlirc.passes.fold_broadcasts import fold_broadcasts
from mlirc.tests.frontend.compare import compare
from mlirc.tests.passes.graph_text import check, function, generic, matmul

WIDE, ROW = "tensor<4x8xf32>", "tensor<4x1xf32>"
EXPAND = generic("%e", [("%x", ROW)], WIDE, ["i, 0", "i, j"], "%o = arith.bitcast %a0 : f32 to f32").replace(
    "%o = arith.bitcast %a0 : f32 to f32\nlinalg.yield %o", "linalg.yield %a0"
)
DIVIDE = "%c = arith.constant 8.0 : f32\n%o = arith.divf %a0, %c : f32"


def test_the_gradient_of_a_mean():
    """Divided once a row; the product reads a number for each row."""
    body = EXPAND + generic("%d", [("%e", WIDE)], WIDE, body=DIVIDE) + generic("%r", [("%d", WIDE), ("%y", WIDE)], WIDE, body="arith.mulf")
    check(
        function([("%x", ROW), ("%y", WIDE)], body, [("%r", WIDE)]),
        fold_broadcasts,
        """
        CHECK-DAG: #[[OF_ROW:.*]] = affine_map<(d0) -> (d0, 0)>
        CHECK-DAG: #[[OF_BOTH:.*]] = affine_map<(d0, d1) -> (d0)>
        CHECK: %[[SMALL:.*]] = linalg.generic {indexing_maps = [#[[OF_ROW]], #{{.*}}], iterator_types = ["parallel"]} ins(%arg0 : tensor<4x1xf32>) outs(%{{.*}} : tensor<4xf32>)
        CHECK: arith.divf
        CHECK: linalg.generic {indexing_maps = [#[[OF_BOTH]], {{.*}} ins(%[[SMALL]], %arg1 :
        CHECK: arith.mulf
        CHECK-NOT: linalg.generic
        """,
        clean=True,
    )


def test_of_one_number():
    scalar = "tensor<f32>"
    body = EXPAND.replace(ROW, scalar).replace("(i, 0)", "()") + generic("%d", [("%e", WIDE)], WIDE, body=DIVIDE)
    check(
        function([("%x", scalar)], body, [("%d", WIDE)]),
        fold_broadcasts,
        """
        CHECK: %[[SMALL:.*]] = linalg.generic {{.*}} iterator_types = []} ins(%arg0 : tensor<f32>) outs(%{{.*}} : tensor<f32>)
        CHECK: arith.divf
        CHECK: linalg.generic {{.*}} ins(%[[SMALL]] : tensor<f32>) outs(%{{.*}} : tensor<4x8xf32>)
        """,
        clean=True,
    )


def test_sums_over_what_is_broadcast_stay():
    """Nobody else says how long the loop is; and a product wants its operand in memory."""
    body = EXPAND + generic("%s", [("%e", WIDE)], "tensor<4xf32>", ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
    body += matmul("%p", "%e", "%w", 4, 8, 3)
    check(
        function([("%x", ROW), ("%w", "tensor<8x3xf32>")], body, [("%s", "tensor<4xf32>"), ("%p", "tensor<4x3xf32>")]),
        fold_broadcasts,
        """
        CHECK: %[[WIDE:.*]] = linalg.generic {{.*}} ins(%arg0 : tensor<4x1xf32>) outs(%{{.*}} : tensor<4x8xf32>)
        CHECK: linalg.generic {{.*}} "reduction"]} ins(%[[WIDE]] :
        CHECK: linalg.generic {{.*}} ins(%[[WIDE]], %arg1 :
        """,
        clean=True,
    )


def test_an_op_with_a_full_operand_is_as_it_was():
    body = generic("%r", [("%x", ROW), ("%y", WIDE)], WIDE, ["i, 0", "i, j", "i, j"], "arith.mulf")
    check(function([("%x", ROW), ("%y", WIDE)], body, [("%r", WIDE)]), fold_broadcasts, "CHECK-COUNT-1: linalg.generic\nCHECK-NOT: linalg.generic", clean=True)


class Rms(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(n) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rows,n", [(5, 48), (1, 33), (3, 1)])
def test_gradients(rows, n, dtype, dynamic):
    """Of norms and means, of rows and of all, and values that are nothing but broadcast."""
    norm = Rms(n).to(dtype)

    def f(x, b):
        norms = [norm(x), F.normalize(x, dim=1)]
        y = [x - x.mean(), x.mean(0).expand(2, -1), (b * 2).expand(3, n).exp(), (b.exp() + 1).expand(rows, n) * x]
        # The norm of one number is its sign: in bf16 the gradient is what its own roundings leave of zero.
        flat = n == 1 and dtype == torch.bfloat16
        gradients = torch.autograd.grad([(t.float() ** 2).sum() for t in (y if flat else norms + y)], [x, b])
        return *norms, *y, *gradients

    compare(f, torch.randn(rows, n).to(dtype).requires_grad_(), torch.randn(1, 1).to(dtype).requires_grad_(), dynamic=dynamic)


def test_a_norm_and_its_gradient_are_a_kernel_each():
    import mlirc

    report = mlirc.explain(lambda x: F.rms_norm(x, (48,)), torch.randn(64, 48, requires_grad=True))
    assert [len(g.kernels) for g in report.graphs] == [1, 1]


def bmm(maps, iterators="pppr"):
    """%p[i, j, l] += %x[i, j, k] * %e[i, k, l], with %e broadcast from %w."""
    body = "%product = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %product : f32"
    kinds = "tensor<2x4x8xf32>", "tensor<2x8x3xf32>", "tensor<2x4x3xf32>"
    wide = generic("%e", [("%w", maps[0])], kinds[1], [maps[1], "i, j, k"], "math.exp").replace("%o = math.exp %a0 : f32\nlinalg.yield %o", "linalg.yield %a0")
    product = generic("%p", [("%x", kinds[0]), ("%e", kinds[1])], kinds[2], ["i, j, l", "i, l, k", "i, j, k"], body, iterators, "ijkl", "0.0", "contraction")
    return function([("%x", kinds[0]), ("%w", maps[0])], wide + product, [("%p", kinds[2])])


def test_one_matrix_for_all_batches():
    check(
        bmm(("tensor<8x3xf32>", "j, k")),
        fold_broadcasts,
        """
        CHECK: #[[OF_ALL:.*]] = affine_map<(d0, d1, d2, d3) -> (d3, d2)>
        CHECK-NOT: outs(%{{.*}} : tensor<2x8x3xf32>)
        CHECK: linalg.generic {indexing_maps = [#{{.*}}, #[[OF_ALL]], #{{.*}}], {{.*}} ins(%arg0, %arg1 : tensor<2x4x8xf32>, tensor<8x3xf32>)
        """,
        clean=True,
    )


@pytest.mark.parametrize("source", [("tensor<2x3xf32>", "i, k"), ("tensor<1x8x3xf32>", "0, j, k"), ("tensor<3xf32>", "k")])
def test_other_operands_of_products_stay(source):
    """Without a loop that is summed over, or read at a fixed place."""
    check(bmm(source), fold_broadcasts, "CHECK: outs(%{{.*}} : tensor<2x8x3xf32>)\nCHECK: ins(%arg0, %{{.*}} : tensor<2x4x8xf32>, tensor<2x8x3xf32>)", clean=True)


@pytest.mark.parametrize(
    ("size", "dtype", "dynamic"),
    [
        ((3, 5, 33, 17), torch.float32, True),
        ((4, 1, 16, 32), torch.bfloat16, False),
        ((1, 17, 3, 1), torch.float32, False),
        ((5, 64, 64, 64), torch.bfloat16, True),
    ],
)
def test_products_with_one_matrix(size, dtype, dynamic):
    """Weights that need no gradient, whichever operand they are, in memory as they are or turned."""
    b, m, k, n = size

    def f(x, w, y, bias):
        products = [F.linear(x, y, bias), F.relu(F.linear(x, y) + 1).sum(1), torch.bmm(x, w.expand(m, k, n)), torch.bmm(x, y.t().expand(m, k, n))]
        return *products, torch.bmm(y.expand(m, n, k), x.mT), torch.baddbmm(bias, x, w[None].expand(m, k, n)), torch.matmul(x[:, None], w[None])

    x = torch.randn(b, m, k).to(dtype).transpose(0, 1)
    compare(f, x, torch.randn(k, n).to(dtype), torch.randn(n, k).to(dtype), torch.randn(n).to(dtype), dynamic=dynamic)


def test_weights_of_all_batches_are_packed_once():
    import mlirc

    linear = nn.Linear(128, 256).requires_grad_(False)
    with torch.no_grad():
        (graph,) = mlirc.explain(lambda x: linear(x.transpose(0, 1)), torch.randn(8, 64, 128)).graphs
    assert graph.packed_bytes == linear.weight.nbytes
