"""Which convolutions are made products whose rows and reductions fill tiles, and how; and which are turned for that."""

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


def fills(columns: int, grouped: bool, taps: int, channels: int, depth: int) -> bool:
    """Whether there are enough output channels (in a group) for reductions in whole tiles to pay.

    Without groups, cycles for 16 positions are compared: a step of a tile takes 16, of vectors, which are mostly empty as well, 8 for each of k.
    """
    if grouped:
        return columns >= SIDE // 4
    blocks = -(-columns // SIDE)
    return blocks * taps * SIDE * -(-channels // depth) + _filling(channels, depth) < blocks * taps * SIDE // 2 * channels


def _filling(channels: int, depth: int) -> float:
    """Cycles that the copy of 16 positions takes whose channels are filled up to whole rows of a tile, of `depth` elements; 0 for whole ones."""
    return 0 if channels % depth == 0 else SIDE * 64 * -(-channels // depth) / BYTES_PER_CYCLE


def in_short_rows(grouped: bool, channels: int, word: int, depth: int) -> bool:
    """Whether the rows of a tile have the channels of a group and no more, because they are whole words but too few for `depth` elements.

    A step of a tile takes as long as one of whole rows, but nothing has to be copied to fill these up.
    """
    return grouped and channels < depth and channels % word == 0


def merges_taps(taps: int, others: int, channels: int, columns: int, depth: int) -> bool:
    """Whether a line's taps and the channels are better off in one loop than channels filled up with zeros.

    taps: along a line; others: of the other dims; columns: output channels; depth: elements of k in a row of a tile, 64 bytes.
    """

    def cycles(blocks: int, copied: int) -> float:
        return blocks * others * -(-columns // SIDE) + 64 * copied / BYTES_PER_CYCLE

    merged, padded = -(-taps * channels // depth), -(-channels // depth)
    return cycles(merged, merged) < cycles(taps * padded, padded)


FEW_POSITIONS = 16
"""For each output channel: gradients of 3x3 in f32, 4 images, take as a convolution and as a product

    512 to 512 channels    4 x 4 positions     4.3 and 1.7 ms (the convolution scatters its results)
    128 to 128             16 x 16             1.31 and 1.25
    64 to 64               32 x 32             1.37 and 1.40
    32 to 32               112 x 112           5.6 and 7.2 (a fourth of which is copying)"""


def gathers_windows(positions: int, columns: int, word: int) -> bool:
    """Whether a sum over so many positions, for `columns` output channels, had better be a product with a copy of what each tap sees.

    In words of two bf16 it is about twice as fast, and the copy is half as large: 2.5 instead of 3.8 ms for 64 to 64 channels, 56 x 56,
    0.65 instead of 1.26 for 128 to 128, 16 x 16.
    """
    return word > 1 or positions <= FEW_POSITIONS * columns


def turns(taps: int, columns: int, channels: int, planes: bool, grouped: bool = False, depth: int = 2 * SIDE) -> bool:
    """Whether tiles that have few columns are still faster than vectors of f32 along the lines of an image, which is one of planes or not.

    Cycles for 16 positions: a step of a tile takes 16, of vectors half of one, and an image in the other order is transposed first (64
    channels, 64 x 64: 187 us, of which as many are counted as it takes to load the elements one by one). Groups of 4 channels of
    [2, 128, 56, 56], channels-last, take 1.0 ms with the norm behind them, and 2.3 along the lines, of which two transpositions are 1.1.
    """
    transposed = SIDE * channels
    if grouped:  # as many channels come out, in rows that are not filled up
        return not planes and taps * SIDE < taps * columns * channels / 2 + 2 * transposed
    tiles = taps * SIDE * -(-channels // depth) + (transposed if planes else _filling(channels, depth))
    return tiles < taps * columns * channels / 2 + (0 if planes else transposed)
