"""Whether a product whose columns meet in parts is better off as a product for each part."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...lowering.target import Target


def why_whole(rows: int | None, columns: int, bits: int, target: Target) -> str | None:
    """A reason to compute all columns at once, None if there is none. `rows` is None for a symbol, `bits` are those of a result that is stored.

    Else each part but the last is stored and read once, instead of all of them, and the rows are read for each. gelu(a) * b of both halves, of

        rows x reduction x columns       f32            bf16  (Zen 4, whole and in halves, ms)
        1024 x 320 x 2560                16.8  16.4     8.91  8.82
        4096 x 320 x 2560                65.6  64.6     34.0  33.2
        256 x 640 x 5120                 16.2  16.1     8.25  8.20
        64 x 1280 x 10240                15.7  15.7     7.91  7.92
        8 x 2048 x 11264                 4.05  4.13     1.91  1.94
    """
    if rows is None:
        return "the number of rows is a symbol"
    if (nbytes := rows * columns * max(bits, 8) // 8) <= target.caches.second:
        return f"all columns, {nbytes >> 10} KB, stay in the second-level cache until they meet"
    return None
