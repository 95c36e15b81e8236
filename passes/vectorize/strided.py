"""Lanes that lie a few elements apart, or backwards: vectors of all that lies in between, and shuffles.

    lanes 0, 2, 4, ... of 16, from %i on:      %a = load [%i];  %b = load [%i + 15]
                                               shuffle %a, %b [0, 2, ..., 14, 17, 19, ..., 31]

Nothing is read before the first element or behind the last one. A gather reads every lane by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...dialects import builders
from ...dialects.mlir import ir, vector
from .lanes import Arithmetic, Number, Point
from .memory import Memory

if TYPE_CHECKING:
    from .evaluate import Evaluator


def load(m: Arithmetic, place: Memory, base: Number, stride: int, mask: ir.Value | None) -> ir.Value:
    """The elements at base, base + stride, ... in storage; zero where the mask has no lane."""
    n, step = m.lanes, abs(stride)
    elements = [k * step for k in range(n)][:: 1 if stride > 0 else -1]
    lane_of = {element: k for k, element in enumerate(elements)}
    first = base if stride > 0 else m.add(base, (n - 1) * stride)
    begins = [min(t * n, (n - 1) * step + 1 - n) for t in range(step)]  # the last one ends with the last element
    vectors = []
    for begin in begins:
        lanes = None if mask is None else _spread(mask, [lane_of.get(begin + j, n) for j in range(n)])
        vectors.append(_load(m, place, m.add(first, begin), lanes))
    if step == 1:
        return vector.shuffle(vectors[0], vectors[0], elements)
    def taken(t: int) -> list[int]:
        """From lane to lane: where vector t has the element, or else where it is in what the vectors before have been made into."""
        begin, done = begins[t], begins[t - 1] + n
        before = elements if t == 1 else range(n)
        return [old if at < done else n + at - begin if at < begin + n else 0 for at, old in zip(elements, before)]

    out = vectors[0]
    for t in range(1, step):
        out = vector.shuffle(out, vectors[t], taken(t))
    return out


def store(e: Evaluator, place: Memory, points: Sequence[Point], parts: Sequence[ir.Value]) -> None:
    """Store values at places next to each other, each for all lanes: as many vectors, whole ones; lanes that are masked one by one."""
    if e.mask is not None:
        for point, part in zip(points, parts):
            e.store(place, point, part)
        return
    base = e.offset(place, points[0]).base
    for wide in interleave([e.to_storage(e.math.splat(part), place) for part in parts]):
        vector.store(wide, place.buffer, [e.math.value(base)])
        base = e.math.add(base, ir.VectorType(wide.type).shape[0])


def interleave(parts: Sequence[ir.Value]) -> list[ir.Value]:
    """The first elements of two to four vectors, then the second ones, and so on: vectors that lie one after the other."""
    n, count = ir.VectorType(parts[0].type).shape[0], len(parts)
    if count == 2:
        return [vector.interleave(*parts)]
    if count == 4:
        a, b, c, d = parts
        return [vector.interleave(vector.interleave(a, c), vector.interleave(b, d))]
    a, b, c = parts
    out = []
    for t in range(count):
        places = [divmod(t * n + j, count) for j in range(n)]
        both = vector.shuffle(a, b, [k + n * (of == 1) for k, of in places])
        out.append(vector.shuffle(both, c, [n + k if of == 2 else j for j, (k, of) in enumerate(places)]))
    return out


def _load(m: Arithmetic, place: Memory, begin: Number, mask: ir.Value | None) -> ir.Value:
    kind = m.vector_type(place.storage)
    if mask is None:
        return vector.load(kind, place.buffer, [m.value(begin)])
    return vector.maskedload(kind, place.buffer, [m.value(begin)], mask, builders.constant(kind, 0))


def _spread(mask: ir.Value, lanes: list[int]) -> ir.Value:
    """Which elements of a vector are those of lanes that the mask has; none is that of lane n."""
    return vector.shuffle(mask, builders.constant(mask.type, 0), lanes)
