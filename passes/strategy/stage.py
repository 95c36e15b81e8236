"""Rows that are reduced along the lanes and lie across memory: blocks of them are transposed into a buffer first.

    x: [C, H*W], contiguous along H*W       out: [H*W, C] = layer norm of the columns of x

Where a lane is an element of a row, every load of x would be a gather, in each phase again; where a lane is a row of its own,
every store would be a scatter. Instead, as many rows as there are lanes are copied through registers, and then read in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...dialects import builders
from ...dialects.mlir import ir
from .. import structure as st
from .walk import Walk

if TYPE_CHECKING:
    from ..vectorize.kernel import KernelFunction

BLOCK_BYTES = 128 * 1024
"""What a block of rows has at most: it is on the stack, and read again from the cache."""


def staged_along(walk: Walk) -> int | None:
    """The class of rows along which most operands are to be transposed in blocks, if any is."""
    if walk.lane not in walk.inner or not walk.fixed_inner:
        return None
    operands = {c: staged(walk.kernel, walk.lane, c, walk.inner) for c in walk.rows if walk.size(c) >= walk.lanes}
    best = max(operands, key=lambda c: len(operands[c]), default=None)
    if best is None or not operands[best]:
        return None
    nbytes = sum(builders.element_type(v).width // 8 or 1 for v in operands[best])
    return best if nbytes * walk.lanes * walk.product(walk.inner) <= BLOCK_BYTES else None


def staged(kernel: KernelFunction, lane: int, along: int, inner: list[int]) -> dict[ir.Value, list[int | None]]:
    """Operands that are contiguous along a class of rows but not along the lanes -> the class of each dim.

    They are arguments or views of these, and every reader reads the same element at the same time.
    """
    out = {}
    for v in dict.fromkeys(v for op in kernel.domain.loops if op.name == "linalg.generic" for v in st.inputs(op)):
        classes = _classes(kernel, v) if _is_argument(kernel, v) else None
        if classes is None or not {along, lane, *inner} <= set(classes):
            continue
        found = kernel.access(v, classes)
        if len(found.items) != 1 or {along, lane} & found.fixed:
            continue
        steps = found.items[0].steps
        if steps.get(along) == 1 and steps.get(lane, 0) not in (0, 1):
            out[v] = classes
    return out


def _is_argument(kernel: KernelFunction, v: ir.Value) -> bool:
    while v not in kernel.strides:
        op = st.owner(v)
        if op is None or st.kind(op) != "view":
            return False
        v = op.operands[0]
    return True


def _classes(kernel: KernelFunction, v: ir.Value) -> list[int | None] | None:
    """The class that walks over each dim of a value, None for unit dims; no list if that is not the same for all who read it."""
    d, shape = kernel.domain, st.shape(v)
    places = []
    for use in v.uses:
        op, n = st.operation(use.owner), use.operand_number
        if op.name != "linalg.generic" or op not in d.loops or op in d.displaced or n >= len(st.inputs(op)):
            return None
        loops = [None if i is None else d.loops[op][i] for i in st.map_dims(st.maps(op)[n])]
        places.append([None if size == 1 else c for size, c in zip(shape, loops)])
    same = all(p == places[0] for p in places)
    whole = all(c is not None for c, size in zip(places[0], shape) if size != 1)
    return places[0] if same and whole else None
