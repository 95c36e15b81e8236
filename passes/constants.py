"""What depends on weights alone and is dear: found for the fusion, which keeps it apart, and laid out as it is read.

    %b = generic gather(%table, %index)                     %b = generic gather(%table, %index)
    %t = transpose %b                              ->       %c = generic copy (transpose %b)
    %y = generic %x + %t                                    %y = generic %x + %c

Here the table and the index are weights: the position biases of a window attention; the transposition is a view, or in the map by which
the last op reads. The copy becomes one kernel with the gather, which runs once and not in every call, and what every call reads lies in
the order of its loops. Runs right before the fusion: to anyone else the copy is one too many.
"""

from __future__ import annotations

import math

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .copies import copy, reordered
from .expand_math import EXPANSIONS
from .layouts import Layouts
from .weights import weights_of

PASS_NAME = "mlirc-constants"
SMALL = 1 << 16
"""Elements of what depends on weights alone that are worth the memory to be kept."""


def lay_out_constants(function: ir.Operation) -> None:
    """Copy the values that are to be kept apart where ops that run in every call read them through a transposition, a view or their map."""
    ops = [st.operation(o) for o in function.regions[0].blocks[0].operations]
    constant, apart = find_constants(ops, weights_of(function))
    if not apart:
        return
    layouts = Layouts(function)
    copies: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}
    for op in ops:
        if op in constant or st.kind(op) not in ("elementwise", "reduction"):
            continue
        for i, v in enumerate(st.inputs(op)):
            if maker(v) not in apart:
                continue
            loops = _loops(op, i)
            order = tuple(loops.index(d) for d in sorted(loops))
            moved = order != tuple(range(len(order)))
            if not moved and not _transposed(v):
                continue
            key = v, order if moved else ()
            if key not in copies:
                last = st.operation(v.owner)
                with ir.InsertionPoint(_after(last)), last.location:
                    copies[key] = reordered(v, order, layouts) if moved else copy(v, layouts)
            op.operands[i] = copies[key]
            if moved:
                maps = st.maps(op)
                maps[i] = builders.projection(maps[i].n_dims, sorted(loops))
                op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])


def _loops(op: ir.Operation, i: int) -> list[int]:
    """The loops along the dims of an operand; none where a dim has no loop of its own."""
    loops = st.map_dims(st.maps(op)[i])
    return [] if None in loops or len(set(loops)) < len(loops) else loops  # type: ignore[return-value]


def find_constants(ops: list[ir.Operation], weights: set[ir.Value]) -> tuple[set[ir.Operation], set[ir.Operation]]:
    """What reads weights alone, and of that what is apart: dear, a sum or made from such, and small enough to be kept in f32."""
    constant: set[ir.Operation] = set()
    apart: set[ir.Operation] = set()
    for op in ops:
        # ATen is called every time.
        if st.kind(op) in ("view", "aux", "call", "return"):
            continue
        reads = st.tensors_read(op)
        makers = [maker(v) for v in reads]
        if not reads or any(m not in constant if m is not None else st.root(v) not in weights for v, m in zip(reads, makers)):
            continue
        constant.add(op)
        sizes = st.shape(op.results[0])
        small = min(sizes, default=0) >= 0 and math.prod(sizes) <= SMALL
        if small and (st.kind(op) == "reduction" or st.kind(op) == "elementwise" and (is_dear(op) or any(m in apart for m in makers))):
            apart.add(op)
    return constant, apart


def is_dear(op: ir.Operation) -> bool:
    """Whether an element takes more than a few additions and multiplications."""
    return is_function(op) or any(o.name in ("arith.divf", "math.sqrt", "tensor.extract") for o in st.body_ops(op))


def is_function(op: ir.Operation) -> bool:
    """Whether an element takes tens of instructions, as those do that `expand_math` expands."""
    return any(o.name in EXPANSIONS for o in st.body_ops(op))


def _transposed(value: ir.Value) -> bool:
    """Whether a value is a view that changes the order of what it shows."""
    return any(view.name == "linalg.transpose" for view in st.views(value))


def _after(op: ir.Operation) -> ir.Operation:
    """The op that follows in the block."""
    block = [st.operation(o) for o in st.operation(op).block.operations]
    return block[block.index(st.operation(op)) + 1]


@st.remembered
def maker(value: ir.Value) -> ir.Operation | None:
    """The op that made a value, looking through views; None for arguments."""
    return st.owner(st.root(value))
