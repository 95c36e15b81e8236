"""What a register tile fetches while it adds up products: the next panel, rows of the next tile, parts of the image that it will see."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...dialects.mlir import arith, ir, memref
from .. import structure as st
from ..strategy.ahead import Windows
from ..strategy.common import LINE
from .lanes import Index, Number
from .nest import either, less

if TYPE_CHECKING:
    from .memory import Memory
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


def fetching_panel(p: Products, rows: list[Index], lane: Index) -> Callable[[Number], None]:
    """What fetches a part of the next panel, at a step of the reduction: each of the register tiles that
    read this one has its rows' share of the lines, and some of those for a few steps.

    All lines by the first tile, two a step, come no sooner, and what the products need waits behind them: 128 x 768 x 3072 takes 3.6 ms
    then on a Granite Rapids, instead of 3.05. A single tile (`_alone`) fetches what lies further ahead in the stream of all panels, or all
    lines of the next one, from several places (`_in_streams`).
    """
    m, (first, count), (begin, end) = p.e.math, p.reading, p.walked(p.r.reductions[0])
    p.env[p.r.reductions[0]] = Index(begin)
    number = p.r.along_lanes
    place, at = p.operand_at(number, Index(0), lane)
    element, begin, end = place.element.width // 8, m.floordiv(begin, p.each_step), m.floordiv(end, p.each_step)
    line, steps = LINE // element, m.sub(end, begin)
    lines = FETCH_STEPS * st.shape(p.op.operands[number])[2] * p.each_step // line
    whole = m.floordiv(m.add(m.mul(steps, lines), FETCH_STEPS - 1), FETCH_STEPS)
    alone, few = _alone(p, count), len(rows) <= p.s.few_rows and m.at_most(count, p.s.few_rows)
    in_streams = _in_streams(p, place, m.add(at.base, p.following(m.mul(whole, line), place.strides[0])), steps, lines) if p.s.streams > 1 else None
    if in_streams is not None and alone is True:
        return lambda i: in_streams(m.sub(i, begin), p.s.fetch_level)
    count = m.chosen(alone, 1, count)
    of_row = m.maximum(m.floordiv(whole, count), m.floordiv(m.floordiv(steps, FETCH_STEPS), p.s.rows))
    each = m.minimum(m.floordiv(m.add(m.sub(count, 1), lines * len(rows)), count), lines)
    before = m.mul(m.sub(rows[0].base, first), of_row)
    left = m.mul(m.sub(whole, before), FETCH_STEPS)
    block = m.mul(whole, line)
    after = p.following(block, place.strides[0])
    next_panel = m.add(m.add(at.base, after), m.mul(before, line))
    ahead = m.chosen(few, p.s.few_distance // element, p.s.fetch_distance // element)
    start = m.value(m.chosen(alone, m.add(at.base, ahead), next_panel))
    if p.s.depth is not None:  # the stream goes on at the block that is read next
        jump = m.chosen(alone, m.sub(after, block), 0)
        last = m.sub(block, ahead)

    def fetch(i: Number) -> None:
        done = m.sub(i, begin)  # a multiple of FETCH_STEPS, but where an iteration has three or five steps and the like: lines are fetched about there
        position = m.mul(m.mul(done, each), line // FETCH_STEPS)
        at = m.add(start, position)
        if p.s.depth is not None:
            within = arith.cmpi(arith.CmpIPredicate.slt, m.value(position), m.value(last))
            at = m.add(at, m.chosen(within, 0, jump))

        def line_at(k: int, level: int) -> None:
            memref.prefetch(place.buffer, [m.value(m.add(at, k * line))], False, 4 - level, True)

        def some(n: int, most: int) -> None:
            """Lines from the n-th on: those of a few tiles, and in branches those of fewer."""
            for k in range(n, most):
                line_at(k, p.s.fetch_level)
            if most < lines:
                less(p.e, most, each, lambda: some(most, 2 * most))

        def by_rows() -> None:
            less(p.e, m.mul(done, each), left, lambda: some(0, 1))

        def by_one() -> None:
            if in_streams is not None:
                in_streams(done, 1)
            else:
                for k in range(lines):
                    line_at(k, 1)

        if few is False:
            by_rows()
        else:
            either(p.e, few, by_one, by_rows)

    return fetch


def _in_streams(p: Products, place: Memory, start: Number, steps: Number, lines: int) -> Callable[[Number, int], None]:
    """What fetches, `done` steps of the reduction from its beginning, as many lines of the panel at `start` as a few steps read, into a level
    of the caches: each stream is a part of the panel."""
    m, line, each = p.e.math, LINE * 8 // place.element.width, -(-lines // p.s.streams)
    part = m.mul(m.floordiv(m.add(m.mul(steps, each), FETCH_STEPS - 1), FETCH_STEPS), line)

    def fetch(done: Number, level: int) -> None:
        at = m.add(start, m.mul(m.mul(done, each), line // FETCH_STEPS))
        for stream in range(p.s.streams):
            for k in range(each):
                memref.prefetch(place.buffer, [m.value(m.add(at, m.add(m.mul(part, stream), k * line)))], False, 4 - level, True)

    return fetch


def _alone(p: Products, rows: Number) -> bool | ir.Value:
    """Whether so many rows are a single tile, or are taken for one: where their number is a symbol, up to those of a whole tile may be two, of
    which the first fetches for both unless they `share_ahead`.
    """
    m, most = p.e.math, p.s.rows
    if isinstance(rows, int) or not p.s.share_ahead:
        return m.at_most(rows, most)
    return arith.ori(m.at_most(rows, p.s.short_rows[0]), arith.cmpi(arith.CmpIPredicate.eq, rows, m.value(most)))  # type: ignore[arg-type]


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
