"""Blocks of rows, transposed in registers into a buffer from which `loops` reads them.

    buffer[rows of a block][elements of a row]
    call @kernel_stage(first):  for elements in blocks:  buffer[0 .. rows][elements] = transpose(x[elements][first .. first + rows])
    for row: phase 0, phase 1, ... of the row, x read from buffer[row]

The copy is a function of its own, so that it has lanes of its own, in their order, whatever the rows are computed with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...dialects import builders
from ...dialects.mlir import arith, func, ir, memref, scf, vector
from .. import structure as st
from ..strategy import LoopStrategy, staged
from . import entry
from .evaluate import Evaluator, Lookup, Memory, Tile, storage_type
from .kernel import KernelFunction
from .lanes import Index, Number
from .nest import Values, constant_mask, lane_loop, loop


class Stage:
    """Made where the buffers are to be allocated. `env` is that of the loops: class -> index; `size(e)` is how many rows there are."""

    def __init__(
        self, kernel: KernelFunction, strategy: LoopStrategy, e: Evaluator, env: dict[int, Index], size: Callable[[Evaluator], Number]
    ) -> None:
        assert strategy.lane is not None and strategy.transposed is not None
        self.kernel, self.rows, self.e, self.env, self.size = kernel, strategy.staged, e, env, size
        self.lane, self.along, self.inner = strategy.lane, strategy.transposed, strategy.inner
        self.outer = [c for c in strategy.parallel if c != self.along]
        self.classes = staged(kernel, self.lane, self.along, self.inner)
        self.extents: dict[int, int] = {c: strategy.merged.get(c, kernel.domain.sizes[c]) for c in self.inner}  # type: ignore[misc]
        self.buffers = {v: self._buffer(v) for v in self.classes}
        self.row: Number = 0
        self.first: Number = 0

    def _buffer(self, v: ir.Value) -> Memory:
        """Lanes lie side by side. Behind each row there is room for the rest of a vector, and rows do not share a set of the cache."""
        steps, step = {}, 1
        for c in sorted(reversed(self.inner), key=lambda c: c != self.lane):
            steps[c] = step
            step *= self.extents[c]
        step = -(-step // self.e.lanes) * self.e.lanes + self.e.lanes
        element = builders.element_type(v)
        place = memref.AllocaOp(ir.MemRefType.get([self.rows * step], storage_type(element)), [], [], alignment=64).result
        dynamic = ir.MemRefType.get([builders.DYNAMIC], storage_type(element))
        return Memory(memref.cast(dynamic, place), [step, *(steps[c] for c in self.inner)], element)

    def fill(self) -> Number:
        """Copy the rows of a block, whose number is in the place of the index of the rows; returns how many it has."""
        m, size = self.e.math, self.size(self.e)
        self.first = m.mul(self.env[self.along].base, self.rows)
        if isinstance(size, int) and size % self.rows == 0:
            self._call("stage", whole=True)
            return self.rows
        rest = m.sub(size, self.first)
        branch = scf.IfOp(arith.cmpi(arith.CmpIPredicate.sge, m.value(rest), m.value(self.rows)), has_else=True)
        for there, name in ((branch.then_block, "stage"), (branch.else_block, "stage_rest")):
            m.enter()
            with ir.InsertionPoint(there):
                self._call(name, whole=name == "stage")
                scf.YieldOp([])
            m.leave()
        return m.minimum(rest, self.rows)

    def _call(self, name: str, whole: bool) -> None:
        """Build the function that copies a block, or what rows are left, and call it."""
        body = st.operation(ir.InsertionPoint.current.block.owner)
        while body.name != "func.func":
            body = st.operation(body.parent)
        symbol = ir.StringAttr(body.attributes["sym_name"]).value.removesuffix("_body")
        arguments = [body.regions[0].blocks[0].arguments[2], self.e.math.value(self.first), *(self.e.math.value(self.env[c].base) for c in self.outer)]
        arguments += [place.buffer for place in self.buffers.values()]
        with ir.InsertionPoint(st.operation(body.parent).regions[0].blocks[0]):
            f = func.FuncOp(f"{symbol}_{name}", ir.FunctionType.get([a.type for a in arguments], []), visibility="private")
            with ir.InsertionPoint(f.add_entry_block()):
                self._function(list(f.arguments), whole)
                func.ReturnOp([])
        func.CallOp([], f"{symbol}_{name}", arguments)

    def _function(self, arguments: list[ir.Value], whole: bool) -> None:
        context, first, *rest = arguments
        status, slots = entry.unpack(context, self.kernel.kinds)
        inside = object.__new__(Stage)
        inside.__dict__.update(self.__dict__)
        e = inside.e = Evaluator(self.rows, status, self.kernel.shapes)
        self.kernel.bind(e, slots)
        inside.env = {c: Index(i) for c, i in zip(self.outer, rest)}
        places = zip(self.buffers.items(), rest[len(self.outer) :])
        inside.buffers = {v: Memory(buffer, place.strides, place.element) for (v, place), buffer in places}
        inside.first = first
        inside._copy(None if whole else inside._rest())

    def _rest(self) -> ir.Value:
        """A mask of the rows that are left."""
        e, size = self.e, self.size(self.e)
        if isinstance(size, int):
            return constant_mask(e, size % self.rows)
        return vector.create_mask(e.math.vector_type(ir.IntegerType.get_signless(1)), [e.math.value(e.math.sub(size, self.first))])

    def place(self, row: Number) -> None:
        """Set the index of the rows to one of the block."""
        self.row = row
        self.env[self.along] = Index(self.e.math.add(self.first, row))

    def known(self) -> dict[ir.Value, Lookup]:
        """The operands in the buffer, for the row that is current when they are asked for."""
        return {v: lambda point, v=v: self.e.load(self.buffers[v], self._point()) for v in self.classes}  # type: ignore[misc]

    def _point(self) -> tuple[Index, ...]:
        return Index(self.row), *(self.env[c] for c in self.inner)

    def _copy(self, mask: ir.Value | None) -> None:
        """The rows of a block, all of them or those that the mask has."""
        for v, classes in self.classes.items():
            self._walk(v, classes, [c for c in self.inner if c != self.lane], mask)

    def _walk(self, v: ir.Value, classes: Sequence[int | None], left: Sequence[int], mask: ir.Value | None) -> None:
        e = self.e
        if left:

            def step(i: Number, _: Values) -> Values:
                self.env[left[0]] = Index(i)
                self._walk(v, classes, left[1:], mask)
                return []

            loop(e, 0, self.extents[left[0]], 1, [], step)
            return
        extent = self.extents[self.lane]

        def elements(i: Number, _: Values) -> Values:
            e.math.enter()
            left = None if e.mask is None else e.math.sub(extent, i)
            # Lines of as many pages as a row has elements: no prefetcher of the CPU's follows them.
            tile = Tile({e.memory[_argument(v)].buffer}, left, mask=mask, ahead=0 if mask else 2 * self.rows)
            for row in range(self.rows):
                tile.start(row)
                self.place(row)
                self.env[self.lane] = Index(i, 1)
                e.tile = tile
                value = e.value(v, tuple(Index(0) if c is None or c not in self.env else self.env[c] for c in classes))
                e.tile = None
                past_the_end, e.mask = e.mask, None
                e.store(self.buffers[v], self._point(), value)
                e.mask = past_the_end
            e.math.leave()
            return []

        lane_loop(e, 0, extent, 1, [[]], elements)


def _argument(v: ir.Value) -> ir.Value:
    op = st.owner(v)
    return v if op is None else _argument(op.operands[0])
