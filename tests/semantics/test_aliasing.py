"""Outputs that are views of inputs, of each other, of intermediates; results that outlive later calls; odd inputs in memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from mlirc.tests.semantics.agree import agree, compiled

R = torch.randn
MODES = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])


def views_of_input(x):
    return x, x[1:], x[:, ::2], x.t(), x.reshape(-1), x.view(-1, 2)[1:], x.unsqueeze(0).expand(3, -1, -1), x.diagonal(), x[1, 2]


def views_of_intermediate(x):
    y = x.exp()
    return y, y[1:], y[:, ::2], y.t(), y.view(-1), y.diagonal(), y[0].expand(4, -1), y.detach()


def only_parts_of_intermediate(x):
    y, z, w = x.exp(), x * 2, x - 1
    return y[1:], z[:, ::2], z[:, 1::2], w[2]


def repeated(x):
    y = x + 1
    return [y, y], {"again": y, "view": y.t(), "input": x}, (x, x)


def written_and_returned(x):
    x.mul_(2)
    y = x + 1
    y[0] = 5
    x[:, 1] = y[:, 2]
    return x, x[1:], y, y.t(), x.t()[::2], y[:, 1::2]


def split(x):
    y = x.cos()
    return y.chunk(3), x.split(2), torch.unbind(y, 1)[:2]


def windows(x):  # not with gradients: AOTAutograd's as_strided adds up those of overlapping windows wrongly
    y = x.cos()
    return y.unfold(0, 2, 1), x.unfold(1, 2, 2)


def as_other_type(x):
    y = x + 1
    return x.view(torch.int32), y.view(torch.int32), y, x.view(torch.uint8)


def shuffles_that_change_nothing(x):
    """ATen's are copies all the same."""
    x = x[:6, :4].unflatten(0, (1, 2, 3))
    return F.channel_shuffle(x, 2), F.pixel_shuffle(x, 1), F.pixel_unshuffle(x, 1)


def parts_of_what_is_written(x):
    column = x[1:, -1]
    first, rest = torch.split(column, [1, column.shape[0] - 1])
    rest[1] = 3
    return first, rest.unbind()[1], column.tensor_split(2)[1], first.flatten(0)


FUNCTIONS = [views_of_input, views_of_intermediate, only_parts_of_intermediate, repeated, written_and_returned, split, windows, as_other_type, shuffles_that_change_nothing, parts_of_what_is_written]


@pytest.mark.sampled
@MODES
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_views(f, dynamic):
    agree(f, R(6, 4), dynamic=dynamic)


@pytest.mark.parametrize("f", [views_of_input, views_of_intermediate, only_parts_of_intermediate, repeated, split], ids=lambda f: f.__name__)
def test_views_with_gradients(f):
    agree(f, R(6, 4, requires_grad=True))


@MODES
def test_gapped_view_of_an_input_that_is_written(dynamic):
    """Inputs with gaps, offsets, in other orders; the views that are returned have gaps themselves."""

    def f(x):
        x.add_(1)
        return x[::2, 1:], x.t()[1:], x[1:][:, ::3], x

    base = R(12, 14)
    for x in (base, base[1:, 3:], base[::2, ::2], base.t()[2:], base.as_strided((5, 6), (13, 2), 7)):
        agree(f, x, dynamic=dynamic)


def test_gapped_view_of_an_input_that_is_written_needs_gradients():
    def f(x, w):
        x.mul_(w)
        return x[::2], x.t()[1:], x.sum()

    agree(lambda a, w: f(a * 1, w), R(6, 4, requires_grad=True), R(4, requires_grad=True))
    agree(f, R(6, 4), R(4, requires_grad=True))


@MODES
def test_a_view_of_an_input_that_is_written_transposed(dynamic):
    """What is written to x is a transposed sum; the view is one of x, not of the sum."""

    def f(x, w):
        x.transpose(1, 0).add_(2.0)
        return x.expand(1, *x.shape).select(1, 1), x[1:], x.t()[1:], (x * w).sum()

    agree(f, R(3, 3), R(3, 3), dynamic=dynamic)
    agree(f, R(3, 3), R(3, 3, requires_grad=True), dynamic=dynamic)


