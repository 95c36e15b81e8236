"""torch's dtypes as MLIR element types, and conversions of scalars between them.

MLIR integers carry no sign, so the torch dtype goes along with every value that is being built. `bool` is `i1` in the
IR and one byte in memory.
"""

from __future__ import annotations

import torch

from ..dialects.builders import constant
from ..dialects.mlir import arith, ir, math

_BITS = {torch.int8: 8, torch.uint8: 8, torch.int16: 16, torch.int32: 32, torch.int64: 64, torch.bool: 1}
_FLOATS = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}

SUPPORTED = frozenset((*_BITS, *_FLOATS))
"""The dtypes that kernels know. Ops on all others stay with ATen."""

_OPAQUE = {torch.uint16: 16, torch.uint32: 32, torch.uint64: 64, torch.complex32: 32, torch.complex64: 64}
_OPAQUE |= {d: 8 for n in dir(torch) if n.startswith("float8_") and isinstance(d := getattr(torch, n), torch.dtype)}

STORABLE = frozenset((*SUPPORTED, *_OPAQUE))
"""The dtypes that can pass through a program: those of `_OPAQUE` as integers of their size, which kernels only copy."""


def mlir_type(dtype: torch.dtype) -> ir.Type:
    """The element type of a dtype in `STORABLE`; KeyError for others."""
    if dtype in _BITS or dtype in _OPAQUE:
        return ir.IntegerType.get_signless(_BITS.get(dtype) or _OPAQUE[dtype])
    return ir.Type.parse(_FLOATS[dtype])


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What arithmetic on `dtype` is done in: f32 for the two-byte floats, itself otherwise."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def is_unsigned(dtype: torch.dtype) -> bool:
    return dtype in (torch.uint8, torch.bool)


def scalar(dtype: torch.dtype, value: float | int | bool) -> ir.Value:
    """A constant of `dtype`; of bool, whether the number is not zero."""
    return constant(mlir_type(dtype), value != 0 if dtype == torch.bool else value)


def _in_range(value: ir.Value, limit: float) -> ir.Value:
    """A float, or 0 where an integer has no room for it, which LLVM leaves undefined: f32 above 2^31 are multiples of 256, f64 above 2^63, too."""
    zero, most = constant(value.type, 0.0), constant(value.type, limit)
    return arith.select(arith.cmpf(arith.CmpFPredicate.OLT, math.absf(value), most), value, zero)


def cast(value: ir.Value, source: torch.dtype, target: torch.dtype) -> ir.Value:
    """Convert a scalar as `Tensor.to` does: towards zero from float to integer, `!= 0` to bool."""
    if source == target:
        return value
    to = mlir_type(target)
    if target == torch.bool:
        zero = scalar(source, 0)
        if source.is_floating_point:
            return arith.cmpf(arith.CmpFPredicate.UNE, value, zero)
        return arith.cmpi(arith.CmpIPredicate.ne, value, zero)
    if source.is_floating_point and target.is_floating_point:
        if source.itemsize == target.itemsize:  # f16 <-> bf16
            return arith.truncf(to, arith.extf(ir.F32Type.get(), value))
        if source.itemsize < target.itemsize:
            return arith.extf(to, value)
        if source == torch.float64 and target.itemsize == 2:
            value = arith.truncf(ir.F32Type.get(), value)
        return arith.truncf(to, value)
    if source.is_floating_point:
        if source.itemsize == 2:
            value = arith.extf(ir.F32Type.get(), value)
        # Eager converts narrow integers through a wider one, so that out of range values wrap; uint8 through int64.
        wide = torch.int64 if target == torch.int64 or target == torch.uint8 and source == torch.float64 else torch.int32
        if target == torch.uint8:
            value = _in_range(value, 2.0**31 if wide == torch.int32 else 2.0**63)
        value = arith.fptosi(mlir_type(wide), value)
        return cast(value, wide, target)
    if target.is_floating_point:
        convert = arith.uitofp if is_unsigned(source) else arith.sitofp
        if target.itemsize == 2:
            return arith.truncf(to, convert(ir.F32Type.get(), value))
        return convert(to, value)
    if _BITS[source] == _BITS[target]:
        return value
    if _BITS[source] > _BITS[target]:
        return arith.trunci(to, value)
    return (arith.extui if is_unsigned(source) else arith.extsi)(to, value)
