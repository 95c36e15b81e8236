"""Tensors that kernels do not know: complex, sparse, quantised, nested, subclasses, meta and fake ones. Eager's result or an error."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from mlirc.tests.semantics.agree import agree, compiled

R = torch.randn


def C(*shape):
    return torch.randn(*shape, dtype=torch.complex64)


COMPLEX = {
    "arithmetic": (lambda x, y: (x * y + 1j, x / y, x.abs(), x.angle(), x - 2), C(4, 5), C(5)),
    "products": (lambda x, y: (x @ y, x.t() @ x.conj(), x.mH @ x), C(4, 5), C(5, 3)),
    "parts": (lambda x: (x.real * 2, x.imag + 1, torch.view_as_real(x), torch.view_as_real(x).sum(-1)), C(4, 5)),
    "made of reals": (lambda x: (torch.complex(x, x * 2) * 1j, torch.polar(x.abs(), x), torch.view_as_complex(x.reshape(-1, 2)) * 2), R(4, 6)),
    "conjugates": (lambda x: (x.conj() + 1, x.conj().t(), x.conj().imag, x.conj().sum(0), x.t()), C(4, 5)),
    "a conjugate as argument": (lambda x: (x * 2, x.real, x), C(4, 5).conj()),
    "a negated part as argument": (lambda x: (x * 2, x[1:]), C(4, 5).conj().imag),
    "fourier": (lambda x: (torch.fft.fft(x).abs(), torch.fft.irfft(torch.fft.rfft(x) * 2), torch.fft.fftshift(x)), R(4, 16)),
    "written": (lambda x, y: (x.mul_(y), x[1:].add_(1j), x.real.zero_()), C(4, 5), C(4, 5)),
    "rotary": (lambda x, f: torch.view_as_real(torch.view_as_complex(x.view(2, 3, 4, 2)) * f).flatten(2) + 1, R(2, 3, 8), C(3, 4)),
    "double": (lambda x: x.exp() + x.sum() * 1j, C(4).to(torch.complex128)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", COMPLEX)
def test_complex(name, dynamic):
    f, *args = COMPLEX[name]
    agree(f, *args, dynamic=dynamic)


def test_gradients_of_complex_numbers():
    agree(lambda x: (x * x.conj() + x.exp()).abs().sum(), C(5).requires_grad_())
    agree(lambda x: torch.fft.rfft(x).abs().square().sum(), R(8, requires_grad=True))


def same_or_error(f, *args, **kwargs):
    """Eager's result or an exception; a graph that cannot be compiled warns."""
    try:
        expected = f(*args)
    except RuntimeError:  # eager mode cannot do it either
        with pytest.raises(Exception):  # noqa: B017
            compiled(f, **kwargs)(*args)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            got = compiled(f, **kwargs)(*args)
        except Exception as e:
            assert str(e), type(e)
            return
    tree_map(lambda g, e: torch.testing.assert_close(plain(g), plain(e)), got, expected)


def plain(t):
    if not isinstance(t, torch.Tensor):
        return t
    t = t.dequantize() if t.is_quantized else t.to_dense() if t.layout != torch.strided and not t.is_nested else t
    return list(t.unbind()) if t.is_nested else t


def test_sparse():
    dense = R(6, 5) * (R(6, 5) > 0)
    for x in (dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr((2, 5))):
        same_or_error(lambda x, y: x @ y + 1, x, R(5, 3))
        same_or_error(lambda x: x * 2, x)
        same_or_error(lambda x: x.to_dense() + 1, x)
    same_or_error(lambda x: (x.to_sparse() @ x.t()) * 2, dense)
    embedding = nn.Embedding(7, 3, sparse=True)
    ours = compiled(lambda i: embedding(i).square().sum())
    i = torch.tensor([1, 4, 4])
    for f in (ours, lambda i: embedding(i).square().sum()):
        embedding.zero_grad()
        try:
            f(i).backward()
        except RuntimeError:
            continue
        torch.testing.assert_close(embedding.weight.grad.to_dense()[4], 4 * embedding.weight.detach()[4])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised():
    q = torch.quantize_per_tensor(R(4, 5), 0.1, 3, torch.quint8)
    same_or_error(lambda q: q.dequantize() * 2, q)
    same_or_error(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize() + 1, R(4, 5))
    agree(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 2, 0, 255) * 2, R(4, 5))
    agree(lambda x: torch.fake_quantize_per_channel_affine(x, torch.ones(4) * 0.2, torch.zeros(4, dtype=torch.int32), 0, -8, 7), R(4, 5))
    agree(lambda x, w: torch._int_mm(x, w) * 2, torch.randint(-9, 9, (32, 16), dtype=torch.int8), torch.randint(-9, 9, (16, 24), dtype=torch.int8))


