"""Loop building: scf.for from numbers, lane loops with unrolled vectors and a masked tail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...dialects import builders
from ...dialects.mlir import arith, ir, llvm, scf, vector
from ..interleave import INTERLEAVE
from .evaluate import Evaluator
from .lanes import Arithmetic, Index, Number

Values = list[ir.Value]


def loop(
    e: Evaluator, begin: Number, end: Number, step: Number, carried: Sequence[ir.Value], body: Callable[[Number, Values], Values],
    interleave: bool = False,
) -> Values:  # fmt: skip
    """`for i = begin to end step`, with loop-carried values; none or one iteration known beforehand needs no loop.

    `interleave` has chains in it take turns (`passes.interleave`).
    """
    if isinstance(begin, int) and isinstance(end, int):
        if end <= begin:
            return list(carried)
        if isinstance(step, int) and end - begin <= step:
            return body(begin, list(carried))
    m = e.math
    op = scf.ForOp(m.value(begin), m.value(end), m.value(step), list(carried))
    if interleave:
        op.operation.attributes[INTERLEAVE] = ir.UnitAttr.get()
    e.math.enter(op.operation if isinstance(begin, int) and isinstance(end, int) else None)
    with ir.InsertionPoint(op.body):
        out = body(op.induction_variable, list(op.inner_iter_args))
        scf.YieldOp(out)
    e.math.leave()
    return list(op.results)


def each_row(e: Evaluator, count: Number | None, rows: Sequence[Index], build: Callable[[Index], None]) -> None:
    """Row after row of a tile; `count` rows, at least one, or all.

        build(row 0);  if 1 < count: build(row 1);  if 2 < count: ...

    What rows have in common belongs to the first. Rows that there are not cost one branch.
    """

    def from_row(i: int) -> None:
        build(rows[i])
        if i + 1 < len(rows):
            less(e, i + 1, len(rows) if count is None else count, lambda: from_row(i + 1))

    from_row(0)


def less(e: Evaluator, a: Number, b: Number, build: Callable[[], None]) -> None:
    """What is built if a < b, without an `if` where that is known."""
    if isinstance(a, int) and isinstance(b, int):
        if a < b:
            build()
        return
    branch = scf.IfOp(arith.cmpi(arith.CmpIPredicate.slt, e.math.value(a), e.math.value(b)))
    with ir.InsertionPoint(branch.then_block):
        e.math.enter()
        build()
        scf.YieldOp([])
        e.math.leave()


def either(e: Evaluator, condition: ir.Value, build: Callable[[], object], build_else: Callable[[], object]) -> None:
    """What is built where the condition holds, and where it does not."""
    branch = scf.IfOp(condition, has_else=True)
    for block, what in ((branch.then_block, build), (branch.else_block, build_else)):
        with ir.InsertionPoint(block):
            e.math.enter()
            what()
            scf.YieldOp([])
            e.math.leave()


def lane_loop(
    e: Evaluator,
    begin: Number,
    end: Number,
    unroll: int,
    carried: Sequence[Values],
    body: Callable[[Number, Values], Values],
    interleave: bool = False,
    whole: bool = False,
) -> list[Values]:
    """Walk [begin, end) in vectors, `unroll` of them per iteration; `carried[u]` are the accumulators of vector u.

    `body(first element, accumulators)` builds one vector; `e.mask` is set where lanes lie past the end. `interleave` has the vectors
    of an iteration take turns. `whole`: it is known that iterations leave nothing behind them.
    """
    lanes = e.lanes
    block = lanes * unroll
    m = e.math
    width = len(carried[0]) if carried else 0
    sets = [list(c) for c in carried] if carried else [[] for _ in range(unroll)]

    def full(i: Number, flat: Values) -> Values:
        out: Values = []
        for u in range(unroll):
            out += body(m.add(i, u * lanes), flat[u * width : (u + 1) * width])
        return out

    length = m.sub(end, begin)
    if isinstance(length, int):
        flat = loop(e, begin, m.add(begin, length // block * block), block, [v for s in sets for v in s], full, interleave)
        sets = [flat[u * width : (u + 1) * width] for u in range(unroll)]
        rest = length % block
        at = length - rest
        for u in range(-(-rest // lanes)):
            left = rest - u * lanes
            if left < lanes:
                e.mask = constant_mask(e, left)
            sets[u] = body(m.add(begin, at + u * lanes), sets[u])
            e.mask = None
        return sets
    middle = end if whole else m.add(begin, m.mul(m.floordiv(length, block), block))
    flat = loop(e, begin, middle, block, [v for s in sets for v in s], full, interleave)
    sets = [flat[u * width : (u + 1) * width] for u in range(unroll)]
    if whole:
        return sets

    def tail(i: Number, flat: Values) -> Values:
        e.mask = vector.create_mask(e.math.vector_type(ir.IntegerType.get_signless(1)), [m.value(m.sub(end, i))])
        out = body(i, flat)
        e.mask = None
        return out

    sets[0] = loop(e, middle, end, lanes, sets[0], tail)
    return sets


def constant_mask(e: Evaluator, n: int) -> ir.Value:
    """The first `n` lanes.

    One lane of 512 bits is hidden from LLVM: it would compute in a narrower register, and put that into a wide one of which
    the rest is undefined, which makes every row wait for the one before.
    """
    if n == 1 and e.lanes == 16:
        return e.math.once(("mask", n), lambda: _hidden_lane(e))
    return e.math.once(
        ("mask", n), lambda: vector.constant_mask(e.math.vector_type(ir.IntegerType.get_signless(1)), [n])
    )


def _hidden_lane(e: Evaluator) -> ir.Value:
    i64 = ir.IntegerType.get_signless(64)
    # The status word has an address, but LLVM does not know that.
    there = arith.cmpi(arith.CmpIPredicate.ne, llvm.ptrtoint(i64, e.status), builders.constant(i64, 0))
    count = arith.select(there, e.math.value(1), e.math.value(0))
    return vector.create_mask(e.math.vector_type(ir.IntegerType.get_signless(1)), [count])


def delinearize(m: Arithmetic, i: Number, counts: Sequence[Number]) -> list[Number]:
    """The coordinates of a linear number in a grid, outermost first."""
    out: list[Number] = []
    for n in reversed(counts[1:]):
        out.append(m.mod(i, n))
        i = m.floordiv(i, n)
    return [i, *reversed(out)] if counts else []
