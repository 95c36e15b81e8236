"""Read what is broadcast where it is small, and compute with it there.

    %e = generic copy %x[i, 0] : n x m                %d = generic %x[i, 0] / 768 : n
    %d = generic %e / 768 : n x m            ->       %r = generic %d[i] * %y[i, j] : n x m
    %r = generic %d * %y : n x m

The gradients of sums and means are such: `expand`, a division, and then what the sum was of. An op that reads nothing but what is
broadcast says nothing of the loops along which it is, so that fusion could not tell that they are those of the rows which were summed; and
what is the same for a whole row is computed once. The copy stays where something else reads it, such as a view.

    %w = generic copy %weight[k, n] : b x k x n       %p[b, m, n] += %x[b, m, k] * %weight[k, n]
    %p[b, m, n] += %x[b, m, k] * %w[b, k, n]  ->

`linear` of weights that need no gradient is such, for an input that is not contiguous: a weight of all batches.
"""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st

PASS_NAME = "mlirc-fold-broadcasts"


def fold_broadcasts(function: ir.Operation) -> bool:
    """One walk in program order; whether there was something."""
    changed = False
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if st.kind(op) in ("elementwise", "reduction", "contraction"):
            changed |= _read_small(op)
        if st.kind(op) in ("elementwise", "reduction"):
            changed |= _compute_small(op)
    return changed


def _copied(value: ir.Value) -> tuple[ir.Value, ir.AffineMap] | None:
    """What is broadcast to a value, without being changed, and where each element of that comes from."""
    op = st.owner(value)
    if op is None or not st.is_plain(op) or len(st.inputs(op)) != 1:
        return None
    block = op.regions[0].blocks[0]
    (source,), (m, _) = st.inputs(op), st.maps(op)
    last = st.operation(block.operations[0])
    if last.name != "linalg.yield" or last.operands[0] != block.arguments[0] or not _spans(op, st.used_loops(m)):
        return None
    return source, m


def _spans(op: ir.Operation, loops: set[int]) -> bool:
    """Whether a result has more than one element along some loop that is not one of these."""
    return any(n != 1 for d, n in enumerate(st.shape(op.results[0])) if d not in loops)


def _read_small(op: ir.Operation) -> bool:
    """Read the sources of broadcast operands."""
    maps, changed = st.maps(op), False
    for i, v in enumerate(st.inputs(op)):
        found = _copied(v)
        if found is None:
            continue
        source, m = found
        new = ir.AffineMap.get(maps[i].n_dims, 0, [e.compose(maps[i]) for e in m.results])
        # The size of a loop has to be that of some operand.
        others = [x for k, x in enumerate(maps) if k != i]
        known = {d for x in (*others, new) for d in st.map_dims(x) if d is not None}
        if known == set(range(maps[i].n_dims)) and (st.kind(op) != "contraction" or _of_one_batch(new, maps[i], maps[-1])):
            op.operands[i], maps[i], changed = source, new, True
    if changed:
        op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])
    return changed


def _of_one_batch(new: ir.AffineMap, old: ir.AffineMap, result: ir.AffineMap) -> bool:
    """Whether all that an operand of a product loses are loops over its batches: the same matrix for all of them is packed once."""
    dims = st.map_dims(new)
    return None not in dims and st.used_loops(old) - set(dims) <= st.used_loops(result)


def _compute_small(op: ir.Operation) -> bool:
    """Compute an op once for all elements along the loops that none of its operands has, and broadcast the result."""
    if not st.is_plain(op) or not st.inputs(op) or _copied(op.results[0]) is not None or any(map(st.is_tensor, st.captured(op))):
        return False
    maps = st.maps(op)
    used = sorted(set().union(*map(st.used_loops, maps[:-1])))
    empty = st.owner(op.operands[len(op.operands) - 1])
    if not _spans(op, set(used)) or empty is None or empty.name != "tensor.empty":
        return False
    rename = ir.AffineMap.get(len(used), 0, [ir.AffineDimExpr.get(used.index(d)) if d in used else ir.AffineConstantExpr.get(0) for d in range(maps[-1].n_dims)])
    with ir.InsertionPoint(op), op.location:
        sizes = builders.sizes_of(empty)
        init = builders.empty([sizes[d] for d in used], builders.element_type(op.results[0]))
        small = st.operation(op.clone(ip=ir.InsertionPoint(op)))
        small.operands[len(small.operands) - 1] = init
        small.attributes["indexing_maps"] = ir.ArrayAttr.get(
            [ir.AffineMapAttr.get(ir.AffineMap.get(len(used), 0, [e.compose(rename) for e in m.results])) for m in maps[:-1]]
            + [ir.AffineMapAttr.get(builders.identity(len(used)))]
        )
        small.attributes["iterator_types"] = builders.iterator_types("p" * len(used))
        small.results[0].set_type(init.type)
        n = maps[-1].n_dims
        (wide,) = builders.generic([small.results[0]], [op.operands[len(op.operands) - 1]], [builders.projection(n, used), builders.identity(n)], "p" * n, lambda v, _: [v])
    op.results[0].replace_all_uses_with(wide)
    op.erase()
    return True
