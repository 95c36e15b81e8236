"""The number of updates of a row is read off its bucket."""

from __future__ import annotations

import pytest
import torch

from mlirc.dialects import own
from mlirc.dialects.mlir import ir
from mlirc.driver import find_main
from mlirc.passes.count_updates import count_updates
from mlirc.tests.frontend.compare import compare, kernels
from mlirc.tests.lowering.test_to_llvm import filecheck

ROWS, EDGES = 300, 900


@pytest.fixture(autouse=True)
def anywhere(bucket_above):
    bucket_above(0)


def edges() -> torch.Tensor:
    e = torch.randint(0, ROWS, (2, EDGES))
    e[1, : EDGES // 2] = 7  # more than 16-bit floats count to, one by one
    return e


def sums(x, e, count):
    return torch.zeros_like(x).index_add(0, e[1], x[e[0]]) / count.clamp(min=1)[:, None]


def ones(e, dtype, value=1):
    return torch.full((EDGES,), value, dtype=dtype)


SCATTER = """
    %c = "mlirc.scatter"(%zeros, %ones, %i) {combine = "arith.addf", index_map = affine_map<(d0) -> (d0)>, target = array<i64: -1>,
        operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<300xf32>, tensor<900xf32>, tensor<900xi64>) -> tensor<300xf32>
"""
BUCKET = """
    %s = tensor.empty() : tensor<300xi64>
    %o, %e = "mlirc.bucket"(%i, %s) : (tensor<900xi64>, tensor<300xi64>) -> (tensor<900xi32>, tensor<300xi32>)
"""
CONSTANTS = """
    %zero = arith.constant 0.0 : f32
    %m = tensor.empty() : tensor<300xf32>
    %zeros = linalg.fill ins(%zero : f32) outs(%m : tensor<300xf32>) -> tensor<300xf32>
    %ones = arith.constant dense<1.0> : tensor<900xf32>
"""


@pytest.mark.parametrize("body", [CONSTANTS + BUCKET + SCATTER, CONSTANTS + SCATTER + BUCKET], ids=["after", "before"])
def test_a_count_is_the_difference_of_two_ends(body):
    with ir.Context(), ir.Location.unknown():
        own.load()
        module = ir.Module.parse(
            f"func.func @main(%i: tensor<900xi64>) -> (tensor<300xf32>, tensor<900xi32>, tensor<300xi32>) {{{body}\n"
            "return %c, %o, %e : tensor<300xf32>, tensor<900xi32>, tensor<300xi32> }"
        )
        assert count_updates(find_main(module))
        module.operation.verify()
        filecheck(str(module), """
            CHECK: %[[B:.*]]:2 = "mlirc.bucket"
            CHECK: linalg.generic {{.*}} ins(%[[B]]#1 : tensor<300xi32>)
            CHECK: tensor.extract %[[B]]#1[
            CHECK: arith.subi
            CHECK: arith.sitofp
            CHECK-NOT: mlirc.scatter
        """)
        assert not count_updates(find_main(module))


def test_what_others_read_stays_before_them():
    """Two buckets of as many rows may share what says so."""
    first = BUCKET.replace("%o, %e", "%p, %f").replace("(%i,", "(%j,")
    second = BUCKET.replace("%s = tensor.empty() : tensor<300xi64>", "")
    with ir.Context(), ir.Location.unknown():
        own.load()
        module = ir.Module.parse(
            f"func.func @main(%i: tensor<900xi64>, %j: tensor<900xi64>) -> (tensor<300xf32>, tensor<900xi32>, tensor<900xi32>) "
            f"{{{CONSTANTS}{first}{SCATTER}{second}\nreturn %c, %o, %p : tensor<300xf32>, tensor<900xi32>, tensor<900xi32> }}"
        )
        assert count_updates(find_main(module))
        module.operation.verify()
        assert str(module).count("mlirc.bucket") == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("before", [False, True], ids=["after the sums", "before"])
def test_means(dtype, before):
    """With the count in any type, wherever in the program it is."""

    def f(x, e):
        sort = None if before else sums(x, e, torch.ones(ROWS))
        count = torch.zeros(ROWS, dtype=dtype).index_add(0, e[1], ones(e, dtype))
        return sums(x, e, count.to(x.dtype)), count if dtype != torch.bfloat16 else (count > 200), sort

    e = edges()
    got = torch.compile(f, backend="mlirc", options={"strict": True})(x := torch.randn(ROWS, 64), e)
    number = torch.bincount(e[1], minlength=ROWS)
    assert torch.equal(got[1], number.to(dtype) if dtype != torch.bfloat16 else number.bfloat16() > 200)
    rounded = number.to(dtype).to(x.dtype)
    torch.testing.assert_close(got[0], sums(x, e, rounded))
    assert len(kernels()) <= 6


@pytest.mark.parametrize(
    "count",
    [
        lambda e: torch.zeros(ROWS).index_add(0, e[1], ones(e, torch.float32, 0.1)),
        lambda e: torch.ones(ROWS).index_add(0, e[1], ones(e, torch.float32)),
        lambda e: torch.zeros(ROWS).index_add(0, e[0], ones(e, torch.float32)),
        lambda e: torch.zeros(ROWS + 1).index_add(0, e[1], ones(e, torch.float32)),
        lambda e: torch.zeros(ROWS).index_add(0, e[1], e[0].float()),
        lambda e: torch.ones(ROWS).index_reduce(0, e[1], ones(e, torch.float32), "prod"),
    ],
    ids=["not ones", "not from zero", "another index", "other rows", "numbers", "products"],
)
def test_others_are_added_up(count):
    compare(lambda x, e: (sums(x, e, torch.ones(ROWS)), count(e)), torch.randn(ROWS, 64), edges())


def test_what_is_out_of_range_is_an_error():
    f = torch.compile(lambda x, e: sums(x, e, torch.zeros(ROWS).index_add(0, e[1], ones(e, torch.float32))), backend="mlirc", options={"strict": True})
    e = edges()
    f(torch.randn(ROWS, 64), e)
    e[1, 5] = ROWS
    with pytest.raises(IndexError):
        f(torch.randn(ROWS, 64), e)
