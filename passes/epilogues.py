"""Where an epilogue should end: what a kernel stores for a reader that cannot join it should be small.

    kernel 0: %h = contraction + residual (bf16);  %c = extf %h;  %s = %c * %c       stores %h, %c and %s
    kernel 1: sum of %s                                                              reads %s
->
    kernel 0: %h = contraction + residual (bf16)                                     stores %h
    kernel 1: %c = extf %h;  %s = %c * %c;  sum of %s                                reads %h, and what follows may join it

Ops are put into the kernel of what they read, one after the other, when nobody knows yet who will read them: `passes.fuse` asks here
when a reader has been refused. A decision of fusion, about memory only: ops that cost more than a trip through it stay where they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .constants import is_dear, maker

MOST = 8
"""Ops that a reader takes over at most."""
GUESS = 64
"""The size of a dim that is not known."""


def taken_over(group: Sequence[ir.Operation], reader: ir.Operation, waiting: Callable[[ir.Operation], bool]) -> list[ir.Operation]:
    """The ops of a kernel that belong to the kernel of `reader` instead, so that the fewest bytes are stored in between.

    `group` is in program order; `waiting` tells which ops have no kernel yet.
    """
    moved: list[ir.Operation] = []
    while len(moved) < MOST and (op := _next(group, moved, reader, waiting)) is not None:
        moved.append(op)
    if not moved:
        return moved
    stored = [_bytes(group, moved[:n]) for n in range(len(moved) + 1)]
    return moved[: stored.index(min(stored))]


def _next(
    group: Sequence[ir.Operation], moved: Sequence[ir.Operation], reader: ir.Operation, waiting: Callable[[ir.Operation], bool]
) -> ir.Operation | None:
    """The last cheap op that is read by what is moved, by the reader, or by nobody yet, and by no other."""
    there = {*moved, reader}
    wanted = {maker(v) for op in there for v in st.tensors_read(op)}
    for op in reversed(group):
        if op in wanted and op not in there and _cheap(op):
            if all(r in there or waiting(r) and st.kind(r) in ("elementwise", "reduction") for r in readers(op)):
                return op
    return None


def _cheap(op: ir.Operation) -> bool:
    return st.kind(op) == "elementwise" and not is_dear(op) and "mlirc.pack" not in op.attributes


def _bytes(group: Sequence[ir.Operation], moved: Collection[ir.Operation]) -> int:
    """What the kernel stores without the moved ops, and what these read besides."""
    gone = {*moved}
    stays = [op for op in group if op not in gone]
    inside = {*stays}
    stored = {v for op in stays for v in op.results if any(r not in inside for r in readers(op))}
    # Of an argument there is no maker: sets are asked, since an op of a list cannot be compared with None.
    more = {v for op in gone for v in st.tensors_read(op) if maker(v) not in inside and maker(v) not in gone}
    return _size(stored) + _size(more)


def _size(values: Iterable[ir.Value]) -> int:
    sizes = [[n if n >= 0 else GUESS for n in st.shape(v)] for v in values]
    return sum(math.prod(s) * max(builders.element_type(v).width // 8, 1) for s, v in zip(sizes, values))


def readers(op: ir.Operation) -> Iterator[ir.Operation]:
    """The ops of a block that read what one of them makes, views looked through."""
    for result in op.results:
        for use in result.uses:
            user = st.operation(use.owner)
            while (parent := st.operation(user.parent)).name != "func.func":
                user = parent
            if st.kind(user) == "view":
                yield from readers(user)
            else:
                yield user
