"""Pooling and resampling against eager mode, in both memory formats, with gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.tests.frontend.compare import left_to_aten
from mlirc.tests.frontend.elementwise import expressions, function, matches
from mlirc.tests.frontend.golden import check_import

POOLS = expressions("""
F.max_pool2d(x, 3, 2, 1)
F.max_pool2d(x, 2)
F.max_pool2d(x, 3, 2, ceil_mode=True)
F.max_pool2d(x, 3, 2, 1, return_indices=True)
F.max_pool2d(x, 3, 1, 1, dilation=2, return_indices=True)
F.avg_pool2d(x, 3, 2, 1)
F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
F.avg_pool2d(x, 3, 2, ceil_mode=True)
F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)
F.avg_pool2d(x, 2, divisor_override=3)
F.avg_pool1d(x[0], 3)
F.max_pool1d(x[0], 2)
F.adaptive_avg_pool2d(x, 1)
""")
RESAMPLED = expressions("""
F.interpolate(x, scale_factor=2)
F.interpolate(x, size=(20, 9))
F.interpolate(x, scale_factor=1.7)
F.interpolate(x, scale_factor=2, mode="nearest-exact")
F.interpolate(x, size=(5, 30), mode="nearest-exact")
F.interpolate(x, scale_factor=2, mode="bilinear")
F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
F.interpolate(x, size=(5, 30), mode="bilinear")
F.interpolate(x, size=(5, 30), mode="bilinear", align_corners=True)
F.interpolate(x, scale_factor=2, mode="bicubic")
F.interpolate(x[0], scale_factor=2, mode="linear")
F.interpolate(x[0], scale_factor=2)
F.interpolate(x[None], scale_factor=2, mode="trilinear")
""")


def image():
    return torch.randn(2, 4, 13, 14)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("text", POOLS)
def test_pool(text, dynamic):
    matches(function(text), image(), dynamic=dynamic, factor=4)


def test_pools_of_other_layouts_and_dtypes():
    functions = [function(t) for t in POOLS]
    f = lambda x: [g(x) for g in functions]  # noqa: E731
    matches(f, image().contiguous(memory_format=torch.channels_last), factor=4)
    matches(f, image().bfloat16())


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_means_of_integers_over_windows_of_unequal_size(dynamic):
    """The lanes behind the last window have no elements to divide by."""
    f = lambda x: [F.avg_pool1d(x, 3), F.avg_pool1d(x, 6, 3, 2, ceil_mode=True)]  # noqa: E731
    matches(f, torch.randint(-99, 99, (2, 3, 9)), dynamic=dynamic)


def test_adaptive_maxima():
    f = lambda x: F.adaptive_max_pool2d(x, (5, 3), return_indices=True)  # noqa: E731
    matches(f, torch.randn(2, 4, 7, 9))
    matches(f, torch.full((1, 2, 7, 9), float("-inf")))
    matches(lambda x: F.adaptive_max_pool3d(x, (2, 3, 1)), torch.randn(2, 4, 5, 7, 2).requires_grad_(), gradients=True)


def test_adaptive_maxima_of_three_dims_are_row_major():
    f = lambda x: F.adaptive_max_pool3d(x, (2, 3, 2), return_indices=True)  # noqa: E731
    c = torch.compile(f, backend="mlirc", options={"strict": True})
    batch = torch.randn(2, 4, 5, 7, 3).contiguous(memory_format=torch.channels_last_3d)
    for x in (batch, torch.randn(2, 4, 5, 7).contiguous(memory_format=torch.channels_last)):
        assert [y.stride() for y in c(x)] == [y.stride() for y in f(x)]


def test_adaptive():
    f = lambda x: [F.adaptive_avg_pool2d(x, 7), F.adaptive_avg_pool2d(x, (5, 3))]  # noqa: E731
    matches(f, torch.randn(2, 3, 14, 21), factor=4)
    matches(f, image(), factor=4)
    matches(f, torch.randn(2, 17, 33, 65).contiguous(memory_format=torch.channels_last), factor=4)
    matches(f, torch.randn(3, 5, 3).bfloat16())
    x = torch.randn(2, 3, 9, 20)
    x[0, 0, 4, 7], x[1, 2, 8, 19] = float("inf"), float("nan")
    matches(f, x, factor=4)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_adaptive_to_no_bins(dynamic):
    f = lambda x: [F.adaptive_avg_pool2d(x, (0, 3)), F.adaptive_avg_pool2d(x, (7, 0))]  # noqa: E731
    matches(f, torch.randn(2, 3, 14, 21), dynamic=dynamic)


def test_three_dims():
    f = lambda x: [F.max_pool3d(x, 2), F.avg_pool3d(x, 2), F.adaptive_avg_pool3d(x, 1)]  # noqa: E731
    matches(f, torch.randn(2, 3, 6, 6, 6), factor=4)


@pytest.mark.parametrize("text", [t for t in POOLS if "2d" in t and "indices" not in t and "divisor" not in t])
def test_gradient(text):
    matches(function(text), image().requires_grad_(), gradients=True, factor=4)


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("text", RESAMPLED)
def test_resampled(text, dynamic):
    matches(function(text), image(), dynamic=dynamic, factor=8)


FOLDED = expressions("""
F.unfold(x, 3, padding=1)
F.unfold(x, (3, 2), dilation=2, stride=2)
F.fold(F.unfold(x, 3, padding=1, stride=2), (13, 14), 3, padding=1, stride=2)
F.fold(F.unfold(x, (3, 2), dilation=2), (13, 14), (3, 2), dilation=2)
F.fold(F.unfold(x[0], 2, stride=2), (12, 14), 2, stride=2)
""")


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("text", FOLDED)
def test_patches(text, dynamic):
    text = text.replace("(13, 14)", "x.shape[2:]")
    matches(function(text), image(), dynamic=dynamic, factor=4)


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("kernel, step, dilation, padding", [
    ((1, 40), (1, 16), 1, 0), ((1, 40), (1, 16), 1, (0, 7)), ((1, 16), (1, 17), 1, 0), ((1, 33), (1, 16), 1, (0, 32)), ((3, 40), (2, 20), (2, 1), (1, 5)),
    ((3, 2), (1, 1), (2, 3), (1, 2)), ((2, 2), (1, 1), 1, (2, 1)), ((5, 4), (2, 3), (2, 3), (2, 1)), ((7, 3), (4, 6), (6, 4), 0), ((4, 5), (4, 2), (3, 1), 1),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_patches_that_are_far_apart_or_whose_taps_are(kernel, step, dilation, padding, turned, dynamic):
    """Steps that share a divisor with the taps' or do not, that are larger than the kernel, and patches that end before the image does."""
    kernel, step, dilation, padding = (v if isinstance(v, tuple) else (v, v) for v in (kernel, step, dilation, padding))
    sizes = [(n - 1) * s + d * (k - 1) + 1 - 2 * p + min(rest, s - 1) for n, s, d, k, p, rest in zip((4, 3), step, dilation, kernel, padding, (0, 1))]
    x = torch.randn(2, 12, 3 * kernel[0] * kernel[1]).transpose(1, 2) if turned else torch.randn(2, 3 * kernel[0] * kernel[1], 12)
    matches(lambda x: F.fold(x, sizes, kernel, dilation, padding, step), x, dynamic=dynamic, factor=4)
    assert not left_to_aten()


