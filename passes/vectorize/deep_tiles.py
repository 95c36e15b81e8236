"""Products on AMX tiles whose rows do not fit the second-level cache, for all of k: a part of it at a time serves some lane blocks.

    func @kernel_tiles16(%begin, %end, %context):        (of the parallel range)
      for outer classes and row blocks in it:
        for groups of lane blocks in it:
          scratch[lane block][row][32] = 0
          for chunks of k:
            copy of the rows, [k / 32][row][32]          (which stays in the second-level cache)
            for lane blocks of the group:
              for blocks of k in the chunk:              (as in `tiles`)
                for 32 rows of the row block: scratch += products

The last block of k is a chunk of its own, which the epilogue follows. A thread takes what it has of a row block in as few groups as there
is memory for; the rows are copied once for each, and the panels are read once for each row block.

(Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34, 2008)
"""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects import builders
from ...dialects.mlir import ir, vector
from ..strategy import ContractionStrategy
from . import entry
from .borders import borders
from .groups import Groups
from .kernel import KernelFunction
from .lanes import Number
from .memory import Memory
from .nest import Values, loop
from .tile_blocks import Block, Span
from .tiles import Tiles


def vectorize_deep_tiles(kernel: KernelFunction, strategy: ContractionStrategy, symbol: str) -> ir.Module:
    """Build the module of a contraction on tiles whose strategy has a `chunk`."""
    emitter = DeepTiles(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body, borders(kernel, strategy.lanes))


class DeepTiles(Groups, Tiles):
    """As `Tiles`, with sums in memory for a group of lane blocks."""

    begin: Number = 0
    end: Number = 0
    """Of a chunk, in words."""
    last = False
    """Whether it is the last one."""
    corner: Number = 0
    """The row of the scratch where the sums of a lane block begin."""

    def _steps_of_copy(self) -> int:
        assert self.s.chunk is not None and self.s.depth is not None
        return max(self.s.chunk // self.each_step, self.whole - self._last_begin()) // self.row_words + bool(self.rest)

    def _rows_of_scratch(self) -> int:
        return self._rows_of_copy() * self.s.group

    def _place(self, row: Number, block: Block) -> Number:
        return self.e.math.add(self.corner, super()._place(row, block))

    def _last_begin(self) -> int:
        """The first word of the last block of k."""
        assert self.s.depth is not None
        step = self.s.depth // self.each_step
        return (self.whole - 1) // step * step

    def _group(self, first: Number, end: Number, row_block: Number) -> None:
        """Lane blocks from `first` to `end` of a row block."""
        e, m = self.e, self.e.math
        assert self.s.chunk is not None
        rows, last = self._rows_of_copy(), self._last_begin()
        kind = ir.VectorType.get([e.lanes], builders.element_type(self.op.results[0]))  # type: ignore[union-attr]
        zeros = builders.constant(kind, 0)

        def clear(i: Number, _: Values) -> Values:
            vector.store(zeros, self.scratch, [m.value(i)])
            return []

        loop(e, 0, m.mul(m.sub(end, first), rows * self.width), e.lanes, [], clear)

        def chunk(begin: Number, end_: Number, is_last: bool) -> None:
            self.begin, self.end, self.last, self.copy_begin = begin, end_, is_last, begin
            self._copy_words(m.mul(first, self.width), row_block, begin, end_)

            def lanes(p: Number, _: Values) -> Values:
                self.corner = m.mul(m.sub(p, first), rows)
                super(Tiles, self)._lanes(m.mul(p, self.width), row_block)
                return []

            loop(e, first, end, 1, [], lanes)

        def middle(begin: Number, _: Values) -> Values:
            chunk(begin, m.minimum(m.add(begin, self.s.chunk // self.each_step), last), False)  # type: ignore[operator]
            return []

        loop(e, 0, last, self.s.chunk // self.each_step, [], middle)
        chunk(last, self.whole, True)

    def _rows(self, first: Number | None, columns: int, masks: Sequence[ir.Value | None] | None, row_block: Number) -> None:
        """The blocks of k of a chunk, for a row block and a lane block."""
        m = self.e.math
        assert first is not None and self.s.depth is not None
        block, step = self._block(first, masks, row_block), self.s.depth // self.each_step
        if self.last:
            self._products_of(block, Span(self.begin, self.end, False, True))
            return

        def part(begin: Number, _: Values) -> Values:
            self._products_of(block, Span(begin, m.minimum(m.add(begin, step), self.end), False, False))
            return []

        loop(self.e, self.begin, self.end, step, [], part)

    def _ahead(self, span: Span, word: Number, panel: Memory) -> Number:
        """Behind the end of a chunk comes the same chunk of the next panel."""
        m = self.e.math
        length = m.sub(self.end, self.begin)
        place = m.add(m.sub(span.begin, self.begin), m.mul(m.sub(span.end, span.begin), 2))
        panels, target = m.floordiv(place, length), m.add(self.begin, m.mod(place, length))
        return m.add(m.mul(m.sub(target, word), panel.strides[-3]), m.mul(panels, panel.strides[-4]))
