"""Inputs as they come: any strides, offsets, sizes (0, 1, odd), scalars; every output has eager's strides."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.tests.frontend.compare import compare, kernels, replica

R = torch.randn
WIDE = R(70, 33)
LAST = R(2, 5, 7, 9).to(memory_format=torch.channels_last)


def many(x):
    """An elementwise chain, reductions along each side, a softmax and a transpose."""
    return torch.tanh(x) * 2 + 1, x.sum(), x.sum(0), x.amax(-1), x.softmax(-1), x.mean(0, keepdim=True), x.t().exp()


INPUTS = {
    "transposed": WIDE.t(),
    "every second": WIDE[::2, 1::3],
    "offset": WIDE[3:, 5:],
    "expanded rows": R(1, 7).expand(5, 7),
    "expanded columns": R(7, 1).expand(7, 5),
    "one element everywhere": R(1, 1).expand(6, 33),
    "overlapping rows": R(20).as_strided((6, 5), (2, 1)),
    "the same row shifted": R(40).as_strided((6, 33), (1, 1)),
    "unaligned": R(101)[1:].view(4, 25),
    "one row": R(1, 33),
    "one column": R(33, 1),
    "one element": R(1, 1),
    "three": R(3, 3),
    "seventeen": R(17, 17),
    "seventy": R(70, 70),
    "parallel": R(130, 1030),
    "long": R(3, 40000),
    "tall": R(40000, 3),
}


@pytest.mark.parametrize("name", INPUTS)
def test_matrices(name):
    compare(many, INPUTS[name])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.bool])
@pytest.mark.parametrize("name", ["every second", "overlapping rows", "unaligned", "seventeen"])
def test_other_types(name, dtype):
    x = (INPUTS[name] * 4).to(dtype) if dtype != torch.bool else INPUTS[name] > 0
    # Conversions made the tensor dense: give it the strides back.
    x = x.as_strided(x.shape, x.stride())
    storage = torch.empty(x.shape[0] * x.shape[1] * 3 + 1, dtype=dtype).fill_(1)
    view = storage[1:].as_strided(x.shape, (x.shape[1] * 3, 2))
    view.copy_(x)
    compare(lambda x: (x + x, x == 1, x.sum(0), x.amax(1), x.t().contiguous()), view)


FOUR = {
    "relu": lambda x: x.relu() * 2,
    "mean": lambda x: x.mean((2, 3)),
    "softmax": lambda x: x.softmax(1),
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "cat": lambda x: torch.cat([x, x + 1], 1),
    "slice": lambda x: x[:, 1:4, ::2] * 2,
    "layer norm": lambda x: F.layer_norm(x, (9,)),
    "group norm": lambda x: F.group_norm(x, 5),
    "pad": lambda x: F.pad(x, (1, 0, 2, 1)),
    "flatten": lambda x: x.flatten(1) + 1,
    "conv": lambda x: F.conv2d(x, x.new_ones(4, 5, 3, 3), padding=1),
    "batch norm": lambda x: F.batch_norm(x, x.new_zeros(5), x.new_ones(5)) + x,
}


@pytest.mark.parametrize("name", FOUR)
def test_images(name):
    """In both layouts; which one an output has is eager's business, except behind a convolution."""
    compare(FOUR[name], LAST, strides=name != "conv")
    compare(FOUR[name], LAST.contiguous(), strides=name != "conv")


@pytest.mark.parametrize("groups", [1, 3, 6, 12])
def test_group_norm_of_channels_last(groups):
    """The statistics lie across the channels; the result lies as its input does, without a copy."""
    x, w, b = R(2, 12, 5, 7).to(memory_format=torch.channels_last), R(12), R(12)
    compare(lambda x, w, b: F.silu(F.group_norm(x, groups, w, b)) + x, x, w, b, strides=True)
    compare(lambda x, w, b: F.group_norm(x, groups, w, b).exp(), x[:, :, 1:, ::2], w, b)


def test_mixed_layouts():
    compare(lambda x, y: x + y, LAST, R(2, 5, 7, 9))
    compare(lambda x, y: x + y, R(2, 5, 7, 9), LAST)
    compare(lambda x: x + 1, R(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d))
    compare(lambda x: (x.permute(2, 0, 1) + 1, x.permute(2, 0, 1).reshape(5, 12), x.permute(1, 2, 0).contiguous()), R(3, 4, 5))
    compare(lambda x, y: x + y, R(7, 1, 5), R(1, 3, 5))


