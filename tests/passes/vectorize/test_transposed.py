"""Loads across the lanes go through registers: no gathers, right at every edge."""

import re

import pytest
import torch

from mlirc import driver
from mlirc.lowering.target import Target
from mlirc.tests.passes.vectorize.kernels import kernel, stages, strategy

TRANSPOSE = """
func.func @kernel(%x: tensor<64x48xf32>) -> tensor<48x64xf32> attributes {mlirc.result_strides = [["64", "1"]]} {
  %e = tensor.empty() : tensor<48x64xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (j, i)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x48xf32>) outs(%e : tensor<48x64xf32>) {
  ^bb0(%a: f32, %b: f32):
    linalg.yield %a : f32
  } -> tensor<48x64xf32>
  return %0 : tensor<48x64xf32>
}
"""


@pytest.mark.parametrize("element", ["f32", "bf16"])
@pytest.mark.parametrize("target,lanes", [("skylake-avx512", 16), ("x86-64-v3", 8)])
def test_a_transposed_copy_has_shuffles_and_no_gathers(target, lanes, element):
    seen = {}
    text = TRANSPOSE.replace("f32", element)
    driver.compile_kernel(text, Target.parse(target), "k", lambda name, what: seen.setdefault(name, str(what)))
    shuffles = lanes * (lanes.bit_length() - 1)
    # They are still those of the network when canonicalisation has seen them.
    assert seen["vector"].count("vector.shuffle") == seen["math"].count("vector.shuffle") == 2 * shuffles
    assert "gather" not in seen["asm"]
    moved = re.findall(r"^\t(?:vp?unpck|vp?shuf|vp?perm|vp?blend|vinsert|vextract)\w+", seen["asm"], re.MULTILINE)
    assert len(moved) <= 2 * shuffles


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.int64])
@pytest.mark.parametrize("shape", [(33, 70), (3, 100), (2, 50, 40)])
def test_transposed_copies(dtype, shape):
    torch.manual_seed(0)
    x = (torch.randn(shape) * 50).to(dtype)
    torch._dynamo.reset()

    def f(x):
        return x.transpose(-1, -2).contiguous()

    for dynamic in (False, True):
        assert torch.equal(torch.compile(f, backend="mlirc", dynamic=dynamic)(x), f(x))


def test_a_norm_and_a_sum_are_transposed_in_blocks():
    """Nine ops for an element; dozens of them would be too much code for each of a block's rows."""
    body = "linalg.yield %a : f32"
    assert strategy(TRANSPOSE.replace(body, _halved(7))).transposed is not None  # type: ignore[union-attr]
    assert strategy(TRANSPOSE.replace(body, _halved(30))).transposed is None  # type: ignore[union-attr]


def _halved(times: int) -> str:
    ops = ["%half = arith.constant 0.5 : f32", *(f"%m{n + 1} = arith.mulf %m{n}, %half : f32" for n in range(times)), f"linalg.yield %m{times} : f32"]
    return "\n".join(ops).replace("%m0", "%a")


def test_an_op_that_reads_both_ways():
    x = torch.randn(40, 40)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(lambda x: x + x.t() * 2, backend="mlirc")(x), x + x.t() * 2)


def joined(x, token):
    """As in a vision transformer: a token, and patches whose channels lie across memory."""
    return torch.cat([token.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)], 1)


def joined_behind(x, token):
    return torch.cat([x.flatten(2).transpose(1, 2), x.flatten(2).transpose(1, 2).exp(), token.expand(x.shape[0], -1, -1)], 2 if token.shape[2] != x.shape[1] else 1)


def sizes(sample, others):
    """(dynamic, shapes): all are static by default, a sample of them symbolic, which takes several times as long; all in the sweep."""
    all_symbolic = pytest.param(True, others, id="dynamic, others", marks=pytest.mark.sweep)
    return pytest.mark.parametrize("dynamic,shapes", [pytest.param(False, sample + others, id="static"), pytest.param(True, sample, id="dynamic"), all_symbolic])


