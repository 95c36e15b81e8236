"""Updates of rows are sorted into buckets, one for each row, before they are made, where that is faster.

    %r = scatter(%init, %updates, %rows)      ->    %order, %ends = bucket(%rows, %space)
                                                    %sorted = generic %updates[%order[e], ...]
                                                    %r = segments(%init, %sorted, %ends)

for one index to a row, as `index_add` and the sums of graph networks have it. `sorted_updates` has the second step: of rows that are
gathered it is the index that is sorted. Updates are still made in their order, so that sums round as before. Several scatters by the same
index share the buckets (the layers of a graph network). Where `strategy` sees no gain the reason is left as the remark attribute
`mlirc.in_order`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dialects import builders, own
from ..dialects.mlir import ir
from ..dialects.sizes import Extent
from . import structure as st
from .layouts import Layouts
from .sorted_updates import Sorter
from .strategy import why_in_order

if TYPE_CHECKING:
    from ..lowering.target import Target

PASS_NAME = "mlirc-bucket-updates"


def bucket_updates(function: ir.Operation, target: Target) -> None:
    """Run before scatters get memory of their own."""
    layouts = Layouts(function)
    buckets: dict[tuple[ir.Value, Extent], tuple[ir.Value, ir.Value]] = {}
    replaced: list[ir.Operation] = []
    sorter = Sorter(layouts)
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        along = _indexed_dim(op, layouts) if op.name == "mlirc.scatter" else None
        if along is None:
            continue
        _, updates, index = op.operands
        shape = layouts.shapes.of(op.results[0])
        sizes = [s if isinstance(s, int) else None for s in (shape[along], *layouts.shapes.of(index))]
        width = _product(shape[along + 1 :])
        reason = why_in_order(*sizes, width, builders.element_type(updates).width, target)
        if reason:
            op.attributes["mlirc.in_order"] = ir.StringAttr.get(reason)
            continue
        key = (index, shape[along])
        if key not in buckets:
            with ir.InsertionPoint(op), op.location:
                buckets[key] = own.bucket(index, _space(shape[along], op.results[0], along, layouts))
        with ir.InsertionPoint(op), op.location:
            order, ends = buckets[key]
            op.results[0].replace_all_uses_with(own.segments(op.operands[0], sorter.sorted(updates, along, order), ends, own.target(op), own.combine(op)))
        replaced.append(op)
    # Not sooner: a new op may get the address of an erased one, and with it what `layouts` remembers about it.
    for op in replaced + sorter.replaced:
        op.erase()


def _indexed_dim(op: ir.Operation, layouts: Layouts) -> int | None:
    """The dim of the result along which the one index, of rank 1, says where; None for other scatters."""
    target = own.target(op)
    named = [d for d, t in enumerate(target) if t < 0]
    if len(op.operands) != 3 or len(named) != 1 or own.combine(op) == own.SET:
        return None
    (along,) = named
    # A row is contiguous, each update has one index, and a whole row.
    rows, updates = layouts.shapes.of(op.results[0]), layouts.shapes.of(op.operands[1])
    if along + 1 == len(target) or target != [-1 if d == along else d for d in range(len(updates))]:
        return None
    if st.map_dims(own.index_map(op)) != [along]:
        return None
    return along if all(n == m for d, (n, m) in enumerate(zip(rows, updates)) if d != along) else None


def _product(sizes: list[object]) -> int | None:
    n = 1
    for s in sizes:
        if not isinstance(s, int):
            return None
        n *= s
    return n


def _space(rows: Extent, result: ir.Value, along: int, layouts: Layouts) -> ir.Value:
    """A tensor, of which nothing is read, with an element for each row."""
    layouts.sizes.forget()
    static = st.shape(result)[along]
    return builders.empty([static if static != builders.DYNAMIC else layouts.sizes.value(rows)], ir.IntegerType.get_signless(64))
