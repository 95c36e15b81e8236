"""Kernels of elementwise ops and reductions: one pass over rows, vectors along the lane class.

    for rows (parallel)                       # classes that every stored value has
      phase 0: for inner: acc = max(acc, x)   # reductions that depend on nothing
      phase 1: for inner: t = exp(x - max); buffer = t; sum += t
      phase 2: for inner: out = buffer / sum  # everything else that is stored

Where the lane class is one of `inner`, accumulators are vectors that are combined at the end of the phase; where it is
one of `rows`, a lane is a row of its own. What is the same in all iterations of a loop is computed in front of it: LLVM, which does not
know where results are stored, would load it anew after each of them. Values that several phases need and that are dear to compute are kept in a
buffer of one row, or read back from the output if they are stored anyway; arguments whose elements would evict one another are copied there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from ...dialects import builders
from ...dialects.mlir import arith, ir, vector
from .. import structure as st
from ..phases import Phase, phases
from ..strategy import LANE_CHUNK, WINDOW, LoopStrategy, margins, transposes
from ..sum_pairs import TOTAL, is_mean_of_norm
from . import entry, strided
from .evaluate import Evaluator
from .keep import KeptRows
from .kernel import KernelFunction
from .lanes import Index, Number, Point
from .long_sums import COLUMN_BLOCK, SUM_BLOCK
from .memory import Tile
from .nest import Values, delinearize, lane_loop, loop
from .reduce import EXTREMES, accumulate, across, by_reduction, combiner, is_nan, join, neutral
from .stage import Stage


def vectorize_loops(kernel: KernelFunction, strategy: LoopStrategy, symbol: str) -> ir.Module:
    """Build the vector-dialect module of a kernel of kind `loops` or `rows`."""
    emitter = Loops(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body)


class Loops:
    def __init__(self, kernel: KernelFunction, strategy: LoopStrategy) -> None:
        self.k = kernel
        self.s = strategy
        self.d = kernel.domain
        self.horizontal = strategy.lane in strategy.inner
        self.env: dict[int, Index] = {}
        self.row: Number = 0
        """Which row of those that are computed together."""
        self.together = 1
        """Rows that one loop along the lanes walks over."""
        self.stage: Stage | None = None
        self.read: dict[ir.Value, Point] = {}
        """The arguments that are to be copied which the current walk reads, and where."""

    # Parallel range

    def _size(self, e: Evaluator, c: int) -> Number:
        merged = self.s.merged.get(c)
        if merged is not None:
            return merged
        return e.size(self.d.sizes[c])

    def _split_lanes(self) -> bool:
        """Whether the parallel range is chunks of the lane class."""
        return not self.horizontal and not self.s.parallel and self.s.lane is not None

    def trip(self, slots: list[ir.Value]) -> Number:
        e = self.k.sizes_evaluator(self.s.lanes, slots)
        if self._split_lanes():
            return e.math.ceildiv(self._size(e, self.s.lane), LANE_CHUNK)  # type: ignore[arg-type]
        return functools.reduce(e.math.mul, (self._trips(e, c) for c in self.s.parallel), 1)

    def _trips(self, e: Evaluator, c: int) -> Number:
        return e.math.ceildiv(self._size(e, c), self.s.block if c == self.s.staged else 1)

    def body(self, begin: ir.Value, end: ir.Value, status: ir.Value, slots: list[ir.Value]) -> None:
        e = self.e = Evaluator(self.s.lanes, status, self.k.shapes)
        e.in_front = True
        self.out = self.k.bind(e, slots, self.s.streamed)
        self._plan()
        self.kept = KeptRows(self.s, self.d, [*(v for values in self.keep for v in values), *self.copied], self.env)
        if self.s.staged is not None:
            self.stage = Stage(self.k, self.s, e, self.env, lambda e: self._size(e, self.s.staged))  # type: ignore[arg-type]

        def place(p: Number) -> None:
            for c, i in zip(self.s.parallel, delinearize(e.math, p, [self._trips(e, c) for c in self.s.parallel])):
                self.env[c] = Index(i)

        def iteration(p: Number, _: Values) -> Values:
            if self._split_lanes():
                lo = e.math.mul(p, LANE_CHUNK)
                hi = e.math.minimum(e.math.add(lo, LANE_CHUNK), self._size(e, self.s.lane))  # type: ignore[arg-type]
                self._serial(list(self.s.serial), (lo, hi))
            else:
                place(p)
                if self.stage:
                    self._several(0, self.stage.fill(), self.stage.place)
                else:
                    self._serial(list(self.s.serial), None)
            return []

        if self.s.serial or self.s.rows == 1 or self.stage:
            loop(e, begin, end, 1, [], iteration)
        else:
            self._several(begin, end, place)

    def _several(self, begin: Number, end: Number, place: Callable[[Number], None]) -> None:
        """Rows [begin, end); `place(i)` sets the indices of row i."""

        def single(i: Number, _: Values) -> Values:
            place(i)
            self._row()
            return []

        loop(self.e, begin, end, 1, [], single)

    def _serial(self, classes: list[int], chunk: tuple[Number, Number] | None) -> None:
        """The row loops that are not parallel; then the lane blocks, if a lane is a row."""
        if classes:
            size = self._size(self.e, classes[0])
            left: list[tuple[Number, Number]] = [(0, size)]
            if classes[0] == self.s.transposed:
                begin, end = self._tiles(classes[0], chunk)
                left = [(0, begin), (end, size)] if begin else [(end, size)]

            def place(i: Number) -> None:
                self.env[classes[0]] = Index(i)

            def step(i: Number, _: Values) -> Values:
                place(i)
                self._serial(classes[1:], chunk)
                return []

            for begin, end in left:
                if self.s.rows > 1 and len(classes) == 1:
                    self._several(begin, end, place)
                else:
                    loop(self.e, begin, end, 1, [], step)
        elif self.horizontal or self.s.lane is None:
            self._row()
        else:
            lo, hi = chunk or (0, self._size(self.e, self.s.lane))

            def block(i: Number, _: Values) -> Values:
                self.env[self.s.lane] = Index(i, 1)  # type: ignore[index]
                self._row()
                return []

            lane_loop(self.e, lo, hi, self.s.unroll, [[]] * self.s.unroll, block, self.s.in_turns)

    def _tiles(self, along: int, chunk: tuple[Number, Number] | None) -> tuple[Number, Number]:
        """Blocks of lanes x lanes, away from padding, whose loads are transposed in registers; returns from where to where they are."""
        e, m = self.e, self.e.math
        assert self.s.lane is not None
        size = self._size(e, self.s.lane)
        lo, hi = chunk or (0, size)
        buffers: dict[bool, set[ir.Value]] = {True: set(), False: set()}
        for a in self.k.accesses.items:
            if not a.store:
                buffers[transposes(a, self.s.lane, along, self.s.interleaved)].add(e.memory[a.value].buffer)
        around = margins(self.k, along)
        assert around is not None, "transposed where the padding is not known"
        low, high = around
        whole = m.mul(m.floordiv(m.sub(self._size(e, along), low + high), e.lanes), e.lanes)

        def block(first: Number, _: Values) -> Values:
            def lanes(i: Number, _: Values) -> Values:
                e.tile = Tile(buffers[True] - buffers[False], None if e.mask is None else m.sub(hi, i), self.s.interleaved is not None)
                for row in range(e.lanes):
                    e.tile.start(row)
                    self.env[along] = Index(m.add(first, row), inside=True)
                    self.env[self.s.lane] = Index(i, 1)  # type: ignore[index]
                    self._row()
                e.tile = None
                return []

            lane_loop(e, lo, hi, 1, [[]], lanes)
            return []

        end = m.add(low, whole)
        loop(e, low, end, e.lanes, [], block)
        return low, end

    # Phases

    def _plan(self) -> None:
        plan = phases(self.d, self.k.results)
        self.phases, self.row_stores = plan.walks, plan.row_stores
        norm = self.horizontal and not self.row_stores
        self.means = [op for op in (self.phases[0].reductions if self.phases else []) if norm and is_mean_of_norm(op, self.phases)]
        self.copied = {self.k.arguments[n]: None for n in self.s.copied}
        self.keep = [[v for n in numbers for v in self.k.ops[n].results] for numbers in self.s.keep or [[] for _ in self.phases]]

    # One row

    def _row(self) -> None:
        """Phase after phase of the row that the indices are at."""
        e = self.e
        if self.phases or self.stage:  # what they leave behind is there in this scope only
            e.math.enter()
        else:
            e.math.enter_part()
        e.known = self.stage.known() if self.stage else {}
        e.known |= {v: functools.partial(self._watch, v) for v in self.copied}
        for phase in self.phases:
            self._publish(phase, self._phase(phase))
            self._remember(phase)
        self._store(self.row_stores)
        e.known = {}
        e.math.leave()

    def _watch(self, v: ir.Value, point: Point) -> None:
        """Note where a walk reads an argument that is to be copied; it is loaded from there."""
        self.read[v] = point

    def _remember(self, phase: Phase) -> None:
        """Find what a phase has kept, copied or stored in its memory from now on."""
        e, keep = self.e, [*self.keep[phase.number], *self.read]
        self.read.clear()
        for v in keep:
            e.known[v] = lambda point, v=v: e.load(*self.kept.place(v, self.row))
        for n in phase.stores:
            v = self.k.results[n]
            if v not in e.known and st.owner(v) not in self.d.displaced:
                e.known[v] = lambda point, n=n: e.load(self.out[n], point)

    def _loops(self, op: ir.Operation) -> list[Index]:
        return [Index(0) if c is None or c not in self.env else self.env[c] for c in self.d.loops[op]]

    def _point_of(self, v: ir.Value) -> Point:
        op = st.owner(v)
        assert op is not None
        loops = self._loops(op)
        if op.name != "linalg.generic":
            return tuple(loops)
        m = st.maps(op)[len(op.operands) - len(op.results) + list(op.results).index(v)]
        return tuple(self.e.math.affine(x, loops) for x in m.results)

    def _phase(self, phase: Phase) -> Values:
        """Walk over a row; returns the accumulators."""
        classes = [c for c in self.s.inner if c != self.s.lane]
        if self.horizontal:
            return self._horizontal(phase, classes)
        start = [v for op in phase.reductions for v in self._carried(op, self._start(op, self._init(op)))]
        return self._walk(phase, classes, start)

    def _publish(self, phase: Phase, accumulators: Values) -> None:
        for op, values in by_reduction(phase.reductions, accumulators):
            self._publish_result(op, self._result(op, *values))

    def _publish_result(self, op: ir.Operation, value: ir.Value) -> None:
        self.e.known[op.results[0]] = lambda point: value

    def _result(self, op: ir.Operation, value: ir.Value, *nan: ir.Value) -> ir.Value:
        """What a reduction results in, of its accumulators."""
        if not self.horizontal:
            return arith.select(is_nan(nan[0]), nan[0], value) if nan else value
        value = across(op, value, self._init(op))
        if nan:
            some = vector.reduction(ir.IntegerType.get_signless(1), vector.CombiningKind.OR, is_nan(nan[0]))
            value = arith.select(some, builders.constant(value.type, float("nan")), value)
        return value

    def _walk(self, phase: Phase, classes: Sequence[int], carried: Values) -> Values:
        """Loop over inner classes; lanes, if any, are set already. Long sums are put together from those of blocks."""
        if not classes:
            return self._element(phase, carried)
        e, (lo, hi), below = self.e, self._range(classes[0]), self._elements(classes[1:])
        sums = any(combiner(op).name == "arith.addf" for op in phase.reductions)
        apart = sums and (below is None or below > COLUMN_BLOCK)

        def step(i: Number, values: Values) -> Values:
            self.env[classes[0]] = Index(i)
            if not apart:
                return self._walk(phase, classes[1:], values)
            return join(phase.reductions, values, self._walk(phase, classes[1:], self._nothing(phase)))

        each = COLUMN_BLOCK if apart or not below else max(COLUMN_BLOCK // below, 1)
        size = e.math.sub(hi, lo)
        if isinstance(lo, int) and isinstance(size, int) and size * (below or 1) <= WINDOW:
            for i in range(lo, lo + size):
                carried = step(i, carried)
            return carried
        if not sums or isinstance(size, int) and size <= 2 * each:
            return loop(e, lo, hi, 1, carried, step)

        def block(i: Number, totals: Values) -> Values:
            parts = loop(e, i, e.math.minimum(e.math.add(i, each), hi), 1, self._nothing(phase), step)
            return join(phase.reductions, totals, parts)

        return loop(e, lo, hi, each, carried, block)

    def _elements(self, classes: Sequence[int]) -> int | None:
        """How many elements of a row a walk over these classes takes; None where that is not known."""
        sizes = [self.e.math.sub(hi, lo) for lo, hi in map(self._range, classes)]
        return math.prod(sizes) if all(isinstance(n, int) for n in sizes) else None  # type: ignore[arg-type]

    def _nothing(self, phase: Phase) -> Values:
        """The accumulators of a walk over no elements."""
        return [v for op in phase.reductions for v in self._carried(op, self._start(op, neutral(op)))]

    def _range(self, c: int) -> tuple[Number, Number]:
        """What is walked over of an inner class."""
        return self.k.walked(self.e, c, self._size(self.e, c))

    def _in_blocks(self, lane: int) -> bool:
        """Whether the vectors of an iteration leave none for others, although it is not known how many there are."""
        return self.k.walks_in(lane, self.e.lanes * self.s.unroll)

    def _horizontal(self, phase: Phase, classes: Sequence[int]) -> Values:
        """Vector accumulators along the lane class: of each reduction, for each row that is walked over."""
        e = self.e
        lane = self.s.lane
        assert lane is not None
        reductions = phase.reductions * self.together
        start = [v for op in reductions for v in self._carried(op, e.math.splat(neutral(op)))]
        flat = [v for _ in range(self.s.unroll) for v in start]
        width = len(start)

        sums = any(combiner(op).name == "arith.addf" for op in reductions)

        def blocks(lo: Number, hi: Number, each: int, walk: Callable[[Number, Number, Values], Values], values: Values) -> Values:
            """A walk from `lo` to `hi`; of a long sum, the sums of blocks."""
            size = e.math.sub(hi, lo)
            if not sums or (isinstance(size, int) and size <= 2 * each):
                return walk(lo, hi, values)

            def block(i: Number, totals: Values) -> Values:
                parts = walk(i, e.math.minimum(e.math.add(i, each), hi), flat)
                return [v for u in range(0, len(parts), width) for v in join(reductions, totals[u : u + width], parts[u : u + width])]

            return loop(e, lo, hi, each, values, block)

        def nest(rest: Sequence[int], values: Values) -> Values:
            if rest:

                def step(i: Number, vs: Values) -> Values:
                    self.env[rest[0]] = Index(i)
                    return nest(rest[1:], vs)

                return blocks(*self._range(rest[0]), COLUMN_BLOCK, lambda begin, end, vs: loop(e, begin, end, 1, vs, step), values)

            def element(i: Number, vs: Values) -> Values:
                self.env[lane] = Index(i, 1)
                return self._elements_at(phase, vs)

            def walk(begin: Number, end: Number, vs: Values) -> Values:
                sets = [vs[u * width : (u + 1) * width] for u in range(self.s.unroll)]
                return [v for s in lane_loop(e, begin, end, self.s.unroll, sets, element, self.s.in_turns, self._in_blocks(lane)) for v in s]

            return blocks(*self._range(lane), SUM_BLOCK, walk, values)

        out = nest(list(classes), flat)
        total = out[:width]
        for u in range(1, self.s.unroll):
            total = join(reductions, total, out[u * width : (u + 1) * width])
        return total

    def _elements_at(self, phase: Phase, carried: Values) -> Values:
        """One vector of each row that is walked over."""
        return self._element(phase, carried)

    def _element(self, phase: Phase, carried: Values) -> Values:
        """One vector: all reductions and stores of a phase."""
        e = self.e
        e.math.enter_part()
        self.read.clear()
        out = []
        for op, accs in by_reduction(phase.reductions, carried):
            (combined,) = e.body(op, self._loops(op), [accs[0]])
            for new, acc in zip(accumulate(op, combined, accs), accs):
                if op in self.means and e.mask is None:
                    new.owner.operation.attributes[TOTAL] = ir.UnitAttr.get()
                if isinstance(acc.type, ir.VectorType):
                    new = e.math.splat(new)
                if e.mask is not None and self.horizontal:
                    new = arith.select(e.mask, new, acc)
                out.append(new)
        for v in (*self.keep[phase.number], *self.read):
            # The buffer has room for whole vectors: what lies past the end is stored and never used.
            value = e.value(v, self.read[v] if v in self.read else self._point_of(v))
            mask, e.mask = e.mask, None
            e.store(*self.kept.place(v, self.row), value)
            e.mask = mask
        self._store(phase.stores)
        e.math.leave()
        return out

    def _store(self, numbers: Sequence[int]) -> None:
        """One vector of each of these results. All are computed first where one may overwrite what others need."""
        if self.k.overwrites:
            for store in [self._computed(n) for n in numbers]:
                store()
        else:
            for n in numbers:
                self._computed(n)()

    def _computed(self, n: int) -> Callable[[], None]:
        """What stores one vector of result n, which is computed now."""
        if self.s.interleaved is not None:
            return self._computed_interleaved(n, self.s.interleaved)
        v = self.k.results[n]
        point = self._point_of(v)
        return functools.partial(self.e.store, self.out[n], point, self.e.value(v, point))

    def _computed_interleaved(self, n: int, along: int) -> Callable[[], None]:
        """All values along the class; of pairs that were transposed as they are, what is the first one's."""
        e, v, place = self.e, self.k.results[n], self.out[n]
        if e.tile:
            self.env[along] = Index(0)
            point = self._point_of(v)
            both = vector.bitcast(ir.VectorType.get([2 * e.lanes], place.storage), e.value(v, point))
            return lambda: vector.store(both, place.buffer, [e.math.value(e.offset(place, point).base)])
        count = self.d.sizes[along]
        assert isinstance(count, int)
        points, parts = [], []
        for i in range(count):
            self.env[along] = Index(i)
            points.append(self._point_of(v))
            parts.append(e.value(v, points[-1]))
        return lambda: strided.store(e, place, points, parts)

    def _init(self, op: ir.Operation) -> ir.Value:
        """The value that a reduction starts from."""
        return self.e.value(op.operands[len(op.operands) - 1], ())

    def _start(self, op: ir.Operation, init: ir.Value) -> ir.Value:
        return init if self.s.lane is None else self.e.math.splat(init)

    def _carried(self, op: ir.Operation, start: ir.Value) -> list[ir.Value]:
        """The accumulators of a reduction: what is combined, and for the extremes of floats a second one, for NaN."""
        if combiner(op).name not in EXTREMES:
            return [start]
        zero = builders.constant(builders.element_type(op.results[0]), 0.0)
        return [start, zero if self.s.lane is None else self.e.math.splat(zero)]
