"""Convolutions as sums of products over channels-last tensors, with a permutation in front and behind.

    x [N, C, H, W]  ->  [N, H, W, C] (padded)          w [O, C/G, KH, KW]  ->  [KH, KW, C/G, O]
    y[n, h, w, o] = sum over kh, kw, c of x[n, h*s + kh*d, w*s + kw*d, c] * w[kh, kw, c, o]

With G groups, C and O are split into (G, C/G) and (G, O/G); a depthwise convolution has no loop over c. Permutations are
views, so a channels-last input is read as it lies in memory. Few channels stay in planes [N, C, H, W] where that is how
they come, or where few come out: then the vector lanes have neighbouring positions (`_narrow`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...dialects.mlir import arith, ir, tensor
from ..dtypes import compute_dtype
from ..extents import Extent, floordiv, normal, same
from ..graph_builder import GraphBuilder, T
from ..registry import Unsupported, lowers
from .padding import extent, pad_or_crop
from .pointwise import add

aten = torch.ops.aten
Ints = Sequence[int]


def channels_last(b: GraphBuilder, x: T) -> T:
    """[N, C, *spatial] -> [N, *spatial, C], a view."""
    return b.permute(x, [0, *range(2, x.rank), 1])


def channels_first(b: GraphBuilder, x: T) -> T:
    """[N, *spatial, C] -> [N, C, *spatial], a view."""
    return b.permute(x, [0, x.rank - 1, *range(1, x.rank - 1)])


def pad_spatial(
    b: GraphBuilder, x: T, low: Sequence[Extent], high: Sequence[Extent], value: float = 0, planes: bool = False
) -> T:
    """Pad the spatial dims of a channels-last tensor; `planes`: its memory is [N, C, *spatial], as that of the result."""
    if planes:
        return channels_last(b, pad_or_crop(b, channels_first(b, x), [0, 0, *low], [0, 0, *high], value))
    return pad_or_crop(b, x, [0, *low, 0], [0, *high, 0], value)


class _Loops:
    """The loops of a convolution, written as letters: n; p, positions, and k, kernel, for all spatial dims; g, group; c and o, channels.

    `order` has a bar before those that are summed: "npgo|kc".
    """

    def __init__(self, spatial: int, groups: Extent, inner: Extent, outer: Extent, order: str) -> None:
        # A channel dim of size one needs no loop when there are groups.
        grouped = not same(groups, 1)
        self.has = {"g": grouped, "c": not (grouped and same(inner, 1)), "o": not (grouped and same(outer, 1))}
        self.spatial = spatial
        parallel, summed = (self._names(letters) for letters in order.split("|"))
        self.names = [*parallel, *summed]
        self.iterators = "p" * len(parallel) + "r" * len(summed)

    def map(self, letters: str, window: Sequence[tuple[int, int]] | None = None) -> ir.AffineMap:
        """The map to these loops; with (stride, dilation) of each spatial dim, p stands for `p * stride + k * dilation`."""
        exprs = [self._dim(name) for name in self._names(letters)]
        if window is not None:
            at = self._names(letters).index("p0")
            for i, (stride, dilation) in enumerate(window):
                exprs[at + i] = exprs[at + i] * stride + self._dim(f"k{i}") * dilation
        return ir.AffineMap.get(len(self.names), 0, exprs)

    def _names(self, letters: str) -> list[str]:
        of = {x: [f"{x}{i}" for i in range(self.spatial)] for x in "kp"}
        return [name for x in letters for name in of.get(x, [x] * self.has.get(x, True))]

    def _dim(self, name: str) -> ir.AffineExpr:
        return ir.AffineDimExpr.get(self.names.index(name))


def _groups(b: GraphBuilder, x: T, dim: int, groups: Extent) -> T:
    """Split a channel dim into (group, channel of the group), the latter dropped where it is one."""
    if same(groups, 1):
        return x
    inner = floordiv(x.shape[dim], groups)
    return b.reshape(x, [*x.shape[:dim], groups, *([] if same(inner, 1) else [inner]), *x.shape[dim + 1 :]])


def _weight(b: GraphBuilder, w: T, groups: Extent) -> T:
    """[O, C/G, *K] -> [*K, (G,) (C/G,) (O/G)], a view."""
    r = w.rank - 2
    outer, inner = floordiv(w.shape[0], groups), w.shape[1]
    if same(groups, 1):
        return b.permute(w, [*range(2, w.rank), 1, 0])
    names = "go"[: 1 + (not same(outer, 1))]
    w = _groups(b, w, 0, groups)
    if same(inner, 1):
        w = b.reshape(w, [*w.shape[: len(names)], *w.shape[len(names) + 1 :]])
    else:
        names += "c"
    order = [*range(len(names), len(names) + r), 0, *(names.index(c) for c in "co" if c in names)]
    return b.permute(w, order)


def _correlate(
    b: GraphBuilder, x: T, w: T, stride: Ints, low: Sequence[Extent], high: Sequence[Extent], dilation: Ints, groups: Extent,
    channels: Extent, out: Sequence[Extent], planes: bool = False,
) -> T:  # fmt: skip
    """The convolution of [N, *S, C], padded by `low` and `high`, and a weight as `_weight` gives it; result [N, *out, O], accumulated.

    `planes`: x is [N, C, *S] in memory. It stays so if its channels are few, instead of having them moved behind the positions.
    """
    r = len(out)
    inner, outer = floordiv(x.shape[-1], groups), floordiv(channels, groups)
    narrow = _narrow(w, stride, groups, channels, out, planes)
    planes = narrow or planes and same(groups, 1) and isinstance(inner, int) and inner <= FEW_INPUTS
    x = pad_spatial(b, x, low, high, planes=planes)
    order = "ngop" if narrow else "npgo"
    loops = _Loops(r, groups, inner, outer, f"{order}|ck" if planes else f"{order}|kc")
    window = list(zip(stride, dilation))
    if planes:
        source, maps = _groups(b, channels_first(b, x), 1, groups), [loops.map("ngcp", window)]
    else:
        source, maps = _groups(b, x, r + 1, groups), [loops.map("npgc", window)]
    maps += [loops.map("kgco"), loops.map(order)]
    sizes = {"n": [x.shape[0]], "p": out, "g": [groups], "o": [outer]}
    shape = [n for x in order for n in sizes[x] if loops.has.get(x, True)]
    y = b.multiply_reduce(source, w, maps, loops.iterators, shape, compute_dtype(x.dtype), "convolution")
    return channels_last(b, b.reshape(y, [x.shape[0], channels, *out])) if narrow else b.reshape(y, [x.shape[0], *out, channels])


FEW_OUTPUTS = 4
"""Output channels that are too few to have the vector lanes. 3x3 of 64 channels, [64, 32, 32] in AVX-512: 1 of them in 53 us along the
positions and 231 along the channels, 4 in 74 and 223, 8 in 116 and 210. AVX2: 4 in 161 and 248, but of [64, 128, 128], channels-last,
2 to 4 in 3.6 to 5.0 ms and 3.4 to 4.0."""

FEW_INPUTS = 6
"""Input channels that stay in planes: 3x3 with stride 2 of [3, 224, 224]: 421 us instead of 767, 6 channels 663 instead of 1090, 8 the same
time, 16 a third longer. AVX2 has 1.1 to 1.8 times the speed of channels-last; with stride 1, 64 x 64, 0.93 to 1.1 times."""

LEAST_WIDTH = 16
"""Neighbouring positions that fill a vector."""


def _narrow(w: T, stride: Ints, groups: Extent, channels: Extent, out: Sequence[Extent], planes: bool = False) -> bool:
    """Whether the vector lanes are better off along the innermost positions than along the output channels.

    In a depthwise convolution of images that lie in planes: 5x5 of [4, 4, 224, 224] takes 0.6 ms, channels-last 1.7. With groups, whose
    output channels leave most of a vector empty: 3x3 of [2, 64, 112, 112] in 16 groups takes 1.4 ms, channels-last 8.2 (bf16 1.8 and 4.4).
    """
    if not isinstance(channels, int) or not isinstance(groups, int) or all(same(k, 1) for k in w.shape[: len(out)]):
        return False
    depthwise = groups > 1 and groups == channels and w.rank == len(out) + 1
    few = channels <= FEW_OUTPUTS and planes if depthwise else channels // groups <= FEW_OUTPUTS
    wide = not isinstance(out[-1], int) or out[-1] >= LEAST_WIDTH
    return few and wide and stride[-1] == 1


def _padded_correlate(
    b: GraphBuilder, x: T, w: T, stride: Ints, padding: Ints, dilation: Ints, groups: Extent, channels: Extent,
    out: Sequence[Extent], planes: bool = False,
) -> T:  # fmt: skip
    """The same, padded by as much on both sides of a dim; taps that see padding alone are left out."""
    kernel = w.shape[: len(out)]
    seeing = [_seeing(*of) for of in zip(x.shape[1:-1], out, kernel, stride, dilation, padding)]
    low: list[Extent] = list(padding)
    high: list[Extent] = list(padding)
    if any(not same(n, k) for (_, n), k in zip(seeing, kernel)):
        low = [p - first * d for p, d, (first, _) in zip(padding, dilation, seeing)]
        reach = [(o - 1) * s + (n - 1) * d + 1 for o, s, d, (_, n) in zip(out, stride, dilation, seeing)]
        high = [normal(r - a - n) for r, a, n in zip(reach, low, x.shape[1:-1])]
        rest = w.shape[len(out) :]
        w = b.slice(w, [*(first for first, _ in seeing), *(0 for _ in rest)], [*(n for _, n in seeing), *rest], [1] * w.rank)
    return _correlate(b, x, w, stride, low, high, dilation, groups, channels, out, planes)


def _seeing(size: Extent, out: Extent, kernel: Extent, stride: int, dilation: int, low: int) -> tuple[int, Extent]:
    """(First, number of) the taps of a dim between the first and the last one that see anything but padding; all if sizes are symbols.

    Of 3 taps over a single element, that is padded by one on both sides, it is the one in the middle.
    """
    if not (isinstance(size, int) and isinstance(out, int) and isinstance(kernel, int)):
        return 0, kernel

    def sees(k: int) -> bool:
        p = max(0, -((k * dilation - low) // stride))  # the first position at which it is not in front of the elements
        return p < out and p * stride + k * dilation - low < size

    seeing = [k for k in range(kernel) if sees(k)]
    return (seeing[0], seeing[-1] - seeing[0] + 1) if seeing else (0, kernel)


def _weight_gradient(
    b: GraphBuilder, x: T, grad: T, kernel: Sequence[Extent], stride: Ints, dilation: Ints, groups: Extent
) -> T:
    """Sum over n and positions of x[n, p*s + k*d, c] * grad[n, p, o], both channels-last and x padded: [O, C/G, *K]."""
    r = len(kernel)
    channels = grad.shape[-1]
    inner, outer = floordiv(x.shape[-1], groups), floordiv(channels, groups)
    loops = _Loops(r, groups, inner, outer, "kgco|np")
    maps = [loops.map("npgc", list(zip(stride, dilation))), loops.map("npgo"), loops.map("kgco")]
    split = [n for letter, n in (("g", groups), ("c", inner), ("o", outer)) if loops.has[letter]]
    x, grad = _groups(b, x, r + 1, groups), _groups(b, grad, r + 1, groups)
    w = b.multiply_reduce(x, grad, maps, loops.iterators, [*kernel, *split], compute_dtype(x.dtype), "convolution")
    if same(groups, 1):
        return b.permute(w, [r + 1, r, *range(r)])
    w = b.reshape(w, [*kernel, groups, inner, outer])
    w = b.permute(w, [r, r + 2, r + 1, *range(r)])
    return b.reshape(w, [channels, inner, *kernel])


def _transposed(
    b: GraphBuilder, x: T, w: T, stride: Ints, padding: Ints, dilation: Ints, groups: Extent, out: Sequence[Extent]
) -> T:
    """The transposed convolution of [N, *S, C] and w [C, O/G, *K]; result [N, *out, O], accumulated.

    With stride s, the outputs p = s*q + phase see only every s-th tap of the kernel: each phase is a plain convolution
    with stride 1, and the phases, which share one padded copy, are interleaved. No multiplication by stuffed-in zeros.
    """
    r = len(out)
    kernel = w.shape[2:]
    channels = normal(w.shape[1] * groups)
    if same(groups, 1) and list(stride) == list(kernel) and _exact(x, out, stride) and not any(padding):
        return b.reshape(_blocks(b, x, w), [x.shape[0], *out, channels])
    single = all(same(n, 1) for n in x.shape[1:-1]) and all(isinstance(k, int) and k > p for k, p in zip(kernel, padding))
    if single and same(groups, 1) and list(dilation) == [1] * r:
        y = _blocks(b, b.reshape(x, [x.shape[0], x.shape[-1]]), w)
        after = [normal(o - s + p) for o, s, p in zip(out, kernel, padding)]
        return pad_spatial(b, y, [-p for p in padding], after)
    if any(s > 1 and d > 1 for s, d in zip(stride, dilation)):
        raise Unsupported("transposed convolution with both stride and dilation")
    if not all(isinstance(k, int) for k in kernel):
        raise Unsupported("kernel size known only at run time")
    counts = [floordiv(o + s - 1, s) for o, s in zip(out, stride)]
    step = [s if s > 1 else 1 for s in stride]
    phases: list[_Phase | None] = []
    for phase in itertools.product(*(range(s) for s in stride)):
        first = [(f + p) % s for f, p, s in zip(phase, padding, stride)]
        taps = [max(0, -(-(k - f) // s)) for k, f, s in zip(kernel, first, stride)]  # type: ignore[operator]
        if 0 in taps:
            phases.append(None)
            continue
        low = [(t - 1) * d - (f + p) // s for t, d, f, p, s in zip(taps, dilation, phase, padding, stride)]
        seeing = [_seeing(n, c, t, 1, d, a) for n, c, t, d, a in zip(x.shape[1:], counts, taps, dilation, low)]
        first = [f + s * (t - k - n) for f, s, t, (k, n) in zip(first, step, taps, seeing)]  # type: ignore[operator]
        taps, low = [n for _, n in seeing], [a - k * d for a, d, (k, _) in zip(low, dilation, seeing)]  # type: ignore[misc]
        need = [normal(c + (t - 1) * d) for c, t, d in zip(counts, taps, dilation)]
        phases.append(_Phase(low, need, _flipped(b, w, groups, first, step, taps)))
    reading = [p for p in phases if p is not None]
    low = [max((p.low[d] for p in reading), default=0) for d in range(r)]
    high = [[normal(p.need[d] - p.low[d] - x.shape[1 + d]) for p in reading] for d in range(r)]
    # Whether to pad or to crop may be known only at run time: pad by what is always enough.
    most = [max(h, default=0) if all(isinstance(n, int) for n in h) else k for h, k in zip(high, kernel)]  # type: ignore[type-var]
    planes = any(_narrow(p.weight, [1] * r, groups, channels, counts) for p in reading)
    padded = pad_spatial(b, x, low, most, planes=planes)
    parts = []
    for p in phases:
        if p is None:
            parts.append(b.full([x.shape[0], *counts, channels], compute_dtype(x.dtype), 0))
            continue
        part = b.slice(padded, [0, *(a - n for a, n in zip(low, p.low)), 0], [x.shape[0], *p.need, x.shape[-1]], [1] * (r + 2))
        parts.append(_correlate(b, part, p.weight, [1] * r, [0] * r, [0] * r, dilation, groups, channels, counts))
    return _interleave(b, parts, stride, out)


@dataclass
class _Phase:
    """A plain convolution of x, padded by `low` in front, `need` elements of it, that makes every s-th output."""

    low: list[int]
    need: list[Extent]
    weight: T


def _blocks(b: GraphBuilder, x: T, w: T) -> T:
    """What kernels that do not overlap make of each element, a block of outputs: [N, *S, C] -> [N, S0, K0, S1, K1, ..., O].

    Of [N, C], [N, *K, O].
    """
    spatial, kernel = "hwd"[: x.rank - 2], "abc"[: w.rank - 2]
    blocks = "".join(s + k for s, k in itertools.zip_longest(spatial, kernel, fillvalue=""))
    sizes = [n for pair in itertools.zip_longest(x.shape[1:-1], w.shape[2:]) for n in pair if n is not None]
    return b.contract(x, w, (f"n{spatial}i", f"io{kernel}", f"n{blocks}o"), [x.shape[0], *sizes, w.shape[1]])


def _exact(x: T, out: Sequence[Extent], stride: Ints) -> bool:
    return all(same(s * f, o) for s, f, o in zip(x.shape[1:], stride, out))


def _flipped(b: GraphBuilder, w: T, groups: Extent, first: Ints, step: Ints, taps: Ints) -> T:
    """Taps `first + step * (taps - 1 - j)` of w [C, O/G, *K], as a convolution's weight [*K, (G,) (C/G,) (O/G)]."""
    inner, outer = floordiv(w.shape[0], groups), w.shape[1]
    names = [*"g" * (not same(groups, 1)), *"c" * (same(groups, 1) or not same(inner, 1)), *"o" * (same(groups, 1) or not same(outer, 1))]
    sizes = {"g": groups, "c": inner, "o": outer}
    r = len(taps)

    def body(at: list[ir.Value]) -> ir.Value:
        zero = b.index(0)
        place = {n: at[r + i] for i, n in enumerate(names)}
        channel = place.get("c", zero)
        if not same(groups, 1):
            channel = arith.addi(arith.muli(place["g"], b.index(inner)), channel)
        k = [
            arith.subi(b.index(f + s * (t - 1)), arith.muli(i, b.index(s)) if s > 1 else i)
            for i, f, s, t in zip(at, first, step, taps)
        ]
        return tensor.extract(w.value, [channel, place.get("o", zero), *k])

    if list(taps) == [1] * r and list(first) == [0] * r and list(w.shape[2:]) == [1] * r:
        return _weight(b, _swap(b, w, groups), groups)
    return b.from_indices([*taps, *(sizes[n] for n in names)], [], w.dtype, body)


