"""The dialect `mlirc`: tensor ops that linalg has no words for.

    %r = "mlirc.scatter"(%init, %updates, %rows) {combine = "arith.addf", index_map = (d0, d1) -> (d0),
                                                  target = array<i64: -1, 1>, ...}

for every point (d0, d1) of %updates, in order: %r[%rows[d0], d1] += %updates[d0, d1]. `target` says for each dim of the
result which dim of the updates it is, or -1 - k where index tensor k decides; `index_map` says which of its elements
belongs to a point of the updates (index tensors have one type). `combine` is the arith op that joins the old element with
the update, or "set". An update whose index is out of range is dropped and sets the kernel's status. The kernel writes into
the memory of %init (see `passes.in_place`). Dims that no index tensor decides may be walked over in part: `mlirc.offsets`
says where this part of each begins, 0 without it. There may be no index tensor at all.

    %order, %ends = "mlirc.bucket"(%rows, %space)
    %r = "mlirc.segments"(%init, %sorted, %ends) {combine, target: as above}

The same, with the updates of each row together: %order has the numbers of the updates by row, in their order within it, and those of row r end
at %ends[r], where those of row r + 1 begin. %space says how many rows there are. %sorted are the updates in this order. An index out of range
sets the status, and no row has updates then (%order is zeros). Each row is computed by itself, and so %init is only read: it may be computed in the kernel, and the result be read there.

    %s = "mlirc.scan"(%x) {combine = "arith.addf", dim = 1}

running totals along `dim`, computed in %x's element type and rounded to that of the result.

    %y = "mlirc.silu"(%x) : (f32) -> f32

and the other names in `FUNCTIONS`: functions of a scalar (in the kernel also of vectors) that would lose accuracy if they
were put together from ops of the math dialect; `softmax_exp` and `coarse_softmax_exp` are e^x, f32, for x <= 0 in a softmax of f32 and of 16 bits: 0 where it is next to nothing. And `mlirc.atan2`, as MLIR folds math.atan2 of two zeros to NaN. `passes.expand_math` makes arithmetic of them.
"""

# Not `from __future__ import annotations`: the fields below are read as types.
from collections.abc import Sequence
from typing import Any

from .mlir import ext, ir


class Mlirc(ext.Dialect, name="mlirc"):  # type: ignore[call-arg]
    pass


class ScatterOp(Mlirc.Operation, name="scatter"):  # type: ignore[call-arg, name-defined]
    init: ext.Operand[Any]
    updates: ext.Operand[Any]
    indices: Sequence[ext.Operand[Any]]
    target: Any
    index_map: Any
    combine: Any
    result: ext.Result[Any]


class SegmentsOp(Mlirc.Operation, name="segments"):  # type: ignore[call-arg, name-defined]
    init: ext.Operand[Any]
    updates: ext.Operand[Any]
    ends: ext.Operand[Any]
    target: Any
    combine: Any
    result: ext.Result[Any]


class BucketOp(Mlirc.Operation, name="bucket"):  # type: ignore[call-arg, name-defined]
    index: ext.Operand[Any]
    space: ext.Operand[Any]
    order: ext.Result[Any]
    ends: ext.Result[Any]


class ScanOp(Mlirc.Operation, name="scan"):  # type: ignore[call-arg, name-defined]
    x: ext.Operand[Any]
    dim: Any
    combine: Any
    result: ext.Result[Any]


FUNCTIONS = ("sigmoid", "silu", "mish", "gelu", "gelu_tanh", "softmax_exp", "coarse_softmax_exp")


def _function(name: str) -> type:
    class Function(Mlirc.Operation, name=name):  # type: ignore[call-arg, name-defined]
        x: ext.Operand[Any]
        result: ext.Result[Any]

    return Function


class Atan2(Mlirc.Operation, name="atan2"):  # type: ignore[call-arg, name-defined]
    y: ext.Operand[Any]
    x: ext.Operand[Any]
    result: ext.Result[Any]


