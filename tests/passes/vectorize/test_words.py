"""Products of bytes in words: the instructions for named targets, and all sums exact."""

from __future__ import annotations

import re

import pytest
import torch

import mlirc
from mlirc import driver
from mlirc.lowering.target import Target
from mlirc.tests.passes.vectorize.test_tile_numbers import amx  # noqa: F401
from mlirc.tests.passes.vectorize.test_tiles import LINEAR

FOURS = (
    LINEAR.replace("bf16", "i8").replace("f32", "i32").replace("k floordiv 2", "k floordiv 4").replace("k mod 2", "k mod 4")
    .replace("3x48x32x2", "3x24x32x4").replace("0.0 : i32", "0 : i32")
    .replace("arith.extf %a", "arith.extui %a").replace("arith.extf %b", "arith.extsi %b").replace("mulf", "muli").replace("addf", "addi")
)  # fmt: skip
PAIRS = (
    FOURS.replace("k floordiv 4", "k floordiv 2").replace("k mod 4", "k mod 2").replace("3x24x32x4", "3x48x32x2")
    .replace("i8", "i16").replace("arith.extui", "arith.extsi")
)  # fmt: skip
NARROW = {"n floordiv 32": "n floordiv 16", "n mod 32": "n mod 16", "3x24x32x4": "5x24x16x4", "3x48x32x2": "5x48x16x2"}


TILES = FOURS.replace("3x24x32x4", "3x32x32x4").replace("70x96x", "70x128x")


def _asm(target: str, text: str) -> str:
    if Target.parse(target).vector_bits == 256:
        for old, new in NARROW.items():
            text = text.replace(old, new)
    seen: dict[str, str] = {}
    driver.compile_kernel(text, Target.parse(target), "k", lambda name, what: seen.update({name: str(what)}))
    return seen["asm"]


@pytest.mark.parametrize(
    "target, text, instruction, register",
    [
        ("cascadelake", FOURS, "vpdpbusd", "zmm"),
        ("znver5", FOURS, "vpdpbusd", "zmm"),
        ("alderlake", FOURS, "vpdpbusd", "ymm"),
        ("cascadelake", PAIRS, "vpdpwssd", "zmm"),
        ("skylake-avx512", PAIRS, "vpmaddwd", "zmm"),
        ("x86-64-v3", PAIRS, "vpmaddwd", "ymm"),
    ],
)
def test_words_are_multiplied_without_spills(target: str, text: str, instruction: str, register: str) -> None:
    parts = _asm(target, text).split("\n.L")
    full = max(parts, key=lambda part: part.count(instruction))
    products = re.findall(rf"{instruction}\s.*{register}\d+", full)
    assert len(products) >= 10, full
    assert "vpmulld" not in full and "(%rsp)" not in full[full.index(instruction) : full.rindex(instruction)]


def _exact(a: torch.Tensor, w: torch.Tensor, **options: object) -> None:
    """As a weight that is packed once, and packed in every call."""
    torch._dynamo.reset()
    expected = (a.long() @ w.long().t()).int()
    weight = torch.nn.Parameter(w, requires_grad=False)
    for product in (lambda a: torch._int_mm(a, weight.t()), lambda a, w=w: torch._int_mm(a, w.t() + 0)):
        compiled = torch.compile(product, backend="mlirc", options={"strict": True, "fallback": False, **options})
        assert torch.equal(compiled(a), expected)


SHAPES = [(70, 96, 80), (1, 64, 33), (1, 3, 1), (5, 34, 33), (17, 1, 16), (17, 2, 16), (33, 3, 17), (26, 2051, 96), (140, 4100, 130), (3, 0, 4)]
TARGETS = ["host", "x86-64-v3", "skylake-avx512"]


@pytest.mark.sampled
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows, k, columns", SHAPES)
def test_sums_are_exact(rows: int, k: int, columns: int, target: str) -> None:
    """Of extreme bytes too, whose pairs do not fit i16."""
    if target == "skylake-avx512" and not Target.host().has_avx512:
        pytest.skip("the CPU has no AVX-512")
    torch.manual_seed(rows + k)
    a, w = (torch.randint(-128, 128, (n, k), dtype=torch.int8) for n in (rows, columns))
    _exact(a, w, target=target)
    _exact(torch.full_like(a, -128), w.clone().fill_(-128), target=target)


def test_rows_may_be_a_symbol() -> None:
    torch._dynamo.reset()
    weight = torch.nn.Parameter(torch.randint(-128, 128, (66, 150), dtype=torch.int8), requires_grad=False)
    compiled = torch.compile(lambda a: torch._int_mm(a, weight.t()), backend="mlirc", dynamic=True, options={"strict": True, "fallback": False})
    for rows in (17, 3, 64, 131):
        a = torch.randint(-128, 128, (rows, 150), dtype=torch.int8)
        assert torch.equal(compiled(a), (a.long() @ weight.long().t()).int())


def test_an_epilogue_is_part_of_the_kernel() -> None:
    """Scaled to f32 with a bias, as quantised layers are."""
    torch._dynamo.reset()
    a, w = (torch.randint(-128, 128, (n, 100), dtype=torch.int8) for n in (20, 40))
    scale, bias = torch.rand(40), torch.randn(40)

    def layer(a: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch._int_mm(a, w.t()).float() * 0.02 * scale + bias)

    report = mlirc.explain(layer, a)
    assert not report.aten and any("int_mm" in kernel and "mul_add" in kernel for kernel in report.kernels)
    torch.testing.assert_close(torch.compile(layer, backend="mlirc")(a), layer(a))


