"""Several rows whose lanes are walked over by one loop, for what all of them read (unroll and jam: Callahan, Cocke, Kennedy, "Estimating
interlock and improving balance for pipelined architectures", 1988).

    for i: for j in lanes:                     for 4 rows i: for j in lanes:
      y = x[j * 3], x[j * 3 + 1], ...    ->      y = x[j * 3], x[j * 3 + 1], ...    # loaded, and permuted, once
      out[i, j] = f(a[i], y)                     out[i, j] = f(a[i], y); out[i + 1, j] = f(a[i + 1], y); ...

All rows are computed before any is stored, so that LLVM sees that nothing is written between loads that are the same. Where rows are missing,
the last one takes their place, and is stored as often.
"""

from __future__ import annotations

from collections.abc import Callable

from ...dialects.mlir import ir
from ..strategy import LoopStrategy
from . import entry
from .evaluate import Evaluator
from .kernel import KernelFunction
from .lanes import Index, Number
from .loops import Loops
from .nest import Values, lane_loop, loop


def vectorize_unroll_and_jam(kernel: KernelFunction, strategy: LoopStrategy, symbol: str) -> ir.Module:
    """Build the module of a kernel of kind `loops` or `rows` whose strategy joins rows that are not reduced along the lanes."""
    emitter = _Jammed(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body)


class _Jammed(Loops):
    def __init__(self, kernel: KernelFunction, strategy: LoopStrategy) -> None:
        super().__init__(kernel, strategy)
        assert strategy.parallel, "threads share rows, and not chunks of the lanes"
        self.along = (strategy.serial or strategy.parallel)[-1]

    def _trips(self, e: Evaluator, c: int) -> Number:
        """Threads share blocks of rows, if not what is outside of them."""
        return e.math.ceildiv(self._size(e, c), self.s.joined) if c == self.along else super()._trips(e, c)

    def _several(self, begin: Number, end: Number, place: Callable[[Number], None]) -> None:
        m, count = self.e.math, self.s.joined

        def rows(first: Number, _: Values) -> Values:
            self._block(first)
            return []

        def block(i: Number, _: Values) -> Values:
            place(i)
            return rows(m.mul(self.env[self.along].base, count), [])

        if self.s.serial:
            loop(self.e, begin, end, count, [], rows)
        else:
            loop(self.e, begin, end, 1, [], block)

    def _block(self, first: Number) -> None:
        """All lanes of the rows from `first` on."""
        e, m, count, lane = self.e, self.e.math, self.s.joined, self.s.lane
        assert lane is not None
        size = self._size(e, self.along)
        whole = isinstance(size, int) and size % count == 0
        rows = [m.add(first, n) if whole else m.minimum(m.add(first, n), m.sub(size, 1)) for n in range(count)]
        lane_loop(e, 0, self._size(e, lane), self.s.unroll, [[]] * self.s.unroll, lambda i, _: self._vectors(rows, i), self.s.in_turns)

    def _vectors(self, rows: list[Number], lane: Number) -> Values:
        """One vector of each row, from the same lane on."""
        e, stores = self.e, []
        e.math.enter()
        self.env[self.s.lane] = Index(lane, 1)  # type: ignore[index]
        for row in rows:
            self.env[self.along] = Index(row)
            e.math.enter()
            e.known = {}
            for phase in self.phases:
                self._publish(phase, self._phase(phase))
            stores += [self._computed(n) for n in self.row_stores]
            e.math.leave()
        for store in stores:
            store()
        e.known = {}
        e.math.leave()
        return []
