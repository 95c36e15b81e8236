"""Lanes that lie a few elements apart are loaded by vectors and shuffled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mlirc.passes.strategy.near import FARTHEST
from mlirc.tests.frontend.compare import compare
from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import built, kernel, padded, stages, strategy, untouched

TARGETS = ["host", "x86-64-v3"]
TYPES = {"f32": np.float32, "f64": np.float64, "i8": np.int8, "i16": np.int16, "i64": np.int64}


def every(step: int, n: int, kind: str) -> str:
    """y[i, j] = 2 * x[i, j * step], from the end where the step is negative."""
    full, part = f"tensor<5x{(n - 1) * abs(step) + 1}x{kind}>", f"tensor<5x{n}x{kind}>"
    start = (n - 1) * -step if step < 0 else 0
    body = f"%v = tensor.extract_slice %x[0, {start}] [5, {n}] [1, {step}] : {full} to {part}\n"
    body += generic("%r", [("%v", part)], part, body=f"%o = arith.add{kind[0]} %a0, %a0 : {kind}")
    return kernel([("%x", full)], body, [("%r", part)], [[n, 1]])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["f32", "i8", *(pytest.param(other, marks=pytest.mark.sweep) for other in ("f64", "i16", "i64"))])
@pytest.mark.parametrize("step", [-3, -1, 2, 4, 5, *(pytest.param(other, marks=pytest.mark.sweep) for other in (-5, -4, -2, 3))])
def test_steps(step, kind, target):
    for n in (1, 3, 17, 33, 40):
        x = np.arange(5 * ((n - 1) * abs(step) + 1)).astype(TYPES[kind]).reshape(5, -1)
        got = padded(np.zeros((5, n), TYPES[kind]))
        assert built(every(step, n, kind), target)(x, got) == 0
        np.testing.assert_array_equal(got, 2 * (x[:, ::step] if step > 0 else x[:, ::-1][:, ::-step]))
        assert untouched(got)


@pytest.mark.parametrize("step", [-FARTHEST, -1, 2, FARTHEST])
def test_nothing_is_gathered(step):
    """As many loads as elements from lane to lane, with masks for the tail, and a shuffle to join each to those before."""
    text = stages(every(step, 40, "f32"))["vector"]
    assert "vector.gather" not in text
    # Two vectors, and a tail.
    assert text.count("vector.load") == 2 * abs(step) and text.count("vector.maskedload") == abs(step)
    assert text.count("vector.shuffle") == 3 * max(abs(step) - 1, 1) + abs(step), "those of the tail's masks"
    assert "vector.gather" in stages(every(FARTHEST + 1, 40, "f32"))["vector"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_nothing_is_read_outside(dtype):
    def f(x):
        return x[..., ::2].logical_not(), x[..., 1::3].logical_not(), x.flip(-1).logical_not(), x[..., 2::4].logical_not()

    torch.manual_seed(0)
    for n in (35, 4):
        compare(f, (torch.randn(3, n) * 2).to(dtype), options={"strict": True, "guard_pages": "both"})


def test_lanes_of_windows_run_along_the_image():
    """Not along the two columns of a window, which lie next to each other."""
    x, w, y = "tensor<4x32x64xf32>", "tensor<2x2xf32>", "tensor<4x16x32xf32>"
    maps = ["c, i * 2 + u, j * 2 + v", "u, v", "c, i, j"]
    body = "%w = tensor.empty() : " + w + "\n" + generic("%r", [("%x", x), ("%w", w)], y, maps, "%o = arith.maximumf %a0, %a2 : f32", "ppprr", "cijuv", "0xFF800000")
    text = kernel([("%x", x)], body, [("%r", y)], [[512, 32, 1]])
    assert strategy(text).lane == 2
    assert "vector.gather" not in stages(text)["vector"]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pooled_planes(dtype, dynamic):
    def f(x):
        return F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 2, padding=1), F.max_pool2d(x, 3, 2, padding=1), F.max_pool1d(x[0], 2)

    torch.manual_seed(0)
    for shape in ((2, 3, 9, 70), (1, 1, 7, 33)):
        torch._dynamo.reset()
        compare(f, torch.randn(shape).to(dtype), dynamic=dynamic, options={"strict": True, "guard_pages": "end"})


def affine(x, w):
    return x * w + 1


def rotated(x, w):
    """(real, imaginary)"""
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * w[0] - b, b * w[0] + a], -1), torch.stack([a > b, b > a, a == b], -1).flatten(-2), torch.cat([a[..., None], x[..., None].unflatten(-2, (-1, 2)).flatten(-2)], -1)


def channels_last(x, w):
    return (x.mT * 2).contiguous(), torch.stack([x[:, 0], x[:, 2] + w[0], x[:, 1], x[:, 0].exp()], -1)


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.sweep)], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float64, marks=pytest.mark.sweep)], ids=str)
@pytest.mark.parametrize("f", [affine, rotated, channels_last])
def test_few_columns(f, dtype, dynamic):
    torch.manual_seed(0)
    for n in (1, 17, 70):
        for k in (2, 3, 4) if f is affine else (4,) if f is rotated else (3,):
            torch._dynamo.reset()
            x = torch.randn((2, k, n) if f is channels_last else (2, n, k)).to(dtype)
            compare(f, x, torch.randn(k).to(dtype), dynamic=dynamic, options={"strict": True, "guard_pages": "both"})


@pytest.mark.parametrize("kind", ["f32", "i8", "i1", *(pytest.param(other, marks=pytest.mark.sweep) for other in ("f64", "i16", "i64"))])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_columns_are_interleaved(count, target, kind):
    """out[i, j] = x[j, i], of which each column is a vector."""
    for n in (16, 33, 5000):
        x_type, y_type = f"tensor<{count}x{n}x{kind}>", f"tensor<{n}x{count}x{kind}>"
        body = generic("%r", [("%x", x_type)], y_type, ["j, i", "i, j"], "%o = arith.bitcast %a0 : " + f"{kind} to {kind}", loops="ij")
        text = kernel([("%x", x_type)], body, [("%r", y_type)], [[count, 1]])
        assert strategy(text).interleaved == 1
        if n == 5000:
            assert stages(text)["vector"].count("vector.scatter") == count, "in the tail"
        x = np.arange(n * count).reshape(count, n)
        x = (x % 3 == 0) if kind == "i1" else x.astype(TYPES[kind])
        got = padded(np.zeros((n, count), TYPES.get(kind, np.uint8)))
        assert built(text, target)(np.ascontiguousarray(x), got) == 0
        np.testing.assert_array_equal(got, x.T)
        assert untouched(got)


def test_an_unknown_number_of_columns():
    """Of each operand; together they are four."""

    def f(x, y, z):
        k = z.shape[0]
        return torch.cat([x.reshape(-1, 4)[:, :k], y.reshape(-1, 4)[:, k:]], -1)

    compare(f, torch.randn(160), torch.randn(160), torch.randn(2), dynamic=True, options={"strict": True})


@pytest.mark.parametrize("columns,rows_have_lanes", [(3, True), (7, False)])
def test_short_rows_are_folded_where_they_would_be_gathered(columns, rows_have_lanes):
    """Rows of three are loaded by vectors and shuffles; of seven, each row is one vector, whose lanes are added up."""
    x, y = f"tensor<5000x{columns}xf32>", "tensor<5000xf32>"
    text = kernel([("%x", x)], generic("%r", [("%x", x)], y, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0"), [("%r", y)], [[1]])
    assert (strategy(text).lane == 0) == rows_have_lanes
    for target in TARGETS:
        values, got = np.random.default_rng(0).standard_normal((5000, columns)).astype(np.float32), padded(np.zeros(5000, np.float32))
        assert built(text, target)(values, got) == 0 and untouched(got)
        np.testing.assert_allclose(got, values.sum(1), rtol=1e-5, atol=1e-5)
