"""Choose which ops become one kernel.

    %0 = contraction(%x, %w)                 group 0: contraction, bias, gelu
    %1 = generic %0 + %bias        ->        group 1: the reductions and elementwise ops of the layer norm
    %2 = generic gelu(%1)
    %3 = reduction(%2) ...

Ops are taken in program order; each joins the groups that produce its operands if the union is a valid kernel (see
`passes.domain`) and no value would have to leave and come back. Values that cost nothing (constants, broadcasts of inputs)
are copied to each user beforehand. Contractions that are siblings (`passes.siblings`) join one another. What is dear and depends
on weights alone (the factors of a batch norm) stays in kernels of its own, which run once and not in every call. The result is an
attribute `mlirc.group` on every op, which `outline` obeys, and a reason for every edge that was not fused, as the remark attribute
`mlirc.unfused` on the consumer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..dialects import own
from ..dialects.mlir import ir
from . import structure as st
from .constants import find_constants, is_function, maker
from .domain import Invalid, analyse, operand_loops
from .epilogues import taken_over
from .padded import without_padding
from .repetition import looks_up_lanes, much_padding, often_copied, repeats, too_often
from .sorted_updates import SORTED
from .weights import weights_of

PASS_NAME = "mlirc-fuse"
MAX_OPS = 64

LONG_REDUCTION = 1 << 12
"""Elements of a result from which on no rows are staged (`strategy.stage`), so that storing them in another order as well would go
element by element: the batch norm of 4 x 64 x 64 x 64 bf16 that also stores planes takes 2.37 ms, and 0.22 with a kernel of 0.18
behind it."""

LEAST_TRANSPOSED = 1 << 12
"""Elements from which on a value that is stored in two orders is transposed by a kernel of its own: 196 x 1536 products of bf16 take 159 us
with a transposed copy in the same kernel, which stores that element by element, 13 without it, and the copy 25. Behind a reduction of rows
it is worse: a layer norm of 1024 x 768 that is stored in both orders takes 2,660 us in bf16 and 6,820 in f32, apart 510 and 780; stored
across only, 1,900 and 880."""

MOST_AROUND = 2
"""Elements of a tensor, for each of what is inside of its padding, that a product stores its results in."""

INDEX_OPS = 32
"""A binary search takes 13 for each step: 31 ns for each update of a scatter, 5 in lanes."""

ANCHORS = ("contraction", "convolution", "concat", "scatter", "segments", "bucket", "scan")
FUSIBLE = ("elementwise", "reduction", "pad", *ANCHORS)


def fuse(function: ir.Operation, shapes: st.Shapes) -> None:
    """Mark the ops of `function` (tensor-level, one block) with their group number."""
    block = function.regions[0].blocks[0]
    duplicate_free_producers(block)
    with st.unchanging():
        fusion = _Fusion(block, shapes, weights_of(function))
        fusion.run()
    fusion.write()


def duplicate_free_producers(block: ir.Block) -> None:
    """Give every user its own copy of constants and of broadcasts, so that none of them is stored."""
    for op in list(block.operations):
        op = st.operation(op)
        if st.kind(op) != "elementwise" or not _is_free(op):
            continue
        users = []
        for use in op.results[0].uses:
            if st.operation(use.owner) not in users:
                users.append(st.operation(use.owner))
        # Before its user, the first one's too: kernels that are alike have their ops in the same order.
        for n, user in enumerate(users):
            place = st.in_function(user)
            if n == 0:
                op.move_before(place)
                continue
            copy = op.clone(ip=ir.InsertionPoint(place))
            for i, v in enumerate(user.operands):
                if v == op.results[0]:
                    user.operands[i] = st.operation(copy).results[0]


def _is_free(op: ir.Operation) -> bool:
    """Whether recomputing the op costs no more than loading its result: a constant, or a broadcast copy."""
    if "mlirc.pack" in op.attributes:
        return False
    body = [st.operation(o) for o in op.regions[0].blocks[0].operations]
    if any(st.owner(v) is not None and st.kind(st.owner(v)) not in ("aux", "view") for v in st.tensors_read(op)):  # type: ignore[arg-type]
        return False
    if not st.tensors_read(op):
        return len(body) <= 12
    return len(body) == 1


class _Fusion:
    def __init__(self, block: ir.Block, shapes: st.Shapes, weights: set[ir.Value]) -> None:
        self.ops = [st.operation(o) for o in block.operations]
        self.position = {op: i for i, op in enumerate(self.ops)}
        self.shapes = shapes
        self.group_of: dict[ir.Operation, int] = {}
        self.groups: dict[int, list[ir.Operation]] = {}
        self.families: dict[int, list[ir.Operation]] = {}
        """The contractions that have been placed, by what `mlirc.siblings` says."""
        self.unfused: list[tuple[ir.Operation, str]] = []
        # What every op reads: asked for again and again, and dear to ask MLIR.
        self.reads = {op: st.tensors_read(op) for op in self.ops if st.kind(op) in (*FUSIBLE, "call")}
        self.constant, self.apart = find_constants(self.ops, weights)
        self.sources = {op: [p for v in reads if (p := maker(v)) is not None] for op, reads in self.reads.items()}
        for op, before in st.ordered(self.ops).items():
            self.sources[op].append(before)
        self.written = self._written()

    def run(self) -> None:
        for op in self.ops:
            if st.kind(op) in FUSIBLE:
                self._place(op)
            elif st.kind(op) == "call":  # a group of its own, for good
                self.group_of[op] = self.position[op]
                self.groups[self.position[op]] = [op]

    def _written(self) -> dict[ir.Operation, int]:
        """For each op that depends on a write to an input: where the last such write is."""
        out: dict[ir.Operation, int] = {}
        for op in self.ops:
            own_write = [self.position[op]] if own.CHECK_FIRST in op.attributes else []
            before = own_write or [out[p] for p in self.sources.get(op, ()) if p in out]
            if before:
                out[op] = max(before)
        return out

    def write(self) -> None:
        """Put groups and reasons on the ops. Only when nothing is asked of them any more: their hash depends on their attributes."""
        for op, reason in self.unfused:
            op.attributes["mlirc.unfused"] = ir.StringAttr.get(reason)
        for g, ops in self.groups.items():
            for op in ops if st.kind(ops[0]) != "call" else ():
                op.attributes["mlirc.group"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), g)

    def _place(self, op: ir.Operation) -> None:
        number = self.position[op]
        self.groups[number] = [op]
        self.group_of[op] = number
        if "mlirc.write" in op.attributes:
            return
        candidates = sorted({g for v in self.reads[op] for g in self._producers(v)}, reverse=True)
        refused = []
        for g in candidates:
            reason = self._refusal(number, g, op)
            if reason:
                refused.append(reason)
                self._take_over(number, g, op)
                continue
            self._join(number, g)
        if "mlirc.siblings" in op.attributes:
            refused += self._place_by_siblings(op)
        if refused:
            self.unfused.append((op, "; ".join(dict.fromkeys(refused))))

    def _join(self, number: int, other: int) -> None:
        self._regroup(self.groups.pop(other) + self.groups[number])

    def _take_over(self, number: int, other: int, op: ir.Operation) -> None:
        """Move what a contraction would rather not store for `op` from its epilogue to the kernel of `op`."""
        if not self._anchored(other) or st.kind(op) not in ("elementwise", "reduction"):
            return
        moved = taken_over(self.groups[other], op, lambda o: self.position.get(o, -1) > number)
        stays = [o for o in self.groups[other] if o not in moved]
        joined = sorted([*moved, *self.groups[number]], key=self.position.__getitem__)
        if not moved or self._invalid(stays) or self._invalid(joined):
            return
        del self.groups[other]
        self._regroup(stays)
        self._regroup(joined)
        self.unfused += [(o, "its operands are stored in fewer bytes") for o in moved]

    def _regroup(self, ops: list[ir.Operation]) -> None:
        """Make ops one group, whose number is the position of the last of them."""
        ops = sorted(ops, key=self.position.__getitem__)
        number = self.position[ops[-1]]
        self.groups[number] = ops
        for op in ops:
            self.group_of[op] = number

    def _place_by_siblings(self, op: ir.Operation) -> list[str]:
        """Put a contraction into the kernel of those that it is one with."""
        number = self.position[op]
        refused = []
        for sibling in self.families.setdefault(ir.IntegerAttr(op.attributes["mlirc.siblings"]).value, []):
            other = self.group_of[sibling]
            if other != number:
                reason = self._impossible(number, other)
                if reason:
                    refused.append(f"apart from a sibling: {reason}")
                else:
                    self._join(number, other)
        self.families[ir.IntegerAttr(op.attributes["mlirc.siblings"]).value].append(op)
        return refused

    def _producers(self, value: ir.Value) -> list[int]:
        """The group whose result this is, looking through views; none for the result of a call."""
        op = maker(value)
        return [self.group_of[op]] if op in self.group_of and st.kind(op) != "call" else []  # type: ignore[arg-type, index]

    def _refusal(self, current: int, other: int, consumer: ir.Operation) -> str | None:
        """Why the two groups cannot be one kernel, None if they can."""
        if st.kind(consumer) in ("contraction", "convolution"):
            return "operands of a contraction are stored"
        if consumer not in self.constant and any(op in self.apart for op in self.groups[other]):
            return "depends on weights alone"
        if st.kind(consumer) in ("elementwise", "reduction"):
            if stored := next((op for op in self.groups[other] if "mlirc.stored" in op.attributes), None):
                return ir.StringAttr(stored.attributes["mlirc.stored"]).value
            if any(SORTED in op.attributes for op in self.groups[other]):
                return "sorted once, not for each block of a row"
        if st.kind(consumer) == "pad" and self._anchored(other):
            if not _is_for_convolutions(consumer.results[0]):
                return "padding is looked for where it is read"
            if math.prod(st.shape(consumer.results[0])) > MOST_AROUND * math.prod(st.shape(consumer.operands[0])):
                return "one thread would fill much padding"
        if st.kind(consumer) == "scatter" and other in self._producers(consumer.operands[0]):
            return "a scatter writes into memory that is filled before"
        if self._anchored(current) and self._anchored(other) and not st.siblings(self._anchors(current) + self._anchors(other)):
            return "two anchors"
        # Another op of the kernel may read the same value, and have been refused it.
        readers = (op for op in self.groups[current] if any(other in self._producers(v) for v in self.reads[op]))
        window = next(filter(None, (self._overlaps(op, other) for op in readers)), None)
        return window or self._impossible(current, other)

    def _impossible(self, current: int, other: int) -> str | None:
        """Why the ops of the two groups are no kernel."""
        ops = sorted(self.groups[current] + self.groups[other], key=self.position.__getitem__)
        if len(ops) > MAX_OPS:
            return "too many ops"
        if self._reaches(other, current) or self._reaches(current, other):
            return "a value would leave the kernel and come back"
        if self.written and self._checked_late(ops):
            return "nothing is written to an input before the checks that come before it"
        return self._invalid(ops)

    def _checked_late(self, ops: list[ir.Operation]) -> bool:
        """Whether one of the ops may fail, and one writes to an input after it in the program, or depends on such a write."""
        last = max((self.written[op] for op in ops if op in self.written), default=-1)
        return any(st.can_fail(op) for op in ops if self.position[op] < last)

    def _invalid(self, ops: list[ir.Operation]) -> str | None:
        """Why ops, in program order, are no kernel by themselves."""
        every, stored = with_views(ops)
        members, stored = without_padding(every, stored)
        if len(members) < len(every) and sum(st.kind(op) in ANCHORS for op in ops) > 1:
            return "padding around siblings"
        try:
            domain = analyse(members, stored, self.shapes)
        except Invalid as e:
            return str(e)
        return "a value would be computed at too many places" if too_often(domain, members, stored) else None

    def _anchored(self, group: int) -> bool:
        return bool(self._anchors(group))

    def _anchors(self, group: int) -> list[ir.Operation]:
        return [op for op in self.groups[group] if st.kind(op) in ANCHORS]

    def _overlaps(self, consumer: ir.Operation, other: int) -> str | None:
        """Why what a group computes had better be stored for `consumer`.

        Values are not computed again for every position of a window, long ones not for the places of a scatter, functions not for much
        padding and not for every row that they are broadcast to; padding is not looked for in many copies, and what only copies in
        another order has no reduction beside it.
        """
        for value, loops in operand_loops(consumer):
            if other not in self._producers(value):
                continue
            kind = st.kind(consumer)
            windows = kind == "reduction" or (kind == "elementwise" and "mlirc.pack" not in consumer.attributes)
            if windows and None in [d for d, s in zip(loops, st.shape(value)) if s != 1]:
                return "windows overlap"
            if kind == "pad" and much_padding(consumer) and any(map(is_function, self._made_anew(value, other))):
                return "would be computed for padding"
            places = kind == "scatter" and value in list(own.indices(consumer))
            if places and sum(len(st.body_ops(op)) for op in self._made_anew(value, other)) > INDEX_OPS:
                return "would be computed update by update, not in lanes"
            alone = all(st.kind(op) == "elementwise" for op in self.groups[other])
            if alone and repeats(consumer, value):
                if any(is_function(op) or looks_up_lanes(op, consumer, value) for op in self._made_anew(value, other)):
                    return "would be computed for every row"
            if kind == "elementwise" and _copies_transposed(consumer, value):
                if any(map(_reduces_much, self.groups[other])):
                    return "would be stored across the lanes of a reduction"
                if _is_long(value) and _has_other_users(value, consumer):
                    return "would be stored in rows, and element by element"
                if _is_long(value) and self._is_of_rows(value, other) and not self._reads_in_order_of(consumer, value, other):
                    return "would be stored across the rows that are reduced"
            if often_copied(consumer, value, loops) and any(st.kind(op) == "pad" for op in self._made_anew(value, other)):
                return "padding would be looked for in every copy"
        for value in st.captured(consumer):
            if st.is_tensor(value) and other in self._producers(value):
                return "read by a gather"
        return None

    def _made_anew(self, value: ir.Value, group: int) -> Iterator[ir.Operation]:
        """The elementwise ops of a group that compute an element of a value wherever it is read, and where they find padding the pads."""
        left, seen = [value], set()
        while left:
            op = maker(left.pop())
            if op is not None and op not in seen and self.group_of.get(op) == group and st.kind(op) in ("elementwise", "pad"):
                seen.add(op)
                yield op
                left += self.reads[op]

    def _is_of_rows(self, value: ir.Value, group: int) -> bool:
        """Whether a value depends on a reduction of its group."""
        left, seen = [value], set()
        while left:
            op = maker(left.pop())
            if op is not None and op not in seen and self.group_of.get(op) == group:
                if st.kind(op) == "reduction":
                    return True
                seen.add(op)
                left += self.reads[op]
        return False

    def _reads_in_order_of(self, copy: ir.Operation, value: ir.Value, group: int) -> bool:
        """Whether something as large as a value that the group reads lies in the order in which `copy` stores it."""
        every, stored = with_views([*self.groups[group], copy])
        try:
            domain = analyse(every, stored, self.shapes)
        except Invalid:
            return True  # says why itself
        last = domain.loops[copy][st.map_dims(st.maps(copy)[-1])[-1]]  # type: ignore[index]
        for op in self.groups[group]:
            for v, loops in operand_loops(op):
                loop = loops[_last_in_memory(v)] if loops else None
                outside = self.group_of.get(maker(v)) != group  # type: ignore[arg-type]
                if outside and loop is not None and domain.loops[op][loop] == last and math.prod(st.shape(v)) >= math.prod(st.shape(value)):
                    return True
        return False

    def _reaches(self, start: int, goal: int) -> bool:
        """Whether another group depends on `start` and `goal` depends on that one."""
        # A group's number is the position of its last op: groups before the first op of `start` cannot depend on it.
        first = self.position[self.groups[start][0]]
        stack = [g for g in self._inputs(goal) if g != start and g > first]
        seen = set(stack)
        while stack:
            g = stack.pop()
            if g == start:
                return True
            for h in self._inputs(g):
                if h not in seen and h >= first:
                    seen.add(h)
                    stack.append(h)
        return False

    def _inputs(self, group: int) -> set[int]:
        """The groups that a group depends on directly."""
        out = {self.group_of[p] for op in self.groups[group] for p in self.sources[op] if p in self.group_of}
        out.discard(group)
        return out


def _is_for_convolutions(value: ir.Value) -> bool:
    """Whether nothing else reads it, or a view of it."""
    users = [st.operation(use.owner) for use in value.uses]
    return all(st.kind(op) == "convolution" or st.kind(op) == "view" and _is_for_convolutions(op.results[0]) for op in users)


def _reduces_much(op: ir.Operation) -> bool:
    """Whether each result is reduced from very many elements."""
    if st.kind(op) != "reduction":
        return False
    loops = dict(pair for v, places in operand_loops(op) for pair in zip(places, st.shape(v)))
    sizes = [loops.get(d, -1) for d, kind in enumerate(st.iterators(op)) if kind == "reduction"]
    return min(sizes, default=-1) >= 0 and math.prod(sizes) >= LONG_REDUCTION


def _is_long(value: ir.Value) -> bool:
    """Whether it is worth a kernel that copies it in another order."""
    sizes = st.shape(value)
    return min(sizes, default=0) < 0 or math.prod(sizes) >= LEAST_TRANSPOSED


def _last_in_memory(value: ir.Value) -> int:
    """The dim of a value that is next to one another in memory, as far as the graph says."""
    dim = len(st.shape(st.root(value))) - 1
    for view in reversed(list(st.views(value))):
        if view.name == "linalg.transpose":
            dim = st.integers(view.attributes["permutation"]).index(dim)
        else:
            dim = len(st.shape(view.results[0])) - 1
    return dim


def _has_other_users(value: ir.Value, consumer: ir.Operation) -> bool:
    """Whether a value, or what it is a view of, is read by other ops."""
    seen, values = 0, [st.root(value)]
    while values:
        for use in values.pop().uses:
            op = st.operation(use.owner)
            if st.kind(op) == "view":
                values.append(op.results[0])
            elif op != consumer:
                seen += 1
    return seen > 0


def _copies_transposed(consumer: ir.Operation, value: ir.Value) -> bool:
    """Whether an op only stores a value in another order, in which other elements are next to one another."""
    orders = [st.integers(view.attributes["permutation"]) for view in st.views(value) if view.name == "linalg.transpose"]
    read, stored = st.map_dims(st.maps(consumer)[0]), st.map_dims(st.maps(consumer)[-1])
    turned = bool(read) and bool(stored) and read[-1] is not None and read[-1] != stored[-1]
    return len(st.body_ops(consumer)) == 1 and (turned or any(order[-1] != len(order) - 1 for order in orders))


def with_views(ops: list[ir.Operation]) -> tuple[list[ir.Operation], list[ir.Value]]:
    """The group with the views between its members, and the values that others use.

    A view belongs to the group when a member reads it and a member made what it looks at.
    """
    members = dict.fromkeys(ops)
    views: dict[ir.Operation, None] = {}
    for op in ops:
        for v in st.tensors_read(op):
            if maker(v) in members:
                views.update(dict.fromkeys(reversed(_seen_through(v))))
    inside = set(members) | set(views)
    stored = []
    for op in ops:
        for r in op.results:
            if any(not _uses_stay(st.operation(u.owner), inside) for u in r.uses):
                stored.append(r)
    return [*views, *ops], stored


@st.remembered
def _seen_through(value: ir.Value) -> list[ir.Operation]:
    """The views that a value is seen through, the last one first."""
    return list(st.views(value))


def _uses_stay(user: ir.Operation, inside: set[ir.Operation]) -> bool:
    """Whether a use is by a member; for a view, whether all of its own uses are."""
    while user not in inside:
        if user.name == "func.func" or user.parent is None:
            return False
        parent = st.operation(user.parent)
        if parent.name == "func.func":
            return False
        user = parent
    if st.kind(user) == "view":
        return all(_uses_stay(st.operation(u.owner), inside) for r in user.results for u in r.uses)
    return True
