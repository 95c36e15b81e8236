"""Products whose results are contiguous along the rows: whole vectors of rows are stored, whatever the sizes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mlirc.passes.strategy import ContractionStrategy
from mlirc.tests.frontend.compare import compare
from mlirc.tests.passes.graph_text import generic, matmul
from mlirc.tests.passes.strategy.test_blocks import linear
from mlirc.tests.passes.vectorize.kernels import built, kernel, padded, stages, strategy, untouched
from mlirc.tests.passes.vectorize.test_depthwise import depthwise
from mlirc.tests.passes.vectorize.test_tiles import LINEAR

rng = np.random.default_rng(0)
TARGETS = ["host", "x86-64-v3"]
MULTIPLY_ADD = "%product = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %product : f32"
BATCH, HEIGHT, INPUTS = 2, 3, 5


def image(width: int, channels: int, last: bool = False) -> list[int]:
    """Strides of [batch][height][width][channels], with the channels last in memory or first."""
    return [HEIGHT * width * channels, *([width * channels, channels, 1] if last else [width, 1, HEIGHT * width])]


def convolution(width: int, channels: int, residual_last: bool = False, end: str = "", kind: str = "f32", result: str = "") -> str:
    """relu(a 2x3 convolution + bias + residual), whose result has the channels first; or `end` of that."""
    x, w, y = f"tensor<{BATCH}x{HEIGHT + 1}x{width + 2}x{INPUTS}x{kind}>", f"tensor<2x3x{INPUTS}x{channels}x{kind}>", f"tensor<{BATCH}x{HEIGHT}x{width}x{channels}x{kind}>"
    maps = ["i, j + m, k + n, o", "m, n, o, l", "i, j, k, l"]
    body = generic("%p", [("%x", x), ("%w", w)], y, maps, MULTIPLY_ADD.replace("f32", kind), "pppprrr", "ijklmno", "0.0", "convolution")
    body += generic("%q", [("%p", y), ("%b", f"tensor<{channels}x{kind}>"), ("%r", y)], y, ["i, j, k, l", "l", "i, j, k, l", "i, j, k, l"], f"%s = arith.addf %a0, %a1 : {kind}\n%o = arith.addf %s, %a2 : {kind}")
    stored = y.replace(kind, result) if result else y
    body += generic("%y", [("%q", y)], stored, body=end or f"%z = arith.constant 0.0 : {kind}\n%o = arith.maximumf %a0, %z : {kind}")
    spelled = ", ".join(f'"{s}"' for s in image(width, channels, residual_last))
    arguments = [("%x", x), ("%w", w), ("%b", f"tensor<{channels}x{kind}>"), ("%r", y)]
    return kernel(arguments, body, [("%y", stored)], [image(width, channels)], {"%r": f"mlirc.strides = [{spelled}]"})


def expected(x, w, b, r):  # noqa: ANN001, ANN201
    height, width = r.shape[1:3]
    sums = sum(x[:, u : u + height, v : v + width].astype(np.float64) @ w[u, v] for u in range(2) for v in range(3))
    return sums + b + r


def operands(width: int, channels: int, dtype: type = np.float32):  # noqa: ANN201
    shapes = [(BATCH, HEIGHT + 1, width + 2, INPUTS), (2, 3, INPUTS, channels), (channels,), (BATCH, HEIGHT, width, channels)]
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def first(a: np.ndarray) -> np.ndarray:
    """The same with the channels first in memory."""
    return np.ascontiguousarray(np.moveaxis(a, -1, 1))


@pytest.mark.parametrize("target, lanes", [("x86-64-v3", 8), ("x86-64-v4", 16)])
@pytest.mark.parametrize("residual_last", [False, True], ids=["residual first", "residual last"])
def test_nothing_is_scattered_or_gathered(residual_last: bool, target: str, lanes: int) -> None:
    text = convolution(2 * lanes, 48 if lanes == 8 else 64, residual_last)  # whole tiles, of three or two vectors
    seen = stages(text, target)
    assert strategy(text, target).turned  # type: ignore[union-attr]
    vectors = seen["vector"]
    assert "vector.scatter" not in vectors and "vector.gather" not in vectors and "vector.masked" not in vectors
    # One block of sums, and one of the residual if it lies as they do; whole vectors of rows are stored, 16 or 8 of each.
    assert vectors.count("vector.shuffle") == lanes * (lanes.bit_length() - 1) * (2 if residual_last else 1)
    assert len(re.findall(rf"vector\.store .*%arg\d+\[|vector\.store .* : memref<\?xf32>, vector<{lanes}xf32>", vectors)) >= lanes
    assert "scatter" not in seen["asm"] and "gather" not in seen["asm"]


def swept(*sizes: tuple[int, int]) -> list[Any]:
    return [pytest.param(*size, marks=pytest.mark.sweep) for size in sizes]


SAMPLE = [(1, 3), (3, 64), (7, 17), (16, 1), (16, 64), (17, 3), (33, 17)]
OTHERS = [(w, c) for w in (1, 3, 7, 16, 17, 33) for c in (1, 3, 17, 64) if (w, c) not in SAMPLE]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width, channels", [*SAMPLE, *swept(*OTHERS)])
def test_all_sizes(width: int, channels: int, target: str) -> None:
    x, w, b, r = operands(width, channels)
    want = first(np.maximum(expected(x, w, b, r), 0))
    for residual_last in (False, True):
        run = built(convolution(width, channels, residual_last), target)
        got = padded(np.zeros((BATCH, channels, HEIGHT, width), np.float32), 3)
        assert run(x, w, b, r if residual_last else first(r), got) == 0
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        assert untouched(got, 3)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width, channels", [(7, 17), (16, 64), *swept((1, 3), (33, 9))])
def test_f64(width: int, channels: int, target: str) -> None:
    x, w, b, r = operands(width, channels, np.float64)
    for residual_last in (False, True):
        run = built(convolution(width, channels, residual_last, kind="f64"), target)
        got = padded(np.zeros((BATCH, channels, HEIGHT, width)), 3)
        assert run(x, w, b, r if residual_last else first(r), got) == 0
        np.testing.assert_allclose(got, first(np.maximum(expected(x, w, b, r), 0)), rtol=1e-12, atol=1e-12)
        assert untouched(got, 3)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width, channels", [(1, 3), (33, 9), *swept((7, 17), (16, 64))])
def test_a_long_epilogue_is_a_loop_over_columns(width: int, channels: int, target: str) -> None:
    text = convolution(width, channels, end="%t = math.exp %a0 : f32\n%o = math.log1p %t : f32")
    assert width * channels < 64 or strategy(text, "x86-64-v4").looped_epilogue  # type: ignore[union-attr]
    assert stages(text, "x86-64-v4")["vector"].count("math.log1p") <= 4
    x, w, b, r = operands(width, channels)
    got = padded(np.zeros((BATCH, channels, HEIGHT, width), np.float32), 3)
    assert built(text, target)(x, w, b, first(r), got) == 0
    np.testing.assert_allclose(got, first(np.log1p(np.exp(expected(x, w, b, r)))), rtol=1e-4, atol=1e-4)
    assert untouched(got, 3)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width, channels", [(7, 17), (33, 64)])
def test_narrower_results(width: int, channels: int, target: str) -> None:
    """bool is a byte in memory."""
    text = convolution(width, channels, end="%z = arith.constant 0.0 : f32\n%o = arith.cmpf ogt, %a0, %z : f32", result="i1")
    assert strategy(text).turned  # type: ignore[union-attr]
    x, w, b, r = operands(width, channels)
    got = padded(np.zeros((BATCH, channels, HEIGHT, width), np.uint8), 3)
    assert built(text, target)(x, w, b, first(r), got) == 0
    assert np.array_equal(got, first(expected(x, w, b, r) > 0).astype(np.uint8)) and untouched(got, 3)


@pytest.mark.parametrize("target", TARGETS)
def test_an_operand_that_is_read_twice(target: str) -> None:
    """At the place of a column and at the next one's: each is a block of its own."""
    wide, y = "tensor<37x71xf32>", "tensor<37x70xf32>"
    body = matmul("%p", "%a", "%b", 37, 9, 70)
    for name, at in (("%s", 0), ("%t", 1)):
        body += f"{name} = tensor.extract_slice %r[0, {at}] [37, 70] [1, 1] : {wide} to {y}\n"
    body += generic("%q", [("%p", y), ("%s", y), ("%t", y)], y, body="%d = arith.subf %a1, %a2 : f32\n%o = arith.mulf %a0, %d : f32")
    text = kernel([("%a", "tensor<37x9xf32>"), ("%b", "tensor<9x70xf32>"), ("%r", wide)], body, [("%q", y)], [[1, 37]])
    assert "vector.gather" not in stages(text, "x86-64-v4")["vector"]
    a, b, r = (rng.standard_normal(s).astype(np.float32) for s in ((37, 9), (9, 70), (37, 71)))
    got = padded(np.zeros((70, 37), np.float32), 3)
    assert built(text, target)(a, b, r, got) == 0
    np.testing.assert_allclose(got, (a @ b * (r[:, :-1] - r[:, 1:])).T, rtol=1e-4, atol=1e-4)
    assert untouched(got, 3)


