"""What depends on weights alone is kept in the order in which every call reads it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F

from mlirc.frontend.report import listening
from mlirc.passes.constants import lay_out_constants
from mlirc.tests.passes.graph_text import check, function, generic

T, S, INDEX = "tensor<4x8xf32>", "tensor<8x4xf32>", "tensor<4x8xi64>"
TABLE = "tensor<16xf32>"
GATHER = f"""%e = tensor.empty() : {T}
%g = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}}
    ins(%index : {INDEX}) outs(%e : {T}) {{
^bb0(%a: i64, %o: f32):
  %at = arith.index_cast %a : i64 to index
  %v = tensor.extract %table[%at] : {TABLE}
  linalg.yield %v : f32
}} -> {T}
"""
TRANSPOSE = f"%et = tensor.empty() : {S}\n%t = linalg.transpose ins(%g : {T}) outs(%et : {S}) permutation = [1, 0]\n"


def text(weights: str, view: bool = True) -> str:
    body = GATHER + (TRANSPOSE if view else "")
    kind, bias = (S, "%t") if view else (T, "%g")
    body += generic("%r", [("%x", kind), (bias, kind)], kind, body="arith.addf")
    out = function([("%x", kind), ("%table", TABLE), ("%index", INDEX)], body, [("%r", kind)])
    return out.replace("{", f"attributes {{mlirc.weights = array<i64{weights}>}} {{", 1)


def test_a_gather_of_weights_that_is_read_transposed():
    check(
        text(": 1, 2"),
        lay_out_constants,
        """
        CHECK: tensor.extract
        CHECK: %[[T:.*]] = linalg.transpose
        CHECK: %[[C:.*]] = linalg.generic
        CHECK-SAME: ins(%[[T]] : tensor<8x4xf32>)
        CHECK: linalg.generic
        CHECK-SAME: ins(%arg0, %[[C]] :
        CHECK: arith.addf
        """,
    )


def read_by(readers: str, results: Sequence[tuple[str, str]], gather: str = GATHER, index: str = INDEX) -> str:
    out = function([("%x", S), ("%table", TABLE), ("%index", index)], gather + readers, results)
    return out.replace("{", "attributes {mlirc.weights = array<i64: 1, 2>} {", 1)


def test_a_gather_of_weights_that_is_read_by_columns():
    """By two ops, one of which has another loop outside."""
    B = "tensor<2x8x4xf32>"
    once = generic("%r", [("%x", S), ("%g", T)], S, maps=["i, j", "j, i", "i, j"], body="arith.addf")
    again = generic("%q", [("%x", S), ("%g", T)], B, maps=["j, k", "k, j", "i, j, k"], body="arith.mulf")
    check(
        read_by(once + again, [("%r", S), ("%q", B)]),
        lay_out_constants,
        """
        CHECK: #[[PLAIN:.*]] = affine_map<(d0, d1) -> (d0, d1)>
        CHECK: tensor.extract
        CHECK: %[[C:.*]] = linalg.generic
        CHECK-SAME: outs({{.*}} : tensor<8x4xf32>)
        CHECK: linalg.generic {indexing_maps = [#[[PLAIN]], #[[PLAIN]], #[[PLAIN]]]
        CHECK-SAME: ins(%arg0, %[[C]] :
        CHECK: arith.addf
        CHECK: linalg.generic
        CHECK-SAME: ins(%arg0, %[[C]] :
        CHECK: arith.mulf
        """,
    )


def test_what_is_read_along_a_diagonal_stays():
    cube, index = "tensor<4x8x8xf32>", "tensor<4x8x8xi64>"
    gather = GATHER.replace("(i, j) -> (i, j)", "(i, j, k) -> (i, j, k)").replace(T, cube).replace(INDEX, index)
    gather = gather.replace('["parallel", "parallel"]', '["parallel", "parallel", "parallel"]')
    reader = generic("%r", [("%x", S), ("%g", cube)], S, maps=["i, j", "j, i, i", "i, j"], body="arith.addf")
    check(read_by(reader, [("%r", S)], gather, index), lay_out_constants, "CHECK-COUNT-2: linalg.generic\nCHECK-NOT: linalg.generic")


def test_what_is_written_over_stays():
    """Its map is that of the result."""
    writer = generic("%r", [("%x", S)], T, maps=["i, j", "j, i"], body="arith.negf").replace("outs(%er", "outs(%g")
    check(read_by(writer, [("%r", T)]), lay_out_constants, "CHECK-COUNT-2: linalg.generic\nCHECK-NOT: linalg.generic")


@pytest.mark.parametrize("weights, view", [(": 1", True), ("", True), (": 1, 2", False)])
def test_nothing_else_is_copied(weights, view):
    check(text(weights, view), lay_out_constants, "CHECK-COUNT-2: linalg.generic\nCHECK-NOT: linalg.generic")


def test_what_aten_is_called_for_in_every_call():
    """Calls are no constants: neither those without results nor what is made from theirs."""
    call = f"%called = func.call @op(%index) : ({INDEX}) -> {INDEX}\nfunc.call @check(%index) : ({INDEX}) -> ()\n"
    functions = f"func.func private @op({INDEX}) -> {INDEX}\nfunc.func private @check({INDEX})\n"
    program = functions + text(": 1, 2").replace("%e = ", call + "%e = ", 1).replace("ins(%index :", "ins(%called :", 1)
    check(program, lay_out_constants, "CHECK: call @check\nCHECK-COUNT-2: linalg.generic\nCHECK-NOT: linalg.generic")


def test_assertions_about_weights():
    class Chosen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(5, 3))

        def forward(self, x):
            return x * F.one_hot(self.w.argmax(0), 5)

    model, x = Chosen(), torch.randn(3, 5)
    compiled = torch.compile(model, backend="mlirc", options={"strict": True})
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))
            model.w.neg_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_position_biases(dtype):
    """As in window attention: the biases are gathered once, and again when the table has changed."""

    class Biased(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.randn(25, 3))
            self.register_buffer("index", torch.randint(0, 25, (9 * 9,)))

        def forward(self, x):
            bias = self.table[self.index].view(9, 9, -1).permute(2, 0, 1)
            return torch.softmax(x + bias[None], -1)

    model = Biased().to(dtype)
    x = torch.randn(2, 3, 9, 9, dtype=dtype)
    with torch.no_grad(), listening() as graphs:
        compiled = torch.compile(model, backend="mlirc", options={"rounding": "ops"})
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))
            model.table.mul_(2)
        (graph,) = graphs
    assert graph.calls == 1 and len(graph.kernels) == 2
