"""Integer arithmetic on sizes: sympy expressions as LLVM IR, or evaluated here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, Protocol

import sympy

from ..errors import CompileError
from .plan import Expr


class Arithmetic(Protocol):
    """Integer operations over some kind of value. Division and remainder round towards minus infinity."""

    def const(self, value: int) -> Any: ...
    def add(self, a: Any, b: Any) -> Any: ...
    def mul(self, a: Any, b: Any) -> Any: ...
    def floordiv(self, a: Any, b: Any) -> Any: ...
    def mod(self, a: Any, b: Any) -> Any: ...
    def max(self, a: Any, b: Any) -> Any: ...
    def min(self, a: Any, b: Any) -> Any: ...


class Lowering:
    """Walks expressions and builds each distinct subexpression once.

    `symbols` maps names to values of `ops`. Functions are known by name, so torch's need no import of torch.
    """

    def __init__(self, ops: Arithmetic, symbols: Mapping[str, Any]) -> None:
        self._ops = ops
        self._symbols = symbols
        self._memo: dict[Expr, Any] = {}

    def __call__(self, expr: Expr) -> Any:
        """The value of `expr`. Raises CompileError, naming it, for what is not integer arithmetic over the symbols."""
        if isinstance(expr, int):
            return self._ops.const(expr)
        value = self._memo.get(expr)
        if value is None:
            value = self._memo[expr] = self._build(expr)
        return value

    def _build(self, expr: sympy.Expr) -> Any:
        ops, args = self._ops, expr.args
        if expr.is_Integer:
            return ops.const(int(expr))
        if expr.is_Symbol:
            if expr.name not in self._symbols:
                raise CompileError(f"size {expr} is not an input of the program")
            return self._symbols[expr.name]
        match type(expr).__name__:
            case "Add" | "Mul" as kind:
                if any(term.as_coeff_Mul()[0].is_integer is False for term in sympy.Add.make_args(expr)):
                    # s0/2 and the like come from divisions that torch knows to be exact.
                    if expr.is_integer is False:
                        raise _unsupported(expr)
                    return ops.floordiv(*self._fraction(expr))
                return reduce(ops.add if kind == "Add" else ops.mul, map(self, args))
            case "Pow" | "PowByNatural":
                base, exponent = args
                if not exponent.is_Integer or int(exponent) < 0:
                    raise _unsupported(expr)
                return reduce(ops.mul, [self(base)] * int(exponent), ops.const(1))
            case "floor" | "FloorToInt":
                return ops.floordiv(*self._fraction(args[0]))
            case "ceiling" | "CeilToInt":
                return self._ceildiv(*self._fraction(args[0]))
            case "FloorDiv" | "CleanDiv":
                return ops.floordiv(self(args[0]), self(args[1]))
            case "CeilDiv":
                return self._ceildiv(self(args[0]), self(args[1]))
            case "RoundUp":
                return ops.mul(self._ceildiv(self(args[0]), self(args[1])), self(args[1]))
            case "Mod" | "PythonMod":
                return ops.mod(self(args[0]), self(args[1]))
            case "ModularIndexing":
                return ops.mod(ops.floordiv(self(args[0]), self(args[1])), self(args[2]))
            case "LShift" if args[1].is_Integer and int(args[1]) >= 0:
                return ops.mul(self(args[0]), ops.const(1 << int(args[1])))
            case "RShift" if args[1].is_Integer and int(args[1]) >= 0:
                return ops.floordiv(self(args[0]), ops.const(1 << int(args[1])))
            case "Max":
                return reduce(ops.max, map(self, args))
            case "Min":
                return reduce(ops.min, map(self, args))
            case "Identity":
                return self(args[0])
        raise _unsupported(expr)

    def _fraction(self, expr: sympy.Expr) -> tuple[Any, Any]:
        """Numerator and denominator of what stands inside floor or ceiling."""
        if type(expr).__name__ == "IntTrueDiv":
            return self(expr.args[0]), self(expr.args[1])
        numerator, denominator = expr.as_numer_denom()
        return self(numerator), self(denominator)

    def _ceildiv(self, a: Any, b: Any) -> Any:
        ops = self._ops
        minus = ops.const(-1)
        return ops.mul(ops.floordiv(ops.mul(a, minus), b), minus)


def evaluate(expr: Expr, values: Mapping[str, int]) -> int:
    """The value of `expr` where symbols have the given values; division by zero is ZeroDivisionError."""
    return Lowering(_Integers(), values)(expr)


class _Integers:
    def const(self, value: int) -> int:
        return value

    def add(self, a: int, b: int) -> int:
        return a + b

    def mul(self, a: int, b: int) -> int:
        return a * b

    def floordiv(self, a: int, b: int) -> int:
        return a // b

    def mod(self, a: int, b: int) -> int:
        return a % b

    def max(self, a: int, b: int) -> int:
        return max(b, a)

    def min(self, a: int, b: int) -> int:
        return min(b, a)


class IRArithmetic:
    """Emits i64 instructions as lines of LLVM IR; values are operand texts."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def emit(self, instruction: str) -> str:
        """Append an instruction and name its result."""
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def const(self, value: int) -> str:
        if not -(1 << 63) <= value < 1 << 63:
            raise CompileError(f"size {value} does not fit 64 bits")
        return str(value)

    def add(self, a: str, b: str) -> str:
        return self.emit(f"add i64 {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        return self.emit(f"mul i64 {a}, {b}")

    def floordiv(self, a: str, b: str) -> str:
        quotient, _, inexact = self._divide(a, b)
        return self.emit(f"add i64 {quotient}, {self.emit(f'sext i1 {inexact} to i64')}")

    def mod(self, a: str, b: str) -> str:
        _, remainder, inexact = self._divide(a, b)
        correction = self.emit(f"select i1 {inexact}, i64 {b}, i64 0")
        return self.emit(f"add i64 {remainder}, {correction}")

    def max(self, a: str, b: str) -> str:
        return self.emit(f"select i1 {self.emit(f'icmp sgt i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def min(self, a: str, b: str) -> str:
        return self.emit(f"select i1 {self.emit(f'icmp slt i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def _divide(self, a: str, b: str) -> tuple[str, str, str]:
        """Quotient and remainder towards zero, and whether rounding down differs from that."""
        if b == "0":
            raise CompileError("a size divides by zero")
        if not b.lstrip("-").isdigit():
            # A zero size must not trap the CPU; guards keep such results from being used.
            b = self.emit(f"select i1 {self.emit(f'icmp eq i64 {b}, 0')}, i64 1, i64 {b}")
        quotient = self.emit(f"sdiv i64 {a}, {b}")
        remainder = self.emit(f"srem i64 {a}, {b}")
        signs = self.emit(f"icmp slt i64 {self.emit(f'xor i64 {remainder}, {b}')}, 0")
        uneven = self.emit(f"icmp ne i64 {remainder}, 0")
        return quotient, remainder, self.emit(f"and i1 {signs}, {uneven}")


class CheckedIRArithmetic(IRArithmetic):
    """Knows, too, whether a sum or product did not fit 64 bits."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines
        self.overflown = "false"

    def add(self, a: str, b: str) -> str:
        return self._checked("sadd", a, b)

    def mul(self, a: str, b: str) -> str:
        return self._checked("smul", a, b)

    def _checked(self, op: str, a: str, b: str) -> str:
        both = self.emit(f"call {{ i64, i1 }} @llvm.{op}.with.overflow.i64(i64 {a}, i64 {b})")
        flag = self.emit(f"extractvalue {{ i64, i1 }} {both}, 1")
        self.overflown = self.emit(f"or i1 {self.overflown}, {flag}")
        return self.emit(f"extractvalue {{ i64, i1 }} {both}, 0")


def _unsupported(expr: sympy.Expr) -> CompileError:
    return CompileError(f"cannot compute the size {expr} natively ({type(expr).__name__})")
