"""AMX kernels: what is decided for a CPU that has it, and the assembly."""

from __future__ import annotations

import dataclasses
import re

import pytest

from mlirc import driver
from mlirc.errors import OptionError
from mlirc.lowering.caches import Caches
from mlirc.lowering.target import Target
from mlirc.passes.strategy import MODEL, Adjustment, ContractionStrategy
from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import kernel, strategy

LINEAR = """
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n floordiv 32, k floordiv 2, n mod 32, k mod 2)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func @kernel(%x: tensor<70x96xbf16>, %w: tensor<3x48x32x2xbf16>) -> tensor<70x80xf32>
    attributes {mlirc.result_strides = [["80", "1"]]} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<70x80xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<70x80xf32>) -> tensor<70x80xf32>
  %0 = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<70x96xbf16>, tensor<3x48x32x2xbf16>) outs(%i : tensor<70x80xf32>)
      attrs = {mlirc.kind = "contraction", mlirc.words = 2 : i32} {
  ^bb0(%a: bf16, %b: bf16, %s: f32):
    %u = arith.extf %a : bf16 to f32
    %v = arith.extf %b : bf16 to f32
    %p = arith.mulf %u, %v : f32
    %t = arith.addf %s, %p : f32
    linalg.yield %t : f32
  } -> tensor<70x80xf32>
  return %0 : tensor<70x80xf32>
}
"""


def symbolic(text: str) -> str:
    """`LINEAR` with a symbolic number of rows."""
    text = text.replace("%w: tensor<3x48x32x2xbf16>)", "%w: tensor<3x48x32x2xbf16>, %n: index)")
    return text.replace("70x96", "?x96").replace("70x80", "?x80").replace("tensor.empty()", "tensor.empty(%n)")


def deep(text: str) -> str:
    """`LINEAR` with a reduction of 1,024."""
    return text.replace("x96xbf16", "x1024xbf16").replace("3x48x32x2", "3x512x32x2")


def taps(text: str) -> str:
    """`LINEAR` with two reductions, of five and 96."""
    text = text.replace("(m, n, k)", "(m, n, j, k)").replace("(m, k)", "(m, j, k)").replace("(n floordiv 32, ", "(n floordiv 32, j, ")
    return text.replace("70x96x", "70x5x96x").replace("3x48x", "3x5x48x").replace("mlirc.words = 2", "mlirc.words = 3").replace('"reduction"', '"reduction", "reduction"')


def image(width: int, pitch: int, height: int = 14, turned: bool = False) -> str:
    """3 x 3 of [height + 2][pitch][64] channels-last, `width` positions to a line, to 64 channels."""
    x, w, y = f"tensor<{height + 2}x{pitch}x64xbf16>", "tensor<2x3x3x32x32x2xbf16>", f"tensor<{height}x{width}x64xf32>"
    maps = ["h + i, w + j, c", "o floordiv 32, i, j, c floordiv 2, o mod 32, c mod 2", "h, w, o"]
    body = "%u = arith.extf %a0 : bf16 to f32\n%v = arith.extf %a1 : bf16 to f32\n%m = arith.mulf %u, %v : f32\n%o = arith.addf %a2, %m : f32"
    op = generic("%y", [("%x", x), ("%w", w)], y, maps, body, "ppprrr", ["h", "w", "o", "i", "j", "c"], "0.0", "convolution")
    op = op.replace('mlirc.kind = "convolution"', 'mlirc.kind = "convolution", mlirc.words = 5 : i32')
    return kernel([("%x", x), ("%w", w)], op, [("%y", y)], [[width, 1, height * width] if turned else [width * 64, 64, 1]])


