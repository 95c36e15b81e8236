"""Rows side by side: one loop along the lanes for all rows of a block, phase by phase.

    for block of 2 or 4 rows:
      for i: sums_a += x[a, i];  sums_b += x[b, i]              # phase 0
      means = totals of sums_a and sums_b                       # see `totals`
      for i: sums_a += (x[a, i] - means[a])^2;  sums_b += ...   # phase 1
      for i: load both; store both                              # what is the same for all rows is read once

Sums stay in registers from the loop to what they come to, where `rows` has buffers and tables between. Where rows are missing, the last one
takes their place: what is stored before the last reduction is in no memory that is read (`overwrite` gives such to elementwise groups only).
"""

from __future__ import annotations

from ...dialects.mlir import ir, vector
from ..phases import Phase
from ..strategy import LoopStrategy
from . import entry
from .evaluate import Lookup
from .kernel import KernelFunction
from .lanes import Number
from .nest import Values
from .reduce import by_reduction, combine
from .rows import BlocksOfRows, Place, power_of_two
from .totals import across_rows, combines_rows, computed_of, fold


def vectorize_joined_rows(kernel: KernelFunction, strategy: LoopStrategy, symbol: str) -> ir.Module:
    """Build the module of a kernel of kind `rows` whose strategy has the rows of a block side by side."""
    emitter = _JoinedRows(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body)


class _JoinedRows(BlocksOfRows):
    def _block(self, count: Number, place: Place) -> None:
        """Phase after phase of `count` rows."""
        e, m = self.e, self.e.math
        m.enter()
        e.known = {}
        self.place = place
        rows = range(self.s.rows)
        self.rows: list[Number] = list(rows) if isinstance(count, int) else [m.minimum(row, m.sub(count, 1)) for row in rows]
        self.results: list[dict[ir.Value, Lookup]] = [{} for _ in rows]
        for phase in self.phases:
            if phase.reductions:
                self._reduce_together(phase)
            else:
                self._together(phase, self.rows, self.results, place)
            self._remember(phase)
        for row, results in zip(self.rows, self.results):
            place(row)
            e.known.update(results)
            self._store(self.row_stores)
        e.known = {}
        m.leave()

    def _reduce_together(self, phase: Phase) -> None:
        e = self.e
        self.together = len(self.rows)
        accumulators = self._phase(phase)
        self.together = 1
        width = len(accumulators) // len(self.rows)
        of_rows = [by_reduction(phase.reductions, accumulators[n * width : (n + 1) * width]) for n in range(len(self.rows))]
        totals: dict[ir.Value, ir.Value] = {}
        for op, *parts in ((one[0][0], *(values for _, values in one)) for one in zip(*of_rows)):
            if combines_rows(op):
                vectors = [fold(op, v) if self.halves else v for (v,) in parts]
                total = across_rows(op, vectors + vectors[-1:] * (power_of_two(len(vectors)) - len(vectors)))
                totals[op.results[0]] = combine(op, total, vector.broadcast(total.type, self._init(op)))
                continue
            for row, results, values in zip(self.rows, self.results, parts):
                self.place(row)
                results[op.results[0]] = _lookup(self._result(op, *values))
        for v, total in computed_of(totals, self.k, e).items() if totals else ():
            for n, results in enumerate(self.results):
                results[v] = _lookup(vector.extract(total, [], [n]))

    def _elements_at(self, phase: Phase, carried: Values) -> Values:
        out: Values = []
        width = len(carried) // len(self.rows)
        for n, (row, results) in enumerate(zip(self.rows, self.results)):
            self.place(row)
            self.e.known.update(results)
            out += self._element(phase, carried[n * width : (n + 1) * width])
        return out


def _lookup(value: ir.Value) -> Lookup:
    return lambda point: value
