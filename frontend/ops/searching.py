"""searchsorted, bucketize and repeat_interleave: a binary search for each value, with as many steps as the longest one needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...dialects import builders, own
from ...dialects.mlir import arith, cf, ir, tensor
from ..dtypes import cast, mlir_type, scalar
from ..extents import Extent, same
from ..graph_builder import GraphBuilder, Operand, T
from ..registry import Unsupported, lowers
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
    # ATen has a number in the type of the sequence.
    x = values if isinstance(values, T) else b.full((), sequence.dtype if d.is_floating_point and sequence.dtype.itemsize == 2 else d, values)
    lead = sequence.rank - 1

    def body(at: list[Value], v: Value) -> Value:
        v = cast(v, x.dtype, d)

        def behind(place: Value) -> Value:
            """Whether the value comes before what is at a place."""
            if sorter is not None:
                place = b.checked_index(tensor.extract(sorter.value, [*at[:lead], place]), sorter.dtype, n, wrap=False)
            u = cast(tensor.extract(sequence.value, [*at[:lead], place]), sequence.dtype, d)
            return s.gt(d, u, v) if right else s.ge(d, u, v)

        return cast(_first(b, n, behind), torch.int64, out)

    return b.from_indices(shape, [x], out, body)


def _first(b: GraphBuilder, n: Extent, there: Callable[[Value], Value]) -> Value:
    """The first of `n` places from which on it is `there`, as an i64; `n` if there is none."""
    first, last, two = builders.index(0), b.index(n), builders.index(2)
    for _ in range(n.bit_length() if isinstance(n, int) else 63):
        open_ = arith.cmpi(INT.slt, first, last)
        middle = arith.addi(first, arith.divui(arith.subi(last, first), two))
        found = there(arith.select(open_, middle, builders.index(0)))
        before = arith.andi(open_, arith.xori(found, scalar(torch.bool, 1)))
        behind = arith.andi(open_, found)
        first = arith.select(before, arith.addi(middle, builders.index(1)), first)
        last = arith.select(behind, middle, last)
    return arith.index_cast(ir.IntegerType.get_signless(64), first)


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


@lowers(aten.repeat_interleave.Tensor)
def repeat_interleave(b: GraphBuilder, node: Any, repeats: T, *, output_size: Any = None) -> T:
    """Place k has the first element whose running total is above k. Its kernel raises for negative repeats and another total than the size."""
    n = repeats.shape[0]
    if output_size is None or same(n, 0):
        raise Unsupported("the size of the result is known at run time only" if output_size is None else "nothing to repeat")
    counts = b.convert(repeats, torch.int64)
    totals = counts if same(n, 1) else T(own.scan(counts.value, 0, "arith.addi", mlir_type(torch.int64)), counts.shape, torch.int64)
    least = b.reduce(counts, [0], "min", keepdim=False)

    def body(at: list[Value]) -> Value:
        k, one, size = arith.index_cast(ir.IntegerType.get_signless(64), at[0]), builders.index(1), b.index(n)
        nothing = arith.cmpi(INT.eq, size, builders.index(0))
        total = tensor.extract(totals.value, [arith.select(nothing, size, arith.subi(size, one))])
        total = arith.index_cast(ir.IndexType.get(), arith.select(nothing, scalar(torch.int64, 0), total))
        positive = arith.cmpi(INT.sge, tensor.extract(least.value, []), scalar(torch.int64, 0))
        fits = arith.cmpi(INT.eq, total, b.index(out_shape(node)[0]))
        cf.assert_(fits, "SizeError")
        cf.assert_(arith.ori(positive, arith.xori(fits, scalar(torch.bool, 1))), "RepeatError")
        place = _first(b, n, lambda place: arith.cmpi(INT.sgt, tensor.extract(totals.value, [place]), k))
        place = arith.select(fits, place, scalar(torch.int64, 0))  # so that what reads there has nothing of its own to raise
        return cast(place, torch.int64, repeats.dtype)

    return b.from_indices(out_shape(node), [], repeats.dtype, body)
