"""mlirc.segments, a scatter of updates in buckets: row after row of the result, each with all of its updates.

    for r in rows (threads share them)
      for blocks of the row, in registers:
        sums = init[r, block]
        for i = ends[r - 1] to ends[r]: sums += updates[i, block]; fetch updates[i + ahead, block]
        result[r, block] = epilogue(sums)

or, with `blocks_outside`, all rows for one block after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...dialects import own
from ...dialects.mlir import arith, ir
from .. import structure as st
from ..domain import result_loops
from ..strategy import LoopStrategy
from ..strategy.common import LINE
from ..strategy.scatter import update_bits
from . import entry
from .evaluate import Evaluator
from .kernel import KernelFunction
from .lanes import Index, Number, Point
from .memory import Memory
from .nest import Values, constant_mask, loop

Block = Callable[[Number, int], None]
"""Called with the first element of a block, and their number."""
Blocks = Callable[[Block], None]


def vectorize_segments(kernel: KernelFunction, strategy: LoopStrategy, symbol: str) -> ir.Module:
    """Build the module of a kernel whose anchor is such a scatter."""
    emitter = _Segments(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body)


class _Segments:
    def __init__(self, kernel: KernelFunction, strategy: LoopStrategy) -> None:
        self.k = kernel
        self.s = strategy
        assert kernel.domain.anchor is not None
        self.op = kernel.domain.anchor
        self.init, self.updates, self.ends = self.op.operands
        *self.update_loops, self.row = kernel.domain.loops[self.op]
        self.env: dict[int, Index] = {}

    def trip(self, slots: list[ir.Value]) -> Number:
        e = self.k.sizes_evaluator(self.s.lanes, slots)
        return e.size(self.k.shapes.of(self.op.results[0])[own.target(self.op).index(-1)])

    def body(self, begin: ir.Value, end: ir.Value, status: ir.Value, slots: list[ir.Value]) -> None:
        e = self.e = Evaluator(self.s.lanes, status, self.k.shapes)
        self.stored: list[tuple[ir.Value, Memory]] = list(zip(self.k.results, self.k.bind(e, slots)))
        zero = e.math.value(0)
        before = arith.maxsi(arith.subi(begin, e.math.value(1)), zero)
        first = arith.select(arith.cmpi(arith.CmpIPredicate.eq, begin, zero), zero, self._end(before))

        def rows(blocks: Blocks) -> None:
            def row(r: Number, carried: Values) -> Values:
                if self.row is not None:
                    self.env[self.row] = Index(r)
                last = self._end(r)
                self._serial(list(self.s.serial), lambda: blocks(lambda start, width: self._block(start, width, carried[0], last)))
                return [last]

            loop(e, begin, end, 1, [first], row)

        if self.s.blocks_outside:
            self._blocks(lambda start, width: rows(lambda block: block(start, width)))
        else:
            rows(self._blocks)

    def _end(self, row: Number) -> ir.Value:
        """Where the updates of a row end."""
        return arith.index_cast(ir.IndexType.get(), self.e.value(self.ends, (Index(row),)))

    def _size(self, c: int) -> Number:
        merged = self.s.merged.get(c)
        return merged if merged is not None else self.e.size(self.k.domain.sizes[c])

    def _serial(self, classes: list[int], body: Callable[[], None]) -> None:
        if not classes:
            body()
            return

        def step(i: Number, _: Values) -> Values:
            self.env[classes[0]] = Index(i)
            self._serial(classes[1:], body)
            return []

        loop(self.e, 0, self._size(classes[0]), 1, [], step)

    def _blocks(self, body: Block) -> None:
        """Do something for each block of the lane class: where it starts, and how wide it is."""
        assert self.s.lane is not None
        width = self._size(self.s.lane)
        assert isinstance(width, int)
        block = self.s.lanes * self.s.unroll
        whole = width // block * block

        def full(i: Number, _: Values) -> Values:
            body(i, block)
            return []

        loop(self.e, 0, whole, block, [], full)
        if whole < width:
            body(whole, width - whole)

    def _block(self, start: Number, width: int, first: ir.Value, last: ir.Value) -> None:
        """`width` elements of the row."""
        e, lanes = self.e, self.s.lanes
        (ordered,) = self.s.inner
        starts = range(0, width, lanes)

        def at(k: int) -> None:
            self.env[self.s.lane] = Index(e.math.add(start, k), 1)  # type: ignore[index]
            e.mask = constant_mask(e, width - k) if width - k < lanes else None

        last_update = e.math.sub(self._size(ordered), 1)
        apart = max(1, LINE * 8 // (update_bits(self.k, self.s.lane, ordered) * lanes))

        def update(i: Number, sums: Values) -> Values:
            self.env[ordered] = Index(e.math.minimum(e.math.add(i, self.s.ahead), last_update))
            ahead = []
            for k in starts[::apart]:
                at(k)
                ahead.append(self._point(self.update_loops))
            e.prefetch(self.updates, ahead)
            self.env[ordered] = Index(i)
            out = []
            for k, before in zip(starts, sums):
                at(k)
                value = e.math.splat(e.value(self.updates, self._point(self.update_loops)))
                out.append(ir.Operation.create(own.combine(self.op), results=[before.type], operands=[before, value]).results[0])
            e.mask = None
            return out

        sums = []
        for k in starts:
            at(k)
            sums.append(e.math.splat(e.value(self.init, self._result_point(self.op.results[0]))))
        e.mask = None
        for k, value in zip(starts, loop(e, first, last, 1, sums, update)):
            at(k)
            e.known[self.op.results[0]] = lambda _, value=value: value  # type: ignore[misc]
            for stored, place in self.stored:
                point = self._result_point(stored)
                e.store(place, point, e.value(stored, point))
        e.mask = None

    def _point(self, classes: Sequence[int | None]) -> Point:
        """Where we are, in loops of these classes."""
        return tuple(Index(0) if c is None or c not in self.env else self.env[c] for c in classes)

    def _result_point(self, value: ir.Value) -> Point:
        op = st.owner(value)
        assert op is not None
        loops = self.k.domain.loops[op]
        return self._point([None if i is None else loops[i] for i in result_loops(op, list(op.results).index(value))])
