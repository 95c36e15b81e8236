"""Rows that one loop walks over: what they are where, how many there can be, and what the code has. `test_rows` has their numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from mlirc.errors import OptionError
from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import built, kernel, padded, stages, untouched
from mlirc.tests.passes.vectorize.test_rows import JOINED, TARGETS, norm, weighted

rng = np.random.default_rng(0)


@pytest.mark.parametrize("pin", JOINED)
@pytest.mark.parametrize("target", TARGETS)
def test_in_place(target, pin):
    """What is stored after the last reduction: the last row, which takes the place of those that are missing, is read before it is stored."""
    t, row = "tensor<9x100xf32>", "tensor<9xf32>"
    body = generic("%s", [("%x", t)], row, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
    body += generic("%r", [("%x", t), ("%s", row)], t, ["i, j", "i", "i, j"], "arith.addf")
    run = built(kernel([("%x", t)], body, [("%r", t)], [[100, 1]]), target, pin)
    x = padded(rng.standard_normal((9, 100)).astype(np.float32))
    want = x + x.sum(1, keepdims=True)
    assert run(x, x) == 0
    np.testing.assert_allclose(x, want, rtol=1e-4, atol=1e-4)
    assert untouched(x)


def test_rows_of_two_classes():
    """What is reduced has two loops, and rows are walked by each thread, 49 of them."""
    t, row = "tensor<6x49x4x20xf32>", "tensor<6x49xf32>"
    body = generic("%s", [("%x", t), ("%y", "tensor<49x20x4xf32>")], row, ["i, j, k, l", "j, l, k", "i, j"], "%p = arith.mulf %a0, %a1 : f32\n%o = arith.addf %p, %a2 : f32", "pprr", "ijkl", "0.0")
    body += generic("%r", [("%x", t), ("%s", row)], t, ["i, j, k, l", "i, j", "i, j, k, l"], "arith.mulf")
    text = kernel([("%x", t), ("%y", "tensor<49x20x4xf32>")], body, [("%r", t)], [[3920, 80, 20, 1]])
    run = built(text, "host", "unroll=1, joined=4")
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((6, 49, 4, 20), (49, 20, 4)))
    z = padded(np.zeros(x.shape, np.float32))
    assert run(x, y, z) == 0
    np.testing.assert_allclose(z, x * (x * y.transpose(0, 2, 1)).sum((2, 3), keepdims=True), rtol=1e-4, atol=1e-4)
    assert untouched(z)


@pytest.mark.parametrize("target", ["znver4", "znver3"])
def test_the_code(target):
    """A loop for each phase of both rows, their sums in registers; one division and one root for both."""
    asm = stages(norm(128, 768, "f32"), target, "unroll=2, joined=2")["asm"]
    loops = [loop for loop in re.split(r"\n\.LBB\w+:", asm) if re.search(r"\tjle?\t", loop)]
    assert len(re.findall("vsqrt", asm)) == 1 and len(re.findall("vdivps", asm)) <= 3
    (sums,) = [loop for loop in loops if loop.count("vaddps\t(") + loop.count("vaddps\t32(") + loop.count("vaddps\t64(") == 4]
    (squares,) = [loop for loop in loops if len(re.findall(r"vfmadd\w+ps\t%", loop)) == 4]
    assert "%rsp" not in sums and squares.count("prefetcht0") == 4


@pytest.mark.parametrize("target", ["znver4", "znver3"])
def test_what_is_the_same_for_all_rows_is_loaded_once(target):
    text = stages(weighted(16, 1024), target, "unroll=1, joined=4")["vector"]
    last = text.split("scf.for")[-1]
    assert last.count("vector.load") == 5 and last.count("vector.store") == 4


@pytest.mark.parametrize("target,kind,rows", [("x86-64-v2", "f32", 4), ("x86-64-v2", "bf16", 4), ("znver3", "f64", 4), ("znver4", "bf16", 8)])
def test_no_more_rows_than_their_sums_have_lanes(target, kind, rows):
    """Each of which has one in the vector that they end in."""
    text = norm(49, 96, "bf16") if kind == "bf16" else norm(49, 96, "f32").replace("f32", kind)
    stages(text, target, f"joined={rows}")
    with pytest.raises(OptionError, match=f"joined={rows + 1} is impossible for this kernel; valid: 1 to {rows}"):
        stages(text, target, f"joined={rows + 1}")


def test_fewer_lanes_are_fewer_rows():
    """A pin of one field is no error for what the model chose for another."""
    asm = stages(norm(49, 768, "bf16"), "znver4", "joined=4")["strategy"]
    assert " joined=4," in asm
    text = stages(weighted(49, 96).replace("f16", "bf16"), "znver4", "lanes=4")["strategy"]
    assert " lanes=4," in text.replace('"lanes', '" lanes') and " joined=2," in text


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "host"])
@pytest.mark.parametrize("out", [torch.float32, torch.float64])
@pytest.mark.parametrize("x,w", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_norms_of_several_types(x, w, out, target):
    def gate(x, w):
        d = x - x.mean(-1, keepdim=True)
        return (d * w * torch.rsqrt(d.float().square().mean(-1, keepdim=True) + 1e-5)).to(out)

    args = torch.randn(49, 96).to(x), torch.randn(96).to(w)
    torch.testing.assert_close(torch.compile(gate, backend="mlirc", options={"target": target, "strict": True})(*args), gate(*args), rtol=2e-2, atol=2e-2)
