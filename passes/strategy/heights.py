"""How many rows a register tile has, so that many rows are few tiles of about the same height."""

from __future__ import annotations

import functools
from dataclasses import dataclass

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
    705 us on a Granite Rapids with 16 tiles of 8 rows, and 670 with nine of 13 and one of 11.
    """

    def rows_worth(rows: int) -> int:
        rest = size % rows
        return size // rows * (max(rows, low) + 1) + (max(rest, low) + 1 if rest else 0)

    return min(range(min(limit, size), min(limit, size) // 2, -1), key=lambda rows: (rows_worth(rows), size % rows != 0))


def short_tiles(rows: int, columns: int) -> tuple[int, ...]:
    """Heights of the register tiles, falling, beside one of `rows`, where their number is a symbol.

    The lowest has as many sums as hide the latency of an addition; fewer take as long. Two of the highest, where it is a half, hold a
    whole tile and two or three rows more (16 beside tiles of 13 or 14); the third height and the lowest hold a row more than the highest.
    """
    low = min(-(-SUMS_UNDER_WAY // columns), rows)
    high = min((rows + 3) // 2, ROW_POINTERS, rows)
    return tuple(dict.fromkeys(sorted((low, max(high, low), max(high + 1 - low, low)), reverse=True)))


@dataclass(frozen=True)
class Rest:
    """How some rows are computed: so many tiles of each height, in their order."""

    tiles: tuple[int, ...]
    rows: int
    """Of these tiles."""

    @property
    def cost(self) -> float:
        """In rows: a tile also reads its panel, and has a begin and an end."""
        return self.rows + TILE * sum(self.tiles)


TILE = 0.5


@functools.cache
def cover(left: int, heights: tuple[int, ...]) -> Rest:
    """The cheapest tiles of some heights, falling, that hold so many rows."""
    if left <= 0:
        return Rest((0,) * len(heights), 0)
    found = []
    for n, height in enumerate(heights):
        rest = cover(left - height, heights)
        found.append(Rest(tuple(count + (n == k) for k, count in enumerate(rest.tiles)), rest.rows + height))
    return min(found, key=lambda rest: rest.cost)


MOST_SHARED = 16
"""Rows of a tile above which none is shared out: `vectorize.contraction` has two bits for the tiles of a height, three at most."""


def shares_one(left: int, rows: int, heights: tuple[int, ...]) -> bool:
    """Whether it is cheaper to share the last whole tile of `rows` out to short ones, with what is left."""
    return rows <= MOST_SHARED and left > 0 and cover(left + rows, heights).cost < rows + TILE + cover(left, heights).cost


ROW_POINTERS = 9
"""Of 16 general registers: rows that may be missing have an address each, as those are not equally far apart."""