def test_nested():
    parts = [R(n, 5) for n in (2, 4, 3)]
    for layout in (torch.strided, torch.jagged):
        same_or_error(lambda x: x * 2 + 1, torch.nested.nested_tensor(parts, layout=layout))
        same_or_error(lambda x, w: (x @ w).sin(), torch.nested.nested_tensor(parts, layout=layout), R(5, 3))
    same_or_error(lambda x: torch.nested.to_padded_tensor(x, 0.0) + 1, torch.nested.nested_tensor(parts, layout=torch.jagged))
    x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    same_or_error(lambda x: torch.autograd.grad(x.exp().values().sum(), x)[0].values(), x)


@pytest.mark.parametrize("name", ["pointwise", "linear", "softmax", "reduction", "made inside", "padded"])
def test_jagged(name):
    """Nested tensors with one uneven dim, whose size is no number."""
    w = R(5, 3)
    f = {
        "pointwise": lambda x: (x + x.sin()) * 2,
        "linear": lambda x: F.gelu(x @ w),
        "softmax": lambda x: torch.softmax(x, -1),
        "reduction": lambda x: x.detach().sum(1) + 1,  # torch has no derivative
        "made inside": lambda x: torch.nested.nested_tensor_from_jagged(x.values() * 2, x.offsets()).cos(),
        "padded": lambda x: torch.nested.to_padded_tensor(x, 0.5) + 1,
    }[name]
    ours = compiled(f)
    for lengths in ((2, 4, 3), (2, 4, 3), (1, 7)):
        parts = [R(n, 5) for n in lengths]
        x, y = (torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True) for _ in range(2))
        got, expected = ours(x), f(y)
        a, b = (t.values() if t.is_nested else t for t in (got, expected))
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert got.is_nested == expected.is_nested and (not got.is_nested or torch.equal(got.offsets(), expected.offsets()))
        if a.requires_grad:
            a.square().sum().backward()
            b.square().sum().backward()
            torch.testing.assert_close(x.grad.values(), y.grad.values(), rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            got = ours(x)
            torch.testing.assert_close(got.values() if got.is_nested else got, b, rtol=1e-4, atol=1e-5)


class Doubled(torch.Tensor):
    """A subclass whose numbers are twice those it holds."""

    @staticmethod
    def __new__(cls, half):
        return torch.Tensor._make_wrapper_subclass(cls, half.shape, strides=half.stride(), dtype=half.dtype, requires_grad=half.requires_grad)

    def __init__(self, half):
        self.half_of_it = half

    def __repr__(self):
        return f"Doubled({self.half_of_it})"

    def __tensor_flatten__(self):
        return ["half_of_it"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Doubled(inner["half_of_it"])

    @classmethod
    def __torch_dispatch__(cls, op, types, args, kwargs=None):
        args, kwargs = tree_map(lambda t: t.half_of_it * 2 if isinstance(t, Doubled) else t, (args, kwargs or {}))
        return tree_map(lambda t: Doubled(t / 2) if isinstance(t, torch.Tensor) and t.is_floating_point() else t, op(*args, **kwargs))


class Labelled(torch.Tensor):
    """A subclass that only has an attribute more, and a function of its own."""

    @classmethod
    def __torch_function__(cls, op, types, args=(), kwargs=None):
        out = super().__torch_function__(op, types, args, kwargs)
        return out + 100 if op is torch.sin else out


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        return op(*args, **(kwargs or {}))


def test_subclasses():
    x = R(4, 5)
    f = lambda x: (x * 3 + 1, x.sum(0))  # noqa: E731
    got, expected = compiled(f)(Doubled(x)), f(Doubled(x))
    assert all(type(g) is type(e) is Doubled for g, e in zip(got, expected))
    for g, e in zip(got, expected):
        torch.testing.assert_close(g.half_of_it, e.half_of_it)
    ours = compiled(f)
    torch.testing.assert_close(ours(x), f(x))
    torch.testing.assert_close(ours(Doubled(x))[1].half_of_it, f(Doubled(x))[1].half_of_it)
    labelled = x.as_subclass(Labelled)
    same_or_error(lambda x: torch.sin(x) * 2, labelled)
    with Counting():
        torch.testing.assert_close(compiled(f)(x), f(x))
    p = nn.Parameter(R(3))
    agree(lambda x: x + 1, p)
    buffer = nn.Buffer(R(3))
    agree(lambda x: x + 1, buffer)


def test_meta_and_fake():
    f = lambda x: (x @ x.t()).softmax(-1) + 1  # noqa: E731
    ours = compiled(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = ours(torch.empty(4, 5, device="meta"))
    assert got.device.type == "meta" and got.shape == (4, 4)
    agree(f, R(4, 5), ours=ours)
    with FakeTensorMode() as mode, warnings.catch_warnings():
        warnings.simplefilter("error")
        x = mode.from_tensor(R(4, 5))
        assert ours(x).shape == (4, 4)
    agree(f, R(4, 5), ours=ours)


def test_fake_weights():
    """A module of fake weights shares the compilation of one that has weights, or is given a fake argument."""
    net = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24))
    ours = compiled(lambda net, x: net(x))
    x = R(5, 24)
    with torch.no_grad():
        torch.testing.assert_close(ours(net, x), net(x))
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert ours(net, mode.from_tensor(x)).shape == (5, 24)
        with FakeTensorMode() as mode:
            other = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24))
            assert isinstance(ours(other, mode.from_tensor(x)), FakeTensor)
        torch.testing.assert_close(ours(net, x), net(x))