def test_an_element_is_the_sum_of_the_patches_that_hold_it():
    """Three of the 40 taps meet an element where patches are 16 apart, two of four, four apart, with taps three apart."""
    check_import(lambda x: F.fold(x, (1, 88), (1, 40), stride=(1, 16)), [torch.randn(1, 40, 4)], "// CHECK: tensor.pad\n// CHECK: tensor<1x3xf32>")
    check_import(lambda x: F.fold(x, (1, 18), (1, 6), stride=(1, 4), dilation=(1, 3)), [torch.randn(1, 6, 1)], "// CHECK: tensor<1x2xf32>")


def test_sampled_at_a_grid():
    matches(lambda x, g: F.grid_sample(x, g, align_corners=False), image(), torch.randn(2, 5, 5, 2), factor=8)


def test_import_of_pooling_is_a_window_of_a_padded_tensor():
    check_import(
        lambda x: F.max_pool2d(x, 3, 2, 1),
        [image()],
        """
// CHECK: affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1 * 2 + d4, d2 * 2 + d5, d3)>
// CHECK: tensor.pad {{.*}} low[0, 1, 1, 0]
// CHECK: arith.constant 0xFF800000 : f32
// CHECK: iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]
// CHECK: arith.maximumf
""",
    )


@pytest.mark.parametrize("dims", [2, 3])
def test_fractional_max_pool(dims):
    """Windows where the samples say; one window; without a batch dim; with gradients and indices."""
    pool = {2: F.fractional_max_pool2d, 3: F.fractional_max_pool3d}[dims]
    x = torch.randn(2, 3, *(11, 13, 9)[:dims]).requires_grad_()
    kernel, out = (2, 3, 2)[:dims], (4, 5, 3)[:dims]
    samples = torch.rand(2, 3, dims)

    def f(x, s):
        return (
            pool(x, kernel, output_size=out, _random_samples=s),
            pool(x[0], kernel, output_size=out, _random_samples=s[:1]),
            pool(x, kernel, output_size=(1,) * dims, _random_samples=s),
        )

    matches(f, x, samples, gradients=True)
    assert not left_to_aten()
    x = x.detach()
    x[0, 1, 2] = float("nan")
    matches(lambda x, s: pool(x, kernel, output_size=out, _random_samples=s), x, samples)
    matches(lambda x, s: pool(x, kernel, output_size=out, _random_samples=s, return_indices=True), x[1:], samples[1:])
    assert not left_to_aten()


