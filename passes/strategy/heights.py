"""How many rows a register tile has, so that many rows are few tiles of about the same height."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...dialects import builders
from ...dialects.mlir import ir
from .fetching import levels_compete

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..vectorize.kernel import KernelFunction
    from ..vectorize.roles import Roles

SUMS_UNDER_WAY = 8
"""At once: two products a cycle, which take four cycles each."""


def row_tile(size: object, limit: int, low: int = 0) -> int:
    """Rows per register tile: a divisor of the rows if a good one exists, higher than `low`, else tiles of about the same height."""
    if not isinstance(size, int):
        return limit
    for rows in range(limit, max(limit // 2, low), -1):
        if size % rows == 0:
            return rows
    return max(1, -(-size // max(1, -(-size // limit))))


def high_row_tile(size: int, limit: int, low: int) -> int:
    """The same where each tile reads its panel from the second-level cache, which takes as long as a row: fewer tiles are better than even ones.

    A tile of less than `low` rows takes as long as one of `low`, whose sums hide the latency of an addition. 128 x 768 x 768 in f32 takes
    705 us on a Granite Rapids with 16 tiles of 8 rows, and 670 with nine of 13 and one of 11. Of as many tiles, those of about the same
    height are best: each fetches as much of the next panel. 17 x 768 x 3072 takes 0.6 of the time with weights from memory, and 0.9 in the
    third level, by 9 and 8 rows instead of 13 and 4 (Zen 5).
    """

    def rows_worth(rows: int) -> int:
        rest = size % rows
        return size // rows * (max(rows, low) + 1) + (max(rest, low) + 1 if rest else 0)

    return min(range(min(limit, size), min(limit, size) // 2, -1), key=lambda rows: (rows_worth(rows), size % rows != 0, rows))


LOW_TILE, LOW_TILES_FROM = 8, 28
"""Rows of a tile at most, of so many rows and more."""


def low_tiles(kernel: KernelFunction, r: Roles, target: Target) -> bool:
    """Whether rows that are read where they are have tiles of less than all registers, on a CPU that multiplies one vector of 512 bits a cycle.

    Tiles of 13 or 14 rows and of 8 on a Zen 4, in f32, in ms:

        rows x reduction x columns                    3x3, channels of pixels
        128 x 640 x 640      0.930  0.905             64 of 160 x 239     26.0  25.1
        1024 x 768 x 768     11.0   10.6              64 of 112 x 112     9.3   8.7
        512 x 768 x 3072     23.2   22.5              128 of 56 x 56      8.4   8.3
        8192 x 64 x 256      2.76   2.52
        512 x 320 x 1280     3.81   3.81
        512 x 96 x 384       0.339  0.339

    14 to 24 rows take as long either way, and all in bf16; copied rows take up to 13% longer.
    """
    d, op = kernel.domain, kernel.domain.anchor
    rows = d.sizes[r.row] if r.row is not None else 1
    plain = op is not None and all(isinstance(builders.element_type(v), ir.F32Type) for v in op.operands)
    return plain and target.has_avx512 and levels_compete(target) and isinstance(rows, int) and rows >= LOW_TILES_FROM


def hiding(columns: int) -> int:
    """The rows of a register tile whose sums hide the latency of an addition."""
    return -(-SUMS_UNDER_WAY // columns)


def short_tiles(rows: int, columns: int) -> tuple[int, ...]:
    """Heights of the register tiles, falling, beside one of `rows`, where their number is a symbol.

    Where few rows hide the latency of an addition, there are tiles of each height up to twice theirs (and more beside very high ones): any
    number of rows is that of some tiles, and none is computed in vain. Else (of one column) the lowest hides it, and rows may be missing.
    """
    low = min(hiding(columns), rows)
    if low <= FEW_HIDING:
        return tuple(range(max(min(2 * low, rows - 1), -(-rows // MOST_OF_A_HEIGHT), 1), 0, -1))
    return tuple(dict.fromkeys((max(min((rows + 3) // 2, ROW_POINTERS, rows), low), low)))


def hold_any(heights: tuple[int, ...]) -> bool:
    """Whether tiles of these heights, falling, hold any number of rows, none of which is missing."""
    return heights[-1] == 1


def share_ahead(level: int, short: tuple[int, ...]) -> bool:
    """Whether the two tiles that few rows of a symbolic number may be both fetch of the next panel, with tiles of these heights beside whole ones.

    Into the second level: 9 x 768 x 3072 from memory takes 443 instead of 612 us on a Zen 4, 12 rows 545 and 577. Lines would go through the
    first level twice: 10% slower on a Zen 5, with the weights in the third level.
    """
    return level == 2 and hold_any(short)


MOST_OF_A_HEIGHT = 3
"""Tiles: `vectorize.contraction` has two bits for their number."""

FEW_HIDING = 4
"""Rows, as two columns have them. 768 x 3072 in the third-level cache of a Zen 5, where rows are a symbol, takes so many times what it takes
where they are known, with tiles of 13, 8, 5 and 4 rows, of which some may be missing, and with those of 13 and of each height up to 8:

    rows     2     4     6     7     9    12    14    15    16    22
    bf16  1.38  1.31  1.24  1.15  1.44  1.21  1.35  1.24  1.03  1.17
          1.01  1.10  1.06  1.05  1.22  1.05  1.04  1.03  1.03  1.06
    f32   1.12  1.06  1.38  1.19  1.17  1.09  1.24  1.11  1.03  1.13
          1.05  1.07  1.04  1.03  1.11  1.04  1.01  1.02  1.01  1.02

Code of as many rows takes 85 to 100 instead of 58 ms to compile.
"""


@dataclass(frozen=True)
class Rest:
    """How some rows are computed: so many tiles of each height, in their order."""

    tiles: tuple[int, ...]
    rows: int
    """Of these tiles."""
    cost: float
    """In rows: a tile also reads its panel, and has a begin and an end, and one of few rows takes as long as one that hides the latency."""


TILE = 1.0
"""What a tile costs beside its rows: its panel comes from the second-level cache, as in `high_row_tile`."""


def cost_of_tile(height: int, least: int) -> float:
    """In rows, of which less than `least` hide no latency."""
    return max(height, least) + TILE


@functools.cache
def cover(left: int, heights: tuple[int, ...], least: int) -> Rest:
    """The cheapest tiles of some heights, falling, that hold so many rows; no more if one has a single row. What is below `least` rows takes as
    long as these."""
    if left <= 0:
        return Rest((0,) * len(heights), 0, 0.0)
    found = []
    for n, height in enumerate(heights):
        if height > left and hold_any(heights):
            continue
        rest = cover(left - height, heights, least)
        tiles = tuple(count + (n == k) for k, count in enumerate(rest.tiles))
        found.append(Rest(tiles, rest.rows + height, rest.cost + cost_of_tile(height, least)))
    return min(found, key=lambda rest: rest.cost)


MOST_SHARED = 16
"""Rows of a tile above which none is shared out: the rows of two may be more than `MOST_OF_A_HEIGHT` short tiles hold."""


def shares_one(left: int, rows: int, heights: tuple[int, ...], least: int) -> bool:
    """Whether it is no dearer to share the last whole tile of `rows` out to short ones, with what is left: tiles of about the same height
    fetch the next panel side by side with their products."""
    together = cover(left + rows, heights, least)
    return rows <= MOST_SHARED and left > 0 and together.cost <= cost_of_tile(rows, least) + cover(left, heights, least).cost


ROW_POINTERS = 9
"""Of 16 general registers: rows that may be missing have an address each, as those are not equally far apart."""
