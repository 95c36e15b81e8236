"""mlirc.bucket: the order of updates by the row that they change, by counting.

    for e: ends[rows[e]] += 1                     # how many
    total = 0; for r: ends[r], total = total, total + ends[r]     # where they begin
    for e: order[ends[rows[e]]++] = e             # the beginnings become the ends

If an index is out of range, that is the status, and no row has updates; the order is of zeros then, as others read what it names.
"""

from __future__ import annotations

from ...dialects import builders
from ...dialects.mlir import arith, ir, scf
from ..strategy import LoopStrategy
from . import entry
from .evaluate import Evaluator
from .kernel import KernelFunction
from .lanes import Index, Number
from .memory import Memory
from .nest import Values, loop


def vectorize_bucket(kernel: KernelFunction, strategy: LoopStrategy, symbol: str) -> ir.Module:
    """Build the module of a kernel whose anchor is a bucket."""
    return entry.build(symbol, kernel.kinds, lambda slots: 1, strategy.grain, _Bucket(kernel, strategy).body)


class _Bucket:
    def __init__(self, kernel: KernelFunction, strategy: LoopStrategy) -> None:
        self.k = kernel
        self.s = strategy
        assert kernel.domain.anchor is not None
        self.op = kernel.domain.anchor

    def body(self, begin: ir.Value, end: ir.Value, status: ir.Value, slots: list[ir.Value]) -> None:
        e = self.e = Evaluator(self.s.lanes, status, self.k.shapes)
        memory = dict(zip(self.k.results, self.k.bind(e, slots)))
        order, self.ends = memory.get(self.op.results[0]), memory[self.op.results[1]]
        (updates,), (rows,) = (map(e.size, self.k.shapes.of(r)) for r in self.op.results)
        element = builders.element_type(self.op.results[0])
        zero, one = builders.constant(element, 0), builders.constant(element, 1)

        def nothing(r: Number, _: Values) -> Values:
            e.store(self.ends, (Index(r),), zero)
            return []

        def count(i: Number, carried: Values) -> Values:
            row = self._row(i)
            ok = arith.cmpi(arith.CmpIPredicate.ult, row, e.math.value(rows))
            at = arith.select(ok, row, e.math.value(0))
            self._count(at, one)
            return [arith.andi(carried[0], ok)]

        def start(r: Number, carried: Values) -> Values:
            many = self._load(self.ends, e.math.value(r))
            end = arith.addi(carried[0], many)
            e.store(self.ends, (Index(r),), end if order is None else carried[0])
            return [end]

        def place(i: Number, _: Values) -> Values:
            at = self._count(self._row(i), one)
            e.store(order, (Index(arith.index_cast(ir.IndexType.get(), at)),), arith.index_cast(element, e.math.value(i)))
            return []

        def first(i: Number, _: Values) -> Values:
            e.store(order, (Index(i),), zero)
            return []

        loop(e, 0, rows, 1, [], nothing)
        none = arith.cmpi(arith.CmpIPredicate.eq, e.math.value(rows), e.math.value(0))
        counted = arith.select(none, e.math.value(0), e.math.value(updates))
        inside = arith.cmpi(arith.CmpIPredicate.eq, counted, e.math.value(updates))
        (inside,) = loop(e, 0, counted, 1, [inside], count)
        e.check(inside, "IndexError")
        branch = scf.IfOp(inside, has_else=True)
        sorting = [(rows, [zero], start)], [(rows, [], nothing)]
        if order is not None:  # it is wanted, too
            sorting[0].append((updates, [], place))
            sorting[1].append((updates, [], first))
        for block, steps in zip((branch.then_block, branch.else_block), sorting):
            e.math.enter()
            with ir.InsertionPoint(block):
                for n, carried, step in steps:
                    loop(e, 0, n, 1, carried, step)
                scf.YieldOp([])
            e.math.leave()

    def _row(self, i: Number) -> ir.Value:
        """The row of update i."""
        return arith.index_cast(ir.IndexType.get(), self.e.value(self.op.operands[0], (Index(i),)))

    def _load(self, memory: Memory, at: ir.Value) -> ir.Value:
        return self.e.load(memory, (Index(at),))

    def _count(self, row: ir.Value, one: ir.Value) -> ir.Value:
        """ends[row]++"""
        before = self._load(self.ends, row)
        self.e.store(self.ends, (Index(row),), arith.addi(before, one))
        return before
