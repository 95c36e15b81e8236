"""Replaces ops of the math dialect, remainders, and functions of our own, by arithmetic, so that a vector of them is straight vector code, not library calls.

All functions of f32 and the common ones of f64 become a polynomial and a few bit operations
(`dialects.math_expansions`). The rarer ones of f64 become calls of the C library, lane by lane. What LLVM has an instruction for (sqrt, fma, absf,
floor, ceil, trunc, roundeven, copysign, ctpop, ...) stays.

The largest errors are in tests/numerics/accuracy.md, subnormals, infinities, signed zeros and NaN included: at most 2 ulp
for f32, and for all but a few of f64. Where an f32 only lives to be rounded to bf16, a coarser polynomial does: 99.9% of
all results are the nearest bf16, none is more than one ulp away.

Runs after vectorization and before `convert-scf-to-cf`: sin, cos, tan, remainders and integer powers build `scf` ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..dialects.math_expansions import (
    activations,
    coarse,
    error_function,
    exponential,
    hyperbolic,
    integer_power,
    inverse_trigonometric,
    libm,
    logarithm,
    piecewise,
    power,
    quartered,
    remainder,
    rounding,
    scaled,
    trigonometric,
)
from ..dialects.math_expansions.num import F32, Num, constants_at_start_of, element_type, with_element
from ..dialects.mlir import arith, ir, vector
from .even_odd import ANY_ORDER
from .round_in_place import FLUSHED

if TYPE_CHECKING:
    from ..lowering.target import Target

PASS_NAME = "mlirc-expand-math"

Expansion = Callable[..., Num | tuple[Num, ...]]


def _f32_or_libm(function: Expansion, symbol: str) -> Expansion:
    """`function` for f32, a call of C's `symbol` for f64."""
    return lambda x, *rest: function(x, *rest) if x.format is F32 else libm.call(symbol, x, *rest)


def _fpowi(x: Num, n: Num) -> Num:
    return power.fpowi(x, n) if x.format is F32 else libm.call("pow", x, n.to_f64())


EXPANSIONS: dict[str, Expansion] = {
    "arith.remf": remainder.fmod,
    "math.acos": _f32_or_libm(inverse_trigonometric.acos, "acos"),
    "math.acosh": hyperbolic.acosh,
    "math.asin": _f32_or_libm(inverse_trigonometric.asin, "asin"),
    "math.asinh": hyperbolic.asinh,
    "math.atan": _f32_or_libm(inverse_trigonometric.atan, "atan"),
    "math.atan2": _f32_or_libm(inverse_trigonometric.atan2, "atan2"),
    "math.atanh": hyperbolic.atanh,
    "math.cbrt": _f32_or_libm(power.cbrt, "cbrt"),
    "math.clampf": rounding.clampf,
    "math.cos": trigonometric.cos,
    "math.cosh": hyperbolic.cosh,
    "math.erf": error_function.erf,
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
    "math.sin": trigonometric.sin,
    "math.sincos": trigonometric.sincos,
    "math.sinh": hyperbolic.sinh,
    "math.tan": trigonometric.tan,
    "math.tanh": hyperbolic.tanh,
    "mlirc.atan2": _f32_or_libm(inverse_trigonometric.atan2, "atan2"),
    "mlirc.coarse_softmax_exp": coarse.exp,
    "mlirc.gelu": activations.gelu,
    "mlirc.gelu_tanh": activations.gelu_tanh,
    "mlirc.mish": activations.mish,
    "mlirc.sigmoid": activations.sigmoid,
    "mlirc.silu": activations.silu,
    "mlirc.softmax_exp": exponential.exp_to_one,
}
"""What each op becomes: a function of its operands that builds at the insertion point."""


COARSE: dict[str, Expansion] = {
    "mlirc.gelu": coarse.gelu,
    "mlirc.gelu_tanh": coarse.gelu_tanh,
    "mlirc.sigmoid": coarse.sigmoid,
    "mlirc.silu": coarse.silu,
}
"""The same for f32 of which only a rounded bf16 remains."""

