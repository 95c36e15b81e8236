"""Integer division, remainders, shifts, powers and overflow as in eager mode: its value or its error, never a trap."""

from __future__ import annotations

import pytest
import torch

from mlirc.tests.frontend.compare import OPTIONS

INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def compiled(f, *inputs):
    torch._dynamo.reset()
    return torch.compile(f, backend="mlirc", dynamic=False, options=OPTIONS)(*inputs)


def equal(f, *inputs):
    for i, (e, g) in enumerate(zip(f(*inputs), compiled(f, *inputs), strict=True)):
        bad = (e != g).nonzero()
        assert e.dtype == g.dtype
        assert not len(bad), f"result {i}: {g[tuple(bad[0])]} instead of {e[tuple(bad[0])]} at {[x[tuple(bad[0])].item() for x in inputs]}"


def numbers(dtype):
    info = torch.iinfo(dtype)
    few = {info.min, info.min + 1, info.max, info.max - 1, info.max // 2, -7, -3, -2, -1, 0, 1, 2, 3, 5, 7, 8, 31, 63, 64, 100}
    return [v for v in sorted(few) if info.min <= v <= info.max]


def pairs(dtype, nonzero=False):
    values = torch.tensor(numbers(dtype), dtype=dtype)
    x, y = torch.meshgrid(values, values[values != 0] if nonzero else values, indexing="ij")
    x, y = x.flatten().clone(), y.flatten().clone()
    # The smallest by -1 traps where eager mode divides: not to be asked there.
    trap = (x == torch.iinfo(dtype).min) & (y == -1) if dtype.is_signed else torch.zeros_like(x, dtype=torch.bool)
    return (x[~trap], y[~trap]) if nonzero else (x, y)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_division(dtype):
    def divisions(x, y):
        out = [x // y, x % y, torch.fmod(x, y), torch.remainder(x, y)]
        return [*out, torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc"), x / y]

    equal(divisions, *pairs(dtype, nonzero=True))


@pytest.mark.parametrize("dtype", [d for d in INTEGERS if d.is_signed], ids=str)
@pytest.mark.parametrize("size", [1, 3, 17, 33])
def test_the_smallest_by_minus_one_wraps(dtype, size):
    """Eager mode traps (SIGFPE) or wraps, by width and vector; ours wraps."""
    x = torch.full((size,), torch.iinfo(dtype).min, dtype=dtype)
    y = torch.full((size,), -1, dtype=dtype)
    quotient, rest, mod = compiled(lambda x, y: (torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y), x % y), x, y)
    assert (quotient == x).all() and (rest == 0).all() and (mod == 0).all()


DIVISIONS = {
    "floor_divide": lambda x, y: x // y,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": lambda x, y: x % y,
    "fmod": torch.fmod,
}


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("name", DIVISIONS)
def test_division_by_zero_is_an_error(name, dtype):
    f = DIVISIONS[name]
    for size, place in ((1, 0), (17, 16), (33, 5)):
        x, y = torch.full((size,), 7, dtype=dtype), torch.ones(size, dtype=dtype)
        y[place] = 0
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            f(x, y)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            compiled(f, x, y)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_by_any_amount(dtype):
    equal(lambda x, n: (x << n, x >> n, torch.bitwise_left_shift(x, n), torch.bitwise_right_shift(x, n)), *pairs(dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_arithmetic_wraps(dtype):
    def wrapping(x, y):
        out = [x + y, x - y, x * y, x.abs(), x.square(), x**3, x.sign(), torch.maximum(x, y), x.clamp(-1, 3) if x.dtype.is_signed else x]
        return [*out, ~x, x ^ y, x & y, x | y] + ([-x] if x.dtype.is_signed else [])

    equal(wrapping, *pairs(dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_powers(dtype):
    x, y = pairs(dtype)
    keep = (y >= 0) & (y < 70)
    equal(lambda x, y: (x**y, x**2, x**5, torch.pow(2, y)), x[keep], y[keep])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_sums_and_products_wrap(dtype):
    x = torch.tensor(numbers(dtype), dtype=dtype).repeat(50)

    def wrapping(x):
        same = {"dtype": x.dtype}
        return x.sum()[None], x.prod()[None], x.sum(**same)[None], x.prod(**same)[None], x.cumsum(0), x.cumsum(0, **same), x.cumprod(0)

    equal(wrapping, x.reshape(-1))
