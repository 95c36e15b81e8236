"""Contractions and convolutions: a register tile of rows x lanes, the epilogue on the tile.

    for batch, lane block (parallel)
      for row block
        acc[rows][columns] = 0
        for k: b = B[k, lanes]; for each row: acc[row] += A[row, k] * b      (fma on vectors)
        store epilogue(acc)

The loops of the op fall into roles by the operands that they walk over: the *lane* class is the result's contiguous one,
the *row* class walks over the other operand and the result but not over the one that has the lanes, so that each vector of
B serves all rows. Nothing else is special about matrix products: a convolution is one with more reduction loops and
another address for A (Georganas et al., "Anatomy of high-performance deep learning convolutions", SC 2018).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from ...dialects import builders
from ...dialects.mlir import arith, ir, math, memref, scf, vector, x86
from ...errors import CompileError
from .. import structure as st
from ..strategy import ContractionStrategy
from . import entry, long_sums
from .evaluate import Evaluator, Lookup
from .kernel import KernelFunction
from .lanes import Index, Number, Point
from .nest import Values, constant_mask, delinearize, each_row, loop
from .roles import roles


def vectorize_contraction(kernel: KernelFunction, strategy: ContractionStrategy, symbol: str) -> ir.Module:
    """Build the vector-dialect module of a kernel whose anchor is a contraction or convolution."""
    emitter = Contraction(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body)


class Contraction:
    def __init__(self, kernel: KernelFunction, strategy: ContractionStrategy) -> None:
        self.k = kernel
        self.s = strategy
        self.r = roles(kernel)
        self.op = kernel.domain.anchor
        self.ops = [self.op]
        """The products whose sums are in hand when results are stored."""
        self.outputs = list(range(len(kernel.results)))
        """The results that are stored then."""
        self.area = 0
        """From the sums of one product to those of the next, in the scratch."""
        self.free: Number = 0
        """Where the scratch has room for a tile."""
        self.count: Number | None = None
        """How many rows of a tile there are, where that is known at run time only: at least one."""
        self.env: dict[int, Index] = {}
        self.position: tuple[Number, Number] = (0, 0)
        """In the parallel range, and where this part of it begins."""
        self.width = strategy.columns * strategy.lanes

    def _size(self, e: Evaluator, c: int) -> Number:
        return e.size(self.k.domain.sizes[c])

    def _counts(self, e: Evaluator) -> list[Number]:
        """Parallel range: outer classes, row blocks, lane blocks."""
        counts = [self._size(e, c) for c in self.r.outer]
        counts.append(1 if self.s.row is None else e.math.ceildiv(self._size(e, self.s.row), self._row_block()))
        counts.append(self._lane_count(e))
        return counts

    def _lane_count(self, e: Evaluator) -> Number:
        return 1 if self.s.lane is None else e.math.ceildiv(self._size(e, self.s.lane), self._lane_block())

    def _row_block(self) -> int:
        """Rows per parallel iteration: some register tiles, so that a panel of B is read from cache."""
        return self.s.rows * self.s.row_tiles

    def _lane_block(self) -> int:
        """Lanes per parallel iteration."""
        return self.width

    def trip(self, slots: list[ir.Value]) -> Number:
        e = self.k.sizes_evaluator(self.s.lanes, slots)
        return functools.reduce(e.math.mul, self._counts(e), 1)

    def body(self, begin: ir.Value, end: ir.Value, status: ir.Value, slots: list[ir.Value]) -> None:
        self._bind(status, slots)
        self._walk(begin, end)

    def _bind(self, status: ir.Value, slots: list[ir.Value]) -> None:
        """Begin the code of a function that has these slots."""
        self.e = Evaluator(self._vector(), status, self.k.shapes)
        self.out = self.k.bind(self.e, slots)
        self._prepare()

    def _vector(self) -> int:
        """Lanes of the vectors of the code."""
        return self.s.lanes

    def _walk(self, begin: ir.Value, end: ir.Value) -> None:
        """A part of the parallel range."""
        e = self.e

        def iteration(p: Number, _: Values) -> Values:
            self.position = p, begin
            counts = self._counts(e)
            n = len(self.r.outer)
            order = self._order(n)
            at: list[Number] = [0] * len(counts)
            for place, i in zip(order, delinearize(e, p, [counts[k] for k in order])):
                at[place] = i
            for c, i in zip(self.r.outer, at):
                self.env[c] = Index(i)
            self._lanes(e.math.mul(at[n + 1], self._lane_block()), at[n])
            return []

        loop(e, begin, end, 1, [], iteration)

    def _order(self, n: int) -> list[int]:
        """The order of the parallel loops: `n` outer classes, row blocks (`n`), lane blocks (`n` + 1), the outermost first."""
        # Row blocks innermost: neighbours share a panel of B.
        return [n + 1, *range(n), n] if self.s.lanes_first else [*range(n), n + 1, n]

    def _prepare(self) -> None:
        """What the body needs once, before its loops."""
        if self.s.looped_epilogue:
            self._make_scratch(self.s.rows)

    def _make_scratch(self, rows: int) -> None:
        """Memory for the sums of one register tile, `width` apart."""
        element = builders.element_type(self.op.results[0])  # type: ignore[union-attr]
        place = memref.AllocaOp(ir.MemRefType.get([rows * self.width], element), [], [], alignment=64).result
        self.scratch = memref.cast(ir.MemRefType.get([builders.DYNAMIC], element), place)

    def _store_from_scratch(
        self, first: Number, rows: Number, lanes: list[Index], masks: Sequence[ir.Value | None], corner: Number = 0
    ) -> None:
        """The epilogue of `rows` rows from `first` on, on the sums in the scratch, from `corner` on."""
        e, m = self.e, self.e.math

        def row(r: Number, _: Values) -> Values:
            kind = m.vector_type(builders.element_type(self.op.results[0]))  # type: ignore[union-attr]
            start = m.add(corner, m.mul(r, self.width))
            places = [m.add(start, n * self.area + j * e.lanes) for n in range(len(self.ops)) for j in range(len(lanes))]
            sums = [vector.load(kind, self.scratch, [m.value(at)]) for at in places]
            self._store([Index(m.add(first, r))], lanes, masks, sums)
            return []

        loop(e, 0, rows, 1, [], row)

    def _lanes(self, first: Number, row_block: Number) -> None:
        """One block of lanes: full, or the last one under a mask."""
        e = self.e
        if self.s.lane is None:
            self._rows(None, self.s.columns, None, row_block)
            return
        size = self._size(e, self.s.lane)
        if isinstance(size, int) and size % self.width == 0:
            self._rows(first, self.s.columns, None, row_block)
            return
        left = e.math.sub(size, first)
        if isinstance(size, int) and size < self.width:
            self._tail(first, size, row_block)
            return
        full = arith.cmpi(arith.CmpIPredicate.sge, e.math.value(left), e.math.value(self.width))
        branch = scf.IfOp(full, has_else=True)
        for block, build in ((branch.then_block, True), (branch.else_block, False)):
            with ir.InsertionPoint(block):
                e.math.enter()
                if build:
                    self._rows(first, self.s.columns, None, row_block)
                else:
                    self._tail(first, size % self.width if isinstance(size, int) else left, row_block)
                scf.YieldOp([])
                e.math.leave()

    def _tail(self, first: Number, left: Number, row_block: Number) -> None:
        e = self.e
        n = e.lanes
        i1 = e.math.vector_type(ir.IntegerType.get_signless(1))
        masks: list[ir.Value | None] = []
        if isinstance(left, int):
            for j in range(-(-left // n)):
                masks.append(None if left - j * n >= n else constant_mask(e, left - j * n))
        else:
            for j in range(self.s.columns):
                masks.append(vector.create_mask(i1, [e.math.value(e.math.sub(left, j * n))]))
        self._rows(first, len(masks), masks, row_block)

    def _rows(self, first: Number | None, columns: int, masks: list[ir.Value | None] | None, row_block: Number) -> None:
        """The row tiles of one block of lanes."""
        e = self.e
        masks = masks or [None] * columns
        if self.s.row is None:
            self._tile(first, masks, [Index(0)])
            return
        size = self._size(e, self.s.row)
        lo = e.math.mul(row_block, self._row_block())
        hi = e.math.minimum(e.math.add(lo, self._row_block()), size)

        def tiles(begin: Number, end: Number, rows: int) -> Number:
            """Tiles of `rows` rows as long as they fit; returns where they end."""
            whole = e.math.mul(e.math.floordiv(e.math.sub(end, begin), rows), rows)
            stop = e.math.add(begin, whole)

            def step(i: Number, _: Values) -> Values:
                self._tile(first, masks, [Index(e.math.add(i, r)) for r in range(rows)])
                return []

            loop(e, begin, stop, rows, [], step)
            return stop

        if isinstance(size, int) or self.s.dot is not None:
            rest = size % self.s.rows if isinstance(size, int) else 1
            for rows in dict.fromkeys(n for n in (self.s.rows, rest) if n):
                lo = tiles(lo, hi, rows)
            return
        self._short_tiles(self._whole_tiles(lo, hi, tiles), hi, first, masks)

    def _whole_tiles(self, lo: Number, hi: Number, tiles: Callable[[Number, Number, int], Number]) -> Number:
        """Full tiles, and one less of them where two short ones take its rows and the rest."""
        m, rows = self.e.math, self.s.rows
        left = m.sub(hi, lo)
        fitting = m.value(m.floordiv(left, rows))
        rest = m.value(m.mod(left, rows))
        spared = m.value(m.ceildiv(m.maximum(m.sub(left, 2 * self.s.short_rows), 0), rows))
        even = arith.cmpi(arith.CmpIPredicate.eq, rest, m.value(0))
        count = arith.select(even, fitting, spared)
        return tiles(lo, m.add(lo, m.mul(count, rows)), rows)

    def _short_tiles(self, lo: Number, hi: Number, first: Number | None, masks: Sequence[ir.Value | None]) -> None:
        """One tile of the rows that are left, or two of about as many each: one code for all heights."""
        m, most = self.e.math, self.s.short_rows
        left = m.sub(hi, lo)
        fits = arith.cmpi(arith.CmpIPredicate.sle, m.value(left), m.value(most))
        height = arith.select(fits, m.value(left), m.value(m.ceildiv(left, 2)))

        def step(i: Number, _: Values) -> Values:
            self.count = m.minimum(m.sub(hi, i), height)
            self._tile(first, masks, [Index(m.add(i, r)) for r in range(most)])
            self.count = None
            return []

        loop(self.e, lo, hi, m.maximum(height, 1), [], step)

    def _tile(self, first: Number | None, masks: Sequence[ir.Value | None], rows: list[Index]) -> None:
        """One register tile."""
        e, m = self.e, self.e.math
        m.enter()
        lanes = [Index(0)] if first is None else [Index(m.add(first, j * e.lanes), 1) for j in range(len(masks))]
        self._finish(lanes, masks, rows, self._sums_of(first, masks, rows))
        m.leave()

    def _sums_of(self, first: Number | None, masks: Sequence[ir.Value | None], rows: list[Index]) -> Values | None:
        """The sums of one register tile; None if they are in the scratch, from `free` on."""
        if self.s.looped_epilogue:
            self._sum_into_scratch(first, masks, rows, self.free)
            return None
        lanes = [Index(0)] if first is None else [Index(self.e.math.add(first, j * self.e.lanes), 1) for j in range(len(masks))]
        return self._products(rows, lanes, masks)

    def _finish(self, lanes: list[Index], masks: Sequence[ir.Value | None], rows: list[Index], sums: Values | None) -> None:
        """Store what becomes of the sums of a tile."""
        if sums is None:
            self._store_from_scratch(rows[0].base, self._present(rows), lanes, masks, self.free)
        else:
            self._store(rows, lanes, masks, sums)

    def _present(self, rows: list[Index]) -> Number:
        """How many rows there are."""
        return len(rows) if self.count is None else self.count

    def _products(self, rows: list[Index], lanes: list[Index], masks: Sequence[ir.Value | None]) -> Values:
        """The sums of one register tile."""
        start = self.e.math.splat(self.e.value(self.op.operands[2], ()))  # type: ignore[union-attr]
        order = sorted(self.r.reductions, key=lambda c: c in (self.s.pairs, self.s.shared))
        return self._reduce(order, rows, lanes, masks, [start] * (len(rows) * len(lanes)))

    def _sum_into_scratch(self, first: Number | None, masks: Sequence[ir.Value | None], rows: list[Index], corner: Number) -> None:
        """One register tile, whose sums go to the scratch, from `corner` on."""
        e, m = self.e, self.e.math
        lanes = [Index(0)] if first is None else [Index(m.add(first, j * e.lanes), 1) for j in range(len(masks))]
        acc = self._products(rows, lanes, masks)
        for i in range(len(rows)):
            for j in range(len(lanes)):
                vector.store(acc[i * len(lanes) + j], self.scratch, [m.value(m.add(corner, i * self.width + j * e.lanes))])

    def _range(self, c: int) -> tuple[Number, Number]:
        """What a tile walks of a reduction class: from where to where."""
        return 0, self._size(self.e, c)

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
            begin, size = self._range(classes[0])
            if classes[0] != self.s.pairs:
                return self._in_blocks(classes, acc, step)
            acc = loop(self.e, m.floordiv(begin, 2), m.floordiv(size, 2), 1, acc, lambda i, values: step(m.mul(i, 2), values))
            if isinstance(size, int) and size % 2:  # blocks are even
                self.env[classes[0]] = Index(size - 1)
                acc = self._multiply_pairs(rows, lanes, acc, half=True)
            return acc
        if self.s.pairs is not None:
            return self._multiply_pairs(rows, lanes, acc)
        e = self.e
        e.math.enter()

        def multiply(row: Index, sums: Values) -> Values:
            for j, lane in enumerate(lanes):
                self._multiply(j, row, lane, masks[j], sums)
            return sums

        out = each_row(e, self.count, rows, acc, multiply)
        e.math.leave()
        return out

    def _in_blocks(self, classes: Sequence[int], acc: Values, step: Callable[[Number, Values], Values]) -> Values:
        """The walk over the first of the classes. Long sums of f32 are put together from those of blocks: the error of a sum grows with its length."""
        e, (lo, hi), each = self.e, self._range(classes[0]), self._block_length(classes)
        if each is None or not isinstance(acc[0].type.element_type, ir.F32Type):
            return loop(e, lo, hi, 1, acc, step)

        def block(i: Number, totals: Values) -> Values:
            zeros = [builders.constant(total.type, 0) for total in totals]
            sums = loop(e, i, e.math.minimum(e.math.add(i, each), hi), 1, zeros, step)
            return [arith.addf(total, part) for total, part in zip(totals, sums)]

        return loop(e, lo, hi, each, acc, block)

    def _block_length(self, classes: Sequence[int]) -> int | None:
        """How many steps of the first class are a block; None if the sum is none of blocks, or has them inside of a step."""
        sizes = [hi - lo if isinstance(lo, int) and isinstance(hi, int) else None for lo, hi in map(self._range, classes)]
        return long_sums.block_of_products(sizes, whole=len(classes) == len(self.r.reductions))

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

        def multiply(row: Index, sums: Values) -> Values:
            for tap in range(size):
                self.env[taps] = Index(tap)
                for j, lane in enumerate(lanes):
                    self._multiply(j, row, lane, masks[j], sums)
            return sums

        if self.count is not None:
            out = each_row(e, self.count, rows, acc, multiply)
            e.math.leave()
            return out
        for i, tap in sorted(((i, tap) for i in range(len(rows)) for tap in range(size)), key=lambda p: p[0] * stride + p[1]):
            self.env[taps] = Index(tap)
            for j, lane in enumerate(lanes):
                self._multiply(i * len(lanes) + j, rows[i], lane, masks[j], out)
        e.math.leave()
        return out

    def _multiply_pairs(self, rows: list[Index], lanes: list[Index], acc: Values, half: bool = False) -> Values:
        """Two bf16 of every row, broadcast as 32 bits, times pairs of the packed operand; with `half` the first is the last of its row."""
        e, op = self.e, self.op
        assert op is not None
        e.math.enter()
        bf16, i32 = ir.BF16Type.get(), ir.IntegerType.get_signless(32)
        wide = ir.VectorType.get([2 * e.lanes], bf16)
        packed = 0 if self.r.swapped else 1
        places = [(e.memory[v], m) for v, m in list(zip(op.operands, st.maps(op)))[:2]]

        def load(n: int, kind: ir.Type) -> ir.Value:
            place, m = places[n]
            at = e.offset(place, tuple(self._address(x, self._loops(op)) for x in m.results))
            key = ("pair", n, at.base)
            return e.math.once(key, lambda: vector.load(kind, place.buffer, [e.math.value(at.base)]))

        def multiply(row: Index, sums: Values) -> Values:
            out = []
            for lane, total in zip(lanes, sums):
                self._set(row, Index(lane.base))
                b = load(packed, wide)
                two = load(1 - packed, ir.VectorType.get([1 if half else 2], bf16))

                def spread(two: ir.Value = two) -> ir.Value:
                    width = ir.IntegerType.get_signless(16) if half else i32
                    word = vector.extract(vector.bitcast(ir.VectorType.get([1], width), two), [], [0])
                    word = arith.extui(i32, word) if half else word
                    return vector.bitcast(wide, vector.broadcast(ir.VectorType.get([e.lanes], i32), word))

                a = e.math.once(("spread", two), spread)
                out.append(x86.avx512_dot(total, a, b))
            return out

        out = each_row(e, self.count, rows, acc, multiply)
        e.math.leave()
        return out

    def _set(self, row: Index, lane: Index) -> None:
        if self.s.row is not None:
            self.env[self.s.row] = row
        if self.s.lane is not None:
            self.env[self.s.lane] = lane

    def _loops(self, op: ir.Operation) -> list[Index]:
        return [Index(0) if c is None or c not in self.env else self.env[c] for c in self.k.domain.loops[op]]

    def _operands(self) -> tuple[ir.Value, ir.Value]:
        """One element or vector of each operand, in the dtype of the accumulator."""
        e, op = self.e, self.op
        assert op is not None
        loops = self._loops(op)
        kind = builders.element_type(op.results[0])
        out = []
        for v, m in list(zip(op.operands, st.maps(op)))[:2]:
            point = tuple(self._address(x, loops) for x in m.results)
            mask, e.mask = e.mask, e.mask if any(not i.uniform for i in point) else None
            got = e.value(v, point)
            e.mask = mask
            out.append(e.math.once(("wide", got), lambda got=got: _widen(got, kind)))
        return out[0], out[1]

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

    def _store(self, rows: list[Index], lanes: list[Index], masks: Sequence[ir.Value | None], acc: Values) -> None:
        """The epilogue: every stored value at every point of the tile, computed from the accumulators."""
        e = self.e
        each = len(rows) * len(lanes)
        e.known = {op.results[0]: self._lookup(op, rows, lanes, acc[n * each :]) for n, op in enumerate(self.ops)}  # type: ignore[union-attr]

        def store(row: Index, _: Values) -> Values:
            self._store_row(row, lanes, masks)
            return []

        each_row(e, self.count, rows, [], store)
        e.known = {}

    def _lookup(self, op: ir.Operation, rows: list[Index], lanes: list[Index], acc: Values) -> Lookup:
        """What `Evaluator.known` asks for the result of a product."""
        table: dict[Point, ir.Value] = {}
        for i, row in enumerate(rows):
            for j, lane in enumerate(lanes):
                self._set(row, lane)
                table[self._result_point(op)] = acc[i * len(lanes) + j]

        def lookup(point: Point) -> ir.Value:
            if point not in table:
                raise CompileError("an epilogue reads the contraction at another place than its own")
            return table[point]

        return lookup

    def _store_row(self, row: Index, lanes: list[Index], masks: Sequence[ir.Value | None]) -> None:
        e, k = self.e, self.k
        for j, lane in enumerate(lanes):
            self._set(row, lane)
            e.mask = masks[j]
            for n in self.outputs:
                producer = st.owner(k.results[n])
                assert producer is not None
                point = self._result_point(producer)
                e.store(self.out[n], point, e.value(k.results[n], point))
            e.mask = None

    def _result_point(self, op: ir.Operation) -> Point:
        loops = self._loops(op)
        return tuple(self.e.math.affine(x, loops) for x in st.maps(op)[len(op.operands) - 1].results)


def _widen(v: ir.Value, element: ir.Type) -> ir.Value:
    """To the accumulator's type."""
    have = v.type.element_type if isinstance(v.type, ir.VectorType) else v.type
    if have == element:
        return v
    kind = ir.VectorType.get(list(v.type.shape), element) if isinstance(v.type, ir.VectorType) else element
    if isinstance(element, ir.IntegerType):
        return arith.extsi(kind, v)
    return arith.extf(kind, v)
