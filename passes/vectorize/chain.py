"""Kernels that take turns in one function: a chunk of the batch through all of them, then the next one.

    func private @kernel_body(%begin, %end, %context):          (of the chunks)
      scratch = what the parts pass to one another, for one chunk: on the stack, or the heap where sizes are symbols
      for chunk:
        %begin', %end' = the blocks of columns that its rows see (`seen`), further slots of the contexts
        for each part: its context = slots of %context, and the scratch less the place where the chunk begins
        call @kernel_0_body(range of the chunk);  call @kernel_1_body(...);  ...

The bodies are those of the kernels as they would be alone. They address what they pass on as if all of it were there.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from ...dialects import builders
from ...dialects.mlir import arith, func, ir, llvm, scf
from ...errors import CompileError
from .. import structure as st
from ..chained import ChainFunction
from ..strategy import ContractionStrategy
from ..strategy.chains import SLACK, ChainStrategy, Passed, chunk_bytes, inside_classes
from ..strategy.common import WORK_PER_THREAD
from . import entry, vectorize
from .evaluate import Evaluator
from .lanes import Arithmetic, Number
from .roles import roles
from .seen import bounds_of

ALIGNMENT = 64


def vectorize_chain(chain: ChainFunction, strategy: ChainStrategy, symbol: str) -> ir.Module:
    """The module of all parts, with the ABI of `runtime.abi`."""
    if strategy.seen is not None:
        for kernel, c in zip(chain.parts, strategy.seen.classes):
            kernel.seen = None if c is None else (c, strategy.seen.block)
    parts = [vectorize(k, s, f"{symbol}_{n}") for n, (k, s) in enumerate(zip(chain.parts, strategy.parts))]
    turns = _Turns(chain, strategy, symbol)
    out = entry.build(symbol, chain.kinds, turns.trip, turns.grain if strategy.symbolic else 1, turns.body)
    with ir.InsertionPoint.at_block_begin(out.body):
        for n, module in enumerate(parts):
            functions = [st.operation(o) for o in module.body.operations]
            names = [ir.StringAttr(f.attributes["sym_name"]).value for f in functions]
            if f"{symbol}_{n}_body" not in names:
                raise CompileError("a kernel of several steps cannot take turns with others")
            for f, name in zip(functions, names):
                if name not in (f"{symbol}_{n}", entry.PARALLEL_FOR):
                    f.clone()
    return out


@dataclass
class _Sizes:
    """Of a chain, as numbers of the function that is built."""

    batch: Number
    rows: Number
    row_blocks: Number
    spans: list[tuple[Number, Number]]
    """As those of the strategy."""
    chunks: list[tuple[Number, Number]]
    """Bytes of each value that is passed: of one of the batch, and of a block of rows."""


class _Turns:
    def __init__(self, chain: ChainFunction, strategy: ChainStrategy, symbol: str) -> None:
        self.chain = chain
        self.s = strategy
        self.symbol = symbol

    def trip(self, slots: list[ir.Value]) -> Number:
        if not self.s.symbolic:
            return self.s.chunks
        m = Arithmetic(1)
        sizes = self._sizes(m, slots)
        return m.mul(sizes.batch, sizes.row_blocks)

    def grain(self, slots: list[ir.Value]) -> Number:
        """Chunks that are worth another thread, by what the first kernel leaves in each."""
        m = Arithmetic(1)
        _, nbytes = self._sizes(m, slots).chunks[0]
        return m.add(m.floordiv(4 * WORK_PER_THREAD, m.add(nbytes, 1)), 1)

    def body(self, begin: ir.Value, end: ir.Value, status: ir.Value, slots: list[ir.Value]) -> None:
        context = ir.InsertionPoint.current.block.arguments[2]
        m = self.m = Arithmetic(1)
        sizes = self.sizes = self._sizes(m, slots)
        scratch, places = self._scratch()
        contexts = [entry.slots_of_own(1 + len(kernel.kinds)) for kernel in self.chain.parts]
        for own, part in zip(contexts, self.chain.slots):
            for n, slot in enumerate([-1, *part]):
                if slot is not None:
                    llvm.StoreOp(llvm.LoadOp(entry.pointer(), entry.slot(context, slot + 1)).result, entry.slot(own, n))
        turns = scf.ForOp(begin, end, builders.index(1))
        with ir.InsertionPoint(turns.body):
            m.enter()
            chunk = turns.induction_variable
            of_batch, block = m.floordiv(chunk, sizes.row_blocks), m.mod(chunk, sizes.row_blocks)
            for p, (whole, each), place in zip(self.chain.passed, sizes.chunks, places):
                before = m.add(m.mul(of_batch, whole), m.mul(block, each))
                address = entry.moved(place, _i64(m.value(m.sub(0, before))))
                for part, n in (p.made, *p.read):
                    made = (part, n) == p.made
                    llvm.StoreOp(address, entry.slot(contexts[part], 1 + n + (len(self.chain.parts[part].arguments) if made else 0)))
            bounds = self._bounds(slots, of_batch, block)
            for own, kernel in zip(contexts, self.chain.parts):
                if kernel.seen is not None:
                    for n, bound in enumerate(bounds, len(kernel.kinds) - 1):
                        llvm.StoreOp(_i64(m.value(bound)), entry.slot(own, n))
            for n, (own, (whole, each)) in enumerate(zip(contexts, sizes.spans)):
                first = m.mul(of_batch, m.mul(whole, self.s.together))
                last = m.add(first, m.mul(whole, self.s.together))
                if sizes.row_blocks != 1:
                    first = m.add(first, m.mul(block, each))
                    last = m.minimum(last, m.add(first, each))
                if bounds and n == 0:
                    first, last = self._lane_blocks(first, last, bounds)
                func.CallOp([], f"{self.symbol}_{n}_body", [_i64(m.value(first)), _i64(m.value(last)), own])
            scf.YieldOp([])
            m.leave()
        if scratch is not None:
            func.CallOp([], FREE, [scratch])

    def _evaluators(self, m: Arithmetic, slots: Sequence[ir.Value]) -> list[Evaluator]:
        """For the sizes of each part, whose slots are some of the chain's."""
        out = []
        for kernel, part in zip(self.chain.parts, self.chain.slots):
            e = kernel.sizes_evaluator(1, [slots[0] if at is None else slots[at] for at in part])
            e.math = m
            out.append(e)
        return out

    def _sizes(self, m: Arithmetic, slots: Sequence[ir.Value]) -> _Sizes:
        s, parts = self.s, self.chain.parts
        if not s.symbolic:
            chunks = [chunk_bytes(parts, p, s) for p in self.chain.passed]
            whole = [n if s.row_blocks == 1 else n // s.row_block * s.rows for n in chunks]
            return _Sizes(s.batch, s.rows, s.row_blocks, list(s.spans), list(zip(whole, chunks)))
        evaluators = self._evaluators(m, slots)
        first, product, e = parts[0], s.parts[0], evaluators[0]
        assert isinstance(product, ContractionStrategy)
        rows = e.size(first.domain.sizes[product.row])  # type: ignore[index]
        inside = inside_classes(first, product)
        batch = functools.reduce(m.mul, (e.size(first.domain.sizes[c]) for c in roles(first).outer if c not in inside), 1)
        row_blocks = m.ceildiv(rows, s.row_block)
        spans: list[tuple[Number, Number]] = []
        for kernel, part, e in zip(parts, s.parts, evaluators):
            if isinstance(part, ContractionStrategy):
                lanes = 1 if part.lane is None else m.ceildiv(e.size(kernel.domain.sizes[part.lane]), part.columns * part.lanes)
                each = functools.reduce(m.mul, (e.size(kernel.domain.sizes[c]) for c in inside_classes(kernel, part)), lanes)
                spans.append((m.mul(row_blocks, each), each))
            else:
                spans.append((rows, s.row_block))
        of_rows = [self._row_bytes(m, evaluators, p) for p in self.chain.passed]
        return _Sizes(batch, rows, row_blocks, spans, [(m.mul(n, rows), m.mul(n, s.row_block)) for n in of_rows])

    def _row_bytes(self, m: Arithmetic, evaluators: Sequence[Evaluator], p: Passed) -> Number:
        """What a row has of a value of unknown size: what its dims behind those of the batch and the row hold."""
        part, n = p.made
        kernel, e = self.chain.parts[part], evaluators[part]
        v = kernel.results[n]
        op, width = st.owner(v), builders.element_type(v).width // 8 or 1
        strategy = self.s.parts[part]
        outside = {*strategy.parallel} if not isinstance(strategy, ContractionStrategy) else {*roles(kernel).outer, strategy.row} - {*inside_classes(kernel, strategy)}
        assert op is not None
        classes = _classes_of(kernel.domain.loops[op], v, op)
        inner = [size for size, c in zip(kernel.shapes.of(v), classes) if c is not None and c not in outside]
        return functools.reduce(m.mul, map(e.size, inner), width)

    def _bounds(self, slots: Sequence[ir.Value], of_batch: Number, block: Number) -> list[Number]:
        """From which block of columns to which the rows of a chunk see some; none where they see all."""
        if self.s.seen is None:
            return []
        part, m = self.s.seen.part, self.m
        kernel, e = self.chain.parts[part], self._evaluators(m, slots)[part]
        context = ir.InsertionPoint.current.block.owner.operation.block.arguments[2]

        def argument(n: int) -> ir.Value:
            at = self.chain.slots[part][n]
            assert at is not None
            return llvm.LoadOp(entry.pointer(), entry.slot(context, at + 1)).result

        first = m.mul(block, self.s.row_block)
        last = m.sub(m.minimum(m.add(first, self.s.row_block), self.sizes.rows), 1)
        return bounds_of(self.s.seen, kernel, m, e.size, (of_batch, first, last), argument)

    def _lane_blocks(self, first: Number, last: Number, bounds: list[Number]) -> tuple[Number, Number]:
        """Of iterations of the first part, one for each of its blocks of columns, those within the bounds."""
        s, m = self.s.parts[0], self.m
        assert self.s.seen is not None and isinstance(s, ContractionStrategy)
        width = s.columns * s.lanes
        each = self.s.seen.block // width
        if s.inside:  # what is walked in part is outside of the lanes
            each = self.s.seen.block * -(-self.chain.parts[0].domain.sizes[s.lane] // width)  # type: ignore[index, operator]
        begin, end = (m.add(first, m.mul(bound, each)) for bound in bounds)
        return begin, m.minimum(end, last)

    def _scratch(self) -> tuple[ir.Value | None, list[ir.Value]]:
        """Memory for what is passed of a chunk, one value behind the other: on the stack, or, of unknown size, from the heap, then to be freed."""
        m = self.m
        offsets: list[Number] = []
        at: Number = 0
        for _, size in self.sizes.chunks:
            slack = m.mul(m.floordiv(size, self.s.row_block), SLACK) if self.sizes.row_blocks != 1 else 0
            at = m.add(at, _aligned(m, slack))
            offsets.append(at)
            at = m.add(at, _aligned(m, size))
        if isinstance(at, int):
            memory = llvm.AllocaOp(entry.pointer(), builders.constant(entry.i64(), at), ir.IntegerType.get_signless(8), alignment=ALIGNMENT).result
            return None, [entry.moved(memory, builders.constant(entry.i64(), offset)) for offset in offsets]
        _declare(MALLOC, [entry.i64()], [entry.pointer()])
        _declare(FREE, [entry.pointer()], [])
        given = func.CallOp([entry.pointer()], MALLOC, [_i64(m.value(m.add(at, ALIGNMENT)))]).results[0]
        address = arith.addi(llvm.ptrtoint(entry.i64(), given), builders.constant(entry.i64(), ALIGNMENT - 1))
        memory = llvm.inttoptr(entry.pointer(), arith.andi(address, builders.constant(entry.i64(), -ALIGNMENT)))
        return given, [entry.moved(memory, _i64(m.value(offset))) for offset in offsets]


MALLOC, FREE = "malloc", "free"


def _declare(name: str, arguments: Sequence[ir.Type], results: Sequence[ir.Type]) -> None:
    """A function of the C library, in the module of the function that is being built."""
    function = ir.InsertionPoint.current.block.owner.operation
    with ir.InsertionPoint.at_block_begin(function.parent.regions[0].blocks[0]):
        func.FuncOp(name, ir.FunctionType.get(list(arguments), list(results)), visibility="private")


def _classes_of(loops: Sequence[int | None], value: ir.Value, op: ir.Operation) -> list[int | None]:
    """Of the dims of a value, by the loops of the op that makes it."""
    if op.name != "linalg.generic":
        return list(loops)
    dims = st.map_dims(st.maps(op)[len(op.operands) - len(op.results) + list(op.results).index(value)])
    return [None if d is None else loops[d] for d in dims]


def _aligned(m: Arithmetic, nbytes: Number) -> Number:
    return m.mul(m.ceildiv(nbytes, ALIGNMENT), ALIGNMENT)


def _i64(n: ir.Value) -> ir.Value:
    return arith.index_cast(entry.i64(), n)
