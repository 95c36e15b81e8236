"""Copies where a tensor has to lie in a certain place."""

from __future__ import annotations

from mlirc.passes.materialize import materialize
from mlirc.tests.passes.graph_text import check, function, generic

T, S = "tensor<4x8xf32>", "tensor<8x4xf32>"
TRANSPOSE = f"%et = tensor.empty() : {S}\n%t = linalg.transpose ins(%x : {T}) outs(%et : {S}) permutation = [1, 0]\n"
DOUBLE = generic("%d", [("%x", T)], T)


def run(*writes):
    return lambda main: materialize(main, list(writes))


def test_dims_that_do_not_merge():
    body = TRANSPOSE + f"%r = tensor.collapse_shape %t [[0, 1]] : {S} into tensor<32xf32>\n" + generic("%a", [("%r", "tensor<32xf32>")], "tensor<32xf32>")
    check(
        function([("%x", T)], body, [("%a", "tensor<32xf32>")]),
        run(),
        """
        CHECK: %[[T:.*]] = linalg.transpose
        CHECK: %[[C:.*]] = linalg.generic
        CHECK-SAME: ins(%[[T]] : tensor<8x4xf32>)
        CHECK: tensor.collapse_shape %[[C]]
        """,
    )


def test_results_that_are_nobodys_own_memory():
    """An argument, a view of one, and the same value twice."""
    check(function([("%x", T)], "", [("%x", T)]), run(), "CHECK: %[[C:.*]] = linalg.generic\nCHECK: return %[[C]]")
    check(function([("%x", T)], TRANSPOSE, [("%t", S)]), run(), "CHECK: linalg.transpose\nCHECK: %[[C:.*]] = linalg.generic\nCHECK: return %[[C]]")
    check(
        function([("%x", T)], DOUBLE, [("%d", T), ("%d", T)]),
        run(),
        "CHECK: %[[D:.*]] = linalg.generic\nCHECK: math.exp\nCHECK: %[[C:.*]] = linalg.generic\nCHECK-SAME: ins(%[[D]]\nCHECK: return %[[D]], %[[C]]",
    )


def test_parts_of_a_value():
    body = DOUBLE + f"%s = tensor.extract_slice %d[0, 0] [2, 8] [1, 1] : {T} to tensor<2x8xf32>\n"
    check(function([("%x", T)], body, [("%s", "tensor<2x8xf32>")]), run(), "CHECK: math.exp\nCHECK: %[[S:.*]] = tensor.extract_slice\nCHECK: linalg.generic\nCHECK-SAME: ins(%[[S]]")


def test_reshaped_results_are_fine():
    body = DOUBLE + f"%r = tensor.collapse_shape %d [[0, 1]] : {T} into tensor<32xf32>\n"
    check(function([("%x", T)], body, [("%r", "tensor<32xf32>")]), run(), "CHECK: math.exp\nCHECK-NOT: linalg.generic\nCHECK: return")


SPLIT = generic("%d", [("%x", "tensor<18x8xf32>")], "tensor<18x8xf32>") + "%s = tensor.expand_shape %d [[0, 1], [2]] output_shape [6, 3, 8] : tensor<18x8xf32> into tensor<6x3x8xf32>\n"


def test_a_split_result_in_another_order_is_copied_whole():
    """So that the copy has the dims of what makes it."""
    whole = SPLIT + "%e = tensor.empty() : tensor<8x6x3xf32>\n%t = linalg.transpose ins(%s : tensor<6x3x8xf32>) outs(%e : tensor<8x6x3xf32>) permutation = [2, 0, 1]\n"
    check(function([("%x", "tensor<18x8xf32>")], whole, [("%t", "tensor<8x6x3xf32>")]), run(), """
        CHECK: %[[D:.*]] = linalg.generic
        CHECK-NOT: expand_shape
        CHECK: %[[T:.*]] = linalg.transpose ins(%[[D]] : {{.*}} permutation = [1, 0]
        CHECK: %[[C:.*]] = linalg.generic {{.*}}ins(%[[T]] : tensor<8x18xf32>)
        CHECK: %[[R:.*]] = tensor.expand_shape %[[C]] {{\\[\\[}}0], [1, 2]]
        CHECK: return %[[R]]
    """)  # fmt: skip
    apart = SPLIT + "%e = tensor.empty() : tensor<3x6x8xf32>\n%t = linalg.transpose ins(%s : tensor<6x3x8xf32>) outs(%e : tensor<3x6x8xf32>) permutation = [1, 0, 2]\n"
    check(function([("%x", "tensor<18x8xf32>")], apart, [("%t", "tensor<3x6x8xf32>")]), run(), "CHECK: expand_shape\nCHECK: permutation = [1, 0, 2]\nCHECK: linalg.generic")


