"""`Num`: an SSA value with Python's operators, so that a formula in this folder reads like the formula.

Works for scalars and vectors of f32, f64, i32 and i64 alike; Python numbers become constants of the same shape.
No op carries a fast-math flag: what may be contracted is written as `fma`.
"""

from __future__ import annotations

import contextlib
import math as pymath
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ..mlir import arith, ir, math, scf, vector

Operand = Union["Num", float, int]
Constant = Union[float, int, tuple[float, ...]]
"""The same number in all lanes, or one for each lane."""


@dataclass(frozen=True)
class Format:
    """A binary floating-point format."""

    name: str
    bits: int
    mantissa: int
    """Explicit mantissa bits."""
    bias: int
    """Of the exponent."""
    pinf: int
    """The bits of +inf."""

    @property
    def magic(self) -> float:
        """1.5 * 2**mantissa: adding it to a small number leaves the number, rounded to an integer, in the low bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)


F32 = Format("f32", 32, 23, 127, 0x7F800000)
F64 = Format("f64", 64, 52, 1023, 0x7FF0000000000000)


NO_PAYLOAD = "mlirc.no_payload"
"""On a bitcast to a float: where it is NaN, it is one with nothing but the quiet bit, or one that was given (`passes.nan_payloads`)."""


class ConstantPool:
    """Keeps one `arith.constant` per type and value at the start of a block, instead of one per use."""

    def __init__(self, block: ir.Block) -> None:
        self._block = block
        self._values: dict[tuple[str, str], ir.Value] = {}

    def get(self, type_: ir.Type, number: Constant) -> ir.Value:
        key = (str(type_), repr(number))
        value = self._values.get(key)
        if value is None:
            with ir.InsertionPoint.at_block_begin(self._block):
                value = self._values[key] = _constant(type_, number)
        return value


_pool: ConstantPool | None = None


@contextlib.contextmanager
def constants_at_start_of(block: ir.Block) -> Iterator[None]:
    """While active, constants are shared and placed at the start of `block`, which must dominate what is built."""
    global _pool
    saved, _pool = _pool, ConstantPool(block)
    try:
        yield
    finally:
        _pool = saved


def constant(type_: ir.Type, number: Constant) -> ir.Value:
    """A constant, the one that is there already where constants are shared."""
    return _pool.get(type_, number) if _pool else _constant(type_, number)


def _constant(type_: ir.Type, number: Constant) -> ir.Value:
    element = element_type(type_)
    if isinstance(number, tuple):
        numbers = [ir.FloatAttr.get(element, n) for n in number]
        return arith.ConstantOp(type_, ir.DenseElementsAttr.get(numbers, type=type_)).result
    if isinstance(element, (ir.F32Type, ir.F64Type)):
        attr: ir.Attribute = ir.FloatAttr.get(element, float(number))
    else:
        width = ir.IntegerType(element).width
        attr = ir.IntegerAttr.get(element, (int(number) + 2 ** (width - 1)) % 2**width - 2 ** (width - 1))
    if isinstance(type_, ir.VectorType):
        attr = ir.DenseElementsAttr.get_splat(type_, attr)
    return arith.ConstantOp(type_, attr).result


def element_type(type_: ir.Type) -> ir.Type:
    """The type of the lanes of a vector; a scalar's own type."""
    return type_.element_type if isinstance(type_, ir.VectorType) else type_


def with_element(type_: ir.Type, element: ir.Type) -> ir.Type:
    """`type_` with other lanes."""
    return ir.VectorType.get(type_.shape, element) if isinstance(type_, ir.VectorType) else element