@MODES
def test_a_copy_that_torch_takes_for_a_view_of_an_input_that_is_written(dynamic):
    """AOTAutograd flattens the tensor without gaps that its functional graph writes to; aot_eager's second output is wrong."""

    def f(x, end):
        x.index_add_(0, torch.tensor([0, 0]), x[:2])
        y = x.transpose(0, 0)
        return -y, end(y.flatten(0))

    def gapped():
        return torch.arange(9.0).view(3, 3)[..., ::2]

    with pytest.raises(RuntimeError, match=r"copy in eager mode.*an input with strides \[3, 2\].*\.clone\(\)"):
        torch.compile(f, backend="mlirc", dynamic=dynamic)(gapped(), lambda y: y)
    got = torch.compile(f, backend="mlirc", dynamic=dynamic)(gapped(), torch.clone)
    assert all(torch.equal(a, b) for a, b in zip(got, f(gapped(), torch.clone)))


@MODES
def test_a_view_of_the_input_at_an_offset(dynamic):
    """AOTAutograd makes these views again, from memory that starts elsewhere than in the functional graph."""

    def f(x, n):
        x.add_(1)
        return x[1:3], x.view(-1)[x.shape[1] :], x[:n]

    for offset in (0, 1, 3):
        agree(f, R(35 + offset)[offset:].view(5, 7), 2, dynamic=dynamic)


def test_storage_offsets_that_change():
    base = torch.arange(20.0)
    f = agree(lambda x: x.as_strided((3,), (1,), 0) * 2, base[2:10])
    for x in (base[:10], base[3:12], base[2:10]):
        agree(lambda x: x.as_strided((3,), (1,), 0) * 2, x, ours=f)
    f = agree(lambda x: x.as_strided((2, 3), (4, 2)) + 1, base[2:15])
    for x in (base[:13], base[5:18]):
        agree(lambda x: x.as_strided((2, 3), (4, 2)) + 1, x, ours=f)


class Strided(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x)
        return x[:5] * w

    @staticmethod
    def backward(ctx, g):
        return None, ctx.saved_tensors[0].as_strided((5,), (2,), 1) * g


@torch._dynamo.allow_in_graph
def strided(x, w):
    return x.as_strided((5,), (2,), 3) * w


HIDDEN = {
    "backward": Strided.apply,
    "checkpoint": lambda x, w: checkpoint(lambda x, w: x.as_strided((5,), (2,), 3) * w, x, w, use_reentrant=False),
    "function": strided,
}


@pytest.mark.parametrize("name", HIDDEN)
def test_storage_offsets_that_change_where_dynamo_does_not_look(name):
    base = torch.arange(60.0)
    ours = compiled(lambda x, w: HIDDEN[name](x, w))
    for w in (R(5), R(5, requires_grad=True)):
        for first in (0, 2, 9, 30, 0):
            agree(HIDDEN[name], base[first : first + 20], w, ours=ours)


CUTS = [lambda x: x.t()[2:], lambda x: x[1:4, 3:], lambda x: x[:, ::2]]


@pytest.mark.sampled
@MODES
@pytest.mark.parametrize("cut", [CUTS[0], CUTS[1], pytest.param(CUTS[2], marks=pytest.mark.sweep)], ids=["columns", "corner", "every second"])
def test_views_of_an_intermediate_with_gaps(cut, dynamic):
    """A scatter copies the gaps of an input."""

    def f(x, w):
        y = x.slice_scatter(x[1:] * 2, 0, 1)
        return y, y[0], y.t(), y[1:, ::2], w * 2

    def without(x, w):
        return f(x, w)[1:]

    def single(x, w):
        return f(x, w)[3:]

    for g in (f, without, single):
        for needs in ((False, False), (False, True), (True, True)):
            agree(g, cut(R(6, 8, requires_grad=needs[0])), R(4, requires_grad=needs[1]), dynamic=dynamic)


