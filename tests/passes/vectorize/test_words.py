"""Products of bytes in words: the instructions for named targets, and all sums exact."""

from __future__ import annotations

import re

import pytest
import torch

import mlirc
from mlirc import driver
from mlirc.lowering.target import Target
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
        ("sapphirerapids", FOURS, "vpdpbusd", "zmm"),
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
