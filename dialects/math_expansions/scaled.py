"""e^x of a vector of 16 f32 by instructions of AVX-512 that take numbers apart at the point and put powers of two on them.

    %d = t - floor(t)              vreduceps
    %y = p 2^floor(k)              vscalefps: overflow, subnormal results, 0 for k = -inf

So there is no 2^k to be made of its bits, no second factor where k leaves the range of exponents, and nothing to select below it. Intel's
CPUs have one unit only for such shifts and comparisons: there a softmax of 4096 x 512 in bf16 takes 0.47 instead of 0.59 ms.
"""

from __future__ import annotations

import math as pymath

from ..mlir import ir, llvm
from .exponential import EXPM1, LN2
from .num import Num, constant, fma, polynomial

LANES = 16


def fits(kind: ir.Type, registers: int = 1, lanes: int = LANES) -> bool:
    """Whether a type is that of f32 that fill a register of so many lanes, or up to so many of these."""
    return isinstance(kind, ir.VectorType) and isinstance(kind.element_type, ir.F32Type) and kind.shape in [[lanes * n] for n in range(1, registers + 1)]


# 2^(r - 1/2) on 0 <= r < 1: relative error 2^-18.4; 1 at 1/2.
_EXP2_FROM_HALF = (0.707108796, 0.490021527, 0.170755774, 0.036740683, 0.00958278682)

_NEAREST_NOW = 4
"""The rounding mode that is set."""
_DOWN = 9
"""Of vreduceps: no bits of the fraction stay, downwards, without exceptions."""


def coarse_exp_to_one(x: Num) -> Num:
    """e^x for x <= 0; 1 at 0, NaN for NaN. The relative error is below 2^-18, for x < -16 below 2^-17, since t has fewer bits behind the point.
    7 instructions instead of 12 of `coarse.exp`."""
    t = fma(x, 1 / pymath.log(2), 0.5)
    return _scaled(polynomial(_fraction(t), _EXP2_FROM_HALF), t)


def exp(x: Num) -> Num:
    """e^x; subnormal results included."""
    x = x.at_most(89.0).at_least(_LOW)
    k, exact, rest = _reduced(x)
    rest = k * rest
    # The part of r that is exact joins last.
    r = exact + rest
    return _scaled((exact + fma(r * r, polynomial(r, EXPM1["f32"]), rest)) + 1.0, k)


def exp_to_one(x: Num) -> Num:
    """e^x for x <= 0, as `exponential.exp_to_one`: at most 1 ulp away, 1 at 0; subnormal results included."""
    k, exact, rest = _reduced(x.at_least(_LOW))
    return _scaled(polynomial(fma(k, rest, exact), (1.0, 1.0, *EXPM1["f32"])), k)


_LOW = -105.0
"""Of which e^x is 0, after rounding; the reduction of -inf would be NaN."""


def _reduced(x: Num) -> tuple[Num, Num, float]:
    """(k, exact, rest) with x = k ln2 + exact + k rest, for the integer k that is nearest to x / ln2."""
    magic = x.format.magic
    k = fma(x, 1 / pymath.log(2), magic) - magic
    hi, lo = LN2["f32"]
    return k, fma(k, -hi, x), -lo


def _scaled(x: Num, k: Num) -> Num:
    """x 2^floor(k)."""
    return _call("llvm.x86.avx512.mask.scalef.ps.512", [x.value, k.value], x.type)


def _fraction(t: Num) -> Num:
    """t - floor(t)."""
    return _call("llvm.x86.avx512.mask.reduce.ps.512", [t.value, _i32(_DOWN)], t.type)


def _call(name: str, operands: list[ir.Value], kind: ir.Type) -> Num:
    every = llvm.ConstantOp(ir.IntegerType.get_signless(16), ir.IntegerAttr.get(ir.IntegerType.get_signless(16), -1)).result
    return Num(llvm.call_intrinsic(kind, name, [*operands, constant(kind, 0.0), every, _i32(_NEAREST_NOW)], [], []))


def _i32(number: int) -> ir.Value:
    i32 = ir.IntegerType.get_signless(32)
    return llvm.ConstantOp(i32, ir.IntegerAttr.get(i32, number)).result