def _swap(b: GraphBuilder, w: T, groups: Extent) -> T:
    """[C, O/G, *K] -> [O, C/G, *K]"""
    inner, outer, kernel = floordiv(w.shape[0], groups), w.shape[1], w.shape[2:]
    w = b.permute(b.reshape(w, [groups, inner, outer, *kernel]), [0, 2, 1, *range(3, 3 + len(kernel))])
    return b.reshape(w, [normal(groups * outer), inner, *kernel])


def _interleave(b: GraphBuilder, parts: list[T], stride: Ints, out: Sequence[Extent]) -> T:
    """Phases [N, *counts, O], the last dim's phase running fastest, to [N, *out, O]."""
    if len(parts) > 1:
        counts = parts[0].shape[1:-1]
        n, o = parts[0].shape[0], parts[0].shape[-1]
        parts = [b.reshape(p, [n, *(s for c in counts for s in (c, 1)), o]) for p in parts]
        for d in reversed(range(len(stride))):
            parts = [b.concat(parts[i : i + stride[d]], 2 * d + 2) for i in range(0, len(parts), stride[d])]
        parts = [b.reshape(parts[0], [n, *(normal(c * s) for c, s in zip(counts, stride)), o])]
    (y,) = parts
    shape = [y.shape[0], *out, y.shape[-1]]
    if all(same(a, c) for a, c in zip(y.shape, shape)):
        return y
    return b.slice(y, [0] * y.rank, shape, [1] * y.rank)


