"""Let kernels write to the inputs that they update, rather than into memory of their own from which it is copied.

    %n = generic %m * 0.9 + %g          {group 1}              %n = generic %m * 0.9 + %g          {group 1, overwrites 1}
    %q = generic %p - 0.1 * %n          {group 1}              %q = generic %p - 0.1 * %n          {group 1, overwrites 0}
    %a = generic copy %n {write 1}      {group 2}       ->
    %b = generic copy %q {write 0}      {group 3}
    return %b, %a                                              return %q, %n

As in an optimizer's step. Only elementwise kernels do, that read each element of the input for the same element of their results. They
run after everything else that reads the input, and after what may fail: an input is as it was if anything does. Runs on the groups of
the fusion, before they become kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dialects.mlir import ir
from ..dialects.sizes import normal
from . import structure as st
from .constants import maker
from .layouts import Layouts, row_major

PASS_NAME = "mlirc-overwrite"
OVERWRITES = "mlirc.overwrites"
"""Of an op whose (only) result is written to an input, and of a call, for each result: the number of that argument, or -1. Of a kernel:
that it has such results."""


def overwrite(function: ir.Operation) -> None:
    """Look at every copy that is written to an argument, in program order."""
    ops = [st.operation(o) for o in function.regions[0].blocks[0].operations]
    if any("mlirc.write" in op.attributes for op in ops):
        _Overwrite(function, ops).run()


class _Overwrite:
    def __init__(self, function: ir.Operation, ops: list[ir.Operation]) -> None:
        self.layouts = Layouts(function)
        self.tensors = [a for a in function.regions[0].blocks[0].arguments if st.is_tensor(a)]
        self.ops = ops
        self.groups: dict[int, list[ir.Operation]] = {}
        self.group_of: dict[ir.Operation, int] = {}
        for at, op in enumerate(self.ops[:-1]):
            number = st.group_number(op, -at - 1 if st.kind(op) == "call" else None)
            if number is not None:
                self.groups.setdefault(number, []).append(op)
                self.group_of[op] = number
        self.before: dict[int, set[int]] = {}
        """For each group those that have to run before it."""
        self.readers: dict[ir.Value, set[int]] = {}
        """For each argument the groups that read it, or a view of it."""
        self.risky = {number for number, ops in self.groups.items() if any(st.kind(op) == "call" or st.can_fail(op) for op in ops)}
        """Groups that may fail."""
        earlier = st.ordered(self.ops)
        for number, ops in self.groups.items():
            read = [v for op in ops for v in self._reads(op)]
            for v in read:
                self.readers.setdefault(self.layouts.of(v).root, set()).add(number)
            sources = [maker(v) for v in read] + [earlier[op] for op in ops if op in earlier]
            self.before[number] = {self.group_of[s] for s in sources if s in self.group_of} - {number}

    def run(self) -> None:
        found = []
        for copy in self.ops[:-1]:
            if "mlirc.write" in copy.attributes and (argument := self._overwritten(copy)) is not None:
                found.append((copy, argument))
        for copy, _ in found:
            copy.results[0].replace_all_uses_with(copy.operands[0])
        # Only now: the hash of an op depends on its attributes.
        for copy, argument in found:
            producer = st.owner(copy.operands[0])
            assert producer is not None
            producer.attributes[OVERWRITES] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), argument)
        for copy, _ in found:
            copy.erase()

    def _overwritten(self, copy: ir.Operation) -> int | None:
        """The argument that what a copy reads can be written to at once; None if it cannot."""
        value, number = copy.operands[0], ir.IntegerAttr(copy.attributes["mlirc.write"]).value
        op, argument = st.owner(value), self.tensors[number]
        if op is None or op not in self.group_of or len(op.results) != 1 or st.kind(op) != "elementwise":
            return None
        group = self.group_of[op]
        others = [st.operation(u.owner) for u in value.uses if st.operation(u.owner) != copy]
        if any(o.name == "func.return" or "mlirc.write" in o.attributes or st.kind(o) == "view" for o in others):
            return None
        if argument.type != value.type or not self._row_major(argument) or not self._in_place(group, argument):
            return None
        # Everything else that reads the argument, and what may fail, comes first.
        first = (self.risky | self.readers.get(argument, set())) - {group, self.group_of[copy]}
        if any(self._needs(g, group) for g in first):
            return None
        self.before[group] |= first
        return number

    def _row_major(self, argument: ir.Value) -> bool:
        layout = self.layouts.of(argument)
        strides = row_major(self.layouts.shapes.of(argument))  # type: ignore[arg-type]
        return layout.offset == 0 and all(normal(a - b) == 0 for a, b in zip(layout.strides, strides))

    def _in_place(self, group: int, argument: ir.Value) -> bool:
        """Whether a group is elementwise, cannot fail half-way, and needs of the argument, for an element of any of its results, the same
        element alone."""
        shape = self.layouts.shapes.of(argument)
        made: set[ir.Operation] = set()
        for op in self.groups[group]:
            if st.kind(op) != "elementwise" or st.can_fail(op) or any(self._reaches(v, argument, made) for v in st.captured(op)):
                return False
            for value, m in zip(st.inputs(op), st.maps(op)):
                if not self._reaches(value, argument, made):
                    continue
                same = st.map_dims(m) == list(range(m.n_dims)) and st.maps(op)[-1] == m and self.layouts.shapes.of(value) == shape
                if not same or not self.layouts.whole(value):
                    return False
                made.add(op)
        return all(self.layouts.shapes.of(r) == shape for op in made for r in op.results)

    def _reaches(self, value: ir.Value, argument: ir.Value, made: set[ir.Operation]) -> bool:
        """Whether a value shows the argument, or what was made of it in the group."""
        return st.is_tensor(value) and (self.layouts.of(value).root == argument or maker(value) in made)

    def _reads(self, op: ir.Operation) -> list[ir.Value]:
        return [v for v in op.operands if st.is_tensor(v)] if st.kind(op) == "call" else st.tensors_read(op)

    def _needs(self, group: int, other: int) -> bool:
        """Whether a group has to run after another one."""
        left, seen = [group], {group}
        while left:
            g = left.pop()
            if g == other:
                return True
            left += [b for b in self.before[g] if b not in seen]
            seen |= self.before[g]
        return False


def overwritten(stored: Sequence[ir.Value]) -> list[int]:
    """For each stored value of a group the argument that it is written to, or -1; none if there is no such value."""
    makers = [st.owner(v) for v in stored]
    numbers = [ir.IntegerAttr(m.attributes[OVERWRITES]).value if m is not None and OVERWRITES in m.attributes else -1 for m in makers]
    return numbers if any(n >= 0 for n in numbers) else []