class Num:
    """A number of the program that is being built; arithmetic on it builds ops at the insertion point.

    Comparisons are the ordered ones (false if either side is NaN) for floats and the signed ones for integers.
    """

    __slots__ = ("value",)

    def __init__(self, value: ir.Value) -> None:
        self.value = value

    @property
    def type(self) -> ir.Type:
        return self.value.type

    @property
    def is_float(self) -> bool:
        return isinstance(element_type(self.type), (ir.F32Type, ir.F64Type))

    @property
    def format(self) -> Format:
        """The format of a float. Raises TypeError for anything but f32 and f64."""
        element = element_type(self.type)
        if isinstance(element, ir.F32Type):
            return F32
        if isinstance(element, ir.F64Type):
            return F64
        raise TypeError(f"mlirc: math on {self.type}: only f32 and f64 are expanded")

    def like(self, number: Constant) -> "Num":
        """A constant of this type."""
        return Num(constant(self.type, number))

    def _lift(self, other: Operand) -> ir.Value:
        return other.value if isinstance(other, Num) else self.like(other).value

    def _float_or_int(self, float_op: Callable[..., Any], int_op: Callable[..., Any], a: ir.Value, b: ir.Value) -> "Num":
        return Num((float_op if self.is_float else int_op)(a, b).result)

    def __add__(self, other: Operand) -> "Num":
        return self._float_or_int(arith.AddFOp, arith.AddIOp, self.value, self._lift(other))

    def __sub__(self, other: Operand) -> "Num":
        return self._float_or_int(arith.SubFOp, arith.SubIOp, self.value, self._lift(other))

    def __rsub__(self, other: Operand) -> "Num":
        return self._float_or_int(arith.SubFOp, arith.SubIOp, self._lift(other), self.value)

    def __mul__(self, other: Operand) -> "Num":
        return self._float_or_int(arith.MulFOp, arith.MulIOp, self.value, self._lift(other))

    __radd__ = __add__
    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> "Num":
        return Num(arith.DivFOp(self.value, self._lift(other)).result)

    def __rtruediv__(self, other: Operand) -> "Num":
        return Num(arith.DivFOp(self._lift(other), self.value).result)

    def __neg__(self) -> "Num":
        return Num(arith.NegFOp(self.value).result)

    def __abs__(self) -> "Num":
        return Num(math.AbsFOp(self.value).result)

    def __and__(self, other: Operand) -> "Num":
        return Num(arith.AndIOp(self.value, self._lift(other)).result)

    def __or__(self, other: Operand) -> "Num":
        return Num(arith.OrIOp(self.value, self._lift(other)).result)

    def __xor__(self, other: Operand) -> "Num":
        return Num(arith.XOrIOp(self.value, self._lift(other)).result)

    def __lshift__(self, count: Operand) -> "Num":
        return Num(arith.ShLIOp(self.value, self._lift(count)).result)

    def __rshift__(self, count: Operand) -> "Num":
        """Arithmetic shift."""
        return Num(arith.ShRSIOp(self.value, self._lift(count)).result)

    def shift_right_unsigned(self, count: Operand) -> "Num":
        return Num(arith.ShRUIOp(self.value, self._lift(count)).result)

    def compare(self, float_predicate: str, other: Operand) -> "Num":
        """i1 lanes: `arith.cmpf` with the predicate of this name (OLT, UEQ, ...)."""
        predicate = getattr(arith.CmpFPredicate, float_predicate)
        return Num(arith.CmpFOp(predicate, self.value, self._lift(other)).result)

    def _compare(self, name: str, other: Operand) -> "Num":
        if self.is_float:
            return self.compare("O" + name.upper(), other)
        predicate = getattr(arith.CmpIPredicate, name if name == "eq" else "s" + name)
        return Num(arith.CmpIOp(predicate, self.value, self._lift(other)).result)

    def __lt__(self, other: Operand) -> "Num":
        return self._compare("lt", other)

    def __le__(self, other: Operand) -> "Num":
        return self._compare("le", other)

    def __gt__(self, other: Operand) -> "Num":
        return self._compare("gt", other)

    def __ge__(self, other: Operand) -> "Num":
        return self._compare("ge", other)

    def equals(self, other: Operand) -> "Num":
        return self._compare("eq", other)

    def at_most(self, bound: float) -> "Num":
        """min(self, bound), except that NaN stays NaN; one instruction."""
        return select(self > bound, self.like(bound), self)

    def at_least(self, bound: float) -> "Num":
        """max(self, bound), except that NaN stays NaN; one instruction."""
        return select(self < bound, self.like(bound), self)

    def bits(self) -> "Num":
        """The bit pattern, as an integer of the same width."""
        integer = ir.IntegerType.get_signless(self.format.bits)
        return Num(arith.BitcastOp(with_element(self.type, integer), self.value).result)

    def as_float(self) -> "Num":
        """The float with this bit pattern (of an i32 or i64)."""
        wide = ir.IntegerType(element_type(self.type)).width == 64
        element = ir.F64Type.get() if wide else ir.F32Type.get()
        op = arith.BitcastOp(with_element(self.type, element), self.value)
        op.operation.attributes[NO_PAYLOAD] = ir.UnitAttr.get()
        return Num(op.result)

    def to_float(self) -> "Num":
        """The value of an i32, rounded to f32."""
        return Num(arith.SIToFPOp(with_element(self.type, ir.F32Type.get()), self.value).result)

    def to_f64(self) -> "Num":
        """The value of an f32 or i32."""
        op = arith.ExtFOp if self.is_float else arith.SIToFPOp
        return Num(op(with_element(self.type, ir.F64Type.get()), self.value).result)

    def to_f32(self) -> "Num":
        return Num(arith.TruncFOp(with_element(self.type, ir.F32Type.get()), self.value).result)

    def to_i32(self) -> "Num":
        """The low 32 bits of i64 lanes."""
        return Num(arith.TruncIOp(with_element(self.type, ir.IntegerType.get_signless(32)), self.value).result)


