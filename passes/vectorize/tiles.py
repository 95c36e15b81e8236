"""bf16 contractions on AMX: up to 2x2 tiles of 16x16 sums, the epilogue from a scratch of one tile block.

    func @kernel_tile_32x32(%context, %first_row, %end_row, %first_lane, outer indices):
      for row blocks of 32:
        c[2][2] = 0
        for k in steps of 32: a[2] = rows, 32 bf16 each; b[2] = packed pairs [k/2][32 columns][2]; c += a * b
        scratch = c; for row: store epilogue(scratch[row])

A tile register has one shape in a whole function: LLVM configures the tiles once per function, and spills in inner loops
if shapes compete for the eight of them. So each block shape (full, 16 rows, the last rows, the last lanes) is a function
of its own that is not inlined. Denormals are flushed by the unit.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects.mlir import func, ir, x86
from .. import structure as st
from ..strategy import ContractionStrategy
from . import entry
from .contraction import Contraction
from .evaluate import Evaluator
from .kernel import KernelFunction
from .lanes import Index, Number
from .nest import Values, constant_mask, loop

SIDE = 16
"""Rows, and f32 columns, of a tile register."""
DEPTH = 32
"""bf16 of k in a tile row."""


def vectorize_tiles(kernel: KernelFunction, strategy: ContractionStrategy, symbol: str) -> ir.Module:
    """Build the module of a bf16 contraction whose second operand is packed in pairs."""
    emitter = _Tiles(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body)


def tile(rows: int, columns: int, element: str) -> ir.Type:
    return ir.Type.parse(f"!x86.amx.tile<{rows}x{columns}x{element}>")


class _Tiles(Contraction):
    """As `Contraction`, with the register tiles of a row range in functions per shape."""

    def __init__(self, kernel: KernelFunction, strategy: ContractionStrategy) -> None:
        super().__init__(kernel, strategy)
        self.functions: set[str] = set()

    left: int | None = None
    """Lanes of the last, partial block while it is being built."""

    def _tail(self, first: Number, left: Number, row_block: Number) -> None:
        assert isinstance(left, int)
        self.left = left
        super()._tail(first, left, row_block)
        self.left = None

    def _rows(self, first: Number | None, columns: int, masks: Sequence[ir.Value | None] | None, row_block: Number) -> None:
        e, m = self.e, self.e.math
        assert first is not None and self.s.row is not None
        size = self._size(e, self.s.row)
        lo = m.mul(row_block, self._row_block())
        hi = m.minimum(m.add(lo, self._row_block()), size)
        heights = [self.s.rows, *([SIDE] if self.s.rows > SIDE else [])]
        heights += [size % SIDE] if isinstance(size, int) else [4, 1]
        for rows in dict.fromkeys(h for h in heights if h):
            stop = m.add(lo, m.mul(m.floordiv(m.sub(hi, lo), rows), rows))
            self._call(rows, columns, lo, stop, first)
            lo = stop

    def _call(self, rows: int, columns: int, lo: Number, hi: Number, first: Number) -> None:
        """Call the function for a block shape, building it the first time."""
        m = self.e.math
        block = ir.InsertionPoint.current.block
        body = st.operation(block.owner)
        while body.name != "func.func":
            body = st.operation(body.parent)
        name = ir.StringAttr(body.attributes["sym_name"]).value.removesuffix("_body")
        name += f"_tile_{rows}x{self.left or columns * SIDE}"
        context = body.regions[0].blocks[0].arguments[2]
        outer = [self.env[c].base for c in self.r.outer]
        arguments = [context, *(m.value(n) for n in (lo, hi, first, *outer))]
        if name not in self.functions:
            self.functions.add(name)
            kind = ir.FunctionType.get([a.type for a in arguments], [])
            with ir.InsertionPoint(st.operation(body.parent).regions[0].blocks[0]):
                f = func.FuncOp(name, kind)
                f.operation.attributes["llvm.linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
                f.operation.attributes["no_inline"] = ir.UnitAttr.get()
                with ir.InsertionPoint(f.add_entry_block()):
                    self._function(rows, columns, list(f.arguments))
                    func.ReturnOp([])
        func.CallOp([], name, arguments)

    def _function(self, rows: int, columns: int, arguments: list[ir.Value]) -> None:
        context, lo, hi, first, *outer = arguments
        status, slots = entry.unpack(context, self.k.kinds)
        inner = _Tiles(self.k, self.s)
        inner.e = Evaluator(self.s.lanes, status, self.k.shapes)
        inner.out = self.k.bind(inner.e, slots)
        inner._prepare()
        inner.env = {c: Index(i) for c, i in zip(self.r.outer, outer)}
        masks: list[ir.Value | None] = [None] * columns
        if self.left is not None and self.left % SIDE:
            masks[-1] = constant_mask(inner.e, self.left % SIDE)

        def block(i: Number, _: Values) -> Values:
            inner._tile(first, masks, [Index(inner.e.math.add(i, r)) for r in range(rows)])
            return []

        loop(inner.e, lo, hi, rows, [], block)

    def _prepare(self) -> None:
        self._make_scratch(2 * SIDE)

    def _tile(self, first: Number | None, masks: Sequence[ir.Value | None], rows: list[Index]) -> None:
        m = self.e.math
        assert first is not None
        m.enter()
        heights = [min(SIDE, len(rows) - r) for r in range(0, len(rows), SIDE)]
        columns = len(masks)
        acc = [x86.amx_tile_zero(tile(h, SIDE, "f32")) for h in heights for _ in range(columns)]
        outer = [c for c in self.r.reductions if c != self.s.pairs]
        acc = self._sum(outer, first, rows[0].base, heights, columns, acc)
        for i, _h in enumerate(heights):
            for j in range(columns):
                at = m.value((i * SIDE) * self.width + j * SIDE)
                x86.amx_tile_store(self.scratch, [at], acc[i * columns + j], stride=m.value(self.width))
        lanes = [Index(m.add(first, j * SIDE), 1) for j in range(columns)]
        self._store_from_scratch(rows[0].base, len(rows), lanes, masks)
        m.leave()

    def _sum(
        self, classes: list[int], first: Number, row: Number, heights: list[int], columns: int, acc: Values
    ) -> Values:
        """Walk the outer reductions, then k in tiles."""
        if classes:

            def step(i: Number, values: Values) -> Values:
                self.env[classes[0]] = Index(i)
                return self._sum(classes[1:], first, row, heights, columns, values)

            return loop(self.e, 0, self._size(self.e, classes[0]), 1, acc, step)
        assert self.s.pairs is not None
        def block(k: Number, values: Values) -> Values:
            return self._multiply_tiles(first, row, heights, columns, k, values)

        return loop(self.e, 0, self._size(self.e, self.s.pairs), DEPTH, acc, block)

    def _multiply_tiles(
        self, first: Number, row: Number, heights: list[int], columns: int, k: Number, acc: Values
    ) -> Values:
        e, m, op = self.e, self.e.math, self.op
        assert op is not None and self.s.pairs is not None and self.s.row is not None and self.s.lane is not None
        m.enter()
        self.env[self.s.pairs] = Index(k)
        packed = 0 if self.r.swapped else 1
        places = [(e.memory[v], a) for v, a in list(zip(op.operands, st.maps(op)))[:2]]

        def address(n: int) -> Index:
            place, a = places[n]
            return e.offset(place, tuple(self._address(x, self._loops(op)) for x in a.results))

        a_tiles, b_tiles = [], []
        for i, h in enumerate(heights):
            # A lane stride of one along the rows makes the step from row to row come out as the lane stride.
            self._set(Index(m.add(row, i * SIDE), 1), Index(first))
            at = address(1 - packed)
            place = places[1 - packed][0]
            a_tiles.append(
                x86.amx_tile_load(tile(h, DEPTH, "bf16"), place.buffer, [m.value(at.base)], stride=m.value(at.stride))
            )
        for j in range(columns):
            self._set(Index(row), Index(m.add(first, j * SIDE)))
            at = address(packed)
            place = places[packed][0]
            b_tiles.append(
                x86.amx_tile_load(
                    tile(DEPTH // 2, 2 * SIDE, "bf16"), place.buffer, [m.value(at.base)], stride=m.value(place.strides[-3])
                )
            )
        out = [
            x86.amx_tile_mulf(a, b, acc[i * columns + j])
            for i, a in enumerate(a_tiles)
            for j, b in enumerate(b_tiles)
        ]
        m.leave()
        return out

