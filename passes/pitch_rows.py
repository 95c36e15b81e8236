"""Rows that a product reads, or whose gathered blocks are added up, and that would evict one another from a cache, lie further apart than
they are long.

    %h = generic gelu ... : [128, 3072] {group 4}                     %h = generic gelu ... {group 4, mlirc.pitch = [3104]}
    %y = contraction %h, %w             {group 5}              ->     %y = contraction %h, %w {group 5}

Runs on the groups of the fusion: for what one group of ops leaves for others, which takes memory with some elements between its rows then.
`strategy.traffic.row_pitch` says which rows of products those are, `strategy.scatter.gathered_pitch` which of sums. What is returned, or
read by anything but ops with strides of their own, stays dense.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .layouts import Layouts, NotAView, pitch_of, set_pitches
from .overwrite import OVERWRITES
from .strategy.scatter import gathered_pitch
from .strategy.traffic import row_pitch

if TYPE_CHECKING:
    from ..lowering.target import Target

PASS_NAME = "mlirc-pitch-rows"

_READERS = ("contraction", "elementwise", "reduction")
_FIXED = ("mlirc.write", OVERWRITES)


def pitch_rows(function: ir.Operation, target: Target) -> None:
    """Leave `mlirc.pitch` on the ops that make such rows: for each result the elements from row to row, 0 where it is dense."""
    operations = [st.operation(o) for o in function.regions[0].blocks[0].operations]
    grouped = [op for op in operations if st.group_number(op) is not None]
    found = [(op, v, pitch) for op in grouped if st.kind(op) == "contraction" for v, pitch in _rows(op)]
    found += [(op, v, pitch) for op in grouped if st.kind(op) == "segments" for v, pitch in _tables(op, target)]
    if not found:
        return
    fixed = {st.group_number(op) for op in operations if any(name in op.attributes for name in _FIXED)}
    layouts = Layouts(function)
    pitches: dict[ir.Value, int] = {}
    for op, rows, pitch in found:
        value = _whole(rows, layouts)
        maker = None if value is None else st.owner(value)
        group = None if maker is None or st.kind(maker) not in _READERS else st.group_number(maker)
        if group is not None and group not in fixed and group != st.group_number(op) and value not in pitches and _only_read(value):
            pitches[value] = pitch
    for value, pitch in pitches.items():
        _set(value, pitch)
    layouts.begin_again()
    for value in [v for v in pitches if not _all_views(v, layouts)]:
        _set(value, 0)


def _rows(op: ir.Operation) -> Iterator[tuple[ir.Value, int]]:
    """The operands of which a product adds up whole rows that want a pitch, and that."""
    for v, m in zip(op.operands, st.maps(op)):
        dims, shape = st.map_dims(m), st.shape(v)
        if len(dims) > 1 and dims[-1] is not None and st.iterators(op)[dims[-1]] == "reduction" and any(n != 1 for n in shape[:-1]):
            pitch = row_pitch(shape[-1], builders.element_type(v).width // 8)
            if pitch is not None:
                yield v, pitch


def _tables(op: ir.Operation, target: Target) -> Iterator[tuple[ir.Value, int]]:
    """The tables whose rows are gathered for sums, and want a pitch, and that."""
    made, left = {op}, [op.operands[1]]
    while left:
        maker = st.owner(left.pop())
        if maker is None or maker in made or st.kind(maker) not in ("elementwise", "view"):
            continue
        made.add(maker)
        left += maker.operands
        updates = st.shape(maker.results[0])
        for table in st.captured(maker):
            if st.is_tensor(table) and len(st.shape(table)) == 2 and min(*st.shape(table), *updates) > 0:
                pitch = gathered_pitch(*st.shape(table), math.prod(updates[:-1]), builders.element_type(table).width // 8, target)
                if pitch is not None:
                    yield table, pitch


def _whole(value: ir.Value, layouts: Layouts) -> ir.Value | None:
    """The tensor that the value is a view of, if both have the same rows."""
    try:
        layout = layouts.of(value)
    except NotAView:
        return None
    same = layout.offset == 0 and layout.strides[-1] == 1 and st.shape(layout.root)[-1] == st.shape(value)[-1]
    return layout.root if same else None


def _only_read(value: ir.Value) -> bool:
    """Whether all that looks at a tensor, or at views of it, are ops of groups that read it as their maps say."""
    for use in value.uses:
        op = st.in_function(use.owner)
        if st.kind(op) == "view":
            if not _only_read(op.results[0]):
                return False
        elif st.kind(op) not in _READERS or st.group_number(op) is None:
            return False
    return True


def _set(value: ir.Value, pitch: int) -> None:
    op = st.operation(value.owner)
    set_pitches(op, [pitch if r == value else pitch_of(r) for r in op.results])


def _all_views(value: ir.Value, layouts: Layouts) -> bool:
    """Whether views of the tensor are views still."""
    try:
        for view in _views(value):
            layouts.of(view)
    except NotAView:
        return False
    return True


def _views(value: ir.Value) -> Iterator[ir.Value]:
    for use in value.uses:
        op = st.in_function(use.owner)
        if st.kind(op) == "view":
            yield op.results[0]
            yield from _views(op.results[0])
