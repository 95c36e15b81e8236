"""Block sizes of products from the sizes of the caches: what is where while a product runs.

A register tile is `rows` x `width` sums. For each step of the reduction it reads `width` elements of the packed operand, whose
*panel* (the reduction x `width`) lies in one piece, and one element of each of its rows. The panel serves all row tiles, one
after another; the rows serve all panels. So, of the levels of Goto and van de Geijn ("Anatomy of high-performance matrix
multiplication", ACM TOMS 34, 2008) and of the sizes that follow from the caches alone as in Low et al. ("Analytical modeling is
enough for high-performance BLIS", ACM TOMS 43, 2016):

    registers      the sums; what is left holds a row of the panel and one element of a row, broadcast
    first level    the lines that the rows are read from, one for each row of a tile, each for as many steps as it has elements;
                   where the reduction is cut, also the sums between two of its blocks
    second level   a panel, and the part of the rows that it meets next

BLIS keeps the panel in the first level. Here the second one feeds it: a tile of 14 x 32 reads 128 bytes of it in the 14 cycles
that its products take, a third of what a second level delivers, and the rows, which are not packed, get the first level.
"""

from __future__ import annotations

from ...lowering.caches import Caches

MOST_ROW_TILES = 8
"""That share a block of a panel: more gain nothing, since the block is then read from the second level once in eight times its size."""
MOST_GROUPED = 8
"""Panels that share a block of the rows, in the same way."""


def same_set_rows(caches: Caches) -> int:
    """Rows of a tile that may lie a multiple of 4096 bytes apart: the lines that they are read from are all in one set of the
    first level, which has a place for as many as it has ways. What streams past them takes the place of one for a moment."""
    return caches.first_ways


def panel_bytes(caches: Caches) -> int:
    """Of a block of a panel: a quarter of the second level. A half is left to the rows, which come and go, and the rest to what
    the epilogue reads and writes; a panel of up to twice the size still stays there for most of its time, and is not cut."""
    return caches.second // 4


def depth(caches: Caches, step_bytes: int) -> int:
    """Steps of the reduction in a block of a panel, of which each takes so many bytes; whole lines of the rows."""
    return max(panel_bytes(caches) // step_bytes // 16, 1) * 16


def row_tiles(caches: Caches, tile_bytes: int) -> int:
    """Register tiles that share a block of a panel: their sums, of so many bytes a tile, take up to half of the first level."""
    fitting = max(caches.first // 2 // tile_bytes, 1)
    return min(1 << (fitting.bit_length() - 1), MOST_ROW_TILES)


def group(panels: int, row_blocks: int) -> int:
    """Panels that share a block of the rows: as many as leave 32 blocks of work to be shared among threads."""
    return max(min(MOST_GROUPED, panels * row_blocks // 32), 1) if row_blocks > 1 else 1


def tile_panel_bytes(caches: Caches) -> int:
    """Of a panel that is not cut, where a product runs on AMX tiles: two thirds of the first level. The rows stream past it from the
    second, which cannot deliver both at the rate of the unit, and the sums of two register tiles take the rest."""
    return caches.first * 2 // 3


def tile_block_bytes(caches: Caches) -> int:
    """Of a block of a panel that is cut: half of the first level, since more sums wait there for the next block."""
    return caches.first // 2


def resident(caches: Caches) -> int:
    """Bytes of an operand that stay in the second level while the others pass through it: half of it."""
    return caches.second // 2
