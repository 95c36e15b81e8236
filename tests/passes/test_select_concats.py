"""Concatenations that are only read elementwise are not stored."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import mlirc
from mlirc.tests.frontend.elementwise import matches


def half(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def kernels(f, *args) -> int:  # noqa: ANN001
    torch._dynamo.reset()
    return sum(len(graph.kernels) for graph in mlirc.explain(f, *args).graphs)


def test_rotary_embedding_is_one_kernel():
    x, table = torch.randn(2, 5, 7, 64), torch.randn(7, 64)
    assert kernels(lambda x, t: x * t + half(x) * (t + 1), x, table) == 1


@pytest.mark.parametrize("f", [
    lambda x, y: torch.cat((x, y), -1),
    lambda x, y: torch.cat((x, y), 0) + 1,
    lambda x, y: torch.cat((x.repeat(1, 40), y), -1) * 2,
    lambda x, y: torch.cat((F.softmax(x, -1), y), -1) * 2,
    lambda x, y: (torch.cat((x, y), -1) @ torch.ones(34, 3)),
])  # fmt: skip
def test_others(f):
    x, y = torch.randn(4, 17), torch.randn(4, 17)
    matches(f, x, y)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 17), (17, 3), (16, 16), (32, 32), (33, 31), (40, 40), (64, 64), (100, 100), (1, 128)])
def test_values(sizes, dtype):
    x, y = ((torch.randn(5, 3, n) * 9).to(dtype) for n in sizes)
    w = (torch.randn(3, sum(sizes)) * 9).to(dtype)
    op = torch.logical_xor if dtype == torch.bool else torch.mul
    matches(lambda x, y, w: (op(torch.cat((x, y), -1), w), op(torch.cat((y[..., :1], x), -1), w[:, :1])), x, y, w)
    matches(lambda x, y, w: op(torch.cat((x, y), -1), w), x, y, w, dynamic=True)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 16, 32, 64, 80, 96, 128, 256])
def test_rotary_embedding(size, dtype):
    x, c, s = torch.randn(2, 7, 3, size, dtype=dtype), torch.randn(7, size, dtype=dtype), torch.randn(7, size, dtype=dtype)
    x[0, 0, 0, 0], x[1, 2, 1, -1] = float("nan"), float("inf")
    matches(lambda x, c, s: x.transpose(1, 2) * c + half(x.transpose(1, 2)) * s, x, c, s, factor=2)
    matches(lambda x, c, s: x.transpose(1, 2) * c + half(x.transpose(1, 2)) * s, x, c, s, dynamic=True, factor=2)
    matches(lambda x, c, s: (half(x[:, :, 0] * c).sum(-1), half(x[:, :, 1]).amax(1)), x, c, s, factor=4)
