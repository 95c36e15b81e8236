"""Which tiles hold a number of rows that is known when a kernel runs."""

import pytest

from mlirc.passes.strategy.heights import cover, shares_one, short_tiles


@pytest.mark.parametrize("rows, columns, heights", [(14, 2, (8, 5, 4)), (13, 2, (8, 5, 4)), (6, 4, (4, 3, 2)), (6, 2, (4,)), (1, 2, (1,)), (2, 2, (2,))])
def test_heights_beside_a_whole_tile(rows: int, columns: int, heights: tuple[int, ...]) -> None:
    assert short_tiles(rows, columns) == heights


@pytest.mark.parametrize("left, tiles", [(0, (0, 0, 0)), (3, (0, 0, 1)), (5, (0, 1, 0)), (7, (1, 0, 0)), (9, (0, 1, 1)), (16, (2, 0, 0))])
def test_the_cheapest_tiles(left: int, tiles: tuple[int, ...]) -> None:
    assert cover(left, (8, 5, 4)).tiles == tiles


@pytest.mark.parametrize("rows", range(1, 31))
@pytest.mark.parametrize("columns", range(1, 9))
def test_all_rows_are_held_and_few_are_computed_in_vain(rows: int, columns: int) -> None:
    heights = short_tiles(rows, columns)
    assert list(heights) == sorted(set(heights), reverse=True) and heights[0] <= rows
    for left in range(rows):
        shared = shares_one(left, rows, heights)
        rest = cover(left + rows * shared, heights)
        held = sum(count * height for count, height in zip(rest.tiles, heights))
        assert held == rest.rows >= left + rows * shared
        assert max(rest.tiles[:-1], default=0) <= 3, "they are two bits in the code"
        assert rest.rows - rows * shared <= cover(left, heights).rows < left + max(heights)
