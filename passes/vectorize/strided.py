"""Loads whose lanes lie a few elements apart, or backwards: vectors of all that lies in between, and shuffles.

    lanes 0, 2, 4, ... of 16, from %i on:      %a = load [%i];  %b = load [%i + 15]
                                               shuffle %a, %b [0, 2, ..., 14, 17, 19, ..., 31]

Nothing is read before the first element or behind the last one. A gather reads every lane by itself.
"""

from __future__ import annotations

from ...dialects import builders
from ...dialects.mlir import ir, vector
from .lanes import Arithmetic, Number
from .memory import Memory

FARTHEST = 4
"""Elements from lane to lane, and so vectors that are loaded. 57,000 f32 in AVX-512, gathered and in vectors: 2 apart 28 and 12 us, 4 apart
21 and 14, 8 apart 29 and 26; bytes 17 and 4, 17 and 6, 17 and 7; of f64 (and of i64) it is 24 and 17, 34 and 29, 40 and 41."""


def is_near(stride: Number) -> bool:
    """Whether lanes so many elements apart are loaded by vectors."""
    return isinstance(stride, int) and (1 < abs(stride) <= FARTHEST or stride == -1)


def load(m: Arithmetic, place: Memory, base: Number, stride: int, mask: ir.Value | None) -> ir.Value:
    """The elements at base, base + stride, ... in storage; zero where the mask has no lane."""
    n, step = m.lanes, abs(stride)
    elements = [k * step for k in range(n)][:: 1 if stride > 0 else -1]
    lane_of = {element: k for k, element in enumerate(elements)}
    first = base if stride > 0 else m.add(base, (n - 1) * stride)
    begins = [min(t * n, (n - 1) * step + 1 - n) for t in range(step)]
    vectors = []
    for begin in begins:
        lanes = None if mask is None else _spread(mask, [lane_of.get(begin + j, n) for j in range(n)])
        vectors.append(_load(m, place, m.add(first, begin), lanes))
    if step == 1:
        return vector.shuffle(vectors[0], vectors[0], elements)
    out = vectors[0]
    for t in range(1, step):
        begin, done = begins[t], begins[t - 1] + n  # elements that are not in this vector or behind it
        from_here = [n + at - begin if at < begin + n else 0 for at in elements]
        out = vector.shuffle(out, vectors[t], [(at if t == 1 else k) if at < done else from_here[k] for k, at in enumerate(elements)])
    return out


def _load(m: Arithmetic, place: Memory, begin: Number, mask: ir.Value | None) -> ir.Value:
    kind = m.vector_type(place.storage)
    if mask is None:
        return vector.load(kind, place.buffer, [m.value(begin)])
    return vector.maskedload(kind, place.buffer, [m.value(begin)], mask, builders.constant(kind, 0))


def _spread(mask: ir.Value, lanes: list[int]) -> ir.Value:
    """Which elements of a vector are those of lanes that the mask has; none is that of lane n."""
    return vector.shuffle(mask, builders.constant(mask.type, 0), lanes)
