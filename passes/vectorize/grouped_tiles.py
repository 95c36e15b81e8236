"""Convolutions on AMX tiles whose groups have few output channels: a lane block has those of several groups.

    func @kernel_tiles16(%begin, %end, %context):                    (as in `tiles`; outer classes without the groups)
      for row block, lane block of 32 columns in it:
        for 32 rows of the row block:
          for groups of the lane block:                              (of 8 columns: four)
            c[2] = 0
            for taps: c += a * b                                     (of this group, with tiles of as many columns as it has)
              store epilogue of some of the 32 rows before           (of all columns)
            scratch[rows][columns of the group] = c

The epilogue sees one class of channels, along which its vectors are full: with groups of their own, each of 8 channels, one of
[2, 256, 28, 28], 3x3, takes 345 us, of which the tiles are 190, and so 250.
"""

from __future__ import annotations

from dataclasses import replace

from ...dialects import builders
from ...dialects.mlir import ir, x86
from ..strategy import ContractionStrategy
from . import entry
from .borders import borders
from .evaluate import Evaluator
from .joined_tiles import JoinedTiles
from .kernel import KernelFunction
from .lanes import Index, Number
from .memory import Memory
from .nest import Values, loop
from .tile_blocks import Block, Pending, Span
from .tiles import SIDE, Tiles
from .words import tile


def vectorize_grouped_tiles(kernel: KernelFunction, strategy: ContractionStrategy, symbol: str) -> ir.Module:
    """Build the module of a convolution on tiles whose strategy has `groups`."""
    emitter = GroupedTiles(kernel, strategy) if strategy.lines is None else _GroupedJoinedTiles(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body, borders(kernel, strategy.lanes))


class GroupedTiles(Tiles):
    """As `Tiles`, with the groups in the class of lanes, but where the operands of the product are read."""

    def __init__(self, kernel: KernelFunction, strategy: ContractionStrategy) -> None:
        super().__init__(kernel, strategy)
        self.r = replace(self.r, outer=[c for c in self.r.outer if c != strategy.groups])
        self.side = int(kernel.domain.sizes[strategy.lane])  # type: ignore[call-overload, index]
        self.group: Number = 0
        """Whose products are built."""

    def _size(self, e: Evaluator, c: int) -> Number:
        size = super()._size(e, c)
        return e.math.mul(size, super()._size(e, self.s.groups)) if c == self.s.lane else size  # type: ignore[arg-type]

    def _set(self, row: Index, lane: Index) -> None:
        super()._set(row, lane)
        self.env[self.s.groups] = Index(0)  # type: ignore[index]

    def operand_at(self, n: int, row: Index, lane: Index) -> tuple[Memory, Index]:
        self._set(row, Index(0))
        self.env[self.s.groups] = Index(self.group)  # type: ignore[index]
        return self._operand_here(n)

    def _block(self, first: Number, masks: object, row_block: Number) -> Block:
        return replace(super()._block(first, masks, row_block), columns=1)  # type: ignore[arg-type]

    def _sums(self, rows: list[Number], place: Number, block: Block, span: Span, pending: Pending | None = None) -> None:
        """Two tiles, one below the other, of each group."""
        m = self.e.math
        per = self.width // self.side
        kind = tile(self.height, self.side, str(builders.element_type(self.op.results[0])))  # type: ignore[union-attr]
        first, stride, corner = m.floordiv(block.first, self.side), m.value(self.width), m.mul(place, self.width)
        outer = [c for c in self.r.reductions if c != self.s.words]

        def group(j: Number, _: Values) -> Values:
            self.group = m.add(first, j)
            at = m.add(corner, m.mul(j, self.side))
            places = [m.value(m.add(at, i * SIDE * self.width)) for i in range(len(rows))]
            if span.first:
                acc = [x86.amx_tile_zero(kind) for _ in places]
            else:
                acc = [x86.amx_tile_load(kind, self.scratch, [place], stride=stride) for place in places]
            for place, total in zip(places, self._sum(outer, rows, block, span, acc, pending, j)):
                x86.amx_tile_store(self.scratch, [place], total, stride=stride)
            return []

        m.enter()
        loop(self.e, 0, per, 1, [], group)
        m.leave()

    def _steps(self, span: Span) -> int:
        return super()._steps(span) * (self.width // self.side)


class _GroupedJoinedTiles(GroupedTiles, JoinedTiles):
    """As both."""
