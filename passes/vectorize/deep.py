"""Products with rows of which the second-level cache has room for too few: the reduction is cut in blocks.

    for batch, row block, group of lane blocks (`groups`)
      for block of k                          (this part of the rows stays in the second level for all lane blocks)
        copy of the rows, if they evict one another in the first level where they are
        for lane block                        (this part of a panel stays there for all row tiles)
          for row tile: acc = 0;  for k in block: acc += A * B;  scratch[lane block] += acc   (of the first block: = acc)
      for lane block: store epilogue(scratch)

Where the number of rows is a symbol, few rows may need no cut: if all their blocks have room in the second level, the loop over lane blocks is
outside of that over the blocks, so that panels are read from end to end. The bounds of both are chosen at run time, and the code is one.

(Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34, 2008)
"""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects import builders
from ...dialects.mlir import arith, ir, memref, vector
from .. import structure as st
from ..strategy import ContractionStrategy
from ..strategy.traffic import copy_pitch
from . import entry
from .borders import borders
from .groups import Groups
from .kernel import KernelFunction
from .lanes import Index, Number, Point
from .nest import Values, lane_loop, loop


def vectorize_deep(kernel: KernelFunction, strategy: ContractionStrategy, symbol: str) -> ir.Module:
    """Build the module of a contraction whose strategy has a `depth`."""
    emitter = Deep(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body, borders(kernel, strategy.lanes))


ROWS_AHEAD = 4
"""Of the one that is copied, to be fetched: the prefetchers of the CPU see but a short part of each. 197 x 3072 x 768 in
f32 takes 4.92 instead of 5.02 ms."""