def turned(text: str, rows: int, columns: int) -> str:
    """A product of two dims, stored the other way round."""
    return text.replace(f'mlirc.result_strides = [["{columns}", "1"]]', f'mlirc.result_strides = [["1", "{rows}"]]')


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows, depth, columns", [(130, 9000, 64), (61, 20000, 32), (45, 9002, 96)])
def test_reductions_in_blocks(rows: int, depth: int, columns: int, target: str) -> None:
    text = turned(linear(rows, depth, columns), rows, columns)
    s = strategy(text, "x86-64-v4")
    assert isinstance(s, ContractionStrategy) and s.turned and s.depth is not None
    assert "scatter" not in stages(text, "x86-64-v4")["vector"]
    a, b = rng.standard_normal((rows, depth)).astype(np.float32), rng.standard_normal((columns // 32, depth, 32)).astype(np.float32)
    got = padded(np.zeros((columns, rows), np.float32), 3)
    assert built(text, target)(a, b, got) == 0
    np.testing.assert_allclose(got, (a.astype(np.float64) @ b.transpose(1, 0, 2).reshape(depth, columns)).T, rtol=1e-3, atol=1e-3)
    assert untouched(got, 3)


@pytest.mark.parametrize("target", TARGETS)
def test_sizes_as_arguments(target: str) -> None:
    """Rows and columns whose number is known at run time only, none among them."""
    a_type = b_type = out = "tensor<?x?xf32>"
    body = generic("%p", [("%a", a_type), ("%b", b_type)], out, ["i, k", "k, j", "i, j"], MULTIPLY_ADD, "ppr", "ijk", "0.0", "contraction")
    body += generic("%r", [("%p", out), ("%c", out)], out, body="arith.addf")
    body = body.replace("tensor.empty()", "tensor.empty(%m, %n)")
    named = {f"%{c}": f'mlirc.name = "{c}"' for c in "mkn"}
    named["%a"] = 'mlirc.sizes = ["m", "k"], mlirc.strides = ["k", "1"]'
    named["%b"] = 'mlirc.sizes = ["k", "n"], mlirc.strides = ["n", "1"]'
    named["%c"] = 'mlirc.sizes = ["m", "n"], mlirc.strides = ["n", "1"]'
    arguments = [("%a", a_type), ("%b", b_type), ("%c", out), ("%m", "index"), ("%k", "index"), ("%n", "index")]
    text = kernel(arguments, body, [("%r", out)], [["1", "m"]], named)
    assert strategy(text).turned and "scatter" not in stages(text)["vector"]  # type: ignore[union-attr]
    run = built(text, target)
    for m in [0, *range(1, 40), 111, 112, 113, 130, 240]:
        for k, n in ((3, 1), (5, 31), (4, 70), (0, 5), (3, 0)):
            a, b, c = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n), (m, n)))
            got = padded(np.ones((n, m), np.float32), 3)
            assert run(a, b, c, m, k, n, got) == 0
            np.testing.assert_allclose(got, (a @ b + c).T, rtol=1e-4, atol=1e-4)
            assert untouched(got, 3)


