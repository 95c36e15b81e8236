"""A stored index is checked once, where it is stored."""

from __future__ import annotations

import re

import pytest
import torch

from mlirc.passes.check_indices import check_indices
from mlirc.tests.frontend.compare import compare
from mlirc.tests.passes.graph_text import check, function, generic
from mlirc.tests.test_own_pass import dump

INDEX, TABLE, OTHER, WIDE = "tensor<9xi64>", "tensor<30x8xf32>", "tensor<20x8xf32>", "tensor<9x8xf32>"
ARGUMENTS = [("%i", INDEX), ("%order", "tensor<9xi32>"), ("%x", TABLE), ("%y", OTHER)]
SIZES = "%zero = arith.constant 0 : index\n%n = arith.constant 30 : index\n%m = arith.constant 20 : index\n"
STORED = generic(
    "%s", [("%order", "tensor<9xi32>")], INDEX, body=f"%k = arith.index_cast %a0 : i32 to index\n%o = tensor.extract %i[%k] : {INDEX}", attributes="mlirc.sorted"
)


def gather(name: str, table: str = "%x", kind: str = TABLE, size: str = "%n", use: str = "") -> str:
    body = f"""%k = arith.index_cast %a0 : i64 to index
        %negative = arith.cmpi slt, %k, %zero : index
        %end = arith.addi %k, {size} : index
        %w = arith.select %negative, %end, %k : index
        %ok = arith.cmpi ult, %w, {size} : index
        cf.assert %ok, "IndexError: index out of range in self"
        %p = arith.select %ok, %w, %zero : index
        %c = linalg.index 1 : index
        %e = tensor.extract {table}[%p, %c] : {kind}
        """
    return generic(name, [("%s", INDEX)], WIDE, ["i", "i, j"], body + (use or "%o = arith.addf %e, %e : f32"))


def rewritten(body: str, results: str, expected: str) -> None:
    check(function(ARGUMENTS, SIZES + STORED + body, [(r, WIDE) for r in results.split()]), check_indices, expected, clean=True)


def test_once_for_all_readers():
    """Below 2^31 four bytes are enough for a place."""
    rewritten(
        gather("%g") + gather("%h"),
        "%g %h",
        """
        CHECK: %[[PLACES:.*]] = linalg.generic {{.*}} outs(%{{.*}} : tensor<9xi32>) attrs = {mlirc.sorted}
        CHECK: tensor.extract %arg0
        CHECK: arith.cmpi slt
        CHECK: arith.cmpi ult
        CHECK: cf.assert
        CHECK: %[[PLACE:.*]] = arith.select
        CHECK: %[[NARROW:.*]] = arith.index_cast %[[PLACE]] : index to i32
        CHECK: linalg.yield %[[NARROW]] : i32
        CHECK: linalg.generic {{.*}} ins(%[[PLACES]] : tensor<9xi32>)
        CHECK-NEXT: ^bb0(%[[IN:.*]]: i32,
        CHECK-NEXT: %[[AT:.*]] = arith.index_cast %[[IN]] : i32 to index
        CHECK-NOT: cf.assert
        CHECK: tensor.extract %arg2[%[[AT]],
        CHECK-NOT: cf.assert
        """,
    )


def test_through_reshapes():
    """Which show places, too."""
    column = "tensor<9x1xi64>"
    views = f"%v = tensor.expand_shape %s [[0, 1]] output_shape [9, 1] : {INDEX} into {column}\n"
    of_column = gather("%g").replace(f"ins(%s : {INDEX})", f"ins(%v : {column})").replace("affine_map<(i, j) -> (i)>", "affine_map<(i, j) -> (i, 0)>")
    rewritten(
        views + of_column + gather("%h"),
        "%g %h",
        """
        CHECK: %[[PLACES:.*]] = linalg.generic {{.*}} outs(%{{.*}} : tensor<9xi32>) attrs = {mlirc.sorted}
        CHECK: cf.assert
        CHECK: %[[COLUMN:.*]] = tensor.expand_shape %[[PLACES]] {{.*}} : tensor<9xi32> into tensor<9x1xi32>
        CHECK-NOT: cf.assert
        CHECK: ins(%[[COLUMN]] : tensor<9x1xi32>)
        CHECK-NOT: cf.assert
        """,
    )


