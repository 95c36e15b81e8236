"""Scatters read an index that is the same along a dim of the updates once, not once for each element of it.

    %j = generic broadcast %i : n x 1 -> n x 256                 %j = collapse_shape %i : n x 1 -> n
    %r = scatter(%x, %u, %j) {index_map = (a, b) -> (a, b)}  ->  %r = scatter(%x, %u, %j) {index_map = (a, b) -> (a)}

An expanded index is how graph libraries write sums over edges. `bucket-updates` sorts what has one index for a row.
"""

from __future__ import annotations

from ..dialects import builders, own
from ..dialects.mlir import ir
from . import structure as st

PASS_NAME = "mlirc-narrow-indices"


def narrow_indices(function: ir.Operation) -> bool:
    """Rewrite the scatters of `function` that have one index tensor; whether there was one."""
    narrowed = False
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if op.name == "mlirc.scatter" and len(own.indices(op)) == 1:
            narrowed |= _narrow(op)
    return narrowed


def _narrow(op: ir.Operation) -> bool:
    producer = st.owner(op.operands[2])
    dims = _broadcast(producer) if producer is not None else None
    if dims is None:
        return False
    kept = [d for d in dims if d is not None]
    (source,) = st.inputs(producer)  # type: ignore[arg-type]
    with ir.InsertionPoint(op), op.location:
        if len(kept) < len(dims):
            source = builders.collapse(source, _groups(dims), [n for n, d in zip(st.shape(source), dims) if d is not None])
        old = own.index_map(op)
        loops = st.map_dims(old)
        op.attributes["index_map"] = ir.AffineMapAttr.get(builders.projection(old.n_dims, [loops[d] for d in kept]))
        op.operands[2] = source
    return True


def _broadcast(op: ir.Operation) -> list[int | None] | None:
    """For each dim of what an op repeats the dim of its result, None for one of size one; None if it does more, or nothing.

    At least one dim is left, and dims keep their order.
    """
    if op.name != "linalg.generic" or len(st.inputs(op)) != 1 or len(op.results) != 1:
        return None
    block = op.regions[0].blocks[0]
    (last,) = [st.operation(o) for o in block.operations][-1:]
    if len(block.operations) != 1 or last.operands[0] != block.arguments[0]:
        return None
    read, written = st.maps(op)[0], st.maps(op)[-1]
    dims = st.map_dims(read)
    kept = [d for d in dims if d is not None]
    if st.map_dims(written) != list(range(read.n_dims)) or not kept or kept != sorted(set(kept)) or len(kept) == read.n_dims:
        return None
    ones = all(n == 1 for n, d in zip(st.shape(st.inputs(op)[0]), dims) if d is None)
    return dims if ones else None


def _groups(dims: list[int | None]) -> list[list[int]]:
    """The dims of size one beside those that are left."""
    groups: list[list[int]] = []
    first: list[int] = []
    for i, d in enumerate(dims):
        if d is not None:
            groups.append([*first, i])
            first = []
        elif groups:
            groups[-1].append(i)
        else:
            first.append(i)
    return groups
