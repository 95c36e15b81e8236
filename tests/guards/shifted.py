"""A pass that makes kernels wrong: every access of some kind is a few elements off."""

from __future__ import annotations

from pathlib import Path

READS = ("vector.maskedload", "vector.load", "vector.gather", "memref.load")
WRITES = ("vector.maskedstore", "vector.store", "vector.scatter", "memref.store")

_TEXT = """
import mlirc
from mlirc.dialects.mlir import arith, ir

@mlirc.register_pass(after="vector")
def shift(module):
    found = []
    def look(op):
        if op.name in {names!r}:
            found.append(op)
        return ir.WalkResult.ADVANCE
    module.operation.walk(look)
    for op in found:
        memory = next(i for i, v in enumerate(op.operands) if isinstance(v.type, ir.MemRefType))
        # The innermost index.
        at = memory + ir.MemRefType(op.operands[memory].type).rank
        with ir.InsertionPoint(op), op.location:
            by = arith.constant(ir.IndexType.get(), {by})
            op.operands[at] = arith.addi(op.operands[at], by)
"""


def shifting(folder: Path, names: tuple[str, ...], by: int) -> str:
    """A file for the option `passes` that adds `by` to the last index of all ops with these names."""
    path = folder / "shift.py"
    path.write_text(_TEXT.format(names=names, by=by))
    return str(path)