def test_contractions_of_odd_operands():
    a, b = R(66)[2:].view(8, 8), R(65)[1:].view(8, 8)
    compare(lambda x, y: (x @ y, x.t() @ y, x @ y.t(), x[::2] @ y[:, ::3], x[0] @ y, x @ y[:, 1]), a, b)
    compare(lambda x, y: x @ y, R(1, 9).expand(4, 9), R(9, 1).expand(9, 5))
    compare(lambda x, y: x @ y, R(2, 1, 5, 7), R(3, 7, 4))
    compare(lambda x, w: F.conv2d(x, w, padding=1), LAST, R(4, 5, 3, 3))
    compare(lambda x, w: F.conv2d(x, w), LAST[:, :, ::2, 1:], R(4, 5, 2, 2))


ZERO = {
    "vector": (lambda x: (x + 1, x.sum(), x.prod(), x.all(), x.any(), x.mean()), R(0)),
    "no rows": (lambda x: (x + 1, x.sum(0), x.sum(1), x.t(), x.softmax(-1), x.amax(1)), R(0, 3)),
    "no columns": (lambda x: (x + 1, x.sum(0), x.sum(1), x.mean(1), x.reshape(0, 5)), R(3, 0)),
    "three dims": (lambda x: (x.exp(), x.sum((0, 2)), x.permute(2, 0, 1)), R(2, 0, 4)),
    "mm without a reduction": (lambda x, y: x @ y + 1, R(3, 0), R(0, 4)),
    "mm without rows": (lambda x, y: x @ y, R(0, 3), R(3, 4)),
    "mm without rows and columns": (lambda x: (x.t() @ x, (x > 0).t() @ (x > 0) / 4, x.double().t() @ x.double() + 1, x.bfloat16().t() @ x.bfloat16()), R(3, 0)),
    "bmm": (lambda x, y: x @ y, R(2, 3, 0), R(2, 0, 4)),
    "bmm of no batches": (lambda x, y: x @ y, R(0, 3, 4), R(0, 4, 5)),
    "linear": (lambda x, w, b: F.linear(x, w, b).relu(), R(0, 3), R(4, 3), R(4)),
    "conv": (lambda x, w: F.conv2d(x, w), R(0, 3, 8, 8), R(4, 3, 3, 3)),
    "cat": (lambda x, y: torch.cat([x, y]) * 2, R(0, 3), R(3, 3)),
    "layer norm": (lambda x: F.layer_norm(x, (5,)), R(0, 5)),
    "embedding": (lambda w, i: F.embedding(i, w), R(5, 4), torch.zeros(0, dtype=torch.long)),
    "slice to nothing": (lambda x: (x[3:] + 1, x[1:1], x[:, 9:].sum(1)), R(3, 4)),
    "pad from nothing": (lambda x: F.pad(x, (1, 2)), R(3, 0)),
}


@pytest.mark.parametrize("name", ZERO)
def test_zero_sizes(name):
    f, *args = ZERO[name]
    compare(f, *args)


def test_zero_sizes_of_a_dynamic_graph():
    f = torch.compile(lambda x: (x + 1).sum(0), backend="mlirc", dynamic=True, options={"strict": True})
    for n in (5, 3, 0, 1, 70):
        x = R(n, 7)
        torch.testing.assert_close(f(x), (x + 1).sum(0))


def test_scalars():
    compare(lambda x, y: (x + y, x * 2, x.sum(), torch.stack([x, y]), x.softmax(0), x.amax(), x.view(1, 1) + y), R(()), R(()))
    compare(lambda x, y: (x * y, y.sum() - x, y / x.to(torch.int32)), R(()) + 3, R(3, 4))
    compare(lambda x, y: x * y, R((), dtype=torch.float64), R(3, 4))
    compare(lambda x, n, f, b: x * n + f if b else x, R(5), 3, 1.5, True)


def test_pooling_keeps_channels_last():
    x = R(9, 16, 7, 2).contiguous(memory_format=torch.channels_last)
    compare(lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True), x)


def test_outputs_with_gaps_or_broadcasts():
    compare(lambda x: (x + 1)[:, ::2], R(4, 6))
    compare(lambda x: (x + 1)[1:, 2], R(4, 6))
    compare(lambda x: (x[:, None] * 2).expand(4, 3), R(4))
    compare(lambda x: (x * 2).expand(3, 4).t(), R(4))
    compare(lambda x: (x * 2).as_strided((3, 3), (1, 2)), R(9))
    compare(lambda x: torch.empty_strided((2, 3), (1, 2)).copy_(x) * 1, R(2, 3))
    compare(lambda x: ((y := x * 2).diagonal(), y.unfold(0, 2, 1)), R(4, 4))


