"""Products whose results are contiguous along the rows and not along the columns, as a convolution's that returns an image.

    for batch, block of lanes, some row tiles (parallel)
      for row tile: scratch[row][column] = sums
      for 16 rows, for 16 columns:
        sums = transpose(scratch[16 rows][16 columns])        (in registers)
        for column: store epilogue(sums[column])              (the lanes run along the rows)

What else the epilogue reads along the columns is transposed in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects import builders
from ...dialects.mlir import ir, scf, vector
from ..strategy import ContractionStrategy, transposes
from . import entry
from .borders import borders
from .contraction import Contraction
from .deep import Deep
from .joined_tiles import JoinedTiles
from .kernel import KernelFunction
from .lanes import Index, Number
from .memory import Tile, transposed
from .nest import Values, constant_mask, lane_loop, loop
from .outline_loop import outline_loop
from .tile_blocks import Block
from .tiles import SIDE, Tiles


def vectorize_turned(kernel: KernelFunction, strategy: ContractionStrategy, symbol: str) -> ir.Module:
    """Build the module of a contraction whose strategy is `turned`."""
    kind: type[Contraction] = _Turned if strategy.depth is None else _TurnedDeep
    if strategy.tiles:
        kind = _TurnedTiles if strategy.lines is None else _TurnedJoinedTiles
    emitter = kind(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body, borders(kernel, strategy.lanes))


class _Blocks(Contraction):
    """As `Contraction`, with the lanes along the rows where the scratch is stored."""

    def _make_scratch(self, rows: int) -> None:
        """With room for the rest of a vector of rows; and for a block of columns, behind, if the epilogue is a loop over these."""
        self.block = (rows + self.s.lanes) * self.width
        super()._make_scratch(rows + self.s.lanes + -(-self.s.lanes**2 // self.width))

    def _store_from_scratch(
        self, first: Number, rows: Number, lanes: list[Index], masks: Sequence[ir.Value | None], corner: Number = 0
    ) -> None:
        if not self.s.called_epilogue:
            self._store_blocks(first, rows, lanes, masks, corner)
            return
        m = self.e.math
        once = scf.ForOp(m.value(0), m.value(1), m.value(1))
        m.enter()
        with ir.InsertionPoint(once.body):
            self._store_blocks(first, rows, lanes, masks, corner)
            scf.YieldOp([])
        m.leave()
        outline_loop(once.operation)

    def _store_blocks(self, first: Number, rows: Number, lanes: list[Index], masks: Sequence[ir.Value | None], corner: Number) -> None:
        e, m = self.e, self.e.math
        size = self._size(e, self.s.lane)  # type: ignore[arg-type]
        full = sum(mask is None for mask in masks)

        def vectors(i: Number, _: Values) -> Values:
            """As many rows as there are lanes, from the i-th on, or the rest of them."""
            left, mask, e.mask = None if e.mask is None else m.sub(rows, i), e.mask, None
            at, row = m.add(corner, m.mul(i, self.width)), Index(m.add(first, i), 1)

            def block(j: Number, _: Values) -> Values:
                self._store_block(row, m.add(lanes[0].base, j), e.lanes, m.add(at, j), left, mask)
                return []

            loop(e, 0, full * e.lanes, e.lanes, [], block)
            for j in range(full, len(masks)):
                there = size % e.lanes if isinstance(size, int) else m.minimum(m.sub(size, lanes[j].base), e.lanes)
                self._store_block(row, lanes[j].base, there, m.add(at, j * e.lanes), left, mask)
            return []

        lane_loop(e, 0, rows, 1, [[]], vectors)

    def _store_block(self, row: Index, first: Number, columns: Number, at: Number, left: Number | None, mask: ir.Value | None) -> None:
        """The epilogue of a vector of rows, of which `left` are there (None: all), and of some columns, whose sums begin `at`."""
        e, m = self.e, self.e.math
        m.enter()
        kind = m.vector_type(builders.element_type(self.op.results[0]))  # type: ignore[union-attr]
        height = left if isinstance(left, int) else e.lanes
        sums = [vector.load(kind, self.scratch, [m.value(m.add(at, i * self.width))]) for i in range(height)]
        sums = transposed(sums + [builders.constant(kind, 0)] * (e.lanes - height))
        if self.s.looped_epilogue or not isinstance(columns, int):
            for i, v in enumerate(sums):
                vector.store(v, self.scratch, [m.value(self.block + i * e.lanes)])

            def column(i: Number, _: Values) -> Values:
                place = m.value(m.add(self.block, m.mul(i, e.lanes)))
                self._store([row], [Index(m.add(first, i))], [mask], [vector.load(kind, self.scratch, [place])])
                return []

            loop(e, 0, columns, 1, [], column)
        else:
            channels = None if columns == e.lanes else constant_mask(e, columns)
            e.tile = Tile(self._across(), left, mask=channels)
            for i in range(columns):
                e.tile.start(i)
                m.enter()  # each column loads the same in the same order
                self._store([row], [Index(m.add(first, i))], [mask], [sums[i]])
                m.leave()
            e.tile = None
        m.leave()

    def _across(self) -> set[ir.Value]:
        """What the epilogue reads along the columns."""
        assert self.s.row is not None and self.s.lane is not None
        reads = [a for a in self.k.accesses.items if not a.store and a.op != self.op]
        along, other = (
            {self.e.memory[a.value].buffer for a in reads if transposes(a, self.s.row, self.s.lane) == there} for there in (True, False)
        )
        return along - other


class _Turned(_Blocks):
    """The sums of all register tiles of an iteration wait in the scratch."""

    def _prepare(self) -> None:
        """Where the number of rows is a symbol, the last tile is stored with all rows that it could have."""
        self._make_scratch(self._summed_rows())

    def _rows(self, first: Number | None, columns: int, masks: Sequence[ir.Value | None] | None, row_block: Number) -> None:
        e, m = self.e, self.e.math
        assert first is not None and self.s.row is not None
        self.first_row = m.mul(row_block, self._row_block())
        super()._rows(first, columns, masks, row_block)  # type: ignore[arg-type]
        masks = masks or [None] * columns
        count = m.minimum(self._row_block(), m.sub(self._size(e, self.s.row), self.first_row))
        self._store_from_scratch(self.first_row, count, [Index(m.add(first, j * e.lanes), 1) for j in range(len(masks))], masks)

    def _tile(self, first: Number | None, masks: Sequence[ir.Value | None], rows: list[Index]) -> None:
        m = self.e.math
        m.enter()
        self._sum_into_scratch(first, masks, rows, m.mul(m.sub(rows[0].base, self.first_row), self.width))
        m.leave()


class _TurnedDeep(_Blocks, Deep):
    """The scratch has them anyway."""


class _OnTiles(_Blocks):
    """So it has those of AMX tiles."""

    def _vector(self) -> int:
        """The epilogue has vectors of rows, as many as sums fit in a register."""
        return self.s.lanes

    def _hold(self, block: Block) -> None:
        """What all rows read alike is one number for each column."""


class _TurnedTiles(_OnTiles, Tiles):
    pass


class _TurnedJoinedTiles(_OnTiles, JoinedTiles):
    """Line by line, when all sums of a block of rows are there."""

    def _keeps_all(self) -> bool:
        return True

    def _epilogue_of(self, row: Number, count: Number, place: Number, block: Block) -> None:
        """Later."""

    def _store(self, rows: list[Index], lanes: list[Index], masks: Sequence[ir.Value | None], acc: Values) -> None:
        Contraction._store(self, rows, lanes, masks, acc)

    def _end(self, block: Block) -> None:
        """Rows that do not fill a tile are the last ones of their own, in the scratch as well."""
        m = self.e.math
        count = m.sub(block.end, block.begin)
        left = m.mod(count, SIDE)
        tail = m.sub(block.end, left)
        self._store_lines_of(block, block.begin, tail, 0)
        if left != 0:
            self._store_lines_of(block, tail, block.end, m.sub(SIDE, left))

    def _store_lines_of(self, block: Block, first: Number, last: Number, behind: Number) -> None:
        """The rows from `first` to `last`, which are in the scratch `behind` rows further."""
        m, pitch = self.e.math, self.s.pitch

        def line(number: Number, _: Values) -> Values:
            self.env[self.s.lines] = Index(number)  # type: ignore[index]
            start = m.mul(number, pitch)
            begin = m.maximum(start, first)
            end = m.maximum(m.minimum(m.add(start, self.line), last), begin)
            corner = m.mul(m.add(m.sub(begin, block.begin), behind), self.width)
            self._store_from_scratch(m.sub(begin, start), m.sub(end, begin), block.lanes, block.masks, corner)
            return []

        loop(self.e, m.floordiv(first, pitch), m.floordiv(m.add(last, pitch - 1), pitch), 1, [], line)
