"""How many vectors side by side a register tile has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...dialects import builders
from ...dialects.mlir import ir
from .. import structure as st
from . import blocks
from .common import PACKED_COLUMNS, known

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..vectorize.kernel import KernelFunction
    from ..vectorize.roles import Roles

FEW_ROWS = 4
"""Rows of which two vectors each are not enough sums to hide the latency of an addition."""

MANY_COLUMNS = 8
"""Vectors side by side from which on a block of three that is not full does not count: ResNet-50, with its 64 channels, gains 4%."""

UNPACKED_COLUMNS, UNPACKED_ROWS = 8, 6
"""Vectors side by side of an operand that is not packed, at most, and rows beside which registers are kept for them."""

PAIRED_ROWS, INDICES = 14, 2
"""The same of one whose pairs of bf16 are put together in registers, so that many rows share them; and registers that say how."""


FEW_PANELS, LEAST_BLOCKS = 4, 16
"""Panels that a register tile of few rows reads side by side at most, and such tiles that share the columns at least, for threads."""


def sum_registers(target: Target) -> int:
    """Vector registers that sums may take: the others hold a row of the panel, an element of a row, and what an epilogue needs."""
    return target.vector_registers - 4


def most_rows(target: Target, columns: int, sums: int, pairs: bool = False) -> int:
    """Rows of a tile with so many sums at most: a register for each vector of the panel is free besides, and one for an element of a row."""
    free = target.vector_registers - 1 - (INDICES if pairs else 0)
    return max(1, min(sums // columns, free // columns - 1))


def in_pairs(kernel: KernelFunction, r: Roles) -> bool:
    """Whether pairs of bf16 are put together in registers."""
    op = kernel.domain.anchor
    return op is not None and st.WORDS in op.attributes and not st.is_packed(op, r.along_lanes)


def columns_of_tile(kernel: KernelFunction, r: Roles, target: Target, n: int, fetch: bool = False) -> int:
    """Vectors of `n` lanes side by side in a register tile: two, up to four for a convolution with few output channels and its lanes along
    the image, and more where the operand with the lanes is not packed (`_of_unpacked`).

    Three with 16 registers: 4 x 3 sums take 7 loads for 12 products, 6 x 2 take 8. Not for siblings, which read whole packed blocks without
    a mask, not where products are added in a second step, and not where the lanes are converted: of four steps that leaves no registers (3x3 of 64
    channels, 56 x 56, in bf16 reaches 48 of 103 GF/s on a Zen 3 then, 6 x 2 80). Where panels are fetched there are two again: as wide as
    a panel, the tile reads one stream (in AVX2 on a Zen 5 4 x 768 x 3072 takes 260 instead of 620 us from beyond the second level, 16 x 768 x
    3072 620 instead of 890, and 197 x 768 x 3072 7.2 instead of 7.5 ms).
    """
    if r.lane is None:
        return 1
    sizes = kernel.domain.sizes
    rows = 1 if r.row is None else sizes[r.row]
    most, size = PACKED_COLUMNS, known(sizes[r.lane])
    vectors = max(-(-size // n), 1)
    whole_panels = fetch or len(kernel.domain.siblings) > 1
    if target.vector_registers == 16 and not whole_panels and not _in_two_steps(kernel) and not _is_converted(kernel, r) and (size % (3 * n) == 0 or size >= MANY_COLUMNS * n):
        most = 3
    if st.kind(kernel.domain.anchor) == "convolution" and isinstance(rows, int) and rows <= FEW_ROWS:  # type: ignore[arg-type]
        most = min(4, sum_registers(target) // max(rows, 1))
    if not whole_panels and _is_unpacked(kernel, r):
        wide = _of_unpacked(target, rows, vectors, in_pairs(kernel, r))
        panel = known(sizes[r.reductions[0]]) * wide * n * builders.element_type(kernel.domain.anchor.operands[r.along_lanes]).width // 8  # type: ignore[union-attr]
        # Several register tiles read a panel: 64 x 3072 x 768 takes 7% longer with four vectors, whose panels are not there any more.
        if isinstance(rows, int) and rows <= UNPACKED_ROWS or panel <= blocks.resident(target.caches):
            most = max(most, wide)
    return min(most, vectors)


def panels_together(kernel: KernelFunction, r: Roles, target: Target, n: int) -> tuple[int, str]:
    """Panels, of vectors of `n` lanes, that a register tile of one or two rows reads side by side, and why.

    The prefetchers of a CPU run ahead in each page that is read, so that more than one stream is under way from memory. On a Zen 3 in f32, with
    200 MB of weights in turns, and with these in the third-level cache, GB/s with 1, 2 and 4 panels:

        1 x 768 x 3072    17.8  26.1  26.9    69.5  75.6  76.6
        2 x 768 x 3072    17.7  24.4          56.6  58.3

    Sums of more rows leave no registers for that: see `fetching.streams`.
    """
    d = kernel.domain
    rows = 1 if r.row is None else d.sizes[r.row]
    if rows not in (1, 2) or r.lane is None:
        return 1, ""
    counts = [-(-known(kernel.shapes.of(op.results[0])[-1]) // (PACKED_COLUMNS * n)) for op in d.siblings]

    def possible(panels: int) -> bool:
        # One row multiplies from memory, and needs no register for what it reads.
        enough = rows == 1 or most_rows(target, PACKED_COLUMNS * panels, sum_registers(target)) >= rows
        # Siblings are read in whole tiles.
        return enough and (len(counts) == 1 or all(count % panels == 0 for count in counts))

    panels = next((p for p in range(min(FEW_PANELS, sum(counts) // LEAST_BLOCKS), 1, -1) if possible(p)), 1)
    return panels, f"{panels} panels, each a stream of its own"


def _is_unpacked(kernel: KernelFunction, r: Roles) -> bool:
    """Whether the operand with the lanes of a product of two tensors lies in memory row by row, one for each step of the reduction."""
    op = kernel.domain.anchor
    if st.kind(op) != "contraction" or len(r.reductions) != 1:  # type: ignore[arg-type]
        return False
    lanes = st.maps(op)[r.along_lanes]  # type: ignore[arg-type]
    steps = [a.steps.get(r.lane) for a in kernel.accesses.items if a.op == op and a.value == op.operands[r.along_lanes]]  # type: ignore[union-attr, arg-type]
    return steps == [1] and all(isinstance(x, ir.AffineDimExpr) for x in lanes.results)


def _of_unpacked(target: Target, rows: object, vectors: int, pairs: bool) -> int:
    """Vectors side by side of such an operand, for so many rows and vectors in all.

    What is read of each of its rows is the longer, the better it is foreseen; and its vectors are loaded less often than elements are
    spread. On a Zen 4, us, with two vectors and with so many:

        32 x 1 x 1024 x 128    433   269 (8)        32 x 16 x 1024 x 128   2174  1650 (4)
        32 x 2 x 1024 x 128    755   342 (8)        12 x 512 x 512 x 64    4172  3962 (4)
        32 x 4 x 1024 x 128   1585   994 (4)        2048 x 1 x 40 x 40      242   208 (3)
        32 x 6 x 1024 x 128   1609   834 (4)

    in f32; pairs of bf16 of 32 x 4 x 1024 x 128 take 566 and 293 (4).
    """
    least = PAIRED_ROWS if pairs else UNPACKED_ROWS
    beside = min(rows, least) if isinstance(rows, int) else least
    taken = INDICES + 2 if pairs else 1
    most = min(UNPACKED_COLUMNS, (target.vector_registers - taken) // (beside + 1))
    columns = -(-vectors // -(-vectors // most))
    return min(columns + columns % 2, most) if pairs else columns


def _is_converted(kernel: KernelFunction, r: Roles) -> bool:
    """Whether the operand with the lanes is narrower than its products."""
    op = kernel.domain.anchor
    assert op is not None
    width = builders.element_type(op.results[0]).width
    return st.WORDS not in op.attributes and builders.element_type(op.operands[r.along_lanes]).width < width


def _in_two_steps(kernel: KernelFunction) -> bool:
    """Whether products are in a register before they are added to a sum, as those of `vpmaddwd`, so that there is none for a third column."""
    op = kernel.domain.anchor
    return op is not None and st.WORDS in op.attributes and str(builders.element_type(op.operands[0])) == "i16"
