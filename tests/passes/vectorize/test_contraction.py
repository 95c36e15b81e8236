"""Contractions and convolutions, against numpy, for all kinds of sizes and operand layouts."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import PRODUCT, SPILL, built, kernel, padded, stages, streamed, untouched

rng = np.random.default_rng(0)
SIZES = [(1, 1, 1), (1, 7, 3), (2, 33, 65), (3, 5, 17), (7, 16, 32), (15, 3, 70), (33, 17, 5), (64, 64, 48), (5, 130, 1)]


def arrays(*shapes):
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


LAYOUTS = {"nn": ("i, k", "k, j"), "nt": ("i, k", "j, k"), "tn": ("k, i", "k, j"), "tt": ("k, i", "j, k")}


@pytest.mark.parametrize("layout,target", [*((x, "host") for x in LAYOUTS), ("nn", "x86-64-v3"), ("nt", "x86-64-v3")])
@pytest.mark.parametrize("m,k,n", SIZES)
def test_matmul(m, k, n, layout, target):
    at, bt = layout[0] == "t", layout[1] == "t"
    a_type, b_type, out = f"tensor<{k if at else m}x{m if at else k}xf32>", f"tensor<{n if bt else k}x{k if bt else n}xf32>", f"tensor<{m}x{n}xf32>"
    body = generic("%r", [("%a", a_type), ("%b", b_type)], out, [*LAYOUTS[layout], "i, j"], PRODUCT, "ppr", "ijk", "0.0", "contraction")
    body += generic("%g", [("%r", out), ("%c", f"tensor<{n}xf32>")], out, ["i, j", "j", "i, j"], "arith.addf")
    run = built(kernel([("%a", a_type), ("%b", b_type), ("%c", f"tensor<{n}xf32>")], body, [("%g", out)], [[n, 1]]), target)
    a, b, c = arrays((m, k), (k, n), n)
    got = padded(np.zeros((m, n), np.float32), 3)
    assert run(np.ascontiguousarray(a.T) if at else a, np.ascontiguousarray(b.T) if bt else b, c, got) == 0
    close(got, a @ b + c)
    assert untouched(got, 3)


def test_batches():
    a_type, b_type, out = "tensor<3x5x9xf32>", "tensor<3x9x20xf32>", "tensor<3x5x20xf32>"
    body = generic("%r", [("%a", a_type), ("%b", b_type)], out, ["b, i, k", "b, k, j", "b, i, j"], PRODUCT, "pppr", "bijk", "0.0", "contraction")
    run = built(kernel([("%a", a_type), ("%b", b_type)], body, [("%r", out)], [[100, 20, 1]]))
    a, b = arrays((3, 5, 9), (3, 9, 20))
    got = padded(np.zeros((3, 5, 20), np.float32))
    assert run(a, b, got) == 0
    close(got, a @ b)
    assert untouched(got)


@pytest.mark.parametrize("stride,channels,outputs", [(1, 3, 5), (2, 16, 33), (1, 1, 64)])
def test_convolutions(stride, channels, outputs):
    h = w = 7
    oh = (h - 3) // stride + 1
    x_type, w_type, out = f"tensor<2x{h}x{w}x{channels}xf32>", f"tensor<3x3x{channels}x{outputs}xf32>", f"tensor<2x{oh}x{oh}x{outputs}xf32>"
    maps = [f"b, y * {stride} + u, x * {stride} + v, c", "u, v, c, o", "b, y, x, o"]
    body = generic("%r", [("%x", x_type), ("%w", w_type)], out, maps, PRODUCT, "pppprrr", "byxouvc", "0.0", "convolution")
    body += generic("%g", [("%r", out)], out, body="math.absf")
    run = built(kernel([("%x", x_type), ("%w", w_type)], body, [("%g", out)], [[oh * oh * outputs, oh * outputs, outputs, 1]]))
    x, weight = arrays((2, h, w, channels), (3, 3, channels, outputs))
    got = padded(np.zeros((2, oh, oh, outputs), np.float32))
    assert run(x, weight, got) == 0
    expected = np.zeros((2, oh, oh, outputs))
    for u in range(3):
        for v in range(3):
            expected += x[:, u : u + stride * oh : stride, v : v + stride * oh : stride] @ weight[u, v].astype(np.float64)
    close(got, np.abs(expected))
    assert untouched(got)


def test_sizes_as_arguments():
    a_type, b_type, out = "tensor<?x?xf32>", "tensor<?x?xf32>", "tensor<?x?xf32>"
    body = generic("%r", [("%a", a_type), ("%b", b_type)], out, ["i, k", "k, j", "i, j"], PRODUCT, "ppr", "ijk", "0.0", "contraction")
    body = body.replace("tensor.empty()", "tensor.empty(%m, %n)")
    named = {f"%{c}": f'mlirc.name = "{c}"' for c in "mkn"}
    named["%a"] = 'mlirc.sizes = ["m", "k"], mlirc.strides = ["k", "1"]'
    named["%b"] = 'mlirc.sizes = ["k", "n"], mlirc.strides = ["n", "1"]'
    arguments = [("%a", a_type), ("%b", b_type), ("%m", "index"), ("%k", "index"), ("%n", "index")]
    run = built(kernel(arguments, body, [("%r", out)], [["n", "1"]], named))
    for m, k, n in [*SIZES, (0, 3, 4), (3, 0, 4), (3, 4, 0)]:
        a, b = arrays((m, k), (k, n))
        got = padded(np.ones((m, n), np.float32))
        assert run(a, b, m, k, n, got) == 0
        close(got, a @ b)
        assert untouched(got)


def symbolic_depth(m, n):
    """a.T @ b for any number of rows, as in the gradient of a weight."""
    a_type, b_type, out = f"tensor<?x{m}xf32>", f"tensor<?x{n}xf32>", f"tensor<{m}x{n}xf32>"
    body = generic("%r", [("%a", a_type), ("%b", b_type)], out, ["k, i", "k, j", "i, j"], PRODUCT, "ppr", "ijk", "0.5", "contraction")
    named = {"%k": 'mlirc.name = "k"', "%a": f'mlirc.sizes = ["k", "{m}"], mlirc.strides = ["{m}", "1"]'}
    named["%b"] = f'mlirc.sizes = ["k", "{n}"], mlirc.strides = ["{n}", "1"]'
    return kernel([("%a", a_type), ("%b", b_type), ("%k", "index")], body, [("%r", out)], [[n, 1]], named)


@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("m,n", [(5, 33), (17, 64)])
def test_any_depth(m, n, target):
    """Long sums are put together from those of blocks: one product after the other, a hundredth 100,000 times is off by 7e-4."""
    run = built(symbolic_depth(m, n), target)
    for k in (0, 1, 3, 1023, 1024, 1025, 3000, 100_003):
        a, b = arrays((k, m), (k, n))
        got = padded(np.zeros((m, n), np.float32))
        assert run(a, b, k, got) == 0
        np.testing.assert_allclose(got, 0.5 + a.T.astype(np.float64) @ b, rtol=1e-4, atol=1e-4 * max(k, 1) ** 0.5)
        assert untouched(got)
    a, b = np.full((k, m), 0.1, np.float32), np.full((k, n), 0.1, np.float32)
    assert run(a, b, k, got) == 0
    np.testing.assert_allclose(got, 0.5 + a.T.astype(np.float64) @ b, rtol=2e-5)


@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("depth", [(100_003,), (64, 33, 35), (3, 200, 170), (40_000, 3)])
def test_deep_sums(depth, target):
    """Of several loops, too, as in the gradient of a convolution's weight."""
    letters = "uvw"[: len(depth)]
    lead = "x".join(map(str, depth))
    a_type, b_type, out = f"tensor<{lead}x7xf32>", f"tensor<{lead}x33xf32>", "tensor<7x33xf32>"
    maps = [", ".join(letters) + ", i", ", ".join(letters) + ", j", "i, j"]
    body = generic("%r", [("%a", a_type), ("%b", b_type)], out, maps, PRODUCT, "pp" + "r" * len(depth), "ij" + letters, "0.5", "contraction")
    run = built(kernel([("%a", a_type), ("%b", b_type)], body, [("%r", out)], [[33, 1]]), target)
    for a, b in (arrays((*depth, 7), (*depth, 33)), (np.full((*depth, 7), 0.1, np.float32), np.full((*depth, 33), 0.1, np.float32))):
        got, k = padded(np.zeros((7, 33), np.float32)), a.size // 7
        assert run(a, b, got) == 0
        np.testing.assert_allclose(got, 0.5 + a.reshape(k, 7).T.astype(np.float64) @ b.reshape(k, 33), rtol=2e-5, atol=2e-4 * (a[..., 0] != 0.1).any() * k**0.5)
        assert untouched(got)


