"""Stores past the caches, where what is stored begins at a multiple of its size.

    vector.store %v, %m[%i] {nontemporal = true}     ->     %aligned = (address of %m[%i]) % bytes of %v == 0
                                                            if %aligned: vector.store %v, %m[%i] {alignment, nontemporal = true}
                                                            else:        vector.store %v, %m[%i]

The instruction (`vmovntps`) fails for other addresses, and what a kernel stores to may be a caller's, who has it begin anywhere. A fence
(`sfence`) at the end of what each thread runs lets the others see such stores.

Runs last, since the passes before look for stores among the ops that compute what is stored.
"""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import arith, ir, llvm, memref, scf, vector

PASS_NAME = "mlirc-stream-stores"

MOST = 64
"""Bytes of an instruction; larger vectors are stored by several."""


def stream_stores(module: ir.Module) -> None:
    """Rewrite all of them in a module."""
    stores: list[ir.Operation] = []
    called: set[str] = set()
    run: set[str] = set()

    def collect(op: ir.Operation) -> ir.WalkResult:
        if op.name == "vector.store" and "nontemporal" in op.attributes and ir.BoolAttr(op.attributes["nontemporal"]).value:
            stores.append(op.operation)
        elif op.name == "func.call":
            called.add(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
        elif op.name == "func.constant":  # by threads
            run.add(ir.FlatSymbolRefAttr(op.attributes["value"]).value)
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(collect)
        for op in stores:
            _rewrite(op)
        for function in [f.operation for f in module.body.operations if f.operation.name == "func.func"] if stores else ():
            if ir.StringAttr(function.attributes["sym_name"]).value not in called - run:
                for block in function.regions[0].blocks:
                    last = block.operations[len(block.operations) - 1]
                    with ir.InsertionPoint(last), last.location:
                        llvm.call_intrinsic(None, "llvm.x86.sse.sfence", [], [], [])


def _rewrite(op: ir.Operation) -> None:
    value, buffer, at = op.operands
    kind = ir.VectorType(value.type)
    size = kind.element_type.width // 8
    nbytes = min(kind.shape[0] * size, MOST)
    with ir.InsertionPoint(op), op.location:
        address = arith.addi(memref.extract_aligned_pointer_as_index(buffer), arith.muli(at, builders.index(size)))
        aligned = arith.cmpi(arith.CmpIPredicate.eq, arith.andi(address, builders.index(nbytes - 1)), builders.index(0))
        branch = scf.IfOp(aligned, has_else=True)
        with ir.InsertionPoint(branch.then_block):
            vector.store(value, buffer, [at], nontemporal=True, alignment=nbytes)
            scf.yield_([])
        with ir.InsertionPoint(branch.else_block):
            vector.store(value, buffer, [at])
            scf.yield_([])
    op.erase()
