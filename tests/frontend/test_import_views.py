"""Views, slices, joins, padding and writes into parts against eager mode, with static and dynamic sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.tests.frontend.elementwise import expressions, function, matches
from mlirc.tests.frontend.golden import check_import

# Results that are views of the input would be made by AOTAutograd, without us: most get an op behind them.
VIEWS = expressions("""
x.view(72, 6) + 1
x.reshape(4, -1) + 1
x.permute(2, 0, 1) + 1
x.transpose(1, 2) * 2
x[1] + 1
x[-1] + 1
x[:, 2:9:2] + 1
x[:, -3:] + 1
x[:, :-2] + 1
x[:, :100] + 1
x[5:] + 1
x[..., None] + 1
x.unsqueeze(0).squeeze(0) + 1
[t + 1 for t in x.split(5, 1)]
[t + 1 for t in x.chunk(4, 1)]
[t + 1 for t in x.unbind(2)]
x.diagonal(0, 1, 2) + 1
x.diagonal(-2, 1, 2) + 1
x.flip(1, 2)
x.flip(-1)
x.roll(2, 1)
x.roll((1, -2), (0, 2))
x.roll(5)
x.unfold(1, 4, 3) + 1
x.unfold(1, 4, 2).unfold(0, 3, 1)
F.unfold(x, (3, 2), stride=(2, 1))
F.unfold(x[:, None], 3, dilation=2, padding=(2, 3), stride=2) * 2
x.expand(2, 4, 18, 6) + 1
x.repeat(2, 1, 3)
x.repeat(2, 1, 1, 1)
x.repeat_interleave(2, 1)
torch.cat([x, x], 1)
torch.cat([x, x * 2, x + 1], -1)
torch.cat([x, x * 2, x + 1], 0)
torch.cat([x, x.double()], 0)
torch.cat([torch.empty(0), x])
torch.cat([x[:, :3], x[:, 5:]], 1)
torch.cat([-x[..., 3:], x[..., :3]], -1)
torch.stack([x[:, i % 18] * (i + 1) for i in range(70)], 1)
torch.stack([x, x + 1, x], -1)
x.unflatten(1, (3, 6)).permute(0, 2, 1, 3).reshape(4, 6, -1) + 1
x.movedim(0, 2) * 3
x.narrow(1, 2, 3) + 1
x.swapaxes(0, 1).reshape(18, -1) + 1
x.permute(1, 0, 2).contiguous()
x[:, :, ::2] + x[:, :, 1::2]
x.contiguous().view(-1)[3:50:7] + 1
x.as_strided((18, 6), (6, 1), 108) + 1
x.as_strided((3, 5), (2, 7), 4) + 1
torch.rot90(x, 1, (0, 1))
torch.tril(x)
F.pad(x, (1, 2))
F.pad(x, (-1, 2, 0, -3))
F.pad(x, (-1, -2)) + 1
F.pad(x[None], (1, 2, 3, 0), value=float("-inf"))
F.pad(x, (3, 2), mode="reflect")
F.pad(x, (2, 1), mode="replicate")
F.pad(x, (2, 1), mode="circular")
""")


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("text", VIEWS)
def test_view(text, dynamic):
    matches(function(text), torch.randn(4, 18, 6), dynamic=dynamic)


GRADIENTS = expressions("""
x[:, 2:9:2] * 2
x[1] * 2
x[:, 3:] * 2
[t * 2 for t in x.split(5, 1)]
x.select(2, 3) * 2
x.roll(2, 1)
x.flip(1)
x.tril()
F.pad(x, (1, 2))
x.repeat(1, 2, 1)
x.expand(3, 4, 18, 6) * 2
torch.cat([x, x * 2], 1)
x.permute(2, 0, 1) * x.permute(2, 0, 1)
x[..., ::2] * x[..., 1::2]
x[:, :-2] * x[:, 2:]
x.unfold(1, 4, 3) * x.unfold(1, 4, 3)
""")


@pytest.mark.parametrize("text", GRADIENTS)
def test_gradient(text):
    matches(function(text), torch.randn(4, 18, 6).requires_grad_(), gradients=True)


def write_parts(x):
    y, z = x.clone(), torch.zeros_like(x)
    y[:, 1:3] = 0
    y[2] = 5
    y[:, ::2, 1] = 1
    y[:, :, 0] = x[:, :, 1]
    z[:, :, 1:4] += x[:, :, 1:4]
    z[..., 0].mul_(2)
    return y, z


def windows(x):
    """As Swin partitions and merges."""
    n, h, w, c = x.shape
    x = torch.roll(x, (-3, -3), (1, 2))
    parts = x.view(n, h // 7, 7, w // 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, c) * 2
    return parts, parts.view(n, h // 7, w // 7, 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_parts_and_windows(dynamic):
    matches(write_parts, torch.randn(4, 18, 6), dynamic=dynamic)
    matches(windows, torch.randn(2, 14, 28, 8), dynamic=dynamic)
    shuffles = lambda x: [F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2), F.channel_shuffle(x, 2)]  # noqa: E731
    matches(shuffles, torch.randn(2, 8, 6, 6), dynamic=dynamic)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_borders(mode):
    """On either side or both, of one, two and three dims, of rows of one element, and cropped."""
    cases = [((2, 3, 7), (0, 3)), ((2, 3, 7), (3, 0)), ((1, 2, 5, 6), (2, 1, 1, 2)), ((1, 2, 5, 6), (0, 0, 1, 2)), ((2, 3, 33), (17, 30))]
    cases += [((2, 1, 3, 4, 5), (2, 1, 1, 1, 2, 0)), ((0, 3, 7), (1, 1))]
    cases += [((2, 3, 1), (4, 5)), ((2, 3, 7), (-1, 2))] if mode == "replicate" else []
    for shape, pad in cases:
        for x in (torch.randn(shape), torch.randn(shape).transpose(1, -1).contiguous().transpose(1, -1)):
            matches(lambda x, pad=pad: F.pad(x * 2, pad, mode=mode) + 1, x)


def test_bounds_known_at_run_time():
    def f(x, y):
        n = y.shape[0]
        return x[:, :n] + 1, x[n:] + 1, x[:, -n:] + 1, x[:, n] + 1, x[-n // 2 :] + 1, x.reshape(x.shape[0] * x.shape[1], -1) + 1

    matches(f, torch.randn(4, 18, 6), torch.randn(3, 6), dynamic=True)


def test_import_of_strided_slice():
    check_import(
        lambda x: x[:, 2:9:2] + 1,
        [torch.randn(4, 18, 6)],
        """
// CHECK: tensor.extract_slice %{{.*}}[0, 2, 0] [4, 4, 6] [1, 2, 1] : tensor<4x18x6xf32> to tensor<4x4x6xf32>
// CHECK: arith.addf
""",
    )


def test_import_of_windows():
    check_import(
        lambda x: F.unfold(x, 3, stride=2),
        [torch.randn(1, 4, 9, 7)],
        """
// CHECK: affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d4 * 2 + d2, d5 * 2 + d3)>
// CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<1x4x3x3x4x3xf32>)
""",
    )


def test_import_of_dynamic_reshape_keeps_groups():
    check_import(
        lambda x: x.reshape(x.shape[0], x.shape[1] * x.shape[2]) + 1,
        [torch.randn(4, 18, 6)],
        """
// CHECK: func.func @main(%{{.*}}: index {mlirc.symbol = "{{.*}}"}
// CHECK: tensor.collapse_shape %{{.*}} {{\\[\\[}}0], [1, 2]] : tensor<?x?x?xf32> into tensor<?x?xf32>
""",
        dynamic=True,
    )