@pytest.mark.sampled
@sizes([(2, 33, 7, 7), (1, 3, 5, 5)], [(1, 96, 6, 8), (3, 17, 3, 11), (2, 16, 4, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_concatenations_of_transposed_inputs(dtype, dynamic, shapes):
    torch.manual_seed(0)
    for n, c, h, w in shapes:
        torch._dynamo.reset()
        x = (torch.randn(n, c, h, w) * 3).to(dtype)
        for f, token in ((joined, torch.randn(1, 1, c)), (joined_behind, torch.randn(1, 2, c)), (joined_behind, torch.randn(1, h * w, 5))):
            if dtype is torch.bool and f is joined_behind:
                continue
            got = torch.compile(f, backend="mlirc", dynamic=dynamic, options={"strict": True})(x, token.to(dtype))
            torch.testing.assert_close(got, f(x, token.to(dtype)))


def test_a_concatenation_of_patches_has_no_gathers():
    kind, patches, out = "tensor<1x1x96xf32>", "tensor<1x96x48xf32>", "tensor<1x49x96xf32>"
    body = f"""
      %e = tensor.empty() : tensor<1x48x96xf32>
      %t = linalg.transpose ins(%x : {patches}) outs(%e : tensor<1x48x96xf32>) permutation = [0, 2, 1]
      %r = tensor.concat dim(1) %c, %t : ({kind}, tensor<1x48x96xf32>) -> {out}
    """
    text = kernel([("%c", kind), ("%x", patches)], body, [("%r", out)], [[49 * 96, 96, 1]])
    seen = stages(text)
    assert "gather" not in seen["vector"] and seen["vector"].count("vector.shuffle") == 64


def padded(amounts):
    """As in front of a convolution: channels last, zeros around the image."""
    return lambda x: torch.nn.functional.pad((x * 2 + 1).permute(0, 2, 3, 1), amounts)


@pytest.mark.sampled
@sizes([(2, 17, 3, 16)], [(1, 64, 5, 33), (1, 16, 17, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8], ids=str)
def test_padded_images(dtype, dynamic, shapes):
    torch.manual_seed(0)
    for shape in shapes:
        for amounts in ((0, 0, 1, 1, 1, 1), (0, 0, 2, 0, 0, 3), (0, 0, 5, 7), (1, 0, 1, 1), (0, 0, 1, 1, 2, 2, 0, 1)):
            torch._dynamo.reset()
            x = (torch.randn(shape) * 9).to(dtype)
            got = torch.compile(padded(amounts), backend="mlirc", dynamic=dynamic, options={"strict": True})(x)
            assert torch.equal(got, padded(amounts)(x)), (shape, amounts)


@pytest.mark.sampled
@sizes([(17, 33), (3, 40), (0, 16)], [(16, 17), (50, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_rows_padded_behind(dtype, dynamic, shapes):
    """Each lane is a row, of which some are padding."""
    for behind in (1, 15, 40):
        f = lambda x: torch.nn.functional.pad(x, (0, 0, 0, behind), value=2.0).t().contiguous() * 3  # noqa: E731, B023
        torch._dynamo.reset()
        compiled = torch.compile(f, backend="mlirc", dynamic=dynamic, options={"strict": True, "guard_pages": "both"})
        for shape in shapes:
            x = torch.randn(shape).to(dtype)
            assert torch.equal(compiled(x), f(x)), (shape, behind)


def image(width, around):
    """[32][6][width], transposed to [6][width][32] and padded by `around` columns."""
    out = f"tensor<6x{width + 2 * around}x32xf32>"
    return kernel([("%x", f"tensor<32x6x{width}xf32>")], f"""
      %e = tensor.empty() : tensor<6x{width}x32xf32>
      %t = linalg.transpose ins(%x : tensor<32x6x{width}xf32>) outs(%e : tensor<6x{width}x32xf32>) permutation = [1, 2, 0]
      %p = tensor.pad %t low[0, {around}, 0] high[0, {around}, 0] {{
      ^bb0(%i: index, %j: index, %k: index):
        %c = arith.constant 0.0 : f32
        tensor.yield %c : f32
      }} : tensor<6x{width}x32xf32> to {out}
    """, [("%p", out)], [[(width + 2 * around) * 32, 32, 1]])  # fmt: skip


def test_blocks_of_a_padded_image_are_transposed_away_from_the_padding():
    seen = stages(image(48, 3))
    assert seen["vector"].count("vector.shuffle") == 64, "one block of 16 x 16"
    s = strategy(image(48, 3))
    assert s.transposed is not None
    assert strategy(image(20, 3)).transposed is not None
    assert strategy(image(12, 3)).transposed is None, "less than a block without the padding"
