"""Sums over rows that compute anew what is summed up over columns as well: the gradients of a norm are two passes."""

from __future__ import annotations

import pytest
import torch

from mlirc.frontend.dump import Selection, capture_graphs, dump_graph
from mlirc.frontend.user_model import UserModel
from mlirc.options import Options
from mlirc.passes.recompute import recompute
from mlirc.passes.registry import NOTHING
from mlirc.tests.frontend.compare import compare
from mlirc.tests.lowering.test_to_llvm import filecheck
from mlirc.tests.passes.graph_text import function, generic, transformed, with_weights

X, W, ROWS, COLUMNS = "tensor<256x96xf32>", "tensor<96xf32>", "tensor<256xf32>", "tensor<96xf32>"


def gradients(product="%o = arith.mulf %a0, %a1 : f32", columns="i", rows=256, weights=()) -> str:
    """%g = dy * w; sums of %g * x over rows, and over columns; %g is returned."""
    x = X.replace("256", str(rows))
    body = generic("%g", [("%dy", x), ("%w", W)], x, ["i, j", "j", "i, j"], product)
    body += generic("%a", [("%g", x), ("%x", x)], x, body="%o = arith.mulf %a0, %a1 : f32")
    body += generic("%s", [("%a", x)], COLUMNS, ["i, j", "j"], "%o = arith.addf %a0, %a1 : f32", "rp", "ij", "0.0")
    other = ROWS.replace("256", str(rows)) if columns == "i" else COLUMNS
    body += generic("%t", [("%a", x)], other, ["i, j", columns], "%o = arith.addf %a0, %a1 : f32", "pr" if columns == "i" else "rp", "ij", "0.0")
    return with_weights(function([("%dy", x), ("%x", x), ("%w", W)], body, [("%g", x), ("%s", COLUMNS), ("%t", other)]), *weights)


def test_a_sum_over_rows_has_ops_of_its_own():
    filecheck(transformed(gradients(), recompute), """
        CHECK: %[[G:.*]] = linalg.generic {{.*}} ins(%arg0, %arg2 :
        CHECK: %[[A:.*]] = linalg.generic {{.*}} ins(%[[G]], %arg1 :
        CHECK: %[[H:.*]] = linalg.generic {{.*}} ins(%arg0, %arg2 :
        CHECK: %[[B:.*]] = linalg.generic {{.*}} ins(%[[H]], %arg1 :
        CHECK: %[[S:.*]] = linalg.generic {{.*}} ins(%[[B]] :
        CHECK: %[[T:.*]] = linalg.generic {{.*}} ins(%[[A]] :
        CHECK: return %[[G]], %[[S]], %[[T]]
    """)  # fmt: skip


FUNCTION = "%e = math.exp %a0 : f32\n%o = arith.mulf %e, %a1 : f32"
LONG = "\n".join(["%o0 = arith.mulf %a0, %a1 : f32", *(f"%o{n + 1} = arith.mulf %o{n}, %o{n} : f32" for n in range(13)), "%o = arith.addf %o13, %o13 : f32"])


@pytest.mark.parametrize("text, ops", [
    (gradients(columns="j"), 4), (gradients(rows=100), 4), (gradients(weights=(0, 1, 2)), 4), (gradients(LONG), 4), (gradients(FUNCTION), 5),
], ids=["no other sum", "little", "of weights alone", "many ops", "but the function"])  # fmt: skip
def test_others_share_theirs(text, ops):
    assert transformed(text, recompute).count("linalg.generic") == ops


def kernels(model, *args) -> list[str]:
    torch._dynamo.reset()
    options = Options.make(None, None)
    graphs = capture_graphs(UserModel(model, args, {}), options, train=True)
    return [k.name for k, _ in dump_graph(graphs[1], options, NOTHING, Selection(frozenset()), lambda _: None).kernels]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_a_norm_are_two_kernels(dtype):
    norm = torch.nn.RMSNorm(512, dtype=dtype)
    assert len(kernels(norm, torch.randn(128, 512, dtype=dtype).requires_grad_())) == 2


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("rows, columns", [(128, 256), (97, 333), (3, 33), (1, 4099), (0, 64)])
def test_gradients_of_norms(rows, columns, dtype):
    torch.manual_seed(0)

    def f(x, w, dy):
        h = x.float() if x.dtype == torch.bfloat16 else x
        y = w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
        z = torch.nn.functional.rms_norm(x, (columns,), w, 1e-5)
        return y, torch.autograd.grad((y * dy).sum() + (z * dy).sum(), [x, w])

    x, w, dy = (torch.randn(shape, dtype=dtype) for shape in ((rows, columns), columns, (rows, columns)))
    compare(f, x.requires_grad_(), w.requires_grad_(), dy)
