"""Which lanes lie so near to each other that they are loaded and stored by vectors (`vectorize.strided`)."""

from __future__ import annotations

from typing import TypeGuard

FARTHEST = 4
"""Elements from lane to lane, and so vectors that are loaded. 57,000 f32 in AVX-512, gathered and in vectors: 2 apart 28 and 12 us, 4 apart
21 and 14, 8 apart 29 and 26; bytes 17 and 4, 17 and 6, 17 and 7; of f64 (and of i64) it is 24 and 17, 34 and 29, 40 and 41."""


def is_near(stride: object) -> TypeGuard[int]:
    """Whether lanes so many elements apart are loaded by vectors, with all that lies in between."""
    return isinstance(stride, int) and (1 < abs(stride) <= FARTHEST or stride == -1)
