"""mlirc.scan: running totals along one dim.

    for rows and columns around the dim (threads share them); along the lanes, where a dim other than the scanned one is
    contiguous, a lane is a row of its own:
      total = 0; for i: total = total + x[i]; result[i] = total
"""

from __future__ import annotations

import functools

from ...dialects import builders, own
from ...dialects.mlir import arith, ir
from ..strategy import LoopStrategy
from . import entry
from .evaluate import Evaluator
from .kernel import KernelFunction
from .lanes import Index, Number, Point
from .nest import Values, delinearize, lane_loop, loop


def vectorize_scan(kernel: KernelFunction, strategy: LoopStrategy, symbol: str) -> ir.Module:
    """Build the module of a kernel whose anchor is a scan."""
    emitter = _Scan(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body)


class _Scan:
    def __init__(self, kernel: KernelFunction, strategy: LoopStrategy) -> None:
        self.k = kernel
        self.s = strategy
        assert kernel.domain.anchor is not None
        self.op = kernel.domain.anchor
        self.loops = kernel.domain.loops[self.op]
        self.env: dict[int, Index] = {}

    def _size(self, e: Evaluator, c: int) -> Number:
        return e.size(self.k.domain.sizes[c])

    def trip(self, slots: list[ir.Value]) -> Number:
        e = self.k.sizes_evaluator(self.s.lanes, slots)
        return functools.reduce(e.math.mul, self._counts(e), 1)

    def _counts(self, e: Evaluator) -> list[Number]:
        """The grid that the threads share: rows, and vectors of the lane class."""
        counts = [self._size(e, c) for c in self.s.parallel]
        if self.s.lane is not None:
            counts.append(e.math.ceildiv(self._size(e, self.s.lane), self.s.lanes))
        return counts

    def body(self, begin: ir.Value, end: ir.Value, status: ir.Value, slots: list[ir.Value]) -> None:
        e = self.e = Evaluator(self.s.lanes, status, self.k.shapes)
        (self.out,) = self.k.bind(e, slots)
        lane = self.s.lane

        def iteration(p: Number, _: Values) -> Values:
            at = delinearize(e.math, p, self._counts(e))
            for c, i in zip(self.s.parallel, at):
                self.env[c] = Index(i)
            if lane is None:
                self._scan()
                return []

            def column(i: Number, _: Values) -> Values:
                self.env[lane] = Index(i, 1)
                self._scan()
                return []

            lo = e.math.mul(at[-1], e.lanes)
            lane_loop(e, lo, e.math.minimum(e.math.add(lo, e.lanes), self._size(e, lane)), 1, [[]], column)
            return []

        loop(e, begin, end, 1, [], iteration)

    def _point(self) -> Point:
        return tuple(Index(0) if c is None else self.env[c] for c in self.loops)

    def _scan(self) -> None:
        e = self.e
        (scanned,) = self.s.inner
        combine = own.combine(self.op)
        element = self.op.operands[0].type.element_type
        total_type = self._total_type(combine)
        start = builders.constant(total_type, 1 if "mul" in combine else 0)

        def step(i: Number, carried: Values) -> Values:
            self.env[scanned] = Index(i)
            (total,) = carried
            value = e.value(self.op.operands[0], self._point())
            if isinstance(total.type, ir.VectorType):
                value = e.math.splat(value)
            if total_type != element:
                value = arith.extf(total.type, value)
            total = ir.Operation.create(combine, results=[total.type], operands=[total, value]).results[0]
            e.store(self.out, self._point(), self._round(total))
            return [total]

        loop(e, 0, self._size(e, scanned), 1, [start if self.s.lane is None else e.math.splat(start)], step)

    def _total_type(self, combine: str) -> ir.Type:
        """What totals of floats are kept in: f64 where the result is f32, as in ATen, since the error of each goes into all that follow."""
        element = self.op.operands[0].type.element_type
        if combine in ("arith.addf", "arith.mulf") and isinstance(self.op.results[0].type.element_type, ir.F32Type):
            return ir.F64Type.get()
        return element

    def _round(self, total: ir.Value) -> ir.Value:
        element = self.op.results[0].type.element_type
        if element == (total.type.element_type if isinstance(total.type, ir.VectorType) else total.type):
            return total
        kind = self.e.math.vector_type(element) if isinstance(total.type, ir.VectorType) else element
        return arith.truncf(kind, total)
