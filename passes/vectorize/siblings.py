"""Products of the same rows with several operands, in one kernel: one loop nest, a result for each.

    for batch, block of lanes (parallel: those of the first product, then those of the second, ...)
      for row tile: acc = rows x operand       (one code for all: only the operand's address differs)
                    whose block? store epilogue(acc)

Products that meet in an epilogue, as in silu(gate) * up, share their blocks of lanes: the sums of all but the last wait in a scratch.

      for row tile: scratch = rows x gate
      for row tile: acc = rows x up;  store epilogue(scratch, acc)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...dialects import builders
from ...dialects.mlir import arith, ir, llvm, memref, scf, vector
from ...errors import CompileError
from .. import structure as st
from ..strategy import ContractionStrategy
from . import entry
from .contraction import Contraction
from .dot import Dot
from .evaluate import Evaluator
from .kernel import KernelFunction
from .lanes import Index, Number
from .memory import Memory
from .nest import Values, constant_mask


def vectorize_siblings(kernel: KernelFunction, strategy: ContractionStrategy, symbol: str) -> ir.Module:
    """Build the module of a kernel with several contractions."""
    emitter = (_Dots if strategy.dot is not None else _Siblings)(kernel, strategy)
    return entry.build(symbol, kernel.kinds, emitter.trip, strategy.grain, emitter.body)


@dataclass
class Part:
    """The products whose results have one lane class, and the blocks of lanes, from `begin` on, that are theirs."""

    lane: int
    columns: int
    ops: list[ir.Operation]
    outputs: list[int]
    begin: int = 0
    blocks: int = 0


class _Siblings(Contraction):
    """As `Contraction`, part after part."""

    left: Part
    """The part whose products all meet in its epilogue, while its blocks are computed."""
    one_of: list[Part]
    """The parts of one product each, while a block of any of them is computed; none otherwise."""
    turn = 0
    """Which product of `left` it is."""
    own: list[Memory]
    """Where the second operand of the first of `one_of` is."""

    def __init__(self, kernel: KernelFunction, strategy: ContractionStrategy) -> None:
        super().__init__(kernel, strategy)
        if strategy.dot is None and not any(isinstance(e, ir.AffineFloorDivExpr) for e in st.maps(self.op)[1].results):  # type: ignore[arg-type]
            raise CompileError("siblings whose columns are neither packed in blocks nor read one by one")
        self.one_of = []
        parts = list(_parts(kernel))
        self.singles = [p for p in parts if len(p.ops) == 1]
        self.joint = [p for p in parts if len(p.ops) > 1]
        self.all_blocks = 0
        for p in (*self.singles, *self.joint):
            p.begin, p.blocks = self.all_blocks, -(-p.columns // self.width)
            self.all_blocks += p.blocks

    def _lane_count(self, e: Evaluator) -> Number:
        return self.all_blocks

    def _prepare(self) -> None:
        """Sums of the joint products but the last for the rows of a block, and for those that the last short tile has beyond it."""
        waiting = max((len(p.ops) - (not self.s.looped_epilogue) for p in self.joint), default=0)
        height = self._summed_rows() if self.s.row is not None else 1
        self.area = height * self.width
        self.free = waiting * self.area
        self._make_scratch(waiting * height + self.s.rows)

    def _lanes(self, first: Number, row_block: Number) -> None:
        m = self.e.math
        self.first_row = 0 if self.s.row is None else m.mul(row_block, self._row_block())
        sections = [([self.singles] if self.singles else []), [[p] for p in self.joint]]
        self._section([*sections[0], *sections[1]], m.floordiv(first, self.width), row_block)

    def _section(self, sections: list[list[Part]], block: Number, row_block: Number) -> None:
        """One block of lanes of one of the sections: parts of one product each, or one part of several."""
        build = self._single if len(sections[0][0].ops) == 1 else self._together
        if len(sections) == 1:
            build(sections[0], block, row_block)
        else:
            self._either(block, sections[1][0], lambda: build(sections[0], block, row_block), lambda: self._section(sections[1:], block, row_block))

    def _either(self, block: Number, later: Part, before: Callable[[], None], behind: Callable[[], None]) -> None:
        """Whether a block comes before those of a part."""
        m = self.e.math
        branch = scf.IfOp(arith.cmpi(arith.CmpIPredicate.slt, m.value(block), m.value(later.begin)), has_else=True)
        for place, build in ((branch.then_block, before), (branch.else_block, behind)):
            with ir.InsertionPoint(place):
                m.enter()
                build()
                scf.YieldOp([])
                m.leave()

    # Parts of one product each

    def _single(self, parts: list[Part], block: Number, row_block: Number) -> None:
        m = self.e.math
        later = [arith.cmpi(arith.CmpIPredicate.sge, m.value(block), m.value(p.begin)) for p in parts[1:]]

        def pick(values: Sequence[ir.Value]) -> ir.Value:
            out = values[0]
            for condition, v in zip(later, values[1:]):
                out = arith.select(condition, v, out)
            return out

        self.op = parts[0].ops[0]
        self.one_of, self.block = parts, block
        self.ends = pick([m.value(p.columns) for p in parts])
        first = m.mul(m.sub(block, pick([m.value(p.begin) for p in parts])), self.width)
        addresses = [memref.extract_aligned_pointer_as_index(self.e.memory[p.ops[0].operands[1]].buffer) for p in parts]
        place = llvm.inttoptr(entry.pointer(), arith.index_cast(entry.i64(), pick(addresses)))
        self.own = self._places()
        picked = Memory(entry.memref_at(place, self.own[0].storage), self.own[0].strides, self.own[0].element)
        with self._lane_of(parts[0]), self._operand([picked] * len(self.own)):
            self._rows(first, self.s.columns, None, row_block)
        self.one_of = []

    def _places(self) -> list[Memory]:
        """Where each evaluator reads the second operand."""
        return [e.memory[self.op.operands[1]] for e in self._evaluators()]  # type: ignore[union-attr]

    @contextlib.contextmanager
    def _operand(self, places: Sequence[Memory]) -> Iterator[None]:
        """Read the second operand there."""
        old = self._places()
        self._read_from(places)
        yield
        self._read_from(old)

    def _read_from(self, places: Sequence[Memory]) -> None:
        for e, place in zip(self._evaluators(), places):
            e.memory[self.op.operands[1]] = place  # type: ignore[union-attr]

    def _evaluators(self) -> list[Evaluator]:
        return [self.e]

    def _finish_one_of(self, parts: list[Part], lanes: list[Index], rows: list[Index], sums: Values | None) -> None:
        """The epilogue of the part that the block is of."""
        m = self.e.math
        part, *others = parts
        if others:
            self._either(
                self.block, others[0], lambda: self._finish_one_of([part], lanes, rows, sums),
                lambda: self._finish_one_of(others, lanes, rows, sums),
            )  # fmt: skip
            return
        full: list[ir.Value | None] = [None] * len(lanes)
        tail = part.columns % self.width
        # An epilogue may read the operand too.
        with self._lane_of(part), self._epilogue(part), self._operand(self.own):
            if not tail:
                super()._finish(lanes, full, rows, sums)
                return
            vectors = -(-tail // self.e.lanes)
            masks = full[: vectors - 1] + [constant_mask(self.e, tail - (vectors - 1) * self.e.lanes) if tail % self.e.lanes else None]
            some = sums and [v for i in range(len(rows)) for v in sums[i * len(lanes) :][:vectors]]
            whole = arith.cmpi(arith.CmpIPredicate.sle, m.value(m.add(lanes[0].base, self.width)), m.value(part.columns))
            branch = scf.IfOp(whole, has_else=True)
            for place, arguments in ((branch.then_block, (lanes, full, rows, sums)), (branch.else_block, (lanes[:vectors], masks, rows, some))):
                with ir.InsertionPoint(place):
                    m.enter()
                    super()._finish(*arguments)
                    scf.YieldOp([])
                    m.leave()

    @contextlib.contextmanager
    def _lane_of(self, part: Part) -> Iterator[None]:
        """Walk the part's lane class."""
        old, self.s = self.s, replace(self.s, lane=part.lane)
        yield
        self.s = old

    @contextlib.contextmanager
    def _epilogue(self, part: Part) -> Iterator[None]:
        """Results are the part's."""
        old = self.ops, self.outputs
        self.ops, self.outputs = part.ops, part.outputs
        yield
        self.ops, self.outputs = old

    # Products that meet

    def _together(self, parts: list[Part], block: Number, row_block: Number) -> None:
        m = self.e.math
        (self.left,) = parts
        first = m.mul(m.sub(block, self.left.begin), self.width)
        self.ends = self.left.columns
        with self._lane_of(self.left), self._epilogue(self.left):
            for turn, op in enumerate(self.left.ops):
                self.turn, self.op = turn, op
                m.enter()
                super()._lanes(first, row_block)
                m.leave()

    def _finish(self, lanes: list[Index], masks: Sequence[ir.Value | None], rows: list[Index], sums: Values | None) -> None:
        if self.one_of:
            self._finish_one_of(self.one_of, lanes, rows, sums)
            return
        e, m = self.e, self.e.math
        corner = self._corner(rows)
        last = self.turn == len(self.left.ops) - 1
        if sums is None and last:
            self._store_from_scratch(rows[0].base, self._present(rows), lanes, masks, corner)
        if sums is None:
            return
        place = [m.add(corner, i * self.width + j * e.lanes) for i in range(len(rows)) for j in range(len(lanes))]
        if not last:
            for at, v in zip(place, sums):
                vector.store(v, self.scratch, [m.value(m.add(at, self.turn * self.area))])
            return
        kind = m.vector_type(builders.element_type(self.op.results[0]))  # type: ignore[union-attr]
        waiting = [vector.load(kind, self.scratch, [m.value(m.add(at, n * self.area))]) for n in range(self.turn) for at in place]
        self._store(rows, lanes, masks, [*waiting, *sums])

    def _corner(self, rows: list[Index]) -> Number:
        """Where the sums of these rows begin in the scratch."""
        m = self.e.math
        return m.mul(m.sub(rows[0].base, self.first_row), self.width)

    def _sum_into_scratch(self, first: Number | None, masks: Sequence[ir.Value | None], rows: list[Index], corner: Number) -> None:
        if not self.one_of and self.s.looped_epilogue:
            corner = self.e.math.add(self._corner(rows), self.turn * self.area)
        super()._sum_into_scratch(first, masks, rows, corner)


class _Dots(_Siblings, Dot):
    """With the lanes along the reduction."""

    def _columns(self) -> Number:
        return self.ends

    def _evaluators(self) -> list[Evaluator]:
        return [self.e, self.wide] if self.s.dot_pairs else [self.e]


def _parts(kernel: KernelFunction) -> Iterator[Part]:
    d = kernel.domain
    by_lane: dict[int, list[ir.Operation]] = {}
    for op in d.siblings:
        dims = [i for i in st.map_dims(st.maps(op)[2]) if i is not None]
        by_lane.setdefault(d.loops[op][dims[-1]], []).append(op)  # type: ignore[arg-type]
    for lane, ops in by_lane.items():
        outputs = [n for n, v in enumerate(kernel.results) if lane in d.classes(st.owner(v))]  # type: ignore[arg-type]
        yield Part(lane, d.sizes[lane], ops, outputs)  # type: ignore[arg-type]