@pytest.mark.parametrize(
    "body",
    [
        gather("%g") + gather("%h", "%y", OTHER, "%m"),
        gather("%g") + gather("%h", use="%q = arith.sitofp %a0 : i64 to f32\n%o = arith.addf %e, %q : f32"),
        gather("%g") + gather("%h", use="%q = arith.index_cast %w : index to i64\n%f = arith.sitofp %q : i64 to f32\n%o = arith.addf %e, %f : f32"),
        "%big = arith.constant 30 : index\n".join(["", gather("%g", size="%big")]) + gather("%h", size="%zero"),
    ],
    ids=["tables of different lengths", "the index is read as a number", "a place that is not checked", "of length zero"],
)
def test_indices_that_are_checked_by_their_readers(body):
    rewritten(body, "%g %h", "CHECK: %[[SORTED:.*]] = linalg.generic {{.*}} outs(%{{.*}} : tensor<9xi64>) attrs = {mlirc.sorted}\nCHECK-NOT: cf.assert\nCHECK: linalg.yield\nCHECK: cf.assert\nCHECK: cf.assert")


def test_an_index_that_is_not_stored_in_order():
    """It may be read by few of those who could."""
    rewritten(gather("%g").replace("%s", "%i"), "%g", "CHECK: linalg.generic {{.*}} ins(%arg0 : tensor<9xi64>)\nCHECK: cf.assert")


@pytest.fixture
def buckets(bucket_above):
    bucket_above(0)


@pytest.mark.usefixtures("buckets")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("index", [torch.int64, torch.int32, torch.uint8])
def test_two_layers_of_a_graph_network(index, dynamic):
    def f(x, e, w):
        i = e[0].to(index).int()  # bytes themselves would be a mask
        h = torch.relu(x.index_add(0, e[1], x[i]) @ w)
        return h.index_add(0, e[1], h[i])

    e = torch.randint(0, 200, (2, 900))
    if index != torch.uint8:
        e[0] -= 200 * (torch.rand(900) < 0.5)
    compare(f, torch.randn(200, 128), e, torch.randn(128, 128) / 8, dynamic=dynamic)


@pytest.mark.usefixtures("buckets")
@pytest.mark.parametrize("bad", [200, -201, 1 << 32, (1 << 32) + 7, -(1 << 62)])
def test_errors_are_those_of_eager(bad):
    f = torch.compile(lambda x, e: x.index_add(0, e[1], x[e[0]]), backend="mlirc", options={"strict": True, "guard_pages": "both"})
    x, e = torch.randn(200, 128), torch.randint(0, 200, (2, 900))
    torch.testing.assert_close(f(x, e), x.index_add(0, e[1], x[e[0]]))
    e[0, 500] = bad
    with pytest.raises(IndexError):
        f(x, e)


@pytest.mark.parametrize("layers", [1, 2])
def test_the_sums_of_a_layer_do_not_check(layers, tmp_path):
    """Neither of one, nor of two, which are the same kernel."""
    path = tmp_path / "net.py"
    path.write_text(
        f"""import torch
def f(x, e):
    for _ in range({layers}):
        x = torch.relu(torch.zeros_like(x).index_add(0, e[1], x[e[0]]))
    return x
example_inputs = torch.randn(20000, 256), torch.randint(0, 20000, (2, 80000))
"""
    )
    titles = re.split("(?m)^// ---- ", dump(f"{path}:f", "--stage", "kernel"))[1:]
    (sums,) = [t for t in titles if "mlirc.segments" in t]
    assert "cf.assert" not in sums and sum("cf.assert" in t for t in titles) == 1