def test_broadcast_output_of_a_symbolic_size_that_may_be_zero():
    # ATen's pooling has a stride 3 * Max(1, s - 2) here.
    compare(lambda x: F.adaptive_max_pool1d(x[:, 2:], 3).expand(2, 5, x.shape[1] - 2, 3), R(5, 7, 4), dynamic=True)


def test_strides_with_what_guards_make_numbers_of():
    compare(lambda x: (x.unflatten(2, (-1, 2)) + 1)[:, -3:], R(16, 6, 16, 5), dynamic=True)

    def two_names(x, w):
        y = F.conv1d(x, w).relu()
        return y, y.reshape(-1, 15)

    compare(two_names, R(2, 3, 17), R(4, 3, 3), dynamic=True)

    def windows(x, w):
        """The guard is on the stride, `Max(1, (s - 1)//2)`."""
        y = F.conv1d(x, w, stride=2).argmax(0)
        return y.index_add(1, torch.tensor([0, 0]), y.narrow(1, 0, 2)).unfold(0, 5, 1)

    compare(windows, R(3, 1, 5), R(8, 1, 3), dynamic=True)


def test_a_size_that_a_guard_fixes_is_fixed_everywhere():
    def f(x):
        y = torch.fmod(x, 0.3)
        return x.to(torch.int16).unflatten(0, (-1, 3)), F.group_norm(y, 1) * torch.remainder(y, x)

    compare(f, R(1, 4).abs().expand(3, 4) + 0.5, dynamic=True)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_tensors_with_another_diagonal_lie_as_before(dynamic):
    def f(x, y):
        z = x * 2
        z.diagonal()[torch.tensor([0, 2])] = 0.5
        return z, z.diagonal().trunc(), x.diagonal_scatter(y, 0, -1, 0)

    compare(f, R(3, 5, 4).transpose(0, 2), R(5, 3), dynamic=dynamic)


def test_outputs_share_memory_of_a_size_that_is_a_quotient():
    def f(x):
        y = (x * 2).roll(0)  # its last size is s1 * s1 // s1 to torch
        return y.flatten(), y.reshape(y.shape[2], -1)

    a, b = torch.compile(f, backend="mlirc", dynamic=True)(torch.randn(7, 5, 5))
    assert a.data_ptr() == b.data_ptr()


def test_broadcast_of_nothing():
    compare(lambda x: F.normalize(x, dim=1), R(3, 0, 4).requires_grad_())


def test_strides_of_nothing():
    """Eager's, where torch's description of the results has them."""

    def f(x, y):
        out = [x + 1, torch.zeros_like(x), x.new_zeros(0, 0, 3), x @ y[2:], F.pad(y, (-1, 0, -1, -1)), F.pad(y, (-1, 0)), y[:, 1:].t()]
        return *out, y[2:, 1:].reshape(5, 0)

    x, y = R(0, 0), R(2, 1)
    got = torch.compile(f, backend="mlirc", options={"strict": True})(x, y)
    assert [(tuple(t.shape), t.stride()) for t in got] == [(tuple(t.shape), t.stride()) for t in f(x, y)]


@pytest.mark.parametrize("dynamic", [False, True])
def test_rolled_channels_last(dynamic):
    def f(x):
        one = [x.roll(1, 1), x.roll((-1, 2), (2, 3)), x.roll(-3, -1), x.roll((1, -1), (1, 1)), x.roll((1, 1, 1), (2, 0, 3))]
        return *one, x.roll(0, 1), x.roll((1, 0), (1, 2)), x.roll(3), x[:, 1:, ::2].roll(1, 1), x.permute(0, 3, 1, 2).roll(1, 1)

    compare(f, LAST, dynamic=dynamic)
    compare(f, LAST.contiguous(), dynamic=dynamic)
    compare(f, R(2, 5, 3, 4, 6).to(memory_format=torch.channels_last_3d)[:, :, 1], dynamic=dynamic)
    compare(lambda x: (x.roll(1, 4), x.roll((1, 1), (1, 2))), R(2, 5, 3, 4, 6).to(memory_format=torch.channels_last_3d), dynamic=dynamic)
    compare(lambda x: F.conv2d(x, x.new_ones(4, 5, 2, 2)).roll((1, 2), (1, 3)).sin(), LAST.clone(), dynamic=dynamic, strides=False)


def test_dead_ops():
    compare(lambda x: x.cumsum(0)[:, :0] + 1, R(3, 4))
    assert kernels() == ["k00_copy"]
    compare(lambda x: x.index_add(0, torch.tensor([1]), x[:1])[:, :0] + 1, R(3, 4))


def test_replica_keeps_aliasing():
    x = R(10)
    a, b = replica((x[:5], x[3:]))
    a[4] = 7
    assert b[1] == 7
