"""Products store their results inside of padding, which is filled before."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from mlirc.tests.frontend.compare import compare
from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import built, kernel, padded, stages, untouched

MULTIPLY_ADD = "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"


def product(both: bool = False) -> str:
    """[12, 8] times [8, 40], as [3, 4, 40] inside of two lines above, one column on the left and three on the right, and five behind the last
    dim; `both`: also without that."""
    op = generic("%y", [("%x", "tensor<12x8xf32>"), ("%w", "tensor<8x40xf32>")], "tensor<12x40xf32>", ["i, l", "l, j", "i, j"], MULTIPLY_ADD, "ppr", "ijl", "0.0", "contraction")
    pad = """
    %e = tensor.expand_shape %y [[0, 1], [2]] output_shape [3, 4, 40] : tensor<12x40xf32> into tensor<3x4x40xf32>
    %seven = arith.constant 7.0 : f32
    %p = tensor.pad %e low[2, 1, 0] high[0, 3, 5] {
    ^bb0(%a: index, %b: index, %c: index):
      tensor.yield %seven : f32
    } : tensor<3x4x40xf32> to tensor<5x8x45xf32>
    """
    results, strides = [("%p", "tensor<5x8x45xf32>")], [[360, 45, 1]]
    if both:
        results, strides = [("%y", "tensor<12x40xf32>"), *results], [[40, 1], *strides]
    return kernel([("%x", "tensor<12x8xf32>"), ("%w", "tensor<8x40xf32>")], op + pad, results, strides)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
def test_elements_are_inside_and_the_value_is_around_them(target: str, both: bool) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((12, 8), np.float32), rng.standard_normal((8, 40), np.float32)
    out, plain = padded(np.full((5, 8, 45), np.nan, np.float32)), padded(np.zeros((12, 40), np.float32))
    assert built(product(both), target)(x, w, *([plain] if both else []), out) == 0
    want = np.full((5, 8, 45), 7, np.float32)
    want[2:, 1:5, :40] = (x @ w).reshape(3, 4, 40)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
    assert untouched(out) and untouched(plain)
    assert not both or np.allclose(plain, x @ w, rtol=1e-5, atol=1e-5)


def test_the_value_is_stored_in_vectors() -> None:
    code = stages(product())["vector"].split("func.func @k_body1")[0]
    assert "vector<16xf32>" in code and "maskedstore" not in code


def _two(first: nn.Module, second: nn.Module) -> nn.Module:
    return nn.Sequential(first, nn.ReLU(), second)


MODELS = {
    "1x1, 3x3": (_two(nn.Conv2d(16, 32, 1), nn.Conv2d(32, 24, 3, padding=1)), (2, 16, 9, 11)),
    "joined lines": (_two(nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 33, 3, padding=1)), (2, 16, 19, 20)),
    "few channels": (_two(nn.Conv2d(3, 17, 3, padding=1), nn.Conv2d(17, 3, 5, padding=2)), (1, 3, 17, 33)),
    "depthwise": (_two(nn.Conv2d(16, 40, 1), nn.Conv2d(40, 40, 5, padding=2, groups=40)), (1, 16, 14, 14)),
    "one line": (_two(nn.Conv1d(8, 24, 3), nn.Conv1d(24, 40, 5, padding=(3,))), (3, 8, 21)),
    "a single position": (_two(nn.Conv2d(16, 32, 1), nn.Conv2d(32, 24, 3, padding=1)), (2, 16, 1, 1)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_convolutions_behind_one_another(name: str, dtype: torch.dtype, channels_last: bool) -> None:
    """With memory that ends where tensors do, by one thread and two."""
    torch.manual_seed(0)
    model, shape = MODELS[name]
    model, x = copy.deepcopy(model).to(dtype).eval(), torch.randn(shape).to(dtype)
    if channels_last and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="mlirc", options={"strict": True, "guard_pages": "both"})
    with torch.no_grad():
        want = copy.deepcopy(model).double()(x.double())
        for threads in (1, 2):
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            try:
                got = compiled(x).double()
            finally:
                torch.set_num_threads(before)
            tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_a_value_and_what_is_read_beside_it() -> None:
    """Padded with another number than zero; what is padded is read without padding, and padded in two ways."""
    torch.manual_seed(0)
    a, b, c = nn.Conv2d(8, 24, 1), nn.Conv2d(24, 24, 3), nn.Conv2d(24, 24, 5)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(a.to(x.dtype)(x))
        near, far = b.to(x.dtype)(F.pad(y, [1, 1, 1, 1], value=-2.5)), c.to(x.dtype)(F.pad(y, [2, 2, 2, 2], value=0.5))
        return y + near * far

    with torch.no_grad():
        compare(f, torch.randn(2, 8, 7, 9))


@pytest.mark.parametrize("shape", [(7, 9), (63, 1), (1, 63)])
def test_columns_that_are_lines_of_an_image(shape: tuple[int, int]) -> None:
    """Vectors of columns would run over the ends of lines, between which there is padding."""
    torch.manual_seed(0)
    w, x, v = torch.randn(4, 8), torch.randn(8, 63), torch.randn(16, 4, 3, 3)
    compare(lambda w, x, v: F.conv2d((w @ x).relu().view(1, 4, *shape), v, padding=1), w, x, v, options={"strict": True, "guard_pages": "both"})


def test_gradients() -> None:
    """What is saved for the backward graph is what is inside."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 24, 1), nn.GELU(), nn.Conv2d(24, 16, 3, padding=1), nn.Tanh(), nn.Conv2d(16, 8, 3, padding=1))
    reference = copy.deepcopy(model).double()
    x = torch.randn(2, 8, 7, 9)
    torch._dynamo.reset()
    torch.compile(model, backend="mlirc")(x).square().sum().backward()
    reference(x.double()).square().sum().backward()
    for p, q in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(p.grad.double(), q.grad, rtol=1e-4, atol=1e-4)
