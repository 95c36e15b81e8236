"""Expressions of one bf16 are read from a table.

    %h = truncf(mulf(extf %b, 0.5))                                           %i = bits of %b, as a number
    %t = truncf(tanh(extf(truncf(mulf(extf %b, 0.8)))))           ->          %y = @mlirc_bf16_of__...[%i] : f32
    %z = truncf(mulf(extf %h, extf %t))                                       %z = truncf(%y)            exact

As `tabulate`, which reads single functions so. In bf16, a GELU that a model spells out is seven ops with a rounding behind each: 58
cycles for 16 elements, which the units of AMX wait for, and 8 as a gather. The table holds what these ops make of each of the 65,536
arguments; its symbol says which they are (`runtime.expressions`). Where an expression is not rounded, but meets something else, as the
factor of GELU's gradient does that of what is behind, the table has f32, each step rounded to that once. Runs before `tabulate`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ..dialects.math_expansions.num import element_type
from ..dialects.mlir import ir, memref
from ..runtime.abi import BF16_TABLE
from ..runtime.expressions import spelled
from .tabulate import FUNCTIONS, read_table, table_kind

if TYPE_CHECKING:
    from ..lowering.target import Target

PASS_NAME = "mlirc-tabulate-expressions"

BINARY = {"arith.addf": "add", "arith.subf": "sub", "arith.mulf": "mul", "arith.divf": "div"}
UNARY = {"arith.negf": "neg", "math.absf": "abs", "math.sqrt": "sqrt"}
CALLED = {**{name: name.split(".")[1] for name in FUNCTIONS}, "math.exp": "exp"}
CASTS = ("arith.extf", "arith.truncf")

LEAST_COST = 24
"""Vector ops that a gather takes the place of: 16 elements take the time of 16 to 20."""
FUNCTION, ROUNDING = 20, 3
"""What they count as, in ops."""
MOST_OPS = 64
"""Of an expression."""


def tabulate_expressions(module: ir.Module, target: Target) -> None:
    """Rewrite all expressions of a bf16 that are dear and end as bf16, or meet something else in f32."""
    if not target.gathers_fast:
        return
    ends: list[ir.Operation] = []

    def collect(op: ir.Operation) -> ir.WalkResult:
        if op.name in (*CALLED, *BINARY, *UNARY) or op.name == "arith.truncf" and _is(op.results[0], ir.BF16Type):
            ends.append(op)
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(collect)
        wide = any(op.name in CALLED for op in ends)
        if not wide:  # nothing else is dear enough without roundings
            ends = [op for op in ends if op.name == "arith.truncf"]
        symbols: set[str] = set()
        erased: set[int] = set()
        for n, op in reversed(list(enumerate(ends))):
            if n in erased or (found := _Expression.of(op, wide)) is None:
                continue
            symbol = BF16_TABLE + spelled(found.steps)
            if symbol not in symbols:
                symbols.add(symbol)
                with ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown():
                    memref.GlobalOp(symbol, ir.TypeAttr.get(table_kind()))  # a declaration
            with ir.InsertionPoint(op), op.location:
                if op.name == "arith.truncf":
                    op.operands[0] = read_table(symbol, found.argument, op.operands[0].type)
                else:
                    op.results[0].replace_all_uses_with(read_table(symbol, found.argument, op.results[0].type, exact=False))
            for dead in found.order[::-1]:
                if not any(True for r in dead.results for _ in r.uses):
                    erased.update(m for m, other in enumerate(ends) if m not in erased and other == dead)
                    dead.erase()


def _is(value: ir.Value, kind: type) -> bool:
    return isinstance(element_type(value.type), kind)


class _Expression:
    """The ops between a bf16 and a rounding to bf16, or an op whose result is used in f32."""

    def __init__(self, cut: ir.Value) -> None:
        self.cut = cut
        """The bf16 that it is of."""
        self.argument: ir.Value = None  # type: ignore[assignment]
        """The same widened."""
        self.steps: list[str] = []
        self.order: list[ir.Operation] = []
        """Ops before those that use them, but for the last rounding."""
        self.numbers: dict[ir.Value, int] = {}
        self.cost = 0

    @classmethod
    def of(cls, end: ir.Operation, wide: bool) -> _Expression | None:
        """That of the bf16 farthest away of which it is one; None if there is none, or nothing is gained. With `wide`, what is rounded and
        wanted in f32 as well has one table for both, which its own op asks for."""
        rounds = end.name == "arith.truncf"
        value = end.operands[0] if rounds else end.results[0]
        if _pure(value) is None or not any(True for _ in end.results[0].uses):
            return None
        if rounds and wide and any(use.owner.operation.name != "arith.truncf" for use in value.uses):
            return None
        for cut in reversed(_candidates(value)):
            found = cls(cut)
            if found._add(value) is not None:
                if rounds:
                    found.steps.append(f"r{found.numbers[value]}")
                computes = sum(op.name not in CASTS for op in found.order)
                return found if found.cost >= LEAST_COST and computes > 1 else None
        return None

    def _add(self, value: ir.Value) -> int | None:
        """The number of an f32 among the steps; None if it is not of the cut alone."""
        if value in self.numbers:
            return self.numbers[value]
        op = _pure(value)
        if op is None:
            return None
        if op.name == "arith.constant":
            self.steps.append(f"c{_bits(op):08x}")
        elif op.name == "arith.extf":
            inner = op.operands[0]
            if inner == self.cut:
                self.argument = value
                self.numbers[value] = 0
                return 0
            producer = _pure(inner)
            if producer is None or (n := self._add(producer.operands[0])) is None:
                return None
            self.order += [o for o in (producer, op) if o not in self.order]  # a bf16 may be widened twice
            self.steps.append(f"r{n}")
            self.cost += ROUNDING
        else:
            numbers = [self._add(v) for v in op.operands]
            if None in numbers:
                return None
            name = BINARY.get(op.name) or UNARY.get(op.name) or CALLED[op.name]
            self.order.append(op)
            self.steps.append(name + "v".join(map(str, numbers)))
            self.cost += FUNCTION if op.name in CALLED else 1
        self.numbers[value] = len(self.steps)
        return self.numbers[value]


def _pure(value: ir.Value) -> ir.Operation | None:
    """The op that makes a value, if expressions may have it."""
    if isinstance(value.owner, ir.Block):
        return None
    op = value.owner.operation
    if op.name == "arith.constant":
        return op if _bits(op) is not None else None
    if op.name in CASTS:
        narrow, wide = (op.operands[0], op.results[0]) if op.name == "arith.extf" else (op.results[0], op.operands[0])
        return op if _is(narrow, ir.BF16Type) and _is(wide, ir.F32Type) else None
    known = op.name in BINARY or op.name in UNARY or op.name in CALLED
    return op if known and _is(value, ir.F32Type) else None


def _bits(op: ir.Operation) -> int | None:
    """Of a constant f32, or a vector of one."""
    attribute = op.attributes["value"]
    if not _is(op.results[0], ir.F32Type):
        return None
    if isinstance(op.results[0].type, ir.VectorType):
        if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
            return None
        attribute = attribute.get_splat_value()
    return int(struct.unpack("<I", struct.pack("<f", ir.FloatAttr(attribute).value))[0])


def _candidates(end: ir.Value) -> list[ir.Value]:
    """The bf16 that are widened on the way to an f32, the nearest first."""
    out: dict[ir.Value, None] = {}
    seen: set[ir.Value] = set()
    todo = [end]
    while todo and len(seen) <= MOST_OPS:
        value = todo.pop(0)
        if value in seen or (op := _pure(value)) is None or op.name == "arith.constant":
            continue
        seen.add(value)
        if op.name == "arith.extf":
            out[op.operands[0]] = None
        todo += op.operands
    return list(out)
