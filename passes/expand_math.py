"""Replaces ops of the math dialect by arithmetic, so that a vector of them is straight vector code, not library calls.

f32 everywhere, and the common functions of f64, become a polynomial and a few bit operations (`dialects.math_expansions`).
The rarer functions of f64 become calls of the C library, lane by lane. What LLVM has an instruction for (sqrt, fma, absf,
floor, ceil, trunc, roundeven, copysign, ctpop, ...) stays.

Largest errors in ulp, over all inputs including subnormals, infinities and NaN, are asserted in
tests/passes/test_expand_math.py: at most 2 for f32 (1.5 for exp, 1.8 for tanh and erf), somewhat more for sinh, tan and
asin.

Runs after vectorization (f16 and bf16 are f32 by then) and before `convert-scf-to-cf`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..dialects.math_expansions import (
    error_function,
    exponential,
    hyperbolic,
    integer_power,
    inverse_trigonometric,
    libm,
    logarithm,
    power,
    rounding,
    trigonometric,
)
from ..dialects.math_expansions.num import F32, Num, constants_at_start_of
from ..dialects.mlir import ir

PASS_NAME = "mlirc-expand-math"

Expansion = Callable[..., Num | tuple[Num, ...]]


def _f32_or_libm(function: Expansion, symbol: str) -> Expansion:
    """`function` for f32, a call of C's `symbol` for f64."""
    return lambda x, *rest: function(x, *rest) if x.format is F32 else libm.call(symbol, x, *rest)


def _sincos(x: Num) -> tuple[Num, ...]:
    return trigonometric.sincos(x) if x.format is F32 else (libm.call("sin", x), libm.call("cos", x))


def _fpowi(x: Num, n: Num) -> Num:
    return power.fpowi(x, n) if x.format is F32 else libm.call("pow", x, n.to_f64())


EXPANSIONS: dict[str, Expansion] = {
    "math.acos": _f32_or_libm(inverse_trigonometric.acos, "acos"),
    "math.acosh": hyperbolic.acosh,
    "math.asin": _f32_or_libm(inverse_trigonometric.asin, "asin"),
    "math.asinh": hyperbolic.asinh,
    "math.atan": _f32_or_libm(inverse_trigonometric.atan, "atan"),
    "math.atan2": _f32_or_libm(inverse_trigonometric.atan2, "atan2"),
    "math.atanh": hyperbolic.atanh,
    "math.cbrt": _f32_or_libm(power.cbrt, "cbrt"),
    "math.clampf": rounding.clampf,
    "math.cos": _f32_or_libm(trigonometric.cos, "cos"),
    "math.cosh": hyperbolic.cosh,
    "math.erf": _f32_or_libm(error_function.erf, "erf"),
    "math.erfc": _f32_or_libm(error_function.erfc, "erfc"),
    "math.exp": exponential.exp,
    "math.exp2": exponential.exp2,
    "math.expm1": exponential.expm1,
    "math.fpowi": _fpowi,
    "math.ipowi": integer_power.ipowi,
    "math.log": logarithm.log,
    "math.log10": logarithm.log10,
    "math.log1p": logarithm.log1p,
    "math.log2": logarithm.log2,
    "math.powf": _f32_or_libm(power.powf, "pow"),
    "math.round": rounding.round_half_away,
    "math.rsqrt": power.rsqrt,
    "math.sin": _f32_or_libm(trigonometric.sin, "sin"),
    "math.sincos": _sincos,
    "math.sinh": hyperbolic.sinh,
    "math.tan": _f32_or_libm(trigonometric.tan, "tan"),
    "math.tanh": hyperbolic.tanh,
}
"""What each op becomes: a function of its operands that builds at the insertion point."""


def expand_math(module: ir.Module) -> None:
    """Expand every op named in `EXPANSIONS` that is inside a function. Raises TypeError for f16, bf16 and the like."""
    found: list[ir.Operation] = []

    def collect(op: ir.Operation) -> ir.WalkResult:
        if op.name in EXPANSIONS:
            found.append(op)
        return ir.WalkResult.ADVANCE

    with module.context:
        for function in module.body.operations:
            found.clear()
            function.operation.walk(collect)
            if found:
                with constants_at_start_of(function.regions[0].blocks[0]):
                    for op in found:
                        _expand(op)


def _expand(op: ir.Operation) -> None:
    with ir.InsertionPoint(op), op.location:
        results = EXPANSIONS[op.name](*(Num(operand) for operand in op.operands))
    for old, new in zip(op.results, results if isinstance(results, tuple) else (results,), strict=True):
        old.replace_all_uses_with(new.value)
    op.erase()
