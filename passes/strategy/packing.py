"""Whether matrices that change from call to call are worth packing in each, for products of rows in groups."""

from __future__ import annotations

from dataclasses import dataclass

from ..pack import FEW, ROWS_TO_PACK

CALL = 4000
"""ns of a call of ATen's product for a group."""


@dataclass(frozen=True)
class _Costs:
    """ns of an element: to pack it, and what a product with packed ones saves for each, and for each row of its group besides."""

    pack: float
    own: float
    of_row: float


COSTS = {2: _Costs(0.35, 0.05, 0.002), 4: _Costs(0.72, 0.07, 0.011), 8: _Costs(1.44, 0.14, 0.022)}
"""By bytes of an element; measured of bf16 and f32, and f64 is taken for twice f32. Zen 4, ms of ATen and with matrices that are packed:
8 x 1024 x 3584 in bf16 of 256 rows 14 and 20, 128 x 768 x 2048 in f32 of 32 rows 16 and 145; a step of training of 256 x 64 x 64 in
bf16 of 2048 rows 12.5 and 6.2."""


def packed_in_vain(sizes: tuple[int, int, int], strides: tuple[int, int, int], rows: int, nbytes: int, in_words: bool) -> bool:
    """Of matrices [groups, k, n] of so many bytes an element, all of which would be packed for `rows` rows in all; `in_words` as pairs along k."""
    groups, k, n = sizes
    if strides[2] == 1 and (not in_words or rows < ROWS_TO_PACK) or strides[1] == 1 and rows < FEW:
        return False  # read as they lie
    costs, used = COSTS[nbytes], min(rows, groups)
    return groups * k * n * costs.pack > used * (CALL + k * n * costs.own) + rows * k * n * costs.of_row
