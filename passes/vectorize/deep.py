"""Products whose packed operand has panels that do not fit the second-level cache: the reduction is cut in blocks.

    for batch, group of lane blocks, some row tiles (parallel)
      scratch[lane block][row][column] = 0
      for block of k                          (this part of the rows stays in cache for all lane blocks)
        for lane block                        (this part of a panel stays in cache for all row tiles)
          for row tile: acc = 0;  for k in block: acc += A * B;  scratch += acc
      for lane block: store epilogue(scratch)

(Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34, 2008)
"""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects import builders
from ...dialects.mlir import arith, ir, vector
from ..strategy import ContractionStrategy
from . import entry
from .contraction import Contraction
from .kernel import KernelFunction
from .lanes import Index, Number
from .nest import Values, loop


def vectorize_deep(kernel: KernelFunction, strategy: ContractionStrategy, symbol: str) -> ir.Module:
    """Build the module of a contraction whose strategy has a `depth`."""
    emitter = Deep(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body)


class Deep(Contraction):
    """As `Contraction`, with the sums in memory between the blocks."""

    begin: Number = 0
    end: Number = 0
    """Of the block of the reduction; there is none while results are stored."""
    corner: Number = 0
    """Where the sums of the lane block begin in the scratch."""

    def _lane_block(self) -> int:
        return self.width * self.s.group

    def _prepare(self) -> None:
        self._make_scratch(self._row_block() * self.s.group)

    def _range(self, c: int) -> tuple[Number, Number]:
        return self.begin, self.end

    def _block_length(self, classes: Sequence[int]) -> None:
        """The walk is over a block already."""

    def _lanes(self, first: Number, row_block: Number) -> None:
        e, m = self.e, self.e.math
        assert self.s.lane is not None and self.s.depth is not None
        area = self._row_block() * self.width
        start = m.splat(e.value(self.op.operands[2], ()))  # type: ignore[union-attr]
        length = self._size(e, self.r.reductions[0])
        end = m.minimum(m.add(first, self._lane_block()), self._size(e, self.s.lane))

        def clear(i: Number, _: Values) -> Values:
            vector.store(start, self.scratch, [m.value(i)])
            return []

        def panel(lane: Number, _: Values) -> Values:
            self.corner = m.mul(m.floordiv(m.sub(lane, first), self.width), area)
            super(Deep, self)._lanes(lane, row_block)
            return []

        def block(k: Number, _: Values) -> Values:
            self.begin, self.end = k, m.value(m.minimum(m.add(k, self.s.depth), length))  # type: ignore[arg-type]
            loop(e, first, end, self.width, [], panel)
            return []

        loop(e, 0, area * self.s.group, e.lanes, [], clear)
        loop(e, 0, length, self.s.depth, [], block)
        self.begin = self.end = 0
        loop(e, first, end, self.width, [], panel)

    def _rows(self, first: Number | None, columns: int, masks: Sequence[ir.Value | None] | None, row_block: Number) -> None:
        e, m = self.e, self.e.math
        assert first is not None and self.s.row is not None
        self.first_row = m.mul(row_block, self._row_block())
        if self.end != 0:
            super()._rows(first, columns, masks, row_block)
            return
        masks = masks or [None] * columns
        count = m.minimum(self._row_block(), m.sub(self._size(e, self.s.row), self.first_row))
        lanes = [Index(m.add(first, j * e.lanes), 1) for j in range(len(masks))]
        self._store_from_scratch(self.first_row, count, lanes, masks, corner=self.corner)

    def _tile(self, first: Number | None, masks: Sequence[ir.Value | None], rows: list[Index]) -> None:
        """One register tile and one block of the reduction, whose sums are added to those in the scratch: short sums round less."""
        e, m = self.e, self.e.math
        assert first is not None
        e.math.enter()
        lanes = [Index(m.add(first, j * e.lanes), 1) for j in range(len(masks))]
        kind = m.vector_type(builders.element_type(self.op.results[0]))  # type: ignore[union-attr]
        corner = m.add(self.corner, m.mul(m.sub(rows[0].base, self.first_row), self.width))
        places = [m.value(m.add(corner, i * self.width + j * e.lanes)) for i in range(len(rows)) for j in range(len(lanes))]
        zero = builders.constant(kind, 0)
        add = arith.addi if isinstance(kind.element_type, ir.IntegerType) else arith.addf
        for total, at in zip(self._reduce(list(self.r.reductions), rows, lanes, masks, [zero] * len(places)), places):
            vector.store(add(vector.load(kind, self.scratch, [at]), total), self.scratch, [at])
        e.math.leave()
