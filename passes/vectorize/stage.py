"""Blocks of rows, transposed in registers into a buffer from which `loops` reads them.

    buffer[rows of a block][elements of a row]
    call @kernel_stage(first):  for elements in blocks:  buffer[0 .. rows][elements] = transpose(x[elements][first .. first + rows])
    for row: phase 0, phase 1, ... of the row, x read from buffer[row]

The copy is a function of its own, so that it has lanes of its own, in their order, whatever the rows are computed with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...dialects import builders
from ...dialects.mlir import arith, func, ir, memref, scf, vector
from .. import structure as st
from ..strategy import LoopStrategy, staged
from . import entry
from .evaluate import Evaluator, Lookup
from .kernel import KernelFunction
from .lanes import Index, Number
from .memory import Memory, Tile, storage_type
from .nest import Values, constant_mask, lane_loop, loop


@dataclass
class _Block:
    """What is copied: `rows` of class `along` at a time, each with the classes `inner`, of which `lane` is contiguous in the buffer."""

    kernel: KernelFunction
    rows: int
    along: int
    lane: int
    inner: list[int]
    outer: list[int]
    """The other classes of rows, whose indices are the same for the whole block."""
    extents: dict[int, int]
    """Of the classes in `inner`."""
    operands: dict[ir.Value, list[int | None]]
    """What is read from the buffers, and the class of each of its dims."""
    size: Callable[[Evaluator], Number]
    """How many rows there are of class `along`."""

    def layout(self, lanes: int) -> tuple[int, list[Number]]:
        """(elements, strides: of the row, then of `inner`) of a buffer: lanes lie side by side.

        Behind each row there is room for the rest of a vector, and rows do not share a set of the cache.
        """
        steps, step = {}, 1
        for c in sorted(reversed(self.inner), key=lambda c: c != self.lane):
            steps[c] = step
            step *= self.extents[c]
        step = -(-step // lanes) * lanes + lanes
        return self.rows * step, [step, *(steps[c] for c in self.inner)]


class Stage:
    """The buffers, from the side of the loops that read them. Made where they are to be allocated.

    `env` is that of the loops: class -> index; `size(e)` is how many rows there are.
    """

    def __init__(
        self, kernel: KernelFunction, strategy: LoopStrategy, e: Evaluator, env: dict[int, Index], size: Callable[[Evaluator], Number]
    ) -> None:
        lane, along = strategy.lane, strategy.staged
        assert lane is not None and along is not None
        extents: dict[int, int] = {c: strategy.merged.get(c, kernel.domain.sizes[c]) for c in strategy.inner}  # type: ignore[misc]
        operands = staged(kernel, lane, along, strategy.inner)
        outer = [c for c in strategy.parallel if c != along]
        self.block = _Block(kernel, strategy.block, along, lane, strategy.inner, outer, extents, operands, size)
        self.e, self.env = e, env
        self.buffers = {v: self._buffer(v) for v in operands}
        self.row: Number = 0
        self.first: Number = 0

    def _buffer(self, v: ir.Value) -> Memory:
        element = builders.element_type(v)
        elements, strides = self.block.layout(self.e.lanes)
        place = memref.AllocaOp(ir.MemRefType.get([elements], storage_type(element)), [], [], alignment=64).result
        dynamic = ir.MemRefType.get([builders.DYNAMIC], storage_type(element))
        return Memory(memref.cast(dynamic, place), strides, element)

    def fill(self) -> Number:
        """Copy the rows of a block, whose number is in the place of the index of the rows; returns how many it has."""
        m, size, rows = self.e.math, self.block.size(self.e), self.block.rows
        self.first = m.mul(self.env[self.block.along].base, rows)
        if isinstance(size, int) and size % rows == 0:
            self._call("stage", whole=True)
            return rows
        rest = m.sub(size, self.first)
        branch = scf.IfOp(arith.cmpi(arith.CmpIPredicate.sge, m.value(rest), m.value(rows)), has_else=True)
        for there, name in ((branch.then_block, "stage"), (branch.else_block, "stage_rest")):
            m.enter()
            with ir.InsertionPoint(there):
                self._call(name, whole=name == "stage")
                scf.YieldOp([])
            m.leave()
        return m.minimum(rest, rows)

    def _call(self, name: str, whole: bool) -> None:
        """Build the function that copies a block, or what rows are left, and call it."""
        body = st.operation(ir.InsertionPoint.current.block.owner)
        while body.name != "func.func":
            body = st.operation(body.parent)
        symbol = ir.StringAttr(body.attributes["sym_name"]).value.removesuffix("_body")
        numbers = [self.first, *(self.env[c].base for c in self.block.outer)]
        arguments = [body.regions[0].blocks[0].arguments[2], *map(self.e.math.value, numbers), *(place.buffer for place in self.buffers.values())]
        with ir.InsertionPoint(st.operation(body.parent).regions[0].blocks[0]):
            f = func.FuncOp(f"{symbol}_{name}", ir.FunctionType.get([a.type for a in arguments], []), visibility="private")
            with ir.InsertionPoint(f.add_entry_block()):
                _Copy(self.block, self.buffers, list(f.arguments)).build(whole)
                func.ReturnOp([])
        func.CallOp([], f"{symbol}_{name}", arguments)

    def place(self, row: Number) -> None:
        """Set the index of the rows to one of the block."""
        self.row = row
        self.env[self.block.along] = Index(self.e.math.add(self.first, row))

    def known(self) -> dict[ir.Value, Lookup]:
        """The operands in the buffer, for the row that is current when they are asked for."""
        return {v: lambda point, v=v: self.e.load(self.buffers[v], self._point()) for v in self.buffers}  # type: ignore[misc]

    def _point(self) -> tuple[Index, ...]:
        return Index(self.row), *(self.env[c] for c in self.block.inner)


class _Copy:
    """The body of the function that fills the buffers. `arguments` are the context, the first row, the indices of the outer classes,
    and the buffers."""

    def __init__(self, block: _Block, buffers: dict[ir.Value, Memory], arguments: list[ir.Value]) -> None:
        context, self.first, *rest = arguments
        status, slots = entry.unpack(context, block.kernel.kinds)
        self.block = block
        self.e = Evaluator(block.rows, status, block.kernel.shapes)
        block.kernel.bind(self.e, slots)
        self.env = {c: Index(i) for c, i in zip(block.outer, rest)}
        places = zip(buffers.items(), rest[len(block.outer) :])
        self.buffers = {v: Memory(buffer, place.strides, place.element) for (v, place), buffer in places}

    def build(self, whole: bool) -> None:
        """The rows of a block, all of them or those that are left."""
        mask = None if whole else self._rest()
        for v in self.buffers:
            self._walk(v, [c for c in self.block.inner if c != self.block.lane], mask)

    def _rest(self) -> ir.Value:
        """A mask of the rows that are left."""
        e, size = self.e, self.block.size(self.e)
        if isinstance(size, int):
            return constant_mask(e, size % self.block.rows)
        return vector.create_mask(e.math.vector_type(ir.IntegerType.get_signless(1)), [e.math.value(e.math.sub(size, self.first))])

    def _walk(self, v: ir.Value, left: Sequence[int], mask: ir.Value | None) -> None:
        if left:

            def step(i: Number, _: Values) -> Values:
                self.env[left[0]] = Index(i)
                self._walk(v, left[1:], mask)
                return []

            loop(self.e, 0, self.block.extents[left[0]], 1, [], step)
            return

        def elements(i: Number, _: Values) -> Values:
            self._elements(v, i, mask)
            return []

        lane_loop(self.e, 0, self.block.extents[self.block.lane], 1, [[]], elements)

    def _elements(self, v: ir.Value, i: Number, mask: ir.Value | None) -> None:
        """As many elements of each row as there are lanes, from the i-th on."""
        e, b = self.e, self.block
        e.math.enter()
        left = None if e.mask is None else e.math.sub(b.extents[b.lane], i)
        # Lines of as many pages as a row has elements: no prefetcher of the CPU's follows them.
        tile = Tile({e.memory[_argument(v)].buffer}, left, mask=mask, ahead=0 if mask else 2 * b.rows)
        for row in range(b.rows):
            tile.start(row)
            self.env[b.along] = Index(e.math.add(self.first, row))
            self.env[b.lane] = Index(i, 1)
            e.tile = tile
            value = e.value(v, tuple(Index(0) if c is None or c not in self.env else self.env[c] for c in b.operands[v]))
            e.tile = None
            past_the_end, e.mask = e.mask, None
            e.store(self.buffers[v], (Index(row), *(self.env[c] for c in b.inner)), value)
            e.mask = past_the_end
        e.math.leave()


def _argument(v: ir.Value) -> ir.Value:
    op = st.owner(v)
    return v if op is None else _argument(op.operands[0])
