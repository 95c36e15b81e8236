"""Large reductions to few results, shared by threads: each reduces chunks to partial results, which are combined afterwards.

    func @kernel(%ctx)                                 # mean and variance of a million elements
      parallel for chunk:  partial0[chunk] = sum of x over the chunk
      result0 = init + partial0[0] + partial0[1] + ...
      parallel for chunk:  partial1[chunk] = sum of (x - result0 / n)^2 over the chunk
      result1 = ...
      parallel for chunk:  out = (x - result0 / n) * ...

A phase of `loops` is a step of its own here, as the next one needs the whole result. There are at most `strategy.chunks` chunks,
however many threads: the result is the same for any number of them. Partial results are on the stack of the thread that calls.
"""

from __future__ import annotations

from collections.abc import Callable

from ...dialects import builders
from ...dialects.mlir import arith, ir
from ..domain import result_loops
from ..phases import Phase
from ..strategy import LoopStrategy
from . import entry
from .evaluate import Evaluator
from .kernel import KernelFunction
from .lanes import Index, Number, Point
from .loops import Loops
from .memory import Memory
from .nest import Values, lane_loop, loop
from .reduce import combine, combiner, neutral


def vectorize_split(kernel: KernelFunction, strategy: LoopStrategy, symbol: str) -> ir.Module:
    """Build the module of a kernel of kind `rows` whose strategy has a class to split."""
    return _Split(kernel, strategy).build(symbol)


