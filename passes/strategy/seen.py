"""Which columns of its scores a block of rows can see, where kernels take turns: no part computes the others.

    scores = select(j <= i, q k^T, -inf);  p = softmax(scores);  out = p v

For rows 64 to 127 of these all that is right of column 127 is -inf in `scores` and 0 in `p`. The bounds are whole blocks of columns: from the
arithmetic of the indices, or from a mask, which is looked through for each block of rows (a byte for some products of 64 elements each).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...dialects.mlir import ir
from .. import neutral
from .. import structure as st
from ..conditions import Conditions, Limit, Mask, conditions
from . import tiles
from .contractions import ContractionStrategy
from .loops import LoopStrategy

if TYPE_CHECKING:
    from ..vectorize.kernel import KernelFunction
    from ..vectorize.roles import Roles
    from . import Strategy
    from .chains import Passed

COLUMNS = 64
"""In a block, at least."""
LEAST_BLOCKS = 4
"""Fewer are not told apart."""


@dataclass(frozen=True)
class Columns:
    """The class that is walked in part, and the class of the columns of one of these, if they are in blocks: so many (`each`) to a block."""

    walked: int
    within: int | None = None
    each: int = 1


@dataclass(frozen=True)
class Seen:
    """Of the columns those in blocks of `block` of what is walked; `classes` are the walked ones of each part, None where a part has none.

    The conditions are those of a part: of its arguments, and by its classes of the columns, a row, and what is `outer`.
    """

    block: int
    classes: tuple[int | None, ...]
    part: int
    outer: tuple[int, ...]
    row: int
    column: Columns
    conditions: Conditions


@dataclass(frozen=True)
class _Hidden:
    """What hides columns: the ops that do, and where they are."""

    part: int
    ops: tuple[ir.Operation, ...]
    outer: tuple[int, ...]
    row: int
    column: Columns
    conditions: Conditions


def seen(parts: Sequence[KernelFunction], strategies: Sequence[Strategy], passed: Sequence[Passed]) -> Seen | str:
    """What is to be known of these; or why all columns are computed, empty if nothing hides any."""
    first, s = parts[0], strategies[0]
    if not isinstance(s, ContractionStrategy) or s.row is None or s.lane is None or len(first.results) != 1 or s.inside > 1:
        return ""
    outer, number = roles_of(first).outer, first.domain.sizes
    before = outer[: len(outer) - s.inside]
    sizes = [math.prod(number[c] for c in before), number[s.row], *(number[c] for c in outer[len(before) :]), number[s.lane]]  # type: ignore[misc]
    found = _hidden_in(parts[0], 0, [st.owner(first.results[0])], sizes, set())
    if found is None and len(parts) > 1:
        inside = {at for p in passed for part, at in p.read if part == 1}
        found = _hidden_in(parts[1], 1, parts[1].ops, sizes, inside)
    if found is None:
        return ""
    try:
        classes = (None, *_classes(parts, strategies, passed, sizes[2:], found))
        steps = [_step(k, t, c, sizes[2:]) for k, t, c in zip(parts, strategies, classes) if c is not None]
        step = math.lcm(*steps, *([] if s.inside else [s.columns * s.lanes]))
    except neutral.NotNeutral as e:
        return str(e)
    block = -(-COLUMNS // (step * found.column.each)) * step
    if LEAST_BLOCKS * block > sizes[2]:
        return f"{sizes[2]} columns are fewer than {LEAST_BLOCKS} blocks of {block}"
    return Seen(block, classes, found.part, found.outer, found.row, found.column, found.conditions)


def _hidden_in(kernel: KernelFunction, part: int, ops: Sequence[ir.Operation | None], sizes: list[int], inside: set[int]) -> _Hidden | None:
    """What hides columns of scores of these sizes: batch, rows, columns, which may be two dims. The arguments that are `inside` of the chain
    are no masks."""
    out: _Hidden | None = None
    dims = len(sizes) - 2
    for op in ops:
        if op is None or op not in kernel.domain.loops or len(loops := kernel.domain.loops[op]) < 1 + dims:
            continue
        place = tuple(c for c in loops[: -1 - dims] if c is not None)
        inner = loops[-1 - dims :]
        if None in inner or [math.prod(map(kernel.domain.sizes.__getitem__, place)), *map(kernel.domain.sizes.__getitem__, inner)] != sizes:  # type: ignore[call-overload, arg-type]
            continue
        if st.map_dims(st.maps(op)[-1]) != [*range(len(loops))]:
            continue
        row, *columns = inner
        column = Columns(columns[0]) if dims == 1 else Columns(columns[0], columns[1], sizes[-1])  # type: ignore[arg-type]
        found = tuple(c for c in conditions(kernel, op) if _tells(c, row, column) and not (isinstance(c, Mask) and c.argument in inside))  # type: ignore[arg-type]
        if found and out is None:
            out = _Hidden(part, (op,), place, row, column, found)  # type: ignore[arg-type]
        elif found and out is not None and found == out.conditions:
            out = replace(out, ops=(*out.ops, op))
    return out


def roles_of(kernel: KernelFunction) -> Roles:
    from ..vectorize.roles import roles

    return roles(kernel)


def _tells(c: Limit | Mask, row: int, column: Columns) -> bool:
    """Whether a condition says which columns a block of rows sees."""
    of = c.of if isinstance(c, Limit) else c.place
    at = c.of if isinstance(c, Limit) else c.place.known
    step = at.step(column.walked if column.within is None else column.within)
    plain = not any(of.parts_of(x) for x in (row, column.walked, column.within) if x is not None) and at.step(column.walked) == column.each * step
    if isinstance(c, Limit):
        return plain and abs(step) == 1
    return plain and step == 1 and not any(c.place.depends(x) for x in (column.walked, column.within) if x is not None)


def _classes(
    parts: Sequence[KernelFunction], strategies: Sequence[Strategy], passed: Sequence[Passed], columns: Sequence[int], hidden: _Hidden
) -> list[int | None]:
    """Of the columns in each part but the first: those that are walked."""
    held: dict[tuple[int, int], str] = {(0, 0): neutral.OTHER if hidden.part else neutral.NOWHERE}
    out: list[int | None] = []
    for n, (kernel, s) in enumerate(zip(parts[1:], strategies[1:]), 1):
        given = {at: held[p.made] for p in passed if p.made in held for part, at in p.read if part == n}
        if not given:
            out.append(None)
            continue
        found, results = neutral.columns(kernel, given, hidden.ops if hidden.part == n else (), len(columns))
        c = found[0]
        made = {(n, result): state for result, state in results.items()}
        whole = {m for m, v in enumerate(kernel.results) if (op := st.owner(v)) is not None and c in kernel.domain.loops.get(op, ())}
        reduced = isinstance(s, ContractionStrategy) and c in kernel.domain.inner
        if not (reduced or whole == {*results} and {*made} <= {p.made for p in passed}):
            raise neutral.NotNeutral("a result has all columns")
        walked = isinstance(s, LoopStrategy) and s.lane == found[-1] and {*found} <= {*s.inner} and not {*found} & {*s.merged}
        if not (reduced or walked) or [kernel.domain.sizes[x] for x in found] != [*columns]:
            raise neutral.NotNeutral("a part walks over its columns in another way")
        held.update(made)
        out.append(c)
    return out


def _step(kernel: KernelFunction, s: Strategy, c: int, columns: Sequence[int]) -> int:
    """Of the walked class, what a part takes at a time."""
    if isinstance(s, ContractionStrategy) and s.tiles and (s.rows_copied or s.depth is not None):
        raise neutral.NotNeutral("a product takes its tiles in another way")
    if len(columns) > 1:  # whole blocks of columns
        return 1
    if isinstance(s, LoopStrategy):
        return s.lanes * s.unroll
    assert isinstance(s, ContractionStrategy)
    if s.tiles:
        row = tiles.row_length(kernel, roles_of(kernel))
        if s.words != c or columns[0] % row:
            raise neutral.NotNeutral("a product does not take whole tiles of them")
        return row
    word = 1 if s.words is None else st.word(kernel.domain.anchor)  # type: ignore[arg-type]
    if columns[0] % word:
        raise neutral.NotNeutral("a product does not take whole words of them")
    return word * s.steps
