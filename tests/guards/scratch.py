"""A pass that finds accesses outside of a kernel's scratch, which is on its stack and has no pages of its own.

Each piece of scratch gets NaN (-1 in integers) on both sides. What a kernel reads there spoils its results; if something else
stands there in the end, the call fails ("assertion failed in compiled graph").
"""

from __future__ import annotations

from pathlib import Path

_TEXT = """
import mlirc
from mlirc.dialects.mlir import arith, func, ir, llvm, memref, scf, vector

SIDE = 64

def constant(element, kind, value):
    return arith.constant(kind, ir.DenseElementsAttr.get_splat(kind, value))

@mlirc.register_pass(after="vector")
def fence(module):
    for f in module.body.operations:
        pieces = []
        def look(op):
            if op.name == "memref.alloca":
                pieces.append(op)
            return ir.WalkResult.ADVANCE
        f.operation.walk(look)
        for op in pieces:
            fence_one(f, op)

def fence_one(f, op):
    old = ir.MemRefType(op.results[0].type)
    n, element = old.shape[0], old.element_type
    floats = not isinstance(element, (ir.IntegerType, ir.IndexType))
    kind = ir.VectorType.get([SIDE], element)
    attribute = ir.FloatAttr.get(element, float("nan")) if floats else ir.IntegerAttr.get(element, -1)
    index = ir.IndexType.get()
    with ir.InsertionPoint(op), op.location:
        place = memref.AllocaOp(ir.MemRefType.get([n + 2 * SIDE], element), [], [], alignment=64)
        mark = constant(element, kind, attribute)
        sides = [arith.constant(index, at) for at in (0, SIDE + n - {shrink})]
        for at in sides:
            vector.store(mark, place.result, [at])
    for use in list(op.results[0].uses):
        cast = use.owner
        assert cast.name == "memref.cast", cast.name
        for use in list(cast.results[0].uses):
            user, number = use.owner, use.operand_number
            with ir.InsertionPoint(user), user.location:
                user.operands[number + 1] = arith.addi(user.operands[number + 1], arith.constant(index, SIDE))
        cast.operands[0] = place.result
    block = f.regions[0].blocks[0]
    last = block.operations[len(block.operations) - 1]
    with ir.InsertionPoint(last), last.operation.location:
        for at in sides:
            now = vector.load(kind, place.result, [at])
            wrong = arith.cmpf(arith.CmpFPredicate.ORD, now, now) if floats else arith.cmpi(arith.CmpIPredicate.ne, now, mark)
            then = scf.IfOp(vector.reduction(ir.IntegerType.get_signless(1), vector.CombiningKind.OR, wrong))
            with ir.InsertionPoint(then.then_block):
                pointer = llvm.load(ir.Type.parse("!llvm.ptr"), f.regions[0].blocks[0].arguments[2])
                llvm.StoreOp(arith.constant(ir.IntegerType.get_signless(64), 3), pointer)
                scf.yield_([])
    op.erase()
"""


def fenced(folder: Path, shrink: int = 0) -> str:
    """A file for the option `passes` that puts a fence around scratch; the upper one `shrink` elements inside of it."""
    path = folder / "fence.py"
    path.write_text(_TEXT.format(shrink=shrink))
    return str(path)