@pytest.mark.parametrize("target,columns,accumulators,steps", [("skylake-avx512", 64, 16, 1), ("x86-64-v3", 48, 12, 4)])
def test_sums_of_blocks_wait_outside_of_the_inner_loop(target, columns, accumulators, steps):
    asm = stages(symbolic_depth(64, columns), target)["asm"]
    lines = max(asm.split("\n.L"), key=lambda part: part.count("vfmadd")).splitlines()
    products = [i for i, line in enumerate(lines) if "vfmadd" in line]
    # One iteration, and a step where the last one may be short.
    assert len(products) == accumulators * steps and asm.count("vfmadd") == accumulators * (steps + (steps > 1))
    assert not any("rsp" in line or re.search(r"vmov\w+\s+%[yz]mm\d+, %[yz]mm", line) for line in lines[products[0] : products[-1]])


def panels(rows, k, n):
    """a @ b with b in panels of 32 columns."""
    types = f"tensor<{rows}x{k}xf32>", f"tensor<{n // 32}x{k}x32xf32>", f"tensor<{rows}x{n}xf32>"
    operands = [("%a", types[0]), ("%b", types[1])]
    body = generic("%r", operands, types[2], ["i, k", "j floordiv 32, k, j mod 32", "i, j"], PRODUCT, "ppr", "ijk", "0.0", "contraction")
    return kernel(operands, body, [("%r", types[2])], [[n, 1]])


