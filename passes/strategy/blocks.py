"""Block sizes of products from the sizes of the caches: what is where while a product runs.

A register tile is `rows` x `width` sums. For each step of the reduction it reads `width` elements of the packed operand, whose
*panel* (the reduction x `width`) lies in one piece, and one element of each of its rows. The panel serves all row tiles, one
after another; the rows serve all panels. So, of the levels of Goto and van de Geijn ("Anatomy of high-performance matrix
multiplication", ACM TOMS 34, 2008) and of the sizes that follow from the caches alone as in Low et al. ("Analytical modeling is
enough for high-performance BLIS", ACM TOMS 43, 2016):

    registers      the sums; what is left holds a row of the panel and one element of a row, broadcast
    first level    the lines that the rows are read from, one for each row of a tile, each for as many steps as it has elements
    second level   a panel, what is fetched of the next one, and the rows that they meet; where the reduction is cut, a block of each, and
                   the sums between two of its blocks

BLIS keeps the panel in the first level. Here the second one feeds it: a tile of 14 x 32 reads 128 bytes of it in the 14 cycles
that its products take, a third of what a second level delivers, and the rows, which are not packed, get the first level.
"""

from __future__ import annotations

import math
from collections import Counter

from ...lowering.caches import Caches
from .common import LINE


def same_set_rows(step: int, caches: Caches) -> int:
    """Rows of a tile that may lie so many bytes apart: of a multiple of 4096, the lines that they are read from are all in one set of the
    first level, which has a place for as many as it has ways, of 2048, in two, of 4092, for long in one or its neighbour. What streams past
    them takes the place of one for a moment. 512 x 1023 x 513 in f32 takes 4.93 ms in tiles of 8 rows, and 5.39 of 13."""
    return next((rows for rows in range(1, MANY_ROWS) if lines_of_a_set(step, rows + 1) > caches.first_ways), MANY_ROWS)


MANY_ROWS = 64
"""No register tile has as many."""


SETS = 4096
"""Bytes from a line to the next one in the same set of the first level."""


def lines_of_a_set(step: int, rows: int) -> int:
    """Of the lines where so many rows begin, so many bytes apart: those in the set of the first level that has most of them."""
    lines = {row * step // LINE for row in range(rows)}
    return max(Counter(line % (SETS // LINE) for line in lines).values())


def same_set_lines(step: int, caches: Caches) -> int:
    """Lines so many bytes apart that the second level has room for."""
    return caches.second // math.gcd(step, SECOND_SETS)


SECOND_SETS = 128 << 10
"""Bytes from a line to the next one in the same set of the second level, if it has 2048 sets: 1 MB of 8 ways, 2 MB of 16. Others have half
as many, or twice; then the number of lines is a guess."""


def rows_bytes(caches: Caches) -> int:
    """Of a block of the rows, or of a panel, where a reduction is cut: a fifth of the second level. The next block of a panel, which is
    fetched, and the sums have the rest."""
    return caches.second // 5


def tile_panel_bytes(caches: Caches) -> int:
    """Of a panel that is not cut, where a product runs on AMX tiles: two thirds of the first level. The rows stream past it from the
    second, which cannot deliver both at the rate of the unit, and the sums of two register tiles take the rest."""
    return caches.first * 2 // 3


def tile_block_bytes(caches: Caches) -> int:
    """Of a block of a panel that is cut: half of the first level, since more sums wait there for the next block."""
    return caches.first // 2


def tile_kept_bytes(caches: Caches) -> int:
    """Of a panel that is not cut though it is larger: three quarters of the first level. What streams past them, rows and the rest of the
    panel, and the sums of two register tiles have the last one (768 columns: with half of the first level 3% more, with five sixths 1%)."""
    return caches.first * 3 // 4


def resident(caches: Caches) -> int:
    """Bytes of an operand that stay in the second level while the others pass through it: half of it."""
    return caches.second // 2
