"""Expansions move below the ops that use them."""

from __future__ import annotations

from mlirc.passes.sink_reshapes import sink_reshapes
from mlirc.tests.passes.graph_text import check, function, generic

FLAT, DEEP = "tensor<12x8xf32>", "tensor<3x4x8xf32>"
EXPAND = f"%e = tensor.expand_shape %x [[0, 1], [2]] output_shape [3, 4, 8] : {FLAT} into {DEEP}\n"


def collapse(name, x):
    return f"{name} = tensor.collapse_shape {x} [[0, 1], [2]] : {DEEP} into {FLAT}\n"


def test_a_chain_is_computed_flat():
    body = EXPAND + generic("%a", [("%e", DEEP)], DEEP) + generic("%b", [("%a", DEEP)], DEEP, body="math.sin") + collapse("%r", "%b")
    check(
        function([("%x", FLAT)], body, [("%r", FLAT)]),
        sink_reshapes,
        """
        CHECK-NOT: tensor<3x4x8xf32>
        CHECK: ins(%arg0 : tensor<12x8xf32>)
        CHECK: math.exp
        CHECK: math.sin
        CHECK-NOT: tensor.expand_shape
        CHECK: return
        """,
        clean=True,
    )


def test_other_operands_are_collapsed_and_broadcasts_kept():
    body = EXPAND + generic("%a", [("%e", DEEP), ("%y", DEEP), ("%v", "tensor<8xf32>")], DEEP, ["i, j, k", "i, j, k", "k", "i, j, k"], "%s = arith.addf %a0, %a1 : f32\n%o = arith.mulf %s, %a2 : f32")
    check(
        function([("%x", FLAT), ("%y", DEEP), ("%v", "tensor<8xf32>")], body, [("%a", DEEP)]),
        sink_reshapes,
        """
        CHECK: %[[Y:.*]] = tensor.collapse_shape %arg1
        CHECK: %[[A:.*]] = linalg.generic
        CHECK-SAME: ins(%arg0, %[[Y]], %arg2 : tensor<12x8xf32>, tensor<12x8xf32>, tensor<8xf32>)
        CHECK: %[[R:.*]] = tensor.expand_shape %[[A]]
        CHECK: return %[[R]]
        """,
        clean=True,
    )


def test_a_reduction_over_the_inner_dim():
    body = EXPAND + generic("%a", [("%e", DEEP)], "tensor<3x4xf32>", ["i, j, k", "i, j"], "arith.addf", "ppr", "ijk", "0.0")
    check(
        function([("%x", FLAT)], body, [("%a", "tensor<3x4xf32>")]),
        sink_reshapes,
        """
        CHECK: linalg.generic
        CHECK-SAME: iterator_types = ["parallel", "reduction"]} ins(%arg0 : tensor<12x8xf32>) outs(%{{.*}} : tensor<12xf32>)
        CHECK: tensor.expand_shape {{.*}} : tensor<12xf32> into tensor<3x4xf32>
        """,
        clean=True,
    )


def test_what_tells_the_merged_dims_apart_stays():
    """An operand that walks over one of the merged dims only, and a reduction over one of them."""
    body = EXPAND + generic("%a", [("%e", DEEP), ("%v", "tensor<4xf32>")], DEEP, ["i, j, k", "j", "i, j, k"], "arith.addf")
    check(function([("%x", FLAT), ("%v", "tensor<4xf32>")], body, [("%a", DEEP)]), sink_reshapes, "CHECK: tensor.expand_shape\nCHECK: linalg.generic", clean=True)
    body = EXPAND + generic("%a", [("%e", DEEP)], "tensor<3x8xf32>", ["i, j, k", "i, k"], "arith.addf", "prp", "ijk", "0.0")
    check(function([("%x", FLAT)], body, [("%a", "tensor<3x8xf32>")]), sink_reshapes, "CHECK: tensor.expand_shape\nCHECK: linalg.generic", clean=True)
    index = "%d = linalg.index 1 : index\n%c = arith.index_cast %d : index to i32\n%f = arith.sitofp %c : i32 to f32\n%o = arith.addf %f, %a0 : f32"
    body = EXPAND + generic("%a", [("%e", DEEP)], DEEP, body=index)
    check(function([("%x", FLAT)], body, [("%a", DEEP)]), sink_reshapes, "CHECK: tensor.expand_shape\nCHECK: linalg.generic", clean=True)


