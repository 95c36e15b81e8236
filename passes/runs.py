"""Short runs of neighbours in memory: the innermost loops of what `split_reductions` and `spread_broadcasts` take apart."""

from __future__ import annotations

from dataclasses import dataclass

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .layouts import Layouts, NotAView

LONGEST = 32
"""Elements of a run: two vectors of f32 in AVX-512."""
LEAST = 16
"""How often something is read again, at least, where it is stored first."""


@dataclass
class Walk:
    """A tensor that a generic op reads whole, and the op's loops in the order in which that lies in memory."""

    value: ir.Value
    order: list[int]
    extents: dict[int, object]

    @staticmethod
    def of(op: ir.Operation, layouts: Layouts) -> Walk | None:
        """None if no operand has all loops, if several have that lie in different orders, or if it is a view that has yet to be copied."""
        rank = len(st.iterators(op))
        maps = map(st.map_dims, st.maps(op))
        wide = [(v, [d for d in m if d is not None]) for v, m in zip(st.inputs(op), maps) if len(m) == rank and set(m) == set(range(rank))]
        try:
            if not wide or any(m != wide[0][1] or not layouts.dense(v) for v, m in wide):
                return None
        except NotAView:
            return None
        value, order = wide[0]
        return Walk(value, order, dict(zip(order, layouts.shapes.of(value))))

    def loops(self) -> list[int]:
        """Those of more than one iteration, outermost first."""
        return [d for d in self.order if self.extents[d] != 1]

    def count(self, loops: list[int]) -> int | None:
        """Iterations of several loops, None if that is a symbol."""
        n = 1
        for d in loops:
            extent = self.extents[d]
            if not isinstance(extent, int):
                return None
            n *= extent
        return n

    def sizes(self, loops: list[int], layouts: Layouts) -> list[builders.Size]:
        """As a new op has them."""
        known = dict(zip(self.order, layouts.values(self.value)))
        return [known[d] for d in loops]
