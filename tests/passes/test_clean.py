"""What the graph passes leave behind is dropped: ops of the dialect that nobody reads, or that are there twice."""

from __future__ import annotations

import torch

from mlirc.dialects import own
from mlirc.dialects.mlir import ir
from mlirc.driver import find_main
from mlirc.lowering.target import Target
from mlirc.passes.pipeline import Graph

X, U, PLACES = "tensor<9xf32>", "tensor<7xf32>", "tensor<7xi64>"


def scatter(result: str, index: str = "%i", combine: str = "arith.addf", init: str = "%x") -> str:
    fields = f'{{combine = "{combine}", index_map = affine_map<(d0) -> (d0)>, target = array<i64: -1>, operandSegmentSizes = array<i32: 1, 1, 1>}}'
    return f'{result} = "mlirc.scatter"({init}, %u, {index}) {fields} : ({X}, {U}, {PLACES}) -> {X}\n'


def cleaned(body: str, results: str) -> str:
    kinds = ", ".join([X] * (results.count(",") + 1))
    with ir.Context(), ir.Location.unknown():
        own.load()
        module = ir.Module.parse(f"func.func @main(%x: {X}, %y: {X}, %u: {U}, %i: {PLACES}, %j: {PLACES}) -> ({kinds}) {{\n{body}return {results} : {kinds}\n}}")
        Graph(module, find_main(module), [], Target.parse("x86-64-v4")).clean()
        module.operation.verify()
        return str(module)


def test_the_same_scatter_is_made_once():
    """Also what is made of it: sums by one index, twice."""
    text = cleaned(scatter("%a") + scatter("%b") + scatter("%c", "%j", init="%a") + scatter("%d", "%j", init="%b"), "%a, %b, %c, %d")
    assert text.count("mlirc.scatter") == 2
    result = text[text.index("return") :].split(":")[0].replace(",", "").split()[1:]
    assert result[0] == result[1] != result[2] == result[3]


def test_others_are_not_the_same():
    body = scatter("%a") + scatter("%b", "%j") + scatter("%c", combine="arith.mulf") + scatter("%d", init="%y")
    assert cleaned(body, "%a, %b, %c, %d").count("mlirc.scatter") == 4


def test_what_nobody_reads_is_gone():
    assert "mlirc.scatter" not in cleaned(scatter("%a") + scatter("%b", init="%a"), "%x")


def test_the_same_totals_of_two_types_are_two():
    def f(x):
        return x.cumsum(0), x.cumsum(0, dtype=torch.bfloat16), x.cumsum(0)

    x = torch.rand(33, 17)
    wide, narrow, again = torch.compile(f, backend="mlirc", options={"strict": True})(x)
    torch.testing.assert_close(wide, x.cumsum(0))
    torch.testing.assert_close(narrow, x.cumsum(0).bfloat16())
    assert torch.equal(again, wide)
