"""A concatenation of two parts that is only read elementwise (the rotated halves of a rotary embedding) is read where it comes from.

    %c = concat dim(3) %x, %y                     %a, %b = pad %x high[n], pad %y low[m]
    %r = generic %c * %sin                  ->    %c = generic: index(3) < m ? %a : %b
                                                  %r = generic %c * %sin

The choice is an elementwise op, which fuses into its reader: the parts are not stored side by side first. Where the loop over the
dim is unrolled, nothing is left of choice and padding (`vectorize.evaluate`). For a short last dim; of a longer one, whose loop is
not unrolled, each element would be looked for in both parts.
"""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import arith, ir, linalg
from . import structure as st
from .layouts import Layouts

PASS_NAME = "mlirc-select-concats"

LONGEST = 256
"""Elements of the last dim: 16 vectors of f32 in AVX-512."""


def select_concats(function: ir.Operation) -> bool:
    """One walk over the function's block; whether there was one."""
    layouts, selected = Layouts(function), False
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if op.name == "tensor.concat" and _is_rotation(op):
            _select(op, layouts)
            selected = True
    return selected


def _is_rotation(op: ir.Operation) -> bool:
    kind = op.results[0].type
    dim = ir.IntegerAttr(op.attributes["dim"]).value
    users = [st.operation(use.owner) for use in op.results[0].uses]
    if len(op.operands) != 2 or dim != kind.rank - 1 or not 0 < kind.shape[dim] <= LONGEST or any(v.type.shape[dim] <= 0 for v in op.operands):
        return False
    return len(users) == 1 and st.kind(users[0]) == "elementwise" and all(_is_cheap(v) for v in op.operands)


def _is_cheap(value: ir.Value) -> bool:
    """Whether a part is in memory, or takes an op at most: both parts are computed for an element where the loop is not unrolled."""
    op = st.owner(value)
    while op is not None and st.kind(op) == "view":
        op = st.owner(op.operands[0])
    if op is None or st.kind(op) in ("call", "contraction", "convolution"):
        return True
    return st.kind(op) == "elementwise" and len([o for o in st.body_ops(op) if o.name not in ("arith.extf", "arith.truncf")]) <= 2


def _select(op: ir.Operation, layouts: Layouts) -> None:
    kind = op.results[0].type
    dim = kind.rank - 1
    first = op.operands[0].type.shape[dim]
    with ir.InsertionPoint(op), op.location:
        ahead, rest = [0] * dim, kind.shape[dim] - first
        sizes = layouts.values(op.results[0])
        padded = [builders.pad(v, [*ahead, low], [*ahead, high], sizes) for v, low, high in zip(op.operands, (0, first), (rest, 0))]
        init = builders.empty(sizes, kind.element_type)

        def choose(x: ir.Value, y: ir.Value, _: ir.Value) -> list[ir.Value]:
            before = arith.cmpi(arith.CmpIPredicate.slt, linalg.IndexOp(dim).result, builders.index(first))
            return [arith.select(before, x, y)]

        (new,) = builders.generic(padded, [init], [builders.identity(kind.rank)] * 3, "p" * kind.rank, choose)
    op.results[0].replace_all_uses_with(new)
    op.erase()
