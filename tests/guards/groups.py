"""Fused groups for any size n: what models consist of, at the sizes at which vectors, tiles and masks end.

A group maps n and a floating-point dtype to pairs of a function and its inputs. Everything a function returns must be free of
ties and cancellation, since results are compared with eager mode too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

Pair = tuple[Callable[..., object], list[Tensor]]
Group = Callable[[int, torch.dtype], Iterator[Pair]]


def _r(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape).to(dtype)


def _at(n: int, *shape: int) -> Tensor:
    return torch.randint(0, n, shape)


def elementwise(n: int, d: torch.dtype) -> Iterator[Pair]:
    yield lambda x, y: F.gelu(x * y + 1), [_r(d, n), _r(d, n)]
    yield lambda x, y: torch.tanh(x) + y[:, None], [_r(d, 3, n), _r(d, 3)]
    yield lambda x, y: x.sigmoid() * y.t(), [_r(d, 3, n), _r(d, n, 3)]
    yield lambda x, y: x[..., 1:] * y[..., :-1], [_r(d, 2, n + 1), _r(d, 2, n + 1)]
    yield lambda x: x[:, ::2].exp(), [_r(d, 2, n)]


def reductions(n: int, d: torch.dtype) -> Iterator[Pair]:
    yield lambda x: x.sum(-1), [_r(d, 5, n)]
    yield lambda x: x.mean(0), [_r(d, n, 5)]
    yield lambda x: x.amax(0), [_r(d, 3, n)]
    yield lambda x: x.var(-1), [_r(d, 3, n + 1)]
    yield lambda x: x.abs().sum((0, 2)), [_r(d, 2, n, 3)]
    yield lambda x: x.argmax(-1), [_r(d, 3, n)]
    yield lambda x: (x - x.amin()).sum(), [_r(d, n)]


def _in_two_orders(x: Tensor) -> list[Tensor]:
    y = torch.tanh(x)
    return [y.var() + x, y.exp().contiguous(), y.square().contiguous()]


def normalisations(n: int, d: torch.dtype) -> Iterator[Pair]:
    yield lambda x: F.softmax(x * 2, -1), [_r(d, 3, n)]
    yield lambda x: F.log_softmax(x, 0), [_r(d, n, 3)]
    yield lambda x, y, w, b: F.layer_norm(x + y, w.shape, w, b, eps=0.1), [_r(d, 3, n), _r(d, 3, n), _r(d, n), _r(d, n)]
    yield lambda x, w: F.rms_norm(x, w.shape, w, eps=0.1), [_r(d, 2, 3, n), _r(d, n)]
    yield lambda x: F.group_norm(x, 3, eps=0.1), [_r(d, 2, 6, n)]
    yield lambda x: _in_two_orders(x.permute(0, 2, 1)), [_r(d, 3, 13, n)]
    yield lambda x: F.batch_norm(x, None, None, training=True, eps=0.1), [_r(d, 4, n, 3)]


def linears(n: int, d: torch.dtype) -> Iterator[Pair]:
    yield lambda x, w, b: F.gelu(F.linear(x, w, b)), [_r(d, n, n + 1), _r(d, n + 2, n + 1) / 4, _r(d, n + 2)]
    yield lambda x, w, r: torch.relu(x @ w) + r, [_r(d, 5, 7), _r(d, 7, n), _r(d, 5, n)]
    yield lambda x, w: x.t() @ w.t(), [_r(d, 6, n), _r(d, 9, 6)]
    yield lambda x, w: (x @ w).sum(-1), [_r(d, 3, n), _r(d, n, 17)]
    yield lambda x, w: torch.mv(w, x), [_r(d, n), _r(d, 5, n)]
    yield lambda x, w: x @ w, [_r(d, 1, n), _r(d, n, 33)]


def siblings(n: int, d: torch.dtype) -> Iterator[Pair]:
    for rows in (1, 3, n):
        yield (lambda x, q, k, v: (F.linear(x, q).relu(), F.linear(x, k), F.linear(x, v) + 1)), [_r(d, rows, n), _r(d, n + 1, n), _r(d, 17, n), _r(d, 40, n)]
        yield lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u), [_r(d, rows, n), _r(d, n + 2, n), _r(d, n + 2, n)]


def attention(n: int, d: torch.dtype) -> Iterator[Pair]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, -1) @ v

    yield attend, [_r(d, 2, n, 5), _r(d, 2, n + 1, 5), _r(d, 2, n + 1, 5)]
    yield attend, [_r(d, 2, 3, 3, n), _r(d, 2, 3, 4, n), _r(d, 2, 3, 4, n)]
    yield lambda x, w: torch.einsum("bij,kj->bki", x, w), [_r(d, 2, 3, n), _r(d, 5, n)]
    yield lambda x, w: torch.einsum("bikc,kc->bic", x, w).relu(), [_r(d, 2, 3, 5, n), _r(d, 5, n)]  # both operands have the lanes


def convolutions(n: int, d: torch.dtype) -> Iterator[Pair]:
    yield lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)), [_r(d, 1, 3, 4, n), _r(d, 5, 3, 3, 3), _r(d, 5)]
    yield lambda x, w: F.conv2d(x, w, padding=1), [_r(d, 1, n, 3, 4), _r(d, n + 1, n, 3, 3) / 8]
    yield lambda x, w: F.conv2d(x, w, stride=2), [_r(d, 2, 5, 3, n), _r(d, n, 5, 1, 1)]
    yield lambda x, w: F.conv2d(x, w, stride=2, padding=2, groups=w.shape[0]), [_r(d, 1, n, 5, 6), _r(d, n, 1, 5, 5)]
    yield lambda x, w: F.conv1d(x, w, padding=1, dilation=2), [_r(d, 2, 4, n + 2), _r(d, 3, 4, 3)]
    yield lambda x, w: F.conv_transpose2d(x, w, stride=2), [_r(d, 1, n, 3, 3), _r(d, n, 5, 2, 2) / 4]


def pools(n: int, d: torch.dtype) -> Iterator[Pair]:
    yield lambda x: F.max_pool2d(x, 3, 2, 1), [_r(d, 1, n, 6, 5)]
    yield lambda x: F.avg_pool2d(x, 2, 1, 1), [_r(d, 1, 2, 5, n)]
    yield lambda x: F.adaptive_avg_pool2d(x, (2, 3)), [_r(d, 1, 2, 5, n)]
    yield lambda x: F.max_pool1d(x, 2, 1), [_r(d, 2, 3, n + 1)]
    yield lambda x: F.interpolate(x, scale_factor=2.0), [_r(d, 1, 2, 3, n)]
    yield lambda x: F.interpolate(x, size=(5, 7), mode="bilinear"), [_r(d, 1, 2, 3, n)]


def rearranged(n: int, d: torch.dtype) -> Iterator[Pair]:
    yield lambda x: x.transpose(1, 2).contiguous(), [_r(d, 2, 5, n)]
    yield lambda x, y: (x.permute(2, 0, 1) + y).contiguous(), [_r(d, 3, 4, n), _r(d, 3, 4)]
    yield lambda x, y: torch.cat([x, y * 2, x[..., :1]], -1), [_r(d, 3, n), _r(d, 3, n + 1)]
    yield lambda x: torch.stack([x, x + 1], 1).flip(2), [_r(d, 3, n)]
    yield lambda x: F.pad(x, (2, 1, 1, 0)) * 2, [_r(d, 3, n)]
    yield lambda x: x.roll(1, -1) + x.flip(-1), [_r(d, 3, n)]
    yield lambda x: F.pixel_shuffle(x, 2), [_r(d, 1, 8, 3, n)]
    yield lambda x: x.unfold(-1, 2, 1).sum(-1), [_r(d, 2, n + 1)]


def gathered(n: int, d: torch.dtype) -> Iterator[Pair]:
    yield lambda w, i: F.embedding(i, w) * 2, [_r(d, n, 5), _at(n, 3, 4)]
    yield lambda w, i: F.embedding(i, w), [_r(d, 4, n), _at(4, 7)]
    yield lambda x, i: x.index_select(1, i) + 1, [_r(d, 3, n), _at(n, n + 2)]
    yield lambda x, i: x.gather(-1, i), [_r(d, 3, n), _at(n, 3, n)]
    yield lambda x, i, j: x[i, j], [_r(d, n, n), _at(n, 9), _at(n, 9)]


def scattered(n: int, d: torch.dtype) -> Iterator[Pair]:
    yield lambda x, i, u: x.index_add(0, i, u), [_r(d, n, 3), _at(n, 5), _r(d, 5, 3)]
    yield lambda x, i, u: x.index_add(0, i, u), [_r(d, n, 33), _at(n, 5), _r(d, 5, 33)]  # in buckets where n is a symbol
    yield lambda x, i, u: x.scatter_add(-1, i, u * 2), [_r(d, 3, 6), _at(6, 3, n), _r(d, 3, n)]
    yield lambda x, i, u: x.index_put((i,), u), [_r(d, n, 5), torch.arange(n).flip(0)[:3], _r(d, min(n, 3), 5)]
    yield lambda x, i, u: x.scatter_reduce(0, i, u, "amax"), [_r(d, 4, n), _at(4, 6, n), _r(d, 6, n)]
    yield lambda x, u: torch.slice_scatter(x, u, 1, 1), [_r(d, 3, n + 1), _r(d, 3, n)]


def scans(n: int, d: torch.dtype) -> Iterator[Pair]:
    yield lambda x: x.cumsum(-1), [_r(d, 3, n)]
    yield lambda x: x.cumsum(0) * 2, [_r(d, 4, n)]


def casts(n: int, d: torch.dtype) -> Iterator[Pair]:
    yield lambda x: x.float() + 1, [torch.randint(-100, 100, (n,), dtype=torch.int8)]
    yield lambda x, y: x.bfloat16().float() * y.to(torch.float64), [torch.randn(3, n), _r(d, 3, n)]
    yield lambda x: (x * 8).to(torch.int64) + (x * 4).to(torch.uint8).to(torch.int64), [_r(d, n).abs()]
    yield lambda x, y: x.half() + y.to(torch.float16), [_r(d, 2, n), torch.randint(0, 9, (2, n), dtype=torch.int16)]
    yield lambda x: (x > 0).to(torch.int32).sum(-1), [_r(d, 3, n)]


def integers(n: int, d: torch.dtype) -> Iterator[Pair]:
    def ints(dtype: torch.dtype) -> Tensor:
        return torch.randint(1, 100, (3, n), dtype=dtype)

    yield lambda x, m: torch.where(m, x, -1.0), [_r(d, 3, n), torch.rand(3, n) > 0.5]
    yield lambda m, k: (m & ~k, m.any(-1), (m | k).all(0)), [torch.rand(3, n) > 0.5, torch.rand(3, n) > 0.9]
    yield lambda x, y: (x + y * 2, x // y, (x & 7) << 1), [ints(torch.int8), ints(torch.int8)]
    yield lambda x, y: (x * y, x % y, x.sum(-1), x.t().contiguous()), [ints(torch.int64), ints(torch.int64)]
    yield lambda x: (x.amax(-1), x.float().mean(0), x.flip(-1)), [ints(torch.uint8)]
    yield lambda x, y: torch.cat([x, y[:, :1]], 1).cumsum(1), [ints(torch.int32), ints(torch.int32)]


GROUPS: dict[str, Group] = {
    f.__name__: f
    for f in (
        elementwise, reductions, normalisations, linears, siblings, attention, convolutions, pools, rearranged, gathered, scattered,
        scans, casts, integers,
    )
}  # fmt: skip