@pytest.mark.parametrize(("width", "pitch", "joined"), [(14, 16, True), (28, 30, True), (20, 22, True), (56, 58, True), (32, 34, False), (14, 30, False)])
@pytest.mark.parametrize("turned", [False, True])
def test_lines_of_an_image_are_joined_where_that_takes_fewer_tiles(width: int, pitch: int, joined: bool, turned: bool) -> None:
    s = strategy(image(width, pitch, turned=turned), "sapphirerapids")
    assert isinstance(s, ContractionStrategy) and s.tiles and s.turned == turned
    assert (s.lines is not None, s.pitch) == ((True, pitch) if joined else (False, 0))
    assert s.rows == (14 if width == 14 and not joined else 32)


def grouped(channels: int, columns: int, groups: int, bias: str | None = None) -> str:
    """3 x 3 of [16][16][groups][channels], 14 positions to a line, to as many groups of columns, perhaps and something else of these sizes."""
    x, w = f"tensor<16x16x{groups}x{channels}xbf16>", f"tensor<{groups}x1x3x3x{channels // 2}x32x2xbf16>"
    y = f"tensor<14x14x{groups}x{columns}xf32>"
    maps = ["h + i, w + j, g, c", "g, o floordiv 32, i, j, c floordiv 2, o mod 32, c mod 2", "h, w, g, o"]
    body = "%u = arith.extf %a0 : bf16 to f32\n%v = arith.extf %a1 : bf16 to f32\n%m = arith.mulf %u, %v : f32\n%o = arith.addf %a2, %m : f32"
    op = generic("%y", [("%x", x), ("%w", w)], y, maps, body, "pppprrr", ["h", "w", "g", "o", "i", "j", "c"], "0.0", "convolution")
    op = op.replace('mlirc.kind = "convolution"', 'mlirc.kind = "convolution", mlirc.words = 6 : i32')
    strides, arguments = [[14 * groups * columns, groups * columns, columns, 1]], [("%x", x), ("%w", w)]
    if bias is None:
        return kernel(arguments, op, [("%y", y)], strides)
    op += generic("%b", [("%y", y), ("%z", bias)], y, ["h, w, g, o", "o, g", "h, w, g, o"], "%o = arith.addf %a0, %a1 : f32", "pppp", ["h", "w", "g", "o"])
    return kernel([*arguments, ("%z", bias)], op, [("%b", y)], strides)


@pytest.mark.parametrize(("channels", "columns", "groups", "bias", "together"), [
    (8, 8, 32, None, True), (4, 4, 8, None, True), (2, 16, 4, None, True), (32, 8, 4, None, True),
    (8, 8, 6, None, False), (32, 32, 4, None, False), (8, 8, 32, "tensor<8x32xf32>", False),
], ids=lambda x: str(x))  # fmt: skip
def test_groups_of_few_columns_share_an_epilogue(channels: int, columns: int, groups: int, bias: str | None, together: bool) -> None:
    """If some of them have 32 columns, and all that is read and stored has them side by side."""
    text = grouped(channels, columns, groups, bias)
    s = strategy(text, "sapphirerapids")
    assert isinstance(s, ContractionStrategy) and s.tiles and s.lines is not None
    assert (s.groups is not None) == together and s.columns == (1 if not together and columns < 32 else 2)


@pytest.mark.parametrize("columns", [8, 16])
def test_a_batch_with_few_columns_is_no_convolution(columns: int) -> None:
    """Though its results lie side by side, as those of the heads of attention: it may have a rest of k, and copies of its rows."""
    x, w, y = "tensor<33x4x40xbf16>", "tensor<4x1x32x32x2xbf16>", f"tensor<33x4x{columns}xf32>"
    maps = ["m, g, k", "g, n floordiv 32, k floordiv 2, n mod 32, k mod 2", "m, g, n"]
    body = "%u = arith.extf %a0 : bf16 to f32\n%v = arith.extf %a1 : bf16 to f32\n%m = arith.mulf %u, %v : f32\n%o = arith.addf %a2, %m : f32"
    op = generic("%y", [("%x", x), ("%w", w)], y, maps, body, "pppr", ["m", "g", "n", "k"], "0.0", "contraction")
    op = op.replace('mlirc.kind = "contraction"', 'mlirc.kind = "contraction", mlirc.words = 3 : i32')
    s = strategy(kernel([("%x", x), ("%w", w)], op, [("%y", y)], [[4 * columns, columns, 1]]), "sapphirerapids")
    assert isinstance(s, ContractionStrategy) and s.tiles and s.groups is None


