"""Reductions that are cut in blocks: as right as in one, with every tail, and no more stores to the result than before."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from mlirc import driver
from mlirc.lowering.caches import Caches
from mlirc.lowering.target import Target
from mlirc.passes import strategy
from mlirc.passes.strategy import traffic
from mlirc.tests.frontend.compare import compare
from mlirc.tests.passes.vectorize.test_tiles import LINEAR

OPTIONS = {"strict": True, "cache": False, "workers": 1}


@pytest.fixture
def small_panels(monkeypatch: pytest.MonkeyPatch) -> list[strategy.ContractionStrategy]:
    """Blocks of 16 elements in f32, as of a tiny cache, in this process, where kernels are compiled too; the strategies that were chosen."""
    chosen = []
    select = strategy.select_strategy

    def here(kernel, target):  # noqa: ANN001, ANN202
        features = tuple(f for f in target.features if not f.startswith("amx-"))  # whose kernels have blocks of their own
        columns = target.vector_bits // 16
        chosen.append(select(kernel, replace(target, caches=Caches(second=4 * columns * 4 * 16), features=features)))
        return chosen[-1]

    monkeypatch.setattr(traffic, "LEAST_CUT", 16)
    monkeypatch.setattr(traffic, "LEAST_PANELS", 1)
    monkeypatch.setattr(driver, "select_strategy", here)
    monkeypatch.setattr(driver, "compile_kernels", _in_this_process)
    return chosen


def _in_this_process(kernels, target, *_):  # noqa: ANN001, ANN202
    return [driver.CompiledKernel(k.name, f"deep_{k.name}", driver.compile_kernel(k.text, target, f"deep_{k.name}"), k.origins) for k in kernels]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("rows", "k", "n", "target"),
    [(45, 130, 70, "host"), (300, 100, 40, "host"), (128, 96, 64, "host"), (500, 80, 600, "host"), (50, 130, 70, "x86-64-v3")],
)
def test_blocks(small_panels, rows: int, k: int, n: int, target: str, dtype: torch.dtype) -> None:  # noqa: ANN001
    torch.manual_seed(0)
    x, w, b = torch.randn(rows, k, dtype=dtype), torch.randn(n, k, dtype=dtype), torch.randn(n, dtype=dtype)
    compare(lambda x, w, b: (F.gelu(F.linear(x, w, b)), x @ w.t()), x, w, b, options={**OPTIONS, "target": target})
    deep = [s for s in small_panels if isinstance(s, strategy.ContractionStrategy) and s.depth is not None]
    assert deep and (rows < 500 or any(s.group > 1 for s in deep))


def test_blocks_of_an_odd_reduction(small_panels) -> None:  # noqa: ANN001
    x, w = torch.randn(45, 131), torch.randn(70, 131)
    compare(lambda x, w: F.linear(x, w), x, w, options={**OPTIONS, "target": "host"})
    assert any(isinstance(s, strategy.ContractionStrategy) and s.depth is not None for s in small_panels)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("k", "n", "target"), [(130, 70, "host"), (2048, 33, "host"), (130, 70, "x86-64-v3")])
def test_blocks_for_any_number_of_rows(small_panels, k: int, n: int, target: str, dtype: torch.dtype) -> None:  # noqa: ANN001
    torch.manual_seed(0)
    linear = torch.nn.Linear(k, n, dtype=dtype)  # whose sizes are known

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        w, b = linear.weight.to(x.dtype), linear.bias.to(x.dtype)  # to fp64, for the reference
        return F.gelu(F.linear(x, w, b)), (x @ w.t()).t().contiguous()

    compiled = torch.compile(f, backend="mlirc", dynamic=True, options={**OPTIONS, "target": target})
    for rows in (2, 3, 17, 33, 45, 131, 300):
        compare(f, torch.randn(rows, k, dtype=dtype), compiled=compiled)
    assert any(isinstance(s, strategy.ContractionStrategy) and s.depth is not None for s in small_panels)


@pytest.mark.parametrize("k", [1024, 2048])
def test_rows_that_evict_one_another_are_copied(small_panels, k: int) -> None:  # noqa: ANN001
    torch.manual_seed(0)
    x, w, b = torch.randn(45, k), torch.randn(300, k), torch.randn(45, 300)
    compare(lambda x, w, b: (F.gelu(F.linear(x, w)) + b + x.sum(), F.linear(x, w[:7]), x.t() @ x, x @ x.t(), x @ torch.cat([x, x]).t()), x, w, b, options={**OPTIONS, "target": "host"})
    assert any(isinstance(s, strategy.ContractionStrategy) and s.rows_copied for s in small_panels)


@pytest.mark.parametrize("stride", [1, 2])
def test_positions_of_an_image_are_copied(small_panels, stride: int) -> None:  # noqa: ANN001
    """Those of any number, with 1024 channels each, of an image that a caller has: what a kernel leaves has a pitch instead."""
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(1024, 48, 1, stride=stride)

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, conv.weight.to(x.dtype), conv.bias.to(x.dtype), conv.stride))

    compiled = torch.compile(f, backend="mlirc", dynamic=True, options={**OPTIONS, "target": "host"})
    with torch.no_grad():
        for size in (12, 7, 21):
            compare(f, torch.randn(1, 1024, size, size).to(memory_format=torch.channels_last), compiled=compiled)
    assert any(isinstance(s, strategy.ContractionStrategy) and s.rows_copied for s in small_panels)


def test_sums_of_many_of_the_same(small_panels) -> None:  # noqa: ANN001
    """Those of a block are added up by themselves: in one go, a hundredth 40,000 times is off by 2e-4."""
    x, w = torch.full((45, 40_000), 0.1), torch.full((33, 40_000), 0.1)
    y = torch.compile(lambda x, w: x @ w.t(), backend="mlirc", options=OPTIONS)(x, w)
    assert any(isinstance(s, strategy.ContractionStrategy) and s.depth is not None for s in small_panels)
    torch.testing.assert_close(y, (x.double() @ w.double().t()).float(), rtol=1e-4, atol=0)


def test_only_long_rows_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}
    driver.compile_kernel(LINEAR, Target.parse("znver4"), "k", lambda name, what: seen.update({name: str(what)}))
    assert "depth=None" in seen["strategy"]
    monkeypatch.setattr(traffic, "LEAST_CUT", 16)
    tiny = replace(Target.parse("znver4"), caches=Caches(second=4 * 32 * 2 * 16))
    driver.compile_kernel(LINEAR, tiny, "k", lambda name, what: seen.update({name: str(what)}))
    assert "depth=16" in seen["strategy"]
    loops = [part for part in seen["asm"].split("\n.L") if part.count("vdpbf16ps") >= 16]
    assert loops and all("(%rsp)" not in part[part.index("vdpbf16ps") : part.rindex("vdpbf16ps")] for part in loops)