def test_other_devices_are_the_default():
    """`with torch.device(...)` is in force while a compiled function runs, and while it is compiled."""

    def f(x):
        y = x * 2 + torch.arange(4, device="cpu")
        return y, y[1:], y.view(torch.int32), y.sort(0)[0].exp(), torch.linalg.svdvals(x).cumsum(0), y.sum(0)[:0]

    x = R(5, 4)
    for dynamic in (False, True):
        ours = agree(f, x, dynamic=dynamic)
        with torch.device("meta"):
            got = ours(x)
            again = compiled(lambda x: f(x), dynamic=dynamic)(x)
        torch.testing.assert_close(got, f(x))
        torch.testing.assert_close(again, f(x))
    noise = compiled(lambda x: F.dropout(x, 0.5) + torch.rand_like(x))
    with torch.device("meta"):
        assert noise(x).device.type == "cpu"
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.GELU(), nn.Linear(6, 2))
    ours = compiled(net)
    with torch.device("meta"):
        ours(x).sum().backward()
    assert net[0].weight.grad.device.type == "cpu"


def test_meta_tensors_made_inside():
    f = lambda x: (x + 1, torch.ones(3) * 2, torch.zeros(2, 3, device="meta").sum(0))  # noqa: E731
    ours, x = compiled(f), R(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for device in ("cpu", "meta", "cpu"):
            with torch.device(device):
                y, made, meta = ours(x)
            assert (y.device.type, made.device.type, meta.device.type) == ("cpu", device, "meta")
            torch.testing.assert_close(y, x + 1)


SMALL = [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("dtype", SMALL, ids=lambda d: str(d)[6:])
def test_storage_only_types(dtype):
    x = (R(4, 6).abs() * 3).to(dtype)
    agree(lambda x: (x.float() * 2, x.t(), x[1:], x.clone(), x.view(torch.uint8 if dtype.itemsize == 1 else dtype), (x.float() + 1).to(dtype)), x)


def test_numpy_arrays_as_arguments():
    def f(x):
        return x * 2 + 1

    a = R(4, 5).numpy()
    got = compiled(f)(a)
    assert type(got) is type(a) and (got == f(a)).all()


def test_tensors_without_memory():
    """Zeros that automatic differentiation passes, and storages that have been freed."""
    ours = compiled(lambda x: x.exp() + 1)
    ours(R(3, 4))
    zeros = torch._efficientzerotensor((4,))
    for z in (zeros.expand(3, 4), torch._efficientzerotensor((3, 4))):
        assert torch.equal(ours(z), torch.full((3, 4), 2.0))
    x = R(3, 4)
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="freed"):
        ours(x)
    write = compiled(lambda x: x.add_(1))
    write(R(4))
    with pytest.raises(RuntimeError, match="immutable"):
        write(zeros)
