"""A value that is rounded to bf16 and widened again stays in its 32 bits.

    %b = truncf %x : f32 to bf16                %r = bitcast((bits(%x) + 0x7fff + odd) & 0xffff0000) : f32
    %y = extf %b : bf16 to f32          ->      ... %r for %y
    store %b                                    store the upper half of %r

Between the ops of a fused group there is a rounding, as eager mode has it; narrowing to 16 bits and widening again took twice
the instructions of the rounding itself. What is exact already (the larger of two widened bf16, its negative) is not rounded
at all. Runs after `expand_math`, which looks at roundings.
"""

from __future__ import annotations

import struct

from ..dialects.math_expansions.num import Num, constants_at_start_of, element_type, select, with_element
from ..dialects.mlir import arith, ir

PASS_NAME = "mlirc-round-in-place"

_KEEP_EXACT = {
    "arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf", "arith.negf", "arith.select", "math.absf", "math.copysign",
    "vector.broadcast",
}  # fmt: skip

NAN = 0x7FC00000


def round_in_place(module: ir.Module) -> None:
    """Rewrite the roundings of every function, in program order."""
    with module.context:
        for function in module.body.operations:
            found: list[ir.Operation] = []

            def collect(op: ir.Operation) -> ir.WalkResult:
                if op.name == "arith.truncf" and _element(op.operands[0], ir.F32Type) and _element(op.results[0], ir.BF16Type):
                    found.append(op)  # noqa: B023 - called at once
                return ir.WalkResult.ADVANCE

            function.operation.walk(collect)
            if found:
                exact: dict[ir.Value, bool] = {}
                dead: list[ir.Operation] = []
                with constants_at_start_of(function.regions[0].blocks[0]):
                    for op in found:
                        with ir.InsertionPoint(op), op.location:
                            _rewrite(op, exact, dead)
                # Not sooner: a new value may get the address of an erased one, and with it what is known about that.
                for op in dead:
                    op.erase()


def _element(value: ir.Value, kind: type) -> bool:
    return isinstance(element_type(value.type), kind)


def _rewrite(op: ir.Operation, exact: dict[ir.Value, bool], dead: list[ir.Operation]) -> None:
    x, narrow = op.operands[0], op.results[0]
    widened = [w for use in narrow.uses if (w := use.owner.operation).name == "arith.extf" and _element(w.results[0], ir.F32Type)]
    if not _is_exact(x, exact):
        if not widened:
            return
        x = _rounded(Num(x)).value
        exact[x] = True
    for w in widened:
        w.results[0].replace_all_uses_with(x)
        dead.append(w)
    others = [use.owner.operation for use in narrow.uses]
    if any(user not in widened for user in others):
        half = _upper_half(x)
        for user in others:
            if user not in widened:
                for i, v in enumerate(user.operands):
                    if v == narrow:
                        user.operands[i] = half
    dead.append(op)


def _is_exact(value: ir.Value, known: dict[ir.Value, bool]) -> bool:
    """Whether an f32 is a bf16."""
    if value not in known:
        known[value] = _look(value, known)
    return known[value]


def _look(value: ir.Value, known: dict[ir.Value, bool]) -> bool:
    if isinstance(value.owner, ir.Block):
        return False
    op = value.owner.operation
    if op.name == "arith.extf":
        return _element(op.operands[0], ir.BF16Type)
    if op.name == "arith.constant":
        attribute = op.attributes["value"]
        if isinstance(attribute, ir.DenseElementsAttr):
            return attribute.is_splat and _is_bf16(ir.FloatAttr(attribute.get_splat_value()).value)
        return _is_bf16(ir.FloatAttr(attribute).value)
    if op.name in _KEEP_EXACT:
        return all(_is_exact(v, known) for v in op.operands if _element(v, ir.F32Type))
    return False


def _is_bf16(number: float) -> bool:
    """NaN is not: its payload may be in the lower half."""
    return number == number and struct.unpack("<I", struct.pack("<f", number))[0] & 0xFFFF == 0


def _rounded(x: Num) -> Num:
    """The nearest bf16, ties to even, as an f32; any NaN becomes the quiet one."""
    bits = x.bits()
    odd = bits.shift_right_unsigned(16) & 1
    nearest = (bits + 0x7FFF + odd) & 0xFFFF0000
    return select(x.compare("UNO", x), bits.like(NAN), nearest).as_float()


def _upper_half(x: ir.Value) -> ir.Value:
    bits = Num(x).bits().shift_right_unsigned(16).value
    half = arith.TruncIOp(with_element(bits.type, ir.IntegerType.get_signless(16)), bits).result
    return arith.BitcastOp(with_element(bits.type, ir.BF16Type.get()), half).result
