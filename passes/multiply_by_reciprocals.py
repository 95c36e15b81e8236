"""A vector that is divided by one number for all of its lanes is multiplied by the reciprocal, and the quotient corrected.

    %v = broadcast %c                           %r = 1 / %c, for all that it divides
    %y = divf %x, %v                ->          %q = %x * %r
                                                %e = fma(-%q, %c, %x), what is left
                                                %f = fma(%e, %r, %q)
                                                %y = %f is neither 0 nor NaN ? %f : %q

Division is the slowest instruction of the vector units, on an Emerald Rapids as long as 20 products (`benchmarks.limits`). With the
remainder exact, the quotient is the nearest one (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor",
1990); where it is denormal, or the remainder is (of what is below 2**-100), it may be the other neighbour. Where the quotient is infinite
or NaN, the correction makes no number of it, and of a negative zero a positive one. A divisor so small that its reciprocal would be
infinite, and what it divides, are scaled first. Where only a rounded bf16 remains (`expand_math.ends_in_bf16`), the first product is near
enough.

Runs after `expand_math`, on f32.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from ..dialects.math_expansions.num import Num, constants_at_start_of, fma, select
from ..dialects.mlir import ir, vector
from .expand_math import ends_in_bf16

PASS_NAME = "mlirc-multiply-by-reciprocals"

SMALL, SCALE = 2.0**-64, 2.0**64
"""Smaller divisors are scaled: reciprocals of those below 2**-128 are infinite. What overflows when it is scaled has an infinite quotient."""


def multiply_by_reciprocals(module: ir.Module) -> None:
    """Rewrite such divisions of every function."""
    with module.context:
        for function in module.body.operations:
            found: list[ir.Operation] = []

            def collect(op: ir.Operation) -> ir.WalkResult:
                if op.name == "arith.divf" and _is_long(op.results[0]):
                    found.append(op)  # noqa: B023 - called at once
                return ir.WalkResult.ADVANCE

            function.operation.walk(collect)
            if found:
                with constants_at_start_of(function.regions[0].blocks[0]):
                    divisors: dict[ir.Value, _Divisor] = {}
                    for op in found:
                        _rewrite(op, divisors)


def _is_long(value: ir.Value) -> bool:
    """Whether it is a vector of eight f32 or more: four are divided in four cycles, and wait for nothing else."""
    kind = value.type
    return isinstance(kind, ir.VectorType) and isinstance(kind.element_type, ir.F32Type) and math.prod(kind.shape) >= 8


@dataclass(frozen=True)
class _Divisor:
    """One number for all lanes."""

    value: Num
    """Times `scale`."""
    factor: Num
    """Its reciprocal."""
    scale: Num | None = None


def _rewrite(op: ir.Operation, divisors: dict[ir.Value, _Divisor]) -> None:
    x, c = op.operands
    if c not in divisors:
        with op.location:
            found = _divisor(c)
        if found is None:
            return
        divisors[c] = found
    by = divisors[c]
    with ir.InsertionPoint(op), op.location:
        n = Num(x) if by.scale is None else Num(x) * by.scale
        quotient = n * by.factor
        if not ends_in_bf16(op):
            left = fma(-quotient, by.value, n)
            corrected = fma(left, by.factor, quotient)
            quotient = select(corrected.compare("ONE", 0.0), corrected, quotient)
        op.results[0].replace_all_uses_with(quotient.value)
    op.erase()


def _divisor(c: ir.Value) -> _Divisor | None:
    """None where the lanes may differ, and for a constant power of two, by which LLVM multiplies."""
    if isinstance(c.owner, ir.Block):
        return None
    op = c.owner.operation
    if op.name == "arith.constant":
        attribute = ir.DenseElementsAttr(op.attributes["value"])
        return _of_constant(c, float(ir.FloatAttr(attribute.get_splat_value()).value)) if attribute.is_splat else None
    if op.name != "vector.broadcast" or isinstance(op.operands[0].type, ir.VectorType):
        return None
    with ir.InsertionPoint.after(op), op.location:
        scalar = Num(op.operands[0])
        scale = select(abs(scalar) < SMALL, scalar.like(SCALE), scalar.like(1.0))
        divisor = scalar * scale
        spread = [Num(vector.broadcast(c.type, n.value)) for n in (divisor, scalar.like(1.0) / divisor, scale)]
    return _Divisor(*spread)


def _of_constant(c: ir.Value, number: float) -> _Divisor | None:
    if not SMALL <= abs(number) <= 1 / SMALL or abs(math.frexp(number)[0]) == 0.5:
        return None
    nearest = struct.unpack("f", struct.pack("f", 1 / number))[0]
    return _Divisor(Num(c), Num(c).like(nearest))
