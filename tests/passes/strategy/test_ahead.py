"""What a register tile of a convolution had better fetch of its image, and of what it stores."""

from __future__ import annotations

import pytest

from mlirc.dialects.mlir import ir
from mlirc.dialects.own import load_for
from mlirc.passes.strategy import ContractionStrategy
from mlirc.passes.strategy.ahead import Windows, windows_of
from mlirc.passes.vectorize import KernelFunction
from mlirc.passes.vectorize.roles import roles
from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import kernel, strategy

BODY = "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"


def convolution(height: int, width: int, channels: int, stride: int = 1, apart: int = 1) -> str:
    """3x3 to as many channels, of an image [height][width][channels] with its padding; taps are `apart`."""
    h, w = ((n - 1 - 2 * apart) // stride + 1 for n in (height, width))
    x, p, y = f"tensor<{height}x{width}x{channels}xf32>", f"tensor<{channels // 32}x3x3x{channels}x32xf32>", f"tensor<{h}x{w}x{channels}xf32>"
    maps = [f"i * {stride} + l * {apart}, j * {stride} + m * {apart}, n", "k floordiv 32, l, m, n, k mod 32", "i, j, k"]
    op = generic("%y", [("%x", x), ("%w", p)], y, maps, BODY, "ppprrr", "ijklmn", "0.0", "convolution")
    return kernel([("%x", x), ("%w", p)], op, [("%y", y)], [[w * channels, channels, 1]])


def grouped(size: int, groups: int, channels: int) -> str:
    x, p = f"tensor<{size}x{size}x{groups}x{channels}xf32>", f"tensor<{groups}x{channels // 16}x3x3x{channels}x16xf32>"
    y, maps = f"tensor<{size - 2}x{size - 2}x{groups}x{channels}xf32>", ["i + l, j + m, g, n", "g, k floordiv 16, l, m, n, k mod 16", "i, j, g, k"]
    op = generic("%y", [("%x", x), ("%w", p)], y, maps, BODY, "pppprrr", "ijgklmn", "0.0", "convolution")
    return kernel([("%x", x), ("%w", p)], op, [("%y", y)], [[(size - 2) * groups * channels, groups * channels, channels, 1]])


def product(rows: int) -> str:
    x, p, y = f"tensor<{rows}x64xf32>", "tensor<2x64x32xf32>", f"tensor<{rows}x64xf32>"
    maps = ["i, n", "k floordiv 32, n, k mod 32", "i, k"]
    op = generic("%y", [("%x", x), ("%w", p)], y, maps, BODY, "ppr", "ikn", "0.0", "contraction")
    return kernel([("%x", x), ("%w", p)], op, [("%y", y)], [[64, 1]])


def shown(text: str) -> Windows | None:
    with ir.Context(), ir.Location.unknown():
        load_for(text)
        module = ir.Module.parse(text)
        function = KernelFunction.of(module)
        return windows_of(function, roles(function), None)


def chosen(text: str, cpu: str) -> ContractionStrategy:
    s = strategy(text, cpu)
    assert isinstance(s, ContractionStrategy)
    return s


@pytest.mark.parametrize("text, stride, run, lines", [
    (convolution(12, 18, 64), 64, 64, [0]),
    (convolution(13, 33, 64, stride=2), 128, 128, [0, -33 * 64]),
    (convolution(12, 20, 64, apart=2), 64, 64, [0]),
    (convolution(35, 12, 64), 12 * 64, 64, [0]),
    (grouped(20, 4, 32), 128, 32, [0]),
], ids=["plain", "in steps", "dilated", "rows down the image", "groups"])  # fmt: skip
def test_what_windows_show_for_the_first_time(text: str, stride: int, run: int, lines: list[int]) -> None:
    w = shown(text)
    assert w is not None and len(w.taps) == 2
    assert (w.stride, w.run, w.lines) == (stride, run, lines)


@pytest.mark.parametrize("text", [product(100), product(3)], ids=["many", "few"])
def test_rows_of_a_product_are_no_windows(text: str) -> None:
    assert shown(text) is None


@pytest.mark.parametrize("size, channels, cpu, rows_ahead, results_ahead", [
    (162, 64, "znver4", 2, True),
    (162, 64, "znver3", 2, True),
    (162, 64, "icelake-server", 2, False),
    (16, 64, "znver4", None, False),
    (30, 512, "znver4", None, True),
], ids=["Zen 4", "Zen 3", "Intel", "in the second level", "long runs"])  # fmt: skip
def test_tiles_of_convolutions_fetch(size: int, channels: int, cpu: str, rows_ahead: int | None, results_ahead: bool) -> None:
    s = chosen(convolution(size, size, channels), cpu)
    assert (s.rows_ahead, s.results_ahead) == (rows_ahead, results_ahead)
    assert ("rows_ahead" in s.why) == (rows_ahead is not None) and ("results_ahead" in s.why) == results_ahead


@pytest.mark.parametrize("cpu, rows, height", [("znver4", 224, 8), ("znver4", 28, 7), ("znver4", 14, 14), ("znver5", 224, 14), ("icelake-server", 224, 14)])
def test_tiles_of_f32_are_low_on_older_cpus_of_amd(cpu: str, rows: int, height: int) -> None:
    assert chosen(convolution(rows + 2, rows + 2, 64), cpu).rows == height
