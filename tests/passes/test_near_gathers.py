"""Gathers whose lanes may lie near one another: loads and a permutation where they do, whatever the indices are."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from mlirc.dialects.mlir import ir
from mlirc.lowering.target import Target
from mlirc.passes.near_gathers import near_gathers
from mlirc.tests.frontend.compare import compare

M = "%m = arith.constant dense<true> : vector<16xi1>"


def rewritten(kind: str, target: str, mask: str = M, mark: str = "{mlirc.near} ", lanes: int = 16) -> str:
    v, i = f"vector<{lanes}x{kind}>", f"vector<{lanes}xindex>"
    mask = mask.replace("16", str(lanes))
    with ir.Context():
        text = f"""func.func @k(%x: memref<?x{kind}>, %b: index, %i: {i}, %n: index, %z: {v}) -> {v} {{
            {mask}
            %g = "vector.gather"(%x, %b, %i, %m, %z) {mark}: (memref<?x{kind}>, index, {i}, vector<{lanes}xi1>, {v}) -> {v}
            return %g : {v}
        }}"""
        module = ir.Module.parse(text)
        near_gathers(module, Target.parse(target))
        assert module.operation.verify()
        return str(module)


@pytest.mark.parametrize("kind, lanes, target, name", [
    ("f32", 16, "skylake-avx512", "avx512.vpermi2var.d.512"),
    ("bf16", 16, "skylake-avx512", "avx512.vpermi2var.hi.256"),
    ("bf16", 32, "znver4", "avx512.vpermi2var.hi.512"),
    ("f64", 8, "skylake-avx512", "avx512.vpermi2var.q.512"),
    ("f32", 8, "skylake-avx512", "avx512.vpermi2var.d.256"),
    ("i8", 16, "icelake-server", "avx512.vpermi2var.qi.128"),
    ("f32", 8, "x86-64-v3", "avx2.permd"),
])  # fmt: skip
def test_a_permutation(kind, lanes, target, name):
    """Of two loads that end with the last element that is wanted; else the gather."""
    text = rewritten(kind, target, lanes=lanes)
    assert name in text
    assert text.count("vector.maskedload") == 2 and text.count("vector.create_mask") == 2
    then, other = re.search(r"scf\.if(.*)\} else \{(.*)", text, re.S).groups()
    assert "vector.gather" in other and "vector.gather" not in then
    assert "vector.reduction <minsi>" not in text, "the first and the last lane are the nearest and the farthest, or it is gathered"


def test_masked_lanes_count_for_nothing():
    text = rewritten("f32", "skylake-avx512", mask="%m = vector.create_mask %n : vector<16xi1>")
    assert "vector.reduction <minsi>" in text and "vector.reduction <maxsi>" in text
    assert re.search(r"arith.select %\d+, %\d+, %arg4 : vector<16xi1>", text)


@pytest.mark.parametrize("kind, target, mark, lanes", [
    ("f32", "skylake-avx512", "", 16),
    ("i8", "skylake-avx512", "{mlirc.near} ", 16),  # no permutation of bytes
    ("bf16", "x86-64-v3", "{mlirc.near} ", 16),
    ("f64", "x86-64-v3", "{mlirc.near} ", 4),
    ("f32", "skylake-avx512", "{mlirc.near} ", 32),
])  # fmt: skip
def test_what_stays(kind, target, mark, lanes):
    text = rewritten(kind, target, mark=mark, lanes=lanes)
    assert "scf.if" not in text and "vector.gather" in text and "mlirc.near" not in text


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]
WIDTHS = [1, 3, 7, 16, 17, 33, 64, 100]


def numbers(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(shape).mul(50) if dtype.is_floating_point else torch.randint(0, 2 if dtype == torch.bool else 200, shape)
    return x.to(dtype)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target, guard", [("host", "off"), ("host", "both"), ("x86-64-v3", "both")])
def test_indices(dtype, target, guard):
    """Along the lanes: climbing, falling, all the same, far apart, near but in any order, and the last elements of memory."""
    options = {"guard_pages": guard, "target": target, "strict": True}
    for n in WIDTHS:
        x = numbers(5, n, dtype=dtype)
        lanes = torch.arange(40)
        rows = [lanes, -lanes, lanes // 2, lanes * 2, lanes * 3, 0 * lanes, n - 1 - 0 * lanes, torch.randint(0, n, (40,)), lanes ^ 3, lanes * lanes]
        index = torch.stack(rows) % n

        def f(x, index):
            return x[1:4, None].expand(-1, 10, -1).gather(2, index.expand(3, -1, -1))

        def g(x, index):
            return x[:, index[:, :7]], x.flatten()[index]

        compare(f, x, index, options=options)
        compare(g, x, index, options=options)


@pytest.mark.sampled
@pytest.mark.parametrize("n", [1, 5, 16, 33, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
@pytest.mark.parametrize("dynamic", [False, True])
def test_rolls(n, dtype, dynamic):
    def f(x):
        return torch.roll(x, 3, 1), torch.roll(x, (-5, 2), (1, 0)), x.roll(1)

    compare(f, numbers(4, n, dtype=dtype), dynamic=dynamic)


@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resampling(mode, dtype):
    """Planes, from a few elements to more and to fewer."""
    corners = {} if "nearest" in mode else {"align_corners": True}
    sizes = [(5, 7, (9, 14)), (9, 65, (4, 13)), (1, 1, (3, 17)), (3, 40, (6, 33)), (2, 16, (2, 80))]
    for h, w, size in sizes[: 3 if mode == "bicubic" else None]:  # which takes 16 reads an element, and as much longer to compile
        def f(x, size=size):
            return F.interpolate(x, size=size, mode=mode), F.interpolate(x, size=size, mode=mode, **corners)

        compare(f, torch.randn(2, 3, h, w).to(dtype))


@pytest.mark.parametrize("size", [17, 96])
def test_what_is_not_finite_is_only_moved(size):
    x = torch.randn(3, size)
    x[0, ::3], x[1, ::5], x[2, 1] = float("nan"), float("inf"), 1e-42

    def f(x):
        return torch.roll(x, 5, 1), x.gather(1, (torch.arange(2 * size) // 2).expand(3, -1))

    for got, expected in zip(torch.compile(f, backend="mlirc", options={"strict": True})(x), f(x)):
        assert torch.equal(got.view(torch.int32), expected.view(torch.int32))