@MODES
@pytest.mark.parametrize("needs", [False, True], ids=["inference", "training"])
def test_conjugates_of_an_intermediate(needs, dynamic):
    """Views, like others: what is written to one of them is seen in the others."""

    def f(x):
        y = x * 2
        return y, y.conj(), y.mH[1:], y.conj().imag, y.real[:, ::2], y.imag, y.conj()[2]

    def without(x):
        return f(x)[1:]

    for dtype in (torch.complex64, torch.complex128, torch.float32):
        for g in (f, without) if dtype.is_complex else (lambda x: (x * 2, (x * 2).conj()),):
            ours = agree(g, R(3, 4, dtype=dtype, requires_grad=needs), dynamic=dynamic)
        if not needs and dtype.is_complex:
            x = R(3, 4, dtype=dtype)
            expected, got = without(x), ours(x)
            assert [(t.is_conj(), t.is_neg()) for t in got] == [(t.is_conj(), t.is_neg()) for t in expected]
            for views in (expected, got):
                views[0].mul_(5j)
            torch.testing.assert_close(got, expected)


def test_views_of_an_input_that_moves():
    """A graph of views alone, compiled for an input at one offset of its storage and called with others."""

    def f(x):
        return x[1:, ::2], x.t(), x.view(-1)[3:].unflatten(0, (3, 3)), x[2].expand(5, -1)

    base = torch.arange(40.0)
    ours = agree(f, base[2:14].view(3, 4))
    for first in (0, 2, 7):
        x = base[first : first + 12].view(3, 4)
        agree(f, x, ours=ours)
        assert all(v.untyped_storage().data_ptr() == base.untyped_storage().data_ptr() for v in ours(x))
    x = torch.randn(4, 6, dtype=torch.complex64)
    for g in (lambda x: (x.conj().t(), x.real[1:]), lambda x: (x.conj().imag[:, 1:], x[1:].conj())):
        agree(g, x)
        agree(g, x.conj())


def test_results_keep_their_values():
    """Nothing that a call returned changes in later calls, and nothing points into memory that is reused."""
    f = compiled(lambda x: (x @ x.t(), x.exp()[1:], x.softmax(-1).t(), x.sort()[0], torch.cat([x, x]).split(20)))
    held = []
    for n in range(6):
        x = R(20, 20) + n
        held.append((f(x), [t.clone() for t in torch.utils._pytree.tree_leaves(f(x))]))
    for out, copies in held:
        for t, c in zip(torch.utils._pytree.tree_leaves(out), copies):
            assert torch.equal(t, c)
    for t in torch.utils._pytree.tree_leaves(held[0][0]):
        t.fill_(7)  # results are the caller's, to write to
    again = torch.utils._pytree.tree_leaves(f(x))
    assert all(torch.equal(t, c) for t, c in zip(again, held[-1][1]))
    assert all(torch.equal(t, c) for t, c in zip(torch.utils._pytree.tree_leaves(held[1][0]), held[1][1]))


def test_results_as_arguments():
    """A result that comes back as an argument, and is then overwritten by that call."""

    def f(x, y):
        y.copy_(x * 2 + y)
        return x + y, y[1:]

    ours = compiled(f)
    state, other = R(6, 5), R(6, 5)
    a, b = (state.clone(), other.clone()), (state.clone(), other.clone())
    for _ in range(4):
        x, part = ours(*a)
        a = (x, a[1])
        e, expected = f(*b)
        b = (e, b[1])
        torch.testing.assert_close((x, part), (e, expected))


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
def test_storage_offsets_of_one_element(dtype):
    """Addresses that are aligned for one element and no more: elementwise, reduced, multiplied, written, returned."""

    def f(x, y, w):
        x.copy_(y.flip(0))
        out = [x + y, x.sum(0), y.amax(1), y.t().contiguous(), torch.cat([x, y])]
        if dtype != torch.bool:
            out.append(x @ w)
        return out

    def odd(*shape):
        n = shape[0] * shape[1]
        values = R(n + 1) * 3
        return (values > 0 if dtype == torch.bool else values.to(dtype))[1:].view(shape)

    torch.manual_seed(0)
    agree(f, odd(37, 33), odd(37, 33), odd(33, 40), calls=1)


