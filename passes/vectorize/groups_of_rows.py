"""A kernel of one group of rows becomes one of all groups.

    func @kernel(%ctx):
      %own = a copy of %ctx, with a slot for the number of rows
      for each group:
        rows = ends[group] - ends[group - 1];  none?  the next one
        %own[x] = x + ends[group - 1] rows;  %own[w] = w + group matrices;  %own[out] = out + ends[group - 1] rows
        call @kernel_group(%own)
      for rows behind the last group: out[row] = 0

Each group is shared by threads, as its product would be: that balances groups of unlike sizes. Ends beyond the rows are taken for these, as
slices take them.
"""

from __future__ import annotations

from ...dialects import builders
from ...dialects.mlir import arith, func, ir, llvm, memref, scf, vector
from .. import structure as st
from ..ragged import Number, Ragged
from .entry import i64, moved, pointer, slot, slots_of_own, unpack
from .kernel import KernelFunction
from .memory import storage_type

LANES = 16
"""Elements of the vectors of zeros."""


def walk_groups(module: ir.Module, kernel: KernelFunction, ragged: Ragged, symbol: str) -> None:
    """Put the loop over groups into a function `symbol`, around that of one group, which the module has by this name."""
    (inner,) = [op for op in map(st.operation, module.body.operations) if op.name == "func.func" and op.attributes["sym_name"] == _text(symbol)]
    inner.attributes["sym_name"] = _text(f"{symbol}_group")
    inner.attributes["llvm.linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
    inner.attributes["no_inline"] = ir.UnitAttr.get()
    with ir.InsertionPoint(module.body):
        entry = func.FuncOp(symbol, ir.FunctionType.get([pointer()], []))
        with ir.InsertionPoint(entry.add_entry_block()):
            _Walk(kernel, ragged, entry.arguments[0], f"{symbol}_group").build()
            func.ReturnOp([])


class _Walk:
    def __init__(self, kernel: KernelFunction, ragged: Ragged, context: ir.Value, inner: str) -> None:
        self.kernel = kernel
        self.ragged = ragged
        self.context = context
        self.inner = inner
        self.given = kernel.arguments[:-1]
        """Without the number of rows, which comes last."""
        _, self.slots = unpack(context, [v.type for v in (*self.given, *kernel.stored)])

    def build(self) -> None:
        count, zero = self._number(self.ragged.count), builders.constant(i64(), 0)
        own = self._copy()
        groups = scf.ForOp(builders.index(0), builders.index(self.ragged.groups), builders.index(1), [zero, zero])
        with ir.InsertionPoint(groups.body):
            begin, most = groups.inner_iter_args
            ends = self.kernel.arguments[self.ragged.ends]
            step = arith.index_cast(ir.IndexType.get(), self._number(self.kernel.strides[ends][0]))  # type: ignore[arg-type]
            read = memref.load(self.slots[self.ragged.ends], [arith.muli(groups.induction_variable, step)])
            end = read if read.type == i64() else arith.extsi(i64(), read)
            end = arith.maxsi(arith.minsi(end, count), zero)
            rows = arith.subi(end, begin)
            group = arith.index_cast(i64(), groups.induction_variable)
            if self.ragged.summed:
                self._call(own, group, begin, arith.maxsi(rows, zero))
            else:
                some = scf.IfOp(arith.cmpi(arith.CmpIPredicate.sgt, rows, zero))
                with ir.InsertionPoint(some.then_block):
                    self._call(own, group, begin, rows)
                    scf.YieldOp([])
            scf.YieldOp([end, arith.maxsi(end, most)])
        if not self.ragged.summed:
            self._clear(groups.results[1], count)

    def _number(self, n: Number | ir.Value) -> ir.Value:
        """A size or step, an i64."""
        if isinstance(n, str):
            n = self.kernel.names[n]
        if isinstance(n, int):
            return builders.constant(i64(), n)
        return arith.index_cast(i64(), self.slots[self.given.index(n)])

    def _copy(self) -> ir.Value:
        """The slots of one group: those that all have are as they are given."""
        own = slots_of_own(2 + len(self.given) + len(self.kernel.stored))
        for n in range(1 + len(self.given)):
            llvm.StoreOp(llvm.LoadOp(pointer(), slot(self.context, n)).result, slot(own, n))
        return own

    def _call(self, own: ir.Value, group: ir.Value, begin: ir.Value, rows: ir.Value) -> None:
        """The product of a group whose rows begin with `begin`."""
        arguments = len(self.given)
        for n, v in enumerate((*self.given, *self.kernel.stored)):
            steps = [(i, table[n]) for i, table in ((begin, self.ragged.next_row), (group, self.ragged.next_group)) if n in table]
            if steps:
                address = llvm.LoadOp(pointer(), slot(self.context, 1 + n)).result
                for i, step in steps:
                    nbytes = arith.muli(self._number(step), builders.constant(i64(), builders.element_type(v).width // 8))
                    address = moved(address, arith.muli(i, nbytes))
                llvm.StoreOp(address, slot(own, 1 + n + (n >= arguments)))
        llvm.StoreOp(rows, slot(own, 1 + arguments))
        func.CallOp([], self.inner, [own])

    def _clear(self, begin: ir.Value, end: ir.Value) -> None:
        """Zero the rows of results from `begin` to `end`."""
        rows = scf.ForOp(arith.index_cast(ir.IndexType.get(), begin), arith.index_cast(ir.IndexType.get(), end), builders.index(1))
        with ir.InsertionPoint(rows.body):
            for n, (v, strides) in enumerate(zip(self.kernel.stored, self.kernel.stored_strides), len(self.given)):
                assert len(strides) == 2 and strides[1] == 1
                columns, step = st.shape(v)[1], arith.index_cast(ir.IndexType.get(), self._number(strides[0]))
                row, kind = arith.muli(rows.induction_variable, step), storage_type(v.type.element_type)  # type: ignore[attr-defined]
                zeros = builders.constant(ir.VectorType.get([LANES], kind), 0)
                parts = scf.ForOp(builders.index(0), builders.index(columns), builders.index(LANES))
                with ir.InsertionPoint(parts.body):
                    left = arith.subi(builders.index(columns), parts.induction_variable)
                    mask = vector.create_mask(ir.VectorType.get([LANES], ir.IntegerType.get_signless(1)), [left])
                    vector.maskedstore(self.slots[n], [arith.addi(row, parts.induction_variable)], mask, zeros)
                    scf.YieldOp([])
            scf.YieldOp([])


def _text(name: str) -> ir.Attribute:
    return ir.StringAttr.get(name)
