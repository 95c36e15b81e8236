"""From which block of columns to which some rows see some, as numbers at run time (`strategy.seen`).

    j - i <= 0:           up to the block of the column that is the number of the last row
    mask[i, j] != 0:      from the first block of columns that has such an element in any of the rows, to the last

There is one block at least: rows that see nothing are computed as they would be.
"""

from __future__ import annotations

from collections.abc import Callable

from ...dialects import builders
from ...dialects.mlir import arith, ir, scf, vector
from ..conditions import Limit, Linear, Mask, Part
from ..strategy.seen import Seen
from . import entry
from .kernel import KernelFunction
from .lanes import Arithmetic, Number
from .memory import storage_type
from .nest import delinearize

Pair = tuple[Number, Number]


def bounds_of(
    seen: Seen, kernel: KernelFunction, m: Arithmetic, size: Callable[[object], Number], place: tuple[Number, Number, Number],
    argument: Callable[[int], ir.Value],
) -> list[Number]:  # fmt: skip
    """The first block of columns, and the one behind the last, of which some rows see some.

    `kernel` is the part that hides columns, `size` gives its sizes as numbers, `place` the number in the batch, the first row and the last one,
    `argument` where the kernel's arguments lie.
    """
    return _Bounds(seen, kernel, m, size, place, argument).run()


class _Bounds:
    def __init__(
        self, seen: Seen, kernel: KernelFunction, m: Arithmetic, size: Callable[[object], Number], place: tuple[Number, Number, Number],
        argument: Callable[[int], ir.Value],
    ) -> None:  # fmt: skip
        self.seen, self.k, self.m, self.argument = seen, kernel, m, argument
        of_batch, self.first, self.last = place
        sizes = kernel.domain.sizes
        self.columns = m.mul(size(sizes[seen.column.walked]), seen.column.each)
        self.at: dict[int, Number] = dict(zip(seen.outer, delinearize(m, of_batch, [size(sizes[c]) for c in seen.outer])))
        self.number = lambda n: size(kernel.arguments[n])

    def run(self) -> list[Number]:
        m, each = self.m, self.seen.block * self.seen.column.each
        lo: Number = 0
        hi = self.columns
        for condition in self.seen.conditions:
            if isinstance(condition, Limit):
                rest = self._beside(condition.of)
                if condition.of.step(self.seen.column.walked) > 0:  # up to the largest of -rest
                    hi = m.minimum(hi, m.add(m.sub(0, self._extreme(rest, least=True)), 1))
                else:
                    lo = m.maximum(lo, self._extreme(rest, least=True))
        most = m.sub(m.ceildiv(self.columns, each), 1)
        begin = m.minimum(m.floordiv(m.maximum(lo, 0), each), most)
        end = m.maximum(m.ceildiv(m.maximum(hi, 0), each), m.add(begin, 1))
        for condition in self.seen.conditions:
            if isinstance(condition, Mask):
                begin, end = self._visible(condition, begin, end)
        return [begin, end]

    def _beside(self, of: Linear) -> Linear:
        """What an index is without the column."""
        column = self.seen.column
        return of.without(column.walked) if column.within is None else of.without(column.walked).without(column.within)

    def _extreme(self, of: Linear, least: bool) -> Number:
        """Over the rows of the block."""
        first = (of.step(self.seen.row) >= 0) == least
        return self._value(of, self.first if first else self.last)

    def _value(self, of: Linear, row: Number) -> Number:
        m = self.m
        out: Number = of.constant
        for term, n in of.steps:
            if isinstance(term, Part):
                whole = self._value(term.of, row)
                at = m.mod(whole, term.by) if term.rest else m.floordiv(whole, term.by)
            else:
                at = row if term == self.seen.row else self.at[term]
            out = m.add(out, m.mul(at, n))
        return out

    def _visible(self, mask: Mask, begin: Number, end: Number) -> Pair:
        """The blocks of these from the first to the last in which a mask hides not all. One that hides little is hardly looked at."""
        m = self.m
        shows = self._shows(mask)
        first = self._walk(begin, 1, lambda i: arith.andi(_less(m, i, m.sub(end, 1)), _not(shows(i))))
        last = self._walk(m.sub(end, 1), -1, lambda i: arith.andi(_less(m, first, i), _not(shows(i))))
        return first, m.add(last, 1)

    def _walk(self, begin: Number, step: int, on: Callable[[ir.Value], ir.Value]) -> ir.Value:
        """`i = begin; while on(i): i += step`."""
        m, index = self.m, ir.IndexType.get()
        walk = scf.WhileOp([index], [m.value(begin)])
        for region, last in ((walk.before, True), (walk.after, False)):
            block = region.blocks.append(index)
            (i,) = block.arguments
            m.enter()
            with ir.InsertionPoint(block):
                if last:
                    scf.ConditionOp(on(i), [i])
                else:
                    scf.YieldOp([m.value(m.add(i, step))])
            m.leave()
        return walk.results[0]

    def _shows(self, mask: Mask) -> Callable[[ir.Value], ir.Value]:
        """Whether a mask shows anything of a block of columns to these rows."""
        m, each = self.m, self.seen.block * self.seen.column.each
        width = storage_type(builders.element_type(self.k.arguments[mask.argument])).width
        integer = ir.IntegerType.get_signless(width)
        kind, bits_type = ir.VectorType.get([each], integer), ir.VectorType.get([each], ir.IntegerType.get_signless(1))
        memory = entry.memref_at(self.argument(mask.argument), integer)
        hidden = builders.constant(kind, mask.hidden - (mask.hidden >> (width - 1) << width))
        nothing = builders.constant(kind, 0)
        known, times = self._beside(mask.place.known), mask.place.times
        last = self.last if any(at.step(self.seen.row) for at in (known, *(at for _, at in times))) else self.first

        def place(row: Number) -> Number:
            out = self._value(known, row)
            for n, at in times:
                out = m.add(out, m.mul(self._value(at, row), self.number(n)))
            return out

        partial = not isinstance(self.columns, int) or self.columns % each != 0

        def shows(i: ir.Value) -> ir.Value:
            at = m.mul(i, each)
            present = vector.create_mask(bits_type, [m.value(m.sub(self.columns, at))]) if partial else None
            rows = scf.ForOp(m.value(self.first), m.value(m.add(last, 1)), m.value(1), [nothing])
            m.enter()
            with ir.InsertionPoint(rows.body):
                where = [m.value(m.add(place(rows.induction_variable), at))]
                bits = vector.load(kind, memory, where) if present is None else vector.maskedload(kind, memory, where, present, hidden)
                scf.YieldOp([arith.ori(rows.inner_iter_args[0], arith.xori(bits, hidden))])
            m.leave()
            some = vector.reduction(integer, vector.CombiningKind.OR, rows.results[0])
            return arith.cmpi(arith.CmpIPredicate.ne, some, builders.constant(integer, 0))

        return shows


def _less(m: Arithmetic, a: Number, b: Number) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.slt, m.value(a), m.value(b))


def _not(condition: ir.Value) -> ir.Value:
    return arith.xori(condition, builders.constant(condition.type, 1))
