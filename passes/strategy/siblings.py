"""Whether products of the same rows are better off in one kernel.

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