class Deep(Groups):
    """As `Contraction`, with the sums in memory between the blocks."""

    begin: Number = 0
    end: Number = 0
    """Of the block of the reduction; there is none while results are stored."""
    corner: Number = 0
    """Where the sums of the lane block begin in the scratch."""
    copied: Number = 0
    """Where the rows of the block of the reduction begin in the copy."""
    few: ir.Value | bool = False
    """Whether there is room in cache for the rows with all blocks."""

    def _prepare(self) -> None:
        self._make_scratch(self._summed_rows() * self.s.group)
        if self.s.rows_copied:
            kind = builders.element_type(self._rows_operand())
            self.pitch = copy_pitch(self.s.depth, kind.width // 8)  # type: ignore[arg-type]
            place = memref.AllocaOp(ir.MemRefType.get([self._row_block() * self.pitch], kind), [], [], alignment=64).result
            self.copy = memref.cast(ir.MemRefType.get([builders.DYNAMIC], kind), place)

    def _rows_operand(self) -> ir.Value:
        return self.op.operands[self.r.along_rows]  # type: ignore[union-attr]

    def _copy_rows(self, row_block: Number) -> None:
        """Those of a row block, of this block of the reduction."""
        e, m = self.e, self.e.math
        first = m.mul(row_block, self._row_block())
        end = m.minimum(m.add(first, self._row_block()), self._size(e, self.s.row))  # type: ignore[arg-type]

        def row(i: Number, _: Values) -> Values:
            def part(k: Number, _: Values) -> Values:
                self._set(Index(i), Index(0))
                self.env[self.r.reductions[0]] = Index(k, 1)
                n = self.r.along_rows
                value = e.value(self._rows_operand(), tuple(self._address(x, self._loops(self.op)) for x in st.maps(self.op)[n].results))
                place, at = self.operand_at(n, Index(m.add(i, ROWS_AHEAD)), Index(0))
                memref.prefetch(place.buffer, [m.value(at.base)], False, 3, True)
                at = m.add(m.mul(m.sub(i, first), self.pitch), m.sub(k, self.begin))
                vector.store(value, self.copy, [m.value(m.add(self.copied, at))])
                return []

            lane_loop(e, self.begin, self.end, 1, [[]], part)
            return []

        loop(e, first, end, 1, [], row)

    def _from_copy(self, _: Point) -> ir.Value:
        """What `Evaluator.known` asks for the rows: the element of this row and step. (Its place may be that of a tap, or of a stride.)"""
        m = self.e.math
        row, k = self.env[self.s.row].base, self.env[self.r.reductions[0]].base  # type: ignore[index]
        at = m.add(m.mul(m.sub(row, self.first_row), self.pitch), m.sub(k, self.begin))
        return memref.load(self.copy, [m.value(m.add(self.copied, at))])

    def walked(self, c: int) -> tuple[Number, Number]:
        return self.begin, self.end

    def _walks_in(self, c: int, n: int) -> bool:
        return self.s.depth is not None and self.s.depth % n == 0 and super()._walks_in(c, n)

    def _block_length(self, classes: Sequence[int]) -> None:
        """The walk is over a block already."""

    def _group(self, first: Number, end: Number, row_block: Number) -> None:
        e, m = self.e, self.e.math
        assert self.s.depth is not None
        area = self._summed_rows() * self.width
        length = self._size(e, self.r.reductions[0])

        blocks, panels = -(-length // self.s.depth), m.sub(end, first)  # type: ignore[operator]
        rows = self._size(e, self.s.row)  # type: ignore[arg-type]
        self.few = m.at_most(m.mul(rows, blocks), self._row_block()) if isinstance(rows, ir.Value) else False

        def begin(block: Number) -> None:
            self.begin = m.mul(block, self.s.depth)  # type: ignore[arg-type]
            self.end = m.value(m.minimum(m.add(self.begin, self.s.depth), length))  # type: ignore[arg-type]
            self.copied = m.chosen(self.few, m.mul(block, m.mul(rows, self.pitch)), 0) if self.s.rows_copied else 0

        def panel(p: Number, _: Values) -> Values:
            self.corner = m.mul(p, area)
            self._lanes(m.mul(m.add(first, p), self.width), row_block)
            return []

        def copy(block: Number, _: Values) -> Values:
            begin(block)
            self._copy_rows(row_block)
            return []

        def outer(i: Number, _: Values) -> Values:
            if self.s.rows_copied:
                if self.few is False:
                    copy(i, [])
                else:  # few rows: those of all blocks with the first panel
                    all_at_once = m.chosen(m.at_most(i, 0), blocks, 0)
                    loop(e, m.chosen(self.few, 0, i), m.chosen(self.few, all_at_once, m.add(i, 1)), 1, [], copy)
                e.known = {self._rows_operand(): self._from_copy}

            def inner(j: Number, _: Values) -> Values:
                begin(m.chosen(self.few, j, i))
                return panel(m.chosen(self.few, i, j), [])

            loop(e, 0, m.chosen(self.few, blocks, panels), 1, [], inner)
            e.known = {}
            return []

        loop(e, 0, m.chosen(self.few, panels, blocks), 1, [], outer)
        self.begin = self.end = 0
        loop(e, 0, panels, 1, [], panel)

    def following(self, here: Number, next_panel: Number) -> Number:
        """As `Products.following`: the next block of this panel where all blocks of it come first, else the same block of the next one."""
        return self.e.math.chosen(self.few, here, next_panel)

    def _pass(self, row_block: Number) -> tuple[Number, Number]:
        m, block = self.e.math, self._row_block()
        return m.mul(row_block, block), m.minimum(m.maximum(self._size(self.e, self.s.row), 1), block)  # type: ignore[arg-type]

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
        zero, start = builders.constant(kind, 0), m.splat(e.value(self.op.operands[2], ()))  # type: ignore[union-attr]
        add = arith.addi if isinstance(kind.element_type, ir.IntegerType) else arith.addf
        later = arith.cmpi(arith.CmpIPredicate.sgt, m.value(self.begin), m.value(0))
        later = vector.broadcast(m.vector_type(later.type), later)
        for total, at in zip(self._reduce(list(self.r.reductions), rows, lanes, masks, [zero] * len(places)), places):
            before = vector.maskedload(kind, self.scratch, [at], later, start)
            vector.store(add(before, total), self.scratch, [at])
        e.math.leave()