def test_tiles_of_a_group_have_its_channels_and_columns() -> None:
    """Two of sums, which nothing is spilled of; of the weights, as many rows as there are pairs of channels."""
    code = _asm(grouped(8, 8, 32))["k_tiles16"]
    assert code.count("ldtilecfg") == code.count("tilerelease") == 1
    (loop,) = _loops(code)
    assert (loop.count("tdpbf16ps"), loop.count("tileloadd")) == (2, 3)
    assert code.count("tilestored") == 2, "tiles are spilled"


def test_lines_that_are_joined_have_pairs_of_tiles() -> None:
    joined, alone = (_asm(image(14, 16), adjustment=a) for a in (MODEL, Adjustment((("lines", None), ("rows", 14), ("row_tiles", 1)), pinned=True)))
    assert max(loop.count("tdpbf16ps") for loop in _loops(joined["k_tiles16"])) == 4
    assert max(loop.count("tdpbf16ps") for loop in _loops(alone["k_tiles14"])) == 2


NORM = """
  %n = tensor.empty() : tensor<70x80xbf16>
  %1 = linalg.generic {indexing_maps = [#d, #p, #p, #d], iterator_types = ["parallel", "parallel"]}
      ins(%0, %g, %h : tensor<70x80xf32>, tensor<80xf32>, tensor<80xf32>) outs(%n : tensor<70x80xbf16>) {
  ^bb0(%a: f32, %b: f32, %c: f32, %o: bf16):
    %r = arith.truncf %a : f32 to bf16
    %u = arith.extf %r : bf16 to f32
    %p = math.fma %u, %b, %c : f32
    %t = arith.truncf %p : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<70x80xbf16>
  return %1 : tensor<70x80xbf16>"""


def test_what_an_epilogue_reads_for_all_rows_is_loaded_once() -> None:
    """And sums that tiles have flushed are rounded by one instruction for two vectors."""
    norm = NORM.replace("#d", "affine_map<(m, n) -> (m, n)>").replace("#p", "affine_map<(m, n) -> (n)>")
    text = LINEAR.replace("  return %0 : tensor<70x80xf32>", norm).replace(") -> tensor<70x80xf32>\n    attr", ") -> tensor<70x80xbf16>\n    attr")
    text = text.replace("3x48x32x2xbf16>)", "3x48x32x2xbf16>, %g: tensor<80xf32>, %h: tensor<80xf32>)", 1)
    parts = _asm(text)["k_tiles16"].split("\n.L")
    whole = [loop for loop in parts if "vcvtne2ps2bf16" in loop and "tdpbf16ps" not in loop]
    assert whole
    for loop in whole:
        # Two loads of the sums, one of which the instruction does, and two fma of what is in registers.
        assert len(re.findall(r"vmov\w+\s+\S*\(.*\), %zmm", loop)) <= 1 and loop.count("vfmadd") == 2 and "vpermt2ps" not in loop, loop


def _asm(text: str, target: Target | None = None, adjustment: Adjustment = MODEL) -> dict[str, str]:
    """The functions of a kernel, and under "strategy" that stage."""
    seen: dict[str, str] = {}
    see = lambda name, what: seen.update({name: str(what)})  # noqa: E731
    driver.compile_kernel(text, target or Target.parse("sapphirerapids"), "k", see, adjustment=adjustment)
    functions = re.split(r"\n(?=k\w*:)", seen["asm"])
    return {"strategy": seen["strategy"], **{f.split(":")[0]: f for f in functions}}


