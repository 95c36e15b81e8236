"""Products of rows that lie in groups, each with a matrix of its own: the experts of a mixture.

    for each group g: result[ends[g - 1] : ends[g]] = x[ends[g - 1] : ends[g]] @ w[g]

One op says that as a sum over all groups, of which a row is in one; `passes.ragged` makes a kernel of it that walks over the groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...dialects import builders
from ...dialects.mlir import arith, ir, linalg, tensor
from ...passes.strategy.packing import packed_in_vain
from ..dtypes import cast, compute_dtype, scalar
from ..extents import Extent
from ..graph_builder import GraphBuilder, T
from ..memory_order import hint
from ..registry import Unsupported, lowers
from .contractions import bmm

aten = torch.ops.aten


@lowers(aten._grouped_mm.default)
def grouped_mm(b: GraphBuilder, node: Any, x: T, w: T, offs: T | None = None, bias: T | None = None, out_dtype: torch.dtype | None = None) -> T:
    """x [s, k], w [groups, k, n], offs [groups] -> [s, n]; or x [groups, s, k] without `offs`, which is a product with a batch.

    Rows behind the last group, which ATen leaves as its memory was, are zero.
    """
    if bias is not None or out_dtype not in (None, x.dtype):
        raise Unsupported("a bias or another dtype of the result")
    if offs is None:
        return bmm(b, node, x, w)
    if (x.rank, w.rank) != (2, 3):
        raise Unsupported("groups of columns, or of what is summed up, are ATen's")
    return _product(b, node, x, w, offs)


@lowers("transformers::grouped_mm_fallback")
def grouped_mm_of_transformers(b: GraphBuilder, node: Any, input: T, weight: T, offs: T) -> T:
    """What transformers calls for dtypes for which it does not call `grouped_mm`: rows behind the last group are zero."""
    return _product(b, node, input, weight, offs)


@lowers("transformers::grouped_mm_fallback_backward")
def gradients_of_transformers(b: GraphBuilder, node: Any, input: T, weight: T, offs: T, grad_output: T) -> list[T]:
    """input [s, k], weight [groups, k, n], grad_output [s, n] -> gradients of input and weight; that of a group without rows is zero."""
    of_weight = node.args[1].meta["val"]
    _check(b, node, input, weight, of_weight.transpose(-1, -2))
    of_input = _rows_times_matrices(b, grad_output, b.permute(weight, (0, 2, 1)), offs)
    if of_weight.stride(-1) != 1:  # a transposed weight, whose gradient will be transposed back
        return [of_input, b.permute(_sums(b, grad_output, input, offs, weight.shape[0]), (0, 2, 1))]
    return [of_input, _sums(b, input, grad_output, offs, weight.shape[0])]


def _product(b: GraphBuilder, node: Any, x: T, w: T, ends: T) -> T:
    _check(b, node, x, w, node.args[1].meta["val"])
    return _rows_times_matrices(b, x, w, ends)


def _check(b: GraphBuilder, node: Any, x: T, w: T, matrices: torch.Tensor) -> None:
    """Raises Unsupported for what is ATen's; `matrices`, as they lie, are those that rows are multiplied with."""
    if not all(isinstance(n, int) and n > 0 for n in w.shape):
        raise Unsupported("groups of which sizes are unknown or zero are ATen's")
    if not x.dtype.is_floating_point or x.dtype != w.dtype:
        raise Unsupported(f"groups of {x.dtype} and {w.dtype}")
    sizes, strides = (tuple(map(hint, n)) for n in (matrices.shape, matrices.stride()))
    rows = hint(node.args[0].meta["val"].shape[0])
    if not b.keeps(node.args[1]) and packed_in_vain(sizes, strides, rows, x.dtype.itemsize, x.dtype == torch.bfloat16):
        raise Unsupported("matrices that change from call to call would be packed in each, all of them, which takes longer than it saves")


def _rows_times_matrices(b: GraphBuilder, x: T, w: T, ends: T) -> T:
    """x [s, k], w [groups, k, n] of known sizes, ends [groups] -> [s, n], summed in what is computed in, and rounded once."""
    s, n, k, g = range(4)
    return _grouped(b, x, w, ends, ((s, k), (g, k, n), (s, n)), "pprr", (s, g), (x.shape[0], w.shape[2]))


def _sums(b: GraphBuilder, x: T, y: T, ends: T, groups: Extent) -> T:
    """x [s, k], y [s, n], ends [groups] -> [groups, k, n]: the products of the rows of each group, transposed, and rows."""
    k, n, s, g = range(4)
    return _grouped(b, x, y, ends, ((s, k), (s, n), (g, k, n)), "pprp", (s, g), (groups, x.shape[1], y.shape[1]))


def _grouped(
    b: GraphBuilder, x: T, y: T, ends: T, dims: Sequence[Sequence[int]], iterators: str, loops: tuple[int, int], shape: tuple[Extent, ...]
) -> T:
    """A product with a loop over rows and one over groups of them, the last one: of each row, in the group that it is in.

    `dims` are the loops over the dims of both operands and of the result, `loops` those over rows and groups. `passes.ragged` takes apart what
    `body` makes: where `ends` fall, so that a row would be in several groups, the last of them has it, as in ATen.
    """
    acc = compute_dtype(x.dtype)

    def body(u: ir.Value, v: ir.Value, total: ir.Value) -> list[ir.Value]:
        row, group = (linalg.IndexOp(d).result for d in loops)
        before = arith.maxsi(arith.subi(group, builders.index(1)), builders.index(0))
        end, previous = (arith.index_cast(ir.IndexType.get(), tensor.extract(ends.value, [at])) for at in (group, before))
        first = arith.cmpi(arith.CmpIPredicate.eq, group, builders.index(0))
        begin = arith.select(first, builders.index(0), previous)
        inside = arith.andi(arith.cmpi(arith.CmpIPredicate.sge, row, begin), arith.cmpi(arith.CmpIPredicate.slt, row, end))
        product = arith.mulf(cast(u, x.dtype, acc), cast(v, y.dtype, acc))
        return [arith.addf(total, arith.select(inside, product, scalar(acc, 0)))]

    init = builders.fill(b.sizes(shape), scalar(acc, 0))
    (value,) = builders.generic([x.value, y.value], [init], [builders.projection(4, d) for d in dims], iterators, body, "contraction")
    value.owner.attributes["mlirc.ragged"] = ir.DenseI64ArrayAttr.get(loops)
    return b.convert(T(value, shape, acc), x.dtype)