@pytest.mark.parametrize("dims", [2, 3])
def test_adaptive_max_pool_gradient(dims):
    pool = {2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}[dims]
    matches(lambda x: pool(x, (3, 4, 2)[:dims]), torch.randn(2, 3, *(7, 9, 5)[:dims]).requires_grad_(), gradients=True)
    assert not left_to_aten()


@pytest.mark.parametrize("dynamic", [False, True])
def test_linear_factors_that_round_to_one(dynamic):
    """ATen copies then, and only then."""
    linear1d, linear3d = torch.ops.aten.upsample_linear1d, torch.ops.aten.upsample_trilinear3d
    x, y = torch.randn(2, 3, 11), torch.randn(2, 3, 5, 6, 7)

    def f(x, y):
        n = x.shape[2]
        return linear1d(x, [n], False, 1.04), linear1d(x, [n + 1], False, 1.04), linear3d(y, [5, 7, 7], False, 1.04, 1.2, 1.1)

    matches(f, x, y, dynamic=dynamic)


@pytest.mark.parametrize("last", [False, True], ids=["first", "channels last"])
def test_places_of_nan(last):
    """Of several NaN in a window it is the last one; a maximum is the first one."""
    torch.manual_seed(3)
    x = torch.randint(-2, 2, (2, 3, 9, 11)).float()
    x[torch.rand(x.shape) < 0.2] = float("nan")
    x[1, 0] = -float("inf")
    x = x.contiguous(memory_format=torch.channels_last) if last else x

    def places(x):
        out = [F.max_pool2d(x, 3, 2, 1, return_indices=True), F.adaptive_max_pool2d(x, (4, 5), return_indices=True)]
        out += [F.max_pool1d(x[0], 3, return_indices=True), F.adaptive_max_pool1d(x[0], 4, return_indices=True)]
        x = x.contiguous()  # eager mode knows pools of volumes in no other order
        return [*out, F.max_pool3d(x, 2, 1, 1, return_indices=True), F.adaptive_max_pool3d(x, (2, 4, 3), return_indices=True)]

    matches(places, x)
