"""Gathers of elements that lie near one another become two loads and a permutation, where that is so when they run.

    %g = vector.gather %m[%b] [%i] {mlirc.near}       ->      %ok = all lanes of %i from %low to %low + 2n - 1
                                                              %g = scf.if %ok {
                                                                %x = maskedload %m[%b + %low];  %y = maskedload %m[%b + %low + n]
                                                                vpermi2 %x, %i - %low, %y
                                                              } else { vector.gather %m[%b] [%i] }

Indices that a kernel computes, or that a resampling reads from its table, mostly climb slowly: those of rolls, of images that become larger or
a little smaller. A gather reads lane by lane, of 16-bit elements even by scalar instructions. [1, 64, 128, 128] twice as large takes 2.0 ms
by gathers in f32 and 1.4 so, bilinear 11.8 and 4.9; where indices are random, the look at them costs a tenth (Zen 4).
Nothing is read before the first element that a lane wants, nor behind the last.

Marked are gathers whose indices are no multiples of the lane's number. Runs after `even_odd`, which knows gathers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dialects import builders
from ..dialects.mlir import arith, ir, llvm, scf, vector
from . import structure as st

if TYPE_CHECKING:
    from ..lowering.target import Target

PASS_NAME = "mlirc-near-gathers"

NEAR = "mlirc.near"
"""On a gather: its indices may lie near one another."""

FAR = 1 << 62
"""Of lanes that are masked, when the nearest and the farthest index are looked for: more than any distance in memory."""


def near_gathers(module: ir.Module, target: Target) -> None:
    """Rewrite the marked gathers for which the CPU has a permutation."""
    found: list[ir.Operation] = []

    def collect(op: ir.Operation) -> ir.WalkResult:
        if op.name == "vector.gather" and NEAR in op.attributes:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    for op in found:
        del op.attributes[NEAR]
        if _permutes(target, op.results[0].type):
            with ir.InsertionPoint(op), op.location:
                _rewrite(op, target)


def _permutes(target: Target, kind: ir.VectorType) -> bool:
    bits, size = _bits(kind), _bits(kind) * kind.shape[0]
    if not target.has_avx512:
        return target.has_avx2 and (bits, size) == (32, 256)
    return size in (128, 256, 512) and (bits in (16, 32, 64) or bits == 8 and target.has("avx512vbmi"))


def _bits(kind: ir.VectorType) -> int:
    return int(kind.element_type.width)


def _rewrite(op: ir.Operation, target: Target) -> None:
    memory, begin, indices, mask, otherwise = op.operands
    kind = ir.VectorType(op.results[0].type)
    n, index = kind.shape[0], ir.IndexType.get()
    all_lanes = ir.VectorType.get([n], ir.IntegerType.get_signless(1))
    masked = not _everywhere(mask)
    if masked:
        wide = ir.VectorType.get([n], ir.IntegerType.get_signless(64))
        numbers = arith.index_cast(wide, indices)

        def extreme(kind: vector.CombiningKind, far: int) -> ir.Value:
            there = arith.select(mask, numbers, builders.constant(wide, far))
            return arith.index_cast(index, vector.reduction(wide.element_type, kind, there))

        low, high = extreme(vector.CombiningKind.MINSI, FAR), extreme(vector.CombiningKind.MAXSI, -FAR)
    else:
        first, last = (vector.extract(indices, [], [lane]) for lane in (0, n - 1))
        low, high = arith.minsi(first, last), arith.maxsi(first, last)
    span = arith.subi(high, low)
    from_low = arith.subi(indices, vector.broadcast(indices.type, low))
    near = arith.cmpi(arith.CmpIPredicate.ult, span, builders.index(2 * n))
    if not masked:
        between = arith.cmpi(arith.CmpIPredicate.ule, from_low, vector.broadcast(indices.type, span))
        near = arith.andi(near, vector.reduction(all_lanes.element_type, vector.CombiningKind.AND, between))
    branch = scf.IfOp(near, [kind], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        halves = []
        for half in range(2):
            at = arith.addi(arith.addi(begin, low), builders.index(half * n))
            there = vector.create_mask(all_lanes, [arith.subi(span, builders.index(half * n - 1))])
            halves.append(vector.maskedload(kind, memory, [at], there, builders.constant(kind, 0)))
        got = _permuted(halves, from_low, target)
        scf.YieldOp([arith.select(mask, got, otherwise) if masked else got])
    with ir.InsertionPoint(branch.else_block):
        scf.YieldOp([st.operation(op.clone(ip=ir.InsertionPoint(branch.else_block))).results[0]])
    op.results[0].replace_all_uses_with(branch.results[0])
    op.erase()


def _everywhere(mask: ir.Value) -> bool:
    op = st.owner(mask)
    if op is None or op.name != "arith.constant":
        return False
    value = ir.DenseElementsAttr(op.attributes["value"])
    return value.is_splat and bool(ir.BoolAttr(value.get_splat_value()).value)


def _permuted(halves: list[ir.Value], lanes: ir.Value, target: Target) -> ir.Value:
    """Of the elements of two vectors, one after the other, those at the places `lanes` [n] of index."""
    kind = ir.VectorType(halves[0].type)
    n, bits = kind.shape[0], _bits(kind)
    integers = ir.VectorType.get([n], ir.IntegerType.get_signless(bits))
    a, b = (x if x.type == integers else vector.bitcast(integers, x) for x in halves)
    places = arith.index_cast(integers, lanes)
    if target.has_avx512:
        name = f"llvm.x86.avx512.vpermi2var.{ {8: 'qi', 16: 'hi', 32: 'd', 64: 'q'}[bits] }.{n * bits}"
        got = llvm.call_intrinsic(integers, name, [a, places, b], [], [])
    else:
        of_a, of_b = (llvm.call_intrinsic(integers, "llvm.x86.avx2.permd", [x, places], [], []) for x in (a, b))
        behind = arith.cmpi(arith.CmpIPredicate.uge, places, builders.constant(integers, n))
        got = arith.select(behind, of_b, of_a)
    return got if kind == integers else vector.bitcast(kind, got)
