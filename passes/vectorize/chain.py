"""Kernels that take turns in one function: a chunk of the batch through all of them, then the next one.

    func private @kernel_body(%begin, %end, %context):          (of the chunks)
      scratch = what the parts pass to one another, for one chunk
      for chunk:
        %begin', %end' = the blocks of columns that its rows see (`seen`), further slots of the contexts
        for each part: its context = slots of %context, and the scratch less the place where the chunk begins
        call @kernel_0_body(range of the chunk);  call @kernel_1_body(...);  ...

The bodies are those of the kernels as they would be alone. They address what they pass on as if all of it were there.
"""

from __future__ import annotations

from ...dialects import builders
from ...dialects.mlir import arith, func, ir, llvm, scf
from ...errors import CompileError
from .. import structure as st
from ..chained import ChainFunction
from ..strategy import ContractionStrategy
from ..strategy.chains import SLACK, ChainStrategy, chunk_bytes
from . import entry, vectorize
from .seen import bounds_of

ALIGNMENT = 64


def vectorize_chain(chain: ChainFunction, strategy: ChainStrategy, symbol: str) -> ir.Module:
    """The module of all parts, with the ABI of `runtime.abi`."""
    if strategy.seen is not None:
        for kernel, c in zip(chain.parts, strategy.seen.classes):
            kernel.seen = None if c is None else (c, strategy.seen.block)
    parts = [vectorize(k, s, f"{symbol}_{n}") for n, (k, s) in enumerate(zip(chain.parts, strategy.parts))]
    out = entry.build(symbol, chain.kinds, lambda _: strategy.chunks, 1, _Turns(chain, strategy, symbol).body)
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


class _Turns:
    def __init__(self, chain: ChainFunction, strategy: ChainStrategy, symbol: str) -> None:
        self.chain = chain
        self.s = strategy
        self.symbol = symbol
        self.sizes = [chunk_bytes(chain.parts, p, strategy) for p in chain.passed]

    def body(self, begin: ir.Value, end: ir.Value, status: ir.Value, slots: list[ir.Value]) -> None:
        context = ir.InsertionPoint.current.block.arguments[2]
        places = self._scratch()
        contexts = [_array(1 + len(kernel.kinds)) for kernel in self.chain.parts]
        for own, part in zip(contexts, self.chain.slots):
            for n, slot in enumerate([-1, *part]):
                if slot is not None:
                    llvm.StoreOp(llvm.LoadOp(entry.pointer(), _slot(context, slot + 1)).result, _slot(own, n))
        turns = scf.ForOp(begin, end, builders.index(1))
        with ir.InsertionPoint(turns.body):
            chunk = arith.index_cast(entry.i64(), turns.induction_variable)
            blocks = builders.constant(entry.i64(), self.s.row_blocks)
            of_batch, block = arith.divui(chunk, blocks), arith.remui(chunk, blocks)
            for p, size, place in zip(self.chain.passed, self.sizes, places):
                address = _offset(place, arith.subi(builders.constant(entry.i64(), 0), self._begin(of_batch, block, size)))
                for part, n in (p.made, *p.read):
                    made = (part, n) == p.made
                    llvm.StoreOp(address, _slot(contexts[part], 1 + n + (len(self.chain.parts[part].arguments) if made else 0)))
            bounds = self._bounds(context, of_batch, block)
            for own, kernel in zip(contexts, self.chain.parts):
                if kernel.seen is not None:
                    for n, bound in enumerate(bounds, len(kernel.kinds) - 1):
                        llvm.StoreOp(bound, _slot(own, n))
            for n, (own, (whole, each)) in enumerate(zip(contexts, self.s.spans)):
                first = arith.muli(of_batch, builders.constant(entry.i64(), self.s.together * whole))
                last = arith.addi(first, builders.constant(entry.i64(), self.s.together * whole))
                if self.s.row_blocks > 1:
                    first = arith.addi(first, arith.muli(block, builders.constant(entry.i64(), each)))
                    last = arith.minui(last, arith.addi(first, builders.constant(entry.i64(), each)))
                if bounds and n == 0:
                    first, last = self._lane_blocks(first, last, bounds)
                func.CallOp([], f"{self.symbol}_{n}_body", [first, last, own])
            scf.YieldOp([])

    def _bounds(self, context: ir.Value, of_batch: ir.Value, block: ir.Value) -> list[ir.Value]:
        """From which block of columns to which the rows of a chunk see some; none where they see all."""
        if self.s.seen is None:
            return []
        part = self.s.seen.part

        def argument(n: int) -> ir.Value:
            at = self.chain.slots[part][n]
            assert at is not None
            return llvm.LoadOp(entry.pointer(), _slot(context, at + 1)).result

        return bounds_of(self.s.seen, self.chain.parts[part], self.s, of_batch, block, argument)

    def _lane_blocks(self, first: ir.Value, last: ir.Value, bounds: list[ir.Value]) -> list[ir.Value]:
        """Of iterations of the first part, one for each of its blocks of columns, those within the bounds."""
        s = self.s.parts[0]
        assert self.s.seen is not None and isinstance(s, ContractionStrategy)
        each = builders.constant(entry.i64(), self.s.seen.block // (s.columns * s.lanes))
        begin, end = (arith.addi(first, arith.muli(bound, each)) for bound in bounds)
        return [begin, arith.minui(end, last)]

    def _begin(self, of_batch: ir.Value, block: ir.Value, size: int) -> ir.Value:
        """Bytes of a value before those of a chunk, which has `size` of them."""
        whole = size if self.s.row_blocks == 1 else size // self.s.row_block * self.s.rows
        begin = arith.muli(of_batch, builders.constant(entry.i64(), whole))
        if self.s.row_blocks == 1:
            return begin
        return arith.addi(begin, arith.muli(block, builders.constant(entry.i64(), size)))

    def _scratch(self) -> list[ir.Value]:
        """Memory on the stack for what is passed of a chunk, one value behind the other."""
        offsets, at = [], 0
        for size in self.sizes:
            slack = size // self.s.row_block * SLACK if self.s.row_blocks > 1 else 0
            at += -(-slack // ALIGNMENT) * ALIGNMENT
            offsets.append(at)
            at += -(-size // ALIGNMENT) * ALIGNMENT
        i8 = ir.IntegerType.get_signless(8)
        memory = llvm.AllocaOp(entry.pointer(), builders.constant(entry.i64(), at), i8, alignment=ALIGNMENT).result
        return [_offset(memory, builders.constant(entry.i64(), offset)) for offset in offsets]


def _array(count: int) -> ir.Value:
    """Of pointers."""
    return llvm.AllocaOp(entry.pointer(), builders.constant(entry.i64(), count), entry.pointer(), alignment=8).result


def _slot(base: ir.Value, n: int) -> ir.Value:
    return llvm.GEPOp(entry.pointer(), base, [], [n], entry.pointer(), llvm.GEPNoWrapFlags.none).result


def _offset(base: ir.Value, nbytes: ir.Value) -> ir.Value:
    return llvm.GEPOp(entry.pointer(), base, [nbytes], [-2147483648], ir.IntegerType.get_signless(8), llvm.GEPNoWrapFlags.none).result
