"""How often a kernel computes the values that its ops read at other places than their own.

    %p = pad %x                               # steps of a diffusion: %y reads %p at four places, the next step
    %y = slice0 %p + ... + slice3 %p          # reads that of %y at four, and so the first one at sixteen

Each place is computed anew, and is code of its own. Places that several ways lead to are computed once where the way does not
matter; with padding on the way it does, as every way has its own mask. `passes.fuse` asks here, so that long chains are cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dialects.mlir import ir
from . import structure as st
from .domain import operand_loops, trace

MOST = 64
"""Places of a padded value: three steps of four neighbours."""


def too_often(ops: Sequence[ir.Operation], stored: Sequence[ir.Value]) -> bool:
    """Whether a padded value would be read at more than `MOST` places by a kernel of these ops (in program order)."""
    pads = [op for op in ops if st.kind(op) == "pad"]
    if not pads:
        return False
    count = _places(ops, stored)
    return any(count[op] > MOST for op in pads)


def _places(ops: Sequence[ir.Operation], stored: Sequence[ir.Value]) -> dict[ir.Operation, int]:
    """At how many places the value of each op is computed, for one place of what is stored."""
    inside = set(ops)
    # For each op the values through which it is read: at the reader's own place, or else at another one.
    own: dict[ir.Operation, int] = {op: 0 for op in ops}
    other: dict[ir.Operation, dict[ir.Value, int]] = {op: {} for op in ops}
    for v in stored:
        own[st.owner(v)] = 1  # type: ignore[index]
    count: dict[ir.Operation, int] = {}
    for op in reversed(ops):
        if st.kind(op) in ("view", "aux"):
            continue
        count[op] = n = max(own[op] + sum(other[op].values()), 1)
        for value, loops in operand_loops(op):
            root, dims = trace(value, inside)
            producer = st.owner(root)
            if producer is None or producer not in inside or st.kind(producer) in ("view", "aux"):
                continue
            walked = {d for d, loop in zip(dims, loops) if loop is not None}
            if all(size == 1 or d in walked for d, size in enumerate(st.shape(root))):
                own[producer] = max(own[producer], n)
            else:
                other[producer][value] = max(other[producer].get(value, 0), n)
    return count