def select(condition: Num, yes: Num, no: Num) -> Num:
    return Num(arith.SelectOp(condition.value, yes.value, no.value).result)


def fma(a: Num, b: Operand, c: Operand) -> Num:
    """a * b + c with one rounding."""
    return Num(math.FmaOp(a.value, a._lift(b), a._lift(c)).result)


def polynomial(x: Num, coefficients: Sequence[float]) -> Num:
    """coefficients[0] + coefficients[1] * x + ..., by Horner's rule: the fewest instructions.

    Its latency is hidden by the other vectors of an unrolled loop.
    """
    result = x.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = fma(result, x, c)
    return result


def copysign(magnitude: Num, sign: Num) -> Num:
    return Num(math.CopySignOp(magnitude.value, sign.value).result)


def sqrt(x: Num) -> Num:
    return Num(math.SqrtOp(x.value).result)


def round_even(x: Num) -> Num:
    return Num(math.RoundEvenOp(x.value).result)


def trunc(x: Num) -> Num:
    return Num(math.TruncOp(x.value).result)


def any_lane(condition: Num) -> ir.Value:
    """An i1: whether the condition holds in some lane."""
    if not isinstance(condition.type, ir.VectorType):
        return condition.value
    return vector.ReductionOp(ir.IntegerType.get_signless(1), vector.CombiningKind.OR, flat(condition.value)).result


def flat(value: ir.Value) -> ir.Value:
    """A vector of any rank as one of rank 1."""
    type_ = ir.VectorType(value.type)
    if type_.rank == 1:
        return value
    return vector.ShapeCastOp(ir.VectorType.get([pymath.prod(type_.shape)], type_.element_type), value).result


def unlikely(condition: Num, compute: Callable[[], tuple[Num, ...]], otherwise: tuple[Num, ...]) -> tuple[Num, ...]:
    """`compute()` in the lanes where `condition` holds, `otherwise` in the rest; a branch skips it if no lane needs it."""
    branch = scf.IfOp(any_lane(condition), [n.type for n in otherwise], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        scf.YieldOp([select(condition, yes, no).value for yes, no in zip(compute(), otherwise, strict=True)])
    with ir.InsertionPoint(branch.else_block):
        scf.YieldOp([n.value for n in otherwise])
    return tuple(Num(r) for r in branch.results)
