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
from ...dialects.mlir import arith, ir, memref, vector
from ...errors import CompileError
from .. import structure as st
from ..interleave import INTERLEAVE
from ..strategy import ContractionStrategy, heights
from ..strategy.common import LINE
from ..strategy.tiles import reads_of_rows
from . import entry
from .access import Access
from .borders import borders
from .evaluate import Evaluator, Lookup
from .kernel import KernelFunction
from .lanes import Index, Number, Point
from .nest import Values, constant_mask, delinearize, each_row, either, loop
from .outline_loop import outline_loop
from .products import Products


def vectorize_contraction(kernel: KernelFunction, strategy: ContractionStrategy, symbol: str) -> ir.Module:
    """Build the vector-dialect module of a kernel whose anchor is a contraction or convolution."""
    emitter = Contraction(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body, borders(kernel, strategy.lanes))


class Contraction(Products):
    def __init__(self, kernel: KernelFunction, strategy: ContractionStrategy) -> None:
        super().__init__(kernel, strategy)
        self.ops = [self.op]
        """The products whose sums are in hand when results are stored."""
        self.outputs = list(range(len(kernel.results)))
        """The results that are stored then."""
        self.area = 0
        """From the sums of one product to those of the next, in the scratch."""
        self.free: Number = 0
        """Where the scratch has room for a tile."""
        self.position: tuple[Number, Number] = (0, 0)
        """In the parallel range, and where this part of it begins."""
        self.width = strategy.columns * strategy.lanes

    def _counts(self, e: Evaluator) -> list[Number]:
        """Parallel range: outer classes, row blocks, lane blocks."""
        counts = [self._size(e, c) for c in self.r.outer]
        counts.append(1 if self.s.row is None else e.math.ceildiv(self._size(e, self.s.row), self._row_block()))
        counts.append(self._lane_count(e))
        return counts

    def _lane_count(self, e: Evaluator) -> Number:
        return 1 if self.s.lane is None else e.math.ceildiv(self._size(e, self.s.lane), self.width)

    def _row_block(self) -> int:
        """Rows per parallel iteration: some register tiles, so that a panel of B is read from cache."""
        return self.s.rows * self.s.row_tiles

    def _summed_rows(self) -> int:
        """Rows of such a block for which there are sums: where their number is a symbol, the last tile has more than there are."""
        known = self.s.row is None or isinstance(self.k.domain.sizes[self.s.row], int)
        return self._row_block() + (0 if known else self.s.short_rows[0])

    def trip(self, slots: list[ir.Value]) -> Number:
        e = self.k.sizes_evaluator(self.s.lanes, slots)
        return functools.reduce(e.math.mul, self._counts(e), 1)

    def body(self, begin: ir.Value, end: ir.Value, status: ir.Value, slots: list[ir.Value]) -> None:
        self._bind(status, slots)
        self._walk(begin, end)

    def _bind(self, status: ir.Value, slots: list[ir.Value]) -> None:
        """Begin the code of a function that has these slots."""
        self.e = Evaluator(self._vector(), status, self.k.shapes)
        self.out = self.k.bind(self.e, slots, self.s.streamed)
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
            at = self._coordinates(p, counts)
            for c, i in zip(self.r.outer, at):
                self.env[c] = Index(i)
            self._lanes(e.math.mul(at[n + 1], self.width), at[n])
            return []

        loop(e, begin, end, 1, [], iteration)

    def _coordinates(self, p: Number, counts: list[Number]) -> list[Number]:
        """Of outer classes, row block and lane block, for a place in the parallel range."""
        e, m = self.e, self.e.math
        n = len(counts) - 2
        if self.s.near is None:
            order = self._order(n)
            at: list[Number] = [0] * len(counts)
            for place, i in zip(order, delinearize(e.math, p, [counts[k] for k in order])):
                at[place] = i
            return at
        rows, lanes, near = counts[n], counts[n + 1], self.s.near
        *outer, rest = delinearize(e.math, p, [*counts[:n], m.mul(rows, lanes)])
        part = m.floordiv(rest, m.mul(near, lanes))
        rest, before = m.mod(rest, m.mul(near, lanes)), m.mul(part, near)
        here = near if isinstance(rows, int) and rows % near == 0 else m.minimum(near, m.sub(rows, before))
        return [*outer, m.add(before, m.mod(rest, here)), m.floordiv(rest, here)]

    def _order(self, n: int) -> list[int]:
        """The order of the parallel loops: `n` outer classes, row blocks (`n`), lane blocks (`n` + 1), the outermost first."""
        if k := self.s.inside:
            return [*range(n - k), n, *range(n - k, n), n + 1]
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
            sums = [self._loaded_sums(kind, at) for at in places]
            self._store([Index(m.add(first, r))], lanes, masks, sums)
            return []

        # Code for other than whole tiles would be run too rarely for the time that it takes to compile.
        often = self.s.called_epilogue or not isinstance(rows, int) or rows >= self.s.rows
        group = self.s.epilogue_rows if often and all(mask is None for mask in masks) else 1

        def rows_in_turns(r: Number, _: Values) -> Values:
            for n in range(group):
                row(m.add(r, n), [])
            return []

        grouped = m.mul(m.floordiv(rows, group), group)
        self._epilogue_loop(0, grouped, group, rows_in_turns)
        self._epilogue_loop(grouped, rows, 1, row)

    def _loaded_sums(self, kind: ir.Type, at: Number) -> ir.Value:
        """Of a row, from the scratch."""
        return vector.load(kind, self.scratch, [self.e.math.value(at)])

    def _epilogue_loop(self, begin: Number, end: Number, step: int, body: Callable[[Number, Values], Values]) -> None:
        """A loop over rows in the scratch: chains take turns, and it may be a function."""
        loop(self.e, begin, end, step, [], body, interleave=True)
        if self.s.called_epilogue and (ops := list(ir.InsertionPoint.current.block.operations)) and INTERLEAVE in ops[-1].attributes:
            outline_loop(st.operation(ops[-1]))

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
        rest = size % self.width if isinstance(size, int) else left
        either(e, full, lambda: self._rows(first, self.s.columns, None, row_block), lambda: self._tail(first, rest, row_block))

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
        if self.s.fetch_ahead:
            self.reading = self._pass(row_block)
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
        rest, shared = self._rest(lo, hi)
        end = e.math.chosen(shared, e.math.sub(hi, self.s.rows), hi)
        self._short_tiles(tiles(lo, end, self.s.rows), hi, rest, shared, first, masks)

    def _pass(self, row_block: Number) -> tuple[Number, Number]:
        """Of the rows whose register tiles read the same panel before the next one is read: the first one, and how many they are."""
        e, m = self.e, self.e.math
        size = m.maximum(self._size(e, self.s.row), 1)  # type: ignore[arg-type]
        if self.s.near is None:
            return 0, size
        together = self.s.near * self._row_block()
        return m.mul(m.floordiv(row_block, self.s.near), together), m.minimum(size, together)

    def _rest(self, lo: Number, hi: Number) -> tuple[ir.Value, ir.Value]:
        """The rows that whole tiles leave, and whether short tiles compute the last of these, too (`heights.cover`)."""
        m, rows = self.e.math, self.s.rows
        rest = m.value(m.mod(m.sub(hi, lo), rows))
        better = sum(self._shares_one(n) << n for n in range(rows))
        enough = arith.cmpi(arith.CmpIPredicate.sge, m.value(m.sub(hi, lo)), m.value(rows))
        return rest, arith.andi(enough, arith.trunci(ir.IntegerType.get_signless(1), self._entry(better, rest, 1)))

    def _shares_one(self, rest: int) -> bool:
        return heights.shares_one(rest, self.s.rows, self.s.short_rows, heights.hiding(self.s.columns))

    def _entry(self, table: int, n: ir.Value, bits: int) -> ir.Value:
        """Number `n` of those that so many bits of a constant are, an i64."""
        i64 = ir.IntegerType.get_signless(64)
        at = arith.muli(arith.index_cast(i64, n), builders.constant(i64, bits))
        return arith.andi(arith.shrui(builders.constant(i64, table), at), builders.constant(i64, (1 << bits) - 1))

    def _short_tiles(
        self, lo: Number, hi: Number, rest: ir.Value, shared: ir.Value, first: Number | None, masks: Sequence[ir.Value | None]
    ) -> None:
        """The tiles of each height that hold `rest` rows, or these and those of a whole tile.

        Where there are not tiles of each low height, rows that there are not are computed as the last one again, and not stored: a branch for
        each in every step would cost more.
        """
        m, rows, short, least = self.e.math, self.s.rows, self.s.short_rows, heights.hiding(self.s.columns)
        last = m.sub(hi, 1)

        def tile(height: int) -> Callable[[Number, Values], Values]:
            def build(i: Number, _: Values) -> Values:
                if heights.hold_any(short):
                    self._tile(first, masks, [Index(m.add(i, r)) for r in range(height)])
                    return []
                self.count = m.minimum(m.sub(hi, i), height)
                self._tile(first, masks, [Index(i), *(Index(m.minimum(m.add(i, r), last)) for r in range(1, height))])
                self.count = None
                return []

            return build

        for n, height in enumerate(short[:-1]):
            # Up to three tiles, of up to 31 rests.
            alone = sum(heights.cover(k, short, least).tiles[n] << 2 * k for k in range(rows))
            both = sum(heights.cover(k + rows, short, least).tiles[n] << 2 * k for k in range(rows) if self._shares_one(k))
            tiles = arith.select(shared, self._entry(both, rest, 2), self._entry(alone, rest, 2))
            after = m.minimum(m.add(lo, m.mul(arith.index_cast(ir.IndexType.get(), tiles), height)), hi)
            loop(self.e, lo, after, height, [], tile(height))
            lo = after
        loop(self.e, lo, hi, short[-1], [], tile(short[-1]))

    def _tile(self, first: Number | None, masks: Sequence[ir.Value | None], rows: list[Index]) -> None:
        """One register tile."""
        e, m = self.e, self.e.math
        m.enter()
        lanes = [Index(0)] if first is None else [Index(m.add(first, j * e.lanes), 1) for j in range(len(masks))]
        if self.s.results_ahead:
            self._fetch_results(rows, lanes)
        if self.s.reads_ahead:
            for row in rows:
                self._set(row, lanes[0])
                for a in reads_of_rows(self.k, self.r):
                    self._fetch_read(a, 0)
        self._finish(lanes, masks, rows, self._sums_of(first, masks, rows))
        m.leave()

    def _fetch_results(self, rows: list[Index], lanes: list[Index]) -> None:
        """Ask for the lines that a tile will store (as BLIS does): they come while its products are summed up, and no store waits for them."""
        for n in sorted(set(self.outputs) - set(self.s.streamed)):
            producer = st.owner(self.k.results[n])
            assert producer is not None
            line = LINE * 8 // builders.element_type(self.k.results[n]).width
            elements = len(lanes) * self.e.lanes if lanes[0].stride else 1
            for row in rows:
                for j in range(0, elements, line):
                    self._set(row, Index(self.e.math.add(lanes[0].base, j), lanes[0].stride))
                    self.e.fetch_for_store(self.out[n], self.k.place(n, self._result_point(producer), self.e.math))

    def _fetch_read(self, a: Access, ahead: int) -> None:
        """Ask for what an access reads of a row for a block of lanes, `ahead` elements from the place that is set."""
        m, each = self.e.math, LINE * 8 // builders.element_type(a.value).width
        at = functools.reduce(m.add, (m.mul(self.env[c].base, n) for c, n in a.steps.items() if c in self.env), ahead)  # type: ignore[arg-type, operator]
        for line in range(0, self.width, each):
            memref.prefetch(self.e.memory[a.value].buffer, [m.value(m.add(at, line))], False, 3, True)

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

    def _sum_into_scratch(self, first: Number | None, masks: Sequence[ir.Value | None], rows: list[Index], corner: Number) -> None:
        """One register tile, whose sums go to the scratch, from `corner` on."""
        e, m = self.e, self.e.math
        lanes = [Index(0)] if first is None else [Index(m.add(first, j * e.lanes), 1) for j in range(len(masks))]
        acc = self._products(rows, lanes, masks)
        for i in range(len(rows)):
            for j in range(len(lanes)):
                vector.store(acc[i * len(lanes) + j], self.scratch, [m.value(m.add(corner, i * self.width + j * e.lanes))])

    def _store(self, rows: list[Index], lanes: list[Index], masks: Sequence[ir.Value | None], acc: Values) -> None:
        """The epilogue: every stored value at every point of the tile, computed from the accumulators."""
        e = self.e
        each = len(rows) * len(lanes)
        e.known = {op.results[0]: self._lookup(op, rows, lanes, acc[n * each :]) for n, op in enumerate(self.ops)}  # type: ignore[union-attr]

        each_row(e, self.count, rows, lambda row: self._store_row(row, lanes, masks))
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
        """All values first, and then the stores, which no load could overtake."""
        e, k = self.e, self.k
        made = []
        for lane, e.mask in zip(lanes, masks):
            self._set(row, lane)
            for n in self.outputs:
                producer = st.owner(k.results[n])
                assert producer is not None
                point = self._result_point(producer)
                made.append((self.out[n], k.place(n, point, e.math), e.value(k.results[n], point), e.mask))
        for out, point, value, e.mask in made:
            e.store(out, point, value)
        e.mask = None

    def _result_point(self, op: ir.Operation) -> Point:
        loops = self._loops(op)
        return tuple(self.e.math.affine(x, loops) for x in st.maps(op)[len(op.operands) - 1].results)
