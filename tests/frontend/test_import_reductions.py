"""Reductions, statistics, normalisations and losses against eager mode, with their gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.tests.frontend.compare import compare
from mlirc.tests.frontend.elementwise import expressions, function, matches, module_matches
from mlirc.tests.frontend.golden import check_import

REDUCTIONS = expressions("""
x.sum()
x.sum(1)
x.sum((0, 2), True)
x.amax(1)
x.amin((0, 1))
x.max()
x.min()
x.max(1)
x.min(2, True)
x.max(1).values
x.argmax()
x.argmin(1)
x.argmax(2, True)
x.any()
x.all(1)
x.any((0, 1))
x.sum(1, dtype=torch.float64)
torch.count_nonzero(x, 1)
x.aminmax()
""")
STATISTICS = expressions("""
x.mean()
x.mean(1)
x.mean((0, 2), True)
x.var()
x.var(1)
x.std(1, unbiased=False)
torch.var_mean(x, 1)
torch.std_mean(x, (1, 2))
x.norm()
x.norm(1, 1)
x.norm(float("inf"), 2)
x.norm(3, 1)
x.norm(0)
x.logsumexp(1)
x.softmax(1)
x.log_softmax(-1)
F.softmax(x, 1, dtype=torch.float32)
F.normalize(x)
F.cosine_similarity(x, x * 2)
x[:, :1].var(1)
""")


def run(texts):
    functions = [function(t) for t in texts]
    return lambda x: [f(x) for f in functions]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64], ids=str)
def test_reductions(dtype):
    """Whole numbers, so that equal extrema occur (the first one counts) and sums are exact in every dtype."""
    matches(run(REDUCTIONS), torch.randint(1, 9, (3, 17, 5)).to(dtype))


def test_dynamic():
    matches(run(REDUCTIONS), torch.randn(3, 17, 5), dynamic=True, factor=4)


def test_of_bools():
    matches(lambda x: [x.sum(), x.any(1), x.all(), x.sum(1), x.any((0, 1))], torch.randn(3, 17, 5) > 0)


def test_sums_and_products_as_bools():
    """Whether any element is not zero, whether all are; not the sum's last bit."""
    x = torch.randint(-1, 2, (3, 17, 5))
    matches(lambda x: [x.sum(dtype=torch.bool), x.sum(1, dtype=torch.bool), x.prod(1, dtype=torch.bool)], x)
    matches(lambda x: [x.sum((0, 2), dtype=torch.bool), x.prod(dtype=torch.bool)], x.float())


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_any_of_no_dims_reduces_nothing(dtype):
    matches(lambda x: [x.any(dim=()), torch.all(x, dim=[])], torch.randint(0, 2, (3, 5)).to(dtype))


@pytest.mark.parametrize("f", [lambda x: x.max(0), lambda x: x.min(0)[0], lambda x: x.max()])
def test_extrema_of_nothing(f):
    with pytest.raises((IndexError, RuntimeError), match="reduction dim|numel\\(\\) == 0"):
        torch.compile(f, backend="mlirc", options={"strict": True})(torch.zeros(0, 4))


def test_nan_and_infinities():
    x = torch.randn(3, 17, 5)
    x[0, 3, 2], x[1, 4, 1], x[2, 5] = float("nan"), float("inf"), float("-inf")
    matches(run([*REDUCTIONS, "x.softmax(1)", "x.log_softmax(1)", "x.logsumexp(1)"]), x, factor=4)


def test_variances_far_from_zero():
    """The mean of a million is known to a few hundredths in f32, the deviations of one are not to feel it."""
    x = 1e6 + torch.randn(4, 1000)
    x[3] = 0.1
    f = torch.compile(lambda x: (x.var(1), torch.std_mean(x, 1), x.t().contiguous().var(0, correction=0)), backend="mlirc")
    var, (std, mean), columns = f(x)
    exact = x.double()
    for got, want in ((var, exact.var(1)), (std, exact.std(1)), (mean, exact.mean(1)), (columns, exact.var(1, correction=0))):
        torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=1e-7)


