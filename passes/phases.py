"""The walks over what is reduced that a kernel of elementwise ops and reductions takes, one after the other.

    phase 0: max of x                        # reductions that depend on nothing
    phase 1: sum of exp(x - max)             # those that need the ones before
    phase 2: store exp(x - max) / sum        # what is stored goes with the first walk that can know it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..dialects.mlir import ir
from ..errors import CompileError
from . import structure as st
from .domain import Domain


@dataclass
class Phase:
    """What one walk over the inner classes does: `stores` are numbers of results."""

    number: int
    reductions: list[ir.Operation] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)


@dataclass
class Phases:
    """The walks of a row, and the results that are stored once after them, as they do not run over inner classes."""

    walks: list[Phase]
    row_stores: list[int]


def phases(domain: Domain, results: Sequence[ir.Value]) -> Phases:
    """Sort reductions and stores by what they depend on. Raises CompileError for results that no walk computes."""
    level: dict[ir.Operation, int] = {}

    def depth(op: ir.Operation) -> int:
        if op not in level:
            below = 0
            for v in st.tensors_read(op):
                p = st.owner(v)
                if p is not None:
                    below = max(below, depth(p) + (1 if st.kind(p) == "reduction" else 0))
            level[op] = below
        return level[op]

    count = 1 + max([depth(op) for op in domain.reductions], default=-1)
    out = Phases([Phase(n) for n in range(count)], [])
    for op in domain.reductions:
        out.walks[depth(op)].reductions.append(op)
    for n, v in enumerate(results):
        op = st.owner(v)
        if op is None:
            raise CompileError("a kernel returns its argument")
        if st.kind(op) == "view":
            raise CompileError("a kernel returns a view")
        if st.kind(op) == "reduction" or not (set(domain.inner) & set(domain.classes(op))):
            out.row_stores.append(n)
            continue
        while len(out.walks) <= depth(op):
            out.walks.append(Phase(len(out.walks)))
        out.walks[depth(op)].stores.append(n)
    return out
