"""Convolutions and their gradients against eager mode, and what they become."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mlirc
from mlirc.tests.frontend.compare import OPTIONS
from mlirc.tests.frontend.elementwise import ROUNDED, close, matches, module_matches
from mlirc.tests.frontend.golden import check_import

MODULES = {
    # name: (module, shape of the input)
    "3x3": (lambda: nn.Conv2d(4, 6, 3), (2, 4, 13, 15)),
    "stride, padding": (lambda: nn.Conv2d(4, 6, 3, 2, 1), (2, 4, 13, 15)),
    "dilation": (lambda: nn.Conv2d(4, 6, 3, padding=2, dilation=2), (2, 4, 13, 15)),
    "stride 3": (lambda: nn.Conv2d(4, 6, 3, 3, 1), (1, 4, 13, 15)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), (2, 4, 13, 15)),
    "groups, stride": (lambda: nn.Conv2d(4, 6, 3, 2, 1, groups=2), (2, 4, 13, 15)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), (2, 4, 13, 15)),
    "depthwise, stride": (lambda: nn.Conv2d(4, 4, 3, 2, 1, groups=4), (2, 4, 13, 15)),
    "depthwise, multiplier": (lambda: nn.Conv2d(4, 8, 3, groups=4), (2, 4, 13, 15)),
    "1x1": (lambda: nn.Conv2d(4, 6, 1, bias=False), (2, 4, 9, 9)),
    "1x1, stride": (lambda: nn.Conv2d(4, 6, 1, 2), (2, 4, 9, 9)),
    "7x7": (lambda: nn.Conv2d(3, 8, 7, 2, 3), (1, 3, 23, 23)),
    "1d": (lambda: nn.Conv1d(4, 6, 5, 2, 1), (2, 4, 19)),
    "3d": (lambda: nn.Conv3d(4, 6, 3, 2, 1), (2, 4, 7, 7, 7)),
    "uneven": (lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), (0, 1)), (2, 4, 9, 11)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3), (2, 4, 7, 9)),
    "transposed, phases": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), (2, 4, 7, 9)),
    "transposed, even kernel": (lambda: nn.ConvTranspose2d(4, 6, 4, 2, 1), (2, 4, 7, 9)),
    "transposed, blocks": (lambda: nn.ConvTranspose2d(4, 6, 2, 2), (2, 4, 7, 9)),
    "transposed, dilation": (lambda: nn.ConvTranspose2d(4, 6, 3, padding=2, dilation=2), (2, 4, 7, 9)),
    "transposed, holes": (lambda: nn.ConvTranspose2d(4, 6, 2, 3), (2, 4, 7, 9)),
    "transposed, groups": (lambda: nn.ConvTranspose2d(4, 6, 4, 2, 1, groups=2), (2, 4, 7, 9)),
    "depthwise, no padding": (lambda: nn.Conv2d(33, 33, 3, groups=33), (2, 33, 7, 19)),
    "depthwise, no padding, stride": (lambda: nn.Conv2d(17, 17, (3, 2), 2, groups=17), (2, 17, 7, 19)),
    "depthwise, few channels": (lambda: nn.Conv2d(3, 3, 5, padding=2, groups=3), (2, 3, 7, 33)),
    "depthwise, few channels, dilation, 1d": (lambda: nn.Conv1d(2, 2, 3, dilation=2, groups=2), (2, 2, 39)),
    "transposed, depthwise": (lambda: nn.ConvTranspose2d(4, 4, 4, 2, 1, groups=4), (2, 4, 7, 9)),
    "transposed, 1d": (lambda: nn.ConvTranspose1d(4, 6, 4, 2, 1), (2, 4, 7)),
    "few outputs": (lambda: nn.Conv2d(5, 3, 3, padding=1), (2, 5, 7, 33)),
    "few outputs, narrow image": (lambda: nn.Conv2d(5, 3, 3, padding=1), (2, 5, 17, 3)),
    "few outputs, stride": (lambda: nn.Conv2d(5, 4, (4, 3), (2, 1), (1, 2), (1, 2)), (2, 5, 9, 17)),
    "few outputs, 1d": (lambda: nn.Conv1d(3, 1, 7, padding=3), (2, 3, 70)),
    "few outputs, 3d": (lambda: nn.Conv3d(3, 2, 3, padding=1), (1, 3, 3, 5, 20)),
    "few outputs, transposed": (lambda: nn.ConvTranspose2d(5, 3, 4, 2, 1), (2, 5, 7, 19)),
    "one channel": (lambda: nn.Conv2d(1, 1, 5, padding=2), (3, 1, 17, 18)),
    "few outputs of each group": (lambda: nn.Conv2d(12, 9, 3, padding=1, groups=3), (2, 12, 5, 33)),
    "one output of each group, dilation": (lambda: nn.Conv2d(10, 5, (3, 2), dilation=2, groups=5), (2, 10, 9, 21)),
    "few outputs of each group, 1d": (lambda: nn.Conv1d(8, 16, 5, padding=2, groups=4), (2, 8, 40)),
    "few inputs, stride": (lambda: nn.Conv2d(3, 17, 7, 2, 3), (2, 3, 23, 21)),
    "few inputs, patches": (lambda: nn.Conv2d(4, 33, 4, 4), (2, 4, 16, 20)),
    "few inputs, 3d": (lambda: nn.Conv3d(2, 17, 3, 2, 1), (1, 2, 5, 7, 9)),
    "few outputs, no images": (lambda: nn.Conv1d(3, 2, 3), (0, 3, 40)),
    "few inputs, no images": (lambda: nn.Conv1d(3, 2, 3), (0, 3, 3)),
    "taps beside a single element": (lambda: nn.Conv2d(4, 6, 3, padding=1), (2, 4, 1, 1)),
    "taps in padding, stride": (lambda: nn.Conv2d(4, 6, 5, 2, 2), (2, 4, 2, 1)),
    "taps in padding, dilation": (lambda: nn.Conv2d(4, 6, (3, 5), 1, (4, 6), (4, 3)), (2, 4, 3, 4)),
    "taps in padding, groups": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), (2, 4, 1, 5)),
    "taps in padding, depthwise": (lambda: nn.Conv2d(4, 4, 5, padding=2, groups=4), (2, 4, 2, 1)),
    "padding alone": (lambda: nn.Conv2d(4, 6, 1, 5, 2), (2, 4, 1, 1)),
    "transposed, single element": (lambda: nn.ConvTranspose2d(4, 6, (4, 3), 2, 1, 1), (2, 4, 1, 1)),
    "transposed, taps in padding": (lambda: nn.ConvTranspose2d(4, 6, 3, 1, 1), (2, 4, 1, 2)),
    "transposed, taps in padding, stride": (lambda: nn.ConvTranspose2d(4, 6, 5, 2, 2, 1), (2, 4, 1, 2)),
    "transposed, taps in padding, dilation": (lambda: nn.ConvTranspose2d(4, 6, 3, padding=3, dilation=3), (2, 4, 2, 3)),
    "transposed, 3d": (lambda: nn.ConvTranspose3d(4, 6, 2, 2), (2, 4, 3, 3, 3)),
}


OFTEN = ("few outputs", "few inputs, stride", "stride, padding", "depthwise, stride", "groups", "1x1, stride", "transposed, phases", "transposed, blocks")


@pytest.mark.parametrize("name", MODULES)
def test_module(name):
    make, shape = MODULES[name]
    module_matches(make(), torch.randn(shape), factor=4)


@pytest.mark.parametrize("name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.sweep) for n in MODULES])
def test_module_with_dynamic_sizes(name):
    make, shape = MODULES[name]
    module_matches(make(), torch.randn(shape), dynamic=True, factor=4)


@pytest.mark.parametrize("channels", [(4, 6), (17, 3)], ids=["few inputs", "few outputs"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_dtypes(dtype, channels):
    x, w, b = (torch.randn(s).to(dtype) for s in ((2, channels[0], 13, 19), (channels[1], channels[0], 3, 3), channels[1:]))
    matches(lambda *t: F.conv2d(*t, padding=1), x, w, b, factor=4)


@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_few_outputs_in_every_layout(dtype, target):
    """The lanes run along the image, whether it comes and goes as planes or channels-last."""
    f = torch.compile(lambda x, w, y: F.leaky_relu(F.conv2d(x, w, padding=1), 0.3) + y, backend="mlirc", options={**OPTIONS, "target": target})
    for first, second in ((torch.contiguous_format, torch.channels_last), (torch.channels_last, torch.contiguous_format)):
        torch._dynamo.reset()
        x, y = torch.randn(2, 9, 5, 37).contiguous(memory_format=first), torch.randn(2, 3, 5, 37).contiguous(memory_format=second)
        x, w, y = (t.to(dtype) for t in (x, torch.randn(3, 9, 3, 3), y))
        expected = F.leaky_relu(F.conv2d(x.double(), w.double(), padding=1), 0.3) + y.double()
        got = f(x, w, y)
        assert got.dtype == dtype and got.shape == expected.shape
        assert (got.double() - expected).abs().max() <= 16 * torch.finfo(dtype).eps * expected.abs().max()


def test_channels_last_and_odd_paddings():
    x = torch.randn(2, 4, 13, 15).contiguous(memory_format=torch.channels_last)
    matches(lambda x, w, b: F.conv2d(x, w, b, padding="same"), x, torch.randn(6, 4, 4, 4), torch.randn(6), factor=4)
    matches(lambda x, w: F.conv2d(x[0], w), x, torch.randn(6, 4, 3, 3), factor=4)


def test_import_is_channels_last():
    check_import(
        lambda x, w: F.conv2d(x, w, stride=2, padding=1),
        [torch.randn(2, 8, 13, 15), torch.randn(6, 8, 3, 3)],
        """