SCALED = """
  %n = tensor.empty() : tensor<70x80xf32>
  %1 = linalg.generic {indexing_maps = [#d, #d, #d], iterator_types = ["parallel", "parallel"]}
      ins(%0, %g : tensor<70x80xf32>, tensor<70x80xbf16>) outs(%n : tensor<70x80xf32>) {
  ^bb0(%a: f32, %b: bf16, %o: f32):
    %u = arith.extf %b : bf16 to f32
    %p = arith.mulf %a, %u : f32
    linalg.yield %p : f32
  } -> tensor<70x80xf32>
  return %1 : tensor<70x80xf32>""".replace("#d", "affine_map<(m, n) -> (m, n)>")
"""A product with another tensor."""


def scaled(rows: int, columns: int, depth: int) -> str:
    text = LINEAR.replace("  return %0 : tensor<70x80xf32>", SCALED).replace("3x48x32x2xbf16>)", "3x48x32x2xbf16>, %g: tensor<70x80xbf16>)", 1)
    text = text.replace("3x48x", f"{columns // 32}x{depth // 2}x").replace("70x96x", f"{rows}x{depth}x").replace("70x80x", f"{rows}x{columns}x")
    return text.replace('["80", "1"]', f'["{columns}", "1"]')


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "ahead"),
    [(3136, 256, 64, True), (1024, 3072, 768, True), (192, 768, 768, False), (1024, 768, 3072, False)],
    ids=["few steps", "much", "little", "many steps"],
)
def test_what_an_epilogue_reads_of_rows_is_fetched_before(rows: int, columns: int, depth: int, ahead: bool) -> None:
    functions = _asm(scaled(rows, columns, depth), target=dataclasses.replace(Target.parse("sapphirerapids"), caches=Caches(48 << 10, 12, 2 << 20)))
    assert f"reads_ahead={ahead}" in functions["strategy"]
    epilogues = [part for part in functions["k_tiles16"].split("\n.L") if "vmulps" in part or "vmovups" in part]
    assert any("prefetcht0" in part for part in epilogues) == ahead


def large(rows: int, columns: int, returned: bool = True) -> str:
    """`LINEAR` with a reduction of 96, and a result in f32 that is returned or goes to another kernel."""
    text = LINEAR.replace("3x48x", f"{columns // 32}x48x").replace("70x96x", f"{rows}x96x").replace("70x80x", f"{rows}x{columns}x")
    marks = ", mlirc.returned = array<i64: 0>" if returned else ""
    return text.replace('[["80", "1"]]', f'[["{columns}", "1"]]{marks}')


WITH_2_MB = dataclasses.replace(Target.parse("sapphirerapids"), caches=Caches(48 << 10, 12, 2 << 20))


@pytest.mark.parametrize(("rows", "columns", "returned", "ahead"), [(512, 1056, True, True), (512, 1056, False, False), (512, 992, True, False), (30000, 32, True, False)])
def test_lines_of_what_is_returned_are_fetched_a_lane_block_before(rows: int, columns: int, returned: bool, ahead: bool) -> None:
    """Of 2 MB and more, by those that have another lane block: two lines of f32."""
    functions = _asm(large(rows, columns, returned), target=WITH_2_MB)
    assert f"results_ahead={ahead}" in functions["strategy"] and "streamed=[]" in functions["strategy"]
    fetches = [int(at or 0) for at in re.findall(r"prefetchw\s+(-?\d*)\(", functions["k_tiles16"])]
    assert (len(fetches) > 0 and len(fetches) % 2 == 0) == ahead and (not ahead or {b - a for a, b in zip(fetches[::2], fetches[1::2])} == {64})


