"""An index that is stored in order is checked where it is stored, and not by each loop that gathers by it, in each block of a row.

    %s = generic %index[%order[e]] : i64 {mlirc.sorted}       %s = generic place(%index[%order[e]]) : i32 {mlirc.sorted}
    %g = generic %table[place(%s[e]), c]                ->    %g = generic %table[%s[e], c]

`place` counts a negative index from the end, and sets the status if it is out of range. Rows of 512 bytes to 1 KB are added up in blocks of
four lines; two indices for each of them, the one that is added and the one that is fetched, took most of its instructions.

Runs after `bucket_updates`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dialects import builders
from ..dialects.mlir import arith, ir
from . import structure as st
from .sorted_updates import SORTED

PASS_NAME = "mlirc-check-indices"


@dataclass(frozen=True)
class _Check:
    """In the body of a reader: `ops`, which depend on nothing but its `argument`, and make a `place` below `size` of it."""

    reader: ir.Operation
    argument: ir.BlockArgument
    ops: list[ir.Operation]
    place: ir.Value
    size: ir.Value

    def key(self) -> list[object]:
        """What it does: equal for those that do the same."""
        numbers: dict[ir.Value, object] = {self.argument: "index"}
        text: list[object] = []
        for op in self.ops:
            attributes = tuple(sorted((a, str(op.attributes[a])) for a in op.attributes))
            text.append((op.name, attributes, tuple(numbers.get(v, v) for v in op.operands)))
            numbers.update((r, (len(text), n)) for n, r in enumerate(op.results))
        return text

    def could_be_in(self, op: ir.Operation) -> bool:
        """Whether all else that is read is there where another op is."""
        made = {self.argument, *(r for o in self.ops for r in o.results)}
        owners = [st.owner(v) for o in self.ops for v in o.operands if v not in made]
        return all(o is None or (o.block == op.block and o.is_before_in_block(op)) for o in owners)


def check_indices(function: ir.Operation) -> None:
    """Rewrite the stored indices of a function's block that all readers check alike."""
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if SORTED in op.attributes and isinstance(builders.element_type(op.results[0]), ir.IntegerType):
            views, uses = _readers(op.results[0])
            checks = [_check(use) for use in uses]
            first = next(iter(checks), None)
            if first is not None and all(c is not None and c.key() == first.key() for c in checks) and first.could_be_in(op):
                _store_places(op, [c for c in checks if c is not None], views)


def _readers(value: ir.Value) -> tuple[list[ir.Operation], list[ir.OpOperand]]:
    """The reshapes of a value, and where it or they are read."""
    views: list[ir.Operation] = []
    uses: list[ir.OpOperand] = []
    for use in value.uses:
        user = st.operation(use.owner)
        if user.name in ("tensor.expand_shape", "tensor.collapse_shape"):
            below = _readers(user.results[0])
            views += [user, *below[0]]
            uses += below[1]
        else:
            uses.append(use)
    return views, uses


def _check(use: ir.OpOperand) -> _Check | None:
    """What a reader makes of an index before it uses it as a place; None if it does something else with it."""
    reader = st.operation(use.owner)
    if reader.name != "linalg.generic" or use.operand_number >= len(st.inputs(reader)):
        return None
    body = st.body_ops(reader)
    argument = reader.regions[0].blocks[0].arguments[use.operand_number]
    inside, made, ops = set(body), {argument}, []
    for op in body:
        if not op.name.startswith("arith.") and op.name != "cf.assert":
            continue
        known = [v in made or st.owner(v) not in inside and not _is_argument(v, reader) for v in op.operands]
        if all(known) and any(v in made for v in op.operands):
            ops.append(op)
            made.update(op.results)
    read = {v for v in made for u in v.uses if st.operation(u.owner) not in ops}
    if len(read) != 1:
        return None
    (place,) = read
    size = _bound(place, ops)
    return None if size is None else _Check(reader, argument, ops, place, size)


def _is_argument(value: ir.Value, op: ir.Operation) -> bool:
    return value in list(op.regions[0].blocks[0].arguments)


def _bound(place: ir.Value, ops: list[ir.Operation]) -> ir.Value | None:
    """What a place is below: `select(%i < bound, %i, 0)`, with the condition asserted."""
    op = st.owner(place)
    if op is None or op.name != "arith.select":
        return None
    condition, value, _ = op.operands
    compare = st.owner(condition)
    asserted = any(o.name == "cf.assert" and o.operands[0] == condition for o in ops)
    if not asserted or compare is None or compare.name != "arith.cmpi" or compare.operands[0] != value:
        return None
    below = ir.IntegerAttr(compare.attributes["predicate"]).value == arith.CmpIPredicate.ult.value
    return compare.operands[1] if below else None


def _store_places(op: ir.Operation, checks: list[_Check], views: list[ir.Operation]) -> None:
    first, *others = checks
    size = st.owner(first.size)
    static = ir.IntegerAttr(size.attributes["value"]).value if size is not None and size.name == "arith.constant" else None
    kind = ir.IntegerType.get_signless(32 if static is not None and static <= 1 << 31 else 64)
    for check in checks:
        check.argument.set_type(kind)
        with ir.InsertionPoint.at_block_begin(check.argument.owner), check.reader.location:
            check.place.replace_all_uses_with(arith.index_cast(ir.IndexType.get(), check.argument))
    for check in others:
        for o in reversed(check.ops):
            o.erase()
    block = op.regions[0].blocks[0]
    yielded = st.body_ops(op)[-1]
    stored = yielded.operands[0]
    for o in first.ops:
        o.move_before(yielded)
        for n, v in enumerate(o.operands):
            if v == first.argument:
                o.operands[n] = stored
    with ir.InsertionPoint(yielded), op.location:
        yielded.operands[0] = arith.index_cast(kind, first.place)
    init = st.owner(op.operands[-1])
    with ir.InsertionPoint(op), op.location:
        op.operands[-1] = builders.empty(builders.sizes_of(init), kind)
    block.arguments[len(block.arguments) - 1].set_type(kind)
    for value in (op.results[0], *(view.results[0] for view in views)):
        value.set_type(ir.RankedTensorType.get(st.shape(value), kind))
