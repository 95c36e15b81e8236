"""AMX kernels: the assembly for a CPU that has it, and their numbers with the tile ops emulated."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable

import pytest
import torch

from mlirc import driver
from mlirc.dialects.mlir import PassManager, ir
from mlirc.dialects.own import load_for
from mlirc.errors import OptionError
from mlirc.lowering.bridge import to_llvm22
from mlirc.lowering.caches import Caches
from mlirc.lowering.codegen import emit_object
from mlirc.lowering.target import Target
from mlirc.lowering.to_llvm import lower_to_llvm_ir
from mlirc.passes.expand_math import expand_math
from mlirc.passes.strategy import MODEL, Adjustment, ContractionStrategy, adjusted, select_strategy
from mlirc.passes.vectorize import KernelFunction, vectorize
from mlirc.tests.amx_emulation import emulate
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


@pytest.fixture
def amx(monkeypatch):
    """torch.compile for this machine plus AMX, the tile ops emulated."""
    host = Target.host()
    if not host.has_avx512:
        pytest.skip("the CPU lacks AVX-512, which every CPU with AMX has")
    fake = dataclasses.replace(host, features=tuple(sorted({*host.features, "amx-tile", "amx-bf16", "amx-int8", "avx512bf16", "avx512vnni"})))
    products = []

    def compile_kernels(kernels, target, options, files, adjustments):
        out = []
        for n, (k, adjustment) in enumerate(zip(kernels, adjustments)):
            with ir.Context(), ir.Location.unknown():
                load_for(k.text)
                module = ir.Module.parse(k.text)
                kernel = KernelFunction(module.body.operations[0].operation)
                strategy = adjusted(kernel, target, select_strategy(kernel, target), adjustment)
                vectors = vectorize(kernel, strategy, f"kernel{n}")
                products.append(emulate(vectors))
                vectors.operation.verify()
                PassManager.parse("builtin.module(canonicalize,cse)").run(vectors.operation)
                expand_math(vectors)
                text = lower_to_llvm_ir(vectors)
            code = emit_object(to_llvm22(text), host)
            out.append(driver.CompiledKernel(k.name, f"kernel{n}", code, k.origins, k.text))
        return out

    monkeypatch.setattr(driver, "compile_kernels", compile_kernels)
    monkeypatch.setattr(Target, "parse", classmethod(lambda cls, name: fake))
    monkeypatch.setattr(Target, "check_runnable", lambda self: None)
    monkeypatch.setattr("mlirc.frontend.backend.request_tiles", lambda: None)
    torch._dynamo.reset()
    yield products
    torch._dynamo.reset()


def _layers(*convolutions: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.Sequential(convolutions[0], torch.nn.ReLU(), convolutions[1], torch.nn.Hardtanh())


def _grouped(channels: int, groups: int, size: int) -> torch.nn.Module:
    """A convolution with groups between two without, and norms, which see all channels."""
    n = torch.nn
    norm = n.BatchNorm2d(channels)
    torch.nn.init.normal_(norm.running_mean)
    grouped = n.Conv2d(channels, channels, (3, size), padding=(1, size // 2), groups=groups)
    return n.Sequential(n.Conv2d(channels, channels, 1), n.ReLU(), grouped, norm, n.ReLU(), n.Conv2d(channels, 32, 1)).eval()


MODELS = [
    (torch.nn.Linear(64, 80), (38, 64)),
    (torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.GELU()), (3, 7, 32)),
    (torch.nn.Linear(640, 33), (45, 640)),
    (torch.nn.Linear(1024, 64), (160, 1024)),
    (torch.nn.Linear(96, 64), (13, 96)),
    (torch.nn.Linear(70, 161), (5, 33, 70)),  # what is left of k, and rows that begin within a line
    (torch.nn.Linear(13, 40), (50, 13)),
    (torch.nn.Linear(512, 400), (130, 512)),  # rows that are copied
    (torch.nn.Conv2d(32, 40, 3, stride=2, padding=1), (2, 32, 9, 11)),
    (torch.nn.Conv2d(3, 40, 5, stride=2, padding=2), (2, 3, 4, 37)),  # taps merged; results contiguous along the rows
    (torch.nn.Conv2d(40, 33, 3, padding=(0, 1)), (1, 40, 3, 19)),  # channels padded
    (torch.nn.Conv2d(32, 24, 3, padding=1, groups=2), (1, 32, 2, 20)),  # of each group
    (torch.nn.Sequential(torch.nn.Conv1d(32, 40, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv1d(40, 16, 1)), (1, 32, 3)),  # without tiles, three vectors
    (torch.nn.Conv2d(36, 40, 1), (2, 36, 5, 7)),  # positions merged
    (torch.nn.Conv2d(32, 24, 3, padding=1), (2, 32, 3, 7)),  # of several taps
    (_grouped(32, 8, 3), (2, 32, 9, 14)),  # rows with the 4 channels of a group, several groups in a lane block, positions of all lines
    (_grouped(64, 8, 1), (1, 64, 7, 35)),  # of 8; lines of their own
    (_grouped(48, 3, 5), (1, 48, 3, 40)),  # of 16, an odd number of them, each alone
    (torch.nn.Conv2d(4, 6, 3, padding=1), (2, 4, 13, 19)),  # lines joined, here without anything between them, and results along the rows
    (torch.nn.Conv2d(32, 70, 3, padding=1), (2, 32, 19, 17)),  # several blocks of rows
    (_layers(torch.nn.Conv2d(32, 40, 3, padding=1), torch.nn.Conv2d(40, 16, 3)), (2, 32, 9, 20)),  # results along the columns
    (_layers(torch.nn.Conv2d(3, 32, 1), torch.nn.Conv2d(32, 33, 3, dilation=2)), (1, 3, 30, 14)),
    (_layers(torch.nn.Conv2d(3, 64, 1), torch.nn.Conv2d(64, 33, (3, 1), padding=(1, 0))), (1, 3, 12, 12)),
    (_layers(torch.nn.Conv2d(3, 544, 1), torch.nn.Conv2d(544, 16, (1, 3))), (1, 3, 5, 13)),  # a reduction in blocks
    (torch.nn.Conv2d(544, 16, (2, 3), padding=(0, 1)), (1, 544, 6, 14)),
]


def _check(
    model: torch.nn.Module, x: torch.Tensor, compiled: Callable[[torch.Tensor], torch.Tensor], view: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> None:
    with torch.no_grad():
        got = compiled(x)
        want = copy.deepcopy(model).double()((view(x) if view else x).double())
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)


def _emulated(cases: list) -> list:  # type: ignore[type-arg]
    """Those that are run on emulated tiles: some, to see that these are right, where the machine has its own, on which all run."""
    return cases[::4] if Target.host().has_amx_bf16 else cases


@pytest.mark.parametrize(("model", "shape"), _emulated(MODELS))
def test_emulated_tiles_give_the_right_numbers(amx, model: torch.nn.Module, shape: tuple[int, ...]) -> None:  # noqa: ANN001
    torch.manual_seed(0)
    model = copy.deepcopy(model).bfloat16()
    _check(model, torch.randn(*shape, dtype=torch.bfloat16), torch.compile(model, backend="mlirc"))
    assert sum(amx) > 0, "no kernel used tiles"


@pytest.mark.parametrize(("k", "n"), [(320, 40), (75, 400)])
def test_emulated_tiles_take_any_number_of_rows(amx, k: int, n: int) -> None:  # noqa: ANN001
    model = torch.nn.Linear(k, n).bfloat16()
    compiled = torch.compile(model, backend="mlirc", dynamic=True)
    for rows in (150, 2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 128, 129, 161):
        _check(model, torch.randn(rows, k, dtype=torch.bfloat16), compiled)
    assert sum(amx) > 0, "no kernel used tiles"


PINS = [
    ("rows=16, row_tiles=1", 131),
    ("rows=32, row_tiles=7, columns=1, rows_once=false", 70),
    ("depth=64, fetch_ahead=false", 17),
    ("rows=16, rows_copied=true", 70),
    ("overlapped=false", 131),
    ("overlapped=true, depth=32", 131),
    ("reads_ahead=true", 131),
    ("depth=32, chunk=64, rows_copied=true, group=2", 131),
    ("depth=32, chunk=32, rows_copied=true, group=1, row_tiles=1, overlapped=false", 70),
]


def _check_pin(pin: str, rows: int) -> None:
    model = torch.nn.Linear(100, 72).bfloat16()
    _check(model, torch.randn(rows, 100, dtype=torch.bfloat16), torch.compile(model, backend="mlirc", options={"pin": f"*: {pin}", "strict": True}))


@pytest.mark.parametrize(("pin", "rows"), _emulated(PINS))
def test_pinned_tiles_give_the_same_numbers(amx, pin: str, rows: int) -> None:  # noqa: ANN001
    _check_pin(pin, rows)
    assert sum(amx) > 0, "no kernel used tiles"


def test_tiles_with_a_long_epilogue_can_be_pinned(amx) -> None:  # noqa: ANN001
    model = torch.nn.Sequential(torch.nn.Linear(96, 72), torch.nn.GELU()).bfloat16()
    options = {"pin": "*: row_tiles=2, depth=32", "strict": True}
    _check(model, torch.randn(70, 96, dtype=torch.bfloat16), torch.compile(model, backend="mlirc", options=options))
    assert sum(amx) > 0, "no kernel used tiles"


def test_what_lies_behind_the_rows_does_not_count(amx) -> None:  # noqa: ANN001
    """The last tile of a row holds the beginning of the next one, or none of the tensor's memory at all: times zero, NaN is NaN."""
    model = torch.nn.Linear(40, 64).bfloat16()
    x = torch.randn(33, 48, dtype=torch.bfloat16)
    x[:, 40:] = float("nan")
    _check(model, x[:, :40], torch.compile(model, backend="mlirc"))
    assert sum(amx) > 0, "no kernel used tiles"