// CHECK: %[[X:.*]] = linalg.transpose ins(%{{.*}} : tensor<2x8x13x15xf32>) {{.*}} permutation = [0, 2, 3, 1]
// CHECK: linalg.transpose {{.*}} permutation = [2, 3, 1, 0]
// CHECK: %[[P:.*]] = tensor.pad {{.*}} low[0, 1, 1, 0] high[0, 1, 1, 0]
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]
// CHECK-SAME: mlirc.kind = "convolution"
// CHECK: -> tensor<2x7x8x6xf32>
// CHECK: linalg.transpose {{.*}} permutation = [0, 3, 1, 2]
""",
    )


def test_import_of_a_transposed_convolution_pads_once_for_all_phases():
    check_import(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
        [torch.randn(2, 8, 7, 9), torch.randn(8, 6, 4, 4)],
        """
// CHECK: tensor.pad {{.*}} low[0, 1, 1, 0] high[0, 1, 1, 0]
// CHECK-NOT: tensor.pad
// CHECK: tensor.extract_slice {{.*}}[0, 0, 0, 0] [2, 8, 10, 8]
// CHECK: tensor.extract_slice {{.*}}[0, 1, 1, 0] [2, 8, 10, 8]
""",
    )


def test_import_of_few_output_channels_has_the_positions_last():
    check_import(
        lambda x, w: F.conv2d(x, w, padding=1),
        [torch.randn(2, 8, 9, 33), torch.randn(3, 8, 3, 3)],
        """
