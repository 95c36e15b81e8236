"""Ops that are taken apart in ways of our own: against eager mode, with nothing left to ATen."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch.nn.functional as F

from mlirc.tests.frontend.compare import OPTIONS, compare, left_to_aten
from mlirc.tests.frontend.elementwise import matches

R = torch.randn
INF, NAN = float("inf"), float("nan")
aten = torch.ops.aten
BYTES = torch.randint(-99, 99, (17, 33)).to(torch.int8)

CASES = {
    "foreach": (
        lambda x, y: [
            *torch._foreach_add([x, y], [y, x], alpha=2),
            *torch._foreach_add([x, y], 3),
            *torch._foreach_mul([x, y], (3.0, 4.0)),
            *torch._foreach_sqrt([x.abs(), y.abs()]),
            *torch._foreach_addcdiv([x], [y], [y.abs() + 1], value=0.5),
            *torch._foreach_addcmul([x, y], [y, x], [y, y], [0.5, 2.0]),
            *torch._foreach_lerp([x], [y], 0.3),
            *torch._foreach_norm([x, y]),
            *torch._foreach_maximum([x, y], 0.5),
            *torch._foreach_clamp_max([x], [y]),
            *torch._foreach_pow(2.0, [x, y]),
        ],
        R(4, 5),
        R(4, 5),
    ),
    "multiplied and added": (
        lambda x, y: (x.clone().addcmul_(x, y, value=0.3), x.clone().addcdiv_(x, y, value=2), x.int().addcmul_(y.int(), x.int(), value=3), x.half().addcmul_(y, y, value=3)),
        R(4, 5),
        R(5) + 3,
    ),
    "foreach in place": (lambda x, y: (torch._foreach_mul_([x, y], 2.0), torch._foreach_add_([x], [y]))[0], R(7), R(7)),
    "affine grids": (
        lambda x, y: (F.affine_grid(x, (2, 3, 4, 5), True), F.affine_grid(x, (2, 3, 1, 5), False), F.affine_grid(y, (2, 1, 3, 1, 5), True)),
        R(2, 2, 3),
        R(2, 3, 4),
    ),
    "index_fill": (
        lambda x, i: (x.index_fill(0, i, 2.0), x.index_fill(-1, i, x[0, 0]), x[0, 0].index_fill(0, i[:1] * 0 - 1, 3.0)),
        R(4, 5),
        torch.tensor([-1, 0, -4]),
    ),
    "repeat_interleave": (lambda x, r: x.repeat_interleave(r, dim=0, output_size=7), R(3, 5), torch.tensor([1, 0, 6])),
    "upsample_nearest2d_backward": (
        lambda x: (
            aten.upsample_nearest2d_backward(x, [6, 8], [2, 3, 3, 4]),
            aten.upsample_nearest2d_backward(x[..., :5, :7], [5, 7], [2, 3, 3, 4]),
            aten.upsample_nearest2d_backward(x, [6, 8], [2, 3, 3, 4], 2.1, 1.9),
        ),
        R(2, 3, 6, 8),
    ),
    "_int_mm": (lambda a, b: torch._int_mm(a, b), BYTES, BYTES.mT.contiguous()[:, :16]),
}


@pytest.mark.parametrize("name", CASES)
def test_own_decomposition(name):
    f, *args = CASES[name]
    compare(f, *args)
    assert not left_to_aten()


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dynamic", [False, True])
def test_nothing_taken_zero_times_is_looked_at(dtype, dynamic):
    """NaN in what is multiplied by beta = 0, and with one matrix, as in BLAS, by alpha = 0."""
    bad = R(5, 7, dtype=dtype)
    bad[1, 2], bad[3, 4] = NAN, INF

    def f(x, a, b):
        sums = [torch.addmm(x, a[0], b[0], beta=0), torch.baddbmm(x[None], a, b, beta=0), torch.addmv(x[:, 2], a[0], b[0, :, 0], beta=0)]
        return *sums, torch.addr(x, a[0, :, 0], b[0, 0], beta=0), torch.addbmm(x, a, b, beta=0, alpha=2)

    def g(x, a, b):
        scales = [{"beta": beta, "alpha": 0} for beta in (1, 0, 3)]
        return [op for s in scales for op in (torch.addmm(x, a, b, **s), torch.addmm(x[0], a, b, **s), torch.addmv(x[:, 0], a, b[:, 0], **s))]

    def h(x, a, b):
        return [torch.addbmm(x, a[None], b[None], beta=beta, alpha=0) for beta in (1, 0, 3)]

    compare(f, bad, R(2, 5, 4, dtype=dtype), R(2, 4, 7, dtype=dtype), dynamic=dynamic)
    for x, y, z in ((R(7, 5, dtype=dtype).t(), bad, R(7, 7, dtype=dtype)), (R(5, 4, dtype=dtype), R(5, 5, dtype=dtype), bad[:, :4])):
        x = x if x.shape == (5, z.shape[1]) else x.contiguous()
        compare(g, x, y, z, dynamic=dynamic)
        compare(h, x, y, z, dynamic=dynamic)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_of_smooth_l1(dtype):
    """That of NaN is NaN; torch's decomposition makes it 0."""
    x = torch.tensor([NAN, INF, -INF, 0.0, 0.5, -0.5, 0.25, -3.0, 1e-3], dtype=dtype)
    y = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.0, NAN, -INF, 0.0], dtype=dtype)
    compare(lambda g, x, y: [aten.smooth_l1_loss_backward(g, x, y, 0, beta) for beta in (0.5, 1.0, 0.0)], R(9, dtype=dtype), x, y)
    compare(lambda g, x, y: [aten.smooth_l1_loss_backward(g, x, y, reduction, 0.5) for reduction in (1, 2)], R((), dtype=dtype), x, y)
    assert not left_to_aten()


