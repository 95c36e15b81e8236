"""Pooling as reductions over windows of a padded, channels-last tensor, and the gradients as sums over the windows
that an element lies in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...dialects import builders
from ...dialects.mlir import arith, ir, tensor
from ..dtypes import cast, compute_dtype, scalar
from ..extents import Extent, floordiv, normal, product, same
from ..graph_builder import GraphBuilder, Scalar, T
from ..registry import Unsupported, lowers
from . import scalars as s
from .convolution import channels_first, channels_last, pad_spatial
from .pointwise import out_shape
from .reductions import out_dtype, out_shape_of

aten = torch.ops.aten
Ints = Sequence[int]
Value = ir.Value
INT = arith.CmpIPredicate
I64 = torch.int64


def _i64(v: Value) -> Value:
    return arith.index_cast(ir.IntegerType.get_signless(64), v)


class _Window:
    """Kernel, stride, padding and dilation of a pooling over the last `r` dims."""

    def __init__(self, r: int, kernel: Any, stride: Any, padding: Any = 0, dilation: Any = 1) -> None:
        def spread(v: Any) -> list[int]:
            v = [v] if isinstance(v, int) else list(v)
            if any(isinstance(n, Scalar) for n in v):
                raise Unsupported("pooling window known only at run time")
            return v * r if len(v) == 1 else v

        self.r = r
        self.kernel, self.padding, self.dilation = spread(kernel), spread(padding), spread(dilation)
        self.stride = spread(stride) if stride not in ([], ()) else self.kernel

    def high(self, sizes: Sequence[Extent], out: Sequence[Extent]) -> list[Extent]:
        """Padding behind the tensor: what the last window needs (more than the symmetric amount with `ceil_mode`)."""
        high: list[Extent] = []
        for i, o, k, step, p, d in zip(sizes, out, self.kernel, self.stride, self.padding, self.dilation):
            need = normal((o - 1) * step + (k - 1) * d + 1 - i - p)
            high.append(max(need, 0) if isinstance(need, int) else p + step - 1)
        return high

    def map(self) -> ir.AffineMap:
        """From loops (n, places, channel; window) to the padded channels-last tensor."""
        r = self.r
        dim = ir.AffineDimExpr.get
        places = [dim(1 + i) * self.stride[i] + dim(r + 2 + i) * self.dilation[i] for i in range(r)]
        return ir.AffineMap.get(2 * r + 2, 0, [dim(0), *places, dim(r + 1)])

    def inside(self, at: list[Value], i: int) -> Value:
        """Where window element i's row lies in the tensor before it was padded; may be outside."""
        place = arith.muli(at[1 + i], builders.index(self.stride[i]))
        place = arith.addi(place, arith.muli(at[self.r + 2 + i], builders.index(self.dilation[i])))
        return arith.subi(place, builders.index(self.padding[i]))


def _batched(b: GraphBuilder, x: T, r: int) -> tuple[T, bool]:
    """(channels-last with a batch dim, whether it had none)"""
    single = x.rank == r + 1
    return channels_last(b, b.reshape(x, [1, *x.shape]) if single else x), single


def _unbatched(b: GraphBuilder, y: T, single: bool) -> T:
    y = channels_first(b, y)
    return b.reshape(y, y.shape[1:]) if single else y


