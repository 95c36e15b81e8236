"""Stores past the caches, where the memory begins with a vector.

    vector.store %v, %m[%i] {nontemporal = true}     ->     %aligned = (address of %m) % bytes of %v == 0        where %m is made
                                                            if %aligned: vector.store %v, %m[%i] {alignment, nontemporal = true}
                                                            else:        vector.store %v, %m[%i]

The instruction (`vmovntps`) fails for other addresses, and what a kernel stores to may be a caller's, who has it begin anywhere. Whoever
built the stores knows that each of them is whole vectors behind the begin of the memory. Others see them after the function has ended:
`sfence`.

Runs last, since the passes before look for stores among the ops that compute what is stored.
"""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import arith, ir, llvm, memref, scf, vector

PASS_NAME = "mlirc-stream-stores"


def stream_stores(module: ir.Module) -> None:
    """Rewrite the functions of a module."""
    with module.context:
        for function in module.body.operations:
            stores: list[ir.Operation] = []

            def collect(op: ir.Operation, stores: list[ir.Operation] = stores) -> ir.WalkResult:
                if op.name == "vector.store" and "nontemporal" in op.attributes and ir.BoolAttr(op.attributes["nontemporal"]).value:
                    stores.append(op.operation)
                return ir.WalkResult.ADVANCE

            function.operation.walk(collect)
            if stores:
                _rewrite(function.operation, stores)


def _rewrite(function: ir.Operation, stores: list[ir.Operation]) -> None:
    aligned: dict[tuple[ir.Value, int], ir.Value] = {}
    for op in stores:
        value, buffer, *at = op.operands
        kind = ir.VectorType(value.type)
        nbytes = kind.shape[0] * kind.element_type.width // 8
        if (buffer, nbytes) not in aligned:
            aligned[buffer, nbytes] = _begins_with(buffer, nbytes)
        with ir.InsertionPoint(op), op.location:
            branch = scf.IfOp(aligned[buffer, nbytes], has_else=True)
            with ir.InsertionPoint(branch.then_block):
                vector.store(value, buffer, at, nontemporal=True, alignment=nbytes)
                scf.yield_([])
            with ir.InsertionPoint(branch.else_block):
                vector.store(value, buffer, at)
                scf.yield_([])
        op.erase()
    for block in function.regions[0].blocks:
        last = block.operations[len(block.operations) - 1]
        with ir.InsertionPoint(last), last.location:
            llvm.call_intrinsic(None, "llvm.x86.sse.sfence", [], [], [])


def _begins_with(buffer: ir.Value, nbytes: int) -> ir.Value:
    """Whether memory begins at a multiple of so many bytes."""
    owner = buffer.owner
    place = ir.InsertionPoint.at_block_begin(owner) if isinstance(owner, ir.Block) else ir.InsertionPoint.after(owner.operation)
    with place, ir.Location.unknown():
        address = memref.extract_aligned_pointer_as_index(buffer)
        return arith.cmpi(arith.CmpIPredicate.eq, arith.remui(address, builders.index(nbytes)), builders.index(0))
