"""Sums, means and maxima of the rows of a table, bag after bag.

    for each bag: result[bag] = sum of table[indices[e]] for e = offsets[bag] to offsets[bag + 1]

Bags are the segments of `mlirc.segments`, whose sums stay in registers while rows to come are fetched. Rows of two bytes are summed in f32.
"""

from __future__ import annotations

from typing import Any

import torch

from ...dialects import builders, own
from ...dialects.mlir import arith, cf, tensor
from ..dtypes import cast, compute_dtype, scalar
from ..extents import same
from ..graph_builder import GraphBuilder, T
from ..registry import Unsupported, lowers
from .reductions import is_used

aten = torch.ops.aten

SUM, MEAN, MAX = 0, 1, 2


@lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    b: GraphBuilder, node: Any, weight: T, indices: T, offsets: T, scale_grad_by_freq: bool = False, mode: int = SUM, sparse: bool = False,
    per_sample_weights: T | None = None, include_last_offset: bool = False, padding_idx: int = -1,
) -> list[T | None]:  # fmt: skip
    """weight [n, d], indices [e], offsets [bags], or [bags + 1] with the last end -> [bags, d]; the other results are those of gradients.

    Offsets that do not begin with 0, or are no places among the indices, are IndexErrors, as are indices that are no rows.
    """
    if padding_idx >= 0:
        raise Unsupported("bags with padding are ATen's")
    if any(is_used(node, i) for i in (1, 2, 3)):
        raise Unsupported("what bags consist of is ATen's to say")
    if not isinstance(weight.shape[1], int) or weight.shape[1] <= 1 or any(same(indices.shape[0], n) for n in (0, 1)) or same(weight.shape[0], 0):
        raise Unsupported("bags of one index or none, of single numbers, or of rows of unknown length, are ATen's")
    d, width = compute_dtype(weight.dtype), weight.shape[1]
    bags = offsets.shape[0] - int(include_last_offset)
    ends = _ends(b, offsets, indices, bags, include_last_offset)
    rows = b.from_indices(
        (indices.shape[0], width), [b.reshape(indices, (indices.shape[0], 1))], weight.dtype,
        lambda at, i: tensor.extract(weight.value, [b.checked_index(i, indices.dtype, weight.shape[0], wrap=False), at[1]]),
    )  # fmt: skip
    rows = b.convert(rows, d)
    if per_sample_weights is not None:
        rows = b.pointwise(rows.shape, [rows, b.reshape(per_sample_weights, (indices.shape[0], 1))], d, d, d, arith.mulf)
    init = b.full((bags, width), d, float("-inf") if mode == MAX else 0)
    combine = "arith.maximumf" if mode == MAX else "arith.addf"
    out = T(own.segments(init.value, rows.value, ends.value, [-1, 1], combine), (bags, width), d)
    if mode != SUM:
        begins = b.slice(offsets, [0], [bags], [1])
        sizes = b.pointwise((bags,), [ends, begins], torch.int64, torch.int64, torch.int64, arith.subi)
        out = b.pointwise(out.shape, [out, b.reshape(sizes, (bags, 1))], (d, torch.int64), d, d, _finish(d, mode))
    return [b.convert(out, weight.dtype), None, None, None]


def _finish(d: torch.dtype, mode: int) -> Any:
    """The mean or the largest of a bag, 0 of an empty one."""

    def finish(total: Any, size: Any) -> Any:
        some = arith.cmpi(arith.CmpIPredicate.sgt, size, scalar(torch.int64, 0))
        value = total if mode == MAX else arith.divf(total, cast(size, torch.int64, d))
        return arith.select(some, value, scalar(d, 0))

    return finish


def _ends(b: GraphBuilder, offsets: T, indices: T, bags: Any, include_last_offset: bool) -> T:
    """Where each bag ends: at the offset of the next one, or at the end of the indices."""
    count = indices.shape[0]

    def end(at: list[Any], begin: Any) -> Any:
        begin = cast(begin, offsets.dtype, torch.int64)
        first = arith.cmpi(arith.CmpIPredicate.eq, at[0], builders.index(0))
        zero = arith.cmpi(arith.CmpIPredicate.eq, begin, scalar(torch.int64, 0))
        cf.assert_(arith.select(first, zero, scalar(torch.bool, 1)), "IndexError: offsets[0] is not 0")
        following = arith.addi(at[0], builders.index(1))
        is_last = arith.cmpi(arith.CmpIPredicate.eq, following, b.index(offsets.shape[0]))
        following = tensor.extract(offsets.value, [arith.select(is_last, at[0], following)])
        place = arith.index_cast(builders.index(0).type, cast(following, offsets.dtype, torch.int64))
        place = arith.select(is_last, b.index(count), place)
        inside = arith.cmpi(arith.CmpIPredicate.ule, place, b.index(count))
        cf.assert_(inside, "IndexError: an offset is out of range")
        return arith.index_cast(scalar(torch.int64, 0).type, arith.select(inside, place, builders.index(0)))

    return b.from_indices((bags,), [b.slice(offsets, [0], [bags], [1])], torch.int64, end)
