"""Kernels that run once, on weights of different sizes, are one that takes the sizes; and gives what they gave."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from mlirc.passes.fuse import fuse
from mlirc.passes.generalize import generalize
from mlirc.passes.layouts import Layouts
from mlirc.passes.materialize import materialize
from mlirc.passes.outline import Kernel, outline
from mlirc.tests.frontend.compare import compare, kernels, left_to_aten
from mlirc.tests.lowering.test_to_llvm import filecheck
from mlirc.tests.passes.graph_text import function, generic, transformed


def generalized(arguments: Sequence[tuple[str, str]], body: str, results: Sequence[tuple[str, str]], attributes: dict[str, str] | None = None) -> tuple[str, list[Kernel]]:
    """(the module afterwards, the kernels); all arguments are weights."""
    found: list[Kernel] = []

    def run(main) -> None:
        materialize(main, ())
        fuse(main, Layouts(main).shapes)
        found.extend(generalize(main, outline(main)))

    return transformed(function(arguments, body, results, attributes), run), found


def pack(name: str, weight: str, k: int, n: int) -> tuple[str, tuple[str, str], tuple[str, str]]:
    """The op that packs [k, n] into panels of 4 columns and words of 2, its operand and its result."""
    operand, result = (weight, f"tensor<{k}x{n}xf32>"), f"tensor<{n // 4}x{k // 2}x4x2xf32>"
    op = generic(name, [operand], result, ["j * 2 + l, i * 4 + k", "i, j, k, l"], "%o = arith.negf %a0 : f32", attributes="mlirc.pack")
    return op, operand, (name, result)


def packs(*sizes: tuple[int, int]) -> tuple[list[tuple[str, str]], str, list[tuple[str, str]]]:
    ops, operands, results = zip(*(pack(f"%p{n}", f"%w{n}", *size) for n, size in enumerate(sizes)))
    return list(operands), "".join(ops), list(results)


def test_packing_takes_sizes_and_strides() -> None:
    text, found = generalized(*packs((64, 32), (6, 4), (64, 32)))
    (kernel,) = found
    filecheck(
        kernel.text,
        """
        CHECK: func.func @kernel(%[[W:.*]]: tensor<?x?xf32> {mlirc.sizes = ["n0", "n1"], mlirc.strides = ["n2", "1"]}
        CHECK-SAME: -> tensor<?x?x4x2xf32>
        CHECK-SAME: mlirc.result_strides = {{\\[\\["n3", "8", "2", "1"\\]\\]}}
        CHECK: tensor.empty(%{{.*}}, %{{.*}}) : tensor<?x?x4x2xf32>
        CHECK: linalg.generic
        CHECK-SAME: mlirc.pack
        """,
    )
    filecheck(
        text,
        """
        CHECK: tensor.cast %{{.*}} : tensor<64x32xf32> to tensor<?x?xf32>
        CHECK: call @[[K:k00_[a-z]+]](
        CHECK-SAME: mlirc.sizes = {{\\[\\["8", "32", "4", "2"\\]\\]}}
        CHECK: tensor.cast %{{.*}} : tensor<?x?x4x2xf32> to tensor<8x32x4x2xf32>
        CHECK: call @[[K]](
        CHECK-SAME: mlirc.sizes = {{\\[\\["1", "3", "4", "2"\\]\\]}}
        CHECK: call @[[K]](
        CHECK: func.func private @[[K]](tensor<?x?xf32>, index, index, index, index, index, index) -> tensor<?x?x4x2xf32>
        CHECK-NOT: func.func private
        """,
    )


def test_lines_of_all() -> None:
    arguments, body, results = packs((64, 32), (6, 4))
    left = iter(["clone_1", "clone_2"])
    lines = [f'{line} loc("{next(left)}")' if line.startswith("} ->") else line for line in body.splitlines()]
    _, (kernel,) = generalized(arguments, "\n".join(lines) + "\n", results)
    assert kernel.origins == ["clone_1", "clone_2"] and "loc(" not in kernel.text
    assert 'loc("clone_1")' in kernel.located and 'loc("clone_2")' in kernel.located


def test_a_kernel_that_is_alone_stays_as_it_was() -> None:
    text, (kernel,) = generalized(*packs((64, 32)))
    assert "tensor<64x32xf32>" in kernel.text and "tensor.cast" not in text


def test_few_elements_stay_numbers() -> None:
    """Taps of a window are loops that are unrolled: kernels of other windows are others."""
    sizes = [(16, 3, 3), (24, 3, 3), (16, 5, 5), (32, 5, 5)]
    operands = [(f"%w{n}", f"tensor<{a}x{b}x{c}xf32>") for n, (a, b, c) in enumerate(sizes)]
    results = [(f"%p{n}", f"tensor<{b}x{c}x{a}xf32>") for n, (a, b, c) in enumerate(sizes)]
    body = "".join(generic(r[0], [o], r[1], ["k, i, j", "i, j, k"]) for o, r in zip(operands, results))
    _, found = generalized(operands, body, results)
    assert [k.text.split("(%arg0: ")[1].split(" {")[0] for k in found] == ["tensor<?x3x3xf32>", "tensor<?x5x5xf32>"]


def test_other_layouts_are_other_kernels() -> None:
    arguments, body, results = packs((64, 32), (32, 64), (16, 64))
    _, found = generalized(arguments, body, results, {"%w1": 'mlirc.strides = ["1", "32"]', "%w2": 'mlirc.strides = ["1", "16"]'})
    assert len(found) == 2 and '["1", "n' in found[1].text


def test_what_reads_more_than_weights_keeps_its_sizes() -> None:
    arguments = [("%x", "tensor<64xf32>"), ("%y", "tensor<32xf32>")]
    body = generic("%a", [arguments[0]], "tensor<64xf32>") + generic("%b", [arguments[1]], "tensor<32xf32>")
    results = [("%a", "tensor<64xf32>"), ("%b", "tensor<32xf32>")]
    assert len(generalized(arguments, body, results)[1]) == 1
    found: list[Kernel] = []

    def run(main) -> None:
        from mlirc.dialects.mlir import ir
        from mlirc.passes.weights import WEIGHTS

        main.attributes[WEIGHTS] = ir.DenseI64ArrayAttr.get([1])
        fuse(main, Layouts(main).shapes)
        found.extend(generalize(main, outline(main)))

    transformed(function(arguments, body, results), run)
    assert len(found) == 2 and not any("?" in k.text for k in found)


def live(module: nn.Module) -> nn.Module:
    """With parameters and statistics that are neither zero nor one."""
    torch.manual_seed(0)
    for t in (*module.parameters(), *module.buffers()):
        if t.is_floating_point():
            with torch.no_grad():
                t.copy_(torch.rand_like(t) + 0.5 if t.dim() < 2 else torch.randn_like(t) * 0.2)
    return module.eval()


def convolutions(kernel: int, groups: bool, channels: Sequence[int]) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in zip(channels, channels[1:]):
        if groups:
            layers.append(nn.Conv2d(a, a, kernel, padding=kernel // 2, groups=a))
        layers += [nn.Conv2d(a, b, 1 if groups else kernel, padding=0 if groups else kernel // 2), nn.BatchNorm2d(b), nn.ReLU()]
    return live(nn.Sequential(*layers))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel, groups", [(1, False), (3, False), (3, True), (5, True)])
def test_numbers(kernel: int, groups: bool, dtype: torch.dtype) -> None:
    """Channels that fill panels and words, and that do not."""
    net = convolutions(kernel, groups, [3, 17, 32, 40, 72, 33, 1]).to(dtype)
    for layout in (torch.contiguous_format, torch.channels_last):
        net.to(memory_format=layout)
        with torch.no_grad():
            compare(lambda x: net.to(x.dtype)(x), torch.randn(2, 3, 9, 11).to(dtype))
        assert not left_to_aten()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_linears_share_what_packs_them(dtype: torch.dtype) -> None:
    net = live(nn.Sequential(*(nn.Linear(a, b) for a, b in [(64, 96), (96, 160), (160, 32), (32, 256)]))).to(dtype)
    with torch.no_grad():
        compare(lambda x: net.to(x.dtype)(x), torch.randn(70, 64).to(dtype))
    assert sum("_pack_" in k for k in kernels()) == 1


def test_changed_weights_are_packed_again() -> None:
    net = convolutions(3, False, [8, 16, 24, 40])
    x = torch.randn(1, 8, 7, 7)
    compiled = torch.compile(net, backend="mlirc", options={"strict": True})
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-4)
            for p in net.parameters():
                p.mul_(1.25)
