"""Which convolutions of bf16 or bytes are made products whose rows and reductions fill AMX tiles, and how."""

from __future__ import annotations

SIDE = 16
"""Rows and columns of a tile."""
NARROW = 8
"""Positions in a line of which two fill a tile: 3x3 of [512, 7, 7] takes 270 us instead of 441, of [256, 14, 14] as long either way."""
BYTES_PER_CYCLE = 10
"""That a copy of the image makes (1.65 MB for the stem of ResNet-50 in 61 us at 2.6 GHz), while a row of a tile is multiplied in one."""


def gathers_taps(width: int) -> bool:
    """Whether lines of so many positions are too short for tiles, so that all positions of an image become rows."""
    return width <= NARROW


def fills(columns: int, grouped: bool) -> bool:
    """Whether there are enough output channels (in a group) for reductions in whole tiles to pay."""
    return columns >= (SIDE // 2 if grouped else SIDE)


def merges_taps(taps: int, others: int, channels: int, columns: int, depth: int) -> bool:
    """Whether a line's taps and the channels are better off in one loop than channels filled up with zeros.

    taps: along a line; others: of the other dims; columns: output channels; depth: elements of k in a row of a tile, 64 bytes.
    """

    def cycles(blocks: int, copied: int) -> float:
        return blocks * others * -(-columns // SIDE) + 64 * copied / BYTES_PER_CYCLE

    merged, padded = -(-taps * channels // depth), -(-channels // depth)
    return cycles(merged, merged) < cycles(taps * padded, padded)
