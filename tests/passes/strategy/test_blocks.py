"""Block sizes follow the caches, and stay what they were where these are those of the first CPUs with AVX-512."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlirc.lowering.caches import Caches
from mlirc.lowering.target import Target
from mlirc.passes.strategy import ContractionStrategy, blocks
from mlirc.passes.strategy.heights import high_row_tile
from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.strategy.test_select import convolution, grouped, product
from mlirc.tests.passes.vectorize.kernels import kernel, strategy


def choice(text: str, caches: Caches, target: str = "x86-64-v4") -> ContractionStrategy:
    s = strategy(text, replace(Target.parse(target), caches=caches))
    assert isinstance(s, ContractionStrategy)
    return s


def linear(m: int, k: int, n: int, kind: str = "f32") -> str:
    """A product with a weight in panels of 32."""
    x, w, y = f"tensor<{m}x{k}x{kind}>", f"tensor<{n // 32}x{k}x32x{kind}>", f"tensor<{m}x{n}x{kind}>"
    body = f"%m = arith.mulf %a0, %a1 : {kind}\n%o = arith.addf %a2, %m : {kind}"
    op = generic("%y", [("%x", x), ("%w", w)], y, ["i, l", "j floordiv 32, l, j mod 32", "i, j"], body, "ppr", "ijl", "0.0", "contraction")
    return kernel([("%x", x), ("%w", w)], op, [("%y", y)], [[n, 1]])


@pytest.mark.parametrize("ways, rows", [(8, 8), (12, 12), (16, 13)])
def test_rows_that_lie_in_one_set_of_the_first_level_are_as_many_as_it_has_ways(ways, rows):
    assert choice(linear(168, 1024, 512), Caches(first_ways=ways)).rows == rows
    assert choice(linear(168, 1000, 512), Caches(first_ways=ways)).rows == 13


@pytest.mark.parametrize("step, rows", [(4096, 8), (8192, 8), (2048, 16), (1024, 32), (4092, 9), (4100, 8), (3072, 32), (64, 64), (4, 64), (4000, 64)])
def test_rows_whose_lines_fit_their_sets(step: int, rows: int) -> None:
    """Neighbours of multiples of 4096 drift through the sets; rows in one line take one place."""
    assert blocks.same_set_rows(step, Caches(first_ways=8)) == rows


@pytest.mark.parametrize(
    "second, m, k, depth",
    [
        (2 << 20, 128, 3072, 768), (2 << 20, 512, 3072, 768), (2 << 20, 512, 2048, 688), (2 << 20, 128, 2048, 688), (2 << 20, 512, 1536, None),
        (2 << 20, 16, 3072, None), (1 << 20, 128, 3072, 384), (256 << 10, 512, 4096, 112),
    ],
)  # fmt: skip
def test_a_block_of_the_rows_is_a_fifth_of_the_second_level(second: int, m: int, k: int, depth: int | None) -> None:
    s = choice(linear(m, k, 1024), Caches(second=second))
    assert s.depth == depth and s.rows_copied == (depth is not None) and (depth is None) == (s.group == 1)
    if depth is not None:
        assert (depth - 16) * 128 * 4 <= second // 5
        assert s.rows == 13 and s.row_tiles * s.rows * s.group * 128 <= 512 << 10 and 4 * -(-m // (s.rows * s.row_tiles)) >= m // 32


@pytest.mark.parametrize(("second", "m", "k", "cut", "copied"), [
    (2 << 20, 16, 4096, True, False), (2 << 20, 39, 8192, True, False), (1 << 20, 32, 2048, True, False), (2 << 20, 64, 3072, True, True),
    (2 << 20, 0, 14336, False, False), (2 << 20, 13, 14336, False, False), (2 << 20, 32, 2048, False, False), (2 << 20, 48, 2048, False, False), (4 << 20, 64, 3072, False, False),
], ids=["two tiles", "three", "a smaller cache", "many", "none", "one", "short", "few", "a larger cache"])  # fmt: skip
def test_a_panel_that_several_tiles_read_stays_in_the_second_level(second: int, m: int, k: int, cut: bool, copied: bool) -> None:
    """With the next one, which is fetched, and the rows; those of few tiles are not copied."""
    s = choice(linear(m, k, 1024), Caches(second=second, first_ways=16))
    assert (s.depth is not None) == cut and s.rows_copied == copied


def test_few_panels_or_unknown_rows_are_not_cut():
    assert choice(linear(512, 4096, 96), Caches()).depth is None
    assert "too few" in choice(linear(512, 4096, 96), Caches()).why["depth"]


def test_elements_of_64_bits_take_half_the_depth():
    wide, narrow = (choice(linear(512, 16384, 1024, kind), Caches()) for kind in ("f64", "f32"))
    assert wide.depth is not None and narrow.depth is not None
    assert abs(wide.depth - narrow.depth // 2) < 16


def test_what_stays_in_the_second_level_need_not_be_read_once():
    text = convolution(14, 128, 128)
    assert choice(text, Caches(second=1 << 20)).lanes_first
    assert not choice(text, Caches(second=2 << 20)).lanes_first


def test_every_choice_has_its_reason():
    s = choice(linear(512, 16000, 1024), Caches())
    for name in ("rows", "columns", "depth", "group", "row_tiles", "rows_copied", "lanes_first", "fetch_ahead", "looped_epilogue", "grain"):
        assert s.why[name] and "\n" not in s.why[name]
    assert "a block of them" in s.why["depth"] and "26 for sums" in s.why["rows"]
    assert "room for 8;" in choice(linear(168, 1024, 512), Caches()).why["rows"]


@pytest.mark.parametrize("rows, tile", [(128, 13), (197, 12), (512, 14), (16, 8), (28, 14), (15, 8)])
def test_tiles_that_read_their_panels_from_the_second_level_are_high(rows: int, tile: int) -> None:
    assert high_row_tile(rows, 14, 4) == tile


@pytest.mark.parametrize(
    "m, k, n, parts",
    [(128, 768, 768, 1), (197, 768, 768, 1), (512, 768, 768, 4), (2048, 768, 768, 15), (2048, 256, 4096, 5), (512, 3072, 768, 1)],
)
def test_rows_that_do_not_fit_the_second_level_come_in_parts_that_do(m: int, k: int, n: int, parts: int) -> None:
    s = choice(linear(m, k, n), Caches(second=2 << 20))
    block = s.rows * s.row_tiles
    if parts == 1:
        assert s.near is None
    else:
        assert s.near == 1 and -(-m // block) == parts and 128 <= block + s.rows and block * k * 4 <= 450 << 10
        assert f"has room for {block}" in s.why["near"]


@pytest.mark.parametrize("m, k, n, end_to_end", [(512, 64, 64, True), (512, 100, 992, True), (40, 512, 256, True), (197, 768, 768, False)])
def test_where_all_panels_stay_in_the_second_level_results_are_stored_row_block_by_row_block(m: int, k: int, n: int, end_to_end: bool) -> None:
    s = choice(linear(m, k, n), Caches(second=2 << 20))
    assert (s.near == 1 and s.row_tiles == 4 and "end to end" in s.why["near"]) == end_to_end


@pytest.mark.parametrize("m, n, fetch", [(128, 768, True), (128, 256, True), (128, 64, True), (4, 768, True), (4, 256, False), (1, 256, False), (1, 768, True)])
def test_panels_that_may_not_be_in_the_second_level_are_fetched_ahead(m: int, n: int, fetch: bool) -> None:
    assert choice(linear(m, 768, n), Caches(second=2 << 20)).fetch_ahead == fetch
    assert not choice(linear(m, 48, 64), Caches()).fetch_ahead


@pytest.mark.parametrize("groups, rows", [(16, 28), (32, 14), (64, 12)])
def test_rows_that_evict_one_another_are_in_tiles_of_fewer(groups: int, rows: int) -> None:
    """16 channels of each: 1, 2 or 4 KB from position to position of lines of 56; a first level of 12 ways."""
    assert choice(grouped(56, 16, groups), Caches(first=48 << 10, first_ways=12, second=2 << 20)).rows == rows


@pytest.mark.parametrize("m, k, n, columns, rows", [
    (1, 1024, 128, 8, 1), (2, 1024, 128, 8, 2), (4, 1024, 128, 4, 4), (1, 40, 40, 3, 1), (512, 512, 64, 4, 6), (512, 512, 20, 2, 14), (64, 3072, 768, 2, 13),
])  # fmt: skip
def test_tiles_of_an_operand_that_is_not_packed_are_wide(m: int, k: int, n: int, columns: int, rows: int) -> None:
    """As wide as registers allow, in parts of the same width; not where several tiles read more of it than stays in the second level."""
    s = choice(product(m, k, n), Caches(second=1 << 20))
    assert (s.columns, s.rows) == (columns, rows) and s.rows * s.columns + s.columns < 32
