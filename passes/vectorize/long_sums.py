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

PRODUCT_BLOCK = 256
"""Products of f32: a tile of sums that does not fit the registers a second time is added up so rarely that it takes up to 2% longer than
as one sum. Relative errors, against fp64, of random numbers: oneDNN 2.3e-7; 3x3 of 512 channels 1.1e-6 as one sum, 4.1e-7 so."""
LONGEST_PRODUCT = 512
"""Products that are one block."""
WIDE_BLOCK, LONGEST_WIDE = 1024, 1 << 14
"""The same for products of narrower types, whose rounding is far worse than that of a sum that is not too long: a hundredth 100,000 times is
off by 1.2e-5 in blocks, and by 7e-4 as one sum."""
GUESS = 256
"""Steps of a symbolic size."""


def block_of_products(sizes: Sequence[int | None], whole: bool, wide: bool = False) -> int | None:
    """How many steps of the first of some nested loops make a block; None if the sum is one, or its blocks are in the loops inside.

    `sizes` are None where they are not known, `whole` says that the sum has no other loops around these, `wide` that it is wider than what is
    multiplied.
    """
    block, longest = (WIDE_BLOCK, LONGEST_WIDE) if wide else (PRODUCT_BLOCK, LONGEST_PRODUCT)
    known = [n for n in sizes if n is not None]
    if len(known) == len(sizes) and math.prod(known) <= longest:
        return None
    if sizes[0] is None and len(sizes) == 1 and not whole:  # short, and in a block of the loop around it
        return None
    return max(block // max(math.prod(GUESS if n is None else n for n in sizes[1:]), 1), 1)