def test_a_weight_that_changes_is_summed_anew() -> None:
    torch._dynamo.reset()
    weight = torch.nn.Parameter(torch.randint(-128, 128, (64, 96), dtype=torch.int8), requires_grad=False)
    compiled = torch.compile(lambda a: torch._int_mm(a, weight.t()), backend="mlirc")
    a = torch.randint(-128, 128, (40, 96), dtype=torch.int8)
    compiled(a)
    weight.add_(3)
    assert torch.equal(compiled(a), (a.long() @ weight.long().t()).int())


@pytest.mark.parametrize("signs, instruction", [(("extui", "extsi"), "tdpbusd"), (("extsi", "extui"), "tdpbsud"), (("extsi", "extsi"), "tdpbssd"), (("extui", "extui"), "tdpbuud")])
def test_tiles_multiply_bytes_of_any_sign(signs: tuple[str, str], instruction: str) -> None:
    text = TILES.replace("arith.extui %a", f"arith.{signs[0]} %a").replace("arith.extsi %b", f"arith.{signs[1]} %b")
    code = _asm("sapphirerapids", text)
    loops = [part for part in code.split("\n.L") if "tdpb" in part]
    assert sorted(loop.count(instruction) for loop in loops) == [1, 2, 2, 4] and "vpdpbusd" not in code
    assert code.count("ldtilecfg") == code.count("tilerelease") == 1 and code.count("tilestored") == 9, "tiles are spilled"


@pytest.mark.parametrize("rows, k, columns", [(38, 64, 80), (45, 640, 33), (160, 2048, 64), (13, 192, 64), (165, 70, 161), (50, 13, 40), (130, 512, 400), (17, 130, 16)])
def test_emulated_tiles_give_exact_sums(amx, rows: int, k: int, columns: int) -> None:  # noqa: ANN001, F811
    a, w = (torch.randint(-128, 128, (n, k), dtype=torch.int8) for n in (rows, columns))
    compiled = torch.compile(lambda a: torch._int_mm(a, w.t()), backend="mlirc")
    assert torch.equal(compiled(a), (a.long() @ w.long().t()).int())
    assert sum(amx) > 0, "no kernel used tiles"


def test_emulated_tiles_take_any_number_of_rows_of_bytes(amx) -> None:  # noqa: ANN001, F811
    w = torch.nn.Parameter(torch.randint(-128, 128, (40, 75), dtype=torch.int8), requires_grad=False)
    compiled = torch.compile(lambda a: torch._int_mm(a, w.t()), backend="mlirc", dynamic=True)
    for rows in (150, 2, 3, 7, 15, 16, 17, 31, 33, 129):
        a = torch.randint(-128, 128, (rows, 75), dtype=torch.int8)
        assert torch.equal(compiled(a), (a.long() @ w.long().t()).int())
    assert sum(amx) > 0, "no kernel used tiles"


needs_tiles = pytest.mark.skipif(not Target.host().has_amx_int8, reason="the CPU lacks AMX")


@needs_tiles
@pytest.mark.parametrize("pin", ["rows=16, row_tiles=1", "depth=64, fetch_ahead=false", "depth=64, chunk=128, rows_copied=true, group=2", "overlapped=false"])
@pytest.mark.parametrize("rows, k, columns", [(70, 300, 72), (131, 300, 72), (17, 300, 72)])
def test_tiles_of_this_machine(rows: int, k: int, columns: int, pin: str) -> None:
    a, w = (torch.randint(-128, 128, (n, k), dtype=torch.int8) for n in (rows, columns))
    _exact(a, w, pin=f"*: {pin}" if rows > 32 else "")


@pytest.mark.parametrize("pin", ["rows=16, row_tiles=1", "depth=64, fetch_ahead=false", "depth=64, chunk=128, rows_copied=true, group=2"])
def test_pinned_tiles_of_bytes_give_the_same_sums(amx, pin: str) -> None:  # noqa: ANN001, F811
    a, w = (torch.randint(-128, 128, (n, 300), dtype=torch.int8) for n in (131, 72))
    compiled = torch.compile(lambda a: torch._int_mm(a, w.t()), backend="mlirc", options={"pin": f"*: {pin}"})
    assert torch.equal(compiled(a), (a.long() @ w.long().t()).int())
    assert sum(amx) > 0, "no kernel used tiles"


@pytest.mark.parametrize(
    "channels, out, kernel, groups, shape",
    [(64, 40, 3, 1, (2, 9, 11)), (3, 40, 5, 1, (2, 4, 37)), (40, 33, 3, 1, (1, 3, 19)), (32, 24, 3, 2, (1, 2, 20)), (32, 24, 3, 1, (2, 3, 7)), (64, 64, 3, 8, (1, 9, 14))],
)
def test_emulated_tiles_convolve_bytes(amx, channels: int, out: int, kernel: int, groups: int, shape: tuple[int, int, int]) -> None:  # noqa: ANN001, F811
    """Channels and taps filled up, positions merged, and padding that is the zero point."""
    n, h, width = shape
    x = torch.randint(0, 256, (n, channels, h, width), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    w = torch.nn.Parameter(torch.randint(-128, 128, (out, channels // groups, kernel, kernel), dtype=torch.int8), requires_grad=False)

    def layer(x: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.nn.functional.conv2d((x.to(dtype) - 131) * 0.5, w.to(dtype) * 0.25, None, 1, kernel // 2, 1, groups)

    with torch.no_grad():
        got = torch.compile(layer, backend="mlirc")(x)
        torch.testing.assert_close(got.double(), layer(x, torch.float64), rtol=1e-6, atol=0)
    assert sum(amx) > 0, "no kernel used tiles"