@pytest.mark.parametrize(("rows", "columns", "returned", "past"), [(1024, 1024, True, True), (1024, 1024, False, False), (1023, 1024, True, False), (4096, 480, True, False)])
def test_what_is_returned_in_rows_far_apart_is_stored_past_the_caches(rows: int, columns: int, returned: bool, past: bool) -> None:
    """Of 4 MB and more, where rows are 2 KB apart; lines that are not read before they are written are not fetched, either."""
    functions = _asm(large(rows, columns, returned), target=WITH_2_MB)
    assert f"streamed=[{'0' * past}]" in functions["strategy"] and ("vmovntps" in functions["k_tiles16"]) == past
    assert f"results_ahead={returned and not past}" in functions["strategy"]


def _loops(function: str) -> list[str]:
    """The innermost loops over k, by their products."""
    return [part for part in function.split("\n.L") if "tdpbf16ps" in part]


def test_tiles_are_configured_once_and_not_spilled() -> None:
    functions = _asm(LINEAR)
    assert [f for f in functions if "tiles" in f] == ["k_tiles16"]
    code = functions["k_tiles16"]
    assert code.count("ldtilecfg") == code.count("tilerelease") == 1
    # 70 rows = 2 x 32 + 6, which 16 rows with ten of those before do; 80 columns = 2 x 32 + 16.
    assert sorted(loop.count("tdpbf16ps") for loop in _loops(code)) == [1, 2, 2, 4]
    assert code.count("tilestored") == 9, "tiles are spilled"
    full = next(loop for loop in _loops(code) if loop.count("tdpbf16ps") == 4)
    body = full[: full.rindex("tdpbf16ps")]
    assert body.count("tileloaddt1") == 2 and body.count("tileloadd\t") == 2 and "tilestored" not in body
    single = next(loop for loop in _loops(code) if loop.count("tdpbf16ps") == 2 and loop.count("tileloadd\t") == 2)
    for loop in (full, single):
        assert loop.count("prefetch") == 12, "three register tiles share the 32 lines of a step, in six streams of two"


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "tiles", "copied"),
    [
        (128, 768, 768, 4, False), (128, 768, 3072, 4, True), (384, 768, 768, 12, False), (512, 768, 768, 16, False), (512, 768, 3072, 8, True), (512, 1024, 1024, 16, False),
        (512, 3072, 768, 4, False), (384, 769, 3072, 6, True), (512, 1000, 1024, 6, True),
    ],
)  # fmt: skip
def test_rows_share_a_panel_and_are_copied_where_it_pays(rows: int, depth: int, columns: int, tiles: int, copied: bool) -> None:
    """Up to twelve register tiles, else eight, as far as the second-level cache has room; and as a copy has, for rows that begin within a line."""
    text = LINEAR.replace("3x48x32x2", f"{columns // 32}x{-(-depth // 32) * 16}x32x2").replace("70x96", f"{rows}x{depth}").replace("70x80", f"{rows}x{columns}").replace('["80"', f'["{columns}"')
    text = _asm(text, target=dataclasses.replace(Target.parse("sapphirerapids"), caches=Caches(48 << 10, 12, 2 << 20)))["strategy"]
    assert f"row_tiles={tiles}," in text and f"rows_copied={copied}," in text


@pytest.mark.parametrize("rows", [2, 16, 31])
@pytest.mark.parametrize(("columns", "fetched"), [(3072, True), (320, False)])
def test_few_rows_fetch_panels_that_are_larger_than_the_second_level(rows: int, columns: int, fetched: bool) -> None:
    """All lines of a step, in eight streams; a pair of tiles does so always, for it has work enough to hide them behind."""
    text = LINEAR.replace("x96xbf16", "x768xbf16").replace("3x48x32x2", f"{columns // 32}x384x32x2").replace("80", str(columns)).replace("70x", f"{rows}x")
    found = _asm(text)
    assert "depth=None" in found["strategy"], "a panel of 48 KB is cut for several register tiles only"
    loops = _loops("".join(code for name, code in found.items() if "tiles" in name))
    assert {loop.count("prefetcht1") for loop in loops} == ({32} if fetched or rows > 16 else {0})


