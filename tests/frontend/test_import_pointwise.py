"""Elementwise ops against eager mode: special values, every dtype, type promotion, integer division."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.tests.frontend.compare import OPTIONS
from mlirc.tests.frontend.elementwise import expressions, function, matches

SWEEP = pytest.mark.sweep
FLOATS = [torch.float32, torch.bfloat16, *(pytest.param(d, marks=SWEEP) for d in (torch.float16, torch.float64))]
INTEGERS = [torch.uint8, torch.int32, torch.int64, *(pytest.param(d, marks=SWEEP) for d in (torch.int8, torch.int16))]
INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([0.0, -0.0, 1, -1, INF, -INF, NAN, 2.5, -2.5, 0.5, 1.5, -0.5, 3e37, -3e37, 100, -100, 7])

UNARY = (
    "abs acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad erf erfc exp exp2 expm1 floor isfinite isinf isnan isneginf isposinf "
    "log log10 log1p log2 logical_not nan_to_num neg reciprocal relu round rsqrt sgn sigmoid sign signbit sin sinh sqrt square tan "
    "tanh trunc"
).split()
BINARY = (
    "add sub mul div floor_divide remainder fmod pow maximum minimum fmax fmin atan2 copysign eq ne lt le gt ge logical_and "
    "logical_or logical_xor rsub"
).split()


def named(names):
    functions = [getattr(torch, n) for n in names]
    return lambda *args: [f(*args) for f in functions]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unary(dtype):
    matches(named([*UNARY, "frac"]), torch.cat([SPECIAL, torch.randn(31) * 3]).to(dtype), factor=4)


CONSTANTS = (0.0, -0.0, -1.0, 2.5, INF, NAN)


def test_unary_of_constants():
    """What MLIR and LLVM compute themselves."""
    matches(lambda x: [torch.stack([getattr(torch, n)(torch.full_like(x, v)) for v in CONSTANTS]) for n in UNARY], torch.ones(3), factor=4)


def test_binary_of_constants():
    pairs = [(a, b) for a in CONSTANTS for b in CONSTANTS]
    matches(
        lambda x: [torch.stack([getattr(torch, n)(torch.full_like(x, a), torch.full_like(x, b)) for a, b in pairs]) for n in "div remainder fmod pow fmax atan2 copysign".split()],
        torch.ones(3),
        factor=4,
    )


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_unary_of_integers(dtype):
    matches(named(UNARY), torch.randint(-9, 9, (3, 17)).to(dtype), factor=2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_binary(dtype):
    x, y = (t.contiguous().to(dtype) for t in torch.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    matches(named([*BINARY, "hypot"]), x, y, factor=4)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_binary_of_integers(dtype):
    """Extremes of the type and negative divisors; the smallest integer over -1 traps in eager mode and is left out."""
    limits = torch.iinfo(dtype)
    left = [limits.min, limits.min + 1, 0, 1, 2, 5, limits.max - 1, limits.max]
    right = [1, 2, 3, 7, limits.max] + ([-1, -2, -5, limits.min + 1] if limits.min else [9, 11, 200])
    x, y = (t.flatten() for t in torch.meshgrid(torch.tensor(left), torch.tensor(right), indexing="ij"))
    keep = (x != limits.min) | (y != -1) | (limits.min == 0)
    x, y = x[keep].to(dtype), y[keep].to(dtype)
    matches(named(BINARY), x, y)
    matches(lambda x, y: [x & y, x | y, x ^ y, x << y, x >> y, ~x, x << 2, x >> 1, x >> 100], x, y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_whole_quotients_of_two_byte_floats(dtype):
    """ATen rounds every step to two bytes, but not where it divides by one number. Equal, not close."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(4099, generator=generator).mul(n).to(dtype) for n in (50, 1))
    n = torch.randint(1, 300, (4099,), generator=generator)

    def quotients(x, y, n):
        pairs = [(x, y), (x, n), (n, y), (x, 0.7), (x, y[:1]), (x, y[5]), (torch.tensor(7.3, dtype=torch.float64), y), (x, n[5])]
        return [torch.div(u, v, rounding_mode=m) for u, v in pairs for m in ("floor", "trunc")] + [x // y, n // y, x // n]

    torch._dynamo.reset()
    got = torch.compile(quotients, backend="mlirc", options=OPTIONS)(x, y, n)
    for i, (e, g) in enumerate(zip(quotients(x, y, n), got, strict=True)):
        assert torch.equal(e, g), f"result {i}: {int((e != g).sum())} differ"


def test_smallest_integer_over_minus_one():
    """Eager mode is killed by the CPU here; the wrapped result is what other back ends give."""
    lowest = torch.tensor([torch.iinfo(torch.int32).min] * 5, dtype=torch.int32)
    minus = torch.full((5,), -1, dtype=torch.int32)
    f = lambda x, y: (torch.div(x, y, rounding_mode="trunc"), x // y, x % y, torch.fmod(x, y))  # noqa: E731
    quotient, floored, remainder, rest = torch.compile(f, backend="mlirc")(lowest, minus)
    assert torch.equal(quotient, lowest) and torch.equal(floored, lowest)
    assert not remainder.any() and not rest.any()


@pytest.mark.parametrize("op", ["x // y", "x % y", "torch.fmod(x, y)", 'torch.div(x, y, rounding_mode="trunc")'])
def test_division_by_zero(op):
    x, y = torch.arange(20), torch.ones(20, dtype=torch.int64)
    y[17] = 0
    with pytest.raises((RuntimeError, ZeroDivisionError), match="ZeroDivisionError"):
        torch.compile(function(op, "x, y"), backend="mlirc")(x, y)


NUMBERS = expressions("""
x + 1
x - 2
1 - x
x * 3
x / 2
2 / x
x // 2
x // -3
x % 3
x % -3
torch.fmod(x, -3)
x ** 2
x ** 3
x ** 4
x ** 0
x > 1
x.clamp(0, 1)
x.clamp(min=0)
x.clamp(max=1)
x + 1.5
torch.add(x, x, alpha=2)
torch.rsub(x, 2, alpha=3)
2 ** x.abs()
torch.div(x, 3, rounding_mode="trunc")
x == 2
x.to(torch.float64)
x.to(torch.bool)
x.to(torch.int32)
x.to(torch.uint8)
x.to(torch.bfloat16)
""")
POWERS = ["x ** 0.5", "x ** -0.5", "x ** -1", "x ** -2", "x ** 2.5"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.int64], ids=str)
def test_with_numbers(dtype):
    x = torch.tensor([1, 2, -3, 5, -7, 4, 9, -1, 3, 6, -2, 8, 11, 10, -5, 7, 12]).to(dtype)
    texts = NUMBERS + (POWERS if dtype.is_floating_point else [])
    if dtype.is_floating_point:
        texts = [t for t in texts if "uint8" not in t]  # of negative numbers: undefined
        x = x * 0.75
    functions = [function(t) for t in texts]
    matches(lambda x: [f(x) for f in functions], x, factor=2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_ldexp_of_what_is_not_finite(dtype):
    special = torch.tensor([0.0, -0.0, 2.0, -3.0, float("inf"), -float("inf"), float("nan")], dtype=dtype)
    x, y = (v.contiguous() for v in torch.meshgrid(special, special, indexing="ij"))
    got = torch.compile(torch.ldexp, backend="mlirc", options=OPTIONS)(x, y)
    torch.testing.assert_close(got, torch.ldexp(x, y), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_ldexp_of_powers_out_of_range(dtype):
    """The product is finite, the power alone is not."""
    info = torch.finfo(dtype)
    most = int(torch.tensor(info.max, dtype=torch.float64).log2().ceil())
    x = torch.tensor([info.tiny, info.max, 1.5, 0.0, -3.0, float("inf"), float("nan")], dtype=dtype)
    y = torch.tensor([most + 3, -most - 7, 2 - most, 5, 3, -3, 2])
    got, want = torch.compile(torch.ldexp, backend="mlirc", options=OPTIONS)(x, y), torch.ldexp(x, y)
    assert torch.equal(got.nan_to_num(77), want.nan_to_num(77)) and got.isnan().equal(want.isnan())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_numbers_that_cancel(dtype):
    """0.7 is what it is in the tensor."""
    x = torch.full((33,), 0.7, dtype=dtype)
    functions = [lambda x: x - 0.7, lambda x: 0.7 - x, lambda x: x - torch.tensor(0.7), lambda x: torch.floor((x + -0.7) * 8)]
    for f in functions:
        torch._dynamo.reset()
        assert not torch.compile(f, backend="mlirc", options=OPTIONS)(x).any() and not f(x).any()


def test_roots_of_f16_are_powers():
    x = torch.tensor([-float("inf"), -0.0, 0.0, 4.0, 0.3, float("inf")])
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for f in (lambda x: x**0.5, lambda x: x**-0.5):
            torch._dynamo.reset()
            got, want = torch.compile(f, backend="mlirc", options=OPTIONS)(x.to(dtype)), f(x.to(dtype))
            torch.testing.assert_close(got, want, equal_nan=True)
            assert dtype == torch.bfloat16 or (got.signbit() == want.signbit())[~want.isnan()].all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", [torch.remainder, torch.fmod, torch.gt, torch.le, torch.eq])
def test_numbers_have_the_dtype_of_the_tensors_where_a_little_more_is_much(op, dtype):
    """The nearest bf16 of 0.3333 is larger: `x > 0.3333` is false for it."""
    near = torch.tensor(0.3333, dtype=dtype)
    x = torch.cat([near[None], -near[None], near * torch.arange(1, 40), torch.rand(200).add(0.01)]).to(dtype)

    def f(x, number):
        return op(x, 0.3333), op(x, torch.tensor(0.3333)), op(x, number)

    for expected, got in zip(f(x, 0.3333), torch.compile(f, backend="mlirc", dynamic=True)(x, 0.3333)):
        assert torch.equal(expected, got)
    if op in (torch.remainder,):
        assert torch.equal(torch.compile(lambda x: op(0.3333, x), backend="mlirc")(x), op(0.3333, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_truncated_quotients_are_rounded_first(dtype):
    y = torch.rand(2000).add(0.5).mul(9).to(dtype)
    x = torch.cat([torch.tensor([-75.5, 15.125]).to(dtype), (y * torch.arange(2000).remainder(90)).to(dtype)[2:]])
    y[0] = 15.125
    f = lambda x, y: [torch.div(a, b, rounding_mode="trunc") for a, b in ((x, y), (x, 0.3), (x, y[0]), (x[0], y))]  # noqa: E731
    for expected, got in zip(f(x, y), torch.compile(f, backend="mlirc")(x, y)):
        assert torch.equal(expected, got)


@pytest.mark.parametrize("dynamic", [False, True])
def test_type_promotion_and_broadcasting(dynamic):
    x, j, m = torch.randn(3, 17), torch.randint(1, 9, (17,)), torch.randn(3, 1) > 0
    matches(lambda x, j: named(BINARY)(x, j), x, j, dynamic=dynamic, factor=2)
    matches(lambda x, j, m: [x + j + m, torch.where(m, x, j), m + m, j + m, x.double() + x, x.bfloat16() + x, m * 2.5], x, j, m, dynamic=dynamic)


TERNARY = expressions("""
torch.where(m, x, y)
torch.where(m, x, 0.0)
torch.where(m, 1.0, 0.0)
torch.where(m, x, y.double())
x.masked_fill(m, float("-inf"))
torch.addcmul(x, y, y, value=0.3)
torch.addcdiv(x, y, y)
torch.lerp(x, y, 0.3)
torch.lerp(x, y, y)
x.round(decimals=2)
(x * 1000).round(decimals=-2)
torch.nan_to_num(x / 0, 1, 2, 3)
x.clamp(y, y + 1)
x.clamp(min=y)
torch.clamp_max(x, y)
torch.div(x, y, rounding_mode="floor")
torch.div(x, y, rounding_mode="trunc")
torch.xlogy(x, y.abs())
torch.hypot(x, y)
torch.ldexp(x, y.round())
torch.logaddexp(x, y)
torch.heaviside(x, y)
torch.float_power(x.abs(), 2)
x & m if False else m & (x > y)
""")


@pytest.mark.parametrize("dynamic", [False, True])
def test_of_several_tensors(dynamic):
    functions = [function(t, "x, y, m") for t in TERNARY]
    x = torch.randn(3, 37)
    matches(lambda x, y, m: [f(x, y, m) for f in functions], x, torch.randn(3, 37), x > 0, dynamic=dynamic, factor=4)


ACTIVATIONS = {
    **{n: getattr(F, n) for n in (
        "gelu silu hardswish hardsigmoid mish elu celu selu softplus leaky_relu relu6 hardtanh logsigmoid softsign tanhshrink "
        "hardshrink softshrink glu relu"
    ).split()},
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "threshold": lambda x: F.threshold(x, 0.1, 0.2),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name):
    f = ACTIVATIONS[name]
    matches(f, (torch.randn(4, 18) * 4).requires_grad_(), gradients=True, factor=4)
    matches(f, (torch.randn(4, 18) * 4).bfloat16(), factor=2)


CREATED = expressions("""
torch.zeros(x.shape[0], 3)
torch.ones_like(x)
torch.full((2, x.shape[1]), 3.0)
torch.full_like(x, float("-inf"))
torch.arange(x.shape[1])
torch.arange(2, x.shape[1], 3)
torch.arange(10, 0, -3)
torch.arange(0, 1, 0.1)
torch.arange(5, dtype=torch.float32) / 3
torch.arange(2.1, -2.9, -1, dtype=torch.int64)
torch.linspace(0, 1, 7)
torch.linspace(x.new_tensor(4.9), -3.5, 50, dtype=torch.int64)
(x > 0).masked_fill(x > 1, 10)
torch.eye(x.shape[1])
torch.tril(x)
torch.triu(x, 1)
torch.scalar_tensor(2.0)
x.new_full((3,), 2)
x * x.shape[0]
x / x.shape[1] ** 0.5
(x * 50).to(torch.int8)
""")


@pytest.mark.parametrize("dynamic", [False, True])
def test_created(dynamic):
    functions = [function(t) for t in CREATED]
    matches(lambda x: [f(x) for f in functions], torch.randn(3, 37), dynamic=dynamic)


def test_negative_powers_of_integers():
    """An error, which a compiler that multiplies once too often does not find."""
    with pytest.raises(RuntimeError, match="negative integer powers"):
        torch.compile(lambda x: x**-1, backend="mlirc")(torch.tensor([2, 1]))
