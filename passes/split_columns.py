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

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .layouts import Layouts
from .strategy.parts import why_whole
from .weights import is_linear, weights_of

if TYPE_CHECKING:
    from ..lowering.target import Target

PASS_NAME = "mlirc-split-columns"
MOST = 4
"""Parts."""


@dataclass
class _Parts:
    """What is made of a product: ops on all columns, one behind the other, and of the last one slices, which have all columns between them."""

    behind: list[ir.Operation]
    slices: list[ir.Operation]


def split_columns(function: ir.Operation, target: Target) -> bool:
    """One walk over the function's block; whether a product was split."""
    weights, layouts, changed = weights_of(function), Layouts(function), False
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        parts = _parts(op) if is_linear(op, weights) else None
        if parts is None:
            continue
        rows, columns = layouts.shapes.of(op.results[0])
        last = (parts.behind or [op])[-1].results[0]
        assert isinstance(columns, int)
        reason = why_whole(rows if isinstance(rows, int) else None, columns, builders.element_type(last).width, target)
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
    start = st.owner(op.operands[2])
    if start is None or start.name != "linalg.fill" or 0 in st.shape(op.operands[1]):
        return None
    behind: list[ir.Operation] = []
    value = op.results[0]
    while True:
        follower = _only_user(value)
        if follower is None or not (_keeps_columns(follower) or _is_behind(follower, value)):
            break
        behind.append(follower)
        value = follower.results[0]
    users = [st.operation(use.owner) for use in value.uses]
    if not 2 <= len(users) <= MOST or not all(u.name == "tensor.extract_slice" and _cuts_columns(u) for u in users):
        return None
    slices = sorted(users, key=_begin)
    width, columns = st.shape(slices[0].results[0])[-1], st.shape(value)[-1]
    # One after the other, they fill all columns.
    if any((_begin(s), st.shape(s.results[0])[-1]) != (n * width, width) for n, s in enumerate(slices)) or len(slices) * width != columns:
        return None
    first, *others = (_followers(s.results[0]) for s in slices)
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
        dims = st.map_dims(m)
        if v == value and m != builders.identity(rank) or v != value and ({*dims} - {None, last} or dims.count(last) > 1):
            return False
    return list(op.operands).count(value) == 1


def _cuts_columns(piece: ir.Operation) -> bool:
    """Whether a slice has all rows (of unknown numbers any, with which nothing is split), and some columns that follow one another."""
    offsets, steps = st.slice_parts(piece)
    *rows, width = st.shape(piece.results[0])
    *all_rows, columns = st.shape(piece.operands[0])
    return rows == all_rows and 0 < width < columns and offsets[:-1] == [0] * len(rows) and isinstance(offsets[-1], int) and set(steps) == {1}


def _begin(piece: ir.Operation) -> int:
    (*_, begin), _ = st.slice_parts(piece)
    assert isinstance(begin, int)
    return begin


def _followers(value: ir.Value) -> set[ir.Operation]:
    """The elementwise ops that are computed of a value, through one another and views."""
    found: set[ir.Operation] = set()
    stack = [value]
    while stack:
        for use in stack.pop().uses:
            op = st.operation(use.owner)
            if op not in found and st.kind(op) in ("elementwise", "view"):
                found.add(op)
                stack += op.results
    return {op for op in found if st.kind(op) == "elementwise"}


def _part(op: ir.Operation, behind: list[ir.Operation], piece: ir.Operation, layouts: Layouts) -> ir.Value:
    """A slice of what is made of a product, made of a slice of its weight."""
    width = st.shape(piece.results[0])[-1]
    start = st.owner(op.operands[2])
    assert start is not None
    _, weight, out = (st.map_dims(m) for m in st.maps(op))
    rows, _ = layouts.values(op.results[0])
    columns = _columns(op.operands[1], weight.index(out[1]), piece, layouts)
    before, value = op.results[0], _again(op, [op.operands[0], columns, builders.fill([rows, width], start.operands[0])])
    for follower in behind:
        sizes = [*layouts.values(follower.results[0])[:-1], width]
        if follower.name == "tensor.expand_shape":
            value = builders.expand(value, st.reassociation(follower), sizes)
        elif follower.name == "tensor.collapse_shape":
            value = builders.collapse(value, st.reassociation(follower), sizes)
        else:
            operands = [
                value if v == before else _columns(v, dims.index(len(sizes) - 1), piece, layouts) if len(sizes) - 1 in dims else v
                for v, dims in zip(st.inputs(follower), map(st.map_dims, st.maps(follower)))
            ]
            value = _again(follower, [*operands, builders.empty(sizes, builders.element_type(follower.results[0]))])
        before = follower.results[0]
    return value


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