def test_dynamic_sizes():
    flat, deep = "tensor<?x8xf32>", "tensor<?x4x8xf32>"
    body = f"%c4 = arith.constant 4 : index\n%n = arith.floordivsi %s, %c4 : index\n%e = tensor.expand_shape %x [[0, 1], [2]] output_shape [%n, 4, 8] : {flat} into {deep}\n"
    body += generic("%a", [("%e", deep)], deep).replace("tensor.empty()", "tensor.empty(%n)")
    body += f"%r = tensor.collapse_shape %a [[0, 1], [2]] : {deep} into {flat}\n"
    check(
        function([("%s", "index"), ("%x", flat)], body, [("%r", flat)], {"%s": 'mlirc.symbol = "s0"', "%x": 'mlirc.sizes = ["s0", "8"]'}),
        sink_reshapes,
        "CHECK: linalg.generic\nCHECK-SAME: ins(%arg1 : tensor<?x8xf32>) outs({{.*}} : tensor<?x8xf32>)\nCHECK-NOT: tensor.expand_shape\nCHECK: return",
        clean=True,
    )


def test_loops_that_are_added_up_are_not_merged():
    """The second operand is read at (2 i, k): its first dim is no dim of the merged loops."""
    body = EXPAND + generic("%a", [("%e", DEEP), ("%y", "tensor<5x8xf32>")], DEEP, ["i, j, k", "i * 2, k", "i, j, k"], "arith.addf")
    check(
        function([("%x", FLAT), ("%y", "tensor<5x8xf32>")], body, [("%a", DEEP)]),
        sink_reshapes,
        """
        CHECK: affine_map<(d0, d1, d2) -> (d0 * 2, d2)>
        CHECK: %[[E:.*]] = tensor.expand_shape
        CHECK: ins(%[[E]], %arg1 : tensor<3x4x8xf32>, tensor<5x8xf32>)
        """,
    )


def test_what_is_read_merged_is_computed_merged():
    """A product of two arguments, that a sum reads as lines: an index that is split in a kernel is a gather."""
    product = generic("%a", [("%x", DEEP), ("%y", DEEP)], DEEP, body="arith.mulf") + collapse("%c", "%a")
    body = product + generic("%s", [("%c", FLAT)], "tensor<8xf32>", ["i, j", "j"], "arith.addf", "rp", "ij", "0.0")
    check(
        function([("%x", DEEP), ("%y", DEEP)], body, [("%s", "tensor<8xf32>")]),
        sink_reshapes,
        """
        CHECK-DAG: %[[X:.*]] = tensor.collapse_shape %arg0
        CHECK-DAG: %[[Y:.*]] = tensor.collapse_shape %arg1
        CHECK: linalg.generic {{.*}} ins(%[[X]], %[[Y]] : tensor<12x8xf32>, tensor<12x8xf32>) outs(%{{.*}} : tensor<12x8xf32>)
        CHECK-NOT: tensor.expand_shape
        """,
        clean=True,
    )


def test_chains_that_are_read_merged():
    """From the last op to the first, which two of them read."""
    body = generic("%a", [("%x", DEEP)], DEEP) + generic("%b", [("%a", DEEP), ("%y", DEEP)], DEEP, body="arith.mulf") + collapse("%c", "%b") + collapse("%d", "%a")
    for n, v in enumerate("cd"):
        body += generic(f"%s{n}", [(f"%{v}", FLAT)], "tensor<8xf32>", ["i, j", "j"], "arith.addf", "rp", "ij", "0.0")
    check(
        function([("%x", DEEP), ("%y", DEEP)], body, [("%s0", "tensor<8xf32>"), ("%s1", "tensor<8xf32>")]),
        sink_reshapes,
        """
        CHECK-NOT: outs(%{{.*}} : tensor<3x4x8xf32>)
        CHECK: math.exp
        CHECK-NOT: tensor.expand_shape
        """,
        clean=True,
    )


def test_what_does_not_lie_merged_stays():
    product = generic("%a", [("%x", DEEP)], DEEP) + collapse("%c", "%a")
    body = product + generic("%s", [("%c", FLAT)], "tensor<8xf32>", ["i, j", "j"], "arith.addf", "rp", "ij", "0.0")
    check(
        function([("%x", DEEP)], body, [("%s", "tensor<8xf32>")], {"%x": 'mlirc.strides = ["8", "24", "1"]'}),
        sink_reshapes,
        "CHECK: linalg.generic {{.*}} ins(%arg0 : tensor<3x4x8xf32>)",
        clean=True,
    )


def test_long_chains_whose_values_are_read_twice():
    """Each value is looked at once: by paths, there would be 3^40 of them."""
    body = ""
    for n in range(40):
        body += generic(f"%v{n}", [(f"%v{n - 1}" if n else "%x", DEEP)] * 2, DEEP, body="arith.mulf")
    body += collapse("%c", "%v39") + generic("%s", [("%c", FLAT)], "tensor<8xf32>", ["i, j", "j"], "arith.addf", "rp", "ij", "0.0")
    check(function([("%x", DEEP)], body, [("%s", "tensor<8xf32>")]), sink_reshapes, "CHECK-NOT: outs(%{{.*}} : tensor<3x4x8xf32>)", clean=True)
