"""What a reduction does with its accumulators: where they start, what an element does to them, how parts become the whole.

The extremes of floats that keep NaN have two accumulators, what is combined and what was NaN: a maximum that keeps NaN takes
three instructions that wait for one another, one that drops NaN takes one, and NaN is found beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects import builders
from ...dialects.mlir import arith, ir, math, vector
from ...errors import CompileError
from .. import structure as st
from .nest import Values

EXTREMES = {"arith.maximumf": arith.CmpFPredicate.OGT, "arith.minimumf": arith.CmpFPredicate.OLT}
"""Those that keep NaN."""
DROPPING_NAN = {"arith.maxnumf": arith.CmpFPredicate.OGT}


def is_nan(x: ir.Value) -> ir.Value:
    return arith.cmpf(arith.CmpFPredicate.UNO, x, x)


def accumulate(op: ir.Operation, combined: ir.Value, accumulators: Values) -> list[ir.Value]:
    """The accumulators after an element. `combined` is what the body of the reduction made of the element and the first of them.

    Of an extreme that keeps NaN: the larger of the element and the best so far, as if NaN were nothing; and the element if it is
    NaN, else what was. Where the best starts as NaN, it stays that.
    """
    best, *nan = accumulators
    name = combiner(op).name
    if not nan and name not in DROPPING_NAN:
        return [multiply_add(combined, best)]
    owner = st.owner(combined)
    assert owner is not None
    element = owner.operands[1] if owner.operands[0] == best else owner.operands[0]
    better = arith.select(arith.cmpf((EXTREMES | DROPPING_NAN)[name], element, best), element, best)
    return [better, arith.select(is_nan(element), element, nan[0])] if nan else [better]


def by_reduction(reductions: Sequence[ir.Operation], carried: Values) -> list[tuple[ir.Operation, Values]]:
    """Each reduction with its accumulators."""
    out, at = [], 0
    for op in reductions:
        n = 2 if combiner(op).name in EXTREMES else 1
        out.append((op, list(carried[at : at + n])))
        at += n
    return out


def join(reductions: Sequence[ir.Operation], a: Values, b: Values) -> Values:
    """The accumulators of two parts as those of the whole."""
    out = []
    for (op, (x, *nan)), (_, (y, *other)) in zip(by_reduction(reductions, a), by_reduction(reductions, b)):
        if nan:
            better = arith.cmpf(EXTREMES[combiner(op).name], y, x)
            out += [arith.select(better, y, x), arith.select(is_nan(other[0]), other[0], nan[0])]
        else:
            out.append(combine(op, x, y))
    return out


def multiply_add(total: ir.Value, acc: ir.Value) -> ir.Value:
    """`acc + a * b` with one rounding: sums are reassociated anyway."""
    op = st.owner(total)
    if op is None or op.name != "arith.addf" or acc not in list(op.operands):
        return total
    term = op.operands[1] if op.operands[0] == acc else op.operands[0]
    product = st.owner(term)
    if product is None or product.name != "arith.mulf" or term.type != acc.type:
        return total
    return math.fma(*product.operands, acc)


def combiner(op: ir.Operation) -> ir.Operation:
    """The op of a reduction's body that combines the accumulator with an element."""
    block = op.regions[0].blocks[0]
    accumulator = list(block.arguments)[-1]
    users = [st.operation(u.owner) for u in accumulator.uses]
    if len(users) != 1 or len(users[0].operands) != 2:
        raise CompileError("a reduction that is not one combining op")
    return users[0]


_KINDS = {
    "arith.addf": ("ADD", -0.0),  # 0.0 + x is not x where that is -0.0
    "arith.addi": ("ADD", 0),
    "arith.mulf": ("MUL", 1.0),
    "arith.muli": ("MUL", 1),
    "arith.maximumf": ("MAXIMUMF", float("-inf")),
    "arith.maxnumf": ("MAXNUMF", float("-inf")),
    "arith.minimumf": ("MINIMUMF", float("inf")),
    "arith.maxsi": ("MAXSI", "min"),
    "arith.minsi": ("MINSI", "max"),
    "arith.maxui": ("MAXUI", 0),
    "arith.minui": ("MINUI", "ones"),
    "arith.andi": ("AND", "ones"),
    "arith.ori": ("OR", 0),
}


def neutral(op: ir.Operation) -> ir.Value:
    kind = builders.element_type(op.results[0])
    name = combiner(op).name
    if name not in _KINDS:
        raise CompileError(f"no neutral element for a reduction with {name}")
    value = _KINDS[name][1]
    if isinstance(value, str):
        width = kind.width
        value = {"min": -(1 << (width - 1)), "max": (1 << (width - 1)) - 1, "ones": -1}[value]
        if width == 1:
            value = {"min": 1, "max": 0, "ones": 1}[_KINDS[name][1]]  # type: ignore[index]
    return builders.constant(kind, value)  # type: ignore[arg-type]


def combine(op: ir.Operation, a: ir.Value, b: ir.Value) -> ir.Value:
    if (better := DROPPING_NAN.get(combiner(op).name)) is not None:
        return arith.select(arith.cmpf(better, b, a), b, a)  # no accumulator is NaN
    return ir.Operation.create(combiner(op).name, results=[a.type], operands=[a, b]).results[0]


def across(op: ir.Operation, value: ir.Value, init: ir.Value) -> ir.Value:
    """Combine the lanes of a vector, and what the reduction starts from."""
    name, element = combiner(op).name, value.type.element_type
    kind = getattr(vector.CombiningKind, _KINDS[name][0])
    if name in ("arith.addf", "arith.mulf"):  # sums may be reassociated
        return vector.reduction(element, kind, value, acc=init, fastmath=arith.FastMathFlags.reassoc)
    # What an extreme is taken of is never NaN, see `accumulate`.
    fast = arith.FastMathFlags.nnan if name in EXTREMES | DROPPING_NAN else None
    return combine(op, vector.reduction(element, kind, value, fastmath=fast), init)
