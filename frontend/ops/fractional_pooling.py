"""Fractional max pooling (Graham 2014): windows of one size at places that random samples choose."""

from __future__ import annotations

from typing import Any

import torch

from ...dialects import builders
from ...dialects.mlir import arith, ir, tensor
from ..dtypes import mlir_type, scalar
from ..extents import Extent
from ..graph_builder import GraphBuilder, T
from ..registry import Unsupported, lowers
from . import scalars as s
from .reductions import out_shape_of

aten = torch.ops.aten
Value = ir.Value
I64 = torch.int64


@lowers(aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default)
def fractional_max_pool(b: GraphBuilder, node: Any, x: T, kernel: Any, output_size: Any, samples: T) -> list[T]:
    """`samples` is [batch, channels, 2 or 3] in [0, 1), its last dim as ATen orders it; x may have no batch dim."""
    r = len(kernel)
    if not x.dtype.is_floating_point or x.dtype.itemsize < 4:
        raise Unsupported("fractional pooling of two-byte floats, whose windows ATen places in that precision")
    shape = out_shape_of(node, 0)
    sizes, lead = x.shape[-r:], x.rank - r
    single = x.rank == r + 1
    # In three dims ATen's samples go by time, height, width; in two by width, height.
    column = (lambda i: i) if r == 3 else (lambda i: 1 - i)

    def starts(i: int) -> T:
        """[batch, channels, output]: where the windows begin along spatial dim i."""
        n, out, k = sizes[i], shape[lead + i], kernel[i]

        def body(at: list[Value]) -> Value:
            where = [builders.index(0), *at[:-1]] if single else at[:-1]
            u = tensor.extract(samples.value, [*where, builders.index(column(i))])
            return _start(b, at[-1], u, x.dtype, n, out, k)

        return b.from_indices([*shape[:lead], out], [], I64, body)

    begin = [starts(i) for i in range(r)]

    def element(at: list[Value]) -> tuple[Value, list[Value]]:
        place = []
        for i in range(r):
            first = tensor.extract(begin[i].value, [*at[:lead], at[lead + i]])
            place.append(arith.addi(arith.index_cast(ir.IndexType.get(), first), at[lead + r + i]))
        return tensor.extract(x.value, [*at[:lead], *place]), place

    top = b.window_reduce(shape, kernel, [], "max", x.dtype, lambda at: element(at)[0])

    def index(at: list[Value], m: Value) -> Value:
        u, place = element(at)
        found = arith.ori(s.eq(x.dtype, u, m), s.isnan(x.dtype, u))
        flat = builders.index(0)
        for p, n in zip(place, sizes):
            flat = arith.addi(arith.muli(flat, b.index(n)), p)
        flat = arith.index_cast(mlir_type(I64), flat)
        return arith.select(found, flat, scalar(I64, torch.iinfo(I64).max))

    loops = builders.projection(len(shape) + r, range(len(shape)))
    return [top, b.window_reduce(shape, kernel, [(top, loops)], "min", I64, index)]


def _start(b: GraphBuilder, at: Value, u: Value, d: torch.dtype, n: Extent, out: Extent, k: int) -> Value:
    """floor((i + u) a) - floor(u a) with a = (n - k) / (out - 1), and n - k for the last window."""
    i64 = mlir_type(I64)
    room = arith.subi(arith.index_cast(i64, b.index(n)), scalar(I64, k))
    last = arith.subi(arith.index_cast(i64, b.index(out)), scalar(I64, 1))
    kind = mlir_type(d)
    step = arith.divf(arith.sitofp(kind, room), arith.sitofp(kind, last))
    i = arith.index_cast(i64, at)
    high = arith.fptosi(i64, arith.mulf(arith.addf(arith.sitofp(kind, i), u), step))
    start = arith.subi(high, arith.fptosi(i64, arith.mulf(u, step)))
    return arith.select(s.eq(I64, i, last), room, start)
