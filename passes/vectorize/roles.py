"""What part each loop of a contraction or convolution plays in its register tile; `contraction` explains the parts."""

from __future__ import annotations

from dataclasses import dataclass

from .. import structure as st
from .kernel import KernelFunction


@dataclass
class Roles:
    """Classes by role. `swapped`: the operand with the lanes is the first one, and not the second; `lane_in_both`: both have them, but only
    the other one has the row."""

    lane: int | None
    row: int | None
    outer: list[int]
    reductions: list[int]
    swapped: bool
    lane_in_both: bool

    @property
    def along_lanes(self) -> int:
        """The number of the operand with the lanes, such as packed panels."""
        return 0 if self.swapped else 1

    @property
    def along_rows(self) -> int:
        """The number of the other one, such as an image."""
        return 1 if self.swapped else 0


def roles(kernel: KernelFunction) -> Roles:
    """Assign each class of the anchor's loops."""
    op = kernel.domain.anchor
    assert op is not None
    classes = kernel.domain.loops[op]
    a, b = [st.used_loops(m) for m in st.maps(op)[:2]]
    order = [d for d in st.map_dims(st.maps(op)[2]) if d is not None and classes[d] is not None]
    lane = order[-1] if order else None
    swapped = lane is not None and lane in a and lane not in b
    if swapped:
        a, b = b, a
    row = None
    for d in reversed(order[:-1]):
        if d in a and d not in b:
            row = d if row is None or _larger(kernel, classes[d], classes[row]) and not _stored_along(kernel, classes[row]) else row
    outer = [classes[d] for d in order if d not in (lane, row)]
    reductions = [classes[i] for i, it in enumerate(st.iterators(op)) if it == "reduction" and classes[i] is not None]
    return Roles(
        None if lane is None else classes[lane], None if row is None else classes[row], outer, reductions, swapped, lane in a  # type: ignore[arg-type]
    )


VECTOR = 16
"""Rows that are stored at once where results are contiguous along them."""


def _stored_along(kernel: KernelFunction, c: int | None) -> bool:
    """Whether results are contiguous along a class, and it is long enough for vectors."""
    stores = [a.steps for a in kernel.accesses.items if a.store]
    size = kernel.domain.sizes[c]  # type: ignore[index]
    return isinstance(size, int) and size >= VECTOR and all(s.get(c) == 1 for s in stores)  # type: ignore[arg-type]


def _larger(kernel: KernelFunction, a: int | None, b: int | None) -> bool:
    x, y = kernel.domain.sizes[a], kernel.domain.sizes[b]  # type: ignore[index]
    return isinstance(x, int) and isinstance(y, int) and x > 2 * y
