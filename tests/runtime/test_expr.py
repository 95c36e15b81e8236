"""Sizes computed natively agree with Python's integers."""

import ctypes

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy import functions as torch_sympy

from mlirc.errors import CompileError
from mlirc.runtime.expr import IRArithmetic, Lowering, evaluate
from mlirc.runtime.loader import Library, assemble
from mlirc.runtime.memory import RoundUp

A, B = sympy.symbols("a b", integer=True)

# (expression, the same in Python); b is never 0.
CASES = [
    (A + 3 * B - 7, lambda a, b: a + 3 * b - 7),
    (A * B**3, lambda a, b: a * b**3),
    (A - 2 * (B - A), lambda a, b: a - 2 * (b - a)),
    (torch_sympy.FloorDiv(A, B), lambda a, b: a // b),
    (torch_sympy.FloorDiv(A, 4), lambda a, b: a // 4),
    (torch_sympy.FloorDiv(A, -4), lambda a, b: a // -4),
    (torch_sympy.FloorDiv(A + B, 3) * 5, lambda a, b: (a + b) // 3 * 5),
    (sympy.floor(A / 3), lambda a, b: a // 3),
    (sympy.floor(A / B), lambda a, b: a // b),
    (sympy.ceiling(A / 3 + sympy.Rational(1, 2)), lambda a, b: -((2 * a + 3) // -6)),
    (torch_sympy.CeilDiv(A, B), lambda a, b: (a + b - 1) // b),  # torch's own definition
    (sympy.ceiling(A / B), lambda a, b: -(-a // b)),
    (torch_sympy.FloorToInt(torch_sympy.IntTrueDiv(A, B)), lambda a, b: a // b),
    (torch_sympy.PythonMod(A, B), lambda a, b: a % b),
    (torch_sympy.PythonMod(A, 7), lambda a, b: a % 7),
    (sympy.Mod(A, 5), lambda a, b: a % 5),
    (torch_sympy.ModularIndexing(A, 3, 5), lambda a, b: a // 3 % 5),
    (torch_sympy.Max(A, B, 3), lambda a, b: max(a, b, 3)),
    (torch_sympy.Min(A, B), min),
    (sympy.Max(A, 2 * B), lambda a, b: max(a, 2 * b)),
    (torch_sympy.PowByNatural(A, sympy.Integer(2)), lambda a, b: a * a),
    (torch_sympy.Identity(A) + 1, lambda a, b: a + 1),
    (RoundUp(A, 64), lambda a, b: -(-a // 64) * 64),
    (sympy.Integer(5), lambda a, b: 5),
    (2 * A / 2 + sympy.Rational(1, 2) * (2 * B), lambda a, b: a + b),
    ((A * (A + 1)) / 2, lambda a, b: a * (a + 1) // 2),
]


@pytest.fixture(scope="module")
def native():
    ops = IRArithmetic()
    names = {name: ops.emit(f"load i64, ptr {ops.emit(f'getelementptr i64, ptr %x, i64 {i}')}") for i, name in enumerate("ab")}
    lower = Lowering(ops, names)
    for i, (expr, _) in enumerate(CASES):
        value = lower(expr)
        ops.lines.append(f"  store i64 {value}, ptr {ops.emit(f'getelementptr i64, ptr %out, i64 {i}')}")
    text = "\n".join(["define void @f(ptr %x, ptr %out) {", *ops.lines, "  ret void", "}"])
    library = Library({"f": assemble(text)})
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.address("f"))

    def call(a, b, keep=library):
        out = (ctypes.c_int64 * len(CASES))()
        function((ctypes.c_int64 * 2)(a, b), out)
        return list(out)

    return call


@settings(max_examples=200)
@given(st.integers(-5000, 5000), st.integers(-5000, 5000).filter(bool))
def test_native_and_python_agree(native, a, b):
    expected = [reference(a, b) for _, reference in CASES]
    assert native(a, b) == expected
    assert [evaluate(expr, {"a": a, "b": b}) for expr, _ in CASES] == expected


def test_division_by_a_zero_size_does_not_trap(native):
    native(5, 0)


@pytest.mark.parametrize(
    "expr",
    [
        sympy.sqrt(A),
        A**B,
        1 / A,
        sympy.sin(A),
        torch_sympy.IntTrueDiv(A, B),
        sympy.Symbol("unknown"),
        sympy.Integer(2) ** 70 * A,
    ],
)
def test_what_is_not_integer_arithmetic_is_named(expr):
    with pytest.raises(CompileError, match="size"):
        Lowering(IRArithmetic(), {"a": "%a", "b": "%b"})(expr)


def test_common_subexpressions_are_built_once():
    ops = IRArithmetic()
    lower = Lowering(ops, {"a": "%a", "b": "%b"})
    lower(torch_sympy.FloorDiv(A, B))
    lines = len(ops.lines)
    lower(torch_sympy.FloorDiv(A, B) + 1)
    assert len(ops.lines) == lines + 1
