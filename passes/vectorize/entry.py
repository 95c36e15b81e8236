"""The shell of a kernel: unpack the context, run the body over its parallel range.

    func @kernel(%ctx)                       trip = ...; if trip > grain: torch_parallel_for(0, trip, grain, body, ctx)
                                             else body(0, trip, ctx)
    func private @kernel_body(%begin, %end, %ctx)

The context is the array of 8-byte slots that `runtime.abi` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...dialects import builders
from ...dialects.mlir import arith, builtin, func, ir, llvm, scf
from .evaluate import storage_type
from .lanes import Number

Slots = tuple[ir.Value, list[ir.Value]]
"""The status pointer, and one value per argument and result: a memref for a tensor, an index, or a float."""


def pointer() -> ir.Type:
    return llvm.PointerType.get()


def i64() -> ir.Type:
    return ir.IntegerType.get_signless(64)


def unpack(context: ir.Value, kinds: Sequence[ir.Type]) -> Slots:
    """Read the slots: tensors become 1-D memrefs of their storage type."""

    def slot(n: int) -> ir.Value:
        return llvm.GEPOp(pointer(), context, [], [n], pointer(), llvm.GEPNoWrapFlags.none).result if n else context

    status = llvm.LoadOp(pointer(), context).result
    out = []
    for n, kind in enumerate(kinds, 1):
        if isinstance(kind, ir.RankedTensorType):
            out.append(_memref(llvm.LoadOp(pointer(), slot(n)).result, storage_type(kind.element_type)))
        elif isinstance(kind, ir.IndexType):
            raw = llvm.LoadOp(i64(), slot(n)).result
            out.append(builtin.unrealized_conversion_cast([kind], [raw]))
        else:
            out.append(llvm.LoadOp(kind, slot(n)).result)
    return status, out


def _memref(address: ir.Value, element: ir.Type) -> ir.Value:
    descriptor = ir.Type.parse("!llvm.struct<(ptr, ptr, i64, array<1 x i64>, array<1 x i64>)>")
    value = llvm.PoisonOp(descriptor).result if hasattr(llvm, "PoisonOp") else llvm.UndefOp(descriptor).result
    zero = llvm.ConstantOp(i64(), ir.IntegerAttr.get(i64(), 0)).result
    one = llvm.ConstantOp(i64(), ir.IntegerAttr.get(i64(), 1)).result
    for part, at in ((address, [0]), (address, [1]), (zero, [2]), (one, [4, 0])):
        value = llvm.InsertValueOp(value, part, ir.DenseI64ArrayAttr.get(at)).result
    kind = ir.MemRefType.get([builders.DYNAMIC], element)
    return builtin.unrealized_conversion_cast([kind], [value])


def build(
    symbol: str,
    kinds: Sequence[ir.Type],
    trip: Callable[[list[ir.Value]], Number],
    grain: int,
    body: Callable[[ir.Value, ir.Value, ir.Value, list[ir.Value]], None],
) -> ir.Module:
    """A module with the entry `symbol` and its body.

    `trip(slots)` computes the number of parallel iterations, `body(begin, end, status, slots)` builds their code.
    """
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        inner_type = ir.FunctionType.get([i64(), i64(), pointer()], [])
        inner = func.FuncOp(f"{symbol}_body", inner_type)
        inner.operation.attributes["llvm.linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
        # One copy of it, for the threads and for the caller.
        inner.operation.attributes["no_inline"] = ir.UnitAttr.get()
        with ir.InsertionPoint(inner.add_entry_block()):
            begin, end, context = inner.arguments
            index = ir.IndexType.get()
            status, slots = unpack(context, kinds)
            begin = builtin.unrealized_conversion_cast([index], [begin])
            end = builtin.unrealized_conversion_cast([index], [end])
            body(begin, end, status, slots)
            func.ReturnOp([])
        i32 = ir.IntegerType.get_signless(32)
        parallel = ir.FunctionType.get([i64(), i64(), i64(), pointer(), pointer()], [i32])
        entry = func.FuncOp(symbol, ir.FunctionType.get([pointer()], []))
        with ir.InsertionPoint(entry.add_entry_block()):
            (context,) = entry.arguments
            _, slots = unpack(context, kinds)
            n = trip(slots)
            zero = builders.constant(i64(), 0)
            if isinstance(n, int):
                count = builders.constant(i64(), n)
            else:
                count = arith.index_cast(i64(), n)
            if isinstance(n, int) and n <= grain:
                if n > 0:
                    func.CallOp([], inner.name.value, [zero, count, context])
            else:
                func_in_module = func.FuncOp("torch_parallel_for", parallel, visibility="private", ip=ir.InsertionPoint(module.body))
                assert func_in_module is not None
                limit = builders.constant(i64(), grain)
                small = arith.cmpi(arith.CmpIPredicate.sle, count, limit)
                branch = scf.IfOp(small, has_else=True)
                with ir.InsertionPoint(branch.then_block):
                    func.CallOp([], inner.name.value, [zero, count, context])
                    scf.YieldOp([])
                with ir.InsertionPoint(branch.else_block):
                    f = func.ConstantOp(inner_type, inner.name.value).result
                    address = builtin.unrealized_conversion_cast([pointer()], [f])
                    func.CallOp([i32], "torch_parallel_for", [zero, count, limit, address, context])
                    scf.YieldOp([])
            func.ReturnOp([])
    return module
