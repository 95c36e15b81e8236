"""Sums of bf16 along the lanes are made of pairs of them, which are not widened (`vdpbf16ps`).

    %x = arith.extf %b : vector<32xbf16>                 %even = %acc[0:16] + %b[0 2 4 ...] * 1 + %b[1 3 5 ...] * 1
    %s = arith.addf %x, %acc {mlirc.total}       ->      %s = [%even, %acc[16:32]]

    %s = math.fma %x, %y, %acc {mlirc.total}     ->      the same with two bf16 instead of one and ones

Of the marked sums only the total of all lanes is read, so that it does not matter which lane has what. The sum of a row of 32 bf16 is one
instruction instead of four. It takes denormals as zero, so that it is for statistics only, which something larger is computed with: sums that
a later walk over the same row reads (`vectorize.loops`).

Runs before `round_in_place` and `even_odd`, for CPUs on which that instruction takes no longer than two products and sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dialects import builders
from ..dialects.math_expansions.num import constants_at_start_of
from ..dialects.mlir import ir, vector, x86
from .even_odd import ANY_ORDER

if TYPE_CHECKING:
    from ..lowering.target import Target

PASS_NAME = "mlirc-sum-pairs"

TOTAL = "mlirc.total"
"""On a sum of f32: only the total of its lanes is read, by what minds no denormals."""


def sum_pairs(module: ir.Module, target: Target) -> None:
    """Rewrite the marked sums of every function whose terms are whole registers of bf16."""
    if not target.multiplies_pairs_fast:
        return
    with module.context:
        for function in module.body.operations:
            found: list[ir.Operation] = []

            def collect(op: ir.Operation) -> ir.WalkResult:
                if TOTAL in op.attributes:
                    found.append(op)  # noqa: B023 - called at once
                return ir.WalkResult.ADVANCE

            function.operation.walk(collect)
            if found:
                with constants_at_start_of(function.regions[0].blocks[0]):
                    for op in found:
                        _rewrite(op, target.lanes(16))


def _rewrite(op: ir.Operation, lanes: int) -> None:
    terms = _terms(op, lanes)
    if terms is None:
        return
    (*factors, acc), half = terms, lanes // 2
    wide = [v.owner.operation for v in {*op.operands} - {acc}]
    with ir.InsertionPoint(op), op.location:
        kind = ir.VectorType.get([half], acc.type.element_type)
        low, high = (vector.extract_strided_slice(kind, acc, [at], [half], [1]) for at in (0, half))
        if len(factors) == 1:
            factors.append(builders.constant(factors[0].type, 1.0))
        pairs = x86.avx512_dot(low, *factors)
        both = vector.shuffle(pairs, high, list(range(lanes)))
    for v in (low, high, pairs, both):
        v.owner.operation.attributes[ANY_ORDER] = ir.UnitAttr.get()
    op.results[0].replace_all_uses_with(both)
    op.erase()
    for extension in wide:
        if not any(True for _ in extension.results[0].uses):
            extension.erase()


def _terms(op: ir.Operation, lanes: int) -> list[ir.Value] | None:
    """One or two vectors of bf16, and the sum that they, or their products, are added to; None where there are others."""
    if op.name == "arith.addf":
        factors, acc = [op.operands[0]], op.operands[1]
        if _narrow(factors[0], lanes) is None:
            factors, acc = [acc], factors[0]
    elif op.name == "math.fma":
        *factors, acc = op.operands
    else:
        return None
    narrow = [n for v in factors if (n := _narrow(v, lanes)) is not None]
    return [*narrow, acc] if len(narrow) == len(factors) else None


def _narrow(value: ir.Value, lanes: int) -> ir.Value | None:
    """The vector of bf16 that a value is widened from."""
    kind = value.type
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "arith.extf":
        return None
    narrow = value.owner.operation.operands[0]
    whole = isinstance(kind, ir.VectorType) and kind.shape == [lanes] and isinstance(kind.element_type, ir.F32Type)
    return narrow if whole and isinstance(narrow.type.element_type, ir.BF16Type) else None
