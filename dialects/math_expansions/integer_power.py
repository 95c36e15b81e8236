"""ipowi: powers of integers, by repeated squaring."""

from __future__ import annotations

from ..mlir import ir, scf
from .num import Num, any_lane, select


def ipowi(base: Num, exponent: Num) -> Num:
    """base^exponent, wrapping as multiplication does. A negative exponent gives 0, but for the bases 1 and -1."""
    constant = _splat_constant(exponent.value)
    if constant is not None and 0 <= constant <= 64:
        return _known_power(base, constant)
    negative = exponent < 0
    unit = base.equals(1) | base.equals(-1)
    base = select(negative & (unit ^ True), base.like(0), base)
    exponent = select(negative, (exponent & 1) + 2, exponent)

    types = [base.type] * 3
    loop = scf.WhileOp(types, [base.like(1).value, base.value, exponent.value])
    locations = [ir.Location.current] * 3
    before = loop.before.blocks.append(*types, arg_locs=locations)
    with ir.InsertionPoint(before):
        left = Num(before.arguments[2])
        scf.ConditionOp(any_lane(left > 0), list(before.arguments))
    after = loop.after.blocks.append(*types, arg_locs=locations)
    with ir.InsertionPoint(after):
        result, square, left = (Num(a) for a in after.arguments)
        result = select((left & 1).equals(1), result * square, result)
        scf.YieldOp([result.value, (square * square).value, (left >> 1).value])
    return Num(loop.results[0])


def _known_power(base: Num, exponent: int) -> Num:
    result, square = None, base
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        exponent >>= 1
        if exponent:
            square = square * square
    return base.like(1) if result is None else result


def _splat_constant(value: ir.Value) -> int | None:
    owner = value.owner
    if not isinstance(owner, ir.Operation) and not isinstance(owner, ir.OpView):
        return None
    if owner.name != "arith.constant":
        return None
    attribute = owner.attributes["value"]
    if isinstance(attribute, ir.IntegerAttr):
        return attribute.value
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        return ir.IntegerAttr(attribute.get_splat_value()).value
    return None
