"""Convolutions on AMX tiles whose rows run over the ends of an image's lines.

    row p = pitch * h + w of an image of `pitch` columns             element [h, w] of the result, if w < width

    func @kernel_tiles16(%begin, %end, %context):                    (as in `tiles`, without the loop over lines)
      for row block of all lines:
        products of 32 rows: they begin `step` elements apart, from line to line too
        for row: line, place = row / pitch, row % pitch;  place < width?  store epilogue(scratch[row])

Where an image is padded there are a few rows between the lines, whose sums nobody wants. A line of 14 positions has one tile, which waits
for its loads; two of them, one below the other, share what they load of the panel: 3x3 of 14 x 14 x 256 take 135 us instead of 204.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...dialects.mlir import ir
from ..strategy import ContractionStrategy
from ..strategy.tiles import joined_rows
from . import entry
from .borders import borders
from .evaluate import Evaluator
from .kernel import KernelFunction
from .lanes import Index, Number
from .nest import Values, less
from .tile_blocks import Block
from .tiles import Tiles


def vectorize_joined_tiles(kernel: KernelFunction, strategy: ContractionStrategy, symbol: str) -> ir.Module:
    """Build the module of a convolution on tiles whose strategy has `lines`."""
    emitter = JoinedTiles(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body, borders(kernel, strategy.lanes))


class JoinedTiles(Tiles):
    """As `Tiles`, with all lines of an image in one."""

    def __init__(self, kernel: KernelFunction, strategy: ContractionStrategy) -> None:
        super().__init__(kernel, strategy)
        self.r = replace(self.r, outer=[c for c in self.r.outer if c != strategy.lines])
        count, self.line = (kernel.domain.sizes[c] for c in (strategy.lines, strategy.row))  # type: ignore[index]
        self.all_rows = joined_rows(count, self.line, strategy.pitch)  # type: ignore[arg-type]

    def _size(self, e: Evaluator, c: int) -> Number:
        return self.all_rows if c == self.s.row else super()._size(e, c)

    def _row_tile(self, row: Number, block: Block) -> ir.Value:
        self.env[self.s.lines] = Index(0)  # type: ignore[index]
        return super()._row_tile(row, block)

    def _store(self, rows: list[Index], lanes: list[Index], masks: Sequence[ir.Value | None], acc: Values) -> None:
        """What is between the lines is left out."""
        m = self.e.math
        (row,) = rows
        line, place = m.floordiv(row.base, self.s.pitch), m.mod(row.base, self.s.pitch)

        def store() -> None:
            self.env[self.s.lines] = Index(line)  # type: ignore[index]
            super(JoinedTiles, self)._store([Index(place)], lanes, masks, acc)

        if self.s.pitch == self.line:
            store()
        else:
            less(self.e, place, self.line, store)  # type: ignore[arg-type]