def test_batched_products_without_rows_or_columns():
    compare(torch.addbmm, R(0, 4), R(2, 0, 3), R(2, 3, 4))
    compare(torch.addbmm, R(2, 0), R(3, 2, 5), R(3, 5, 0))
    compare(torch.addbmm, R(2, 3), R(0, 2, 5), R(0, 5, 3))


def test_optimizer_step():
    """AdamW over lists of parameters."""
    models = [torch.nn.Linear(5, 7) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    x = R(9, 5)
    torch._dynamo.reset()
    for model, compiled in zip(models, (False, True)):
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        step = torch.compile(optimizer.step, backend="mlirc", options=OPTIONS) if compiled else optimizer.step
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            step()
    torch.testing.assert_close(dict(models[0].named_parameters()), dict(models[1].named_parameters()))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=str)
def test_quantized_ops(dtype):
    """What exported quantised programs consist of, by numbers, by tensors and by channel; ties and clamped values."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    q = torch.ops.quantized_decomposed
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    ends = (low, high, dtype)

    def f(x, scale, zero, scales, zeros):
        a = q.quantize_per_tensor(x, 0.05, 3, *ends)
        b = q.quantize_per_tensor.tensor(x, scale, zero, *ends)
        c = q.quantize_per_channel(x, scales, zeros, 1, *ends)
        return (
            *(a, b, c, q.dequantize_per_tensor(a, 0.05, 3, *ends)),
            q.dequantize_per_tensor.tensor(b, scale, zero, *ends),
            q.dequantize_per_channel(c, scales, zeros, 1, *ends) * 2,
            q.dequantize_per_channel(c, scales, None, 1, *ends),
        )

    x = torch.cat([R(30, 9) * 4, torch.arange(-9, 9).reshape(2, 9) * 0.025])
    args = x, torch.tensor(0.04), torch.tensor(5), torch.rand(9) * 0.1 + 0.01, torch.randint(0, 9, (9,))
    torch._dynamo.reset()
    for got, expected in zip(torch.compile(f, backend="mlirc", options=OPTIONS)(*args), f(*args), strict=True):
        torch.testing.assert_close(got, expected)
    assert not left_to_aten()


@pytest.mark.parametrize("weighted", [False, True])
def test_bags_in_two_byte_floats(weighted):
    """ATen's kernel makes less than its meta function describes."""
    i, offsets = torch.tensor([3, 1, 4, 1, 5, 2]), torch.tensor([0, 0, 3, 6])
    weights = R(6).bfloat16().requires_grad_() if weighted else None
    table = R(9, 5).bfloat16().requires_grad_()
    for last in (False, True):
        f = lambda w, p: F.embedding_bag(i, w, offsets, mode="sum", per_sample_weights=p, include_last_offset=last)  # noqa: E731, B023
        compare(f, table, weights)


def test_offsets_of_bags():
    """What lies behind an end is in no bag; offsets that are no places are errors, as eager's are."""
    i, table = torch.tensor([3, 1, 4, 1, 5, 2]), R(9, 5).bfloat16().requires_grad_()
    f = lambda w, o, last: F.embedding_bag(i, w, o, mode="sum", include_last_offset=last)  # noqa: E731
    compiled = torch.compile(f, backend="mlirc")
    with torch.no_grad():
        for offsets, last in (([0, 2, 4], True), ([0, 0, 6], True), ([0, 6], False), ([0, 3, 3], False)):
            torch.testing.assert_close(compiled(table, torch.tensor(offsets), last), f(table, torch.tensor(offsets), last), rtol=1e-2, atol=1e-2)
        for offsets in ([0, 2, 7], [0, -2, 3], [1, 2, 3]):
            for g in (f, compiled):
                with pytest.raises((RuntimeError, IndexError)):
                    g(table, torch.tensor(offsets), False)
    with pytest.raises(IndexError):  # eager's gradient reads what is behind its own
        compiled(table, torch.tensor([0, 2, 4]), True)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grids_of_nan(padding):
    """Coordinates that are no finite numbers, in either place."""
    lines = torch.tensor([-1.0, 0.3, NAN, INF, -INF, -2.5, 0.99])
    grid = torch.stack(torch.meshgrid(lines, lines, indexing="ij"), -1).unsqueeze(0)
    modes = [(m, a) for m in ("bilinear", "nearest", "bicubic") for a in (False, True)]
    matches(lambda x, g: [F.grid_sample(x, g, m, padding, a) for m, a in modes], R(1, 2, 4, 5), grid, factor=4)


