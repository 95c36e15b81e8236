"""Large reductions to few results: how threads share what is reduced, because there are not rows enough to share."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialects import builders
from .. import structure as st
from .common import WORK_PER_THREAD
from .walk import Walk

CHUNKS = 64
CHUNK_ELEMENTS = 4096
"""What a chunk has at least: less is not worth the combining."""
SPLIT_WORK = 16 * WORK_PER_THREAD
"""Element-operations of a reduction from which it is worth to be shared: about ten times what it takes to wake a thread."""
SPLIT_BYTES = 1 << 16
"""Stack for partial results."""
FEW_ROWS = 16
"""As many rows keep the threads busy."""
KEPT_ELEMENTS = 32 * 1024
"""Values of a row that are kept from phase to phase on the stack, if it has no more elements."""


@dataclass
class Split:
    """The class that is cut, into how many chunks at most, of which their sizes are multiples, and the work of one."""

    along: int
    chunks: int
    least: int
    work: int


def split(walk: Walk, block: int) -> Split | None:
    """None where the reduction is small, or there are rows enough. `block` is the number of elements that one iteration takes."""
    d, rows, inner, lane = walk.kernel.domain, walk.rows, walk.inner, walk.lane
    if not inner or not d.reductions or not all(isinstance(walk.sizes[c], int) for c in rows):
        return None
    results, elements = walk.product(rows), walk.product(inner)
    makers = [op for v in walk.kernel.results if (op := st.owner(v)) in d.loops and op not in d.reductions]
    phases = len(d.reductions) > 1 or any(set(d.inner) & set(d.classes(op)) for op in makers)
    small = walk.ops * results * elements < SPLIT_WORK or phases and elements <= KEPT_ELEMENTS
    if not results * elements or walk.fixed_inner and small:
        return None
    if walk.product([c for c in rows if c != lane]) >= FEW_ROWS or lane in rows and walk.size(lane) > SPLIT_BYTES // 64:
        return None
    width = max(builders.element_type(op.results[0]).width for op in d.reductions) // 8 or 1
    chunks = min(CHUNKS, SPLIT_BYTES // (results * len(d.reductions) * width))
    if chunks < 8:
        return None
    along = next((c for c in inner if not isinstance(walk.sizes[c], int)), max(inner, key=walk.size))
    others = results * elements // walk.size(along)
    least = -(-CHUNK_ELEMENTS // others)
    if along == lane:
        least = -(-least // block) * block
    return Split(along, chunks, least, walk.ops * max(least, walk.size(along) // chunks) * others)
