"""Contractions of bf16 (here) or bytes on AMX: up to 2x2 tiles of 16x16 sums, the epilogue from a scratch.

    func @kernel_tiles16(%begin, %end, %context):        (of the parallel range)
      for outer classes, row block, lane block:
        the first lane block?  copy of the rows, [k / 32][row][32]
        for blocks of k:                                  (a panel of 32 columns of one of them stays in the first-level cache)
          for 32 rows of the row block:
            c[2][2] = 0, or from the scratch
            for k in steps of 32:
              a[2] = rows, 32 bf16 each; b[2] = packed words [k/2][32 columns][2]; c += a * b
              the last block of k?  for some of the 32 rows before: store epilogue(scratch[row])
            scratch = c
          the last block of k?  for the last 32 rows: store epilogue(scratch[row])

A tile register has one shape in a whole function: LLVM configures the tiles once per function, and spills in inner loops if
shapes compete for the eight of them. To configure them and to release them takes as long as 20 to 30 products, so a thread does it
once: the function walks the whole of its range, and all tiles have 16 rows. Rows that do not fill a tile are the last ones of one
that overlaps the tile before, of which the epilogue takes what is new. Fewer rows than 16 have a function with tiles of their number;
where that is a symbol, there are functions for 8, 4, 2 and 1, each for its bit of the number. Of rows that are not worth a copy, what is left of k
after steps of 32 is copied all the same, with zeros behind it. Denormals are flushed by the unit.

A panel that is somewhat larger than the first-level cache need not be cut: its first part stays there (`kept`), and the rest is loaded past
it for every 32 rows, by a second loop over k. Sums are in the scratch once then, instead of twice for each block.

The epilogue is shared out to the steps of the 32 rows that follow (`overlapped`): vectors and unit work at the same time then, while a
loop of its own after each register tile is too long for the CPU to look past it: 2048 x 512 x 256 takes 302 instead of 340 us.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...dialects import builders
from ...dialects.mlir import arith, func, ir, memref, scf, vector, x86
from .. import structure as st
from ..round_in_place import FLUSHED
from ..strategy import ContractionStrategy
from ..strategy.tiles import fetched_lines, reads_of_rows, row_length
from . import entry, words
from .borders import borders
from .contraction import Contraction
from .kernel import KernelFunction
from .lanes import Index, Number
from .memory import Memory
from .nest import Values, loop
from .tile_blocks import Block, Pending, Span
from .words import load_once, tile

SIDE = 16
"""Rows, and f32 columns, of a tile register."""
MOST_HELD = 4
"""Vectors of a row that wait in registers for all rows of a block, each in two of 32: those of a norm, and a bias."""
RING = 4 * SIDE
"""Rows of sums that are kept: those that are made, and those whose epilogue is under way."""


def vectorize_tiles(kernel: KernelFunction, strategy: ContractionStrategy, symbol: str) -> ir.Module:
    """Build the module of a contraction whose second operand is packed in words."""
    emitter = Tiles(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body, borders(kernel, strategy.lanes))


class Tiles(Contraction):
    """As `Contraction`, in functions that have tiles of one height each."""

    height = SIDE
    """Rows of a tile."""
    side = SIDE
    """Columns of a tile of sums."""

    def __init__(self, kernel: KernelFunction, strategy: ContractionStrategy) -> None:
        super().__init__(kernel, strategy)
        self.left = self.width
        """Lanes of the block that is being built."""
        depth = kernel.domain.sizes[strategy.words]  # type: ignore[index]
        assert isinstance(depth, int)
        self.row_length = row_length(kernel, self.r)
        """Elements of k in a tile row."""
        self.row_words = self.row_length // self.each_step
        self.whole, self.rest = depth // self.row_length * self.row_words, depth % self.row_length
        """Pairs of k in whole tiles, and what is left, in elements."""
        self.copied = 0 if strategy.rows_copied else self.whole
        """The word from which on the rows of a block are read from a copy."""
        self.copy_begin: Number = self.copied
        """The first word in the copy."""

    def body(self, begin: ir.Value, end: ir.Value, status: ir.Value, slots: list[ir.Value]) -> None:
        assert self.s.row is not None
        size = self._size(self.k.sizes_evaluator(self.s.lanes, slots), self.s.row)
        if isinstance(size, int):
            self._call(min(size, SIDE), begin, end)
            return
        enough = arith.cmpi(arith.CmpIPredicate.sge, size, builders.index(SIDE))
        branch = scf.IfOp(enough, has_else=True)
        for block, heights in ((branch.then_block, [SIDE]), (branch.else_block, [8, 4, 2, 1])):
            with ir.InsertionPoint(block):
                for height in heights:
                    self._call(height, begin, end)
                scf.YieldOp([])

    def _call(self, height: int, begin: ir.Value, end: ir.Value) -> None:
        """Build the function for a height, and call it."""
        body = st.operation(ir.InsertionPoint.current.block.owner)
        while body.name != "func.func":
            body = st.operation(body.parent)
        name = f"{ir.StringAttr(body.attributes['sym_name']).value.removesuffix('_body')}_tiles{height}"
        arguments = [begin, end, body.regions[0].blocks[0].arguments[2]]
        with ir.InsertionPoint(st.operation(body.parent).regions[0].blocks[0]):
            f = func.FuncOp(name, ir.FunctionType.get([a.type for a in arguments], []))
            f.operation.attributes["llvm.linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
            f.operation.attributes["no_inline"] = ir.UnitAttr.get()
            with ir.InsertionPoint(f.add_entry_block()):
                inner = type(self)(self.k, self.s)
                inner.height = height
                first, last, context = f.arguments
                inner._bind(*entry.unpack(context, self.k.kinds))
                inner._walk(first, last)
                func.ReturnOp([])
        func.CallOp([], name, arguments)

    def _vector(self) -> int:
        """The epilogue has a row of a block in one vector, which LLVM takes apart op by op: two chains of dependent ops take turns,
        which it would else leave one after the other, too far apart for the CPU to overlap them (36 instead of 41 cycles for 16 exact GELU)."""
        return self.width

    def _prepare(self) -> None:
        self._make_scratch(self._rows_of_scratch())
        if steps := self._steps_of_copy():
            element = self._element()
            place = memref.AllocaOp(ir.MemRefType.get([steps * self._rows_of_copy() * self.row_length], element), [], [], alignment=64).result
            self.copy = Memory(memref.cast(ir.MemRefType.get([builders.DYNAMIC], element), place), [1], element)

    def _element(self) -> ir.Type:
        """Of both operands."""
        return builders.element_type(self.op.operands[0])  # type: ignore[union-attr]

    def _steps_of_copy(self) -> int:
        """Of k, which the memory for a copy has room for."""
        return (self.whole - self.copied) // self.row_words + bool(self.rest)

    def _rows_of_scratch(self) -> int:
        """Where k is not cut, sums are kept until the epilogue of the next 32 rows only."""
        return self._rows_of_copy() if self._keeps_all() else min(RING, self._rows_of_copy())

    def _keeps_all(self) -> bool:
        """Whether the sums of all rows of a block are in the scratch."""
        return self.s.depth is not None

    def _place(self, row: Number, block: Block) -> Number:
        """Where in the scratch the sums of two tiles are, of rows from `row` on."""
        place = self.e.math.sub(row, block.begin)
        return place if self._keeps_all() else self.e.math.mod(place, RING)

    def _rows_of_copy(self) -> int:
        """The last tile may begin before the block."""
        return self._row_block() + self.height

    def _order(self, n: int) -> list[int]:
        # Lane blocks innermost: the rows of a block stay in the second-level cache, and the panels stream past them.
        return super()._order(n) if self.s.lanes_first or self.s.inside else [*range(n), n, n + 1]

    def _lanes(self, first: Number, row_block: Number) -> None:
        if self.rest or self.copied < self.whole:
            self._copy_rows(first, row_block)
        super()._lanes(first, row_block)

    def _copy_rows(self, first: Number, row_block: Number) -> None:
        """From the rows of a block, or from what is left of them, once for all panels."""
        m = self.e.math
        if self.s.lanes_first:
            self._copy_words(first, row_block, self.copied, self.whole)
            return
        new = [arith.cmpi(arith.CmpIPredicate.eq, m.value(a), m.value(b)) for a, b in ((first, 0), self.position)]
        branch = scf.IfOp(arith.ori(*new))
        with ir.InsertionPoint(branch.then_block):
            m.enter()
            self._copy_words(first, row_block, self.copied, self.whole)
            scf.YieldOp([])
            m.leave()

    def _copy_words(self, first: Number, row_block: Number, begin: Number, end: Number) -> None:
        """[k / 32][row][32], of k from `begin` to `end`, in words; what is left of k after all whole tiles comes behind the last of these."""
        e, m = self.e, self.e.math
        lo, hi = self._present_rows(row_block)
        start = lo if self.height < SIDE else m.minimum(lo, m.sub(hi, self.height))
        kind, i1 = ir.VectorType.get([self.row_length], self._element()), ir.IntegerType.get_signless(1)
        zeros = builders.constant(kind, 0)
        mask = vector.constant_mask(ir.VectorType.get([self.row_length], i1), [self.rest])

        def row(r: Number, _: Values) -> Values:
            def copy(word: Number, rest: bool) -> Values:
                self.env[self.s.words] = Index(m.mul(word, self.each_step))  # type: ignore[index]
                place, at = self.operand_at(self.r.along_rows, Index(r), Index(first))
                where = [m.value(at.base)]
                part = vector.maskedload(kind, place.buffer, where, mask, zeros) if rest else vector.load(kind, place.buffer, where)
                vector.store(part, self.copy.buffer, [self._copy_of(r, lo, word)])
                return []

            loop(e, begin, end, self.row_words, [], lambda word, _: copy(word, rest=False))
            if self.rest and end == self.whole:
                copy(self.whole, rest=True)
            return []

        loop(e, start, hi, 1, [], row)

    def _copy_of(self, row: Number, lo: Number, word: Number) -> ir.Value:
        """Where the copy of a row is, of a block that begins with row `lo`."""
        m, rows = self.e.math, self._rows_of_copy()
        step = m.floordiv(m.sub(word, self.copy_begin), self.row_words)
        return m.value(m.mul(m.add(m.mul(step, rows), m.add(m.sub(row, lo), self.height)), self.row_length))

    def _tail(self, first: Number, left: Number, row_block: Number) -> None:
        assert isinstance(left, int)
        self.left = left
        super()._tail(first, left, row_block)
        self.left = self.width

    def _rows(self, first: Number | None, columns: int, masks: Sequence[ir.Value | None] | None, row_block: Number) -> None:
        """A row block and a lane block."""
        e, m = self.e, self.e.math
        assert first is not None and self.s.words is not None
        length, step = self.whole, self.whole if self.s.depth is None else self.s.depth // self.each_step
        block = self._block(first, masks, row_block)
        self._hold(block)
        if self.k.seen is not None and self.k.seen[0] == self.s.words:
            begin, end = (m.floordiv(n, self.each_step) for n in self.walked(self.s.words))
            self._products_of(block, Span(begin, end, True, True))
            self._end(block)
            return
        parts = -(-length // step) if length else 1
        self._products_of(block, Span(0, min(step, length), True, parts == 1))

        def middle(begin: Number, _: Values) -> Values:
            self._products_of(block, Span(begin, m.add(begin, step), False, False))
            return []

        loop(e, step, (parts - 1) * step, step, [], middle)
        if parts > 1:
            self._products_of(block, Span((parts - 1) * step, length, False, True))
        self._end(block)

    def _end(self, block: Block) -> None:
        """What follows the products of a row block and a lane block, and their epilogues."""

    def _hold(self, block: Block) -> None:
        """Load what the epilogue reads for all rows alike. LLVM would load it for each: it does not know that what is stored is another memory."""
        e, d, held = self.e, self.k.domain, 0
        for op in d.loops:
            if st.kind(op) != "elementwise":
                continue
            for argument, value, m in zip(op.regions[0].blocks[0].arguments, st.inputs(op), st.maps(op)):
                classes = {d.loops[op][loop] for loop in st.used_loops(m)}
                if st.root(value) not in e.memory or ({self.s.row, self.s.lines} - {None}) & classes or not list(argument.uses) or held == MOST_HELD:
                    continue
                held += 1
                for lane, e.mask in zip(block.lanes, block.masks):
                    self._set(Index(0), lane)
                    e.value(value, tuple(e.math.affine(x, self._loops(op)) for x in m.results))
                e.mask = None

    def _block(self, first: Number, masks: Sequence[ir.Value | None] | None, row_block: Number) -> Block:
        lanes = [Index(self.e.math.add(first, j), 1) for j in range(0, self.left, self.e.lanes)]
        return Block(*self._present_rows(row_block), lanes, masks or [None] * len(lanes), -(-self.left // SIDE))

    def _present_rows(self, row_block: Number) -> tuple[Number, Number]:
        """From where to where this function computes rows of a row block."""
        m, h = self.e.math, self.height
        size = self._size(self.e, self.s.row)  # type: ignore[arg-type]
        if h < SIDE and not isinstance(size, int):
            lo = m.mul(m.floordiv(size, 2 * h), 2 * h)
            return lo, m.add(lo, m.sub(m.mod(size, 2 * h), m.mod(size, h)))
        lo = m.mul(row_block, self._row_block())
        return lo, m.minimum(m.add(lo, self._row_block()), size)

    def _products_of(self, block: Block, span: Span) -> None:
        """The products of a block of k."""
        e, m, h = self.e, self.e.math, self.height
        size = self._size(e, self.s.row)  # type: ignore[arg-type]
        middle = block.begin
        if self.s.rows == 2 * SIDE and h == SIDE:
            middle = m.add(middle, m.mul(m.floordiv(m.add(m.sub(block.end, middle), SIDE - 1), 2 * SIDE), 2 * SIDE))
            exact = isinstance(size, int) and size % (2 * SIDE) <= SIDE

            def finish(i: Number) -> None:
                """The epilogue of two tiles."""
                place, second = self._place(i, block), m.add(i, SIDE)
                if exact:
                    self._epilogue_of(i, 2 * SIDE, place, block)
                    return
                self._epilogue_of(i, SIDE, place, block)
                left = m.minimum(SIDE, m.sub(block.end, second))
                self._epilogue_of(second, left, m.add(place, m.sub(2 * SIDE, left)), block)

            def double(i: Number, _: Values) -> Values:
                second = m.add(i, SIDE)
                rows = [i, second if exact else m.minimum(second, m.sub(block.end, SIDE))]
                self._sums(rows, self._place(i, block), block, span, self._before(i, block, span))
                if span.last and not self.s.overlapped:
                    finish(i)
                return []

            loop(e, block.begin, middle, 2 * SIDE, [], double)
            if span.last and self.s.overlapped:
                loop(e, m.maximum(block.begin, m.sub(middle, 2 * SIDE)), middle, 2 * SIDE, [], lambda i, _: finish(i) or [])
            if isinstance(size, int) and (size % (2 * SIDE) > SIDE or size % (2 * SIDE) == 0):
                return
        whole = isinstance(size, int) and size % h == 0

        def single(i: Number, _: Values) -> Values:
            place = self._place(i, block)
            row = i if whole else m.minimum(i, m.sub(block.end, h))
            self._sums([row], place, block, span)
            if span.last:
                self._epilogue_of(i, h if whole else m.minimum(h, m.sub(block.end, i)), m.add(place, m.sub(i, row)), block)
            return []

        loop(e, middle, block.end, h, [], single)

    def _before(self, row: Number, block: Block, span: Span) -> Pending | None:
        """The two tiles before those from `row` on, if their epilogue is to be done with the products of these."""
        if not (span.last and self.s.overlapped):
            return None
        m = self.e.math
        before = m.sub(row, 2 * SIDE)
        there = arith.cmpi(arith.CmpIPredicate.sge, m.value(before), m.value(block.begin))
        return Pending(before, self._place(before, block), there)

    def _sums(self, rows: list[Number], place: Number, block: Block, span: Span, pending: Pending | None = None) -> None:
        """Up to 2x2 tiles, whose sums are in the scratch from row `place` on."""
        m = self.e.math
        m.enter()
        kind = tile(self.height, SIDE, str(builders.element_type(self.op.results[0])))  # type: ignore[union-attr]
        corner = m.mul(place, self.width)
        places = [m.value(m.add(corner, i * SIDE * self.width + j * SIDE)) for i in range(len(rows)) for j in range(block.columns)]
        stride = m.value(self.width)
        if span.first:
            acc = [x86.amx_tile_zero(kind) for _ in places]
        else:
            acc = [x86.amx_tile_load(kind, self.scratch, [at], stride=stride) for at in places]
        outer = [c for c in self.r.reductions if c != self.s.words]
        acc = self._sum(outer, rows, block, span, acc, pending)
        if span.last and self.rest:
            self.env[self.s.words] = Index(self.each_step * self.whole)  # type: ignore[index]
            acc = self._multiply_tiles(rows, lambda row: self._copied_tile(row, self.whole, block), block, acc)
        for at, total in zip(places, acc):
            x86.amx_tile_store(self.scratch, [at], total, stride=stride)
        m.leave()

    def _sum(
        self, classes: list[int], rows: list[Number], block: Block, span: Span, acc: Values, pending: Pending | None, done: Number = 0
    ) -> Values:
        """Walk the outer reductions, then k in tiles, in the `done`-th iteration of those."""
        e, m = self.e, self.e.math
        if classes:

            def outer(i: Number, values: Values) -> Values:
                self.env[classes[0]] = Index(i)
                before = m.add(m.mul(done, self._size(e, classes[0])), i)
                return self._sum(classes[1:], rows, block, span, values, pending, before)

            return loop(e, *self.walked(classes[0]), 1, acc, outer)

        def step(word: Number, values: Values, kept: bool = True) -> Values:
            m.enter()
            self.env[self.s.words] = Index(m.mul(word, self.each_step))  # type: ignore[index]
            load = (lambda row: self._copied_tile(row, word, block)) if self.copied < self.whole else (lambda row: self._row_tile(row, block))
            out = self._multiply_tiles(rows, load, block, values, kept)
            if self.s.fetch_ahead:
                self._fetch(word, m.sub(rows[0], block.begin), block, span)
            if pending is not None:
                steps = m.floordiv(m.sub(span.end, span.begin), self.row_words)
                self._some_of(pending, m.add(m.mul(done, steps), m.floordiv(m.sub(word, span.begin), self.row_words)), self._steps(span), block)
            m.leave()
            return out

        if self.s.kept is None:
            return loop(e, span.begin, span.end, self.row_words, acc, step)
        middle = self.s.kept // self.each_step
        acc = loop(e, span.begin, middle, self.row_words, acc, step)
        return loop(e, middle, span.end, self.row_words, acc, lambda word, values: step(word, values, kept=False))

    def _row_tile(self, row: Number, block: Block) -> ir.Value:
        """Of the rows from `row` on, at this k."""
        # A lane stride of one along the rows makes the step from row to row come out as the lane stride.
        place, at = self.operand_at(self.r.along_rows, Index(row, 1), Index(block.first))
        kind, where, stride = tile(self.height, self.row_length, str(place.element)), self.e.math.value(at.base), self.e.math.value(at.stride)
        if self.s.rows_once:
            return load_once(kind, place, where, stride)
        return x86.amx_tile_load(kind, place.buffer, [where], stride=stride)

    def _copied_tile(self, row: Number, word: Number, block: Block) -> ir.Value:
        """The same from the copy."""
        kind, stride = tile(self.height, self.row_length, str(self.copy.element)), self.e.math.value(self.row_length)
        return load_once(kind, self.copy, self._copy_of(row, block.begin, word), stride)

    def _panel_tile(self, j: int, block: Block, kept: bool) -> ir.Value:
        """Of the packed operand at this k: the `j`-th of the block's tiles, which is `kept` in the first-level cache."""
        m = self.e.math
        place, at = self.operand_at(self.r.along_lanes, Index(0), Index(m.add(block.first, j * SIDE)))
        kind, where, stride = tile(self.row_words, self.each_step * self.side, str(place.element)), m.value(at.base), m.value(place.strides[-3])
        return x86.amx_tile_load(kind, place.buffer, [where], stride=stride) if kept else load_once(kind, place, where, stride)

    def _multiply_tiles(self, rows: list[Number], load: Callable[[Number], ir.Value], block: Block, acc: Values, kept: bool = True) -> Values:
        """Each tile is loaded right before the first product that needs it: the unit starts with two of four."""
        panel: dict[int, ir.Value] = {}
        out: Values = []
        flags = st.unsigned(self.op)  # type: ignore[arg-type]
        unsigned = flags[::-1] if self.r.swapped else flags
        for row in rows:
            a = load(row)
            for j in range(block.columns):
                if j not in panel:
                    panel[j] = self._panel_tile(j, block, kept)
                out.append(words.multiply_tiles(acc[len(out)], (a, unsigned[0]), (panel[j], unsigned[1])))
        return out

    def _steps(self, span: Span) -> int:
        """Of k in tiles, those of all iterations of the outer reductions."""
        sizes = [self._size(self.e, c) for c in self.r.reductions if c != self.s.words]
        return math.prod(sizes) * (span.end - span.begin) // self.row_words  # type: ignore[arg-type, operator, return-value]

    def _some_of(self, pending: Pending, step: Number, steps: int, block: Block) -> None:
        """The epilogue of the rows that a step has of those that are pending."""
        m, most = self.e.math, -(-2 * SIDE // steps)
        first = m.mul(step, most)
        count = most if 2 * SIDE == most * steps else m.minimum(m.sub(2 * SIDE, first), most)
        present = arith.select(pending.there, m.value(count), m.value(0))
        self._epilogue_of(m.add(pending.row, first), present, m.add(pending.place, first), block)

    def _fetch(self, word: Number, place: Number, block: Block, span: Span) -> None:
        """Fetch a part of a block of the panel into the second-level cache: each of the register tiles its share of a step's lines, those
        of rows from `place` on in the block.

        It is the block after the next one, which lies behind that and this one: the next one, and into the first level, came too late.
        """
        m, each = self.e.math, -(-fetched_lines(self.width, self.s.row_tiles) // self.s.streams)
        panel, at = self.operand_at(self.r.along_lanes, Index(0), Index(block.first))
        behind = self._ahead(span, word, panel)
        steps = m.floordiv(m.sub(span.end, span.begin), self.row_words)
        step = m.add(m.mul(m.floordiv(place, 2 * SIDE), steps), m.floordiv(m.sub(word, span.begin), self.row_words))
        start = m.add(m.add(at.base, behind), m.mul(step, each * self.row_length))
        for stream in range(self.s.streams):
            first = m.add(start, m.mul(steps, stream * self.s.row_tiles * each * self.row_length))
            for line in range(each):
                memref.prefetch(panel.buffer, [m.value(m.add(first, line * self.row_length))], False, 2, True)

    def _ahead(self, span: Span, word: Number, panel: Memory) -> Number:
        """Elements from this word to the block after the next one: panels lie one behind the other."""
        m = self.e.math
        return m.mul(m.sub(m.mul(span.end, 2), m.add(span.begin, word)), panel.strides[-3])

    def _epilogue_of(self, row: Number, count: Number, place: Number, block: Block) -> None:
        """Store what becomes of the sums of rows from `row` on, which are in the scratch from row `place` on."""
        m = self.e.math
        m.enter()
        self._store_from_scratch(row, count, block.lanes, block.masks, m.mul(place, self.width))
        m.leave()

    def _store_row(self, row: Index, lanes: list[Index], masks: Sequence[ir.Value | None]) -> None:
        super()._store_row(row, lanes, masks)
        if self.s.reads_ahead:  # what is read for the next lane block, of the same row
            self._set(row, lanes[0])
            for a in reads_of_rows(self.k, self.r):
                self._fetch_read(a, self.width)
        if self.s.results_ahead:  # where the next lane block is stored, in the same row
            self._fetch_results([row], [Index(self.e.math.add(lane.base, self.width), 1) for lane in lanes])

    def _loaded_sums(self, kind: ir.Type, at: Number) -> ir.Value:
        sums = super()._loaded_sums(kind, at)
        if isinstance(kind.element_type, ir.F32Type):
            sums.owner.attributes[FLUSHED] = ir.UnitAttr.get()
        return sums