def test_products():
    matches(lambda x: [x.prod(), x.prod(1)], torch.rand(3, 17, 5) + 0.5, factor=8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_statistics(dtype):
    matches(run(STATISTICS), torch.randn(3, 17, 5).to(dtype), factor=8 if dtype == torch.float32 else 2)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_gradients(dynamic):
    texts = ["x.softmax(1)", "x.log_softmax(-1)", "x.logsumexp(1)", "x.var(1)", "x.std()", "x.norm()", "x.mean(1)", "x.amax(1)"]
    matches(run(texts), torch.randn(2, 8, 7).requires_grad_(), dynamic=dynamic, gradients=True, factor=8)


NORMALISATIONS = {
    "layer norm": lambda: nn.LayerNorm(7),
    "layer norm, two dims": lambda: nn.LayerNorm((5, 7)),
    "RMS norm": lambda: nn.RMSNorm(7),
    "group norm": lambda: nn.GroupNorm(2, 8),
    "instance norm": lambda: nn.InstanceNorm2d(8, affine=True),
    "batch norm": lambda: nn.BatchNorm2d(8),
    "batch norm, evaluated": lambda: nn.BatchNorm2d(8).eval(),
    "batch norm, no statistics": lambda: nn.BatchNorm2d(8, track_running_stats=False),
}


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", NORMALISATIONS)
def test_normalisation(name, dynamic):
    module = NORMALISATIONS[name]()
    for p in module.parameters():
        nn.init.uniform_(p, 0.5, 1.5)
    module_matches(module, torch.randn(2, 8, 5, 7), dynamic=dynamic, factor=8)


LOSSES = expressions("""
F.cross_entropy(x, t)
F.cross_entropy(x, t, reduction="none")
F.cross_entropy(x, t, reduction="sum")
F.cross_entropy(x, t, w)
F.cross_entropy(x, t, w, label_smoothing=0.1)
F.cross_entropy(x, t, ignore_index=2)
F.mse_loss(x, x * 2)
F.smooth_l1_loss(x, x * 2)
F.binary_cross_entropy_with_logits(x, x.sigmoid())
F.kl_div(x.log_softmax(1), x.softmax(1))
F.huber_loss(x, x * 2)
""")


def test_losses():
    functions = [function(t, "x, t, w") for t in LOSSES]
    x, t, w = torch.randn(7, 9).requires_grad_(), torch.randint(0, 9, (7,)), torch.rand(9)
    matches(lambda x, t, w: [f(x, t, w) for f in functions], x, t, w, gradients=True, factor=8)


def test_import_of_argmax_is_two_reductions():
    check_import(
        lambda x: x.argmax(1),
        [torch.randn(4, 9)],
        """
// CHECK: iterator_types = ["parallel", "reduction"]
// CHECK: arith.maximumf
// CHECK: linalg.index 1
// CHECK: iterator_types = ["parallel", "reduction"]
// CHECK: arith.minsi
""",
    )


@pytest.mark.parametrize("norm", [lambda x, w, b: F.layer_norm(x, (5,), w, b), lambda x, w, b: F.group_norm(x.mT, 1, w, b)], ids=["layer", "group"])
def test_import_rounds_weight_and_bias_of_a_norm_once(norm):
    """What is added is no product of what is subtracted elsewhere: one instruction, and nearer to the exact result."""
    check_import(
        norm,
        [torch.randn(2, 8, 5), torch.randn(5), torch.randn(5)],
        """
// CHECK: math.rsqrt
// CHECK: arith.mulf
// CHECK-NEXT: math.fma
""",
    )


def test_import_keeps_channels_last_in_group_norm():
    """The split of the channels leaves the spatial dims alone: no flattening that would force NCHW."""
    check_import(
        lambda x: F.group_norm(x, 2),
        [torch.randn(2, 8, 5, 7)],
        """
// CHECK: tensor.expand_shape %{{.*}} {{\\[\\[}}0], [1, 2], [3], [4]] {{.*}} into tensor<2x2x4x5x7xf32>
// CHECK: iterator_types = ["parallel", "parallel", "reduction", "reduction", "reduction"]
""",
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
def test_softmax_of_no_integers(dtype):
    """Eager mode complains about integers only where it meets some."""
    f = lambda x: x.softmax(-1)  # noqa: E731
    compare(f, torch.zeros(0, dtype=dtype))
    compare(f, torch.zeros(3, 0, dtype=dtype))
    with pytest.raises(NotImplementedError, match="softmax"):
        torch.compile(f, backend="mlirc", options={"strict": True})(torch.zeros(3, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 17, 49])
def test_softmax_of_16_bits_is_the_nearest_number_nearly_always(dtype: torch.dtype, rows: int) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = 4 * torch.randn(rows, 1024).to(dtype)
    x[0, :7], x[-1, 3] = float("-inf"), -200.0
    got, want = torch.compile(lambda x: x.softmax(-1), backend="mlirc")(x), x.double().softmax(-1).to(dtype)
    assert (got != want).float().mean() < 2e-3
    torch.testing.assert_close(got, want, rtol=2 * torch.finfo(dtype).eps, atol=0 if dtype == torch.bfloat16 else 1e-7)
    assert bool((got[0, :7] == 0).all())
