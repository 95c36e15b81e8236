"""What a register tile fetches while it adds up products: the next panel, rows of the next tile, parts of the image that it will see."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...dialects.mlir import arith, memref
from .. import structure as st
from ..strategy.ahead import Windows
from ..strategy.common import LINE
from .lanes import Index, Number
from .nest import less

if TYPE_CHECKING:
    from .products import Products

FETCH_STEPS = 4
"""Steps of a reduction that share an instruction which fetches a line, or some."""


def fetching_rows(p: Products, rows: list[Index], lane: Index, level: int) -> Callable[[Number], None]:
    """What fetches a line of each row of the next register tile, in the steps that read one of this one: some rows at every few of them."""
    m, number, (begin, _) = p.e.math, p.r.along_rows, p.walked(p.r.reductions[0])
    p.env[p.r.reductions[0]] = Index(begin)
    place, first = p.operand_at(number, Index(m.add(rows[0].base, len(rows))), lane)
    _, second = p.operand_at(number, Index(m.add(rows[0].base, len(rows) + 1)), lane)
    stride, line = m.sub(second.base, first.base), LINE * 8 // place.element.width
    turns = line // (p.each_step * FETCH_STEPS)
    each = -(-len(rows) // turns)
    begin = m.floordiv(begin, p.each_step)

    def fetch(i: Number) -> None:
        turn = m.floordiv(m.sub(i, begin), FETCH_STEPS)
        start = m.add(first.base, m.mul(m.floordiv(turn, turns), line))
        start = m.add(start, m.mul(m.mod(turn, turns), m.mul(stride, each)))
        for k in range(each):
            memref.prefetch(place.buffer, [m.value(m.add(start, m.mul(k, stride)))], False, 4 - level, True)

    return fetch


def fetching_panel(p: Products, row: Index, lane: Index) -> Callable[[Number], None]:
    """What fetches a part of the next panel, at a step of the reduction: each of the register tiles that
    read this one has its share of the lines, and some of those for a few steps.

    All lines by the first tile, two a step, come no sooner, and what the products need waits behind them: 128 x 768 x 3072 takes 3.6 ms
    then on a Granite Rapids, instead of 3.05. A single tile fetches what lies further ahead in the stream of all panels.
    """
    m, (first, tiles), (begin, end) = p.e.math, p.reading, p.walked(p.r.reductions[0])
    p.env[p.r.reductions[0]] = Index(begin)
    number = p.r.along_lanes
    place, at = p.operand_at(number, Index(0), lane)
    element, begin, end = place.element.width // 8, m.floordiv(begin, p.each_step), m.floordiv(end, p.each_step)
    line, steps = LINE // element, m.sub(end, begin)
    lines = FETCH_STEPS * st.shape(p.op.operands[number])[2] * p.each_step // line
    each = m.floordiv(m.add(m.sub(tiles, 1), lines), tiles)
    before = m.mul(m.ceildiv(m.sub(row.base, first), p.s.rows), m.floordiv(steps, FETCH_STEPS))
    whole = m.floordiv(m.add(m.mul(steps, lines), FETCH_STEPS - 1), FETCH_STEPS)
    left = m.sub(m.floordiv(m.add(whole, m.sub(each, 1)), each), before)
    start = m.value(m.add(m.add(at.base, place.strides[0]), m.mul(m.mul(before, each), line)))
    if p.s.depth is None:  # else the stream of a tile is cut
        alone = arith.cmpi(arith.CmpIPredicate.eq, m.value(tiles), m.value(1))
        start = arith.select(alone, m.value(m.add(at.base, p.s.fetch_distance // element)), start)

    def fetch(i: Number) -> None:
        done = m.sub(i, begin)  # a multiple of FETCH_STEPS, but where an iteration has three or five steps and the like: lines are fetched about there
        at = m.add(start, m.mul(m.mul(done, each), line // FETCH_STEPS))

        def some(n: int, most: int) -> None:
            """Lines from the n-th on: those of a few tiles, and in branches those of fewer."""
            for k in range(n, most):
                memref.prefetch(place.buffer, [m.value(m.add(at, k * line))], False, 4 - p.s.fetch_level, True)
            if most < lines:
                less(p.e, most, each, lambda: some(most, 2 * most))

        less(p.e, done, m.mul(left, FETCH_STEPS), lambda: some(0, 1))

    return fetch


def fetch_windows(p: Products, w: Windows, rows: list[Index], lane: Index, level: int) -> None:
    """At a place of the windows: fetch a part of what those of the next register tile will show for the first time."""
    m, number, here = p.e.math, p.r.along_rows, dict(p.env)
    done: Number = 0
    for tap in w.taps:
        done = m.add(m.mul(done, p.k.domain.sizes[tap]), here[tap].base)
    p.env.update({tap: Index(p.k.domain.sizes[tap] - 1) for tap in w.taps})  # type: ignore[operator]
    p.env[p.r.reductions[-1] if p.s.words is None else p.s.words] = Index(0)
    place, at = p.operand_at(number, Index(m.add(rows[0].base, len(rows))), lane)
    p.env = here
    line = LINE * 8 // place.element.width
    run, runs = (len(rows) * w.stride, 1) if w.run == w.stride else (w.run, len(rows))
    lines = -(-run // line)
    each = -(-lines * runs // math.prod(p.k.domain.sizes[tap] for tap in w.taps))  # type: ignore[misc]
    for k in range(each):
        n = m.add(m.mul(done, each), k)
        behind = m.mul(n, line) if runs == 1 else m.add(m.mul(m.floordiv(n, lines), w.stride), m.mul(m.mod(n, lines), line))
        for before in w.lines:
            memref.prefetch(place.buffer, [m.value(m.add(m.add(at.base, behind), before))], False, 4 - level, True)
