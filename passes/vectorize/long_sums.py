"""Long sums are put together from sums of blocks.

The error of a sum grows with the block and the number of blocks then, not with the number of elements (Higham, "The accuracy of
floating point summation", SIAM J. Sci. Comput. 14, 1993).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

SUM_BLOCK = 1 << 14
"""Elements of a row, which the lanes share."""
COLUMN_BLOCK = 256
"""Elements where each lane has a sum of its own."""

PRODUCT_BLOCK = 1024
"""Products: as many as hide what it takes to add up a tile of sums that does not fit the registers a second time. 256 x 256 x 20,000, depth
symbolic: 51.6 ms as one sum and 51.5 in blocks, AVX2 134.9 and 137.0; a hundredth 100,000 times is off by 1.2e-5, not by 7e-4."""
LONGEST_PRODUCT = 1 << 14
"""Products that are one block, to which a convolution of 512 channels belongs."""
GUESS = 256
"""Steps of a symbolic size."""


def block_of_products(sizes: Sequence[int | None], whole: bool) -> int | None:
    """How many steps of the first of some nested loops make a block; None if the sum is one, or its blocks are in the loops inside.

    `sizes` are None where they are not known, `whole` says that the sum has no other loops around these.
    """
    known = [n for n in sizes if n is not None]
    if len(known) == len(sizes) and math.prod(known) <= LONGEST_PRODUCT:
        return None
    if sizes[0] is None and len(sizes) == 1 and not whole:  # short, and in a block of the loop around it
        return None
    return max(PRODUCT_BLOCK // max(math.prod(GUESS if n is None else n for n in sizes[1:]), 1), 1)
