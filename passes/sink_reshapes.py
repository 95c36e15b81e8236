"""Move expand_shape below the ops that use it, so that a chain of ops is computed in the shape it began in.

    %m = contraction ... : tensor<128x768>                %m = contraction ... : tensor<128x768>
    %e = expand_shape %m : tensor<1x128x768>      ->      %g = generic gelu(%m) : tensor<128x768>
    %g = generic gelu(%e) : tensor<1x128x768>             %e = expand_shape %g : tensor<1x128x768>

    %p = generic %x * %y : tensor<8x64x56x56>             %p = generic (collapse_shape %x) * (collapse_shape %y) : tensor<8x64x3136>
    %c = collapse_shape %p : tensor<8x64x3136>    ->      %s = generic sum of %p over the last dim
    %s = generic sum of %c over the last dim

Views between ops of different rank would keep them apart: linear layers work on [batch * sequence, features], what is
between them on [batch, sequence, features]. A generic is rewritten when every operand uses each merged group of loops
whole and in order, or not at all (an operand that is a view itself is collapsed, which cancels). An op that is read merged alone, by ops that
do not multiply, is computed merged, where its operands lie so that this is a view: an index that is split again in a kernel is a gather.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dialects import builders
from ..dialects.mlir import ir, linalg
from ..dialects.sizes import normal
from . import structure as st
from .layouts import Layouts, NotAView, merges
from .raise_collapses import product_behind

PASS_NAME = "mlirc-sink-reshapes"


def sink_reshapes(function: ir.Operation) -> None:
    """One walk from the end, for what is read merged, and one in program order; what moves meets the next op in the same walk."""
    layouts = Layouts(function)
    for op in reversed([st.operation(o) for o in function.regions[0].blocks[0].operations]):
        if st.is_plain(op) and (groups := _read_merged(op, layouts)):
            _rewrite(op, groups, layouts)
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if op.name == "tensor.collapse_shape":
            _cancel(op)
        elif st.kind(op) in ("elementwise", "reduction") and len(op.results) == 1:
            groups = _groups(op)
            if groups:
                _rewrite(op, groups, layouts)


def _cancel(op: ir.Operation) -> None:
    """collapse_shape of the expand_shape with the same groups is its source."""
    below = st.owner(op.operands[0])
    if below is not None and below.name == "tensor.expand_shape" and below.operands[0].type == op.results[0].type:
        if st.reassociation(below) == st.reassociation(op):
            op.results[0].replace_all_uses_with(below.operands[0])


def _expansion(value: ir.Value) -> tuple[ir.Value, list[list[int]]] | None:
    """The source and the groups of an expand_shape, chains composed."""
    op = st.owner(value)
    if op is None or op.name != "tensor.expand_shape":
        return None
    groups = st.reassociation(op)
    below = _expansion(op.operands[0])
    if below is None:
        return op.operands[0], groups
    return below[0], [[d for n in g for d in groups[n]] for g in below[1]]


def _groups(op: ir.Operation) -> list[list[int]] | None:
    """Loops to merge, as lists in order, if some operand is an expansion and all operands agree."""
    if st.uses_index(op):
        return None
    maps = [st.map_dims(m) for m in st.maps(op)]
    iterators = st.iterators(op)
    for value, dims in zip(st.inputs(op), maps):
        found = _expansion(value)
        if found is None:
            continue
        merged = []
        for group in found[1]:
            loops = [dims[d] for d in group if dims[d] is not None]
            if len(loops) >= 2:
                merged.append(loops)
        if not merged or any(b != a + 1 for g in merged for a, b in zip(g, g[1:])):  # type: ignore[operator]
            continue
        if any(len({iterators[d] for d in g}) > 1 for g in merged):  # type: ignore[index]
            continue
        if all(_fits(m, g) for m in st.maps(op) for g in merged):  # type: ignore[arg-type]
            return merged  # type: ignore[return-value]
    return None


def _read_merged(op: ir.Operation, layouts: Layouts) -> list[list[int]] | None:
    """Loops that all readers of a plain op merge, if the operands lie so that it may as well read them merged."""
    users = [st.operation(u.owner) for u in op.results[0].uses]
    if not users or any(u.name != "tensor.collapse_shape" or st.reassociation(u) != st.reassociation(users[0]) for u in users):
        return None
    maps = st.maps(op)
    readers = [st.operation(use.owner) for user in users for use in user.results[0].uses]
    if not all(st.kind(r) in ("elementwise", "reduction") or r.name in ("tensor.expand_shape", "tensor.collapse_shape") for r in readers):
        return None
    merged = [g for g in st.reassociation(users[0]) if len(g) > 1]
    if not merged or not all(_fits(m, g) for m in maps for g in merged) or any(product_behind(v) for v in st.inputs(op)):
        return None
    layouts.begin_again()
    for v, m in zip(st.inputs(op), maps):
        dims = st.map_dims(m)
        for group in merged:
            at = [k for k, d in enumerate(dims) if d in group]
            try:
                strides, sizes = layouts.of(v).strides, layouts.shapes.of(v)
            except NotAView:
                return None
            if not merges([sizes[k] for k in at], [strides[k] for k in at]):
                return None
    return merged


def _fits(m: ir.AffineMap, group: Sequence[int]) -> bool:
    """Whether a map uses the loops of a group next to each other and in order, or none of them."""
    dims = st.map_dims(m)
    if any(d is None and st.loops_in(e) & set(group) for d, e in zip(dims, m.results)):
        return False
    at = [k for k, d in enumerate(dims) if d in group]
    if not at:
        return True
    return [dims[k] for k in at] == list(group) and at == list(range(at[0], at[0] + len(at)))


def _rewrite(op: ir.Operation, merged: list[list[int]], layouts: Layouts) -> None:
    maps = st.maps(op)
    iterators = st.iterators(op)
    n = len(iterators)
    loops: list[list[int]] = []
    for d in range(n):
        group = next((g for g in merged if d in g), [d])
        if group[0] == d:
            loops.append(group)
    new_of = {d: i for i, g in enumerate(loops) for d in g}
    layouts.begin_again()

    def regroup(m: ir.AffineMap) -> tuple[list[list[int]], ir.AffineMap]:
        """Groups of the operand's dims, and the map of the merged operand."""
        groups: list[list[int]] = []
        results: list[ir.AffineExpr] = []
        before: list[int] | None = None
        for k, (d, e) in enumerate(zip(st.map_dims(m), m.results)):
            group = next((g for g in merged if d in g), None) if d is not None else None
            if group is not None and group is before:
                groups[-1].append(k)
                continue
            before = group
            groups.append([k])
            results.append(_renumber(e, new_of, n))
        return groups, ir.AffineMap.get(len(loops), 0, results)

    with ir.InsertionPoint(op), op.location:
        operands, new_maps = [], []
        for v, m in zip(st.inputs(op), maps):
            groups, new_map = regroup(m)
            operands.append(_collapse(v, groups, layouts))
            new_maps.append(new_map)
        groups, out_map = regroup(maps[-1])
        init = op.operands[len(op.operands) - 1]
        sizes = _sizes(init, layouts)
        small = [_merge([sizes[d] for d in g], layouts) for g in groups]
        maker = st.owner(init)
        element = builders.element_type(init)
        new_init = builders.empty(small, element)
        if maker is not None and maker.name == "linalg.fill":
            new_init = linalg.fill(maker.operands[0], new_init)
        new = linalg.GenericOp(
            [new_init.type],
            operands,
            [new_init],
            ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in (*new_maps, out_map)]),
            ir.ArrayAttr.get([op.attributes["iterator_types"][g[0]] for g in loops]),
        )
        op.regions[0].blocks[0].append_to(new.regions[0])
        result = new.results[0]
        if len(groups) != len(sizes):
            result = builders.expand(result, groups, sizes)
    op.results[0].replace_all_uses_with(result)
    op.erase()


def _renumber(e: ir.AffineExpr, new_of: dict[int, int], n: int) -> ir.AffineExpr:
    rename = ir.AffineMap.get(n, 0, [ir.AffineDimExpr.get(new_of[d]) for d in range(n)])
    return e.compose(rename)


def _collapse(value: ir.Value, groups: list[list[int]], layouts: Layouts) -> ir.Value:
    if all(len(g) == 1 for g in groups):
        return value
    found = _expansion(value)
    if found is not None and found[1] == groups:
        return found[0]
    sizes = _sizes(value, layouts)
    return builders.collapse(value, groups, [_merge([sizes[d] for d in g], layouts) for g in groups])


def _sizes(value: ir.Value, layouts: Layouts) -> list[builders.Size]:
    return [s if isinstance(s, int) else layouts.sizes.value(s) for s in layouts.shapes.of(value)]  # type: ignore[arg-type]


def _merge(sizes: list[builders.Size], layouts: Layouts) -> builders.Size:
    product = 1
    for s in sizes:
        product = product * (s if isinstance(s, int) else layouts.sizes.expr(s))
    product = normal(product)
    return product if isinstance(product, int) else layouts.sizes.value(product)
