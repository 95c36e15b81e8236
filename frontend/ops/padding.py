"""Padding: by a constant (negative amounts crop), by reflection and by repetition of the border."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...dialects import builders
from ...dialects.mlir import arith, ir, tensor
from ..extents import Extent, normal, same
from ..graph_builder import GraphBuilder, Scalar, T
from ..registry import Unsupported, lowers

aten = torch.ops.aten


def extent(x: Any) -> Extent:
    """A size or an amount of an FX node's arguments, which may be known only at run time."""
    return normal(x.expr if isinstance(x, Scalar) else x)


def pad_or_crop(b: GraphBuilder, x: T, low: Sequence[Extent], high: Sequence[Extent], value: float | int | bool) -> T:
    """Pad by a constant; what is negative is cut off. Symbolic amounts are taken to be positive."""
    cut = [[-a if isinstance(a, int) and a < 0 else 0 for a in side] for side in (low, high)]
    if any(map(any, cut)):
        shape = [s - a - c for s, a, c in zip(x.shape, *cut)]
        x = b.slice(x, cut[0], shape, [1] * x.rank)
    added = [[0 if isinstance(a, int) and a < 0 else a for a in side] for side in (low, high)]
    return b.pad(x, *added, value) if any(not same(a, 0) for side in added for a in side) else x


def _amounts(x: T, pad: Sequence[Any]) -> tuple[list[Extent], list[Extent]]:
    """ATen's list of amounts, last dim first, as one (low, high) a dim."""
    pairs = [(extent(pad[i]), extent(pad[i + 1])) for i in range(0, len(pad), 2)][::-1]
    pairs = [(0, 0)] * (x.rank - len(pairs)) + pairs
    return [p[0] for p in pairs], [p[1] for p in pairs]


@lowers(aten.constant_pad_nd.default)
def constant_pad(b: GraphBuilder, node: Any, x: T, pad: Sequence[Any], value: Any = 0) -> T:
    return pad_or_crop(b, x, *_amounts(x, pad), value)


def _border(b: GraphBuilder, x: T, pad: Sequence[Any], position: Any) -> T:
    """Each coordinate, less the low amount, goes through `position(i, size)` to one inside."""
    if x.dtype == torch.bool:
        raise Unsupported("repeating bools at a border is an error")
    low, high = _amounts(x, pad)
    shape = [normal(s + a + c) for s, a, c in zip(x.shape, low, high)]
    moved = [d for d in range(x.rank) if not (same(low[d], 0) and same(high[d], 0))]
    last = x.rank - 1

    def columns(begin: Extent, count: Extent, inside: bool) -> T:
        """So many columns of the result, from `begin` on; those inside are the columns of x."""

        def body(coordinates: list[ir.Value]) -> ir.Value:
            for d in moved:
                if d == last and inside:
                    continue
                i = arith.addi(coordinates[d], b.index(begin)) if d == last else coordinates[d]
                coordinates[d] = position(arith.subi(i, b.index(low[d])), b.index(x.shape[d]))
            return tensor.extract(x.value, coordinates)

        return b.from_indices([*shape[:-1], count], [], x.dtype, body)

    if last not in moved or not all(isinstance(a, int) and a >= 0 for a in (low[last], high[last])):
        return columns(0, shape[-1], False)
    # Columns inside lie side by side in x, too: only those beside them are gathered.
    parts = [(0, low[last], False), (low[last], x.shape[last], True), (normal(low[last] + x.shape[last]), high[last], False)]
    return b.concat([columns(*p) for p in parts if not same(p[1], 0)], last)


@lowers(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)
def replication_pad(b: GraphBuilder, node: Any, x: T, pad: Sequence[Any]) -> T:
    def clamp(i: ir.Value, size: ir.Value) -> ir.Value:
        return arith.maxsi(arith.minsi(i, arith.subi(size, builders.index(1))), builders.index(0))

    return _border(b, x, pad, clamp)


@lowers(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(b: GraphBuilder, node: Any, x: T, pad: Sequence[Any]) -> T:
    def mirror(i: ir.Value, size: ir.Value) -> ir.Value:
        i = arith.maxsi(i, arith.subi(builders.index(0), i))
        last = arith.subi(size, builders.index(1))
        return arith.minsi(i, arith.subi(arith.addi(last, last), i))

    return _border(b, x, pad, mirror)
