"""Which tiles hold a number of rows that is known when a kernel runs."""

import pytest

from mlirc.passes.strategy.heights import cover, hiding, high_row_tile, shares_one, short_tiles

UP_TO_8 = (8, 7, 6, 5, 4, 3, 2, 1)


@pytest.mark.parametrize(
    "rows, columns, heights",
    [(14, 2, UP_TO_8), (13, 2, UP_TO_8), (8, 2, UP_TO_8[1:]), (6, 2, (5, 4, 3, 2, 1)), (6, 4, (4, 3, 2, 1)), (28, 1, (9, 8)), (1, 2, (1,)), (2, 2, (1,))],
)
def test_heights_beside_a_whole_tile(rows: int, columns: int, heights: tuple[int, ...]) -> None:
    assert short_tiles(rows, columns) == heights


@pytest.mark.parametrize("left, tiles", [(0, (0, 0, 0)), (3, (0, 0, 1)), (5, (0, 1, 0)), (7, (1, 0, 0)), (9, (0, 1, 1)), (16, (2, 0, 0))])
def test_the_cheapest_tiles(left: int, tiles: tuple[int, ...]) -> None:
    assert cover(left, (8, 5, 4), 4).tiles == tiles


@pytest.mark.parametrize("left, heights", [(1, [1]), (3, [3]), (8, [8]), (9, [5, 4]), (12, [8, 4]), (16, [8, 8])])
def test_where_each_low_height_is_there_no_row_is_computed_in_vain(left: int, heights: list[int]) -> None:
    rest = cover(left, UP_TO_8, 4)
    assert [height for height, count in zip(UP_TO_8, rest.tiles) for _ in range(count)] == heights and rest.rows == left


def test_two_tiles_are_of_about_the_same_height() -> None:
    assert shares_one(3, 13, UP_TO_8, 4) and shares_one(1, 13, UP_TO_8, 4) and not shares_one(5, 13, UP_TO_8, 4)
    assert [high_row_tile(rows, 13, 4) for rows in (15, 17, 19, 28, 128)] == [8, 9, 10, 10, 13]


@pytest.mark.parametrize("rows", range(1, 31))
@pytest.mark.parametrize("columns", range(1, 9))
def test_all_rows_are_held_and_few_are_computed_in_vain(rows: int, columns: int) -> None:
    heights, least = short_tiles(rows, columns), hiding(columns)
    assert list(heights) == sorted(set(heights), reverse=True) and heights[0] <= rows
    for left in range(rows):
        shared = shares_one(left, rows, heights, least)
        rest = cover(left + rows * shared, heights, least)
        held = sum(count * height for count, height in zip(rest.tiles, heights))
        assert held == rest.rows >= left + rows * shared
        assert held == left + rows * shared or heights[-1] > 1, "a tile has no rows that there are not"
        assert max(rest.tiles[:-1], default=0) <= 3, "they are two bits in the code"
        assert rest.rows - rows * shared <= cover(left, heights, least).rows < left + max(heights)