@pytest.mark.parametrize("text", [LINEAR, deep(LINEAR), taps(LINEAR)], ids=["linear", "deep", "taps"])
@pytest.mark.parametrize("overlapped", [True, False])
def test_the_epilogue_of_a_register_tile_runs_with_the_products_of_the_next_one(text: str, overlapped: bool) -> None:
    functions = _asm(text, adjustment=MODEL if overlapped else Adjustment((("overlapped", False),)))
    assert f"overlapped={overlapped}" in functions["strategy"]
    products = re.findall(r"tdpbf16ps.*?tilestored", functions["k_tiles16"], re.DOTALL)
    assert any(re.search(r"vmovups\t%zmm\d+, .*\(", part) for part in products) == overlapped


@pytest.mark.parametrize("text", [taps(LINEAR).replace("x5x", "x?x"), LINEAR.replace("x96xbf16", "x30xbf16").replace("3x48x", "3x16x")], ids=["unknown", "none"])
def test_an_epilogue_is_not_shared_out_to_steps_of_unknown_number_or_none(text: str) -> None:
    chosen = strategy(text, Target.parse("sapphirerapids"))
    assert isinstance(chosen, ContractionStrategy) and chosen.tiles and not chosen.overlapped and "steps" in chosen.why["overlapped"]


def test_what_is_not_shared_out_cannot_be_pinned_so() -> None:
    text = LINEAR.replace("x96xbf16", "x30xbf16").replace("3x48x", "3x16x")
    with pytest.raises(OptionError, match="overlapped=true is impossible"):
        _asm(text, adjustment=Adjustment((("overlapped", True),), pinned=True))


def test_results_that_are_contiguous_along_the_rows_are_stored_in_vectors_of_them() -> None:
    functions = _asm(LINEAR.replace('[["80", "1"]]', '[["1", "70"]]'))
    assert "turned=True" in functions["strategy"]
    assert "scatter" not in functions["k_tiles16"] and functions["k_tiles16"].count("ldtilecfg") == 1


def test_no_rows_take_no_tiles() -> None:
    assert not [f for f in _asm(LINEAR.replace("70x", "0x")) if "tiles" in f]


@pytest.mark.parametrize(("rows", "height"), [(5, 5), (15, 15), (16, 16), (17, 16)])
def test_few_rows_have_tiles_of_their_number(rows: int, height: int) -> None:
    functions = _asm(LINEAR.replace("70x", f"{rows}x"))
    assert [f for f in functions if "tiles" in f] == [f"k_tiles{height}"]


def test_a_symbolic_number_of_rows_has_functions_for_its_bits() -> None:
    functions = _asm(symbolic(LINEAR))
    assert {f for f in functions if "tiles" in f} == {f"k_tiles{n}" for n in (16, 8, 4, 2, 1)}


def test_a_long_reduction_is_cut_so_that_the_panel_stays_in_the_first_level() -> None:
    functions = _asm(deep(LINEAR))
    assert "depth=352" in functions["strategy"]
    # Of each shape of block, the first part begins with zeros, the last one is followed by the epilogue.
    assert sorted(loop.count("tdpbf16ps") for loop in _loops(functions["k_tiles16"])) == sorted(3 * [1, 2, 2, 4])
    assert functions["k_tiles16"].count("tilestored") == 3 * 9


