"""How tensors that are written into parts of another one are put together, where that one is not written back.

Times are those of one thread of AVX-512, f32.

- Parts that are all there is stand side by side (`tensor.concat`): each has a loop of its own, and nobody asks where it ends.
- Few parts are a choice for each element, an op that fuses with what is before and behind it.
- Of many, the whole is copied and each part written to the copy by a kernel of its own.
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
