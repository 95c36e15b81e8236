"""Instructions that multiply words of 32 bits, and add the products of each to a sum.

    bf16    s += a0 * b0 + a1 * b1                        vdpbf16ps, f32 sums
    i16     s += a0 * b0 + a1 * b1                        vpmaddwd and vpaddd, or vpdpwssd
    bytes   s += a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3    vpdpbusd: unsigned by signed bytes (`passes.fit_integers`)

and of tiles of them, on AMX: tdpbf16ps, tdpbusd, tdpbsud, tdpbssd, tdpbuud; and the loads of these.
"""

from __future__ import annotations

import re

from ...dialects import builders
from ...dialects.mlir import arith, builtin, ir, llvm, memref, x86
from . import entry
from .memory import Memory

Operand = tuple[ir.Value, bool]
"""A vector, and whether its elements are unsigned."""


def dot(total: ir.Value, a: Operand, b: Operand) -> ir.Value:
    """total + a * b, where total has the lanes, f32 or i32, and a and b as many words."""
    (x, x_unsigned), (y, y_unsigned) = a, b
    element = ir.VectorType(x.type).element_type
    if isinstance(element, ir.BF16Type):
        return x86.avx512_dot(total, x, y)
    lanes = ir.VectorType(total.type).shape[0]
    if element.width == 16:
        return arith.addi(total, _call(PAIRS[lanes], total.type, [x, y]))
    assert x_unsigned != y_unsigned, "of bytes one operand is unsigned"
    return _call(FOURS[lanes], total.type, [total, x, y] if x_unsigned else [total, y, x])


def multiply_tiles(total: ir.Value, a: Operand, b: Operand) -> ir.Value:
    """The same of tiles of AMX, for any signs of bytes."""
    (x, x_unsigned), (y, y_unsigned) = a, b
    if "bf16" in str(x.type):
        return x86.amx_tile_mulf(x, y, total)
    return x86.amx_tile_muli(x, y, total, is_zext_lhs=x_unsigned or None, is_zext_rhs=y_unsigned or None)


PAIRS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}
FOURS = {lanes: f"llvm.x86.avx512.vpdpbusd.{32 * lanes}" for lanes in (4, 8, 16)}


def _call(name: str, kind: ir.Type, operands: list[ir.Value]) -> ir.Value:
    return llvm.call_intrinsic(kind, name, operands, [], [])


def tile(rows: int, columns: int, element: str) -> ir.Type:
    return ir.Type.parse(f"!x86.amx.tile<{rows}x{columns}x{element}>")


def load_once(kind: ir.Type, place: Memory, at: ir.Value, stride: ir.Value) -> ir.Value:
    """A tile from element `at` of the memory on, rows `stride` elements apart, of which the first-level cache keeps nothing:
    TILELOADDT1, which MLIR has no op for.

    The rows of a product are read once for a panel, and would push out the block of the panel and the sums: 1,350 instead of
    1,170 GF/s for 512 x 768 x 768.
    """
    rows, columns, size = *(int(n) for n in _SHAPE.findall(str(kind))[0]), place.element.width // 8
    i16, index = ir.IntegerType.get_signless(16), memref.extract_aligned_pointer_as_index(place.buffer)
    address = arith.addi(index, arith.muli(at, builders.index(size)))
    pointer = llvm.inttoptr(entry.pointer(), arith.index_cast(entry.i64(), address))
    step = arith.index_cast(entry.i64(), arith.muli(stride, builders.index(size)))
    shape = [builders.constant(i16, n) for n in (rows, columns * size)]
    loaded = llvm.call_intrinsic(ir.Type.parse("!llvm.x86_amx"), LOAD_ONCE, [*shape, pointer, step], [], [])
    return builtin.unrealized_conversion_cast([kind], [loaded])


_SHAPE = re.compile(r"<(\d+)x(\d+)x")
LOAD_ONCE = "llvm.x86.tileloaddt164.internal"
