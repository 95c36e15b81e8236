"""Roundings to bf16, in 32 bits.

    %b = truncf %x : f32 to bf16                %r = bitcast((bits(%x) + 0x7fff + odd) & 0xffff0000) : f32
    %y = extf %b : bf16 to f32          ->      ... %r for %y
    store %b                                    store the upper half of %r

Between the ops of a fused group there is a rounding, as eager mode has it; narrowing to 16 bits and widening again took twice
the instructions of the rounding itself. What is exact already (the larger of two widened bf16, its negative) is not rounded
at all. The CPU's own instruction, vcvtneps2bf16, flushes denormals, so it is integers that are added; where the CPU adds products
of 16-bit numbers to 32 bits (VNNI), one instruction adds both 0x7fff and the last bit that stays:

    vpternlogd  t = x & 0x10000 | 0x7fff
    vpdpwssd    x = x + t.low * 1 + t.high * 1

Sums of AMX tiles, which has flushed them, are narrowed by vcvtne2ps2bf16 after all, and so are, one register at a time, exponentials of a
softmax, which are next to nothing where they are denormal (vcvtneps2bf16). NaNs with bits in their lower half, which the addition would carry
upwards, are looked for at each rounding; where all of them come from what is loaded outside of the loops that round (a norm's parameters),
they are made ordinary there.

Runs after `expand_math`, which looks at roundings.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..dialects import builders
from ..dialects.math_expansions.num import Num, constants_at_start_of, element_type, select, with_element
from ..dialects.mlir import arith, ir, llvm, vector
from .nan_payloads import payload_sources
from .tabulate import EXACT

if TYPE_CHECKING:
    from ..lowering.target import Target

PASS_NAME = "mlirc-round-in-place"

_KEEP_EXACT = {
    "arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf", "arith.negf", "arith.select", "math.absf", "math.copysign",
    "vector.broadcast",
}  # fmt: skip

NAN = 0x7FC00000
FLUSHED = "mlirc.flushed"
"""On a load of f32 in order, or on other f32: there are no denormals, which the CPU's instruction would make zero, or they may be zero."""
NARROWED = "mlirc.narrowed"
"""On that instruction, of what was loaded: its results are in order."""


def round_in_place(module: ir.Module, target: Target) -> None:
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
                    payloads = _may_have_payloads(function.operation, found)
                    rounding = _Rounding(payloads, target.lanes(32) if target.has_vnni else None)
                    for op in found:
                        with ir.InsertionPoint(op), op.location:
                            if not (target.has_avx512_bf16 and _narrow(op, dead)):
                                _rewrite(op, exact, dead, rounding)
                # Not sooner: a new value may get the address of an erased one, and with it what is known about that.
                for op in dead:
                    op.erase()


def _may_have_payloads(function: ir.Operation, roundings: list[ir.Operation]) -> bool:
    """Whether NaNs with payloads have to be looked for by the roundings of a function: not where their sources, outside of the loops of
    these, need be looked at less often."""
    sources = payload_sources(function)
    own = {ir.InsertionPoint(op).block for op in roundings}
    around = {ir.InsertionPoint(parent).block for op in roundings for parent in _parents(op)} - own

    def seldom(op: ir.Operation) -> bool:
        return op.name in _LOADS and ir.InsertionPoint(op).block in around and _element(op.results[0], ir.F32Type)

    if sources is None or not all(map(seldom, sources)):
        return True
    for op in sources:
        uses = list(op.results[0].uses)
        with ir.InsertionPoint.after(op), op.location:
            x = Num(op.results[0])
            ordinary = select(x.compare("UNO", x), x.like(math.nan), x).value
        for use in uses:
            use.owner.operands[use.operand_number] = ordinary
    return False


def _parents(op: ir.Operation) -> Iterator[ir.Operation]:
    while op.parent is not None and op.parent.name != "func.func":
        op = op.parent.operation
        yield op


_LOADS = ("memref.load", "vector.load", "vector.maskedload")


