"""Whether a NaN of a function can have bits in the lower half of its f32.

Arithmetic makes the NaN 0x7fc00000, or hands on one that it was given, made quiet; bf16 values widened have nothing in the lower half.
So only what a function reads as f32, f16 or f64, or puts together from integers that it reads, can have. Where nothing can, a
rounding to bf16 need not look for NaN: adding 0x8000 neither carries into the sign nor leaves infinity behind.
"""

from __future__ import annotations

import struct

from ..dialects.math_expansions.num import element_type
from ..dialects.mlir import ir

_LOADS = ("memref.load", "vector.load", "vector.maskedload", "vector.gather", "vector.expandload", "vector.transfer_read", "llvm.load")
_FLOATS = (ir.F32Type, ir.F64Type, ir.F16Type)
_WITHOUT_FLOATS = ("arith.cmpf", "arith.cmpi", "arith.fptosi", "arith.fptoui", "arith.constant")


def may_have_payloads(function: ir.Operation) -> bool:
    """Whether the lower half of some NaN may be other than zero."""
    found = any(isinstance(element_type(a.type), _FLOATS) for a in function.regions[0].blocks[0].arguments)
    known: dict[ir.Value, bool] = {}

    def look(op: ir.Operation) -> ir.WalkResult:
        nonlocal found
        name = op.name
        if name in _LOADS:
            found |= isinstance(element_type(op.results[0].type), _FLOATS) and not _is_own(op.operands[0])
        elif name == "arith.bitcast":
            found |= isinstance(element_type(op.results[0].type), _FLOATS) and not _from_floats(op.operands[0], known)
        elif name == "arith.constant":
            found |= isinstance(element_type(op.results[0].type), _FLOATS) and _has_payload(op.attributes["value"])
        elif name in ("func.call", "llvm.call"):
            found |= any(isinstance(element_type(r.type), _FLOATS) for r in op.results)
        return ir.WalkResult.INTERRUPT if found else ir.WalkResult.ADVANCE

    function.walk(look)
    return found


def _has_payload(value: ir.Attribute) -> bool:
    """Whether a constant is a NaN other than the usual one; of those with several elements, whether it may be."""
    if isinstance(value, ir.DenseElementsAttr):
        if not value.is_splat:
            return True
        value = value.get_splat_value()
    number = ir.FloatAttr(value).value
    return number != number and struct.unpack("<I", struct.pack("<f", number))[0] & 0xFFFF != 0


def _is_own(buffer: ir.Value) -> bool:
    """Whether memory is the function's own: what is read there, it has stored."""
    while not isinstance(buffer.owner, ir.Block):
        op = buffer.owner.operation
        if op.name == "memref.alloca":
            return True
        if op.name != "memref.cast":
            return False
        buffer = op.operands[0]
    return False


def _from_floats(value: ir.Value, known: dict[ir.Value, bool]) -> bool:
    """Whether an integer is computed from constants, comparisons and the bits of floats alone."""
    if value not in known:
        known[value] = False  # what a loop carries
        if not isinstance(value.owner, ir.Block):
            op = value.owner.operation
            if op.name in _WITHOUT_FLOATS or op.name == "arith.bitcast" and isinstance(element_type(op.operands[0].type), _FLOATS):
                known[value] = True
            elif op.name.startswith(("arith.", "vector.broadcast", "vector.shuffle", "vector.extract_strided_slice")):
                known[value] = all(_from_floats(v, known) for v in op.operands)
    return known[value]
