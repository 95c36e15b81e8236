"""Sizes as sympy expressions and as `index` values, one into the other.

Division is `sympy.floor(a / b)` here. Every symbol is an integer, and positive unless its name says otherwise.

sympy is imported where something is a symbol: it takes 0.2 s, a third of the start of a compile worker, and most kernels have none.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

from ..errors import CompileError
from . import builders
from .mlir import arith, ir

if TYPE_CHECKING:
    import sympy

Extent = Union[int, "sympy.Expr"]


SIGNED = "i_"
"""What the names of symbols begin with that may be zero or negative; all others are sizes."""


def symbol(name: str) -> sympy.Symbol:
    import sympy

    if name.startswith(SIGNED):
        return sympy.Symbol(name, integer=True)
    return sympy.Symbol(name, integer=True, positive=True)


def normal(expr: object) -> Extent:
    """An int where the expression is one."""
    if isinstance(expr, int):
        return expr
    import sympy

    expr = sympy.expand(expr)
    return int(expr) if expr.is_Integer else expr


def _modulo(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    import sympy

    return a - b * sympy.floor(a / b)


@functools.cache
def _functions() -> dict[str, Any]:
    import sympy

    return {
        "Integer": sympy.Integer,
        "Max": sympy.Max,
        "Min": sympy.Min,
        "floor": sympy.floor,
        "ceiling": sympy.ceiling,
        "FloorDiv": lambda a, b: sympy.floor(a / b),
        "CleanDiv": lambda a, b: sympy.floor(a / b),
        "CeilDiv": lambda a, b: sympy.ceiling(a / b),
        "Mod": _modulo,
        "PythonMod": _modulo,
        "PowByNatural": lambda a, b: a**b,
        "Identity": lambda a: a,
    }


class _Names(dict):
    def __missing__(self, name: str) -> object:
        if name.startswith("__"):
            raise KeyError(name)
        return _functions().get(name) or symbol(name)


class _Exact(ast.NodeTransformer):
    """1/3 is a rational number, not a float."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, int):
            return node
        return ast.copy_location(ast.Call(ast.Name("Integer", ast.Load()), [node], []), node)


@functools.lru_cache(maxsize=65536)
def parse(text: str) -> Extent:
    """The text of an expression, as `str` of torch's or sympy's writes it."""
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        tree = ast.fix_missing_locations(_Exact().visit(ast.parse(text, mode="eval")))
        return normal(eval(compile(tree, "<size>", "eval"), {"__builtins__": {}}, _Names()))  # noqa: S307 - our own text
    except Exception as e:
        raise CompileError(f"cannot read the size expression {text!r}") from e


def _affine(e: ir.AffineExpr, dims: Sequence[Extent], symbols: Sequence[Extent]) -> Extent:
    """An affine expression of what `dims` and `symbols` are."""
    if isinstance(e, ir.AffineConstantExpr):
        return e.value
    if isinstance(e, ir.AffineDimExpr):
        return dims[e.position]
    if isinstance(e, ir.AffineSymbolExpr):
        return symbols[e.position]
    import sympy

    a, b = _affine(e.lhs, dims, symbols), sympy.Integer(1) * _affine(e.rhs, dims, symbols)
    if isinstance(e, ir.AffineAddExpr):
        return a + b
    if isinstance(e, ir.AffineMulExpr):
        return a * b
    if isinstance(e, ir.AffineModExpr):
        return _modulo(a, b)
    return sympy.floor(a / b) if isinstance(e, ir.AffineFloorDivExpr) else sympy.ceiling(a / b)


class Sizes:
    """Both directions for one function whose `index` arguments carry `mlirc.symbol`."""

    def __init__(self, function: ir.Operation) -> None:
        self._exprs: dict[ir.Value, Extent] = {}
        self._values: dict[sympy.Expr, ir.Value] = {}
        arguments = function.regions[0].blocks[0].arguments
        attributes = function.attributes["arg_attrs"] if "arg_attrs" in function.attributes else [{}] * len(arguments)
        for value, attribute in zip(arguments, attributes):
            if "mlirc.symbol" in attribute:
                s = symbol(attribute["mlirc.symbol"].value)
                self._exprs[value] = s
                self._values[s] = value
        self._symbols = dict(self._exprs)

    def expr(self, value: ir.Value) -> Extent:
        """The expression that an `index` value computes."""
        if value not in self._exprs:
            self._exprs[value] = normal(self._read(value))
        return self._exprs[value]

    def _read(self, value: ir.Value) -> Extent:
        op = value.owner
        if isinstance(op, ir.Block):
            raise CompileError(f"an index argument without a symbol: {value}")
        op = op.operation if hasattr(op, "operation") else op
        if op.name == "arith.constant":
            return ir.IntegerAttr(op.attributes["value"]).value
        import sympy

        args = [self.expr(o) for o in op.operands]
        match op.name:
            case "arith.addi":
                return args[0] + args[1]
            case "arith.subi":
                return args[0] - args[1]
            case "arith.muli":
                return args[0] * args[1]
            case "arith.floordivsi" | "arith.divsi" | "arith.divui":
                return sympy.floor(sympy.Rational(1) * args[0] / args[1])
            case "arith.ceildivsi" | "arith.ceildivui":
                return sympy.ceiling(sympy.Rational(1) * args[0] / args[1])
            case "arith.maxsi":
                return sympy.Max(*args)
            case "arith.minsi":
                return sympy.Min(*args)
            case "affine.apply":  # what MLIR makes of two paddings, one behind the other
                m = ir.AffineMapAttr(op.attributes["map"]).value
                return _affine(m.results[0], args[: m.n_dims], args[m.n_dims :])
        raise CompileError(f"no size expression for {op.name}")

    def value(self, expr: Extent) -> ir.Value:
        """Build the `index` value at the current insertion point (once per expression)."""
        if isinstance(expr, int):
            return builders.index(expr)
        if expr not in self._values:
            self._values[expr] = self._build(expr)
        return self._values[expr]

    def forget(self) -> None:
        """Drop built values, for a new insertion point that they do not dominate."""
        self._values = {e: v for e, v in self._values.items() if e.is_Symbol}

    def begin_again(self) -> None:
        """Drop all but the arguments: ops were erased, and new ones may get their addresses."""
        self.forget()
        self._exprs = dict(self._symbols)

    def _build(self, expr: sympy.Expr) -> ir.Value:
        import sympy

        if expr.is_Integer:
            return builders.index(int(expr))
        if expr.is_Add or expr.is_Mul:
            op = arith.addi if expr.is_Add else arith.muli
            first, *rest = [self.value(a if not a.is_Integer else int(a)) for a in expr.args]
            for v in rest:
                first = op(first, v)
            return first
        if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
            base, out = self.value(expr.base), self.value(expr.base)
            for _ in range(int(expr.exp) - 1):
                out = arith.muli(out, base)
            return out
        if isinstance(expr, (sympy.floor, sympy.ceiling)):
            numerator, denominator = sympy.fraction(sympy.together(expr.args[0]))
            op = arith.floordivsi if isinstance(expr, sympy.floor) else arith.ceildivsi
            return op(self.value(normal(numerator)), self.value(normal(denominator)))
        if isinstance(expr, (sympy.Max, sympy.Min)):
            op = arith.maxsi if isinstance(expr, sympy.Max) else arith.minsi
            first, *rest = [self.value(normal(a)) for a in expr.args]
            for v in rest:
                first = op(first, v)
            return first
        raise CompileError(f"no lowering for the size expression {expr}")