// CHECK: affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d4, d2 + d5, d3 + d6)>
// CHECK: affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1, d2, d3)>
// CHECK: linalg.generic
// CHECK-SAME: outs({{.*}} : tensor<2x3x9x33xf32>)
""",
    )


def test_import_of_few_input_channels_reads_them_as_they_lie():
    check_import(
        lambda x, w: F.conv2d(x, w, stride=2, padding=1),
        [torch.randn(2, 3, 13, 15), torch.randn(6, 3, 3, 3)],
        """
// CHECK: affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d4, d1 * 2 + d5, d2 * 2 + d6)>
// CHECK: tensor.pad {{.*}} low[0, 0, 1, 1] high[0, 0, 1, 1]
""",
    )


def test_import_leaves_out_taps_that_see_padding_alone():
    check_import(
        lambda x, w: F.conv2d(x, w, padding=1),
        [torch.randn(2, 8, 1, 15), torch.randn(6, 8, 3, 3)],
        """
// CHECK: tensor.extract_slice {{.*}}[1, 0, 0, 0] [1, 3, 8, 6] [1, 1, 1, 1]
// CHECK: tensor.pad {{.*}} low[0, 0, 1, 0] high[0, 0, 1, 0]
// CHECK: linalg.generic
// CHECK-SAME: mlirc.kind = "convolution"
""",
    )


def test_import_of_a_transposed_convolution_of_single_elements_is_a_product():
    check_import(
        lambda x, w: F.conv_transpose2d(x, w),
        [torch.randn(2, 4, 1, 1), torch.randn(4, 6, 3, 3)],
        """
