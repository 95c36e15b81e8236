"""tensor.concat: each input is copied to its place; elementwise producers are computed on the way.

    for rows before the dim (parallel): for each input: for its inner elements: out[offset + i] = input[i]

An input that lies across memory is copied in blocks, which are transposed in registers. Few columns side by side (real and imaginary
parts) are interleaved:

    for rows before the last two dims (parallel): for vectors i of the last but one: out[i, 0 ..] = interleave(input0[i], input1[i], ...)
"""

from __future__ import annotations

import functools

from ...dialects.mlir import ir
from .. import structure as st
from ..strategy import LANE_CHUNK, LoopStrategy
from . import entry, strided
from .evaluate import Evaluator
from .kernel import KernelFunction
from .lanes import Index, Number
from .memory import Tile
from .nest import Values, constant_mask, delinearize, lane_loop, loop


def vectorize_concat(kernel: KernelFunction, strategy: LoopStrategy, symbol: str) -> ir.Module:
    """Build the module of a kernel whose anchor is a tensor.concat."""
    emitter = _Concat(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body)


class _Concat:
    def __init__(self, kernel: KernelFunction, strategy: LoopStrategy) -> None:
        self.k = kernel
        self.s = strategy
        assert kernel.domain.anchor is not None
        self.op = kernel.domain.anchor
        self.dim = ir.IntegerAttr(self.op.attributes["dim"]).value
        self.rank = len(st.shape(self.op.results[0]))
        self.inputs = list(self.op.operands)

    def _outer(self, e: Evaluator) -> list[Number]:
        """Sizes of the dims before the concatenated one, which the threads share."""
        return [e.size(s) for s in self.k.shapes.of(self.inputs[0])[: self.dim]]

    def trip(self, slots: list[ir.Value]) -> Number:
        e = self.k.sizes_evaluator(self.s.lanes, slots)
        return functools.reduce(e.math.mul, self._counts(e), 1)

    def _counts(self, e: Evaluator) -> list[Number]:
        """Parallel range: outer dims; for columns that are interleaved chunks of the lanes, if threads have nothing else to share."""
        outer = self._outer(e)
        if self.s.interleaved is None:
            return outer
        return [*outer[:-1], 1 if self.s.parallel else e.math.ceildiv(outer[-1], LANE_CHUNK)]

    def body(self, begin: ir.Value, end: ir.Value, status: ir.Value, slots: list[ir.Value]) -> None:
        e = self.e = Evaluator(self.s.lanes, status, self.k.shapes)
        (self.out,) = self.k.bind(e, slots)

        def iteration(p: Number, _: Values) -> Values:
            outer = [Index(i) for i in delinearize(e.math, p, self._counts(e))]
            if self.s.interleaved is not None:
                self._interleave(outer)
                return []
            start: Number = 0
            for v in self.inputs:
                sizes = [e.size(s) for s in self.k.shapes.of(v)]
                self._copy(v, start, outer, sizes)
                start = e.math.add(start, sizes[self.dim])
            return []

        loop(e, begin, end, 1, [], iteration)

    def _interleave(self, outer: list[Index]) -> None:
        """The columns of all inputs."""
        e, length = self.e, self._outer(self.e)[-1]
        *rows, chunk = outer
        lo = 0 if self.s.parallel else e.math.mul(chunk.base, LANE_CHUNK)
        hi = length if self.s.parallel else e.math.minimum(e.math.add(lo, LANE_CHUNK), length)
        columns = [(v, i) for v in self.inputs for i in range(st.shape(v)[-1])]
        assert len(columns) == st.shape(self.op.results[0])[-1], "columns that are not known"

        def element(i: Number, _: Values) -> Values:
            e.math.enter()
            parts = [e.value(v, (*rows, Index(i, 1), Index(column))) for v, column in columns]
            strided.store(e, self.out, [(*rows, Index(i, 1), Index(n)) for n in range(len(columns))], parts)
            e.math.leave()
            return []

        lane_loop(e, lo, hi, self.s.unroll, [[]] * self.s.unroll, element)

    def _copy(self, v: ir.Value, start: Number, point: list[Index], sizes: list[Number]) -> None:
        """Walk the dims from `len(point)` on; the last one in vectors."""
        e = self.e
        d = len(point)
        if d < self.rank - 1:

            def step(i: Number, _: Values) -> Values:
                self._copy(v, start, [*point, Index(i)], sizes)
                return []

            across = self._across(v) if d == self.rank - 2 else None
            loop(e, 0 if across is None else self._tiles(v, across, start, point, sizes), sizes[d], 1, [], step)
            return

        def element(i: Number, _: Values) -> Values:
            self._element(v, start, point, i)
            return []

        lane_loop(e, 0, sizes[d], self.s.unroll, [[]] * self.s.unroll, element)

    def _element(self, v: ir.Value, start: Number, point: list[Index], i: Number) -> None:
        """One vector."""
        e = self.e
        e.math.enter()
        at = (*point, Index(i, 1))
        value = e.value(v, at)
        target = list(at)
        target[self.dim] = e.math.index_add(at[self.dim], Index(start))
        e.store(self.out, tuple(target), value)
        e.math.leave()

    def _across(self, v: ir.Value) -> ir.Value | None:
        """The argument that an input shows, if it is contiguous along the last dim but one."""
        root, classes = v, self.k.domain.loops[self.op]
        while (op := st.owner(root)) is not None and st.kind(op) == "view":
            root = op.operands[0]
        along, lane = classes[-2:]
        if root not in self.k.strides or None in (along, lane) or (self.s.transposed, self.s.lane) != (along, lane):
            return None
        found = self.k.access(v, classes)
        steps = found.items[0].steps
        return root if steps.get(along) == 1 and steps.get(lane, 0) not in (0, 1) and not {along, lane} & found.fixed else None

    def _tiles(self, v: ir.Value, root: ir.Value, start: Number, point: list[Index], sizes: list[Number]) -> Number:
        """Blocks of lanes x lanes, transposed in registers; returns where they end."""
        e, m = self.e, self.e.math
        rows, length = sizes[-2:]

        def copy(first: Number, count: int, mask: ir.Value | None) -> None:
            def lanes(i: Number, _: Values) -> Values:
                e.tile = Tile({e.memory[root].buffer}, None if e.mask is None else m.sub(length, i), mask=mask)
                for row in range(count):
                    e.tile.start(row)
                    self._element(v, start, [*point, Index(m.add(first, row))], i)
                e.tile = None
                return []

            lane_loop(e, 0, length, 1, [[]], lanes)

        def block(first: Number, _: Values) -> Values:
            copy(first, e.lanes, None)
            return []

        end = m.mul(m.floordiv(rows, e.lanes), e.lanes)
        loop(e, 0, end, e.lanes, [], block)
        if not isinstance(rows, int) or not isinstance(end, int) or rows == end:
            return end
        copy(end, rows - end, constant_mask(e, rows - end))
        return rows
