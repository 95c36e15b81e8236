"""What is around results that are stored inside of padding is filled before them, by one thread.

    for n:
      fill the lines above;  for lines: fill what is left of it, and what is right of it;  fill the lines below
"""

from __future__ import annotations

import math

from ...dialects.mlir import ir, memref, vector
from .. import structure as st
from ..padded import Padded
from .entry import Step
from .evaluate import Evaluator
from .kernel import KernelFunction
from .lanes import Number
from .memory import Memory
from .nest import Values, loop


def borders(kernel: KernelFunction, lanes: int) -> list[Step]:
    """The step that fills them by vectors of `lanes` elements, if there are any."""

    def body(begin: ir.Value, end: ir.Value, status: ir.Value, slots: list[ir.Value]) -> None:
        e = Evaluator(lanes, status, kernel.shapes)
        out = kernel.bind(e, slots)
        for n, padded in kernel.padded.items():
            _fill(e, out[n], padded)

    return [Step(lambda slots: 1, 1, body)] if kernel.padded else []


def _fill(e: Evaluator, place: Memory, padded: Padded) -> None:
    sizes, (low, high) = st.shape(padded.pad.results[0]), st.pads(padded.pad)
    deepest = max(d for d in range(len(sizes)) if (low[d], high[d]) != (0, 0))
    value = e.scalar(st.padding(padded.pad))  # type: ignore[arg-type]

    def walk(d: int, base: Number) -> None:
        """Of dims from the `d`-th on, at an element of those before."""
        m, step = e.math, math.prod(sizes[d + 1 :])
        behind = sizes[d] - high[d]  # type: ignore[operator]
        _store(e, place, value, base, low[d] * step)  # type: ignore[operator]
        if d < deepest:

            def inside(i: Number, _: Values) -> Values:
                walk(d + 1, m.add(base, m.mul(i, step)))
                return []

            loop(e, low[d], behind, 1, [], inside)  # type: ignore[arg-type]
        _store(e, place, value, m.add(base, behind * step), high[d] * step)  # type: ignore[operator]

    walk(0, 0)


def _store(e: Evaluator, place: Memory, value: ir.Value, begin: Number, count: int) -> None:
    """`count` times the value, from element `begin` on: whole vectors, and shorter ones of what is left."""
    m = e.math

    def piece(at: Number, size: int) -> None:
        if size == 1:
            memref.store(value, place.buffer, [m.value(at)])
        else:
            vector.store(vector.broadcast(ir.VectorType.get([size], place.element), value), place.buffer, [m.value(at)])

    def whole(i: Number, _: Values) -> Values:
        piece(m.add(begin, i), e.lanes)
        return []

    done = count // e.lanes * e.lanes
    loop(e, 0, done, e.lanes, [], whole)
    size = e.lanes // 2
    while done < count:
        if done + size <= count:
            piece(m.add(begin, done), size)
            done += size
        size //= 2
