"""Whether a NaN of a function can have bits in the lower half of its f32.

Arithmetic makes the NaN 0x7fc00000 or 0xffc00000, or hands on one that it was given, made quiet; bf16 values widened have nothing in
the lower half. So only what a function reads as f32, f16 or f64, or puts together from integers, can have. The expansions of math
functions put floats together too, but no such NaN, and say so on the op. Where nothing can, a
rounding to bf16 need not look for NaN: adding 0x8000 neither carries into the sign nor leaves infinity behind.
"""

from __future__ import annotations

import struct

from ..dialects.math_expansions.num import NO_PAYLOAD, element_type
from ..dialects.mlir import ir
from .tabulate import EXACT

_LOADS = ("memref.load", "vector.load", "vector.maskedload", "vector.gather", "vector.expandload", "vector.transfer_read", "llvm.load")
_FLOATS = (ir.F32Type, ir.F64Type, ir.F16Type)


def payload_sources(function: ir.Operation) -> list[ir.Operation] | None:
    """The ops that may make a NaN whose lower half is other than zero; None if an argument may be one."""
    if any(isinstance(element_type(a.type), _FLOATS) for a in function.regions[0].blocks[0].arguments):
        return None
    sources: list[ir.Operation] = []

    def look(op: ir.Operation) -> ir.WalkResult:
        if _may_make(op):
            sources.append(op)
        return ir.WalkResult.ADVANCE

    function.walk(look)
    return sources


def _may_make(op: ir.Operation) -> bool:
    name = op.name
    if name in _LOADS:
        return EXACT not in op.attributes and isinstance(element_type(op.results[0].type), _FLOATS) and not _is_own(op.operands[0])
    if name in ("arith.bitcast", "vector.bitcast"):
        return isinstance(element_type(op.results[0].type), _FLOATS) and NO_PAYLOAD not in op.attributes
    if name == "arith.constant":
        return isinstance(element_type(op.results[0].type), _FLOATS) and _has_payload(op.attributes["value"])
    if name in ("func.call", "llvm.call"):
        return any(isinstance(element_type(r.type), _FLOATS) for r in op.results)
    return False


def _has_payload(value: ir.Attribute) -> bool:
    """Whether a constant is a NaN other than the usual one; of those with several elements, whether it may be."""
    if isinstance(value, ir.DenseElementsAttr):
        if not value.is_splat:
            return True
        value = value.get_splat_value()
    number = ir.FloatAttr(value).value
    return number != number and struct.unpack("<I", struct.pack("<f", number))[0] & 0xFFFF != 0


def _is_own(buffer: ir.Value) -> bool:
    """Whether memory is the function's own, and no function that it calls gets it: what is read there, it has stored."""
    while not isinstance(buffer.owner, ir.Block):
        op = buffer.owner.operation
        if op.name == "memref.alloca":
            return not _is_handed_on(buffer)
        if op.name != "memref.cast":
            return False
        buffer = op.operands[0]
    return False


def _is_handed_on(buffer: ir.Value) -> bool:
    users = [use.owner.operation for use in buffer.uses]
    return any(op.name == "func.call" or op.name == "memref.cast" and _is_handed_on(op.results[0]) for op in users)
