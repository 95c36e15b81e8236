"""Rows along which elements lie far apart: the first walk over a row copies them, where their lines would evict one another."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from mlirc.lowering.target import Target
from mlirc.tests.frontend.compare import compare
from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import kernel, stages, strategy


def deviations(channels: int, places: int, step: int | None = None) -> str:
    """x - mean of x over the channels of planes that lie `step` elements apart."""
    t, row = f"tensor<{channels}x{places}xf32>", f"tensor<{places}xf32>"
    body = generic("%s", [("%x", t)], row, ["i, j", "j"], "%o = arith.addf %a0, %a1 : f32", "rp", "ij", "0.0")
    body += generic("%y", [("%x", t), ("%s", row)], t, ["i, j", "j", "i, j"], "%o = arith.subf %a0, %a1 : f32", "pp", "ij")
    return kernel([("%x", t)], body, [("%y", t)], [[places, 1]], {"%x": f'mlirc.strides = ["{step or places}", "1"]'})


@pytest.mark.parametrize("channels, places, step, is_copied", [
    (70, 4096, None, True),  # 64 lines of 16 KB apart have a place
    (64, 4096, None, False),
    (300, 1024, None, True),
    (256, 1024, None, False),
    (300, 1000, 1024, True),
    (300, 1040, None, False),  # in many sets
])  # fmt: skip
def test_what_is_copied(channels, places, step, is_copied):
    """With a second-level cache of 1 MB and 8 ways."""
    chosen = strategy(deviations(channels, places, step=step), "skylake-avx512")
    assert chosen.copied == ([0] if is_copied else []) and ("copied" in chosen.why) == is_copied


def test_copies_have_a_limit():
    """They lie on the stack: of 40 arguments with 16 KB each in a row, 512 KB."""
    t, row, n = "tensor<256x8192xf64>", "tensor<8192xf64>", 40
    body = "".join(generic(f"%s{i}", [(f"%x{i}", t)], row, ["i, j", "j"], "arith.addf", "rp", "ij", "0.0") for i in range(n))
    total, maps = [f"%o0 = arith.addf %a0, %a{n} : f64"], ["i, j"] * n + ["j"] * n + ["i, j"]
    total += [f"%o{i} = arith.addf %o{i - 1}, %a{i} : f64" for i in range(1, n)]
    total += [f"%o = arith.subf %o{n - 1}, %a{n + 1} : f64"]
    body += generic("%y", [*((f"%x{i}", t) for i in range(n)), *((f"%s{i}", row) for i in range(n))], t, maps, "\n".join(total), "pp", "ij")
    chosen = strategy(kernel([(f"%x{i}", t) for i in range(n)], body, [("%y", t)], [[8192, 1]]), "skylake-avx512")
    assert 0 < len(chosen.copied) * 256 * 8 * chosen.lanes <= 512 << 10 and len(chosen.copied) < n


def loads(channels: int) -> list[str]:
    """The buffers that whole vectors are loaded from, in order: that of the argument is the first."""
    return re.findall(r"vector\.load (%\w+)\[", stages(deviations(channels, 1024), "skylake-avx512")["vector"])


def test_it_is_read_from_memory_once():
    (argument, buffer), again = loads(300), loads(200)
    assert argument != buffer
    assert len(again) == 2 and len({*again}) == 1, "without a copy, both walks read the argument"


def test_one_walk_has_nothing_to_copy():
    t, row = "tensor<300x1024xf32>", "tensor<1024xf32>"
    body = generic("%s", [("%x", t)], row, ["i, j", "j"], "%o = arith.addf %a0, %a1 : f32", "rp", "ij", "0.0")
    assert not strategy(kernel([("%x", t)], body, [("%s", row)], [[1]]), "skylake-avx512").copied


OPTIONS = {"target": "skylake-avx512", "strict": True}


@pytest.mark.sampled
@pytest.mark.skipif(not Target.parse("host").has_avx512, reason="no AVX-512")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("places", [4096, 4093, 7])
def test_norms_over_channels(dtype, places):
    whole = torch.randn(2, 140, 4096) + torch.linspace(-3, 50, 140)[:, None]
    whole[0, 3, 5], whole[1, :, 2], whole[1, 7, 1] = float("nan"), 0, float("inf")
    x = whole.to(dtype)
    w, b = torch.randn(140).to(dtype), torch.randn(140).to(dtype)

    def f(x, w, b):
        x = x[:, :, :places]
        y = F.layer_norm(x.transpose(1, 2), (140,), w, b)
        return y, x.softmax(1), x.var(1), F.normalize(x, dim=1), x - x.mean(1, keepdim=True) + x.amax(1, keepdim=True)

    compare(f, x, w, b, options=OPTIONS)


@pytest.mark.skipif(not Target.parse("host").has_avx512, reason="no AVX-512")
@pytest.mark.parametrize("guard", ["off", "both"])
def test_several_arguments(guard):
    """Some of which are read at other places, too."""

    def f(x, y, m):
        z = torch.where(m, x, y)
        z = (z - z.mean(0, keepdim=True)) * y
        u = x[:300] * x[10:310]
        v = y * 2 + 1
        v = v - (v[1:] * v[:-1]).sum(0)
        return v, z / z.amax(0, keepdim=True), u - u.sum(0, keepdim=True), x.flip(0) - x.sum(0, keepdim=True)

    compare(f, torch.randn(320, 1024), torch.randn(320, 1024), torch.rand(320, 1024) > 0.5, options={**OPTIONS, "guard_pages": guard})