@pytest.mark.parametrize("rows, k", [(70, 96), (128, 3072)])
def test_addresses_are_a_variable_and_constants(rows, k):
    """So that they are in the instructions, and none is spilled, without LLVM's search for other ways to write them. Of 3,072 elements,
    rows are copied."""
    seen = stages(panels(rows, k, 768), "znver5")
    assert "strength_reduction=False" in seen["strategy"] and f"rows_copied={k == 3072}" in seen["strategy"]
    loop = max(seen["asm"].split("\n.L"), key=lambda part: part.count("vfmadd"))
    others = [i for i in re.findall(r"^\t([a-z]\w*)", loop, re.MULTILINE) if not i.startswith("v")]
    assert loop.count("vfmadd") >= 16 and len(others) <= 8 and "(%rsp)" not in loop, loop


def symbolic_rows(k, n):
    """c += a @ b with c in place, for any number of rows."""
    a_type, b_type, out = f"tensor<?x{k}xf32>", f"tensor<{k}x{n}xf32>", f"tensor<?x{n}xf32>"
    body = generic("%r", [("%a", a_type), ("%b", b_type)], out, ["i, k", "k, j", "i, j"], PRODUCT, "ppr", "ijk", "0.0", "contraction")
    body += generic("%g", [("%r", out), ("%c", out)], out, body="arith.addf")
    body = body.replace("tensor.empty()", "tensor.empty(%m)")
    named = {"%m": 'mlirc.name = "m"', "%a": f'mlirc.sizes = ["m", "{k}"], mlirc.strides = ["{k}", "1"]'}
    named["%c"] = f'mlirc.sizes = ["m", "{n}"], mlirc.strides = ["{n}", "1"]'
    arguments = [("%a", a_type), ("%b", b_type), ("%c", out), ("%m", "index")]
    return kernel(arguments, body, [("%g", out)], [[n, 1]], named)


