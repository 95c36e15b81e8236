"""What register tiles of products fetch before it is read: panels, rows, what their epilogue reads, and lines that they store."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from mlirc.lowering.target import Target
from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import PRODUCT, SPILL, built, kernel, padded, stages, streamed, untouched
from mlirc.tests.passes.vectorize.test_contraction import arrays, panels


@pytest.mark.parametrize("k", [511, 512])
def test_a_fetching_product_of_unknown_rows_spills_nothing(k: int) -> None:
    texts = stages(streamed("?", k), "sapphirerapids")
    asm = texts["asm"]
    assert "near=1," in texts["strategy"]  # parts of the rows, however many they are
    assert asm.count("prefetcht1") == 8 * (1 + 8) and not re.search(SPILL, asm), "of a tile of 13 rows, and of each height up to 8"


@pytest.mark.sampled
@pytest.mark.parametrize("rows", [0, 1, 3, 4, 6, 13, 14, 27, 40, 120])
@pytest.mark.parametrize("k", [767, 768, 770, 2048, 2063])
@pytest.mark.parametrize("target, width", [("host", 32), ("x86-64-v3", 16)])
def test_what_is_fetched_changes_no_result(k: int, rows: int, target: str, width: int) -> None:
    x, w = arrays((rows, k), (768, k))
    panels = np.ascontiguousarray(w.reshape(768 // width, width, k).transpose(0, 2, 1))
    in_streams = "streams=3" if target == "x86-64-v3" and 1 < rows <= 6 else ""
    for run, more in ((built(streamed(rows, k, width), target, in_streams), ()), (built(streamed("?", k, width), target), (rows,))):
        got = padded(np.zeros((rows, 768), np.float32))
        assert run(x, panels, *more, got) == 0
        np.testing.assert_allclose(got, x @ w.T, rtol=1e-3, atol=1e-3)
        assert untouched(got)


@pytest.mark.parametrize("k, copied", [(2048, True), (2062, False)])
def test_long_reductions_are_cut_for_any_number_of_rows(k: int, copied: bool) -> None:
    """Each sum is loaded and stored once a block, of the first one as zero, and none is spilled."""
    texts = stages(streamed("?", k), "sapphirerapids")
    assert re.search(r"depth=\d+,", texts["strategy"]) and f"rows_copied={copied}" in texts["strategy"]
    assert texts["vector"].count("vector.maskedload") == 2 * (13 + sum(range(1, 9))) + copied and not re.search(SPILL, texts["asm"])


@pytest.mark.parametrize("rows, lines", [(128, 1), (52, 2), (26, 4), (13, 8)])
@pytest.mark.parametrize("cpu, fetch", [("sapphirerapids", "prefetcht1"), ("znver5", "prefetcht0")])
def test_register_tiles_fetch_the_next_panel_together(rows: int, lines: int, cpu: str, fetch: str) -> None:
    """A line for four steps by each of eight tiles, or more lines by fewer; into the first level on a Zen 5."""
    asm = stages(streamed(rows, 512), cpu)["asm"]
    parts = asm.split("\n.L")
    full = max(parts, key=lambda part: part.count("vfmadd"))
    assert full.count("vfmadd") == 2 * 26 and "rsp" not in full
    assert max(part.count(fetch) for part in parts) == lines and "testb\t$3" in asm
    assert not re.search(SPILL, asm)


@pytest.mark.parametrize("cpu, distance", [("znver4", 4096), ("znver3", 2048)])
@pytest.mark.parametrize("rows, level", [(3, 1), (6, 1), (7, 2), (32, 2), (33, 1), ("?", 2)])
def test_older_cpus_of_amd_fetch_what_few_tiles_share_into_the_second_level(rows: int | str, level: int, cpu: str, distance: int) -> None:
    texts = stages(streamed(rows, 768, 32 if cpu == "znver4" else 16), cpu)
    assert f"fetch_level={level}, fetch_distance={distance if level == 1 else 8192}," in texts["strategy"]
    assert f"prefetcht{level - 1}" in texts["asm"] and (f"prefetcht{2 - level}" in texts["asm"]) == (rows == "?")


def test_few_of_any_number_of_rows_fetch_into_the_first_level_of_an_older_cpu_of_amd() -> None:
    """Tiles of up to six rows, if there are no more: in a branch, and the lines of all four steps, as they are alone."""
    texts = stages(streamed("?", 512), "znver4")
    assert "few_rows=6, few_distance=4096," in texts["strategy"] and "few_rows=0" in stages(streamed(4, 768), "znver4")["strategy"]
    branches = texts["vector"].split("scf.if")
    assert sorted(b.count("locality<3>") for b in branches if "locality<3>" in b) == [8] * 6
    assert texts["asm"].count("prefetcht0") == 6 * 8 and not re.search(SPILL, texts["asm"])


@pytest.mark.parametrize("cpu, pin, apart", [
    ("znver3", "", [0, 192, 384, 576]), ("znver3", "streams=2", [0, 1, 384, 385]), ("znver3", "streams=3", [0, 1, 384, 385, 768, 769]),
    ("x86-64-v3", "streams=2", [0, 1, 384, 385]),
], ids=["quarters", "halves", "more than the panel", "elsewhere"])  # fmt: skip
def test_a_single_register_tile_fetches_the_next_panel_in_streams(cpu: str, pin: str, apart: list[int]) -> None:
    """Lines from the first one that is fetched with four steps; a panel of 768 x 16 has 768."""
    asm = stages(streamed(4, 768, 16), cpu, pin)["asm"]
    places = [int(place or 0) for place in re.findall(r"prefetcht\d\t(-?\d*)\(", asm)]
    assert [(place - min(places)) // 64 for place in sorted(places)] == apart and not re.search(SPILL, asm)


@pytest.mark.parametrize("rows, fetched", [(6, 4), (7, 6), ("?", 6 * 4)])
def test_several_register_tiles_fetch_the_next_panel_in_one_stream(rows: int | str, fetched: int) -> None:
    """A single one fetches four lines with as many steps, of any of six heights, in a branch where the number of rows is a symbol; of seven rows a tile of four does three, one of three as many."""
    texts = stages(streamed(rows, 768, 16), "znver3")
    assert f"streams={4 if rows != 7 else 1}," in texts["strategy"]
    assert texts["asm"].count("prefetcht0" if rows != 7 else "prefetcht1") == fetched and not re.search(SPILL, texts["asm"])


@pytest.mark.parametrize("cpu", ["znver4", "znver5", "sapphirerapids", "x86-64-v3"])
def test_what_was_measured_elsewhere_is_fetched_ahead_in_one_stream(cpu: str) -> None:
    assert "fetch_ahead=True" in (text := stages(streamed(4, 768, 16 if cpu == "x86-64-v3" else 32), cpu)["strategy"]) and "streams=1," in text


def test_long_reductions_of_few_rows_read_panels_from_end_to_end() -> None:
    """Both loops, over blocks and over panels, have bounds chosen by the number of rows: one copy of the tiles is in both orders."""
    for rows, orders in (("?", 1), (300, 0)):
        texts = stages(streamed(rows, 2048), "sapphirerapids")
        blocks = -(-2048 // int(re.search(r"depth=(\d+),", texts["strategy"])[1]))  # type: ignore[index]
        by_panel = set(re.findall(rf"arith.select (%\d+), %c{blocks}\w*, %\d+ : index", texts["vector"]))
        by_block = set(re.findall(rf"arith.select (%\d+), %\d+, %c{blocks}\w* : index", texts["vector"]))
        assert by_panel == by_block and len(by_panel) == orders


@pytest.mark.parametrize("rows, k, cpu, lines", [
    (128, 768, "sapphirerapids", 2 * (13 + 11)), (128, 768, "znver3", 6 + 2), (128, 256, "sapphirerapids", 0), (16, 768, "sapphirerapids", 0),
])  # fmt: skip
def test_register_tiles_fetch_the_lines_that_they_store(rows: int, k: int, cpu: str, lines: int) -> None:
    """Each once, before the products of a tile; not where these are over too soon, or the rows are few."""
    texts = stages(streamed(rows, k, 16 if cpu == "znver3" else 32), cpu)
    assert f"results_ahead={lines > 0}" in texts["strategy"]
    assert texts["asm"].count("prefetchw") == lines
    loops = texts["asm"].split("\n.L")
    assert all("prefetchw" not in loop for loop in loops if loop.count("vfmadd") >= 12)


def with_residual(m: int, k: int, n: int) -> str:
    x, w, y, body = f"tensor<{m}x{k}xf32>", f"tensor<{n // 32}x{k}x32xf32>", f"tensor<{m}x{n}xf32>", ""
    body += generic("%p", [("%x", x), ("%w", w)], y, ["i, k", "j floordiv 32, k, j mod 32", "i, j"], PRODUCT, "ppr", "ijk", "0.0", "contraction")
    body += generic("%r", [("%p", y), ("%z", y)], y, body="arith.addf")
    return kernel([("%x", x), ("%w", w), ("%z", y)], body, [("%r", y)], [[n, 1]])


@pytest.mark.parametrize("m, k, cpu, lines", [
    (4000, 128, "znver4", 2 * 8), (200, 128, "znver4", 0), (4000, 768, "znver4", 0), (4000, 128, "icelake-server", 0), (4000, 128, "x86-64-v3", 0),
], ids=["much", "little", "many steps", "Intel", "AVX2"])  # fmt: skip
def test_register_tiles_fetch_what_their_epilogue_reads(m: int, k: int, cpu: str, lines: int) -> None:
    """Each line once, before the products of a tile, where these are few and it comes from far; other tiles fetch a line of the next panel, and up to four of rows."""
    texts = stages(with_residual(m, k, 256), cpu)
    assert f"reads_ahead={lines > 0}" in texts["strategy"]
    loops = texts["asm"].split("\n.L")
    assert max(loop.count("prefetcht0") for loop in loops if loop.count("vfmadd") < 8) in ([lines] if lines else range(5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows, columns", [(1, 17), (33, 64), (70, 65)])
def test_what_is_fetched_of_a_residual_changes_nothing(rows: int, columns: int, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    x, w, z = (torch.randn(shape, dtype=dtype) for shape in ((rows, 40), (40, columns), (rows, columns)))

    def f(x, w, z):
        return torch.relu(x @ w + z)

    want = f(x.double(), w.double(), z.double())
    got = torch.compile(f, backend="mlirc", options={"pin": "*matmul_add*: reads_ahead=true"})(x, w, z)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("m, k, n, cpu, rows, fetch", [
    (8192, 160, 768, "znver4", 8, "prefetcht0"), (8192, 512, 64, "znver4", 8, "prefetcht0"), (8192, 512, 64, "skylake-avx512", 13, "prefetcht1"),
    (8192, 1024, 64, "znver4", 8, "prefetcht1"), (8192, 1024, 768, "znver4", 8, ""), (200, 160, 768, "znver4", 8, ""),
], ids=["apart", "8 in two sets", "13 in two sets", "in one set", "in one set, for many panels", "in the second level"])  # fmt: skip
def test_register_tiles_fetch_the_rows_of_the_next(m: int, k: int, n: int, cpu: str, rows: int, fetch: str) -> None:
    """A line of each row in the 16 steps that read one, in four turns; and nothing is spilled."""
    texts = stages(panels(m, k, n), cpu)
    assert f" rows={rows}," in texts["strategy"] and f"rows_ahead={ {'prefetcht0': 1, 'prefetcht1': 2}.get(fetch)}" in texts["strategy"]
    if fetch:
        loops = [loop for loop in texts["asm"].split("\n.L") if fetch in loop]
        assert {loop.count(fetch) for loop in loops} <= {1, 2, 3, 4} and max(loop.count(fetch) for loop in loops) == -(-rows // 4)
        assert not any(re.search(SPILL, loop) for loop in loops)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows, k, columns", [(2, 7, 17), (33, 65, 64), (70, 128, 65)])
@pytest.mark.parametrize("level", [1, 2])
def test_rows_that_are_fetched_change_nothing(level: int, rows: int, k: int, columns: int, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    x, w = torch.randn(rows, k, dtype=dtype), torch.randn(k, columns, dtype=dtype)
    target = "x86-64-v4" if Target.host().has_amx_bf16 else "host"  # tiles fetch no rows
    got = torch.compile(torch.mm, backend="mlirc", options={"target": target, "pin": f"*matmul: rows_ahead={level}"})(x, w)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.double(), x.double() @ w.double(), rtol=tolerance, atol=tolerance)


def test_what_is_stored_past_the_caches_is_not_fetched() -> None:
    asm = stages(streamed(65536, 768), "sapphirerapids")["asm"]
    assert "vmovnt" in asm and "prefetchw" not in asm
