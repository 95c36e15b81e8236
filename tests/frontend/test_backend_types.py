"""Ops over all element types, and over what floats can hold besides numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.tests.frontend.compare import compare, left_to_aten

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
ALL = [*FLOATS, *INTEGERS, torch.bool]


def ids(dtype):
    return str(dtype).split(".")[1]


def make(dtype, *shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    return torch.randint(0 if dtype == torch.uint8 else -5, 6, shape, dtype=dtype, generator=generator)


def elementwise(x, y):
    out = [x + y, x * y, x < y, x == y, torch.where(x > y, x, y), torch.maximum(x, y), x + 1, x * 2.5, x / 3, x + True, -1 * x]
    out += [x.masked_fill(y > 0, 1), x.to(torch.int8), x.to(torch.int64), x.to(torch.bool), x.to(torch.float32), x.to(torch.bfloat16)]
    if x.dtype != torch.bool:
        out += [x.abs(), x.clamp(0, 3), x.sign(), x.square(), x**3, 3 - x]
        if x.dtype != torch.uint8:
            out.append(-x)
    if not x.dtype.is_floating_point:
        out += [x & y, x | y, x ^ y, ~x, x.double(), x.half()]
    if x.dtype in INTEGERS:
        out += [x << (y & 3), x >> (y & 3), x.abs().sqrt()]
    return out


def divisions(x, y):
    y = y.abs() + 1
    whole = [torch.div(x, y, rounding_mode=m) for m in ("floor", "trunc")]
    return [x / y, *whole, x % y, torch.remainder(x, -3) if x.dtype != torch.uint8 else x, torch.fmod(x, y)]


def reductions(x):
    out = [x.sum(), x.sum(0), x.sum(-1), x.any(), x.all(1), x.amax(1), x.amin(0), x.max(), x.min(), x.any(0)]
    if x.dtype != torch.bool:
        out += [x.prod(1), *x.max(1), x.argmax(1), x.argmin(), x.argmin(0)]
    return out


def moves(x, y, i):
    out = [torch.cat([x, y]), torch.cat([x, y], 1), torch.stack([x, y], 1), F.pad(x, (1, 2, 3, 0)), F.pad(x, (-1, 2))]
    out += [x[2:9, ::3].clone(), x.flip(0), x.roll(3, 1), x[:, [1, 5, 5]], x.gather(1, i), x[i[:, 0]], x.index_select(1, i[0])]
    return [*out, F.embedding(i, x), x.tril(), x.triu(1), x.t().contiguous(), x.repeat(2, 1), x.cumsum(1)]


def products(x, y, v, a, b):
    return x @ y, v @ y, x @ v, a @ b


def norms(x, v):
    out = [x.softmax(-1), x.log_softmax(0), x.logsumexp(1), F.layer_norm(x, (33,), v, v), F.rms_norm(x, (33,), v)]
    return [*out, x.mean(), x.var(1), x.std(0), x.norm(), *torch.var_mean(x, 1), F.group_norm(x.view(17, 3, 11), 3)]


def activations(x, y):
    out = [F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), x.sigmoid(), x.tanh(), F.elu(x), F.leaky_relu(x), F.softplus(x)]
    out += [F.hardswish(x), F.mish(x), x.exp(), (x.abs() + 0.1).log(), x.sin(), x.cos(), x.erf(), x.expm1(), x.rsqrt(), x.reciprocal()]
    return [*out, torch.lerp(x, y, 0.3), torch.addcmul(x, x, y, value=0.5), x.round(), x.floor(), x.frac()]


def images(x, w, d, g, b):
    out = [F.conv2d(x, w, b, padding=1, stride=2), F.conv2d(x, d, padding=1, groups=6), F.conv2d(x, g, groups=3)]
    out += [F.conv_transpose2d(x, w.transpose(0, 1), stride=2, padding=1), F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2)]
    out += [F.adaptive_avg_pool2d(x, 3), F.interpolate(x, scale_factor=2), F.interpolate(x, size=(7, 13), mode="bilinear")]
    return [*out, F.batch_norm(x, x[0, :, 0, 0], x[0, :, 0, 0].abs() + 0.5), F.instance_norm(x)]


@pytest.mark.parametrize("dtype", ALL, ids=ids)
def test_elementwise(dtype):
    compare(elementwise, make(dtype, 17, 33), make(dtype, 17, 33, seed=1))
    assert left_to_aten() == []


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=ids)
def test_divisions(dtype):
    compare(divisions, make(dtype, 17, 33), make(dtype, 17, 33, seed=1))


@pytest.mark.parametrize("dtype", ALL, ids=ids)
def test_reductions(dtype):
    compare(reductions, make(dtype, 17, 33))
    compare(reductions, make(dtype, 3, 70))


@pytest.mark.parametrize("dtype", ALL, ids=ids)
def test_moves(dtype):
    compare(moves, make(dtype, 17, 33), make(dtype, 17, 33, seed=1), torch.randint(0, 17, (17, 5)))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=ids)
def test_products(dtype):
    args = (17, 33), (33, 70), (33,), (3, 5, 9), (3, 9, 7)
    compare(products, *(make(dtype, *shape, seed=n) for n, shape in enumerate(args)))


@pytest.mark.parametrize("dtype", FLOATS, ids=ids)
def test_norms(dtype):
    compare(norms, make(dtype, 17, 33), make(dtype, 33, seed=1))


@pytest.mark.parametrize("dtype", FLOATS, ids=ids)
def test_activations(dtype):
    compare(activations, make(dtype, 17, 33), make(dtype, 17, 33, seed=1))
    assert left_to_aten() == []


@pytest.mark.parametrize("dtype", FLOATS, ids=ids)
def test_images(dtype):
    shapes = (2, 6, 9, 11), (4, 6, 3, 3), (6, 1, 3, 3), (9, 2, 3, 3), (4,)
    compare(images, *(make(dtype, *shape, seed=n) for n, shape in enumerate(shapes)), strides=False)
    assert left_to_aten() == []


def test_promotion():
    x = {d: make(d, 5, 7, seed=n) for n, d in enumerate(ALL)}

    def mixed(*xs):
        return [a + b for a in xs for b in xs if a.dtype != b.dtype] + [a * b[0, 0] for a in xs for b in xs]

    compare(mixed, *(x[d] for d in (torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool)))
    compare(mixed, *(x[d] for d in (torch.float64, torch.bfloat16, torch.int8, torch.int32)))


NAN, INF = float("nan"), float("inf")
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1e-40, -1e-40, 1e38, -1e38, 1.0, 3e-45, -1.0, 0.5, -2.5, 88.8, -104.0, 1e-7, 1e10]

UNARY = "exp log sin cos tanh sigmoid sqrt rsqrt relu abs neg reciprocal erf floor ceil round trunc sign log1p expm1".split()
UNARY += "isnan isinf isfinite signbit square atan tan sinh cosh asin acos asinh acosh atanh log2 log10 exp2 erfc".split()


@pytest.mark.parametrize("dtype", FLOATS, ids=ids)
def test_special_values(dtype):
    x = torch.tensor(SPECIAL * 2, dtype=torch.float64).to(dtype)
    finite = (x.isfinite() & (x.abs() < 1e9)).tolist()
    compare(lambda x: [getattr(torch, n)(x) for n in UNARY if n not in ("sin", "cos", "tan")], x)
    compare(lambda x: [getattr(torch, n)(x) for n in ("sin", "cos", "tan")], x[finite])
    compare(lambda x: [F.gelu(x), F.silu(x), F.softplus(x), F.elu(x), F.mish(x), x.clamp(-1, 1), x.nan_to_num(), x.clamp_min(0.5)], x)


BINARY = "maximum minimum fmax fmin atan2 pow copysign add sub mul div remainder fmod lt le eq ne floor_divide".split()


@pytest.mark.parametrize("dtype", FLOATS, ids=ids)
def test_pairs_of_special_values(dtype):
    x = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    compare(lambda x: [getattr(torch, n)(x[:, None], x[None]) for n in BINARY], x)


@pytest.mark.parametrize("dtype", FLOATS, ids=ids)
def test_reductions_of_special_values(dtype):
    x = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    rows = torch.stack([x, x.roll(1), x.nan_to_num(0.5, 2, -2), torch.full_like(x, -INF), torch.full_like(x, NAN), x.abs()])
    compare(lambda x: (x.amax(1), x.amin(1), x.argmax(1), x.argmin(1), *x.max(1), x.sum(1), x.amax(0), x.sum(0)), rows)
    compare(lambda x: (x.softmax(1), x.log_softmax(1), x.logsumexp(1), x.softmax(0)), rows[1:])
    compare(lambda x: (x * x, x.sum(), x.sum(1), x.mean(), x.norm()), torch.full((33, 40), 300.0).to(dtype))


def test_integers_wrap():
    for dtype in INTEGERS:
        info = torch.iinfo(dtype)
        x = torch.tensor([info.min, info.max, info.min + 1, info.max - 1, 0, 1] * 6, dtype=dtype)
        compare(lambda x: (x + x, x * x, -x, x.sum(), x.prod(), x.abs(), x.float(), x.max(), x.min(), x // 2, x % 7, x >> 1), x)


def test_floats_to_integers():
    x = torch.tensor([0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 126.9, -127.9, 99.99])
    for dtype in INTEGERS[2:]:
        compare(lambda x, dtype=dtype: x.to(dtype), x)
    compare(lambda x: (x.to(torch.int8), x.abs().to(torch.uint8), x.to(torch.bool)), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_floats_to_bytes_wrap(dtype: torch.dtype) -> None:
    """By way of int64, as eager's: of what int32 has no room for, too."""
    x = torch.tensor([255.9, 256.0, 300.7, -1.0, -5.5, -300.0, 2.0**31, -(2.0**31) - 256, 3e9, -3e9, 2.0**32 + 512, 1e20, float("inf"), float("nan")])
    x = x.repeat(3).to(dtype)
    assert torch.equal(torch.compile(lambda x: x.to(torch.uint8), backend="mlirc")(x), x.to(torch.uint8))
    for number in (3e9, -1e10, float("inf")) if dtype in (torch.float32, torch.float64) else ():  # LLVM knows it
        f = lambda y: torch.full((6,), number, dtype=dtype).to(torch.uint8) + y  # noqa: E731, B023
        torch._dynamo.reset()
        assert torch.equal(torch.compile(f, backend="mlirc")(torch.arange(6, dtype=torch.uint8)), f(torch.arange(6, dtype=torch.uint8)))


@pytest.mark.parametrize(
    "f, dtype",
    [
        (lambda x: x.clamp(-1000, 1000), torch.int8),
        (lambda x: x.clamp(max=300), torch.uint8),
        (lambda x: x.clamp(-1e6, 1e6), torch.float16),
        (lambda x: x.masked_fill(x > 0, 300), torch.int8),
        (lambda x: x.masked_fill(x > 0, -1e9), torch.float16),
        (lambda x: x.masked_fill(x > 0, 1e300), torch.float32),
    ],
)
def test_numbers_that_a_type_does_not_hold(f, dtype):
    """An error as in eager mode, and no wrapped number."""
    x = make(dtype, 3, 5)
    for g in (f, torch.compile(f, backend="mlirc", options={"strict": True})):
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match="overflow"):
            g(x)


def test_numbers_that_a_type_just_holds():
    for dtype in (*FLOATS, *INTEGERS):
        info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        compare(lambda x, info=info: (x.clamp(info.min, info.max), x.masked_fill(x > 0, info.min), x.clamp(max=float("inf"))), make(dtype, 3, 5))
