"""How often a kernel computes the values that its ops read at other places than their own.

    %p = pad %x                               # steps of a diffusion: %y reads %p at four places, the next step
    %y = slice0 %p + ... + slice3 %p          # reads that of %y at four, and so the first one at sixteen

Each place is computed anew, and is code of its own. A place that several ways lead to is computed once, but not with padding on the
way, as every way has its own mask. `passes.fuse` asks here, so that long chains are cut.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from ..dialects.mlir import ir
from . import structure as st
from .domain import Domain, operand_loops, result_loops, trace

MOST = 128
"""Places of a value: ten steps of a diffusion in two dims, eight of a sum by halves."""
MOST_PADDED = 64
"""Of a padded one: three steps."""

MOST_PADDING = 1.5
"""Elements, with padding, for each that is padded. Rows of 1024, computed with their padding and apart: of 1.1 elements for each exp takes 263
and 275 us, gelu 767 and 725; of 1.5 253 and 215, 732 and 526; of 8 245 and 127, 705 and 186. A square root is never better apart."""

MOST_COPIES = 4
"""Times that an elementwise op repeats what is padded, where each asks anew whether it is padding. Relative positions of an attention, 64 times
8 x 8 x 12, asked for in each copy and apart: 2 copies 141 and 153 us, 4 169 and 164, 8 240 and 182."""

Place = tuple[Hashable, tuple[Hashable, ...]]
"""The paddings on the way, and along each loop or dim the affine (class, offset, step), or anything else that is equal for equal
places only."""


def too_often(domain: Domain, ops: Sequence[ir.Operation], stored: Sequence[ir.Value]) -> bool:
    """Whether a kernel of these ops (in program order) would compute some value at too many places."""
    if not domain.displaced:
        return False
    inside = set(ops)
    places: dict[ir.Operation, set[Place]] = {}
    makers = {st.owner(v) for v in stored}
    for op in reversed(ops):
        if op not in domain.loops:
            continue
        mine = places.setdefault(op, set())
        if op in makers or st.kind(op) not in ("elementwise", "pad"):
            mine.add(((), tuple((c, 0, 1) for c in domain.loops[op])))
        if len(mine) > (MOST_PADDED if st.kind(op) == "pad" else MOST):
            return True
        for value, loops in operand_loops(op):
            views, producer = _way(value, inside, domain)
            if producer is None:
                continue
            asked = places.setdefault(producer, set())
            own = [(c, 0, 1) for c in domain.loops[producer]]
            out = result_loops(producer, _number(producer, views[-1].operands[0] if views else value))
            for before, at in mine:
                if st.kind(op) == "pad":
                    before, along = (before, op, at), at
                else:
                    along = tuple((value, at) if loop is None else at[loop] for loop in loops)
                for view in views:
                    along = _through(view, along)
                where: list[Hashable] = list(own)
                for loop, place in zip(out, along):
                    if loop is not None:
                        where[loop] = place
                asked.add((before, tuple(where)))
    return False


def much_padding(op: ir.Operation) -> bool:
    """Whether much of a pad's result is padding: values that are read through it are computed for all of it, by lanes that are masked."""
    low, high = st.pads(op)
    inner = outer = 1
    for n, before, after in zip(st.shape(op.operands[0]), low, high):
        if n > 0 and isinstance(before, int) and isinstance(after, int):
            inner, outer = inner * n, outer * (before + n + after)
    return outer > MOST_PADDING * inner


def often_copied(op: ir.Operation, value: ir.Value, loops: Sequence[int | None]) -> bool:
    """Whether an elementwise op reads each element of an operand, whose dims `loops` walk over, many times, and not where its copies are innermost."""
    return repeats(op, value) and len(st.shape(op.results[0])) - 1 in loops


def repeats(op: ir.Operation, value: ir.Value) -> bool:
    """Whether an elementwise op reads each element of an operand many times."""
    wide, read = st.shape(op.results[0]), st.shape(value)
    return st.kind(op) == "elementwise" and min((*wide, *read), default=1) > 0 and math.prod(wide) >= MOST_COPIES * math.prod(read)


def looks_up_lanes(op: ir.Operation, consumer: ir.Operation, value: ir.Value) -> bool:
    """Whether an op looks elements up, and its reader has others than those of a row of the table next to one another: each is a load of
    its own then. `value` is what comes of the op. Swin's relative positions of 49 x 49, added to 256 x 3 scores in bf16, with their softmax:
    6.2 ms looked up for each window, 3.4 looked up before."""
    found = [o for o in st.body_ops(op) if o.name == "tensor.extract"]
    if not found:
        return False
    root, dims = trace(value, set(st.views(value)))
    last = st.map_dims(st.maps(consumer)[-1])[-1]
    reads = st.map_dims(st.maps(consumer)[st.inputs(consumer).index(value)])
    walked = {dims[k] for k, loop in enumerate(reads) if loop == last}
    in_rows = all((o := st.owner(x.operands[len(x.operands) - 1])) is not None and o.name == "linalg.index" for x in found)
    return bool(walked) and (not in_rows or walked != {len(st.shape(root)) - 1})


def _way(value: ir.Value, inside: set[ir.Operation], domain: Domain) -> tuple[list[ir.Operation], ir.Operation | None]:
    """The views of a kernel from a value on, and the op behind them that is computed anew for each place; None if none is."""
    views = []
    while (op := st.owner(value)) is not None and op in inside and st.kind(op) == "view":
        views.append(op)
        value = op.operands[0]
    return views, op if op in domain.loops and op in inside and st.kind(op) in ("elementwise", "pad") else None


def _number(op: ir.Operation, value: ir.Value) -> int:
    return list(op.results).index(value)


def _through(op: ir.Operation, along: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    """The place in a view's source of a place in the view."""
    dims = _dims(op)
    if dims is None:
        return tuple((op, along, d) for d in range(len(st.shape(op.operands[0]))))
    return tuple(_moved((None, 0, 1) if i is None else along[i], offset, step) for i, offset, step in dims)


@st.remembered
def _dims(op: ir.Operation) -> list[tuple[int | None, Hashable, int]] | None:
    """For each dim of a view's source: which dim of the view it is (None: there is none), from where on, in which steps."""
    rank = len(st.shape(op.operands[0]))
    if op.name == "tensor.cast":
        return [(d, 0, 1) for d in range(rank)]
    if op.name == "linalg.transpose":
        order = st.integers(op.attributes["permutation"])
        return [(order.index(d), 0, 1) for d in range(rank)]
    if op.name == "tensor.extract_slice":
        offsets, steps = st.slice_parts(op)
        shown = {d: i for i, d in enumerate(st.slice_dims(op))}
        return [(shown.get(d), offsets[d], steps[d]) for d in range(rank)]
    return None


def _moved(where: Hashable, offset: Hashable, step: int) -> Hashable:
    """offset + step * where"""
    if isinstance(offset, int) and isinstance(where, tuple) and len(where) == 3 and isinstance(where[1], int) and isinstance(where[2], int):
        return where[0], offset + step * where[1], step * where[2]
    return where, offset, step
