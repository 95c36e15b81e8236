"""Elementwise ops behind a collapse_shape of a product are computed before it, in the product's own loops.

    %p = contraction ... : tensor<8x2x8x2x32xf32>                  %p = contraction ... : tensor<8x2x8x2x32xf32>
    %c = collapse_shape %p : tensor<16x16x32xf32>          ->      %b = generic %p + %bias : tensor<8x2x8x2x32xf32>
    %b = generic %c + %bias : tensor<16x16x32xf32>                 %c = collapse_shape %b : tensor<16x16x32xf32>

That is what a transposed convolution makes whose kernels do not overlap. Loops that merge would keep its bias and activation
out of its kernel; so would those of a product whose transposed result is merged (`turn_products`). An op is rewritten where its
other operands are merged in the same way or have no merged dim.
"""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import ir, linalg, tensor
from ..dialects.sizes import normal
from . import structure as st
from .layouts import Layouts

PASS_NAME = "mlirc-raise-collapses"


def raise_collapses(function: ir.Operation) -> None:
    """One walk in program order; collapses that rise meet the next user in the same walk."""
    layouts = Layouts(function)
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if st.kind(op) == "elementwise" and len(op.results) == 1 and not st.uses_index(op):
            merge = next((m for v in st.inputs(op) if (m := _merge(v)) is not None and _product_behind(v)), None)
            if merge is None:
                continue
            layouts.begin_again()
            if _fits(op, merge, layouts):
                _rewrite(op, merge, layouts)


def _merge(value: ir.Value) -> ir.Operation | None:
    """The collapse_shape that made a value, if it merges dims and not only drops those of size one."""
    op = st.owner(value)
    if op is None or op.name != "tensor.collapse_shape":
        return None
    wide = st.shape(op.operands[0])
    return op if any(sum(wide[d] != 1 for d in g) > 1 for g in st.reassociation(op)) else None


def _product_behind(value: ir.Value) -> bool:
    """Whether this is a product, or elementwise ops on one."""
    op = st.owner(value)
    if op is None or op.name not in ("tensor.collapse_shape", "linalg.transpose", "linalg.generic") or "mlirc.pack" in op.attributes:
        return False
    if st.kind(op) in ("contraction", "convolution"):
        return True
    return st.kind(op) != "reduction" and any(_product_behind(v) for v in st.inputs(op))


def _fits(op: ir.Operation, merge: ir.Operation, layouts: Layouts) -> bool:
    """Whether every operand is merged in the same way and read as it lies, or has none of the merged dims."""
    maps = [st.map_dims(m) for m in st.maps(op)]
    straight = list(range(len(st.iterators(op))))
    groups = st.reassociation(merge)
    if maps[-1] != straight or len(groups) != len(straight) or any(None in m for m in maps):
        return False
    for v, m in zip(st.inputs(op), maps):
        if m == straight and _merged_alike(v, merge, layouts):
            continue
        if any(len(groups[d]) > 1 for d in m):  # type: ignore[index]
            return False
    return True


def _merged_alike(value: ir.Value, merge: ir.Operation, layouts: Layouts) -> bool:
    """Whether a value is merged from dims of the same sizes: n x m is not m x n, though both types may say ?x?."""
    op = st.owner(value)
    if op is None or op.name != merge.name or st.reassociation(op) != st.reassociation(merge):
        return False
    mine, theirs = op.operands[0], merge.operands[0]
    if st.shape(mine) != st.shape(theirs):
        return False
    if mine == theirs or min(st.shape(mine)) >= 0:
        return True
    return all(normal(a - b) == 0 for a, b in zip(layouts.shapes.of(mine), layouts.shapes.of(theirs)))  # type: ignore[operator, arg-type]


def _rewrite(op: ir.Operation, merge: ir.Operation, layouts: Layouts) -> None:
    source, groups = merge.operands[0], st.reassociation(merge)
    rank = sum(len(g) for g in groups)
    maps = [
        ir.AffineMap.get(rank, 0, [ir.AffineDimExpr.get(d) for k in st.map_dims(m) for d in groups[k]])  # type: ignore[index]
        for m in st.maps(op)
    ]
    inputs = [st.owner(v).operands[0] if _merged_alike(v, merge, layouts) else v for v in st.inputs(op)]  # type: ignore[union-attr]
    with ir.InsertionPoint(op), op.location:
        init = builders.empty(layouts.values(source), builders.element_type(op.results[0]))
        new = linalg.GenericOp(
            [init.type],
            inputs,
            [init],
            ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            ir.ArrayAttr.get([op.attributes["iterator_types"][0]] * rank),
        )
        op.regions[0].blocks[0].append_to(new.regions[0])
        result = tensor.CollapseShapeOp(op.results[0].type, new.results[0], groups).result
    op.results[0].replace_all_uses_with(result)
    op.erase()