@pytest.mark.parametrize(
    "padding,align_corners",
    [
        ("zeros", False), ("border", True), ("reflection", False),
        *(pytest.param(*other, marks=pytest.mark.sweep) for other in (("zeros", True), ("border", False), ("reflection", True))),
    ],
)  # fmt: skip
def test_grids_far_away(padding, align_corners):
    """Overflows read the first row or column; where mirrors leave no digit of a coordinate, something of the image is read."""
    near = [1.0, 2.2, 7.9, 333.3, 1e5, 3e38, INF, NAN]
    far = [9.7e6, 2.2e9, 1e10, 3e14, 1e20, 1e30]
    for shape, dtype in (((1, 2, 4, 5), torch.float32), ((1, 1, 1, 8), torch.float64), ((1, 17, 33, 3), torch.float32)):
        x = R(shape, dtype=dtype)
        f = lambda x, g: [F.grid_sample(x, g, mode, padding, align_corners) for mode in ("bilinear", "nearest")]  # noqa: E731
        torch._dynamo.reset()
        compiled = torch.compile(f, backend="mlirc", options=OPTIONS)
        for magnitudes in (near, far):
            line = torch.tensor([s * m for m in magnitudes for s in (1, -1)], dtype=dtype)
            grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).unsqueeze(0)
            if magnitudes is near or padding != "reflection":
                torch.testing.assert_close(compiled(x, grid), f(x, grid), rtol=1e-3, atol=2e-2, equal_nan=True)
            else:
                assert all(x.min() <= y.min() and y.max() <= x.max() for y in compiled(x, grid))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_sampled_images_of_infinities(padding):
    """A neighbour beyond the border counts nothing, and is not infinity times zero."""
    x = torch.full((1, 1, 4, 5), INF)
    x[..., 1:3, 1:3] = 1
    lines = torch.tensor([-1.7, -1.0, -0.9, 0.0, 0.2, 0.9, 1.0, 1.3])
    grid = torch.stack(torch.meshgrid(lines, lines, indexing="ij"), -1).unsqueeze(0)
    for mode in ("bilinear", "nearest"):
        compare(lambda x, g: F.grid_sample(x, g, mode, padding, True), x, grid)  # noqa: B023
        compare(lambda x, g: F.grid_sample(x, g, mode, padding, False), x, grid)  # noqa: B023


def test_samples_of_a_grid_are_row_major():
    f = lambda x, g: F.grid_sample(x, g, align_corners=False)  # noqa: E731
    x, grid = torch.randn(2, 3, 7, 4), torch.rand(2, 5, 6, 2).transpose(1, 2)
    assert torch.compile(f, backend="mlirc", options={"strict": True})(x, grid).stride() == f(x, grid).stride() == (90, 30, 5, 1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_identity_matrices(dynamic):
    """Of up to 256 rows, of more, of none."""

    def f(x):
        n = x.shape[0]
        return torch.eye(n) * x[:, None], torch.eye(n, 3, dtype=torch.bool), torch.eye(0), torch.eye(257, 2, dtype=torch.int64), torch.eye(300, dtype=torch.bfloat16)

    for n in (5, 256, 300):
        compare(f, R(n), dynamic=dynamic)
        assert not left_to_aten()


def test_identity_matrices_of_less_than_nothing():
    with pytest.raises(Exception, match="greater or equal to 0, got -1"):
        torch.compile(lambda x: torch.eye(x.shape[0] - 4) + 1, backend="mlirc", options=OPTIONS)(R(3))


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_std_of_numbers_whose_squares_overflow(dtype, dynamic):
    """ATen adds up in f64: what f32 can hold is returned, and so are its gradients."""
    rows = torch.tensor([[-0.5, 1e38, 3.0], [1e-30, 3e-30, -2e-30], [1.0, 1.0 + 2**-7, 1.0], [INF, 1.0, 2.0], [NAN, 1.0, 2.0], [2.0] * 3])

    def f(x):
        return [x.std(), x.std(0), x.std(1, correction=0), x.std(1, keepdim=True), *torch.std_mean(x[:3], 1)]  # ATen's mean of inf is NaN

    def gradients(x):
        return torch.autograd.grad(x.std(1).sum() + x.std(), x)

    for x in (rows, R(33, 17) * 1e-25, R(33, 17) * 1e25):
        x = x.to(dtype)
        rtol = 1e-5 if dtype == torch.float32 else 0.02
        torch.testing.assert_close(compare(f, x, dynamic=dynamic), f(x), atol=0, rtol=rtol, equal_nan=True)
        expected = gradients(x.requires_grad_())
        atol = rtol * expected[0].nan_to_num().abs().max().item()
        torch.testing.assert_close(compare(gradients, x, dynamic=dynamic), expected, atol=atol, rtol=rtol, equal_nan=True)
    assert not left_to_aten()
