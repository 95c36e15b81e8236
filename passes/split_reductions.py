"""Reduce short runs of neighbours in a second step, where others lie beside them.

    %s = generic sum over h, w, c                       %p = generic sum over h, w of %x[n, h, w, g, c] : tensor<2x32x8xf32>
           of %x[n, h, w, g, c] : tensor<2x32xf32>  ->  %s = generic sum over c of %p : tensor<2x32xf32>

As in a group norm of channels-last images, or a batch norm of short rows. In the first step the vector lanes have all groups and
channels, side by side in memory; in one step they had the few channels of a group, with a stride from one vector to the next.
"""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .layouts import Layouts
from .runs import LEAST, LONGEST, Walk
from .vectorize.reduce import combiner, neutral

PASS_NAME = "mlirc-split-reductions"


def split_reductions(function: ir.Operation) -> bool:
    """One walk over the function's block; whether there was one."""
    layouts, split = Layouts(function), False
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if st.kind(op) == "reduction" and len(op.results) == 1 and None not in st.map_dims(st.maps(op)[-1]):
            walk = Walk.of(op, layouts)
            runs = _runs(op, walk) if walk is not None else []
            if walk is not None and runs:
                _split(op, walk, runs, layouts)
                split = True
    return split


def _runs(op: ir.Operation, walk: Walk) -> list[int]:
    """The loops of the runs; none if nothing is to be split."""
    kinds, left = st.iterators(op), walk.loops()

    def innermost(kind: str) -> list[int]:
        """Take the innermost loops of a kind off those that are left."""
        taken = []
        while left and kinds[left[-1]] == kind:
            taken.append(left.pop())
        return taken

    runs, beside = innermost("reduction"), innermost("parallel")
    rest = walk.count([d for d in left if kinds[d] == "reduction"])
    elements = walk.count(runs)
    if not beside or elements is None or not 1 < elements <= LONGEST or rest is not None and rest < LEAST:
        return []
    return runs


def _split(op: ir.Operation, walk: Walk, runs: list[int], layouts: Layouts) -> None:
    kinds, maps = st.iterators(op), st.maps(op)
    rank = len(kinds)
    kept = [d for d in walk.order if kinds[d] == "parallel" or d in runs]
    name = combiner(op).name
    with ir.InsertionPoint(op), op.location:
        start = builders.fill(walk.sizes(kept, layouts), neutral(op))
        first = st.operation(op.clone())
        first.operands[len(first.operands) - 1] = start
        first.results[0].set_type(start.type)
        new_maps = [*maps[:-1], builders.projection(rank, kept)]
        first.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in new_maps])
        first.attributes["iterator_types"] = builders.iterator_types("".join("p" if d in kept else "r" for d in range(rank)))
        results = [kept.index(d) for d in st.map_dims(maps[-1]) if d is not None]
        (second,) = builders.generic(
            [first.results[0]],
            [op.operands[len(op.operands) - 1]],
            [builders.identity(len(kept)), builders.projection(len(kept), results)],
            "".join("r" if d in runs else "p" for d in kept),
            lambda x, total: [ir.Operation.create(name, results=[x.type], operands=[x, total]).results[0]],
        )
    op.results[0].replace_all_uses_with(second)
    op.erase()