PIECEWISE: dict[str, Expansion] = {"math.tanh": piecewise.tanh, "mlirc.gelu": piecewise.gelu}
"""The same for vectors of f32 that fill a register of AVX-512."""

QUARTERED: dict[str, Expansion] = {"mlirc.gelu": quartered.gelu}
"""The same for those that fill one of AVX2."""

SCALED: dict[str, Expansion] = {"math.exp": scaled.exp, "mlirc.softmax_exp": scaled.exp_to_one, "mlirc.coarse_softmax_exp": scaled.coarse_exp_to_one}
"""The same for those that fill one or two of AVX-512."""

NEXT_TO_NOTHING = {"mlirc.coarse_softmax_exp"}
"""Ops whose results may be zero where they are denormal."""

_KEEPS_RELATIVE_ERROR = {"arith.mulf", "arith.divf", "arith.select", "arith.negf", "math.absf"}


def expand_math(module: ir.Module, target: Target | None = None) -> None:
    """Expand every op named in `EXPANSIONS` that is inside a function. f16 and bf16 are computed in f32.

    Without a target, by instructions that all targets have.
    """
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
                        _expand(op, target)


def _expand(op: ir.Operation, target: Target | None) -> None:
    avx2, avx512 = target is not None, target is not None and target.has_avx512  # there is no target without AVX2
    with ir.InsertionPoint(op), op.location:
        table = EXPANSIONS
        if op.name in COARSE and ends_in_bf16(op):
            table = COARSE
        elif avx512 and op.name in PIECEWISE and scaled.fits(op.operands[0].type):
            table = PIECEWISE
        elif avx2 and op.name in QUARTERED and scaled.fits(op.operands[0].type, lanes=quartered.LANES):
            table = QUARTERED
        elif avx512 and op.name in SCALED and scaled.fits(op.operands[0].type, registers=2):
            table = {op.name: _by_registers(SCALED[op.name])}
        expanded = table[op.name](*(_at_least_f32(operand) for operand in op.operands))
        results = expanded if isinstance(expanded, tuple) else (expanded,)
        if op.name in NEXT_TO_NOTHING:
            results[0].value.owner.attributes[FLUSHED] = ir.UnitAttr.get()
        for old, new in zip(op.results, results, strict=True):
            narrow = old.type != new.type
            old.replace_all_uses_with(arith.TruncFOp(old.type, new.value).result if narrow else new.value)
    op.erase()


def _by_registers(function: Expansion) -> Expansion:
    """The same for vectors of one or two registers, whose lanes may be in any order (see `even_odd`)."""

    def halves(x: Num) -> Num:
        if scaled.fits(x.type):
            return function(x)  # type: ignore[return-value]
        kind, lanes = ir.VectorType.get([scaled.LANES], x.type.element_type), 2 * scaled.LANES
        parts = [vector.extract_strided_slice(kind, x.value, [at], [scaled.LANES], [1]) for at in range(0, lanes, scaled.LANES)]
        joined = vector.shuffle(*(function(Num(part)).value for part in parts), list(range(lanes)))  # type: ignore[union-attr]
        for made in (*parts, joined):
            made.owner.attributes[ANY_ORDER] = ir.UnitAttr.get()
        return Num(joined)

    return halves


def ends_in_bf16(op: ir.Operation) -> bool:
    """Whether the result is f32 and every use of it becomes a bf16, after products and quotients at most."""
    if not isinstance(element_type(op.results[0].type), ir.F32Type):
        return False
    users = [use.owner.operation for use in op.results[0].uses]
    for user in users:
        if user.name == "arith.truncf":
            if not isinstance(element_type(user.results[0].type), ir.BF16Type):
                return False
        elif user.name not in _KEEPS_RELATIVE_ERROR or not ends_in_bf16(user):
            return False
    return bool(users)


def _at_least_f32(value: ir.Value) -> Num:
    if isinstance(element_type(value.type), (ir.F16Type, ir.BF16Type)):
        return Num(arith.ExtFOp(with_element(value.type, ir.F32Type.get()), value).result)
    return Num(value)
