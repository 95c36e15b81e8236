"""Depthwise convolutions: neighbouring outputs of a tile share what they read, and all of it stays in registers."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from mlirc.passes.pack import PackShape, pack
from mlirc.passes.strategy import ContractionStrategy
from mlirc.tests.frontend.compare import OPTIONS
from mlirc.tests.frontend.elementwise import close, module_matches
from mlirc.tests.passes.graph_text import check, function, generic
from mlirc.tests.passes.vectorize.kernels import kernel, stages, strategy

MULTIPLY_ADD = "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"


def depthwise(width: int, taps: int, stride: int, channels: int = 48, kind: str = "f32") -> str:
    """[4 + taps - 1][...][channels] by [taps][taps][channels] to [4][width][channels]."""
    wide = (width - 1) * stride + taps
    x, w, y = f"tensor<{3 + taps}x{wide}x{channels}x{kind}>", f"tensor<{taps}x{taps}x{channels}xf32>", f"tensor<4x{width}x{channels}xf32>"
    maps = [f"i + l, j * {stride} + m, k", "l, m, k", "i, j, k"]
    body = MULTIPLY_ADD if kind == "f32" else "%e = arith.extf %a0 : bf16 to f32\n" + MULTIPLY_ADD.replace("%a0", "%e")
    op = generic("%y", [("%x", x), ("%w", w)], y, maps, body, "ppprr", "ijklm", "0.0", "convolution")
    return kernel([("%x", x), ("%w", w)], op, [("%y", y)], [[width * channels, channels, 1]])


@pytest.mark.parametrize("stride, taps, shared", [(1, 7, True), (1, 3, True), (2, 3, True), (2, 2, False), (1, 1, False)])
def test_taps_are_shared_where_windows_overlap(stride, taps, shared):
    s = strategy(depthwise(28, taps, stride))
    assert isinstance(s, ContractionStrategy) and (s.shared is not None) == shared


@pytest.mark.parametrize("target, lanes", [("x86-64-v3", 8), ("x86-64-v4", 16)])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_every_place_is_loaded_once(kind, target, lanes):
    text = depthwise(28, 7, 1, kind=kind)
    rows = strategy(text, target).rows  # type: ignore[union-attr]
    asm = stages(text, target)["asm"]
    body = max(asm.split("\n.L"), key=lambda part: part.count("vfmadd"))
    assert body.count("vfmadd") == 7 * rows
    loads = re.findall(r"(?:vmovups|vpmovzxwd)\s+-?\w*\(", body)
    assert rows + 6 <= len(loads) <= rows + 13
    assert not re.search(r"vmov\w+\s+%[yz]mm\d+, -?\d*\(%rsp", body), "spills"


def test_planes_are_copied_to_channels_last():
    """Rather than gathered for each tap."""
    x, w, y = "tensor<20x9x12xf32>", "tensor<3x3x20xf32>", "tensor<7x10x20xf32>"
    op = generic("%y", [("%x", x), ("%w", w)], y, ["k, i + l, j + m", "l, m, k", "i, j, k"], MULTIPLY_ADD, "ppprr", "ijklm", "0.0", "convolution")
    check(
        function([("%x", x), ("%w", w)], op, [("%y", y)]),
        lambda main: pack(main, PackShape(32)),
        """
        CHECK: #[[CHW:.*]] = affine_map<(d0, d1, d2) -> (d2, d0, d1)>
        CHECK: #[[WINDOW:.*]] = affine_map<(d0, d1, d2, d3, d4) -> (d0 + d3, d1 + d4, d2)>
        CHECK: %[[COPY:.*]] = linalg.generic {indexing_maps = [#[[CHW]], #{{.*}}], {{.*}} ins(%arg0 {{.*}} outs(%{{.*}} : tensor<9x12x20xf32>)
        CHECK: linalg.generic {indexing_maps = [#[[WINDOW]], {{.*}} ins(%[[COPY]], %arg1 :
        """,
        clean=True,
    )


CASES = {
    # name: (channels, kernel, stride, padding, dilation, height, width)
    "7x7": (40, 7, 1, 3, 1, 9, 15),
    "3x3, stride 2": (33, 3, 2, 1, 1, 13, 29),
    "5x5, dilation": (20, 5, 1, 4, 2, 11, 12),
    "5x3": (16, (5, 3), (1, 2), (2, 0), 1, 9, 11),
    "1d": (19, 3, 1, 1, 1, None, 31),
    "few channels": (3, 3, 1, 1, 1, 8, 8),
}


def module(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    c, kernel, stride, padding, dilation, h, w = CASES[name]
    kind = nn.Conv1d if h is None else nn.Conv2d
    return kind(c, c, kernel, stride, padding, dilation, groups=c), (2, c, *([] if h is None else [h]), w)


@pytest.mark.sampled
@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_inference(name, dtype, target):
    torch._dynamo.reset()
    torch.manual_seed(0)
    made, shape = module(name)
    made = made.to(dtype)
    x = torch.randn(shape, dtype=dtype)
    with torch.no_grad():
        got = torch.compile(made, backend="mlirc", options={**OPTIONS, "target": target})(x)
        close("output", made.double()(x.double()).to(dtype), got, 4)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_training(dynamic):
    made, shape = module("3x3, stride 2")
    module_matches(made, torch.randn(shape), dynamic=dynamic, factor=4)
