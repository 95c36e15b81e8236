"""Products of rows that lie in groups, each with a matrix of its own: the experts of a mixture.

    for each group g: result[ends[g - 1] : ends[g]] = x[ends[g - 1] : ends[g]] @ w[g]

One op says that as a sum over all groups, of which a row is in one; `passes.ragged` makes a kernel of it that walks over the groups.
"""

from __future__ import annotations

from typing import Any

import torch

from ...dialects import builders
from ...dialects.mlir import arith, ir, linalg, tensor
from ..dtypes import cast, compute_dtype, scalar
from ..graph_builder import GraphBuilder, T
from ..registry import Unsupported, lowers

aten = torch.ops.aten


@lowers(aten._grouped_mm.default)
def grouped_mm(b: GraphBuilder, node: Any, x: T, w: T, offs: T | None = None, bias: T | None = None, out_dtype: torch.dtype | None = None) -> T:
    """x [s, k], w [groups, k, n], offs [groups] -> [s, n]; or x [groups, s, k] without `offs`, which is a product with a batch.

    Rows behind the last group, which ATen leaves as its memory was, are zero.
    """
    if bias is not None or out_dtype not in (None, x.dtype):
        raise Unsupported("a bias or another dtype of the result")
    if offs is None:
        return b.convert(b.contract(x, w, ("bmk", "bkn", "bmn"), (x.shape[0], x.shape[1], w.shape[2])), x.dtype)
    if (x.rank, w.rank) != (2, 3):
        raise Unsupported("groups of columns, or of what is summed up, are ATen's")
    return _product(b, x, w, offs)


@lowers("transformers::grouped_mm_fallback")
def grouped_mm_of_transformers(b: GraphBuilder, node: Any, input: T, weight: T, offs: T) -> T:
    """What transformers calls for dtypes for which it does not call `grouped_mm`: rows behind the last group are zero."""
    return _product(b, input, weight, offs)


def _product(b: GraphBuilder, x: T, w: T, ends: T) -> T:
    """x [s, k], w [groups, k, n] of known sizes, ends [groups] -> [s, n], summed in what is computed in, and rounded once."""
    if not all(isinstance(n, int) and n > 0 for n in w.shape):
        raise Unsupported("groups of which sizes are unknown or zero are ATen's")
    if not x.dtype.is_floating_point or x.dtype != w.dtype:
        raise Unsupported(f"groups of {x.dtype} and {w.dtype}")
    groups, _, columns = w.shape
    acc, out = compute_dtype(x.dtype), (x.shape[0], columns)
    s, n, k, g = range(4)  # the loop over the groups is the last one, so that the others keep their numbers without it
    maps = [builders.projection(4, dims) for dims in ((s, k), (g, k, n), (s, n))]

    def body(u: ir.Value, v: ir.Value, total: ir.Value) -> list[ir.Value]:
        row, group = (linalg.IndexOp(d).result for d in (s, g))
        before = arith.maxsi(arith.subi(group, builders.index(1)), builders.index(0))
        end, previous = (_place(tensor.extract(ends.value, [at])) for at in (group, before))
        first = arith.cmpi(arith.CmpIPredicate.eq, group, builders.index(0))
        begin = arith.select(first, builders.index(0), previous)
        inside = arith.andi(arith.cmpi(arith.CmpIPredicate.sge, row, begin), arith.cmpi(arith.CmpIPredicate.slt, row, end))
        product = arith.mulf(cast(u, x.dtype, acc), cast(v, w.dtype, acc))
        return [arith.addf(total, arith.select(inside, product, scalar(acc, 0)))]

    init = builders.fill(b.sizes(out), scalar(acc, 0))
    (value,) = builders.generic([x.value, w.value], [init], maps, "pprr", body, "contraction")
    value.owner.attributes["mlirc.ragged"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), g)
    return b.convert(T(value, out, acc), x.dtype)


def _place(value: ir.Value) -> ir.Value:
    return arith.index_cast(ir.IndexType.get(), value)
