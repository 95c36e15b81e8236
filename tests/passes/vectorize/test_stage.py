"""Reductions along the lanes of rows that lie across memory: blocks of rows go through registers, without gathers."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import built, kernel, padded, stages, strategy, untouched

SIZES = [(1, 1), (3, 5), (16, 64), (17, 33), (33, 17), (70, 2), (8, 1), (40, 100), (64, 3)]
rng = np.random.default_rng(0)


def centred(n: int, m: int) -> str:
    """out[i, j] = x[j, i] - max of x[:, i], of n rows of m elements, and the maxima."""
    x, t, row = f"tensor<{m}x{n}xf32>", f"tensor<{n}x{m}xf32>", f"tensor<{n}xf32>"
    body = generic("%m", [("%x", x)], row, ["j, i", "i"], "arith.maximumf", "pr", "ij", "0xFF800000")
    body += generic("%r", [("%x", x), ("%m", row)], t, ["j, i", "i", "i, j"], "arith.subf")
    return kernel([("%x", x)], body, [("%r", t), ("%m", row)], [[m, 1], [1]])


@pytest.mark.parametrize("target", ["x86-64-v3", "host"])
@pytest.mark.parametrize("n,m", SIZES)
def test_every_edge(n, m, target):
    run = built(centred(n, m), target)
    x = padded(rng.standard_normal((m, n)).astype(np.float32))
    out, maxima = padded(np.zeros((n, m), np.float32)), padded(np.zeros(n, np.float32))
    assert run(x, out, maxima) == 0
    np.testing.assert_array_equal(maxima, x.max(0))
    np.testing.assert_array_equal(out, x.T - x.max(0)[:, None])
    assert untouched(out) and untouched(maxima)


@pytest.mark.parametrize("target,lanes", [("x86-64-v4", 16), ("x86-64-v3", 8)])
def test_loads_are_contiguous_and_of_whole_blocks(target, lanes):
    text = centred(64, 48)
    chosen = strategy(text, target)
    assert (chosen.lane, chosen.staged) == (chosen.inner[0], chosen.parallel[-1])
    seen = stages(text, target)
    assert "gather" not in seen["vector"] and "mask" not in seen["vector"]
    copy = re.search(r"func.func private @k_stage\(.*?\n  }", seen["vector"], re.DOTALL)[0]
    assert copy.count("vector.load") == copy.count("memref.prefetch") == copy.count("vector.store") == lanes
    assert copy.count("vector.shuffle") == lanes * (lanes.bit_length() - 1)
    # The rows are read from the buffer: nothing else reads the argument.
    rows = seen["vector"].replace(copy, "")
    assert "vector.shuffle" not in rows and all("%cast" in line for line in rows.splitlines() if "vector.load" in line)


@pytest.mark.parametrize("target,lanes", [("x86-64-v4", 32), ("x86-64-v3", 16)])
def test_rows_of_bf16_are_computed_in_full_registers(target, lanes):
    body = "%x0 = arith.extf %a0 : bf16 to f32\n%s0 = arith.subf %x0, %a1 : f32\n%o = arith.truncf %s0 : f32 to bf16"
    x, t, row = "tensor<96x64xbf16>", "tensor<64x96xbf16>", "tensor<64xf32>"
    text = generic("%m", [("%x", x)], row, ["j, i", "i"], "%x0 = arith.extf %a0 : bf16 to f32\n%o = arith.addf %x0, %a1 : f32", "pr", "ij", "0.0")
    text = kernel([("%x", x)], text + generic("%r", [("%x", x), ("%m", row)], t, ["j, i", "i", "i, j"], body), [("%r", t)], [[96, 1]])
    assert (strategy(text, target).lanes, strategy(text, target).block) == (lanes, lanes // 2)
    seen = stages(text, target)
    # The rows' lanes are apart, those of the copy are not.
    assert "arith.extf" not in seen["math"] and f"vector<{lanes // 2}xbf16>" in seen["math"]


def test_few_rows_and_rows_that_are_contiguous_are_not_copied():
    assert strategy(centred(9, 64), "x86-64-v4").staged is None
    t, row = "tensor<64x48xf32>", "tensor<64xf32>"
    body = generic("%m", [("%x", t)], row, ["i, j", "i"], "arith.maximumf", "pr", "ij", "0xFF800000")
    body += generic("%r", [("%x", t), ("%m", row)], t, ["i, j", "i", "i, j"], "arith.subf")
    assert strategy(kernel([("%x", t)], body, [("%r", t)], [[48, 1]]), "x86-64-v4").staged is None


def test_rows_too_long_for_the_stack_are_not_copied():
    assert strategy(centred(64, 2048), "x86-64-v4").staged is not None
    assert strategy(centred(64, 2064), "x86-64-v4").staged is None


def norm(x, w):
    return F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), w, w)


def two_norms(x, w):
    y = norm(x, w)
    return y, F.layer_norm(y, (x.shape[1],), w)


def norm_of_a_sum(x, w):
    y = x.permute(0, 2, 3, 1) * 2 + w
    return F.layer_norm(y, (x.shape[1],), w) + y


def softmax_of_a_part(x, w):
    return x[:, :, :, 1:].flatten(2).transpose(1, 2).softmax(-1) * w


def parts_at_two_places(x, w):
    y = x.flatten(2).transpose(1, 2)
    return (y[:, :-1] - y[:, 1:]).softmax(-1) * w


def rolled(x, w):
    y = x.flatten(2).transpose(1, 2)
    return (y + y.roll(1, 1)).softmax(-1) * w


def norm_of_two_dims(x, w):
    return F.layer_norm(x.permute(0, 3, 2, 1), (x.shape[2], x.shape[1])) + w


FUNCTIONS = [norm, two_norms, norm_of_a_sum, softmax_of_a_part, parts_at_two_places, rolled, norm_of_two_dims]
CASES = [*((f, dtype) for f in FUNCTIONS for dtype in (torch.float32, torch.bfloat16)), (norm, torch.float64), (norm, torch.float16)]


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("f,dtype", CASES, ids=lambda x: getattr(x, "__name__", None))
def test_norms_of_transposed_inputs(f, dtype, dynamic):
    torch.manual_seed(0)
    for n, c, h, w in [(1, 48, 8, 9), (2, 33, 5, 5), (2, 3, 17, 2)]:
        torch._dynamo.reset()
        x, weight = torch.randn(n, c, h, w).to(dtype), torch.randn(c).to(dtype)
        got = torch.compile(f, backend="mlirc", dynamic=dynamic, options={"strict": True})(x, weight)
        expected, exact = f(x, weight), f(x.double(), weight.double())
        for a, b, e in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, expected, exact))):
            assert a.dtype == b.dtype
            assert (a.double() - e).abs().max() <= 2 * (b.double() - e).abs().max() + 30 * torch.finfo(dtype).eps


def test_a_norm_of_a_transposed_input_has_no_gathers():
    """Also where the number of rows is not known."""
    from mlirc import driver

    texts = []
    compile_kernels = driver.compile_kernels
    with pytest.MonkeyPatch.context() as m:
        m.setattr(driver, "compile_kernels", lambda kernels, *a, **k: texts.extend(x.text for x in kernels) or compile_kernels(kernels, *a, **k))
        for dynamic in (False, True):
            torch._dynamo.reset()
            x = torch.randn(2, 24, 7, 9)
            torch._dynamo.mark_static(x, 1)
            torch.compile(norm, backend="mlirc", dynamic=dynamic)(x, torch.randn(24))
    assert len(texts) == 2 and "?" in texts[1]
    for text in texts:
        assert not re.search("gather|scatter", stages(text)["vector"])