@pytest.mark.parametrize("view", [lambda x: x.transpose(1, 2), lambda x: x.permute(2, 0, 1)], ids=["transposed", "permuted"])
def test_rows_that_are_not_contiguous_are_copied(amx, view: Callable[[torch.Tensor], torch.Tensor]) -> None:  # noqa: ANN001
    x = torch.randn(3, 36, 36, dtype=torch.bfloat16)
    model = torch.nn.Linear(view(x).shape[-1], 48).bfloat16()
    _check(model, x, torch.compile(lambda x: model(view(x)), backend="mlirc"), view)
    assert sum(amx) > 0, "no kernel used tiles"


def _check_groups(pin: str) -> None:
    """Two of 64 to 16 channels."""
    torch.manual_seed(0)
    model = torch.nn.Conv2d(128, 32, 3, padding=1, groups=2).bfloat16()
    x = torch.randn(1, 128, 9, 20, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    _check(model, x, torch.compile(model, backend="mlirc", options={"pin": f"*conv*: {pin}"}))


def test_reductions_of_groups_can_be_cut(amx) -> None:  # noqa: ANN001
    _check_groups("depth=32")
    assert sum(amx) > 0, "no kernel used tiles"


@pytest.mark.parametrize(("k", "n"), [(40, 16), (64, 8), (96, 16)])
def test_a_batch_with_few_columns_is_no_convolution(amx, k: int, n: int) -> None:  # noqa: ANN001
    """Results of a batch side by side, as those of the heads of attention, with a rest of k."""
    x, w = torch.randn(33, 4, k, dtype=torch.bfloat16), torch.randn(4, k, n, dtype=torch.bfloat16)
    got = torch.compile(lambda x, w: torch.einsum("mbk,bkn->mbn", x, w), backend="mlirc")(x, w)
    torch.testing.assert_close(got.double(), torch.einsum("mbk,bkn->mbn", x.double(), w.double()), rtol=2e-2, atol=5e-2)
    assert sum(amx) > 0, "no kernel used tiles"


@pytest.mark.parametrize("channels", [32, 64])
def test_groups_do_not_see_one_another(amx, channels: int) -> None:  # noqa: ANN001
    """Infinity times zero is NaN: a group is multiplied by weights of its own only."""
    model = torch.nn.Sequential(torch.nn.Conv2d(channels, channels, 3, padding=1, groups=8), torch.nn.ReLU()).bfloat16()
    x = torch.randn(1, channels, 9, 20, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    x[:, : channels // 8] = float("inf")
    with torch.no_grad():
        got, want = torch.compile(model, backend="mlirc")(x), model(x)
    assert sum(amx) > 0, "no kernel used tiles"
    assert not got[:, channels // 8 :].isnan().any()
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2, equal_nan=True)


needs_amx = pytest.mark.skipif(not Target.host().has_amx_bf16, reason="the CPU lacks AMX")


@needs_amx
@pytest.mark.parametrize("rows", [17, 33, 70, 131])
@pytest.mark.parametrize("pin", [pin for pin, _ in PINS])
def test_pinned_tiles_of_this_machine(pin: str, rows: int) -> None:
    torch._dynamo.reset()
    _check_pin(pin, rows)


@needs_amx
@pytest.mark.parametrize("pin", ["depth=32", "rows=16", "columns=1", "lines=none, rows=16", "overlapped=false", "row_tiles=1", "lanes_first=true, groups_first=true"])
def test_pinned_groups_of_this_machine(pin: str) -> None:
    torch._dynamo.reset()
    _check_groups(pin)


@needs_amx
@pytest.mark.parametrize(("model", "shape"), MODELS)
@pytest.mark.parametrize("threads", [1, 2])
def test_tiles_of_this_machine(model: torch.nn.Module, shape: tuple[int, ...], threads: int) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, before = copy.deepcopy(model).bfloat16(), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        _check(model, torch.randn(*shape, dtype=torch.bfloat16), torch.compile(model, backend="mlirc", options={"strict": True}))
    finally:
        torch.set_num_threads(before)


@needs_amx
@pytest.mark.parametrize(("channels", "outputs", "size", "shape"), [(32, 40, 3, (2, 9, 20)), (3, 33, 5, (1, 13, 19)), (64, 17, (3, 1), (1, 12, 12))])
def test_nothing_is_read_beside_an_image(channels: int, outputs: int, size: int | tuple[int, int], shape: tuple[int, ...]) -> None:
    """What is between the lines is; the image begins or ends where memory does, and NaN around its lines do not count."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    conv = torch.nn.Conv2d(channels, outputs, size).bfloat16()
    x = torch.randn(shape[0], channels, *shape[1:]).bfloat16().contiguous(memory_format=torch.channels_last)
    wide = torch.full((shape[0], channels, shape[1], shape[2] + 3), float("nan")).bfloat16().contiguous(memory_format=torch.channels_last)
    wide[..., :-3] = x
    compiled = torch.compile(lambda x: conv(x).relu(), backend="mlirc", options={"strict": True, "guard_pages": "both"})
    with torch.no_grad():
        want = copy.deepcopy(conv).double()(x.double()).relu()
        for given in (x, x.contiguous(), wide[..., :-3]):
            torch.testing.assert_close(compiled(given).double(), want, rtol=2e-2, atol=2e-2)