def test_what_is_stored_along_the_columns_stays_so() -> None:
    s = strategy(turned(linear(64, 64, 64), 64, 64))
    assert s.turned and "rows" in s.why["turned"]  # type: ignore[union-attr]
    others = [linear(64, 64, 64), linear(64, 64, 64).replace('[["64", "1"]]', '[["8192", "128"]]'), depthwise(28, 3, 1)]
    assert not any(strategy(text).turned for text in others)  # type: ignore[union-attr]
    pairs = LINEAR.replace('["80", "1"]', '["1", "70"]')
    assert strategy(pairs, "znver4").turned and strategy(pairs, "sapphirerapids").turned  # type: ignore[union-attr]


@pytest.mark.parametrize("rows, tiles", [(32, 4), (56, 4), (64, 4), (112, 8), (12, 4)])
def test_vectors_of_rows_are_full(rows: int, tiles: int) -> None:
    """14 x 4 rows are three and a half vectors, 14 x 8 are seven."""
    assert strategy(turned(linear(rows, 64, 64), rows, 64)).row_tiles == tiles  # type: ignore[union-attr]


@pytest.mark.parametrize("rows, k, columns, first", [(4608, 64, 512, True), (4608, 784, 512, False), (256, 64, 512, False)])
def test_results_larger_than_a_cache_are_stored_from_end_to_end(rows: int, k: int, columns: int, first: bool) -> None:
    """If their lines are as short as 2 KB, so that reading them for every block of lanes costs less."""
    s = strategy(turned(linear(rows, k, columns), rows, columns))
    assert s.turned and s.lanes_first == first  # type: ignore[union-attr]


