"""The mean of a row of bf16 is made of sums of pairs, which are not widened (`vdpbf16ps`).

    %x = arith.extf %b : vector<32xbf16>                 %low = %acc[0:16] + %b[0 2 4 ...] * 1 + %b[1 3 5 ...] * 1
    %s = arith.addf %x, %acc {mlirc.total}       ->      %s = [%low, %acc[16:32]]

Of the marked sums only the total of all lanes is read, so that it does not matter which lane has what. The sum of a row of 32 bf16 is one
instruction instead of four: a layer norm of 128 x 768 takes 13.4 instead of 14.5 us (Zen 4). It takes denormals as zero, and so only sums are
marked that become the mean of a norm (`is_mean_of_norm`): with an epsilon of 1e-12, a norm of denormals is off by about 1e-32.

Runs before `round_in_place` and `even_odd`, for CPUs on which that instruction takes no longer than a product of f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..dialects import builders
from ..dialects.math_expansions.num import constants_at_start_of
from ..dialects.mlir import ir, vector, x86
from . import structure as st
from .even_odd import ANY_ORDER
from .phases import Phase

if TYPE_CHECKING:
    from ..lowering.target import Target

PASS_NAME = "mlirc-sum-pairs"

TOTAL = "mlirc.total"
"""On a sum of f32: only the total of its lanes is read, and denormals are as good as zero."""


def sum_pairs(module: ir.Module, target: Target) -> None:
    """Rewrite the marked sums of every function, of whole registers of bf16."""
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
    """The sum of something that was widened and of what was summed before, in either order; others stay."""
    if op.name != "arith.addf":
        return
    wide, acc = op.operands if _narrow(op.operands[0], lanes) is not None else (op.operands[1], op.operands[0])
    narrow, half = _narrow(wide, lanes), lanes // 2
    if narrow is None:
        return
    with ir.InsertionPoint(op), op.location:
        kind = ir.VectorType.get([half], acc.type.element_type)
        low, high = (vector.extract_strided_slice(kind, acc, [at], [half], [1]) for at in (0, half))
        pairs = x86.avx512_dot(low, narrow, builders.constant(narrow.type, 1.0))
        both = vector.shuffle(pairs, high, list(range(lanes)))
    for v in (low, high, pairs, both):
        v.owner.operation.attributes[ANY_ORDER] = ir.UnitAttr.get()
    op.results[0].replace_all_uses_with(both)
    op.erase()
    if not any(True for _ in wide.uses):
        wide.owner.operation.erase()


def _narrow(value: ir.Value, lanes: int) -> ir.Value | None:
    """The vector of bf16 that a value is widened from."""
    kind = value.type
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "arith.extf":
        return None
    narrow = value.owner.operation.operands[0]
    whole = isinstance(kind, ir.VectorType) and kind.shape == [lanes] and isinstance(kind.element_type, ir.F32Type)
    return narrow if whole and isinstance(narrow.type.element_type, ir.BF16Type) else None


def is_mean_of_norm(op: ir.Operation, walks: Sequence[Phase]) -> bool:
    """Whether the result of a reduction, one of the first of these walks over a row, is subtracted from all elements, whose squares the next
    walk sums up, before the last one stores something: then a mean that is denormal may be zero as well."""
    if len(walks) < 3 or op not in walks[0].reductions or any(walk.stores for walk in walks[:-1]):
        return False
    return bool(walks[1].reductions) and all(map(_sums_squares, walks[1].reductions)) and _is_subtracted(op.results[0])


def _sums_squares(reduction: ir.Operation) -> bool:
    products = [o for o in st.body_ops(reduction) if o.name == "arith.mulf"]
    return bool(products) and all(o.operands[0] == o.operands[1] for o in products)


def _is_subtracted(value: ir.Value) -> bool:
    """Whether all who read a number of each row subtract it, or its quotient, from something."""
    for use in value.uses:
        reader = st.operation(use.owner)
        if st.kind(reader) == "view":
            subtracted = _is_subtracted(reader.results[0])
        elif st.kind(reader) != "elementwise" or use.operand_number >= len(st.inputs(reader)):
            return False
        else:
            argument = reader.regions[0].blocks[0].arguments[use.operand_number]
            places = {(st.operation(u.owner).name, u.operand_number) for u in argument.uses}
            subtracted = places == {("arith.subf", 1)} or places == {("arith.divf", 0)} and _is_subtracted(reader.results[0])
        if not subtracted:
            return False
    return True
