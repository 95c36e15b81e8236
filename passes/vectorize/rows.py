"""Short rows in blocks: a phase of all rows of a block before the next, so that what one row waits for is no time lost for the others.

    for block of rows:
      for row: sums = ... ; buffer[row] = sums            # phase 0
      table[rows] = what the sums of all rows come to     # see `totals`
      for row: sums of what uses table[row]; ...          # phase 1
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from ...dialects import builders
from ...dialects.mlir import ir, memref, vector
from .. import structure as st
from ..phases import Phase
from ..strategy import LoopStrategy
from . import entry
from .evaluate import Lookup
from .kernel import KernelFunction
from .lanes import Index, Number
from .loops import Loops
from .memory import Memory, storage_type
from .nest import Values, lane_loop, loop
from .reduce import by_reduction, combine
from .totals import across_rows, combines_rows, computed_of, fold

STORED = 2
"""Rows that are stored together."""
FETCHED = 1
"""The phase in which the next block's rows are fetched: the first finds them in the cache, and is as fast as it can add."""


def power_of_two(n: int) -> int:
    """The least that is not less."""
    return 1 << (n - 1).bit_length()


Place = Callable[[Number], None]
"""Sets the indices to those of a row of the block."""


def vectorize_rows(kernel: KernelFunction, strategy: LoopStrategy, symbol: str) -> ir.Module:
    """Build the module of a kernel of kind `rows` whose strategy has several rows in a block."""
    emitter = BlocksOfRows(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body)


