"""Tensors made from nothing: constants and ranges. What ATen leaves uninitialised is zero here."""

from __future__ import annotations

from typing import Any

import torch

from ...dialects.mlir import arith, ir
from ..dtypes import cast, scalar
from ..graph_builder import GraphBuilder, Operand, Scalar, T
from ..registry import Unsupported, lowers
from .pointwise import out_shape

aten, prims = torch.ops.aten, torch.ops.prims


def _strided(node: Any) -> None:
    if node.meta["val"].layout != torch.strided:
        raise Unsupported(f"layout {node.meta['val'].layout}")


CONSTANTS: dict[Any, int] = {
    aten.zeros.default: 0,
    aten.ones.default: 1,
    aten.empty.memory_format: 0,
    aten.empty_like.default: 0,
    aten.empty_strided.default: 0,
    aten.new_empty.default: 0,
    aten.new_empty_strided.default: 0,
    aten.empty_permuted.default: 0,
    aten.zeros_like.default: 0,
    aten.ones_like.default: 1,
    aten.new_zeros.default: 0,
    aten.new_ones.default: 1,
    aten.zero.default: 0,
    aten._efficientzerotensor.default: 0,
    prims.empty_strided.default: 0,
}


@lowers(*CONSTANTS)
def constants(b: GraphBuilder, node: Any, *_: Any, **__: Any) -> T:
    _strided(node)
    return b.full(out_shape(node), node.meta["val"].dtype, CONSTANTS[node.target])


@lowers(aten.full.default, aten.full_like.default, aten.new_full.default, aten.fill.Scalar)
def full(b: GraphBuilder, node: Any, *args: Any, **_: Any) -> T:
    _strided(node)
    value = args[2] if node.target is aten.new_full.default else args[1]
    return b.full(out_shape(node), node.meta["val"].dtype, value)


@lowers(aten.fill.Tensor)
def fill_tensor(b: GraphBuilder, node: Any, x: T, value: T) -> T:
    return b.expand(b.convert(value, x.dtype), x.shape)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(b: GraphBuilder, node: Any, value: Any, **_: Any) -> T:
    return b.full((), node.meta["val"].dtype, value)


def _range(b: GraphBuilder, node: Any, start: Operand, step: Operand, wide: torch.dtype) -> T:
    """start + step * i, computed in `wide`."""
    out = node.meta["val"].dtype
    i64 = ir.IntegerType.get_signless(64)

    def number(x: Operand) -> ir.Value:
        return b.number(x, wide) if isinstance(x, Scalar) else scalar(wide, x)  # type: ignore[arg-type]

    def body(coordinates: list[ir.Value]) -> ir.Value:
        i = cast(arith.index_cast(i64, coordinates[0]), torch.int64, wide)
        if wide.is_floating_point:
            return cast(arith.addf(number(start), arith.mulf(number(step), i)), wide, out)
        return cast(arith.addi(number(start), arith.muli(number(step), i)), wide, out)

    return b.from_indices(out_shape(node), [], out, body)


@lowers(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(b: GraphBuilder, node: Any, *args: Any, **_: Any) -> T:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) > 2 else 1)
    # Eager multiplies in double for all floating-point dtypes; for integers it takes the integer parts first.
    if node.meta["val"].dtype.is_floating_point:
        return _range(b, node, start, step, torch.float64)
    start, step = (int(a) if isinstance(a, float) else a for a in (start, step))
    return _range(b, node, start, step, torch.int64)


@lowers(prims.iota.default)
def iota(b: GraphBuilder, node: Any, length: Any, *, start: Any, step: Any, **_: Any) -> T:
    return _range(b, node, start, step, torch.int64)
