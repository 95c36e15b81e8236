"""The loops around the register tiles of a product: what comes from beyond the second-level cache, and how often.

Rows and panels of the packed operand meet in every register tile. What of them stays in the second level need come from beyond it but
once; so the order of the loops, parts of the rows, and blocks of the reduction follow from their bytes and from the caches (`blocks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...dialects import builders
from ...dialects.mlir import ir
from .. import structure as st
from . import blocks
from .common import PACKED_COLUMNS, known, product

if TYPE_CHECKING:
    from ...lowering.caches import Caches
    from ..vectorize.kernel import KernelFunction
    from ..vectorize.roles import Roles

PLAIN_ROW_TILES = 4
"""Row tiles of a parallel iteration where the reduction is not cut: some, so that a panel is read from cache."""


def lanes_first(kernel: KernelFunction, r: Roles, width: int, caches: Caches) -> tuple[bool, str]:
    """Whether reading the other operand for every block of lanes moves less memory than reading all panels for every outer row."""
    if not outer_only(kernel, r):
        return False, "each outer row has panels of its own"
    op = kernel.domain.anchor
    assert op is not None
    packed, image = (1, 0) if not r.swapped else (0, 1)
    blocks_of_lanes = -(-known(kernel.domain.sizes[r.lane]) // width)  # type: ignore[index]
    panels, whole = (_bytes(op.operands[i], kernel) for i in (packed, image))
    outer = product(r.outer, kernel.domain.sizes)
    resident = blocks.resident(caches)
    by_rows = panels * outer if panels > resident else 0
    by_lanes = whole * blocks_of_lanes if whole > resident else 0
    return by_lanes < by_rows, (
        f"{by_lanes >> 10} KB come from beyond the second-level cache with the lanes outermost ({blocks_of_lanes} times {whole >> 10} KB), "
        f"else {by_rows >> 10} KB ({outer} times {panels >> 10} KB); what takes up to {resident >> 10} KB stays there"
    )


def outer_only(kernel: KernelFunction, r: Roles) -> bool:
    """Whether the panels are the same for all outer rows, so that either can be the outermost loop."""
    op = kernel.domain.anchor
    assert op is not None
    classes = {kernel.domain.loops[op][d] for d in st.used_loops(st.maps(op)[1 if not r.swapped else 0])}
    return r.lane is not None and not classes & set(r.outer)


def _bytes(value: ir.Value, kernel: KernelFunction) -> int:
    n = builders.element_type(value).width // 8
    for size in kernel.shapes.of(value):
        n *= known(size)
    return n


LEAST_NEAR = 128
"""Rows that a panel serves at least: with 48, 512 x 3072 x 768 in f32 takes 5% longer than with all of them, from beyond the second level."""


def streams(kernel: KernelFunction, r: Roles, caches: Caches) -> bool:
    """Whether panels, [reduction][block of lanes], come from beyond the second-level cache."""
    d, op = kernel.domain, kernel.domain.anchor
    if r.row is None or r.lane is None or op is None or len(r.reductions) != 1 or len(d.siblings) > 1 or st.reads_bf16(op):
        return False
    panels = op.operands[0 if r.swapped else 1]
    packed = st.owner(panels) is None and len(st.shape(panels)) == 3 and st.shape(panels)[-1] == PACKED_COLUMNS * 16
    return packed and _bytes(panels, kernel) > blocks.resident(caches)


def near(kernel: KernelFunction, r: Roles, block: int, width: int, caches: Caches, why: dict[str, str]) -> int | None:
    """Blocks of `block` rows that fit the second-level cache, where all rows do not, and would come from beyond it for every panel."""
    d = kernel.domain
    op = d.anchor
    if r.row is None or r.lane is None or not isinstance(d.sizes[r.row], int) or op is None:
        return None
    # Of one outer row, where each has its own; there may be none.
    panels = _bytes(op.operands[0 if r.swapped else 1], kernel)
    panels = panels if outer_only(kernel, r) else panels // max(product(r.outer, d.sizes), 1)
    row_bytes = product(r.reductions, d.sizes) * builders.element_type(op.operands[1 if r.swapped else 0]).width // 8
    size, resident = d.sizes[r.row], blocks.resident(caches)
    whole, lanes = size * row_bytes, -(-known(d.sizes[r.lane]) // width)
    fitting, total = resident // (block * row_bytes) if row_bytes else 0, -(-size // block)
    if whole <= resident or fitting * block < LEAST_NEAR:
        return None
    times = -(-total // fitting)
    moved = panels * (times if panels > resident else 1)
    if times == 1 or moved >= whole * (lanes - 1):
        return None
    why["near"] = (
        f"{whole >> 10} KB of rows for each of {lanes} panels are more than {panels >> 10} KB of panels for each of {times} parts of the rows "
        f"that the second-level cache has room for"
    )
    return -(-total // times)


def depth_and_group(
    kernel: KernelFunction, r: Roles, rows: int, width: int, caches: Caches, why: dict[str, str]
) -> tuple[int, int | None, int]:
    """(Row tiles in a block, elements in a block of the reduction, lane blocks in a group); no depth where the panel is not cut."""
    d = kernel.domain
    step = panel_step(kernel, r, width)
    if step is None:
        why["depth"] = "the reduction is not cut: that wants one of a known, even size, and rows"
        return PLAIN_ROW_TILES, None, 1
    length, size = d.sizes[r.reductions[0]], d.sizes[r.row]  # type: ignore[index]
    depth = blocks.depth(caches, step)
    panel, block = f"a panel has {length * step >> 10} KB", f"a block {blocks.panel_bytes(caches) >> 10} KB"  # type: ignore[operator]
    if length <= 2 * depth or size < 3 * rows:  # type: ignore[operator]
        why["depth"] = f"{panel}, and {block}: not cut below two blocks" if length <= 2 * depth else f"too few rows to share a block: {size}"  # type: ignore[operator]
        return PLAIN_ROW_TILES, None, 1
    row_tiles = blocks.row_tiles(caches, rows * width * builders.element_type(d.anchor.results[0]).width // 8)  # type: ignore[union-attr]
    row_blocks = -(-size // (row_tiles * rows))  # type: ignore[operator]
    panels = -(-known(d.sizes[r.lane]) // width)  # type: ignore[index]
    why["depth"] = f"{panel}, and {block}: a quarter of the second-level cache"
    why["row_tiles"] = "their sums take at most half of the first-level cache"
    why["group"] = f"{panels} panels, which share the rows in cache"
    return row_tiles, depth, blocks.group(panels, row_blocks)


def panel_step(kernel: KernelFunction, r: Roles, width: int) -> int | None:
    """Bytes of a panel for one step of the reduction; None where the reduction cannot be cut in blocks."""
    d = kernel.domain
    if len(r.reductions) != 1 or r.row is None or r.lane is None or len(d.siblings) > 1:
        return None
    length, size = (d.sizes[c] for c in (r.reductions[0], r.row))
    panel = next((a for a in kernel.accesses.items if a.op == d.anchor and not a.store and not a.steps.get(r.row)), None)
    if not isinstance(length, int) or not isinstance(size, int) or panel is None or length % 2:
        return None
    return width * builders.element_type(panel.value).width // 8