// CHECK-NOT: tensor.pad
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]
// CHECK-NOT: tensor.pad
""",
    )


def test_import_of_few_planes_of_a_depthwise_convolution_has_the_positions_last():
    check_import(
        lambda x, w: F.conv2d(x, w, groups=3),
        [torch.randn(2, 3, 8, 40), torch.randn(3, 1, 3, 3)],
        """
// CHECK: affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d2 + d4, d3 + d5)>
// CHECK: iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]
// CHECK-SAME: tensor<2x3x6x38xf32>
""",
    )


def test_import_of_depthwise_has_no_channel_reduction():
    check_import(
        lambda x, w: F.conv2d(x, w, groups=4),
        [torch.randn(2, 4, 13, 15), torch.randn(4, 1, 3, 3)],
        """
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]
// CHECK-SAME: mlirc.kind = "convolution"
""",
    )


class Block(nn.Module):
    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, 37, 3, stride, 1, bias=False), nn.BatchNorm2d(37)
        for t in (self.norm.running_mean, self.norm.bias):
            nn.init.normal_(t)
        for t in (self.norm.running_var, self.norm.weight):
            nn.init.uniform_(t, 0.5, 2)

    def forward(self, x, y):
        return F.relu(self.norm(self.conv(x)) + y)


@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_batch_norm_behind_a_convolution_follows_its_statistics(dtype, target):
    """Its factors are kept from call to call, until what they are made of changes."""
    torch._dynamo.reset()
    module = Block(6, 2).eval().to(dtype)
    x, y = torch.randn(2, 6, 13, 15, dtype=dtype), torch.randn(2, 37, 7, 8, dtype=dtype)
    compiled = torch.compile(module, backend="mlirc", options={**ROUNDED, "target": target})
    with torch.no_grad():
        for change in (lambda: None, lambda: module.norm.running_mean.add_(3), lambda: module.norm.weight.mul_(-1)):
            change()
            close("output", module(x, y), compiled(x, y), 8)


@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_large_weights_on_small_images(dtype, target):
    """More weights than stay in a cache: blocks of channels are the outermost loop, the last of them partial."""
    torch._dynamo.reset()
    module = nn.Conv2d(128, 300, 3, 2, 1).eval().to(dtype)
    x = torch.randn(2, 128, 9, 11, dtype=dtype)
    with torch.no_grad():
        got = torch.compile(module, backend="mlirc", options={**OPTIONS, "target": target})(x)
        close("output", module.double()(x.double()).to(dtype), got, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("groups, outputs", [(1, 3), (8, 24)])
def test_a_channels_last_image_becomes_planes_for_few_outputs(groups, outputs, dtype):
    """By a copy that pads it too: a pad of scattered elements takes 30 times as long."""
    m = nn.Sequential(nn.Conv2d(16, 24, 3), nn.ReLU(), nn.Conv2d(24, outputs, 3, padding=1, groups=groups)).to(dtype).eval()
    x = torch.randn(2, 16, 9, 37).to(dtype).to(memory_format=torch.channels_last)
    with torch.no_grad():
        report = mlirc.explain(m, x)
        got, expected = torch.compile(m, backend="mlirc", options=OPTIONS)(x), copy.deepcopy(m).double()(x.double())
    torch.testing.assert_close(got.double(), expected, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=2e-2 if dtype == torch.bfloat16 else 1e-5)
    if dtype == torch.float32:  # on AMX, the first one has channels of zeros
        assert not any("pad" in k for k in report.graphs[0].kernels)