@lowers(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def max_pool(
    b: GraphBuilder, node: Any, x: T, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> list[T | None]:
    r = 2 if node.target is aten.max_pool2d_with_indices.default else 3
    w = _Window(r, kernel, stride, padding, dilation)
    last, single = _batched(b, x, r)
    out = out_shape_of(node, 0)[-r:]
    lowest = float("-inf") if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    sizes = last.shape[1:-1]
    padded = pad_spatial(b, last, w.padding, w.high(sizes, out), lowest)
    shape = [last.shape[0], *out, last.shape[-1]]
    top = b.window_reduce(shape, w.kernel, [(padded, w.map())], "max", x.dtype, lambda at, u: u)
    where = None
    if any(len(user.args) > 1 and user.args[1] == 1 for user in node.users):

        def body(at: list[Value], u: Value, m: Value) -> Value:
            found = s.eq(x.dtype, u, m)
            flat, within = builders.index(0), None
            for i in range(r):
                place = w.inside(at, i)
                inside = arith.cmpi(INT.ult, place, b.index(sizes[i]))
                within = inside if within is None else arith.andi(within, inside)
                flat = arith.addi(arith.muli(flat, b.index(sizes[i])), place)
            none = scalar(I64, torch.iinfo(I64).max)
            first = arith.select(arith.andi(found, within), _i64(flat), none)
            if not x.dtype.is_floating_point:
                return first
            # The first maximum, but of several NaN the last one: the complement is the less the later it is.
            return arith.select(arith.andi(s.isnan(x.dtype, u), within), s.invert(I64, _i64(flat)), first)

        def place_of(v: Value) -> Value:
            return arith.select(s.lt(I64, v, scalar(I64, 0)), s.invert(I64, v), v)

        loops = builders.projection(2 * r + 2, range(r + 2))
        found = b.window_reduce(shape, w.kernel, [(padded, w.map()), (top, loops)], "min", I64, body)
        found = b.pointwise(found.shape, [found], I64, I64, I64, place_of) if x.dtype.is_floating_point else found
        where = _unbatched(b, found, single)
    return [_unbatched(b, top, single), where]


def _overlaps(w: _Window) -> list[int]:
    """How many windows an element can lie in, along each dim."""
    return [-(-((k - 1) * d + 1) // s) for k, d, s in zip(w.kernel, w.dilation, w.stride)]


def _gather_windows(b: GraphBuilder, w: _Window, shape: Sequence[Extent], out: Sequence[Extent], read: Any, acc: torch.dtype) -> T:
    """For each element of the channels-last `shape`, the sum of `read(at, window)` over the windows that may hold it.

    `window` is a place in `out`; windows outside of it give zero.
    """
    r = w.r

    def body(at: list[Value]) -> Value:
        window, valid = [at[0]], None
        for i in range(r):
            # The last window that starts at or before the element, and those before it.
            place = arith.divsi(arith.addi(at[1 + i], builders.index(w.padding[i])), builders.index(w.stride[i]))
            place = arith.subi(place, at[r + 2 + i])
            ok = arith.cmpi(INT.ult, place, b.index(out[i]))
            valid = ok if valid is None else arith.andi(valid, ok)
            window.append(arith.select(ok, place, builders.index(0)))
        return arith.select(valid, read(at, [*window, at[r + 1]]), scalar(acc, 0))

    return b.window_reduce(shape, _overlaps(w), [], "add", acc, body)


@lowers(aten.max_pool2d_with_indices_backward.default, aten.max_pool3d_with_indices_backward.default)
def max_pool_backward(
    b: GraphBuilder, node: Any, grad: T, x: T, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, indices: T
) -> T:
    """An element collects the gradients of those windows whose maximum it is."""
    r = 2 if node.target is aten.max_pool2d_with_indices_backward.default else 3
    w = _Window(r, kernel, stride, padding, dilation)
    d = compute_dtype(x.dtype)
    last, single = _batched(b, x, r)
    g, _ = _batched(b, grad, r)
    where, _ = _batched(b, indices, r)
    sizes = last.shape[1:-1]

    def read(at: list[Value], window: list[Value]) -> Value:
        flat = builders.index(0)
        for i in range(r):
            flat = arith.addi(arith.muli(flat, b.index(sizes[i])), at[1 + i])
        chosen = s.eq(I64, tensor.extract(where.value, window), _i64(flat))
        return arith.select(chosen, cast(tensor.extract(g.value, window), x.dtype, d), scalar(d, 0))

    y = _gather_windows(b, w, last.shape, g.shape[1:-1], read, d)
    return _unbatched(b, b.convert(y, x.dtype), single)


# Means


def _element_counts(
    b: GraphBuilder, w: _Window, sizes: Sequence[Extent], out: Sequence[Extent], include_pad: bool, divisor: int | None,
    dtype: torch.dtype,
) -> T | float:  # fmt: skip
    """What the sum of each window is divided by: a number, or a tensor [*out, 1]."""
    if divisor:
        return float(divisor)
    high = w.high(sizes, out)
    exact = all(same(h, p) or isinstance(h, int) and h < p for h, p in zip(high, w.padding))
    if exact and (include_pad or not any(w.padding)):
        return float(product(w.kernel))  # type: ignore[arg-type]

    def body(at: list[Value]) -> Value:
        count = builders.index(1)
        for i, (k, st, p, size) in enumerate(zip(w.kernel, w.stride, w.padding, sizes)):
            start = arith.subi(arith.muli(at[i], builders.index(st)), builders.index(p))
            end = arith.minsi(arith.addi(start, builders.index(k)), b.index(normal(size + (p if include_pad else 0))))
            start = start if include_pad else arith.maxsi(start, builders.index(0))
            count = arith.muli(count, arith.subi(end, start))
        return cast(_i64(count), I64, dtype)

    return b.from_indices([*out, 1], [], dtype, body)


@lowers(aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
def avg_pool(
    b: GraphBuilder, node: Any, x: T, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    include_pad: bool = True, divisor: int | None = None,
) -> T:  # fmt: skip
    if not x.dtype.is_floating_point and x.dtype != I64:
        raise Unsupported(f"a mean of {x.dtype} is an error")
    r = int(node.target.overloadpacket.__name__[8])
    w = _Window(r, kernel, stride, padding)
    last, single = _batched(b, x, r)
    out, d = out_shape(node)[-r:], compute_dtype(x.dtype)
    padded = pad_spatial(b, last, w.padding, w.high(last.shape[1:-1], out))
    shape = [last.shape[0], *out, last.shape[-1]]
    total = b.window_reduce(shape, w.kernel, [(padded, w.map())], "add", d, lambda at, u: cast(u, x.dtype, d))
    count = _element_counts(b, w, last.shape[1:-1], out, include_pad, divisor, d)

    def divide(u: Value, n: Value) -> Value:
        return arith.divf(u, n) if d.is_floating_point else s.divide_trunc(d, u, n)

    return _unbatched(b, b.pointwise(shape, [total, count], d, d, x.dtype, divide), single)


@lowers(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def avg_pool_backward(
    b: GraphBuilder, node: Any, grad: T, x: T, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, include_pad: bool,
    divisor: int | None,
) -> T:  # fmt: skip
    r = int(node.target.overloadpacket.__name__[8])
    w = _Window(r, kernel, stride, padding)
    d = compute_dtype(x.dtype)
    last, single = _batched(b, x, r)
    g, _ = _batched(b, grad, r)
    out = g.shape[1:-1]
    g = b.pointwise(g.shape, [g, _element_counts(b, w, last.shape[1:-1], out, include_pad, divisor, d)], d, d, d, arith.divf)

    def read(at: list[Value], window: list[Value]) -> Value:
        covered = None
        for i in range(r):
            start = arith.subi(arith.muli(window[1 + i], builders.index(w.stride[i])), builders.index(w.padding[i]))
            ok = arith.cmpi(INT.ult, arith.subi(at[1 + i], start), builders.index(w.kernel[i]))
            covered = ok if covered is None else arith.andi(covered, ok)
        return arith.select(covered, tensor.extract(g.value, window), scalar(d, 0))

    return _unbatched(b, b.convert(_gather_windows(b, w, last.shape, out, read, d), x.dtype), single)


def _factors(sizes: Sequence[Extent], out: Sequence[Extent]) -> list[Extent] | None:
    """size / out for each dim, where that is whole."""
    factors = [floordiv(i, o) for i, o in zip(sizes, out)]
    return factors if all(same(f * o, i) for f, o, i in zip(factors, out, sizes)) else None


@lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(b: GraphBuilder, node: Any, x: T, size: Any) -> T:
    """Bins of equal size are a view and a mean; otherwise bin i of n is floor(i*s/n) ... ceil((i+1)*s/n)."""
    r = 2 if node.target is aten._adaptive_avg_pool2d.default else 3
    out, sizes = out_shape(node)[-r:], x.shape[-r:]
    lead = x.shape[:-r]
    d = compute_dtype(x.dtype)
    if any(same(o, 0) for o in out):
        return b.full(out_shape(node), x.dtype, 0)
    factors = _factors(sizes, out)
    if factors is not None:
        split = b.reshape(x, [*lead, *(v for pair in zip(out, factors) for v in pair)])
        total = b.reduce(split, [len(lead) + 2 * i + 1 for i in range(r)], "add", False, d)
        count = product(factors)
        n = count if isinstance(count, int) else Scalar(count)
        return b.pointwise(total.shape, [total, n], d, d, x.dtype, arith.divf)
    if not all(isinstance(v, int) for v in (*sizes, *out)):
        raise Unsupported("adaptive pooling with bins of unequal size known only at run time")
    k = len(lead)
    total = x
    for dim, (size, bins) in enumerate(zip(sizes, out), k):
        total = _sums_of_bins(b, total, dim, size, bins, d)  # type: ignore[arg-type]

    def count(at: list[Value]) -> Value:
        n = builders.index(1)
        for i, (size, bins) in enumerate(zip(sizes, out)):
            start, end = _bin(b, at[k + i], size, bins)  # type: ignore[arg-type]
            n = arith.muli(n, arith.subi(end, start))
        return cast(_i64(n), I64, d)

    counts = b.from_indices([*(1 for _ in lead), *out], [], d, count)
    return b.pointwise(total.shape, [total, counts], d, d, x.dtype, arith.divf)


def _bin(b: GraphBuilder, at: Value, size: int, bins: int) -> tuple[Value, Value]:
    """Where a bin begins and ends."""
    n, o = b.index(size), b.index(bins)
    start = arith.muli(at, n)
    return arith.divsi(start, o), arith.divsi(arith.addi(start, arith.addi(n, arith.subi(o, builders.index(1)))), o)


def _sums_of_bins(b: GraphBuilder, x: T, dim: int, size: int, bins: int, d: torch.dtype) -> T:
    """The sums along one dim: of two, the first one's are vectors along the other, which has few sums left then."""
    if bins == size:
        return b.convert(x, d)
    width = max(-(-(i + 1) * size // bins) - i * size // bins for i in range(bins))

    def element(at: list[Value]) -> Value:
        start, end = _bin(b, at[dim], size, bins)
        place = arith.addi(start, at[x.rank])
        inside = arith.cmpi(INT.slt, place, end)
        read = [*at[:dim], arith.select(inside, place, start), *at[dim + 1 : x.rank]]
        return arith.select(inside, cast(tensor.extract(x.value, read), x.dtype, d), scalar(d, 0))

    return b.window_reduce([*x.shape[:dim], bins, *x.shape[dim + 1 :]], [width], [], "add", d, element)


@lowers(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool_backward(b: GraphBuilder, node: Any, grad: T, x: T) -> T:
    r = 2 if node.target is aten._adaptive_avg_pool2d_backward.default else 3
    factors = _factors(x.shape[-r:], grad.shape[-r:])
    if factors is None:
        raise Unsupported("gradient of adaptive pooling with bins of unequal size")
    lead, d = x.shape[:-r], compute_dtype(x.dtype)
    count = product(factors)
    n = count if isinstance(count, int) else Scalar(count)
    g = b.pointwise(grad.shape, [grad, n], d, d, out_dtype(node), arith.divf)
    g = b.reshape(g, [*lead, *(v for o in grad.shape[-r:] for v in (o, 1))])
    return b.reshape(b.expand(g, [*lead, *(v for p in zip(grad.shape[-r:], factors) for v in p)]), x.shape)