def _per_dim(values: Ints, rank: int) -> list[int]:
    values = [extent(v) for v in values]  # type: ignore[misc]
    if not all(isinstance(v, int) for v in values):
        raise Unsupported("stride, padding or dilation known only at run time")
    return list(values) * rank if len(values) == 1 else list(values)


@lowers(aten.convolution.default)
def convolution(
    b: GraphBuilder, node: Any, x: T, w: T, bias: T | None, stride: Ints, padding: Ints, dilation: Ints, transposed: bool,
    output_padding: Ints, groups: Extent,
) -> T:  # fmt: skip
    r = x.rank - 2
    out = node.meta["val"]
    if r < 1 or w.rank != x.rank:
        raise Unsupported("convolution without a batch or spatial dim")
    if x.dtype == torch.bool:
        raise Unsupported("convolution of bools is an error")
    groups = extent(groups)
    stride, padding, dilation = _per_dim(stride, r), _per_dim(padding, r), _per_dim(dilation, r)
    channels, *spatial = [normal(s) for s in out.shape[1:]]
    last = channels_last(b, x)
    if transposed:
        y = _transposed(b, last, w, stride, padding, dilation, groups, spatial)
    else:
        # bf16 is multiplied in pairs of channels where the CPU can: 7x7 of 3 channels in 1.8 ms, in planes in 2.9.
        planes = node.args[0].meta["val"].is_contiguous() and x.dtype != torch.bfloat16
        y = _padded_correlate(b, last, _weight(b, w, groups), stride, padding, dilation, groups, channels, spatial, planes)
    if bias is not None:
        d = y.dtype
        y = b.pointwise(y.shape, [y, bias], d, d, out.dtype, lambda u, v: add(d, u, v))
    return channels_first(b, b.convert(y, out.dtype))


