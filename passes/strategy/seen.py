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
class Seen:
    """Of `columns` columns, those in blocks of `block`; `classes` are theirs in each part, None where a part has none.

    The conditions are those of a part: of its arguments, and by its classes of a column, a row, and what is `outer`.
    """

    block: int
    columns: int
    classes: tuple[int | None, ...]
    part: int
    outer: tuple[int, ...]
    row: int
    column: int
    conditions: Conditions

    @property
    def blocks(self) -> int:
        return -(-self.columns // self.block)


@dataclass(frozen=True)
class _Hidden:
    """What hides columns: the ops that do, and where they are."""

    part: int
    ops: tuple[ir.Operation, ...]
    outer: tuple[int, ...]
    row: int
    column: int
    conditions: Conditions


def seen(parts: Sequence[KernelFunction], strategies: Sequence[Strategy], passed: Sequence[Passed]) -> Seen | str:
    """What is to be known of these; or why all columns are computed, empty if nothing hides any."""
    first, s = parts[0], strategies[0]
    if not isinstance(s, ContractionStrategy) or s.row is None or s.lane is None or len(first.results) != 1:
        return ""
    columns: int = first.domain.sizes[s.lane]  # type: ignore[assignment]
    batch, rows = math.prod(first.domain.sizes[c] for c in roles_of(first).outer), first.domain.sizes[s.row]  # type: ignore[misc]
    found = _hidden_in(parts[0], 0, [st.owner(first.results[0])], (batch, rows, columns), set())
    if found is None and len(parts) > 1:
        inside = {at for p in passed for part, at in p.read if part == 1}
        found = _hidden_in(parts[1], 1, parts[1].ops, (batch, rows, columns), inside)
    if found is None:
        return ""
    try:
        classes = (None, *_classes(parts, strategies, passed, columns, found))
        step = math.lcm(s.columns * s.lanes, *(_step(k, t, c, columns) for k, t, c in zip(parts, strategies, classes) if c is not None))
    except neutral.NotNeutral as e:
        return str(e)
    block = -(-COLUMNS // step) * step
    if LEAST_BLOCKS * block > columns:
        return f"{columns} columns are fewer than {LEAST_BLOCKS} blocks of {block}"
    return Seen(block, columns, classes, found.part, found.outer, found.row, found.column, found.conditions)


def _hidden_in(kernel: KernelFunction, part: int, ops: Sequence[ir.Operation | None], sizes: tuple[object, ...], inside: set[int]) -> _Hidden | None:
    """What hides columns of scores of these sizes: batch, rows, columns. The arguments that are `inside` of the chain are no masks."""
    out: _Hidden | None = None
    for op in ops:
        if op is None or op not in kernel.domain.loops or len(loops := kernel.domain.loops[op]) < 2:
            continue
        *outer, row, column = loops
        place = tuple(c for c in outer if c is not None)
        if row is None or column is None or (math.prod(kernel.domain.sizes[c] for c in place), *(kernel.domain.sizes[c] for c in (row, column))) != sizes:  # type: ignore[misc]
            continue
        if st.map_dims(st.maps(op)[-1]) != [*range(len(loops))]:
            continue
        found = tuple(c for c in conditions(kernel, op) if _tells(c, row, column) and not (isinstance(c, Mask) and c.argument in inside))
        if found and out is None:
            out = _Hidden(part, (op,), place, row, column, found)
        elif found and out is not None and found == out.conditions:
            out = replace(out, ops=(*out.ops, op))
    return out


def roles_of(kernel: KernelFunction) -> Roles:
    from ..vectorize.roles import roles

    return roles(kernel)


def _tells(c: Limit | Mask, row: int, column: int) -> bool:
    """Whether a condition says which columns a block of rows sees."""
    at = c.of if isinstance(c, Limit) else c.place
    plain = not at.parts_of(row) and not at.parts_of(column)
    return plain and (abs(at.step(column)) == 1 if isinstance(c, Limit) else at.step(column) == 1)


def _classes(
    parts: Sequence[KernelFunction], strategies: Sequence[Strategy], passed: Sequence[Passed], columns: int, hidden: _Hidden
) -> list[int | None]:
    """Of the columns in each part but the first."""
    held: dict[tuple[int, int], str] = {(0, 0): neutral.OTHER if hidden.part else neutral.NOWHERE}
    out: list[int | None] = []
    for n, (kernel, s) in enumerate(zip(parts[1:], strategies[1:]), 1):
        given = {at: held[p.made] for p in passed if p.made in held for part, at in p.read if part == n}
        if not given:
            out.append(None)
            continue
        c, results = neutral.columns(kernel, given, hidden.ops if hidden.part == n else ())
        made = {(n, result): state for result, state in results.items()}
        whole = {m for m, v in enumerate(kernel.results) if (op := st.owner(v)) is not None and c in kernel.domain.loops.get(op, ())}
        reduced = isinstance(s, ContractionStrategy) and c in kernel.domain.inner
        if not (reduced or whole == {*results} and {*made} <= {p.made for p in passed}):
            raise neutral.NotNeutral("a result has all columns")
        if not (reduced or isinstance(s, LoopStrategy) and s.lane == c and c in s.inner and c not in s.merged) or kernel.domain.sizes[c] != columns:
            raise neutral.NotNeutral("a part walks over its columns in another way")
        held.update(made)
        out.append(c)
    return out


def _step(kernel: KernelFunction, s: Strategy, c: int, columns: int) -> int:
    """Columns that a part takes at a time."""
    if isinstance(s, LoopStrategy):
        return s.lanes * s.unroll
    assert isinstance(s, ContractionStrategy)
    word = 1 if s.words is None else st.word(kernel.domain.anchor)  # type: ignore[arg-type]
    if s.tiles and s.words != c or columns % word:
        raise neutral.NotNeutral("a product does not take whole words of them")
    if not s.tiles:
        return word * s.steps
    row = tiles.row_length(kernel, roles_of(kernel))
    if columns % row or s.rows_copied or s.depth is not None:
        raise neutral.NotNeutral("a product does not take whole tiles of them")
    return row
