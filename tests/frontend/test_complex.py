"""Complex numbers of two f32: arithmetic, parts, moves, and what of all that is left to ATen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from .compare import kernels, left_to_aten

C64 = torch.complex64


def Z(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=C64)


def R(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def check(f: Callable[..., Any], *args: torch.Tensor, dynamic: bool | None = None, **options: Any) -> list[str]:
    """What is left to ATen; results are as eager mode's."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    got = torch.compile(f, backend="mlirc", dynamic=dynamic, options={"strict": True, **options})(*args)
    for g, e in zip(pytree.tree_leaves(got), pytree.tree_leaves(f(*args)), strict=True):
        assert (g.dtype, g.shape, g.stride()) == (e.dtype, e.shape, e.stride())
        tolerance = 2e-2 if e.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(g.resolve_conj(), e.resolve_conj(), rtol=tolerance, atol=tolerance, equal_nan=True)
    return left_to_aten()


def rotate(x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """Rotary embeddings as Llama's reference has them."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * f[None, :, None]).flatten(3).type_as(x)


@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", [(2, 7, 3, 16), (1, 33, 2, 66), (1, 1, 1, 2)])
def test_rotary_embeddings(sizes: tuple[int, ...], dtype: torch.dtype, target: str) -> None:
    assert check(rotate, torch.randn(sizes).to(dtype), Z(sizes[1], sizes[3] // 2), target=target) == []


def test_rotary_embeddings_are_stored_once() -> None:
    """Rounded where they are made, not as f32 first."""
    check(rotate, R(2, 64, 4, 64).bfloat16(), Z(64, 32))
    assert sum("to_copy" in k and "mul" in k for k in kernels()) == 1


def test_any_number_of_tokens() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(rotate, backend="mlirc", options={"strict": True}, dynamic=True)
    for n in (5, 33, 7):
        x, f = R(2, n, 3, 16), Z(n, 8)
        torch.testing.assert_close(compiled(x, f), rotate(x, f))


ARITHMETIC = {
    "products": lambda x, y: (x * y, y * x, x * x, x * y[0]),
    "with real ones": lambda x, y: (x * y.real, y.imag * x, x + y.real, y.imag - x, x / y.real),
    "with numbers": lambda x, y: (x * 2, 2.5 * x, x * 1j, x * (2 - 3j), x + 1, 1 - x, x + (2 - 1j), x / 2, torch.add(x, y, alpha=3), torch.sub(x, 1, alpha=2)),
    "signs": lambda x, y: (-x, x.conj() * y, x.conj(), x * x.conj(), x.conj().imag + 1),
    "parts": lambda x, y: (x.real * 2, x.imag + 1, torch.view_as_real(x) * 2, x.abs(), x.angle(), (x * y).abs()),
    "made": lambda x, y: (torch.complex(x.real, y.imag), torch.polar(x.abs(), y.angle()), x.real.to(C64) * y, torch.view_as_complex(torch.view_as_real(x) * 2)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str, dynamic: bool) -> None:
    assert check(ARITHMETIC[name], Z(5, 17), Z(5, 17), dynamic=dynamic) == []


OTHERS = {
    "i64": lambda: torch.arange(7),
    "bf16": lambda: R(7).bfloat16(),
    "f16": lambda: R(7).half(),
    "bool": lambda: R(7) > 0,
    "a number": R,
    "complex": lambda: Z(3, 1, 7),
}


@pytest.mark.parametrize("name", OTHERS)
def test_with_other_dtypes(name: str) -> None:
    assert check(lambda x, y: (x * y, x + y), Z(5, 7), OTHERS[name]()) == []


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (1, 1), (129,)])
def test_odd_sizes(shape: tuple[int, ...]) -> None:
    assert check(lambda x: (x * x, torch.view_as_real(x) + 1, x.abs()), Z(*shape)) == []


MOVES = {
    "slices": lambda x: (x[1:, ::2] * 2, x[0] + x[1], x[:, None].transpose(0, 2) * 2),
    "joined": lambda x: (torch.cat([x, x * 2]), torch.stack([x, -x], -1), x.repeat(2, 1) * 1j),
    "shapes": lambda x: (x.t().contiguous(), x.reshape(-1) * 2, x.expand(2, 4, 6).reshape(8, 6) * x[0], x.flip(0), x.roll(1, 1)),
    "split": lambda x: [p * 2 for p in (*x.split(3, 1), *x.unbind(0))],
}


@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str) -> None:
    assert check(MOVES[name], Z(4, 6)) == []


def test_nan_and_infinity() -> None:
    values = torch.tensor([0.0, -0.0, 1.0, float("inf"), float("-inf"), float("nan")])
    x = torch.complex(*torch.meshgrid(values, values, indexing="ij"))
    assert check(lambda x: (x * x.t(), x * 2, x * x.real, x / 2, x * 1j, 1 - x, x + x.t(), x.abs(), x.angle(), -x, x.conj() * 2), x) == []


def test_around_transforms() -> None:
    """Those are ATen's."""
    left = check(lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(x * 2).conj()) + 1, R(4, 16))
    assert left and all("fft" in op for op in left)


LEFT = {
    "aten.mm.default": lambda x: (x * 2) @ x,
    "aten.sum.dim_IntList": lambda x: (x * 2).sum(0) * 3,
    "aten.div.Tensor": lambda x: (x * 2) / x,
    "aten.exp.default": lambda x: (x * 2).exp() * x,
    "aten.rsub.Scalar": lambda x: torch.rsub(x * 2, 1, alpha=3),
}


@pytest.mark.parametrize("op", LEFT)
def test_what_is_left_to_aten(op: str) -> None:
    """What is around it is compiled."""
    assert check(LEFT[op], Z(3, 3)) == [op] and kernels()


def test_gradients() -> None:
    x, f = R(2, 5, 3, 16).requires_grad_(), Z(5, 8)

    def step(x: torch.Tensor, f: torch.Tensor) -> Any:
        y = rotate(x, f)
        return y, torch.autograd.grad(y.square().sum(), x)

    assert check(step, x, f) == []


def test_numbers_that_are_written_to() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(y)
        return x * 2

    x, y = Z(5, 7), Z(5, 7)
    mine = x.clone()
    torch._dynamo.reset()
    got = torch.compile(f, backend="mlirc")(mine, y)
    torch.testing.assert_close(got, x * y * 2)
    torch.testing.assert_close(mine, x * y)