_FUNCTIONS = {**{name: _function(name) for name in FUNCTIONS}, "atan2": Atan2}


def function(name: str, *operands: ir.Value) -> ir.Value:
    """One of `FUNCTIONS`, or atan2, of scalars of one type."""
    load()
    return _FUNCTIONS[name](*operands, result=operands[0].type).result


SET = "set"
CHECK_FIRST = "mlirc.check_first"
"""Attribute of a scatter that writes nothing at all if an index is out of range."""
OFFSETS = "mlirc.offsets"


def load() -> None:
    """Make the current context know the dialect; it may be loaded already."""
    if not ir.Context.current.is_dialect_loaded("mlirc"):
        Mlirc.load()


def load_for(text: str) -> None:
    """`load`, if a module with this text needs it: a millisecond for each kernel otherwise."""
    if '"mlirc.' in text:
        load()


def scatter(
    init: ir.Value,
    updates: ir.Value,
    indices: Sequence[ir.Value],
    index_map: ir.AffineMap,
    target: Sequence[int],
    combine: str,
    offsets: Sequence[int] = (),
) -> ir.Value:
    load()
    result: ir.Value = ScatterOp(
        init,
        updates,
        list(indices),
        ir.DenseI64ArrayAttr.get(list(target)),
        ir.AffineMapAttr.get(index_map),
        ir.StringAttr.get(combine),
        result=init.type,
    ).result
    if any(offsets):
        result.owner.attributes[OFFSETS] = ir.DenseI64ArrayAttr.get(list(offsets))
    return result


def offsets(op: ir.Operation) -> list[int]:
    """Where what a scatter walks over of each dim of its result begins."""
    return list(ir.DenseI64ArrayAttr(op.attributes[OFFSETS])) if OFFSETS in op.attributes else [0] * len(target(op))


def bucket(index: ir.Value, space: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The order of updates by the row that `index` (rank 1, any integer type) names, and where those of each row end.

    Both are i32 where neither can have 2^31 elements, else i64. `space` is a tensor with an element for each row.
    """
    load()
    shapes = [list(v.type.shape) for v in (index, space)]
    element = ir.IntegerType.get_signless(32 if all(0 <= n < 1 << 31 for (n,) in shapes) else 64)
    kinds = [ir.RankedTensorType.get(shape, element) for shape in shapes]
    op = BucketOp(index, space, order=kinds[0], ends=kinds[1])
    return op.order, op.ends


def segments(init: ir.Value, updates: ir.Value, ends: ir.Value, target: Sequence[int], combine: str) -> ir.Value:
    """What a scatter makes, from its updates in the order that `bucket` gives, or of rows that have theirs together."""
    load()
    return SegmentsOp(init, updates, ends, ir.DenseI64ArrayAttr.get(list(target)), ir.StringAttr.get(combine), result=init.type).result


def indices(op: ir.Operation) -> list[ir.Value]:
    """The index tensors of a scatter; none if its updates are in buckets."""
    return list(op.operands)[2:] if op.name == "mlirc.scatter" else []


def scan(x: ir.Value, dim: int, combine: str, element: ir.Type) -> ir.Value:
    load()
    kind = ir.RankedTensorType.get(list(x.type.shape), element)
    i64 = ir.IntegerType.get_signless(64)
    return ScanOp(x, ir.IntegerAttr.get(i64, dim), ir.StringAttr.get(combine), result=kind).result


def target(op: ir.Operation) -> list[int]:
    """`target` of a scatter."""
    return list(ir.DenseI64ArrayAttr(op.attributes["target"]))


def index_map(op: ir.Operation) -> ir.AffineMap:
    """`index_map` of a scatter."""
    return ir.AffineMapAttr(op.attributes["index_map"]).value


def combine(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["combine"]).value


def free_loops(op: ir.Operation) -> list[int]:
    """Dims of a scatter's updates whose points never write to the same place: threads and lanes may share them."""
    return [t for t in target(op) if t >= 0]