class BlocksOfRows(Loops):
    def __init__(self, kernel: KernelFunction, strategy: LoopStrategy) -> None:
        super().__init__(kernel, strategy)
        self.halves = any(st.is_tensor(v) and isinstance(builders.element_type(v), ir.BF16Type) for v in (*kernel.arguments, *kernel.results))
        """Whether lanes may come to be in another order, see `passes.even_odd`."""

    def body(self, begin: ir.Value, end: ir.Value, status: ir.Value, slots: list[ir.Value]) -> None:
        self.top = ir.InsertionPoint.current.block
        super().body(begin, end, status, slots)

    def _several(self, begin: Number, end: Number, place: Place) -> None:
        m, rows = self.e.math, self.s.rows
        whole = isinstance(begin, int) and isinstance(end, int) and (end - begin) % rows == 0

        def block(first: Number, _: Values) -> Values:
            def at(row: Number) -> None:
                self.row = row
                place(m.add(first, row))

            self._block(rows if whole else m.minimum(m.sub(end, first), rows), at)
            return []

        loop(self.e, begin, end, rows, [], block)

    def _block(self, count: Number, place: Place) -> None:
        """Phase after phase of `count` rows."""
        e = self.e
        e.math.enter()
        e.known = self.stage.known() if self.stage else {}
        self.tables: dict[ir.Value, Memory] = {}
        for phase in self.phases:
            if phase.reductions:
                self._reduce(phase, count, place)
            elif self.s.stores_together and not self.keep[phase.number]:
                self._stores_together(phase, count, place)
            else:
                self._each(0, count, place, functools.partial(self._phase, phase))
            self._remember(phase)
        if self.row_stores:
            self._each(0, count, place, lambda: self._store(self.row_stores))
        e.known = {}
        e.math.leave()

    def _each(self, begin: Number, end: Number, place: Place, build: Callable[[], object]) -> None:
        def step(row: Number, _: Values) -> Values:
            place(row)
            self.e.known.update(self._results(row))
            build()
            return []

        loop(self.e, begin, end, 1, [], step)

    def _results(self, row: Number) -> dict[ir.Value, Lookup]:
        """What is in the tables for a row, loaded here."""
        values = {v: self.e.load(table, (Index(row),)) for v, table in self.tables.items()}
        return {v: lambda point, value=value: value for v, value in values.items()}

    # Reductions

    def _reduce(self, phase: Phase, count: Number, place: Place) -> None:
        """The reductions of a phase, whose results are in tables afterwards."""
        e = self.e
        rows = self._combined()
        tables = {op.results[0]: self._table(op.results[0]) for op in phase.reductions if not combines_rows(op)}
        parts: dict[ir.Operation, ir.Value] = {}

        def group(first: Number, _: Values) -> Values:
            def row() -> None:
                for op, values in by_reduction(phase.reductions, self._phase(phase)):
                    if not combines_rows(op):
                        e.store(tables[op.results[0]], (Index(self.row),), self._result(op, *values))
                        continue
                    (value,) = values
                    value = fold(op, value) if self.halves else value
                    if op not in parts:
                        parts[op] = self._alloca(rows * value.type.shape[0], value.type.element_type)
                    at = e.math.mul(e.math.sub(self.row, first), value.type.shape[0])
                    vector.store(value, parts[op], [e.math.value(at)])

            self._each(first, e.math.minimum(e.math.add(first, rows), count), place, row)
            totals = {op.results[0]: self._totals(op, place, rows) for op, place in parts.items()}
            for v, total in computed_of(totals, self.k, e).items() if totals else ():
                if v not in tables:
                    tables[v] = self._table(v)
                vector.store(total, tables[v].buffer, [e.math.value(first)])
            return []

        loop(e, 0, count, rows, [], group)
        self.tables.update(tables)

    def _combined(self) -> int:
        """Rows whose sums are combined in one vector: no more than a vector has lanes."""
        return min(self.s.combined, self.s.lanes // 2 if self.halves else self.s.lanes)

    def _totals(self, op: ir.Operation, parts: ir.Value, rows: int) -> ir.Value:
        lanes = parts.type.shape[0] // rows
        kind = ir.VectorType.get([lanes], parts.type.element_type)
        vectors = [vector.load(kind, parts, [self.e.math.value(row * lanes)]) for row in range(rows)]
        total = across_rows(op, vectors + vectors[-1:] * (power_of_two(rows) - rows))
        return combine(op, total, vector.broadcast(total.type, self._init(op)))

    def _table(self, v: ir.Value) -> Memory:
        """A number for each row of a block, and room for the rest of a vector."""
        element = builders.element_type(v)
        place = self._alloca(self.s.rows + power_of_two(self._combined()), storage_type(element))
        with ir.InsertionPoint.after(place.owner):
            dynamic = memref.cast(ir.MemRefType.get([builders.DYNAMIC], storage_type(element)), place)
        return Memory(dynamic, [1], element)

    def _alloca(self, elements: int, kind: ir.Type) -> ir.Value:
        with ir.InsertionPoint.at_block_begin(self.top):
            return memref.AllocaOp(ir.MemRefType.get([elements], kind), [], [], alignment=64).result

    # Stores

    def _stores_together(self, phase: Phase, count: Number, place: Place) -> None:
        """The stores of a phase, a few rows in one loop: what is the same for them is read and widened once. Where rows are missing, the
        last one takes their place."""
        m = self.e.math

        def some(first: Number, _: Values) -> Values:
            rows = [m.add(first, n) for n in range(STORED)]
            if not isinstance(count, int) or count % STORED:
                rows = [m.minimum(row, m.sub(count, 1)) for row in rows]
            self._together(phase, rows, [self._results(row) for row in rows], place)
            return []

        loop(self.e, 0, count, STORED, [], some)

    def _together(self, phase: Phase, rows: Sequence[Number], known: Sequence[dict[ir.Value, Lookup]], place: Place) -> None:
        """The stores of a phase in one loop for these rows, of which the results of reductions are known.

        Nothing is stored before all is read: of rows a multiple of 4096 bytes apart, a CPU takes the element of the next row that is read
        for the one that was stored.
        """
        lane, e = self.s.lane, self.e
        assert lane is not None

        def element(i: Number, _: Values) -> Values:
            e.math.enter()
            stores: list[Callable[[], None]] = []
            for row, results in zip(rows, known):
                place(row)
                e.known.update(results)
                self.env[lane] = Index(i, 1)
                stores += [self._computed(n) for n in phase.stores]
                self._fetch(phase)
            for store in stores:
                store()
            e.math.leave()
            return []

        def nest(classes: Sequence[int]) -> None:
            if not classes:
                lane_loop(e, *self._range(lane), self.s.unroll, [], element, whole=self._in_blocks(lane))
                return

            def step(i: Number, _: Values) -> Values:
                self.env[classes[0]] = Index(i)
                nest(classes[1:])
                return []

            loop(e, *self._range(classes[0]), 1, [], step)

        nest([c for c in self.s.inner if c != lane])

    # Fetching

    def _element(self, phase: Phase, carried: Values) -> Values:
        out = super()._element(phase, carried)
        self._fetch(phase)
        return out

    def _fetch(self, phase: Phase) -> None:
        """Ask for what the next block reads in the place of this element, in one of the phases."""
        if phase.number != FETCHED or self.stage is not None:
            return
        m, lane, along = self.e.math, self.s.lane, (self.s.serial or self.s.parallel)[-1]
        assert lane is not None
        steps = {a.value: a.steps for a in self.k.accesses.items if not a.store and a.steps.get(lane) == 1 and None not in a.steps.values()}
        for v, step in steps.items():
            if step.get(along):
                at = functools.reduce(m.add, (m.mul(self.env[c].base, n) for c, n in step.items() if c in self.env), self.s.rows * step[along])  # type: ignore[arg-type, operator]
                memref.prefetch(self.e.memory[v].buffer, [m.value(at)], False, 3, True)