def loose(text: str) -> str:
    """With a first result that may lie as it is made."""
    return text.replace(" {\n", " attributes {mlirc.loose = array<i64: 0>} {\n", 1)


def test_results_that_may_lie_as_they_are_made():
    """In another order, if they are all of what is made, and of nobody else's memory."""
    body = DOUBLE + TRANSPOSE.replace("ins(%x", "ins(%d")
    text = loose(function([("%x", T)], body, [("%t", S)]))
    check(text, run(), "CHECK: -> tensor<4x8xf32> attributes {mlirc.loose = array<i64: 0>, mlirc.lying = {\"0\" = array<i64: 1, 8>}}\nCHECK: %[[D:.*]] = linalg.generic\nCHECK-NOT: transpose\nCHECK: return %[[D]]")
    twice = loose(function([("%x", T)], body, [("%t", S), ("%d", T)]))
    check(twice, run(), "CHECK: %[[D:.*]] = linalg.generic\nCHECK: %[[C:.*]] = linalg.generic\nCHECK-SAME: ins(%[[D]]\nCHECK: return %[[D]], %[[C]]")
    argument = loose(function([("%x", T)], TRANSPOSE, [("%t", S)]))
    check(argument, run(), "CHECK: linalg.transpose\nCHECK: %[[C:.*]] = linalg.generic\nCHECK: return %[[C]] : tensor<8x4xf32>")
    part = loose(function([("%x", T)], DOUBLE + f"%s = tensor.extract_slice %d[0, 0] [2, 8] [1, 1] : {T} to tensor<2x8xf32>\n", [("%s", "tensor<2x8xf32>")]))
    check(part, run(), "CHECK: tensor.extract_slice\nCHECK: %[[C:.*]] = linalg.generic\nCHECK: return %[[C]]")


def test_results_of_calls_are_copied():
    text = f"func.func private @aten_0({T}) -> {T}\n" + function([("%x", T)], f"%c = func.call @aten_0(%x) : ({T}) -> {T}\n", [("%c", T)])
    check(text, run(), "CHECK: %[[C:.*]] = call @aten_0\nCHECK: %[[D:.*]] = linalg.generic\nCHECK-SAME: ins(%[[C]]\nCHECK: return %[[D]]")


def test_writes_to_arguments():
    check(
        function([("%x", T)], DOUBLE, [("%d", T)]),
        run(0),
        "CHECK: %[[D:.*]] = linalg.generic\nCHECK: math.exp\nCHECK: linalg.generic\nCHECK-SAME: ins(%[[D]] :\nCHECK-SAME: mlirc.write = 0",
    )


def test_swapped_arguments_go_through_copies():
    """Each write reads memory that no other write touches."""
    check(
        function([("%x", T), ("%y", T)], "", [("%y", T), ("%x", T)]),
        run(0, 1),
        """
        CHECK: %[[A:.*]] = linalg.generic
        CHECK-SAME: ins(%arg1 :
        CHECK: linalg.generic
        CHECK-SAME: ins(%[[A]] :
        CHECK-SAME: mlirc.write = 0
        CHECK: %[[B:.*]] = linalg.generic
        CHECK-SAME: ins(%arg0 :
        CHECK: linalg.generic
        CHECK-SAME: ins(%[[B]] :
        CHECK-SAME: mlirc.write = 1
        """,
    )
