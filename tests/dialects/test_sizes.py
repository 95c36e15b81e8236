"""Sizes: what MLIR computes with `index` values, read as an expression, has the same value; and built again, too."""

import math

import pytest
import sympy

from mlirc.dialects.context import kernel_context
from mlirc.dialects.mlir import ir
from mlirc.dialects.sizes import Sizes, parse
from mlirc.errors import CompileError

S, T = parse("s0"), parse("s1")
VALUES = [(1, 1), (2, 3), (7, 5), (17, 4), (33, 16)]

FUNCTION = """
func.func @f(%a: index {{mlirc.symbol = "s0"}}, %b: index {{mlirc.symbol = "s1"}}) -> index {{
  {}
  return %r : index
}}
"""


def _read(body: str):
    """The expression of `%r`, and the one of what is built from it."""
    with kernel_context(), ir.Location.unknown():
        module = ir.Module.parse(FUNCTION.format(body))
        function = module.body.operations[0].operation
        *_, end = function.regions[0].blocks[0].operations
        sizes = Sizes(function)
        read = sizes.expr(end.operands[0])
        with ir.InsertionPoint(end):
            sizes.forget()
            built = sizes.value(read)
        assert module.operation.verify()
        return read, Sizes(function).expr(built)


def _value(expr, a: int, b: int) -> int:
    return int(sympy.sympify(expr).subs({S: a, T: b}))


@pytest.mark.parametrize(
    ("map", "expected"),
    [
        ("d0 + s0 * 3 - 2", lambda a, b: a + 3 * b - 2),
        ("d0 mod 4", lambda a, b: a % 4),
        ("(d0 - s0) mod 4", lambda a, b: (a - b) % 4),
        ("d0 floordiv 3", lambda a, b: a // 3),
        ("(d0 - s0 * 2) floordiv 3", lambda a, b: (a - 2 * b) // 3),
        ("d0 ceildiv 3", lambda a, b: -(-a // 3)),
        ("(s0 - d0) ceildiv 4", lambda a, b: -((a - b) // 4)),
        ("(d0 mod 8) floordiv 3 + 5", lambda a, b: a % 8 // 3 + 5),
    ],
)
def test_affine_apply(map, expected):
    for expr in _read(f"%r = affine.apply affine_map<(d0)[s0] -> ({map})>(%a)[%b]"):
        for a, b in VALUES:
            assert _value(expr, a, b) == expected(a, b), (expr, a, b)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("addi", lambda a, b: a + b),
        ("subi", lambda a, b: a - b),
        ("muli", lambda a, b: a * b),
        ("floordivsi", lambda a, b: a // b),
        ("ceildivsi", lambda a, b: math.ceil(a / b)),
        ("maxsi", max),
        ("minsi", min),
    ],
)
def test_arithmetic(op, expected):
    for expr in _read(f"%r = arith.{op} %a, %b : index"):
        for a, b in VALUES:
            assert _value(expr, a, b) == expected(a, b), (expr, a, b)


def test_an_unknown_op_is_named():
    with pytest.raises(CompileError, match="arith.xori"):
        _read("%r = arith.xori %a, %b : index")
