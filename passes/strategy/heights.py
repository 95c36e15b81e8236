"""How many rows a register tile has, so that many rows are few tiles of about the same height."""

from __future__ import annotations

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
    """Heights of the register tiles, beside one of `rows`, where their number is a symbol: both together hold what whole tiles leave.

    The lowest has as many sums as hide the latency of an addition; fewer take as long.
    """
    low = min(-(-SUMS_UNDER_WAY // columns), rows)
    high = min(rows - 1 - low, ROW_POINTERS)
    return (high, low) if high > low else (low,)


ROW_POINTERS = 9
"""Of 16 general registers: rows that may be missing have an address each, as those are not equally far apart."""
