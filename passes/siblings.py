"""Contractions of the same rows with several weights (query, key and value; gate and up) become one kernel with several results.

    %q = contraction %x, %wq                                 %q = contraction %x, %wq  {mlirc.siblings = 0}
    %k = contraction %x, %wk                       ->        %k = contraction %x, %wk  {mlirc.siblings = 0}
    %v = contraction %x, %wv                                 %v = contraction %x, %wv  {mlirc.siblings = 0}

which fusion puts into one group, together with the epilogue of each, and with what joins them (silu(%gate) * %up):

    %qkv:3 = call @k00_linear(%x, %wq, %wk, %wv, %bq, %bk, %bv)

Nothing is moved for it, in memory or in the graph: the kernel's blocks of columns are those of the first weight, then those of the
second, and so on, as if the packed weights followed one another, and each result has memory of its own. The numbers of columns may
differ (grouped queries). Contractions stay apart, with the reason as the remark attribute `mlirc.apart`, where `strategy` sees no
gain, or where the epilogue of one depends on another one by way of other kernels (a gate for what attention makes of q, k and v).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .layouts import Layouts
from .strategy.siblings import Sizes, why_apart

if TYPE_CHECKING:
    from ..lowering.target import Target

PASS_NAME = "mlirc-siblings"
MOST = 8
"""Products in a kernel."""


def mark_siblings(function: ir.Operation, target: Target) -> None:
    """Run on packed operands, before fusion."""
    layouts = Layouts(function)
    families: dict[object, list[ir.Operation]] = {}
    for op in map(st.operation, function.regions[0].blocks[0].operations):
        if st.kind(op) == "contraction":
            key = _key(op, layouts)
            if key is not None:
                families.setdefault(key, []).append(op)
    users = _Users(function)
    remarks: list[tuple[ir.Operation, str, ir.Attribute]] = []
    number = 0
    for family in families.values():
        if len(family) < 2:
            continue
        for op, reason in _apart(family, users, layouts, target).items():
            remarks.append((op, "mlirc.apart", ir.StringAttr.get(reason)))
            family.remove(op)
        for first in range(0, len(family), MOST):
            some = family[first : first + MOST]
            if len(some) > 1:
                remarks += [(op, "mlirc.siblings", ir.IntegerAttr.get(ir.IntegerType.get_signless(32), number)) for op in some]
                number += 1
    # Only now: the hash of an op depends on its attributes.
    for op, name, value in remarks:
        op.attributes[name] = value


def _apart(family: list[ir.Operation], users: _Users, layouts: Layouts, target: Target) -> dict[ir.Operation, str]:
    """Those that had better stay apart, and why."""
    reason = why_apart(_sizes(family, layouts), False, target)
    if reason:
        return dict.fromkeys(family, reason)
    out = {op: "its epilogue needs what another one leads to" for op in _entangled(family, users)}
    left = [op for op in family if op not in out]
    epilogues = {op: users.epilogue(op) for op in left}
    meeting = [op for op in left if any(o != op and epilogues[o] & epilogues[op] for o in left)]
    reason = why_apart(_sizes(meeting, layouts), True, target) if meeting else None
    if reason:
        out |= dict.fromkeys(meeting, reason)
    return out


def _key(op: ir.Operation, layouts: Layouts) -> object:
    """What siblings have in common; None for a contraction that has none."""
    maps = st.maps(op)
    rows, out = st.map_dims(maps[0]), [d for d in st.map_dims(maps[2]) if d is not None]
    loops = range(len(st.iterators(op)))
    if not out or None in rows or [d for d in loops if d not in rows] != out[-1:]:
        return None  # the lanes, and nothing else, are the second operand's own
    if op.operands[0] == op.operands[1]:
        return None  # where the one code for all reads its second operand, the rows are not
    columns = layouts.shapes.of(op.results[0])[-1]
    weights = layouts.of(op.operands[1])
    if not isinstance(columns, int) or columns < 2 or not (st.is_packed(op, 1) or _streamed(op, layouts)):
        return None
    start = st.owner(op.operands[2])
    if start is None or start.name != "linalg.fill":
        return None
    value = st.owner(start.operands[0])
    if value is None or value.name != "arith.constant":
        return None
    body = tuple((o.name, str(o.operands[0].type)) for o in st.body_ops(op))
    words = str(op.attributes[st.WORDS]) if st.WORDS in op.attributes else ""
    spelled = tuple(str(m) for m in maps)
    kinds = tuple(str(builders.element_type(v)) for v in op.operands)
    return op.operands[0], spelled, kinds, str(op.attributes["iterator_types"]), weights.strides, words, body, str(value.attributes["value"])


def _streamed(op: ir.Operation, layouts: Layouts) -> bool:
    """Whether both operands are contiguous along a reduction, and the second one not along its columns: the form of few rows."""
    iterators = st.iterators(op)
    steps = []
    for v, m in list(zip(op.operands, st.maps(op)))[:2]:
        dims = st.map_dims(m)
        if None in dims:
            return False
        steps.append(dict(zip(dims, layouts.of(v).strides)))
    lane = [d for d in st.map_dims(st.maps(op)[2]) if d is not None][-1]
    contiguous = any(it == "reduction" and all(s.get(d) == 1 for s in steps) for d, it in enumerate(iterators))
    return contiguous and all(s.get(lane, 0) != 1 for s in steps)


def _sizes(family: list[ir.Operation], layouts: Layouts) -> Sizes:
    op = family[0]
    rows: int | None = 1
    length = 1
    iterators = st.iterators(op)
    for d, n in zip(st.map_dims(st.maps(op)[0]), layouts.shapes.of(op.operands[0])):
        if iterators[d] == "reduction":  # type: ignore[index]
            length *= n if isinstance(n, int) else 64
        else:
            rows = rows * n if isinstance(n, int) and rows is not None else None
    columns = [layouts.shapes.of(o.results[0])[-1] for o in family]
    return Sizes(rows, columns, length, builders.element_type(op.operands[1]).width, st.WORDS in op.attributes)  # type: ignore[arg-type]


class _Users:
    """Who reads what each op makes, views and bodies included."""

    def __init__(self, function: ir.Operation) -> None:
        self.function = function

    @functools.cached_property
    def of(self) -> dict[ir.Operation, list[ir.Operation]]:
        users: dict[ir.Operation, list[ir.Operation]] = {}
        for op in map(st.operation, self.function.regions[0].blocks[0].operations):
            for v in (*op.operands, *st.captured(op)):
                maker = st.owner(v)
                if maker is not None:
                    users.setdefault(maker, []).append(op)
        return users

    def after(self, ops: Iterable[ir.Operation]) -> set[ir.Operation]:
        """All that depends on some ops."""
        seen: set[ir.Operation] = set()
        stack = [u for op in ops for u in self.of.get(op, ())]
        while stack:
            op = stack.pop()
            if op not in seen:
                seen.add(op)
                stack += self.of.get(op, ())
        return seen

    def epilogue(self, op: ir.Operation) -> set[ir.Operation]:
        """The elementwise ops that could follow a product in its kernel, and the views between them."""
        seen: set[ir.Operation] = set()
        stack = [op]
        while stack:
            for user in self.of.get(stack.pop(), ()):
                if user not in seen and st.kind(user) in ("elementwise", "view") and "mlirc.pack" not in user.attributes:
                    seen.add(user)
                    stack.append(user)
        return seen


def _entangled(family: list[ir.Operation], users: _Users) -> set[ir.Operation]:
    """Those with an op in their epilogue that depends on another one by way of what cannot be in the same kernel."""
    epilogues = {op: users.epilogue(op) for op in family}
    inside = set().union(*epilogues.values())
    out: set[ir.Operation] = set()
    for op in family:
        others = [o for o in family if o != op and o not in out]
        near = set(others).union(*(epilogues[o] for o in others))
        edge = {u for o in near for u in users.of.get(o, ()) if u not in inside}
        if (edge | users.after(edge)) & {u for u in epilogues[op] if st.kind(u) == "elementwise"}:
            out.add(op)
    return out
