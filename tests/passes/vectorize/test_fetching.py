"""What convolutions fetch of their images: how many lines at each place of a window, and that nothing else changes."""

from __future__ import annotations

import copy
import re

import pytest
import torch

from mlirc.lowering.target import Target
from mlirc.tests.passes.strategy.test_ahead import convolution, grouped
from mlirc.tests.passes.vectorize.kernels import stages


@pytest.mark.parametrize("text, each", [
    (convolution(66, 66, 64), 4),
    (convolution(129, 129, 64, stride=2), 2 * 8),
    (convolution(402, 27, 64), 4),
    (grouped(66, 4, 32), 2),
], ids=["plain", "in steps", "rows down the image", "groups"])  # fmt: skip
def test_tiles_fetch_what_the_next_ones_will_see(text: str, each: int) -> None:
    """Of 8 windows, 8 x 64 x 4 bytes are 32 lines for 9 places; in steps of two, twice as many of each of two lines of the image."""
    texts = stages(text, "znver4")
    assert " rows=8," in texts["strategy"] and "rows_ahead=2," in texts["strategy"]
    loops = texts["asm"].split("\n.L")
    assert max(loop.count("prefetcht1") for loop in loops) == each
    products = [loop for loop in loops if loop.count("vfmadd") >= 16]
    assert products and not any("prefetcht1" in loop or re.search(r"\(%rsp", loop) for loop in products)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"dilation": 2, "padding": 2}, {"groups": 2}, {"stride": (2, 1), "padding": (0, 2)}], ids=str)
@pytest.mark.parametrize("height, width", [(1, 33), (17, 20), (33, 3)])
def test_what_is_fetched_of_an_image_changes_nothing(height: int, width: int, options: dict[str, object], dtype: torch.dtype) -> None:
    if height == 1 and options.get("padding") == (0, 2):
        pytest.skip("the window is higher than the image")
    conv = torch.nn.Conv2d(64, 48, 3, **{"padding": 1, **options}).to(dtype).eval()  # type: ignore[arg-type]
    x = torch.randn(2, 64, height, width, dtype=dtype)
    target = "x86-64-v4" if Target.host().has_amx_bf16 else "host"  # tiles fetch no windows
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    with torch.no_grad():
        want = copy.deepcopy(conv).double()(x.double())
        for level in (1, 2):
            torch._dynamo.reset()
            got = torch.compile(conv, backend="mlirc", options={"target": target, "pin": f"*conv: rows_ahead={level}"})(x)
            torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)
