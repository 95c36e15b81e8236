"""An expanded index of a scatter is read as it was before."""

from __future__ import annotations

import pytest
import torch

from mlirc.dialects import own
from mlirc.dialects.mlir import ir
from mlirc.driver import find_main
from mlirc.passes.narrow_indices import narrow_indices
from mlirc.tests.frontend.compare import compare, kernels, left_to_aten
from mlirc.tests.lowering.test_to_llvm import filecheck


def narrowed(source: str, read: str, body: str = "linalg.yield %a : i64") -> str:
    """A scatter by an index of 6x8 made of `source`, after the pass."""
    text = f"""
      func.func @main(%x: tensor<9x8xf32>, %u: tensor<6x8xf32>, %i: {source}) -> tensor<9x8xf32> {{
        %e = tensor.empty() : tensor<6x8xi64>
        %j = linalg.generic {{indexing_maps = [{read}, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}}
            ins(%i : {source}) outs(%e : tensor<6x8xi64>) {{
        ^bb0(%a: i64, %b: i64):
          {body}
        }} -> tensor<6x8xi64>
        %r = "mlirc.scatter"(%x, %u, %j) {{combine = "arith.addf", index_map = affine_map<(d0, d1) -> (d0, d1)>,
            operandSegmentSizes = array<i32: 1, 1, 1>, target = array<i64: -1, 1>}}
            : (tensor<9x8xf32>, tensor<6x8xf32>, tensor<6x8xi64>) -> tensor<9x8xf32>
        return %r : tensor<9x8xf32>
      }}"""
    with ir.Context(), ir.Location.unknown():
        own.load_for(text)
        module = ir.Module.parse(text)
        narrow_indices(find_main(module))
        module.operation.verify()
        return str(module)


def test_a_column():
    filecheck(narrowed("tensor<6x1xi64>", "affine_map<(d0, d1) -> (d0, 0)>"), """
        CHECK: #[[ROWS:.*]] = affine_map<(d0, d1) -> (d0)>
        CHECK: %[[I:.*]] = tensor.collapse_shape %arg2 {{\\[\\[}}0, 1{{\\]\\]}} : tensor<6x1xi64> into tensor<6xi64>
        CHECK: "mlirc.scatter"(%arg0, %arg1, %[[I]]) {{.*}}index_map = #[[ROWS]]
    """)


def test_a_vector():
    filecheck(narrowed("tensor<6xi64>", "affine_map<(d0, d1) -> (d0)>"), 'CHECK: "mlirc.scatter"(%arg0, %arg1, %arg2)')


@pytest.mark.parametrize(
    "source,read,body",
    [
        ("tensor<6x8xi64>", "affine_map<(d0, d1) -> (d0, d1)>", "linalg.yield %a : i64"),
        ("tensor<1x1xi64>", "affine_map<(d0, d1) -> (0, 0)>", "linalg.yield %a : i64"),
        ("tensor<6x1xi64>", "affine_map<(d0, d1) -> (d0, 0)>", "%c = arith.addi %a, %a : i64\nlinalg.yield %c : i64"),
    ],
)
def test_what_stays(source, read, body):
    """What repeats nothing, one number for all, what is computed."""
    filecheck(narrowed(source, read, body), """
        CHECK: %[[J:.*]] = linalg.generic
        CHECK: "mlirc.scatter"(%arg0, %arg1, %[[J]])
    """)


# Whole graphs


def over_edges(x, i, u):
    index = i[:, None].expand(-1, u.shape[1])
    return [x.scatter_add(0, index, u), x.scatter_reduce(0, index, u, "amax"), x.scatter_reduce(0, index, u, "mean", include_self=False), x.scatter(0, index, 2.0)]


@pytest.mark.parametrize("large", [4, 0], ids=["in order", "buckets"])
def test_rows(large, bucket_above):
    bucket_above(large)
    args = torch.randn(50, 130), torch.randint(0, 50, (70,)), torch.randn(70, 130)
    compare(over_edges, *args)
    assert not left_to_aten()
    compare(lambda x, i, u: x.scatter_add(0, i[:, None].expand(-1, 130), u), *args)
    assert len(kernels()) == 2


@pytest.mark.parametrize("large", [4, 0], ids=["in order", "buckets"])
def test_updates_narrower_than_the_rows(large, bucket_above):
    """Eager mode adds them to wrong rows if the index is expanded, and is right if it is not."""
    bucket_above(large)
    x, i, u = torch.randn(50, 130), torch.randint(0, 50, (70,)), torch.randn(70, 97)
    index = i[:, None].expand(-1, 97)
    f = torch.compile(lambda x, i, u: x.scatter_add(0, i[:, None].expand(-1, 97), u), backend="mlirc", options={"strict": True})
    torch.testing.assert_close(f(x, i, u), x.scatter_add(0, index.clone(memory_format=torch.contiguous_format), u))


def test_columns_and_batches():
    u = torch.randn(3, 5, 7)
    compare(lambda x, i, u: x.scatter_add(1, i[None, :, None].expand(3, -1, 7), u), torch.randn(3, 4, 7), torch.tensor([0, 3, 3, 1, 0]), u)
    compare(lambda x, i, u: x.scatter_add(2, i[:, None].expand(3, 5, 7), u), torch.randn(3, 5, 9), torch.randint(0, 9, (5,)).clone(), u)
    compare(lambda x, i, u: x.scatter_add(0, i.expand(3, 5, 7), u), torch.randn(3, 5, 7), torch.tensor(2), u)
    assert not left_to_aten()


def test_symbolic_sizes_and_gradients():
    f = torch.compile(over_edges, backend="mlirc", dynamic=True, options={"strict": True})
    for rows, edges, width in ((5, 9, 40), (8, 3, 33), (2, 60, 50)):
        args = torch.randn(rows, width, requires_grad=True), torch.randint(0, rows, (edges,)), torch.randn(edges, width, requires_grad=True)
        ours, eager = f(*args), over_edges(*args)
        torch.testing.assert_close(ours, eager)
        leaves = args[0], args[2]
        weights = [torch.randn_like(y) for y in eager]
        torch.testing.assert_close(torch.autograd.grad(ours, leaves, weights), torch.autograd.grad(eager, leaves, weights))
