"""How many updates a row has is read off its bucket, where there is one.

    %order, %ends = bucket(%rows, %space)                    %order, %ends = bucket(%rows, %space)
    %n = scatter(zeros, ones, %rows) : f32            ->     %n = generic { %ends[r] - %ends[r - 1] } : f32

Graph networks divide the sum of a row's updates by their number. One after the other, 80,000 updates of 10,000 numbers take 75 us; this takes less
than 10, and is computed where it is read.
Sums of ones in f32 are exact up to 2^24, of which there must be no more; those in 16 bits, which would stay at 256 or 2048, are rounded counts.

Runs after `bucket_updates`.
"""

from __future__ import annotations

from ..dialects import builders, own
from ..dialects.mlir import arith, ir, linalg, tensor
from . import structure as st
from .copies import empty_like
from .layouts import Layouts

PASS_NAME = "mlirc-count-updates"

EXACT = 1 << 24
"""Integers up to here are floats."""


def count_updates(function: ir.Operation) -> bool:
    """Rewrite the scatters of `function` that count; whether there was one."""
    operations = [st.operation(o) for o in function.regions[0].blocks[0].operations]
    place = {op: i for i, op in enumerate(operations)}
    buckets = {op.operands[0]: op for op in operations if op.name == "mlirc.bucket"}
    layouts = Layouts(function)
    counted = []
    for op in operations:
        bucket = buckets.get(op.operands[2]) if op.name == "mlirc.scatter" and _counts(op) else None
        if bucket is None or st.shape(bucket.results[1]) != st.shape(op.results[0]) or not _brought_before(op, bucket, place):
            continue
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(_differences(bucket.results[1], op.results[0], layouts))
        counted.append(op)
    for op in counted:
        op.erase()
    return bool(counted)


def _counts(op: ir.Operation) -> bool:
    """Whether it adds ones to zeros, in static numbers."""
    if len(op.operands) != 3 or own.target(op) != [-1] or own.combine(op) not in ("arith.addf", "arith.addi"):
        return False
    init, updates, _ = op.operands
    few = 0 <= st.shape(updates)[0] <= EXACT and st.shape(init)[0] >= 0
    return few and st.map_dims(own.index_map(op)) == [0] and _is_all(init, 0) and _is_all(updates, 1)


def _is_all(value: ir.Value, number: int) -> bool:
    """Whether all elements are this number, also in another float type."""
    op = st.owner(value)
    if op is None:
        return False
    if op.name == "linalg.generic":
        inputs, names = st.inputs(op), [o.name for o in st.body_ops(op)]
        if inputs:
            return len(names) == 2 and names[0] in ("arith.extf", "arith.truncf") and _is_all(inputs[0], number)
        op = st.owner(st.body_ops(op)[-1].operands[0])
    elif op.name == "linalg.fill":
        op = st.owner(op.operands[0])
    if op is None or op.name != "arith.constant":
        return False
    attribute = op.attributes["value"]
    if isinstance(attribute, ir.DenseElementsAttr):
        if not attribute.is_splat:
            return False
        attribute = attribute.get_splat_value()
    return isinstance(attribute, (ir.FloatAttr, ir.IntegerAttr)) and attribute.value == number


def _brought_before(op: ir.Operation, bucket: ir.Operation, place: dict[ir.Operation, int]) -> bool:
    """Whether the bucket is before an op, or could be brought there."""
    if place[bucket] > place[op]:
        space = st.owner(bucket.operands[1])
        if space is None or space.name != "tensor.empty" or len(space.operands):
            return False
        if place[space] > place[op]:
            space.move_before(op)
            place[space] = place[op]
        bucket.move_before(op)
        place[bucket] = place[op]
    return True


def _differences(ends: ir.Value, like: ir.Value, layouts: Layouts) -> ir.Value:
    """The number of updates of each row, in the type of a tensor."""
    kind = builders.element_type(like)

    def body(end: ir.Value, _: ir.Value) -> list[ir.Value]:
        row, zero = linalg.IndexOp(0).result, builders.index(0)
        first = arith.cmpi(arith.CmpIPredicate.eq, row, zero)
        before = tensor.extract(ends, [arith.maxsi(arith.subi(row, builders.index(1)), zero)])
        number = arith.subi(end, arith.select(first, builders.constant(end.type, 0), before))
        return [_converted(number, kind)]

    maps = [builders.identity(1)] * 2
    return builders.generic([ends], [empty_like(like, layouts)], maps, "p", body)[0]


def _converted(number: ir.Value, kind: ir.Type) -> ir.Value:
    if isinstance(kind, ir.IntegerType):
        if kind.width == number.type.width:
            return number
        return (arith.extsi if kind.width > number.type.width else arith.trunci)(kind, number)
    f32 = ir.F32Type.get()
    if isinstance(kind, (ir.BF16Type, ir.F16Type)):
        return arith.truncf(kind, arith.sitofp(f32, number))
    return arith.sitofp(kind, number)
