"""Transposes become indexing maps, and layouts flow through elementwise ops."""

from __future__ import annotations

from mlirc.passes.fold_transposes import fold_transposes
from mlirc.tests.passes.graph_text import check, function, generic, matmul

T = "tensor<4x8xf32>"
S = "tensor<8x4xf32>"


def transpose(name, x, source, result, order):
    return f"%e{name[1:]} = tensor.empty() : {result}\n{name} = linalg.transpose ins({x} : {source}) outs(%e{name[1:]} : {result}) permutation = {order}\n"


def test_a_reader_takes_the_source():
    body = transpose("%t", "%x", T, S, [1, 0]) + generic("%r", [("%t", S), ("%y", S)], S, body="arith.addf")
    check(
        function([("%x", T), ("%y", S)], body, [("%r", S)]),
        fold_transposes,
        """
        CHECK: #[[SWAP:.*]] = affine_map<(d0, d1) -> (d1, d0)>
        CHECK: @main(%[[X:.*]]: tensor<4x8xf32>, %[[Y:.*]]: tensor<8x4xf32>)
        CHECK-NOT: linalg.transpose
        CHECK: linalg.generic {indexing_maps = [#[[SWAP]], #
        CHECK-SAME: ins(%[[X]], %[[Y]] :
        """,
        clean=True,
    )


def test_two_transposes_are_one_or_none():
    body = transpose("%a", "%x", T, S, [1, 0]) + transpose("%b", "%a", S, T, [1, 0])
    check(function([("%x", T)], body, [("%b", T)]), fold_transposes, "CHECK-NOT: linalg.transpose\nCHECK: return %arg0", clean=True)
    three = "tensor<2x3x4xf32>"
    body = transpose("%a", "%x", three, "tensor<4x2x3xf32>", [2, 0, 1]) + transpose("%b", "%a", "tensor<4x2x3xf32>", "tensor<3x4x2xf32>", [2, 0, 1])
    check(
        function([("%x", three)], body, [("%b", "tensor<3x4x2xf32>")]),
        fold_transposes,
        "CHECK: linalg.transpose ins(%arg0 {{.*}} permutation = [1, 2, 0]\nCHECK-NOT: linalg.transpose",
        clean=True,
    )


def test_elementwise_ops_keep_the_layout_of_their_operand():
    """relu(transpose(x)) is transpose(relu(x)): a chain stays channels-last."""
    nchw, nhwc = "tensor<1x3x5x7xf32>", "tensor<1x5x7x3xf32>"
    body = transpose("%t", "%x", nhwc, nchw, [0, 3, 1, 2]) + generic("%a", [("%t", nchw)], nchw)
    body += generic("%b", [("%a", nchw), ("%a", nchw)], nchw, body="arith.mulf")
    check(
        function([("%x", nhwc)], body, [("%b", nchw)]),
        fold_transposes,
        """
        CHECK: %[[A:.*]] = linalg.generic
        CHECK-SAME: outs(%{{.*}} : tensor<1x5x7x3xf32>)
        CHECK: math.exp
        CHECK: %[[B:.*]] = linalg.generic
        CHECK-SAME: ins(%[[A]], %[[A]] : tensor<1x5x7x3xf32>, tensor<1x5x7x3xf32>)
        CHECK: %[[T:.*]] = linalg.transpose ins(%[[B]] : tensor<1x5x7x3xf32>)
        CHECK-SAME: permutation = [0, 3, 1, 2]
        CHECK: return %[[T]]
        """,
        clean=True,
    )


def test_an_op_with_one_straight_operand_stays():
    body = transpose("%t", "%x", T, S, [1, 0]) + generic("%r", [("%y", S), ("%t", S)], S, body="arith.addf")
    check(function([("%x", T), ("%y", S)], body, [("%r", S)]), fold_transposes, "CHECK: outs({{.*}} : tensor<8x4xf32>)\nCHECK-NOT: linalg.transpose\nCHECK: return", clean=True)


def test_bodies_that_see_their_place_keep_it():
    index = "%d = linalg.index 0 : index\n%c = arith.index_cast %d : index to i32\n%f = arith.sitofp %c : i32 to f32\n%o = arith.addf %f, %a0 : f32"
    body = transpose("%t", "%x", T, S, [1, 0]) + generic("%r", [("%t", S)], S, body=index)
    check(
        function([("%x", T)], body, [("%r", S)]),
        fold_transposes,
        "CHECK: linalg.generic\nCHECK-SAME: ins(%arg0 : tensor<4x8xf32>) outs({{.*}} : tensor<8x4xf32>)\nCHECK: linalg.index 0\nCHECK-NOT: linalg.transpose\nCHECK: return",
        clean=True,
    )


def test_contractions_read_transposed_weights():
    body = transpose("%t", "%w", "tensor<16x8xf32>", "tensor<8x16xf32>", [1, 0]) + matmul("%r", "%x", "%t", 4, 8, 16)
    check(
        function([("%x", T), ("%w", "tensor<16x8xf32>")], body, [("%r", "tensor<4x16xf32>")]),
        fold_transposes,
        """
        CHECK-DAG: #[[X:.*]] = affine_map<(d0, d1, d2) -> (d0, d2)>
        CHECK-DAG: #[[W:.*]] = affine_map<(d0, d1, d2) -> (d1, d2)>
        CHECK-NOT: linalg.transpose
        CHECK: linalg.generic {indexing_maps = [#[[X]], #[[W]], #
        CHECK-SAME: ins(%arg0, %arg1 :
        """,
        clean=True,
    )


def test_a_concatenation_keeps_the_layout_of_its_operands():
    nchw, nhwc, both = "tensor<1x3x5x7xf32>", "tensor<1x5x7x3xf32>", "tensor<1x6x5x7xf32>"
    body = transpose("%a", "%x", nhwc, nchw, [0, 3, 1, 2]) + transpose("%b", "%y", nhwc, nchw, [0, 3, 1, 2])
    body += f"%c = tensor.concat dim(1) %a, %b {{mlirc.sizes = [\"1\", \"6\", \"5\", \"7\"]}} : ({nchw}, {nchw}) -> {both}\n"
    check(
        function([("%x", nhwc), ("%y", nhwc)], body, [("%c", both)]),
        fold_transposes,
        """
        CHECK: %[[C:.*]] = tensor.concat dim(3) %arg0, %arg1 {mlirc.sizes = ["1", "5", "7", "6"]}
        CHECK-SAME: -> tensor<1x5x7x6xf32>
        CHECK: %[[T:.*]] = linalg.transpose ins(%[[C]] : {{.*}} permutation = [0, 3, 1, 2]
        CHECK: return %[[T]]
        """,
        clean=True,
    )


def test_a_concatenation_of_different_layouts_stays():
    nchw, nhwc, both = "tensor<1x3x5x7xf32>", "tensor<1x5x7x3xf32>", "tensor<1x6x5x7xf32>"
    body = transpose("%a", "%x", nhwc, nchw, [0, 3, 1, 2])
    body += f"%c = tensor.concat dim(1) %a, %y : ({nchw}, {nchw}) -> {both}\n"
    check(
        function([("%x", nhwc), ("%y", nchw)], body, [("%c", both)]),
        fold_transposes,
        "CHECK: %[[A:.*]] = linalg.transpose\nCHECK: tensor.concat dim(1) %[[A]], %arg1\nCHECK-NOT: linalg.transpose\nCHECK: return",
        clean=True,
    )
