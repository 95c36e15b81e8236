"""searchsorted and bucketize: a binary search for each value, with as many steps as the longest one needs."""

from __future__ import annotations

from typing import Any

import torch

from ...dialects import builders
from ...dialects.mlir import arith, ir, tensor
from ..dtypes import cast, scalar
from ..graph_builder import GraphBuilder, Operand, T
from ..registry import lowers
from . import scalars as s
from .pointwise import out_shape, promote

aten = torch.ops.aten
Value = ir.Value
INT = arith.CmpIPredicate


def _search(b: GraphBuilder, node: Any, sequence: T, values: Operand, right: bool, sorter: T | None) -> T:
    """For each value, the first place (`right`: behind the last one) where it can be put into the sorted last dim.

    The steps are ATen's, so that the results are too where a sequence is not sorted or holds NaN.
    """
    shape, out = out_shape(node), node.meta["val"].dtype
    d = promote([node.args[0], node.args[1]])
    n = sequence.shape[-1]
    steps = n.bit_length() if isinstance(n, int) else 63
    # ATen has a number in the type of the sequence.
    x = values if isinstance(values, T) else b.full((), sequence.dtype if d.is_floating_point and sequence.dtype.itemsize == 2 else d, values)
    lead = sequence.rank - 1

    def body(at: list[Value], v: Value) -> Value:
        v = cast(v, x.dtype, d)
        first, last, two = builders.index(0), b.index(n), builders.index(2)
        for _ in range(steps):
            open_ = arith.cmpi(INT.slt, first, last)
            middle = arith.addi(first, arith.divui(arith.subi(last, first), two))
            place = arith.select(open_, middle, builders.index(0))
            if sorter is not None:
                place = b.checked_index(tensor.extract(sorter.value, [*at[:lead], place]), sorter.dtype, n, wrap=False)
            u = cast(tensor.extract(sequence.value, [*at[:lead], place]), sequence.dtype, d)
            there = s.gt(d, u, v) if right else s.ge(d, u, v)
            before = arith.andi(open_, arith.xori(there, scalar(torch.bool, 1)))
            behind = arith.andi(open_, there)
            first = arith.select(before, arith.addi(middle, builders.index(1)), first)
            last = arith.select(behind, middle, last)
        return cast(arith.index_cast(ir.IntegerType.get_signless(64), first), torch.int64, out)

    return b.from_indices(shape, [x], out, body)


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    b: GraphBuilder, node: Any, sequence: T, values: Operand, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: T | None = None,
) -> T:  # fmt: skip
    return _search(b, node, sequence, values, right or side == "right", sorter)


@lowers(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(
    b: GraphBuilder, node: Any, values: Operand, boundaries: T, *, out_int32: bool = False, right: bool = False
) -> T:
    return _search(b, node, boundaries, values, right, None)
