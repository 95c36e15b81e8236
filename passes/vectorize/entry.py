"""The shell of a kernel: unpack the context, run the body over its parallel range.

    func @kernel(%ctx)                       trip = ...; if trip > grain: torch_parallel_for(0, trip, grain, body, ctx)
                                             else body(0, trip, ctx)
    func private @kernel_body(%begin, %end, %ctx)

The context is the array of 8-byte slots that `runtime.abi` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...dialects import builders
from ...dialects.mlir import arith, builtin, func, ir, llvm, scf
from .lanes import Number
from .memory import storage_type

PARALLEL_FOR = "torch_parallel_for"

Slots = tuple[ir.Value, list[ir.Value]]
"""The status pointer, and one value per argument and result: a memref for a tensor, an index, or a float."""


def pointer() -> ir.Type:
    return llvm.PointerType.get()


def i64() -> ir.Type:
    return ir.IntegerType.get_signless(64)


def slot(context: ir.Value, n: int) -> ir.Value:
    """The address of the `n`-th slot of a context."""
    return llvm.GEPOp(pointer(), context, [], [n], pointer(), llvm.GEPNoWrapFlags.none).result if n else context


def slots_of_own(count: int) -> ir.Value:
    """Memory for so many slots, on the stack."""
    return llvm.AllocaOp(pointer(), llvm.ConstantOp(i64(), ir.IntegerAttr.get(i64(), count)).result, pointer(), alignment=64).result


def moved(base: ir.Value, nbytes: ir.Value) -> ir.Value:
    """The address so many bytes, an i64, behind another."""
    return llvm.GEPOp(pointer(), base, [nbytes], [_DYNAMIC], ir.IntegerType.get_signless(8), llvm.GEPNoWrapFlags.none).result


_DYNAMIC = -(1 << 31)
"""Of an index of a GEP: it is an operand."""


def unpack(context: ir.Value, kinds: Sequence[ir.Type]) -> Slots:
    """Read the slots: tensors become 1-D memrefs of their storage type."""
    status = llvm.LoadOp(pointer(), context).result
    out = []
    for n, kind in enumerate(kinds, 1):
        if isinstance(kind, ir.RankedTensorType):
            out.append(memref_at(llvm.LoadOp(pointer(), slot(context, n)).result, storage_type(kind.element_type)))
        elif isinstance(kind, ir.IndexType):
            raw = llvm.LoadOp(i64(), slot(context, n)).result
            out.append(builtin.unrealized_conversion_cast([kind], [raw]))
        else:
            out.append(llvm.LoadOp(kind, slot(context, n)).result)
    return status, out


def memref_at(address: ir.Value, element: ir.Type) -> ir.Value:
    """The memory from an address on, as a 1-D memref."""
    descriptor = ir.Type.parse("!llvm.struct<(ptr, ptr, i64, array<1 x i64>, array<1 x i64>)>")
    value = llvm.PoisonOp(descriptor).result if hasattr(llvm, "PoisonOp") else llvm.UndefOp(descriptor).result
    zero = llvm.ConstantOp(i64(), ir.IntegerAttr.get(i64(), 0)).result
    one = llvm.ConstantOp(i64(), ir.IntegerAttr.get(i64(), 1)).result
    for part, at in ((address, [0]), (address, [1]), (zero, [2]), (one, [4, 0])):
        value = llvm.InsertValueOp(value, part, ir.DenseI64ArrayAttr.get(at)).result
    kind = ir.MemRefType.get([builders.DYNAMIC], element)
    return builtin.unrealized_conversion_cast([kind], [value])


@dataclass
class Step:
    """A part of a kernel that runs when those before it are over: `trip(slots)` iterations of `body(begin, end, status, slots)`,
    shared by threads where there are more than `grain`."""

    trip: Callable[[list[ir.Value]], Number]
    grain: int | Callable[[list[ir.Value]], Number]
    body: Callable[[ir.Value, ir.Value, ir.Value, list[ir.Value]], None]


def build(
    symbol: str,
    kinds: Sequence[ir.Type],
    trip: Callable[[list[ir.Value]], Number],
    grain: int | Callable[[list[ir.Value]], Number],
    body: Callable[[ir.Value, ir.Value, ir.Value, list[ir.Value]], None],
    before: Sequence[Step] = (),
) -> ir.Module:
    """A module with the entry `symbol` and its body.

    `trip(slots)` computes the number of parallel iterations, `body(begin, end, status, slots)` builds their code. `before` comes first.
    """
    return build_steps(symbol, kinds, [], [*before, Step(trip, grain, body)])


def build_steps(symbol: str, kinds: Sequence[ir.Type], scratch: Sequence[ir.RankedTensorType], steps: Sequence[Step]) -> ir.Module:
    """A kernel of several steps, each with a function of its own. `scratch` is memory on the stack of the calling thread that they
    share: further slots for them.

        func @kernel(%ctx)        %ctx' = [%ctx..., scratch];  step 0 on %ctx';  step 1 on %ctx';  ...
    """
    module = ir.Module.create()
    kinds = [*kinds, *scratch]
    with ir.InsertionPoint(module.body):
        bodies = [_body(f"{symbol}_body" if len(steps) == 1 else f"{symbol}_body{n}", kinds, step) for n, step in enumerate(steps)]
        entry = func.FuncOp(symbol, ir.FunctionType.get([pointer()], []))
        with ir.InsertionPoint(entry.add_entry_block()):
            (context,) = entry.arguments
            if scratch:
                context = _with_scratch(context, len(kinds) - len(scratch), scratch)
            for inner, step in zip(bodies, steps):
                _run(module, inner, step, context, kinds)
            func.ReturnOp([])
    return module


def _with_scratch(context: ir.Value, given: int, scratch: Sequence[ir.RankedTensorType]) -> ir.Value:
    """A copy of the context with the addresses of arrays on the stack behind it."""

    own = slots_of_own(1 + given + len(scratch))
    for n in range(1 + given):
        llvm.StoreOp(llvm.LoadOp(pointer(), slot(context, n)).result, slot(own, n))
    for n, kind in enumerate(scratch, 1 + given):
        size = llvm.ConstantOp(i64(), ir.IntegerAttr.get(i64(), kind.shape[0])).result
        llvm.StoreOp(llvm.AllocaOp(pointer(), size, storage_type(kind.element_type), alignment=64).result, slot(own, n))
    return own


def _body(name: str, kinds: Sequence[ir.Type], step: Step) -> func.FuncOp:
    inner = func.FuncOp(name, ir.FunctionType.get([i64(), i64(), pointer()], []))
    inner.operation.attributes["llvm.linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
    # One copy of it, for the threads and for the caller.
    inner.operation.attributes["no_inline"] = ir.UnitAttr.get()
    with ir.InsertionPoint(inner.add_entry_block()):
        begin, end, context = inner.arguments
        index = ir.IndexType.get()
        status, slots = unpack(context, kinds)
        begin = builtin.unrealized_conversion_cast([index], [begin])
        end = builtin.unrealized_conversion_cast([index], [end])
        step.body(begin, end, status, slots)
        func.ReturnOp([])
    return inner


def _run(module: ir.Module, inner: func.FuncOp, step: Step, context: ir.Value, kinds: Sequence[ir.Type]) -> None:
    """Call a body over its whole range, in this thread or in several."""
    i32 = ir.IntegerType.get_signless(32)
    _, slots = unpack(context, kinds)
    n = step.trip(slots)
    zero = builders.constant(i64(), 0)
    count = builders.constant(i64(), n) if isinstance(n, int) else arith.index_cast(i64(), n)
    grain = step.grain if isinstance(step.grain, int) else step.grain(slots)
    if isinstance(n, int) and isinstance(grain, int) and n <= grain:
        if n > 0:
            func.CallOp([], inner.name.value, [zero, count, context])
        return
    if not any(f.attributes["sym_name"] == ir.StringAttr.get(PARALLEL_FOR) for f in module.body.operations):
        parallel = ir.FunctionType.get([i64(), i64(), i64(), pointer(), pointer()], [i32])
        func.FuncOp(PARALLEL_FOR, parallel, visibility="private", ip=ir.InsertionPoint(module.body))
    limit = builders.constant(i64(), grain) if isinstance(grain, int) else arith.index_cast(i64(), grain)
    small = arith.cmpi(arith.CmpIPredicate.sle, count, limit)
    branch = scf.IfOp(small, has_else=True)
    with ir.InsertionPoint(branch.then_block):
        func.CallOp([], inner.name.value, [zero, count, context])
        scf.YieldOp([])
    with ir.InsertionPoint(branch.else_block):
        body = func.ConstantOp(ir.FunctionType.get([i64(), i64(), pointer()], []), inner.name.value).result
        address = builtin.unrealized_conversion_cast([pointer()], [body])
        func.CallOp([i32], PARALLEL_FOR, [zero, count, limit, address, context])
        scf.YieldOp([])