@lowers(aten.convolution_backward.default)
def convolution_backward(
    b: GraphBuilder, node: Any, grad: T, x: T, w: T, bias_sizes: Any, stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, output_padding: Ints, groups: Extent, output_mask: Sequence[bool],
) -> list[T | None]:  # fmt: skip
    r = x.rank - 2
    if r < 1 or w.rank != x.rank:
        raise Unsupported("convolution without a batch or spatial dim")
    groups = extent(groups)
    stride, padding, dilation = _per_dim(stride, r), _per_dim(padding, r), _per_dim(dilation, r)
    g, last = channels_last(b, grad), channels_last(b, x)
    out: list[T | None] = [None, None, None]
    if output_mask[0]:
        spatial = last.shape[1:-1]
        if transposed:
            y = _padded_correlate(b, g, _weight(b, w, groups), stride, padding, dilation, groups, x.shape[1], spatial)
        else:
            y = _transposed(b, g, w, stride, padding, dilation, groups, spatial)
        out[0] = channels_first(b, b.convert(y, x.dtype))
    if output_mask[1]:
        big, small = (g, last) if transposed else (last, g)
        big = pad_spatial(b, big, padding, padding)
        out[1] = b.convert(_weight_gradient(b, big, small, w.shape[2:], stride, dilation, groups), w.dtype)
    if output_mask[2]:
        total = b.reduce(g, range(g.rank - 1), "add", False)
        out[2] = b.convert(total, grad.dtype)
    return out
