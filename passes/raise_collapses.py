"""Elementwise ops behind a collapse_shape of a product are computed before it, in the product's own loops.

    %p = contraction ... : tensor<8x2x8x2x32xf32>                  %p = contraction ... : tensor<8x2x8x2x32xf32>
    %c = collapse_shape %p : tensor<16x16x32xf32>          ->      %b = generic %p + %bias : tensor<8x2x8x2x32xf32>
    %b = generic %c + %bias : tensor<16x16x32xf32>                 %c = collapse_shape %b : tensor<16x16x32xf32>

That is what a transposed convolution makes whose kernels do not overlap, and one with groups, of their channels. Loops that merge would
keep its bias and activation out of its kernel; so would those of a product whose transposed result is merged (`turn_products`). An op is
rewritten where its other operands are merged in the same way, have no merged dim, or have nothing else: the scales of a norm, which are
split by a view.
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
            merge = next((m for v in _read_straight(op) if (m := _merge(v)) is not None and product_behind(v)), None)
            if merge is None:
                continue
            layouts.begin_again()
            if _fits(op, merge, layouts):
                _rewrite(op, merge, layouts)


def _read_straight(op: ir.Operation) -> list[ir.Value]:
    """The operands that are as large as the result: what is read for several columns, say, has other loops."""
    return [v for v, m in zip(st.inputs(op), st.maps(op)) if st.map_dims(m) == list(range(len(st.iterators(op))))]


def _merge(value: ir.Value) -> ir.Operation | None:
    """The collapse_shape that made a value, if it merges dims and not only drops those of size one."""
    op = st.owner(value)
    if op is None or op.name != "tensor.collapse_shape":
        return None
    wide = st.shape(op.operands[0])
    return op if any(sum(wide[d] != 1 for d in g) > 1 for g in st.reassociation(op)) else None


def product_behind(value: ir.Value) -> bool:
    """Whether this is a product, or elementwise ops on one."""
    todo, seen = [value], set()
    while todo:
        op = st.owner(todo.pop())
        if op is None or op in seen or op.name not in ("tensor.collapse_shape", "linalg.transpose", "linalg.generic") or "mlirc.pack" in op.attributes:
            continue
        seen.add(op)
        if st.kind(op) in ("contraction", "convolution"):
            return True
        if st.kind(op) != "reduction":
            todo += st.inputs(op)
    return False


def _fits(op: ir.Operation, merge: ir.Operation, layouts: Layouts) -> bool:
    """Whether every operand is merged in the same way and read as it lies, or has none of the merged dims, or one alone."""
    maps = [st.map_dims(m) for m in st.maps(op)]
    straight = list(range(len(st.iterators(op))))
    groups = st.reassociation(merge)
    constants = all(isinstance(e, (ir.AffineDimExpr, ir.AffineConstantExpr)) for m in st.maps(op) for e in m.results)
    if maps[-1] != straight or len(groups) != len(straight) or not constants:
        return False
    for v, m in zip(st.inputs(op), maps):
        if m == straight and _merged_alike(v, merge, layouts):
            continue
        loops = [d for d in m if d is not None]
        if any(len(groups[d]) > 1 for d in loops) and (len(loops) > 1 or loops == straight):
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
    maps = [ir.AffineMap.get(rank, 0, [x for e in m.results for x in _split(e, groups)]) for m in st.maps(op)]
    with ir.InsertionPoint(op), op.location:
        inputs = [
            st.owner(v).operands[0] if _merged_alike(v, merge, layouts) else _split_vector(v, m, merge, layouts)  # type: ignore[union-attr]
            for v, m in zip(st.inputs(op), st.maps(op))
        ]
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


def _split(e: ir.AffineExpr, groups: list[list[int]]) -> list[ir.AffineExpr]:
    return [ir.AffineDimExpr.get(d) for d in groups[e.position]] if isinstance(e, ir.AffineDimExpr) else [e]


def _split_vector(value: ir.Value, m: ir.AffineMap, merge: ir.Operation, layouts: Layouts) -> ir.Value:
    """A view of an operand that has none but one of the merged dims, with that split; the operand itself where it has none."""
    groups, wide = st.reassociation(merge), layouts.values(merge.operands[0])
    mine, sizes = layouts.values(value), []
    parts: list[list[int]] = []
    for e, n in zip(m.results, mine):
        split = [wide[d] for d in groups[e.position]] if isinstance(e, ir.AffineDimExpr) else [n]
        parts.append(list(range(len(sizes), len(sizes) + len(split))))
        sizes += split if len(split) > 1 else [n]
    return value if len(sizes) == len(mine) else builders.expand(value, parts, sizes)
