"""mlirc.scatter: walk over the updates in order, and combine each with the element that its indices name.

    for free loops (threads share them; no two of their points write to the same place)
      for the other loops, in order:
        row = rows[e]                           # checked; an update out of range is dropped
        for the lane loop, one of the free ones: result[row, lanes] += updates[e, lanes]

Where there is no lane loop, and little is computed, the indices of as many updates as there are lanes are checked at once: one branch for all
of them (zeros of [256, 3072] and 262144 sums into them in f32 take 250 instead of 390 us on a Zen 4).

The result lies in the memory of the init operand, which holds the old elements already. As every place is written by one
thread, in the order of the updates, the outcome is the same for any number of threads. Where that memory is an input of the
graph, all indices are checked before anything is written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from ...dialects import builders, own
from ...dialects.mlir import arith, ir, scf, vector
from .. import structure as st
from ..strategy import LoopStrategy
from . import entry
from .evaluate import Evaluator
from .kernel import KernelFunction
from .lanes import Index, Number, Point
from .nest import Values, delinearize, either, lane_loop, loop

MOST_IN_BLOCKS = 8
"""Ops that compute an update: each is there for every lane."""


def vectorize_scatter(kernel: KernelFunction, strategy: LoopStrategy, symbol: str) -> ir.Module:
    """Build the module of a kernel whose anchor is a scatter."""
    emitter = _Scatter(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body)


class _Scatter:
    def __init__(self, kernel: KernelFunction, strategy: LoopStrategy) -> None:
        self.k = kernel
        self.s = strategy
        assert kernel.domain.anchor is not None
        self.op = kernel.domain.anchor
        self.updates, self.indices = self.op.operands[1], own.indices(self.op)
        self.index_loops = st.map_dims(own.index_map(self.op))
        self.target, self.offsets = own.target(self.op), own.offsets(self.op)
        self.combine = own.combine(self.op)
        self.loops = kernel.domain.loops[self.op]
        self.env: dict[int, Index] = {}

    def _size(self, e: Evaluator, c: int) -> Number:
        merged = self.s.merged.get(c)
        return merged if merged is not None else e.size(self.k.domain.sizes[c])

    @property
    def _split_lanes(self) -> bool:
        """Whether the threads share the lane loop, in blocks of whole vectors."""
        return not self.s.parallel and self.s.lane is not None

    @property
    def _block(self) -> int:
        return self.s.lanes * self.s.unroll

    def trip(self, slots: list[ir.Value]) -> Number:
        e = self.k.sizes_evaluator(self.s.lanes, slots)
        if self._split_lanes:
            return e.math.ceildiv(self._size(e, self.s.lane), self._block)  # type: ignore[arg-type]
        return functools.reduce(e.math.mul, (self._size(e, c) for c in self.s.parallel), 1)

    def body(self, begin: ir.Value, end: ir.Value, status: ir.Value, slots: list[ir.Value]) -> None:
        e = self.e = Evaluator(self.s.lanes, status, self.k.shapes)
        (self.out,) = self.k.bind(e, slots)
        if own.CHECK_FIRST not in self.op.attributes:
            self._write(begin, end)
            return
        inside = self._all_inside()
        e.check(inside, "IndexError")
        branch = scf.IfOp(inside)
        e.math.enter()
        with ir.InsertionPoint(branch.then_block):
            self._write(begin, end)
            scf.YieldOp([])
        e.math.leave()

    def _all_inside(self) -> ir.Value:
        """Whether all indices are in range."""
        e = self.e
        walked = (*self.s.parallel, *self.s.serial, self.s.lane)
        classes = [c for d in self.index_loops if d is not None and (c := self.loops[d]) is not None and c in walked]

        def nest(rest: list[int], carried: Values) -> Values:
            if not rest:
                _, inside = self._indices()
                return [arith.andi(carried[0], inside)]

            def step(i: Number, values: Values) -> Values:
                self.env[rest[0]] = Index(i)
                return nest(rest[1:], values)

            return loop(e, 0, self._size(e, rest[0]), 1, carried, step)

        (inside,) = nest(list(dict.fromkeys(classes)), [builders.constant(ir.IntegerType.get_signless(1), 1)])
        self.env.clear()
        return inside

    def _write(self, begin: ir.Value, end: ir.Value) -> None:
        e = self.e
        if self._split_lanes:
            # Each thread walks over the updates once, for all of its blocks.
            lo = e.math.mul(begin, self._block)
            hi = e.math.minimum(e.math.mul(end, self._block), self._size(e, self.s.lane))  # type: ignore[arg-type]
            self._serial(list(self.s.serial), lo, hi)
            return

        def iteration(p: Number, _: Values) -> Values:
            sizes = [self._size(e, c) for c in self.s.parallel]
            for c, i in zip(self.s.parallel, delinearize(e.math, p, sizes)):
                self.env[c] = Index(i)
            self._serial(list(self.s.serial), 0, 1 if self.s.lane is None else self._size(e, self.s.lane))
            return []

        loop(e, begin, end, 1, [], iteration)

    def _serial(self, classes: list[int], lo: Number, hi: Number) -> None:
        if not classes:
            self._updates(lo, hi)
            return
        c, *rest = classes

        def step(i: Number, _: Values) -> Values:
            self.env[c] = Index(i)
            self._serial(rest, lo, hi)
            return []

        size, begin = self._size(self.e, c), 0
        if not rest and self._in_blocks(c, size):
            lanes = self.s.lanes
            begin = self.e.math.mul(self.e.math.floordiv(size, lanes), lanes)

            def block(i: Number, _: Values) -> Values:
                self._block_of_updates(c, i, lambda: loop(self.e, i, self.e.math.add(i, lanes), 1, [], step))
                return []

            loop(self.e, 0, begin, lanes, [], block)
        loop(self.e, begin, size, 1, [], step)

    def _in_blocks(self, c: int, size: Number) -> bool:
        """Whether the indices of some updates, which `c` counts, are checked at once."""
        reads = c in [self.loops[d] for d in self.index_loops if d is not None]
        computed = sum(len(st.body_ops(op)) for op in self.k.domain.loops if op.name == "linalg.generic")
        return self.s.lane is None and reads and computed <= MOST_IN_BLOCKS and not (isinstance(size, int) and size < self.s.lanes)

    def _block_of_updates(self, c: int, begin: Number, one_by_one: Callable[[], object]) -> None:
        """As many updates as there are lanes: `one_by_one` if one of them is out of range. Indices are read again for each, and must be none of
        what is written."""
        e = self.e
        self.env[c] = Index(begin, 1)
        _, inside = self._indices()

        def together() -> None:
            for lane in range(self.s.lanes):
                self.env[c] = Index(e.math.add(begin, lane))
                where, _ = self._indices()
                self._element(where)

        all_inside = vector.reduction(ir.IntegerType.get_signless(1), vector.CombiningKind.AND, e.math.splat(inside))
        either(e, all_inside, together, one_by_one)

    def _at(self, loops: list[int | None]) -> Point:
        """Where we are, along the given loops of the updates."""
        classes = [None if d is None else self.loops[d] for d in loops]
        return tuple(Index(0) if c is None or c not in self.env else self.env[c] for c in classes)

    def _updates(self, lo: Number, hi: Number) -> None:
        """What is left is the lane loop: indices that do not depend on it are read and checked once."""
        e, lane = self.e, self.s.lane
        if lane is not None and lane in [self.loops[d] for d in self.index_loops if d is not None]:
            self._lanes(lo, hi, None)
            return
        where, inside = self._indices()
        e.check(inside, "IndexError")
        branch = scf.IfOp(inside)
        e.math.enter()
        with ir.InsertionPoint(branch.then_block):
            if lane is None:
                self._element(where)
            else:
                self._lanes(lo, hi, where)
            scf.YieldOp([])
        e.math.leave()

    def _lanes(self, lo: Number, hi: Number, where: list[Index] | None) -> None:
        """The lane loop; every lane has an index of its own if `where` does not say them."""
        e = self.e

        def vector(i: Number, _: Values) -> Values:
            self.env[self.s.lane] = Index(i, 1)  # type: ignore[index]
            e.math.enter()
            if where is not None:
                self._element(where)
            else:
                mine, inside = self._indices()
                inside = e.math.splat(inside)
                e.check(inside, "IndexError")
                old, e.mask = e.mask, inside if e.mask is None else arith.andi(e.mask, inside)
                self._element(mine)
                e.mask = old
            e.math.leave()
            return []

        lane_loop(e, lo, hi, self.s.unroll, [[]] * self.s.unroll, vector)

    def _indices(self) -> tuple[list[Index], ir.Value]:
        """The indices where we are, and whether all are in range."""
        e, m = self.e, self.e.math
        sizes = self.k.shapes.of(self.op.results[0])
        where, inside = [], None
        for k, tensor in enumerate(self.indices):
            value = e.value(tensor, self._at(self.index_loops))
            size = m.value(e.size(sizes[self.target.index(-1 - k)]))
            wide = isinstance(value.type, ir.VectorType)
            index = ir.IndexType.get()
            value = arith.index_cast(m.vector_type(index) if wide else index, value)
            where.append(Index(vector=value) if wide else Index(value))
            ok = arith.cmpi(arith.CmpIPredicate.ult, value, m.splat(size) if wide else size)
            inside = ok if inside is None else arith.andi(*e.alike(inside, ok))
        return where, builders.constant(ir.IntegerType.get_signless(1), 1) if inside is None else inside

    def _element(self, where: list[Index]) -> None:
        """One element, or one vector of them."""
        e = self.e
        value = e.value(self.updates, self._at(list(range(len(self.loops)))))
        point = tuple(where[-1 - t] if t < 0 else e.math.index_add(self._at([t])[0], Index(n)) for t, n in zip(self.target, self.offsets))
        if self.combine != own.SET:
            before, value = e.alike(e.load(self.out, point), value)
            value = ir.Operation.create(self.combine, results=[value.type], operands=[before, value]).results[0]
        e.store(self.out, point, value)