class _Split(Loops):
    def __init__(self, kernel: KernelFunction, strategy: LoopStrategy) -> None:
        super().__init__(kernel, strategy)
        assert strategy.split is not None
        self.along = strategy.split
        self.partial = False
        # The results lie row-major over the row classes that are walked over.
        self.steps: dict[int, int] = {}
        self.count = 1
        for c in [*([] if self.horizontal or strategy.lane is None else [strategy.lane]), *reversed(strategy.serial)]:
            self.steps[c] = self.count
            size = strategy.merged.get(c, self.d.sizes[c])
            assert isinstance(size, int)
            self.count *= size

    def build(self, symbol: str) -> ir.Module:
        self._plan()
        scratch = []
        for op in self.d.reductions:
            element = builders.element_type(op.results[0])
            scratch += [ir.RankedTensorType.get([self.count * n], element) for n in (self.s.chunks, 1)]
        steps = []
        for n, phase in enumerate(self.phases):
            steps.append(entry.Step(self.trip, self.s.grain, self._step(lambda begin, end, n=n: self._chunks(begin, end, n))))
            if phase.reductions:
                steps.append(entry.Step(lambda slots: 1, 1, self._step(lambda begin, end, n=n: self._total(n))))
        if self.row_stores:
            steps.append(entry.Step(lambda slots: 1, 1, self._step(lambda begin, end: self._last())))
        return entry.build_steps(symbol, self.k.kinds, scratch, steps)

    def _step(self, body: Callable[[ir.Value, ir.Value], None]) -> Callable[[ir.Value, ir.Value, ir.Value, list[ir.Value]], None]:
        """A body that knows where arguments, partial and whole results are."""

        def build(begin: ir.Value, end: ir.Value, status: ir.Value, slots: list[ir.Value]) -> None:
            e = self.e = Evaluator(self.s.lanes, status, self.k.shapes)
            areas = 2 * len(self.d.reductions)
            self.out = self.k.bind(e, slots[: len(slots) - areas])
            self.places: dict[ir.Operation, tuple[Memory, Memory]] = {}
            for n, op in enumerate(self.d.reductions):
                partial, whole = slots[len(slots) - areas + 2 * n :][:2]
                element = builders.element_type(op.results[0])
                classes = [None if d is None else self.d.loops[op][d] for d in result_loops(op)]
                strides = [0 if c is None else self.steps.get(c, 0) for c in classes]
                self.places[op] = Memory(partial, [self.count, *strides], element), Memory(whole, strides, element)
                e.memory[op.results[0]] = self.places[op][1]
            self.env = {}
            body(begin, end)

        return build

    # Chunks

    def _chunk(self, e: Evaluator) -> Number:
        """Elements of the class in a chunk."""
        m, least = e.math, self.s.least
        each = m.ceildiv(self._size(e, self.along), self.s.chunks)
        return m.maximum(m.mul(m.ceildiv(each, least), least), least)

    def trip(self, slots: list[ir.Value]) -> Number:
        e = self.k.sizes_evaluator(self.s.lanes, slots)
        return self._count_chunks(e)

    def _count_chunks(self, e: Evaluator) -> Number:
        chunk = self._chunk(e)
        return e.math.floordiv(e.math.add(self._size(e, self.along), e.math.sub(chunk, 1)), chunk)

    def _chunks(self, begin: Number, end: Number, number: int) -> None:
        """What a thread does in phase `number`."""
        e = self.e
        self.phase: Phase | None = self.phases[number]

        def iteration(p: Number, _: Values) -> Values:
            chunk = self._chunk(e)
            self.at = p
            self.lo = e.math.mul(p, chunk)
            self.hi = e.math.minimum(e.math.add(self.lo, chunk), self._size(e, self.along))
            self._serial(list(self.s.serial), None)
            return []

        self.partial = True
        loop(e, begin, end, 1, [], iteration)
        self.partial = False

    def _range(self, c: int) -> tuple[Number, Number]:
        return (self.lo, self.hi) if c == self.along else super()._range(c)

    def _row(self) -> None:
        """One row: of the phase, or what `self.visit` says."""
        self.e.math.enter()
        if self.partial:
            assert self.phase is not None
            self._publish(self.phase, self._phase(self.phase))
        else:
            self.visit()
        self.e.math.leave()

    def _init(self, op: ir.Operation) -> ir.Value:
        return neutral(op) if self.partial else super()._init(op)

    def _publish_result(self, op: ir.Operation, value: ir.Value) -> None:
        self.e.store(self.places[op][0], (Index(self.at), *self._point_of(op.results[0])), value)

    # Whole results

    def _total(self, number: int) -> None:
        """Combine the partial results of a phase."""

        def visit() -> None:
            for op in self.phases[number].reductions:
                point = self._point_of(op.results[0])
                (value,) = self._combined(op, point)
                self.e.store(self.places[op][1], point, value)

        self._each_row(visit)

    def _combined(self, op: ir.Operation, point: Point) -> Values:
        """The partial results at a point as one; sums of f32 are added up in f64, as there are few of them."""
        e = self.e
        start = self._init(op)
        if any(not i.uniform for i in point):
            start = e.math.splat(start)
        narrow, wide = start.type, None
        if combiner(op).name == "arith.addf" and isinstance(builders.element_type(op.results[0]), ir.F32Type):
            f64 = ir.F64Type.get()
            wide = ir.VectorType.get(narrow.shape, f64) if isinstance(narrow, ir.VectorType) else f64
            start = arith.extf(wide, start)

        def step(p: Number, values: Values) -> Values:
            part = e.load(self.places[op][0], (Index(p), *point))
            return [combine(op, values[0], part if wide is None else arith.extf(wide, part))]

        (total,) = loop(e, 0, self._count_chunks(e), 1, [start], step)
        return [total if wide is None else arith.truncf(narrow, total)]

    def _last(self) -> None:
        """Store what has the shape of the rows."""

        self._each_row(lambda: self._store(self.row_stores))

    def _each_row(self, visit: Callable[[], None]) -> None:
        self.visit = visit
        if self.horizontal or self.s.lane is None:
            self._serial(list(self.s.serial), None)
            return
        self._rows_in_lanes(list(self.s.serial))

    def _rows_in_lanes(self, classes: list[int]) -> None:
        if classes:

            def step(i: Number, _: Values) -> Values:
                self.env[classes[0]] = Index(i)
                self._rows_in_lanes(classes[1:])
                return []

            loop(self.e, 0, self._size(self.e, classes[0]), 1, [], step)
            return

        def block(i: Number, _: Values) -> Values:
            self.env[self.s.lane] = Index(i, 1)  # type: ignore[index]
            self._row()
            return []

        lane_loop(self.e, 0, self._size(self.e, self.s.lane), 1, [[]], block)  # type: ignore[arg-type]
