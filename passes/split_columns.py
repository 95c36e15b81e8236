"""A product with a weight whose columns are read in parts that meet again (GEGLU, SwiGLU of one linear layer) becomes a product for each part.

    %p = contraction %x, %w : 1024x2560                %g = contraction %x, %w[1280:] : 1024x1280
    %b = generic addf %p, %bias                        %gate = generic gelu (addf %g, %bias[1280:])
    %h, %g = slices of the columns of %b        ->     %h = contraction %x, %w[:1280] : 1024x1280
    %r = generic mulf %h, gelu %g                      %r = generic mulf (addf %h, %bias[:1280]), %gate

What joins them is the epilogue of the last one then: each part but that is stored and read once, instead of all of them and what they become, and
no kernel is left for it (`siblings` may make them one kernel). Slices of weights are packed like weights. Where `strategy` sees no gain the reason
is left as the remark attribute `mlirc.whole`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .layouts import Layouts
from .strategy.siblings import why_whole
from .weights import is_linear, weights_of

if TYPE_CHECKING:
    from ..lowering.target import Target

PASS_NAME = "mlirc-split-columns"
MOST = 4
"""Parts."""


@dataclass
class _Parts:
    """Of the columns of a product: the ops on all of them, in their order, and the slices that read nothing else, by where they begin."""

    behind: list[ir.Operation]
    slices: list[ir.Operation]


def split_columns(function: ir.Operation, target: Target) -> bool:
    """One walk over the function's block; whether there was one."""
    weights, layouts, changed = weights_of(function), Layouts(function), False
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        parts = _parts(op) if is_linear(op, weights) else None
        if parts is None:
            continue
        rows, columns = layouts.shapes.of(op.results[0])
        last = (parts.behind or [op])[-1].results[0]
        reason = why_whole(rows, columns, builders.element_type(last).width, target)  # type: ignore[arg-type]
        if reason:
            op.attributes["mlirc.whole"] = ir.StringAttr.get(reason)
            continue
        layouts.begin_again()
        for piece in parts.slices:
            with ir.InsertionPoint(piece), piece.location:
                piece.results[0].replace_all_uses_with(_part(op, parts.behind, piece, layouts))
        changed = True
    return changed


def _parts(op: ir.Operation) -> _Parts | None:
    """None unless all that is made of a product is parts of its columns, as wide as one another, that meet."""
    behind: list[ir.Operation] = []
    value = op.results[0]
    while (follower := _only_user(value)) is not None and (_keeps_columns(follower) or _is_behind(follower, value)):
        behind.append(follower)
        value = follower.results[0]
    users = [st.operation(use.owner) for use in value.uses]
    if not 2 <= len(users) <= MOST or not all(u.name == "tensor.extract_slice" and _cuts_columns(u) for u in users):
        return None
    slices = sorted(users, key=_begin)
    width = st.shape(slices[0].results[0])[-1]
    if [_begin(s) for s in slices] != [n * width for n in range(len(slices))] or len(slices) * width != st.shape(value)[-1]:
        return None
    if any(st.shape(s.results[0])[-1] != width for s in slices):
        return None
    first, *others = (set(_followers(s.results[0])) for s in slices)
    return _Parts(behind, slices) if first.intersection(*others) else None


def _only_user(value: ir.Value) -> ir.Operation | None:
    users = [st.operation(use.owner) for use in value.uses]
    return users[0] if len(users) == 1 else None


def _keeps_columns(op: ir.Operation) -> bool:
    """Whether this is a reshape of the rows."""
    return op.name in ("tensor.expand_shape", "tensor.collapse_shape") and len(st.reassociation(op)[-1]) == 1


def _is_behind(op: ir.Operation, value: ir.Value) -> bool:
    """Whether an elementwise op reads a value as it is, and beside it what has a number for each column, or only one."""
    if not st.is_plain(op) or any(map(st.is_tensor, st.captured(op))):
        return False
    *reads, out = st.maps(op)
    rank, last = out.n_dims, out.n_dims - 1
    for v, m in zip(op.operands, reads):
        if v == value and m != builders.identity(rank) or v != value and {*st.map_dims(m)} - {None, last}:
            return False
    return list(op.operands).count(value) == 1


def _cuts_columns(piece: ir.Operation) -> bool:
    """Whether a slice has all rows, and some columns that follow one another."""
    offsets, steps = st.slice_parts(piece)
    *rows, width = st.shape(piece.results[0])
    *all_rows, columns = st.shape(piece.operands[0])
    return rows == all_rows and 0 < width < columns and offsets[:-1] == [0] * len(rows) and isinstance(offsets[-1], int) and set(steps) == {1}


def _begin(piece: ir.Operation) -> int:
    (*_, begin), _ = st.slice_parts(piece)
    assert isinstance(begin, int)
    return begin


def _followers(value: ir.Value) -> Iterator[ir.Operation]:
    """The elementwise ops that are computed of a value, through one another and views."""
    for use in value.uses:
        op = st.operation(use.owner)
        kind = st.kind(op)
        if kind == "elementwise":
            yield op
        if kind in ("elementwise", "view"):
            for result in op.results:
                yield from _followers(result)


def _part(op: ir.Operation, behind: list[ir.Operation], piece: ir.Operation, layouts: Layouts) -> ir.Value:
    """A slice of what is made of a product, made of a slice of its weight."""
    width = st.shape(piece.results[0])[-1]
    start = st.owner(op.operands[2])
    assert start is not None
    _, weight, out = (st.map_dims(m) for m in st.maps(op))
    rows, _ = layouts.values(op.results[0])
    columns = _columns(op.operands[1], weight.index(out[1]), piece, layouts)
    value = _again(op, [op.operands[0], columns, builders.fill([rows, width], start.operands[0])])
    for follower in behind:
        sizes = [*layouts.values(follower.results[0])[:-1], width]
        if follower.name == "tensor.expand_shape":
            value = builders.expand(value, st.reassociation(follower), sizes)
        elif follower.name == "tensor.collapse_shape":
            value = builders.collapse(value, st.reassociation(follower), sizes)
        else:
            value = _elementwise(follower, value, sizes, piece, layouts)
    return value


def _elementwise(op: ir.Operation, value: ir.Value, sizes: list[builders.Size], piece: ir.Operation, layouts: Layouts) -> ir.Value:
    """An op on the columns of a slice, whose first operand that is no number for all or for each column is `value`."""
    last, operands = len(sizes) - 1, []
    for v, m in zip(st.inputs(op), st.maps(op)):
        dims = st.map_dims(m)
        if len(dims) == len(sizes) and dims == list(range(len(sizes))):
            operands.append(value)
        else:
            operands.append(_columns(v, dims.index(last), piece, layouts) if last in dims else v)
    return _again(op, [*operands, builders.empty(sizes, builders.element_type(op.results[0]))])


def _columns(value: ir.Value, dim: int, piece: ir.Operation, layouts: Layouts) -> ir.Value:
    """Of an operand, with the columns along `dim`, those of a slice."""
    sizes = layouts.values(value)
    offsets = [_begin(piece) if d == dim else 0 for d in range(len(sizes))]
    return builders.extract_slice(value, offsets, [st.shape(piece.results[0])[-1] if d == dim else n for d, n in enumerate(sizes)], [1] * len(sizes))


def _again(op: ir.Operation, operands: list[ir.Value]) -> ir.Value:
    """The same op on other operands, of which the last one has the type of the result."""
    new = st.operation(op.clone())
    for n, v in enumerate(operands):
        new.operands[n] = v
    new.results[0].set_type(operands[-1].type)
    return new.results[0]