@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("k", [5, 1024])
def test_any_number_of_rows(k, target):
    """Each row is stored once: the result may lie where an operand does."""
    run = built(symbolic_rows(k, 33), target)
    for m in range(75):
        a, b, c = arrays((m, k), (k, 33), (m, 33))
        got = padded(c)
        assert run(a, b, got, m, got) == 0
        np.testing.assert_allclose(got, a @ b + c, rtol=1e-3, atol=1e-3)
        assert untouched(got)


def test_symbolic_rows_stay_in_registers():
    """24 accumulators of the large tile, 16, 12, 8 and 4 of the low ones: nothing spilled or moved between them, and no branch for a row."""
    lines = stages(symbolic_rows(768, 64), "skylake-avx512")["asm"].splitlines()
    products = [i for i, line in enumerate(lines) if "vfmadd" in line]
    assert len(products) == 24 + 16 + 12 + 8 + 4
    for begin, sums in ((0, 24), (24, 16), (40, 12), (52, 8), (60, 4)):
        inner = lines[products[begin] : products[begin + sums - 1]]
        assert not any("zmm" in line and ("rsp" in line or re.search(r"vmov\w+\s+%zmm\d+, %zmm", line)) for line in inner)
        assert not any(re.match(r"\s+j", line) for line in inner)


def test_there_is_a_tile_for_each_few_rows():
    """No row is computed in vain; what a tile reads of its rows lies in the operand, and each of its vectors of the panel is loaded once."""
    whole, *low = stages(symbolic_rows(512, 64), "skylake-avx512")["vector"].split("iter_args(")[1:]
    assert [part.count("math.fma") for part in (whole, *low)] == [24, 16, 12, 8, 4]
    for part in (whole, *low):
        assert part[: part.rindex("math.fma")].count("vector.load") == 4
    assert all(part.count("arith.minsi") <= 1 for part in (whole, *low)), "where the tiles of a height end"


def test_rows_that_are_not_there_are_computed_as_the_last():
    """Where many rows hide the latency of an addition, there are not tiles for each number of them."""
    whole, *low = stages(symbolic_rows(512, 16), "skylake-avx512")["vector"].split("iter_args(")[1:]
    assert [part.count("math.fma") for part in (whole, *low)] == [16, 9, 8]
    assert whole.count("arith.minsi") == 8 + 2 and low[0].count("arith.minsi") == 7 + 1, "the next tile: its rows but the first, and how many there are"


def test_addresses_in_panels_are_cheap():
    """What is a multiple of a panel's width is not divided by it: both vectors of a panel's row have one address."""
    from mlirc.tests.passes.vectorize.test_tiles import LINEAR

    body = stages(LINEAR, "znver4")["vector"]
    loop = re.search(r"scf\.for [^\n]*iter_args.*?scf\.yield", body, re.DOTALL)
    assert loop and "divui" not in loop[0] and "remui" not in loop[0]


