"""Products of bytes: operands of the signs, or the width, that the CPU multiplies."""

from __future__ import annotations

import pytest

from mlirc.passes.fit_integers import fit_integers
from mlirc.passes.pack import PackShape
from mlirc.tests.passes.graph_text import check, function, generic

VNNI, PLAIN = PackShape(32, frozenset({"i16", "i8"})), PackShape(32, frozenset({"i16"}))
MAPS = ["i, k", "j, k", "i, j"]


def product(first: str, second: str, maps: list[str] = MAPS, x: str = "7x20", w: str = "70x20", y: str = "7x70") -> str:
    """A contraction of bytes that are widened by these ops."""
    body = f"%u = arith.{first} %a0 : i8 to i32\n%v = arith.{second} %a1 : i8 to i32\n%m = arith.muli %u, %v : i32\n%o = arith.addi %a2, %m : i32"
    kinds = [f"tensor<{x}xi8>", f"tensor<{w}xi8>", f"tensor<{y}xi32>"]
    op = generic("%y", [("%x", kinds[0]), ("%w", kinds[1])], kinds[2], maps, body, "ppr", "ijk", "0", "contraction")
    text = function([("%x", kinds[0]), ("%w", kinds[1])], op, [("%y", kinds[2])])
    return text.replace(f"-> ({kinds[2]}) {{", f"-> ({kinds[2]}) attributes {{mlirc.weights = array<i64: 1>}} {{", 1)


def test_signed_rows_become_unsigned():
    check(product("extsi", "extsi"), lambda f: fit_integers(f, VNNI), """
        CHECK: %[[U:.*]] = linalg.generic {{.*}}ins(%arg0 : tensor<7x20xi8>)
        CHECK: arith.xori %{{.*}}, %c-128_i8
        CHECK: %[[SUMS:.*]] = linalg.generic {{.*}}["parallel", "reduction"]{{.*}}ins(%arg1 : tensor<70x20xi8>)
        CHECK: %[[Y:.*]] = linalg.generic {{.*}}ins(%[[U]], %arg1 {{.*}}mlirc.kind = "contraction"
        CHECK: arith.extui
        CHECK: arith.extsi
        CHECK: %[[R:.*]] = linalg.generic {{.*}}ins(%[[Y]], %[[SUMS]] :
        CHECK: arith.subi
        CHECK: return %[[R]]
    """)  # fmt: skip


def test_unsigned_rows_become_signed():
    check(product("extui", "extui"), lambda f: fit_integers(f, VNNI), """
        CHECK: arith.xori
        CHECK: mlirc.kind = "contraction"
        CHECK: arith.extsi
        CHECK: arith.extui
        CHECK: arith.addi
        CHECK: linalg.generic
        CHECK: arith.addi
    """)  # fmt: skip


@pytest.mark.parametrize("first, second", [("extui", "extsi"), ("extsi", "extui")])
def test_one_of_each_stays_as_it_is(first: str, second: str):
    check(product(first, second), lambda f: fit_integers(f, VNNI), "CHECK-NOT: arith.xori")


def test_the_operand_that_is_no_weight_is_changed_and_the_weight_summed():
    text = product("extsi", "extsi", ["j, k", "i, k", "j, i"], "70x20", "7x20", "70x7").replace("array<i64: 1>", "array<i64: 0>")
    check(text, lambda f: fit_integers(f, VNNI), """
        CHECK: linalg.generic {{.*}}ins(%arg1 : tensor<7x20xi8>)
        CHECK: arith.xori
        CHECK: linalg.generic {{.*}}["parallel", "reduction"]{{.*}}ins(%arg0 : tensor<70x20xi8>)
    """)  # fmt: skip


def test_without_an_instruction_for_bytes_they_become_words_of_two():
    check(product("extui", "extsi"), lambda f: fit_integers(f, PLAIN), """
        CHECK: linalg.generic {{.*}}ins(%arg0 : tensor<7x20xi8>) outs(%{{.*}} : tensor<7x20xi16>)
        CHECK: arith.extui %{{.*}} : i8 to i16
        CHECK: linalg.generic {{.*}}ins(%arg1 : tensor<70x20xi8>) outs(%{{.*}} : tensor<70x20xi16>)
        CHECK: arith.extsi %{{.*}} : i8 to i16
        CHECK: mlirc.kind = "contraction"
        CHECK-COUNT-2: arith.extsi %{{.*}} : i16 to i32
    """)  # fmt: skip
