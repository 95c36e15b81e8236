"""Where only a bf16 remains of an f32, fewer instructions make it; tests/numerics measures what comes out."""

from __future__ import annotations

import pytest

from mlirc.dialects import own
from mlirc.dialects.mlir import PassManager, ir
from mlirc.passes.expand_math import COARSE, expand_math

END = {
    "rounded": "%t = arith.truncf %y : vector<16xf32> to vector<16xbf16>\n return %t : vector<16xbf16>",
    "times another, rounded": """%p = arith.mulf %y, %x : vector<16xf32>
        %t = arith.truncf %p : vector<16xf32> to vector<16xbf16>\n return %t : vector<16xbf16>""",
    "whole": "return %y : vector<16xf32>",
    "rounded to f16": "%t = arith.truncf %y : vector<16xf32> to vector<16xf16>\n return %t : vector<16xf16>",
    "less another, rounded": """%p = arith.subf %y, %x : vector<16xf32>
        %t = arith.truncf %p : vector<16xf32> to vector<16xbf16>\n return %t : vector<16xbf16>""",
    "rounded, and whole as well": """%t = arith.truncf %y : vector<16xf32> to vector<16xbf16>
        %w = arith.extf %t : vector<16xbf16> to vector<16xf32>\n %p = arith.addf %w, %y : vector<16xf32>
        return %p : vector<16xf32>""",
}


def operations(function: str, end: str) -> int:
    """How many there are after expansion."""
    kind = END[end].rsplit(" : ", 1)[1]
    with ir.Context():
        own.load()
        module = ir.Module.parse(f"""
          func.func @k(%x: vector<16xf32>) -> {kind} {{
            %y = "{function}"(%x) : (vector<16xf32>) -> vector<16xf32>
            {END[end]}
          }}""")
        expand_math(module)
        PassManager.parse("builtin.module(canonicalize,cse)").run(module.operation)
        return sum(op.operation.name != "arith.constant" for op in module.body.operations[0].regions[0].blocks[0].operations)


@pytest.mark.parametrize("function", COARSE)
def test_where_it_is_coarse(function: str) -> None:
    for end in ("rounded", "times another, rounded"):
        assert operations(function, end) < 0.75 * operations(function, "whole")


@pytest.mark.parametrize("function", COARSE)
@pytest.mark.parametrize("end", ["rounded to f16", "less another, rounded", "rounded, and whole as well"])
def test_where_it_is_not(function: str, end: str) -> None:
    assert operations(function, end) >= operations(function, "whole")