def rounded(m: int, k: int, n: int) -> str:
    """A packed product of bf16, rounded, stored the other way round."""
    text = LINEAR.replace("3x48x", f"{n // 32}x{k // 2}x").replace("70x96x", f"{m}x{k}x").replace("70x80x", f"{m}x{n}x")
    kind = f"tensor<{m}x{n}xbf16>"
    text = text.replace(f") -> tensor<{m}x{n}xf32>\n    attributes", f") -> {kind}\n    attributes").replace('[["80", "1"]]', f'[["1", "{m}"]]')
    return text.replace(f"  return %0 : tensor<{m}x{n}xf32>", generic("%y", [("%0", f"tensor<{m}x{n}xf32>")], kind, body="%o = arith.truncf %a0 : f32 to bf16") + f"return %y : {kind}")


def test_what_is_rounded_leaves_no_sum_without_a_register() -> None:
    """The constants of a rounding, which LLVM takes out of all loops: they are those of a function of its own."""
    text, cpu = rounded(2304, 256, 256), "znver4"
    assert strategy(text, cpu).called_epilogue and not strategy(turned(linear(64, 64, 64), 64, 64), cpu).called_epilogue  # type: ignore[union-attr]
    parts = re.split(r"\n(?=\.L|\w+:)", stages(text, cpu)["asm"])
    products = [p for p in parts if p.count("vdpbf16ps") >= 8]
    assert products and not any(re.search(r"vmov\w+\s.*\(%rsp\)", p) for p in products)


def test_vectors_are_stored_where_images_are_higher_than_wide() -> None:
    """The longer class has the rows if results are not contiguous along either."""
    tall = convolution(20, 64).replace("2x3x20x64", "2x90x20x64").replace("2x4x22x5", "2x91x22x5")
    first, last = ('"115200", ' + rest for rest in ('"20", "1", "1800"', '"1280", "64", "1"'))
    tall = tall.replace('"3840", "20", "1", "60"', first)
    turned, plain = strategy(tall), strategy(tall.replace(first, last))
    assert turned.turned and not plain.turned and turned.row != plain.row  # type: ignore[union-attr]
    assert "vector.scatter" not in stages(tall)["vector"]


def test_nothing_is_read_behind_operands() -> None:
    torch.manual_seed(0)
    x, w, r = torch.randn(1, 4, 5, 23), torch.randn(29, 4, 3, 3), torch.randn(1, 29, 3, 21)
    for residual in (r, r.to(memory_format=torch.channels_last)):
        compare(lambda x, w, r: F.conv2d(x, w) + r, x, w, residual, options={"strict": True, "guard_pages": "both"})


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.sweep)], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_images(dtype: torch.dtype, dynamic: bool, target: str) -> None:
    check_images(dtype, dynamic, target)


def test_images_of_symbolic_sizes() -> None:
    check_images(torch.bfloat16, True, TARGETS[0])


def check_images(dtype: torch.dtype, dynamic: bool, target: str) -> None:
    torch.manual_seed(0)
    options = {"strict": True, "target": target}

    def f(x, w, b, r):  # noqa: ANN001, ANN202
        return torch.relu(F.conv2d(x, w, b, padding=1) + r), F.conv2d(x, w, b, stride=2).sigmoid()

    for n, channels, out, height, width in [(2, 16, 17, 5, 33), (3, 3, 64, 7, 19)]:
        x, w, b = torch.randn(n, channels, height, width), torch.randn(out, channels, 3, 3), torch.randn(out)
        args = [t.to(dtype) for t in (x, w, b, torch.randn(n, out, height, width))]
        compare(f, *args, dynamic=dynamic, options=options)
        last = args[3].to(memory_format=torch.channels_last)
        compare(lambda x, w, b, r: F.conv2d(x, w, b, padding=1) + r.contiguous(), *args[:3], last, dynamic=dynamic, options=options)
    x, w = torch.randn(2, 16, 37).to(dtype), torch.randn(20, 16, 5).to(dtype)
    compare(lambda x, w: F.conv1d(x, w).tanh(), x, w, dynamic=dynamic, options=options)
    compare(lambda x, w: F.instance_norm(F.conv1d(x, w)), x, w, dynamic=dynamic, options=options)
    d = torch.randn(16, 1, 5).to(dtype)
    compare(lambda x, d: F.conv1d(x, d, groups=16) * 2, x, d, dynamic=dynamic, options=options)
    compare(lambda a, b: (a @ b).transpose(-1, -2).contiguous(), torch.randn(3, 37, 50).to(dtype), torch.randn(3, 50, 45).to(dtype), dynamic=dynamic, options=options)
