"""How tensors that are written into parts of another one are put together, where that one is not written back.

Times are those of one thread of AVX-512, f32.

- Parts that are all there is stand side by side (`tensor.concat`): each has a loop of its own, and nobody asks where it ends.
- Few parts are a choice for each element, an op that fuses with what is before and behind it.
- Of many, the whole is copied, with the first part if that is most of it, and each other part written to the copy by a kernel of its own.
"""

from __future__ import annotations

from ...dialects import builders

MOST_CHOICES = 4
"""[1024, 1024] with 1, 4, 8, 16 parts of four columns: choices take 0.38, 0.53, 0.84, 2.4 ms, a copy 0.45, 0.62, 0.61, 1.1; with as many
rows, choices 0.22, 0.25, 0.44, 1.2 ms, a copy 0.34, 0.41, 0.56, 0.74."""

LEAST_LAST = 2
"""Elements of the last dim. [10000, 16] of single columns: 0.27 ms side by side, 0.25 as a copy; of 8 pairs: 0.15 and 0.34."""


def side_by_side(parts: int, last: int | None) -> bool:
    """Whether parts that are all there is are concatenated; `last`: they are of the last dim, and the smallest has so many elements."""
    return 1 < parts <= builders.MAX_CONCAT and (last is None or last >= LEAST_LAST)


def chosen(parts: int) -> bool:
    """Whether each element chooses between the whole and the parts; otherwise these are written to a copy."""
    return parts <= MOST_CHOICES


MOST_PUT_TOGETHER = 4
"""Writes of which a slice that is read may have parts: it is put together from up to two more pieces for each."""


def read_apart(part: int, whole: int) -> bool:
    """Whether a slice of `part` elements, of which some were written to a tensor of `whole` and others not, is put together from slices of both,
    so that nobody reads the tensor between two writes. Two sweeps over [256, 256], each of a sum over four neighbours and four borders that are
    copied from what is beside them, take 91 us (Zen 4); where each border was a choice that later ones read, and the second sweep's sum four
    times, 327; Inductor 178, eager 254."""
    return 8 * part <= whole


def covers(part: int, whole: int) -> bool:
    """Whether the first of many parts is a choice, together with the copy of the whole that the others are written to: most of what a copy alone
    moved would be written over."""
    return 2 * part > whole