def test_the_product_itself_is_stored_too():
    a_type, b_type, out = "tensor<5x9xf32>", "tensor<9x20xf32>", "tensor<5x20xf32>"
    body = generic("%r", [("%a", a_type), ("%b", b_type)], out, ["i, k", "k, j", "i, j"], PRODUCT, "ppr", "ijk", "0.0", "contraction")
    body += generic("%g", [("%r", out), ("%r", out)], out, body="arith.mulf")
    run = built(kernel([("%a", a_type), ("%b", b_type)], body, [("%r", out), ("%g", out)], [[20, 1], [20, 1]]))
    a, b = arrays((5, 9), (9, 20))
    first, second = np.zeros((5, 20), np.float32), np.zeros((5, 20), np.float32)
    assert run(a, b, first, second) == 0
    close(first, a @ b)
    close(second, (a @ b) ** 2)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("pin", ["groups_first=true", "groups_first=true, lanes_first=true, row_tiles=1", "groups_first=false"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_groups_in_any_order(pin: str, threads: int, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    conv = torch.nn.Conv2d(144, 120, 3, padding=1, groups=3).to(dtype)
    x, before = torch.randn(2, 144, 9, 17, dtype=dtype).contiguous(memory_format=torch.channels_last), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            got = torch.compile(conv, backend="mlirc", options={"pin": f"*conv*: {pin}"})(x)
            want = conv.double()(x.double())
    finally:
        torch.set_num_threads(before)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("pin", ["row_tiles=1, near=2", "row_tiles=2, near=1, rows=3", "rows=4, row_tiles=1, near=7"])
@pytest.mark.parametrize("batch, rows", [((), 97), ((), 64), ((3,), 41)])
def test_rows_in_parts(batch: tuple[int, ...], rows: int, pin: str, threads: int) -> None:
    torch._dynamo.reset()
    x, w, before = torch.randn(*batch, rows, 40), torch.randn(*batch, 40, 130), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        got = torch.compile(torch.matmul, backend="mlirc", options={"pin": f"*: {pin}", "strict": True})(x, w)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(got, x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cpu, registers", [("znver5", "zmm"), ("znver3", "ymm")])
def test_sums_of_blocks_wait_outside_of_the_innermost_loop(cpu: str, registers: str) -> None:
    """Where they do not fit the registers, beside those of the block; one of 512 products is a block of its own."""
    for k, spilled in ((768, True), (512, False)):
        texts = stages(streamed(128, k, 32 if registers == "zmm" else 16), cpu)
        full = max(texts["asm"].split("\n.L"), key=lambda part: part.count("vfmadd"))
        assert full.count("vfmadd") >= 12 and "rsp" not in full
        assert bool(re.search(SPILL.replace("zmm", registers), texts["asm"])) == spilled


@pytest.mark.parametrize("rows", [128, 60, 6, "?"])
def test_avx2_fetches_in_tiles_of_two_columns(rows: int | str) -> None:
    """Six rows of two vectors: three columns would read one panel and half of the next."""
    texts = stages(streamed(rows, 768, 16), "znver3")
    full = max(texts["asm"].split("\n.L"), key=lambda part: part.count("vfmadd"))
    assert "rows=6, columns=2" in texts["strategy"] and full.count("vfmadd") == 4 * 12 and "rsp" not in full
    assert ("prefetcht1" if rows == "?" else "prefetcht0") in texts["asm"] and not re.search(SPILL.replace("zmm", "ymm"), full)


@pytest.mark.parametrize(
    "cpu, width, rows, steps, sets",
    [("znver5", 32, 1, 2, 2), ("znver5", 32, 4, 2, 2), ("znver5", 32, 5, 2, 1), ("znver3", 16, 3, 4, 2), ("znver3", 16, 4, 4, 1)],
)
def test_steps_take_turns_with_sets_of_few_sums(cpu: str, width: int, rows: int, steps: int, sets: int) -> None:
    """More than the tile has: else each product waits for the one before."""
    texts = stages(streamed(rows, 768, width), cpu)
    full = max(texts["asm"].split("\n.L"), key=lambda part: part.count("vfmadd"))
    sums = re.findall(r"vfmadd231ps.*%([yz]mm\d+)\n", full)
    assert (len(sums), len(set(sums))) == (steps * 2 * rows, sets * 2 * rows)
    assert f"steps={steps}" in texts["strategy"] and not re.search(SPILL.replace("zmm", "[yz]mm"), full)


@pytest.mark.parametrize("cpu, rows, panels", [("znver3", 1, 3), ("znver3", 2, 2), ("znver3", 3, 1), ("znver5", 2, 1)])
def test_few_rows_read_panels_side_by_side(cpu: str, rows: int, panels: int) -> None:
    """As many streams from memory; at least 16 tiles are left for threads, of 24 panels (Zen 5) none."""
    width = 16 if cpu == "znver3" else 32
    texts = stages(streamed(rows, 768, width), cpu)
    full = max(texts["asm"].split("\n.L"), key=lambda part: part.count("vfmadd"))
    places = [int(n or 0) for n in re.findall(r"(?:vfmadd231ps|vmovups)\t(-?\d*)\(%r[^)]+\), ", full)]
    read = {(n - min(places)) // (768 * width * 4) for n in places}
    assert f"columns={2 * panels}," in texts["strategy"] and len(read) == panels and not re.search(SPILL.replace("zmm", "[yz]mm"), full)
    assert ("prefetch" in texts["asm"]) == (panels == 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("widths", [(1061,), (4099,), (2048, 512, 512), (1000, 520, 8), (1024, 1024)], ids=str)
@pytest.mark.parametrize("rows", [1, 2])
def test_panels_side_by_side_are_right_at_the_last_column(rows: int, widths: tuple[int, ...], dtype: torch.dtype) -> None:
    """Of one product and of several of the same row, whose panels are many times some side by side or not."""
    torch._dynamo.reset()
    x, weights = torch.randn(rows, 771, dtype=dtype), [torch.randn(n, 771, dtype=dtype) for n in widths]

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nn.functional.linear(x, w) for w in weights]

    with torch.no_grad():
        got, want = torch.compile(f, backend="mlirc")(x), [x.double() @ w.double().T for w in weights]
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    for a, b in zip(got, want):
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance * 30)


@pytest.mark.parametrize("cpu", ["x86-64-v3", "skylake-avx512"])
@pytest.mark.parametrize("depth", [1, 2, 3, 5, 7, 9, 257, 771])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 13])
def test_any_number_of_steps(cpu: str, depth: int, rows: int) -> None:
    """What whole iterations leave, and all of it where that is less than an iteration."""
    a_type, b_type, out = f"tensor<{rows}x{depth}xf32>", f"tensor<{depth}x17xf32>", f"tensor<{rows}x17xf32>"
    body = generic("%r", [("%a", a_type), ("%b", b_type)], out, ["i, k", "k, j", "i, j"], PRODUCT, "ppr", "ijk", "0.0", "contraction")
    run, (a, b) = built(kernel([("%a", a_type), ("%b", b_type)], body, [("%r", out)], [[17, 1]]), cpu), arrays((rows, depth), (depth, 17))
    got = padded(np.zeros((rows, 17), np.float32))
    assert run(a, b, got) == 0
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5 * depth**0.5)
    assert untouched(got)


def test_lanes_that_are_converted_leave_registers_for_some_steps() -> None:
    """Packed weights of bf16 in AVX2: of three columns, LLVM would keep the lanes of four steps in memory."""
    body = "%e = arith.extf %a1 : bf16 to f32\n%p = arith.mulf %a0, %e : f32\n%o = arith.addf %a2, %p : f32"
    x, w, y = "tensor<1x58x58x64xf32>", "tensor<4x3x3x64x16xbf16>", "tensor<1x56x56x64xf32>"
    maps = ["b, i + u, j + v, c", "o floordiv 16, u, v, c, o mod 16", "b, i, j, o"]
    op = generic("%y", [("%x", x), ("%w", w)], y, maps, body, "pppprrr", "bijouvc", "0.0", "convolution")
    texts = stages(kernel([("%x", x), ("%w", w)], op, [("%y", y)], [[200704, 3584, 64, 1]]), "znver3")
    full = max(texts["asm"].split("\n.L"), key=lambda part: part.count("vfmadd"))
    assert "columns=2" in texts["strategy"] and full.count("vfmadd") == 4 * 12
    assert not re.search(SPILL.replace("zmm", "ymm"), full)