def _narrow(op: ir.Operation, dead: list[ir.Operation]) -> bool:
    """Round numbers without denormals, or of which nobody wants any, by the CPU's own instruction; whether they are such."""
    x, kind = op.operands[0], op.results[0].type
    source = x.owner
    if isinstance(source, ir.Block) or FLUSHED not in source.operation.attributes or not isinstance(kind, ir.VectorType):
        return False
    loaded, lanes = source.operation.name in _LOADS, kind.shape[0]
    if lanes == HALF:
        narrow = llvm.call_intrinsic(kind, "llvm.x86.avx512bf16.cvtneps2bf16.512", [x], [], [])
    elif loaded and lanes == 2 * HALF:
        narrow = llvm.call_intrinsic(kind, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", _halves(source.operation)[::-1], [], [])
    else:
        return False
    if loaded:
        narrow.owner.attributes[NARROWED] = ir.UnitAttr.get()
    op.results[0].replace_all_uses_with(narrow)
    dead.append(op)
    return True


def _halves(load: ir.Operation) -> list[ir.Value]:
    """The same memory in two registers."""
    buffer, at = load.operands
    kind = ir.VectorType.get([HALF], ir.F32Type.get())
    return [vector.load(kind, buffer, [where]) for where in (at, arith.addi(at, builders.index(HALF)))]


HALF = 16
"""Lanes of f32 in a register of 512 bits: half as many as of bf16."""


def _element(value: ir.Value, kind: type) -> bool:
    return isinstance(element_type(value.type), kind)


def _rewrite(op: ir.Operation, exact: dict[ir.Value, bool], dead: list[ir.Operation], rounding: _Rounding) -> None:
    x, narrow = op.operands[0], op.results[0]
    widened = [w for use in narrow.uses if (w := use.owner.operation).name == "arith.extf" and _element(w.results[0], ir.F32Type)]
    others = [use.owner.operation for use in narrow.uses if use.owner.operation not in widened]
    if not _is_exact(x, exact):
        x = rounding.nearest(Num(x), masked=bool(widened)).value
        exact[x] = bool(widened)
    for w in widened:
        w.results[0].replace_all_uses_with(x)
        dead.append(w)
    if others:
        half = _upper_half(x)
        for user in others:
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
    if EXACT in op.attributes:
        return True
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


class _Rounding:
    """To the nearest bf16, ties to even. `payloads`: whether NaNs may have bits in their lower half; `dot`: lanes of an instruction
    that adds products of 16-bit numbers, if there is one."""

    def __init__(self, payloads: bool, dot: int | None) -> None:
        self.payloads = payloads
        self.dot = dot

    def nearest(self, x: Num, masked: bool) -> Num:
        """The nearest bf16 as an f32; not `masked`, only its upper half. NaN stays NaN, and loses its payload if it may have one."""
        bits = x.bits()
        nearest = self._with_products(bits)
        if nearest is None:
            odd = bits.shift_right_unsigned(16) & 1
            nearest = bits + 0x7FFF + odd
        if masked:
            nearest = nearest & 0xFFFF0000
        if self.payloads:
            nearest = select(x.compare("UNO", x), bits.like(NAN), nearest)
        return nearest.as_float()

    def _with_products(self, bits: Num) -> Num | None:
        """The sum by `vpdpwssd`; None where there is no such instruction for vectors of this size."""
        kind, n = bits.type, self.dot
        if n is None or not isinstance(kind, ir.VectorType) or kind.rank != 1 or kind.shape[0] % n:
            return None
        last = (bits & 0x10000) | 0x7FFF
        i16 = ir.VectorType.get([2 * n], ir.IntegerType.get_signless(16))
        ones = builders.constant(i16, 1)
        parts = []
        for at in range(0, kind.shape[0], n):
            x, t = (_part(v.value, at, n) for v in (bits, last))
            parts.append(
                llvm.call_intrinsic(x.type, f"llvm.x86.avx512.vpdpwssd.{32 * n}", [x, vector.bitcast(i16, t), ones], [], [])
            )
        return Num(_joined(parts))


def _part(x: ir.Value, at: int, n: int) -> ir.Value:
    """`n` lanes of a vector."""
    if x.type.shape[0] == n:
        return x
    kind = ir.VectorType.get([n], x.type.element_type)
    return vector.extract_strided_slice(kind, x, [at], [n], [1])


def _joined(parts: list[ir.Value]) -> ir.Value:
    """Vectors one behind the other."""
    while len(parts) > 1:
        lanes = 2 * parts[0].type.shape[0]
        parts = [vector.shuffle(a, b, list(range(lanes))) for a, b in zip(parts[::2], parts[1::2])]
    return parts[0]


def _upper_half(x: ir.Value) -> ir.Value:
    bits = Num(x).bits().shift_right_unsigned(16).value
    half = arith.TruncIOp(with_element(bits.type, ir.IntegerType.get_signless(16)), bits).result
    return arith.BitcastOp(with_element(bits.type, ir.BF16Type.get()), half).result
