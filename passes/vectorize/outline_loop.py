"""A loop as a function of its own, which is called where the loop was.

LLVM takes constants out of all loops, and its register allocator may then keep those of an epilogue and put the sums of a register
tile on the stack, in the innermost loop (a product with seven roundings to bf16 behind it takes 3.5 instead of 2.5 ms). Around a call
no vector stays in a register.
"""

from __future__ import annotations

from ...dialects.mlir import arith, builtin, func, ir, llvm, memref
from .. import structure as st
from .entry import i64, memref_at, pointer

OUTLINED = "mlirc.outlined"
"""On a function that was a loop."""


def outline_loop(loop: ir.Operation) -> None:
    """Move a loop without results to a function of its module, the same for loops that differ in their bounds.

    Memory that it uses begins where its memref does.
    """
    caller = loop.parent
    while caller.name != "func.func":
        caller = caller.parent
    module = caller.parent
    captured = list(dict.fromkeys((*loop.operands, *st.captured(loop))))
    bounds = list(loop.operands)[:2]
    constants = [v for v in captured if v not in bounds and (op := st.owner(v)) is not None and op.name == "arith.constant"]
    given = [v for v in captured if v not in constants]
    with loop.location:
        with ir.InsertionPoint(loop):
            arguments = [_passed(v) for v in given]
        taken = sum(1 for _ in module.regions[0].blocks[0].operations)
        name = f"{ir.StringAttr(caller.attributes['sym_name']).value}_epilogue{taken}"
        with ir.InsertionPoint(caller):
            inner = func.FuncOp(name, ir.FunctionType.get([v.type for v in arguments], []))
        inner.operation.attributes["llvm.linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
        inner.operation.attributes["no_inline"] = ir.UnitAttr.get()
        with ir.InsertionPoint(loop):
            call = func.CallOp([], name, arguments).operation
        with ir.InsertionPoint(inner.add_entry_block()):
            inside = {v: _received(a, v.type) for v, a in zip(given, inner.arguments)}
            inside |= {v: st.owner(v).clone().results[0] for v in constants}  # type: ignore[union-attr]
            end = func.ReturnOp([]).operation
    loop.move_before(end)

    def replace(op: ir.Operation) -> ir.WalkResult:
        for n, v in enumerate(op.operands):
            if v in inside:
                op.operands[n] = inside[v]
        return ir.WalkResult.ADVANCE

    loop.walk(replace)
    text = _body(inner)
    for other in module.regions[0].blocks[0].operations:
        if other.operation != inner.operation and OUTLINED in other.attributes and _body(other) == text:
            call.attributes["callee"] = ir.FlatSymbolRefAttr.get(ir.StringAttr(other.attributes["sym_name"]).value)
            # To be dropped later: the ops of one that is erased here may be known to the caller's builder.
            inner.operation.attributes["sym_visibility"] = ir.StringAttr.get("private")
            return
    inner.operation.attributes[OUTLINED] = ir.UnitAttr.get()


def _body(function: func.FuncOp) -> str:
    """What a function does, without its name."""
    # Verified it would not be printed so: the caller is not complete.
    return function.operation.get_asm(assume_verified=True, use_local_scope=True).partition("(")[2].replace(f", {OUTLINED}", "")


def _passed(value: ir.Value) -> ir.Value:
    """A value as an argument of a function: memory by its address, an index as 64 bits."""
    if isinstance(value.type, ir.MemRefType):
        return llvm.IntToPtrOp(pointer(), arith.index_cast(i64(), memref.extract_aligned_pointer_as_index(value))).result
    return arith.index_cast(i64(), value) if isinstance(value.type, ir.IndexType) else value


def _received(argument: ir.Value, kind: ir.Type) -> ir.Value:
    if isinstance(kind, ir.MemRefType):
        return memref_at(argument, kind.element_type)
    return builtin.unrealized_conversion_cast([kind], [argument]) if isinstance(kind, ir.IndexType) else argument