@pytest.mark.parametrize(
    ("rows", "depth", "kept", "cut"),
    [(256, 512, None, None), (256, 768, 576, None), (255, 768, None, 384), (512, 800, 576, None), (512, 570, 512, None), (512, 1152, 576, None), (512, 1184, None, 320)],
)
def test_a_panel_that_is_somewhat_too_large_is_not_cut_for_many_rows(rows: int, depth: int, kept: int | None, cut: int | None) -> None:
    """576 elements of a panel of 32 columns are 36 of 48 KB."""
    text = LINEAR.replace("70x", f"{rows}x").replace("x96xbf16", f"x{depth}xbf16").replace("3x48x", f"3x{-(-depth // 32) * 16}x")
    chosen = strategy(text, dataclasses.replace(Target.parse("sapphirerapids"), caches=Caches(48 << 10, 12, 2 << 20)))
    assert isinstance(chosen, ContractionStrategy) and (chosen.kept, chosen.depth) == (kept, cut), chosen.why


def test_what_is_kept_of_a_panel_is_loaded_to_stay_and_the_rest_past_it() -> None:
    text = LINEAR.replace("70x", "64x").replace("80", "64").replace("3x48x", "2x48x")
    functions = _asm(text, adjustment=Adjustment((("kept", 64),), pinned=True))
    first, second = (loop for loop in _loops(functions["k_tiles16"]) if loop.count("tdpbf16ps") == 4)
    assert [part[: part.rindex("tdpbf16ps")].count("tileloaddt1") for part in (first, second)] == [2, 4]
    assert functions["k_tiles16"].count("tilestored") == 4 and functions["k_tiles16"].count("ldtilecfg") == 1


@pytest.mark.parametrize("fields", [{"kept": 96}, {"kept": 48}, {"kept": 32, "depth": 32}])
def test_what_cannot_be_kept_is_an_error(fields: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="kept=.*is impossible for this kernel; valid: (multiples of 32 below 96, or none|none)"):
        _asm(LINEAR, adjustment=Adjustment(tuple(fields.items()), pinned=True))


def test_rows_that_the_second_level_has_no_room_for_are_read_in_chunks() -> None:
    text = LINEAR.replace("x96xbf16", "x8192xbf16").replace("3x48x32x2", "4x4096x32x2").replace("80", "128").replace("70x", "200x")
    functions = _asm(text)
    assert "chunk=1536" in functions["strategy"] and "rows_copied=True" in functions["strategy"]
    code = functions["k_tiles16"]
    assert code.count("ldtilecfg") == 1
    # 200 rows are 6 x 32 and eight that overlap those before: in all chunks but the last, and there.
    assert sorted(loop.count("tdpbf16ps") for loop in _loops(code)) == [2, 2, 4, 4]
    assert code.count("tilestored") == 12, "tiles are spilled"


CHUNKED = LINEAR.replace("x96xbf16", "x8192xbf16").replace("3x48x32x2", "48x4096x32x2").replace("80", "1536").replace("70x", "96x")


@pytest.mark.parametrize("pin", [("rows", 16), ("rows_copied", False), ("depth", 256), ("depth", None), ("chunk", None), ("fetch_ahead", False), ("group", 3)])
def test_a_chunk_follows_from_what_is_pinned(pin: tuple[str, int | bool | None]) -> None:
    assert "group=32" in _asm(CHUNKED)["strategy"]
    text = _asm(CHUNKED, adjustment=Adjustment((pin,), pinned=True))["strategy"]
    assert f"{pin[0]}={pin[1]}" in text


def test_sums_of_a_pinned_group_have_a_limit() -> None:
    fields = (("depth", 32), ("chunk", 32), ("row_tiles", 64), ("group", 32))
    with pytest.raises(OptionError, match="KB of sums between chunks"):
        _asm(CHUNKED, adjustment=Adjustment(fields, pinned=True))


@pytest.mark.parametrize("rows, chunked", [(64, False), (65, True)])
def test_chunks_are_for_more_rows_than_fit(rows: int, chunked: bool) -> None:
    text = LINEAR.replace("x96xbf16", "x8192xbf16").replace("3x48x32x2", "4x4096x32x2").replace("80", "128").replace("70x", f"{rows}x")
    assert ("chunk=None" not in _asm(text)["strategy"]) == chunked
