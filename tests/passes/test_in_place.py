"""Which memory scatters write into."""

from __future__ import annotations

import pytest

from mlirc.dialects import own
from mlirc.dialects.mlir import ir
from mlirc.driver import find_main
from mlirc.passes.materialize import materialize
from mlirc.tests.lowering.test_to_llvm import filecheck

T = "tensor<8x4xf32>"
ADD = (
    f'{{combine = "arith.addf", index_map = affine_map<(d0, d1) -> (d0)>, target = array<i64: -1, 1>, '
    f"operandSegmentSizes = array<i32: 1, 1, 1>}} : ({T}, tensor<2x4xf32>, tensor<2xi64>) -> {T}"
)


def materialized(body: str, results: str, writes: list[int]) -> str:
    """`body` with %x, %u and %i, after the pass."""
    kinds = ", ".join([T] * (results.count(",") + 1))
    text = f"func.func @main(%x: {T}, %u: tensor<2x4xf32>, %i: tensor<2xi64>) -> ({kinds}) {{\n{body}\nreturn {results} : {kinds}\n}}"
    with ir.Context(), ir.Location.unknown():
        own.load_for(text)
        module = ir.Module.parse(text)
        materialize(find_main(module), writes)
        module.operation.verify()
        return str(module)


def double(name: str, x: str) -> str:
    return (
        f"%e{name[1:]} = tensor.empty() : {T}\n"
        f"{name} = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], "
        f'iterator_types = ["parallel", "parallel"]}} ins({x} : {T}) outs(%e{name[1:]} : {T}) {{\n^bb0(%a: f32, %b: f32):\n'
        f"  %s{name[1:]} = arith.addf %a, %a : f32\n  linalg.yield %s{name[1:]} : f32\n}} -> {T}\n"
    )


COPIED = "CHECK: %[[C:.*]] = linalg.generic {{.*}} ins(%{{.*}} :\nCHECK: linalg.yield %in\nCHECK: \"mlirc.scatter\"(%[[C]],"
CASES = {
    "an argument is copied": (f'%r = "mlirc.scatter"(%x, %u, %i) {ADD}', "%r", [], COPIED),
    "what is computed for it alone is not": (
        double("%c", "%x") + f'%r = "mlirc.scatter"(%c, %u, %i) {ADD}', "%r", [],
        "CHECK: %[[C:.*]] = linalg.generic\nCHECK: arith.addf\nCHECK-NOT: linalg.generic\nCHECK: \"mlirc.scatter\"(%[[C]],\n"
        "CHECK-NOT: linalg.generic",
    ),
    "what others read is": (double("%c", "%x") + f'%r = "mlirc.scatter"(%c, %u, %i) {ADD}', "%r, %c", [], "CHECK: arith.addf\n" + COPIED),
    "an argument that is overwritten is not": (
        f'%r = "mlirc.scatter"(%x, %u, %i) {ADD}', "%r", [0],
        "CHECK-NOT: linalg.generic\nCHECK: \"mlirc.scatter\"(%arg0,\nCHECK-NOT: linalg.generic\nCHECK: return",
    ),
    "nor by two scatters": (
        f'%q = "mlirc.scatter"(%x, %u, %i) {ADD}\n%r = "mlirc.scatter"(%q, %u, %i) {ADD}', "%r", [0],
        "CHECK-NOT: linalg.generic\nCHECK: %[[Q:.*]] = \"mlirc.scatter\"(%arg0,\nCHECK: \"mlirc.scatter\"(%[[Q]],\n"
        "CHECK-NOT: linalg.generic\nCHECK: return",
    ),
    "it is where its old value is read": (
        double("%c", "%x") + f'%r = "mlirc.scatter"(%x, %u, %i) {ADD}', "%c, %r", [0], "CHECK: arith.addf\n" + COPIED + "\nCHECK: mlirc.write = 0",
    ),
    "and where another one is overwritten": (
        f'%r = "mlirc.scatter"(%x, %u, %i) {ADD}\n' + double("%c", "%r"), "%c", [0], COPIED + "\nCHECK: mlirc.write = 0",
    ),
    "an output has memory of its own": (
        f'%r = "mlirc.scatter"(%x, %u, %i) {ADD}', "%r, %r", [0],
        "CHECK: %[[R:.*]] = \"mlirc.scatter\"(%arg0,\nCHECK: %[[C:.*]] = linalg.generic {{.*}} ins(%[[R]]\nCHECK: return %[[C]], %[[R]]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_copies(case):
    body, results, writes, checks = CASES[case]
    filecheck(materialized(body, results, writes), checks)
