"""Store what is broadcast along short runs of neighbours as it is read, where it is read often.

    %y = generic %x[n, h, w, g, c] - %m[n, g]     ->     %s = generic copy %m[n, g] : tensor<2x32x8xf32>
                                                         %y = generic %x[n, h, w, g, c] - %s[n, g, c]

As in a group norm of channels-last images. Groups and channels are then one loop, whose vectors are full; they were two, of which the
inner one has less than a vector. The copy is stored (`mlirc.stored`): fused into its reader it would change nothing.
"""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .layouts import Layouts
from .runs import LEAST, LONGEST, Walk

PASS_NAME = "mlirc-spread-broadcasts"


def spread_broadcasts(function: ir.Operation) -> bool:
    """One walk over the function's block; whether there was one."""
    layouts, spread = Layouts(function), False
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if st.kind(op) in ("elementwise", "reduction") and not st.uses_index(op):
            walk = Walk.of(op, layouts)
            if walk is not None and _spread(op, walk, layouts):
                spread = True
    return spread


def _spread(op: ir.Operation, walk: Walk, layouts: Layouts) -> bool:
    """Whether the op had something to be spread."""
    loops = walk.loops()
    if len(loops) < 3:
        return False
    *outer, group, run = loops
    elements = walk.count([run])
    if elements is None or elements > LONGEST or "reduction" in (st.iterators(op)[group], st.iterators(op)[run]):
        return False
    maps = st.maps(op)
    reads = [st.map_dims(m) for m in maps[: len(st.inputs(op))]]
    some = [i for i, dims in enumerate(reads) if group in dims and run not in dims]
    again = [walk.count([d for d in outer if d not in reads[i]]) for i in some]
    if not some or any(run in dims and group not in dims for dims in reads) or any(n is not None and n < LEAST for n in again):
        return False
    for i in some:
        kept = [d for d in walk.order if d in reads[i] or d == run]
        with ir.InsertionPoint(op), op.location:
            value = op.operands[i]
            source = builders.projection(len(kept), [None if d is None else kept.index(d) for d in reads[i]])
            init = builders.empty(walk.sizes(kept, layouts), builders.element_type(value))
            (copy,) = builders.generic([value], [init], [source, builders.identity(len(kept))], "p" * len(kept), lambda v, _: [v])
            st.operation(copy.owner).attributes["mlirc.stored"] = ir.StringAttr.get("stored for each element of a run")
        op.operands[i] = copy
        maps[i] = builders.projection(len(walk.order), kept)
    op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])
    return True
