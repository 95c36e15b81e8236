"""mlirc.scan: running totals along one dim.

    for rows and columns around the dim (threads share them); along the lanes, where a dim other than the scanned one is
    contiguous, a lane is a row of its own:
      total = 0; for i: total = total + x[i]; result[i] = total
    where the scanned dim is contiguous, the lanes are along it: totals of 2, 4, ... lanes, from each to those behind it (Hillis and Steele,
    "Data parallel algorithms", CACM 29, 1986), and what all vectors before add up to:
      total = 0; for i in vectors: y = x[i] + (x[i] moved by 1); y += (y moved by 2), ...; y += total; total = last(y); result[i] = y
"""

from __future__ import annotations

import functools

from ...dialects import builders, own
from ...dialects.mlir import arith, ir, vector
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
        """The grid that the threads share: rows, and vectors of the lane class, if it is not scanned."""
        counts = [self._size(e, c) for c in self.s.parallel]
        if self.s.lane not in (None, *self.s.inner):
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
            if lane in self.s.inner:
                self._scan_along_lanes(lane)
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
        start = self._start()

        def step(i: Number, carried: Values) -> Values:
            self.env[scanned] = Index(i)
            (total,) = carried
            total = self._combined(total, self._value(total.type))
            e.store(self.out, self._point(), self._round(total))
            return [total]

        loop(e, 0, self._size(e, scanned), 1, [start if self.s.lane is None else e.math.splat(start)], step)

    def _scan_along_lanes(self, scanned: int) -> None:
        e, group = self.e, self._group()
        start = vector.broadcast(ir.VectorType.get([group], self._total_type()), self._start())
        kind = e.math.vector_type(self._total_type())

        def block(i: Number, carried: Values) -> Values:
            self.env[scanned] = Index(i, 1)
            (before,) = carried
            value, parts = self._value(kind), []
            for first in range(0, e.lanes, group):
                part = vector.shuffle(value, value, list(range(first, first + group)))
                part = self._combined(before, self._totals_of_lanes(part, start))
                before = vector.shuffle(part, part, [group - 1] * group)
                parts.append(part)
            e.store(self.out, self._point(), self._round(_joined(parts)))
            return [before]

        lane_loop(e, 0, self._size(e, scanned), 1, [[start]], block)

    def _group(self) -> int:
        """Lanes whose totals are first those of one another: a register of them, as lanes are 32 bits each. The product of some may be
        infinite where that with what is before them is not: of up to eight f32 it is not in f64."""
        element, total = self.op.operands[0].type.element_type, self._total_type()
        if own.combine(self.op) == "arith.mulf" and total == element:
            return 1
        return max(min(self.e.lanes * 32 // total.width, self.e.lanes, 8 if total != element else self.e.lanes), 1)

    def _totals_of_lanes(self, value: ir.Value, start: ir.Value) -> ir.Value:
        """Of the first ones of a vector, up to each."""
        (n,) = value.type.shape
        distance = 1
        while distance < n:
            moved = vector.shuffle(start, value, [lane if lane < distance else n + lane - distance for lane in range(n)])
            value, distance = self._combined(moved, value), 2 * distance
        return value

    def _start(self) -> ir.Value:
        return builders.constant(self._total_type(), 1 if "mul" in own.combine(self.op) else 0)

    def _value(self, kind: ir.Type) -> ir.Value:
        """What is added here, in the type of the totals."""
        value = self.e.value(self.op.operands[0], self._point())
        if isinstance(kind, ir.VectorType):
            value = self.e.math.splat(value)
        return value if self._total_type() == self.op.operands[0].type.element_type else arith.extf(kind, value)

    def _combined(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return ir.Operation.create(own.combine(self.op), results=[a.type], operands=[a, b]).results[0]

    def _total_type(self) -> ir.Type:
        """What totals of floats are kept in: f64 where the result is f32, as in ATen, since the error of each goes into all that follow."""
        element = self.op.operands[0].type.element_type
        if own.combine(self.op) in ("arith.addf", "arith.mulf") and isinstance(self.op.results[0].type.element_type, ir.F32Type):
            return ir.F64Type.get()
        return element

    def _round(self, total: ir.Value) -> ir.Value:
        element = self.op.results[0].type.element_type
        if element == (total.type.element_type if isinstance(total.type, ir.VectorType) else total.type):
            return total
        kind = self.e.math.vector_type(element) if isinstance(total.type, ir.VectorType) else element
        return arith.truncf(kind, total)


def _joined(parts: list[ir.Value]) -> ir.Value:
    """Vectors of the same length as one."""
    while len(parts) > 1:
        (n,) = parts[0].type.shape
        parts = [vector.shuffle(a, b, list(range(2 * n))) for a, b in zip(parts[::2], parts[1::2])]
    return parts[0]
