"""Products of few rows with an operand that is contiguous along the reduction: the lanes run along it.

    for batch, block of columns (parallel)
      for column: for each row: acc[4] = 0
        for k in vectors: acc += A[row, k] * B[column, k];  scratch[row, column] = sum of acc over its lanes
      store epilogue(scratch)                               (lanes run along the columns)

B, which is large and read once, is one stream: each column begins where the one before ends.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ...dialects import builders
from ...dialects.mlir import arith, ir, memref, vector, x86
from .. import structure as st
from ..strategy import ContractionStrategy
from . import entry
from .borders import borders
from .contraction import Contraction
from .evaluate import Evaluator
from .kernel import KernelFunction
from .lanes import Index, Number
from .nest import Values, lane_loop, loop


def vectorize_dot(kernel: KernelFunction, strategy: ContractionStrategy, symbol: str) -> ir.Module:
    """Build the module of a contraction whose strategy has a `dot` class."""
    emitter = Dot(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body, borders(kernel, strategy.lanes))


class Dot(Contraction):
    """As `Contraction`, with another register tile: `rows` x one column at a time."""

    def body(self, begin: ir.Value, end: ir.Value, status: ir.Value, slots: list[ir.Value]) -> None:
        if self.s.dot_pairs:
            self.wide = Evaluator(2 * self.s.lanes, status, self.k.shapes)
            self.k.bind(self.wide, slots)
        super().body(begin, end, status, slots)

    def _prepare(self) -> None:
        self._make_scratch(self.s.rows)

    def _sums_of(self, first: Number | None, masks: Sequence[ir.Value | None], rows: list[Index]) -> Values:
        m = self.e.math
        kind = m.vector_type(builders.element_type(self.op.results[0]))  # type: ignore[union-attr]
        self._sum_into_scratch(first, masks, rows, self.free)
        return [vector.load(kind, self.scratch, [m.value(m.add(self.free, i * self.width))]) for i in range(len(rows))]

    def _sum_into_scratch(self, first: Number | None, masks: Sequence[ir.Value | None], rows: list[Index], corner: Number) -> None:
        m = self.e.math
        assert first is not None

        def column(j: Number, _: Values) -> Values:
            for i, total in enumerate(self._sums(rows, Index(m.add(first, j)))):
                memref.store(total, self.scratch, [m.value(m.add(corner, m.add(j, i * self.width)))])
            return []

        loop(self.e, 0, m.minimum(self.width, m.sub(self._columns(), first)), 1, [], column)

    def _columns(self) -> Number:
        """Of the operand that is one stream."""
        return self._size(self.e, self.s.lane)  # type: ignore[arg-type]

    def _sums(self, rows: list[Index], column: Index) -> list[ir.Value]:
        """One sum per row."""
        e = self.e
        start = e.value(self.op.operands[2], ())  # type: ignore[union-attr]
        zero = e.math.splat(builders.constant(start.type, 0))
        floating = not isinstance(start.type, ir.IntegerType)
        sets: list[Values] = [[zero] * len(rows) for _ in range(self.s.unroll)]
        if self.s.dot_pairs:
            sets = self._pairs(rows, column, sets)
        elif self.s.unroll > 1:
            sets = self._block(list(self.r.reductions), rows, column, sets)
        else:
            sets = [self._reduce(list(self.r.reductions), rows, [column], [None], sets[0])]
        out = []
        extra = {"fastmath": arith.FastMathFlags.reassoc} if floating else {}
        for parts in zip(*sets):
            add = arith.addf if floating else arith.addi
            total = functools.reduce(add, parts)
            out.append(add(vector.reduction(start.type, vector.CombiningKind.ADD, total, **extra), start))
        return out

    def _block(self, classes: list[int], rows: list[Index], column: Index, sets: list[Values]) -> list[Values]:
        """Walk `dot`, the first of the classes."""

        def block(i: Number, values: Values) -> Values:
            self.env[classes[0]] = Index(i, 1)
            return self._reduce(classes[1:], rows, [column], [self.e.mask], values)

        return lane_loop(self.e, 0, self._size(self.e, classes[0]), self.s.unroll, sets, block)

    def _pairs(self, rows: list[Index], column: Index, sets: list[Values]) -> list[Values]:
        """The same with `vdpbf16ps`: vectors of bf16 have twice the lanes."""
        e, op = self.wide, self.op
        assert op is not None and self.s.dot is not None
        e.math.enter()

        def block(i: Number, values: Values) -> Values:
            self.env[self.s.dot] = Index(i, 1)  # type: ignore[index]
            out = []
            for row, total in zip(rows, values):
                self._set(row, column)
                loops = self._loops(op)
                a, b = (
                    e.math.splat(e.value(v, tuple(e.math.affine(x, loops) for x in m.results)))
                    for v, m in list(zip(op.operands, st.maps(op)))[:2]
                )
                out.append(x86.avx512_dot(total, a, b))
            return out

        sets = lane_loop(e, 0, self._size(self.e, self.s.dot), self.s.unroll, sets, block)
        e.math.leave()
        return sets

    def _reduce(
        self, classes: list[int], rows: list[Index], lanes: list[Index], masks: Sequence[ir.Value | None], acc: Values
    ) -> Values:
        if classes and classes[0] == self.s.dot:
            return self._block(classes, rows, lanes[0], [acc])[0]
        return super()._reduce(classes, rows, lanes, masks, acc)
