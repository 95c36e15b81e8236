"""Whether products of the same rows are better off in one kernel, and whether one whose columns meet is.

What is gained is the start of a kernel and the wait for its last thread: up to 20% of two threads' time for products of 256 x 256
with one row, 3 to 5% at 1024 x 256, nothing from some ten million multiplications on; nothing on one thread. Products that meet in
an epilogue (gate and up) take turns with their weights besides: two streams from memory instead of one after the other, which costs
up to 15% where the weights do not stay in cache, and is worth it for small ones only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...lowering.target import Target

LARGE = 1 << 22
"""Multiplications of a product beside which the start of a kernel is little."""
LARGE_TOGETHER = 1 << 21
"""The same of products that meet."""


@dataclass
class Sizes:
    """Of a family of products: `rows` (None for a symbol), the columns of each, the length of the reduction, the bits of a weight,
    whether it is packed in words."""

    rows: int | None
    columns: list[int]
    length: int
    bits: int
    words: bool


def why_apart(sizes: Sizes, together: bool, target: Target) -> str | None:
    """A reason to leave products kernels of their own, None if there is none. `together`: they meet in an epilogue."""
    if sizes.words and target.has_amx_bf16:
        return "tile registers: each product has functions for its shapes"
    smallest = (sizes.rows or 1) * min(sizes.columns) * sizes.length
    if smallest > LARGE:
        return f"{sizes.rows or 'n'} x {sizes.length} x {min(sizes.columns)} multiplications: large enough on their own"
    if not together:
        return None
    weights = sum(sizes.columns) * sizes.length * sizes.bits // 8
    if weights > target.caches.second:
        return f"they meet, and {weights >> 10} KB of weights are better read in one stream each"
    if sizes.rows is None or smallest > LARGE_TOGETHER:
        return "they meet, and the kernels are large enough on their own"
    return None


def why_whole(rows: object, columns: int, bits: int, target: Target) -> str | None:
    """A reason to compute all columns of a product whose parts meet at once, None if there is none.

    Else each part but the last is stored and read once, instead of all of them, and the rows are read for each. gelu(a) * b of both halves, of

        rows x reduction x columns       f32            bf16  (Zen 4, whole and in halves, ms)
        1024 x 320 x 2560                16.8  16.4     8.91  8.82
        4096 x 320 x 2560                65.6  64.6     34.0  33.2
        256 x 640 x 5120                 16.2  16.1     8.25  8.20
        64 x 1280 x 10240                15.7  15.7     7.91  7.92
        8 x 2048 x 11264                 4.05  4.13     1.91  1.94
    """
    if not isinstance(rows, int):
        return "the number of rows is a symbol"
    if (nbytes := rows * columns * bits // 8) <= target.caches.second:
        return f"all columns, {nbytes >> 10} KB, stay in the second-level cache until they meet"
    return None
