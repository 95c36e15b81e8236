"""Bags of embeddings, in inference: sums, means and maxima, of all lengths, as eager mode has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from .compare import compare, kernels, left_to_aten

R = torch.randn
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def places(n: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, n, shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def check(f: Any, *args: Any, **kwargs: Any) -> None:
    with torch.no_grad():
        compare(f, *args, **kwargs)
    assert not left_to_aten()


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("width", [3, 17, 64])
def test_bags(mode: str, dtype: torch.dtype, width: int) -> None:
    """Empty ones, and long ones."""
    offsets = torch.tensor([0, 0, 3, 40, 40, 41, 60, 60])

    def f(w: torch.Tensor, i: torch.Tensor, o: torch.Tensor) -> Any:
        return [F.embedding_bag(i, w, o, mode=mode, include_last_offset=last) for last in (False, True)]

    check(f, R(29, width).to(dtype).requires_grad_(), places(29, 60), offsets)
    check(f, R(29, width).to(dtype), places(29, 60, dtype=torch.int32), offsets.int())


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_bags_of_one_length(dynamic: bool) -> None:
    def f(w: torch.Tensor, i: torch.Tensor) -> Any:
        return F.embedding_bag(i, w, mode="mean") * 2, F.embedding_bag(i, w, mode="max")

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="mlirc", options={"strict": True})
    w = R(50, 32)
    for bags, length in ((4, 7), (9, 1), (33, 17)):
        i = places(50, bags, length)
        if dynamic:
            torch._dynamo.mark_dynamic(i, 0)
        with torch.no_grad():
            torch.testing.assert_close(compiled(w, i), f(w, i))


def test_weights_of_samples() -> None:
    f = lambda w, i, o, s: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s)  # noqa: E731
    check(f, R(9, 40), places(9, 21), torch.tensor([0, 4, 4, 20]), R(21))


def test_special_values() -> None:
    w = R(6, 20)
    w[1], w[2], w[3, ::2] = torch.nan, torch.inf, -torch.inf
    i, o = torch.tensor([0, 4, 1, 5, 2, 0, 3, 3, 2, 3]), torch.tensor([0, 2, 4, 6, 8])
    for mode in ("sum", "mean", "max"):
        f = lambda w, i, o: F.embedding_bag(i, w, o, mode=mode)  # noqa: E731, B023
        check(f, w, i, o)


def test_what_is_no_place_is_an_error() -> None:
    w, f = R(9, 5), lambda w, i, o: F.embedding_bag(i, w, o, mode="sum")  # noqa: E731
    compiled = torch.compile(f, backend="mlirc", options={"strict": True})
    good, rows = torch.tensor([0, 2]), torch.tensor([3, 1, 4, 1])
    with torch.no_grad():
        torch.testing.assert_close(compiled(w, rows, good), f(w, rows, good))
        for i, o in ((rows, [0, 5]), (rows, [1, 2]), (rows, [0, -1]), (torch.tensor([3, 9, 4, 1]), [0, 2]), (torch.tensor([3, -1, 4, 1]), [0, 2])):
            for g in (f, compiled):
                with pytest.raises((IndexError, RuntimeError)):
                    g(w, i, torch.tensor(o))


def test_tables_of_a_recommender_are_one_kernel_each() -> None:
    """With no sums in memory: what follows is computed on those in registers."""

    def f(x: torch.Tensor, i: torch.Tensor, o: torch.Tensor, *tables: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, *(torch.relu(F.embedding_bag(j, w, p, mode="sum")) for j, p, w in zip(i, o, tables))], 1)

    args = R(8, 16), places(30, 2, 40), torch.arange(0, 40, 5).repeat(2, 1), R(30, 16), R(30, 16)
    check(f, *args)
    assert [name.split("_", 1)[1] for name in kernels()] == ["embedding_bag_forward_only_relu", "embedding_bag_forward_only_relu", "cat"]


@pytest.mark.parametrize("width, count, padding", [(8, 21, 2), (1, 21, None), (8, 1, None), (8, 0, None)])
def test_what_is_left_to_aten(width: int, count: int, padding: int | None) -> None:
    f = lambda w, i, o: F.embedding_bag(i, w, o, mode="sum", padding_idx=padding)  # noqa: E731
    with torch.no_grad():
        compare(f, R(9, width), places(9, count), torch.tensor([0, 0, count]))
    assert left_to_aten() in (["aten._embedding_bag.default"], ["aten._embedding_bag_forward_only.default"])


def test_one_bag_and_one_row() -> None:
    f = lambda w, i, o: F.embedding_bag(i, w, o, mode="mean")  # noqa: E731
    check(f, R(1, 8), places(1, 5), torch.tensor([0]))
    check(f, R(9, 8), places(9, 2), torch.tensor([0, 0, 2, 2]))
