"""Sums of products: what a register tile of a contraction adds up along its reductions.

    sums[rows][columns] = 0
    for outer reductions, in blocks where they are long:
      for k: b = B[k, lanes]; for each row: sums[row] += A[row, k] * b        an fma on vectors
                                                                              words of two bf16 or i16, or four bytes (`words`),
                                                                              packed, or of bf16 put together from two rows of B
                                                                              taps that rows share: each place is loaded once
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...dialects import builders
from ...dialects.mlir import arith, ir, math, vector
from .. import structure as st
from ..strategy import ContractionStrategy
from ..strategy.ahead import windows_of
from ..strategy.steps import divisor, sets_of_sums
from ..strategy.traffic import panel_classes
from . import fetching, long_sums, words
from .evaluate import Evaluator
from .fetching import FETCH_STEPS
from .kernel import KernelFunction
from .lanes import Index, Number
from .memory import Memory
from .nest import Values, less, loop
from .reduce import combine
from .roles import roles


@dataclass(frozen=True)
class Iteration:
    """Of the walk over a reduction: steps in it, whether all walks are multiples of these, and what fetches something, given the first step."""

    together: int = 1
    whole: bool = True
    fetch: Callable[[Number], None] | None = None


class Products:
    """The code of one register tile at a time, for the evaluator `e`, which whoever builds the loops around it has set."""

    e: Evaluator

    def __init__(self, kernel: KernelFunction, strategy: ContractionStrategy) -> None:
        self.k = kernel
        self.s = strategy
        self.r = roles(kernel)
        if strategy.groups_first:
            groups = panel_classes(kernel, self.r)
            self.r = replace(self.r, outer=sorted(self.r.outer, key=lambda c: c not in groups))
        self.op = kernel.domain.anchor
        self.count: Number | None = None
        """How many rows of a tile there are, where that is known at run time only: at least one."""
        self.reading: tuple[Number, Number] = (0, 1)
        """Of the register tiles that read a panel one after the other: the first row, and how many rows they have."""
        self.each_step = 1 if strategy.words is None else st.word(self.op)  # type: ignore[arg-type]
        """Elements of the reduction in a step."""
        self.unpacked = strategy.words is not None and not st.is_packed(self.op, self.r.along_lanes)  # type: ignore[arg-type]
        """Whether words are put together from rows of the operand with the lanes."""
        self.windows = windows_of(kernel, self.r, strategy.words) if strategy.rows_ahead is not None else None
        """Of an image, if that is what is fetched for the next register tile."""
        self.env: dict[int, Index] = {}
        """Where the code is, by class."""

    def _size(self, e: Evaluator, c: int) -> Number:
        return e.size(self.k.domain.sizes[c])

    def _products(self, rows: list[Index], lanes: list[Index], masks: Sequence[ir.Value | None]) -> Values:
        """The sums of one register tile."""
        start = self.e.math.splat(self.e.value(self.op.operands[2], ()))  # type: ignore[union-attr]
        order = sorted(self.r.reductions, key=lambda c: c in (self.s.words, self.s.shared))
        return self._reduce(order, rows, lanes, masks, [start] * (len(rows) * len(lanes)))

    def following(self, here: Number, next_panel: Number) -> Number:
        """Elements from what a tile walks of a panel, which has `here`, to what is read after it. `next_panel`: to the same place of that."""
        return next_panel

    def walked(self, c: int) -> tuple[Number, Number]:
        """What a tile walks of a reduction class: from where to where."""
        return self.k.walked(self.e, c, self._size(self.e, c))

    def _reduce(
        self, classes: list[int], rows: list[Index], lanes: list[Index], masks: Sequence[ir.Value | None], acc: Values
    ) -> Values:
        if classes and classes[0] == self.s.shared:
            return self._multiply_shared(classes[0], rows, lanes, masks, acc)
        if classes:

            def step(i: Number, values: Values) -> Values:
                self.env[classes[0]] = Index(i)
                return self._reduce(classes[1:], rows, lanes, masks, values)

            m = self.e.math
            begin, size = self.walked(classes[0])
            first, end = m.floordiv(begin, self.each_step), m.floordiv(size, self.each_step)
            if self.s.rows_ahead is not None and self.windows is not None and len(classes) == 1 and self.count is None:
                fetching.fetch_windows(self, self.windows, rows, lanes[0], self.s.rows_ahead)
            shape = self._iteration(classes, rows, lanes[0], first, end)
            if classes[0] != self.s.words:
                return self._in_blocks(classes, acc, step, shape)
            acc = self._steps(first, end, acc, lambda i, values: step(m.mul(i, self.each_step), values), shape)
            if isinstance(size, int) and (rest := size % self.each_step):  # blocks are whole words
                self.env[classes[0]] = Index(size - rest)
                acc = self._multiply_words(rows, lanes, masks, acc, rest)
            return acc
        if self.s.words is not None:
            return self._multiply_words(rows, lanes, masks, acc, self.each_step)
        e = self.e
        e.math.enter()
        out: Values = []
        panel: Values = []
        for i, row in enumerate(rows):
            for j, lane in enumerate(lanes):
                self._set(row, lane)
                e.mask = masks[j]
                if i == 0:
                    panel.append(self._element_of(self.r.along_lanes))
                if j == 0 or self.r.lane_in_both:
                    other = self._element_of(self.r.along_rows)
                e.mask = None
                out.append(self._multiply_add(*self._in_order(panel[j], other), acc[len(out)]))
        e.math.leave()
        return out

    def _in_order(self, panel: ir.Value, other: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The operand with the lanes and the other one, as the op has them."""
        return (panel, other) if self.r.swapped else (other, panel)

    def _iteration(self, classes: Sequence[int], rows: list[Index], lane: Index, begin: Number, end: Number) -> Iteration:
        """Of the walk over the first of the classes, in steps."""
        if len(classes) > 1:
            return Iteration()
        c, together = classes[0], 1 if self.count is not None else self.s.steps
        if isinstance(begin, int) and isinstance(end, int):
            together = divisor(end - begin, together)
            whole = (end - begin) % together == 0
        else:
            whole = together == 1 or self._walks_in(c, self.each_step * together)
        return Iteration(together, whole, self._fetching(rows, lane))

    def _walks_in(self, c: int, n: int) -> bool:
        """Whether what a tile walks of a reduction class is always a multiple of `n`."""
        size = self.k.domain.sizes[c]
        return self.k.walks_in(c, n) if self.k.seen is not None and self.k.seen[0] == c else isinstance(size, int) and size % n == 0

    def _fetching(self, rows: list[Index], lane: Index) -> Callable[[Number], None] | None:
        """What fetches something at a step of the reduction, for later; None if nothing does."""
        found = [fetching.fetching_panel(self, rows, lane)] if self.s.fetch_ahead else []
        if self.s.rows_ahead is not None and self.windows is None and self.count is None:
            found.append(fetching.fetching_rows(self, rows, lane, self.s.rows_ahead))

        def fetch(i: Number) -> None:
            for one in found:
                one(i)

        return fetch if found else None

    def _in_blocks(self, classes: Sequence[int], acc: Values, step: Callable[[Number, Values], Values], shape: Iteration) -> Values:
        """The walk over the first of the classes. Long sums of f32 are put together from those of blocks: the error of a sum grows with its length."""
        e, (lo, hi), each = self.e, self.walked(classes[0]), self._block_length(classes)

        if each is None or not isinstance(acc[0].type.element_type, ir.F32Type):
            return self._steps(lo, hi, acc, step, shape)
        parts = replace(shape, whole=shape.whole and each % shape.together == 0)

        def block(i: Number, totals: Values) -> Values:
            zeros = [builders.constant(total.type, 0) for total in totals]
            sums = self._steps(i, e.math.minimum(e.math.add(i, each), hi), zeros, step, parts)
            return [arith.addf(total, part) for total, part in zip(totals, sums)]

        return loop(e, lo, hi, each, acc, block)

    def _steps(self, begin: Number, end: Number, acc: Values, step: Callable[[Number, Values], Values], shape: Iteration) -> Values:
        """Steps from `begin` to `end`. If there is something to fetch, it is before every few of them.

        Where rows may be missing, each has an address of its own, and LLVM would first load the elements of all of them, for all steps.
        """
        e, m, together, fetch = self.e, self.e.math, shape.together, shape.fetch
        if fetch is None and together == 1:
            return loop(e, begin, end, 1, acc, step)
        n, sets = len(acc), sets_of_sums(together, len(acc), self.s.apart)

        def some(i: Number, values: Values) -> Values:
            for u in range(together):
                if fetch is not None and u % FETCH_STEPS == 0:  # with the first of the steps that share it
                    place = m.mod(i, FETCH_STEPS) if together < FETCH_STEPS else 0
                    less(e, place, 1 if FETCH_STEPS % together == 0 else together, lambda u=u: fetch(m.add(i, u)))
                own = slice(u % sets * n, (u % sets + 1) * n)
                values[own] = step(m.add(i, u), values[own])
            return values

        def walk(end: Number) -> Values:
            zeros = [builders.constant(v.type, 0) for v in acc]
            sums = loop(e, begin, end, together, [*acc, *zeros * (sets - 1)], some)
            return [functools.reduce(functools.partial(combine, self.op), sums[at::n]) for at in range(n)]

        if shape.whole:
            return walk(end)
        even = m.add(begin, m.mul(m.floordiv(m.sub(end, begin), together), together))
        return loop(e, even, end, 1, walk(even), step)

    def _block_length(self, classes: Sequence[int]) -> int | None:
        """How many steps of the first class are a block; None if the sum is none of blocks, or has them inside of a step."""
        sizes = [hi - lo if isinstance(lo, int) and isinstance(hi, int) else None for lo, hi in map(self.walked, classes)]
        wide = any(builders.element_type(v) != builders.element_type(self.op.results[0]) for v in list(self.op.operands)[:2])  # type: ignore[union-attr]
        return long_sums.block_of_products(sizes, whole=len(classes) == len(self.r.reductions), wide=wide)

    def _multiply(self, at: int, row: Index, lane: Index, mask: ir.Value | None, acc: Values) -> None:
        """Add one product to accumulator `at`."""
        self._set(row, lane)
        self.e.mask = mask
        a, b = self._operands()
        acc[at] = self._multiply_add(a, b, acc[at])
        self.e.mask = None

    def _multiply_shared(
        self, taps: int, rows: list[Index], lanes: list[Index], masks: Sequence[ir.Value | None], acc: Values
    ) -> Values:
        """All taps of all rows, in the order of the places that they read: each is loaded once, and soon no longer needed."""
        size = self.k.domain.sizes[taps]
        assert isinstance(size, int)
        steps = next(a.steps for a in self.k.accesses.items if a.op == self.op and not a.store and a.steps.get(self.s.row))  # type: ignore[arg-type]
        stride = steps[self.s.row] // steps[taps]  # type: ignore[index, operator]
        out = list(acc)
        e = self.e
        e.math.enter()
        for i, tap in sorted(((i, tap) for i in range(len(rows)) for tap in range(size)), key=lambda p: p[0] * stride + p[1]):
            self.env[taps] = Index(tap)
            for j, lane in enumerate(lanes):
                self._multiply(i * len(lanes) + j, rows[i], lane, masks[j], out)
        e.math.leave()
        return out

    def _multiply_words(
        self, rows: list[Index], lanes: list[Index], masks: Sequence[ir.Value | None], acc: Values, elements: int
    ) -> Values:
        """A word of every row, broadcast, times words of the other operand; fewer elements than a word are the last of their rows."""
        e, op = self.e, self.op
        assert op is not None
        e.math.enter()
        n, other = self.r.along_lanes, self.r.along_rows
        flags = st.unsigned(op)
        out: Values = []
        panel: Values = []
        for i, row in enumerate(rows):
            for j, lane in enumerate(lanes):
                if i == 0:
                    panel.append(self._pairs(lanes, masks, j, elements) if self.unpacked else self._packed_words(row, lane))
                if j == 0 or self.r.lane_in_both:
                    self._set(row, Index(lane.base))
                    kind = panel[j].type
                    a = e.math.once(("word", row.base, self._word_at(other)), lambda kind=kind: self._spread(other, elements, kind))
                out.append(words.dot(acc[len(out)], (a, flags[other]), (panel[j], flags[n])))
        e.math.leave()
        return out

    def _packed_words(self, row: Index, lane: Index) -> ir.Value:
        """The words of a packed operand for a vector of the lanes."""
        self._set(row, Index(lane.base))
        return self._load_words(self.r.along_lanes, self.each_step * self.e.lanes)

    def _pairs(self, lanes: list[Index], masks: Sequence[ir.Value | None], j: int, elements: int) -> ir.Value:
        """Pairs of bf16 for vector `j` of the lanes, put together from two rows of the operand, or from one and zeros.

        Two vectors side by side are halves of the same two loads.
        """
        e, m, first = self.e, self.e.math, j // 2 * 2
        n = e.lanes * min(2, len(lanes) - first)
        k = self.env[self.s.words]  # type: ignore[index]

        def row(behind: int) -> ir.Value:
            kind = ir.VectorType.get([n], self.e.memory[self.op.operands[self.r.along_lanes]].element)  # type: ignore[union-attr]
            if behind >= elements:
                return builders.constant(kind, 0)
            self.env[self.s.words] = Index(m.add(k.base, behind))  # type: ignore[index]
            place, at = self.operand_at(self.r.along_lanes, Index(0), lanes[first])
            self.env[self.s.words] = k  # type: ignore[index]
            mask = self._joined_mask(masks[first : first + 2])
            if mask is None:
                return m.once(("half", at.base, n), lambda: vector.load(kind, place.buffer, [m.value(at.base)]))
            zeros = builders.constant(kind, 0)
            return m.once(("half", at.base, n), lambda: vector.maskedload(kind, place.buffer, [m.value(at.base)], mask, zeros))

        low, high = row(0), row(1)
        begin = (j - first) * e.lanes
        turns = [at for i in range(begin, begin + e.lanes) for at in (i, n + i)]
        return m.once(("pairs", low, high, begin), lambda: vector.shuffle(low, high, turns))

    def _joined_mask(self, masks: Sequence[ir.Value | None]) -> ir.Value | None:
        """The masks of one or two vectors side by side as one; None if they are full."""
        if all(mask is None for mask in masks):
            return None
        i1 = self.e.math.vector_type(ir.IntegerType.get_signless(1))
        both = [builders.constant(i1, 1) if mask is None else mask for mask in masks]
        return both[0] if len(both) == 1 else vector.shuffle(both[0], both[1], list(range(2 * self.e.lanes)))

    def _word_at(self, n: int) -> Number:
        """Where the words of an operand are."""
        place, m = self.e.memory[self.op.operands[n]], st.maps(self.op)[n]  # type: ignore[union-attr, arg-type]
        return self.e.offset(place, tuple(self._address(x, self._loops(self.op)) for x in m.results)).base  # type: ignore[arg-type]

    def _load_words(self, n: int, elements: int, behind: int = 0) -> ir.Value:
        """So many elements of an operand, `behind` the place of its word."""
        e, at = self.e, self.e.math.add(self._word_at(n), behind)
        place = e.memory[self.op.operands[n]]  # type: ignore[union-attr]
        kind = ir.VectorType.get([elements], place.element)
        return e.math.once(("elements", n, at, elements), lambda: vector.load(kind, place.buffer, [e.math.value(at)]))

    def _spread(self, n: int, elements: int, kind: ir.Type) -> ir.Value:
        """A word of an operand in all lanes of a vector of elements; a part of one, in pieces of 1 and 2 elements, with zeros behind."""
        i32, width = ir.IntegerType.get_signless(32), 32 // self.each_step
        word, done = None, 0
        for piece in (4, 2, 1):
            if elements & piece:
                part = self._load_words(n, piece, done)
                whole = ir.IntegerType.get_signless(piece * width)
                part = vector.extract(vector.bitcast(ir.VectorType.get([1], whole), part), [], [0])
                part = part if piece * width == 32 else arith.extui(i32, part)
                part = arith.shli(part, builders.constant(i32, done * width)) if done else part
                word, done = part if word is None else arith.ori(word, part), done + piece
        return vector.bitcast(kind, vector.broadcast(ir.VectorType.get([self.e.lanes], i32), word))

    def _set(self, row: Index, lane: Index) -> None:
        if self.s.row is not None:
            self.env[self.s.row] = row
        if self.s.lane is not None:
            self.env[self.s.lane] = lane

    def operand_at(self, n: int, row: Index, lane: Index) -> tuple[Memory, Index]:
        """Where an operand is at this row and lane."""
        self._set(row, lane)
        return self._operand_here(n)

    def _operand_here(self, n: int) -> tuple[Memory, Index]:
        op = self.op
        assert op is not None
        place = self.e.memory[op.operands[n]]
        return place, self.e.offset(place, tuple(self._address(x, self._loops(op)) for x in st.maps(op)[n].results))

    def _loops(self, op: ir.Operation) -> list[Index]:
        return [Index(0) if c is None or c not in self.env else self.env[c] for c in self.k.domain.loops[op]]

    def _operands(self) -> tuple[ir.Value, ir.Value]:
        """One element or vector of each operand, in the dtype of the accumulator."""
        return self._element_of(0), self._element_of(1)

    def _element_of(self, n: int) -> ir.Value:
        """One element or vector of an operand, in the dtype of the accumulator."""
        e, op = self.e, self.op
        assert op is not None
        loops = self._loops(op)
        point = tuple(self._address(x, loops) for x in st.maps(op)[n].results)
        mask, e.mask = e.mask, e.mask if any(not i.uniform for i in point) else None
        got = e.value(op.operands[n], point)
        e.mask = mask
        kind = builders.element_type(op.results[0])
        return e.math.once(("wide", got), lambda: _widen(got, kind, st.unsigned(op)[n]))

    def _address(self, x: ir.AffineExpr, loops: list[Index]) -> Index:
        """A map result; `d floordiv n` and `d mod n` of the lane class stay linear where a block holds the lanes."""
        e = self.e
        if isinstance(x, (ir.AffineFloorDivExpr, ir.AffineModExpr)) and isinstance(x.lhs, ir.AffineDimExpr):
            i = loops[x.lhs.position]
            n = x.rhs.value
            if i.vector is None and i.stride == 1 and n % e.lanes == 0:
                quotient, rest = e.math.floordiv(i.base, n), e.math.mod(i.base, n)
                return Index(quotient) if isinstance(x, ir.AffineFloorDivExpr) else Index(rest, 1)
        return e.math.affine(x, loops)

    def _multiply_add(self, a: ir.Value, b: ir.Value, acc: ir.Value) -> ir.Value:
        m = self.e.math
        a, b = m.splat(a), m.splat(b)
        element = acc.type.element_type
        if isinstance(element, ir.IntegerType):
            return arith.addi(acc, arith.muli(a, b))
        return math.fma(a, b, acc)


def _widen(v: ir.Value, element: ir.Type, unsigned: bool) -> ir.Value:
    """To the accumulator's type."""
    have = v.type.element_type if isinstance(v.type, ir.VectorType) else v.type
    if have == element:
        return v
    kind = ir.VectorType.get(list(v.type.shape), element) if isinstance(v.type, ir.VectorType) else element
    if isinstance(element, ir.IntegerType):
        return (arith.extui if unsigned else arith.extsi)(kind, v)
    if isinstance(have, ir.IntegerType):
        return (arith.uitofp if unsigned else arith.sitofp)(kind, v)
    return arith.extf(kind, v)