@MODES
def test_strides_of_outputs(dynamic):
    """Memory formats go through as in eager mode."""
    image = R(2, 6, 5, 7).to(memory_format=torch.channels_last)
    conv = torch.nn.Conv2d(6, 4, 3, padding=1).requires_grad_(False)

    def f(x, y):
        z = x * 2
        return z, x + y, y + x, conv(x), z.permute(0, 2, 3, 1), torch.relu(x).flatten(2), z.mean((2, 3), keepdim=True), x.clone(), \
            torch.nn.functional.max_pool2d(x, 2), torch.cat([x, x], 1), x.to(torch.float64), torch.empty_like(x).fill_(1)  # fmt: skip

    agree(f, image, image.contiguous() if not dynamic else image.clone(), dynamic=dynamic)
    volume = R(1, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d)
    agree(lambda x: (x + 1, x.transpose(1, 2) * 2, x.contiguous(), x.sum(1)), volume, dynamic=dynamic)
    agree(lambda x: (x + 1, x.t() + 1, x * x[:1], x.exp().t(), torch.zeros_like(x)), R(7, 5).t(), dynamic=dynamic)


@MODES
def test_views_of_what_is_detached_have_no_gradient(dynamic):
    def f(x):
        y, z = x.exp(), x.cos()
        return y.detach()[0], y[1], y, y[1:].detach().t()[1:], y.detach(), z[0].detach(), z[1], z.t().detach()

    agree(f, R(4, 3).requires_grad_(), dynamic=dynamic)
    agree(f, R(4, 3), dynamic=dynamic)


@MODES
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[1:], lambda x: x.t(), lambda x: x.expand(1, 3, 2), lambda x: x[:, None].expand(3, 4, 2), lambda x: x.view(-1)])
def test_windows_onto_what_lies_between_the_elements(view, dynamic):
    """Of an input, and of an intermediate."""
    agree(lambda x: -view(x).as_strided((2, 2), (1, 2), 0), R(3, 4)[:, ::2], dynamic=dynamic)
    agree(lambda x: -view(x.exp()[:, ::2]).as_strided((2, 2), (1, 2), 0), R(3, 4), dynamic=dynamic)


def test_outputs_that_are_arguments_or_constants():
    agree(lambda x: x, R(3))
    agree(lambda x, y: (y, x), R(3), R(4))
    agree(lambda x: (None, 3, "text", x.shape, x.dtype, [x, (x + 1, {})]), R(3))
    agree(lambda x: torch.ones(2, 3), R(3))
    agree(lambda x: x.detach(), R(3))
    agree(lambda x: (torch.arange(5), x[0:0], x.new_zeros(0, 4)), R(3))


def test_scalars_and_empty_tensors():
    agree(lambda x, y: (x + y, x * 2, y.sum(), x.add_(1), x[None], y.reshape(())), torch.tensor(2.0), torch.tensor([3.0]))
    agree(lambda x: (x + 1, x.sum(), x.t(), x @ x.t(), x.add_(1), torch.cat([x, x])), R(0, 4))
    agree(lambda x: (x.exp(), x.amax(1), x.softmax(0)), R(4, 0, 3).transpose(0, 1).contiguous()[:0])


def test_views_of_inputs_beside_ops_with_effects(noted):
    """Tokens are the first inputs and outputs of such a graph."""

    def f(x, y, w):
        before = noted(x)
        x.add_(1)
        return before, x.t(), y.view(-1), noted(y * 2), y, y[1:], w * w, w.t()

    for dynamic in (False, True):
        agree(f, R(3, 4), R(5, 4), R(3, 3), dynamic=dynamic)
        agree(f, R(3, 4), R(5, 4), R(3, 3, requires_grad=True), dynamic=dynamic)


@pytest.fixture
def noted():
    """An op with an effect."""
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    @torch.library.custom_op("mlirc_test::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    noted.register_fake(torch.empty_like)
    op = torch.ops.mlirc_test.noted.default
    handle = _register_effectful_op(op, _EffectType.ORDERED)
    yield op
    handle.destroy()
