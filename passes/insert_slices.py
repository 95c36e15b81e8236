"""A tensor that is written into a part of another one: what happens depends on who still wants the other one.

    %s = insert_slice %y into %x[0, 3] [8, 4] [1, 1]         x of 8 x 100, read nowhere else, and written back (or to, many times)

        ->  %s = scatter(%x, %y) {offsets 0, 3}              nothing but the part is moved (a decoder's cache); where it begins at a
                                                             symbol, or is every second element: scatter(%x, %y, %rows)

    %s = insert_slice %y into %x[0, 0] ...                   together the parts are all of x, which nobody sees
    %t = insert_slice %z into %s[0, 4] ...               ->  %t = concat dim(1) %y, %z

    %s = insert_slice %y into %x[0, 3] ...                   otherwise

        ->  %p = pad %y low[0, 3] high[0, 93]                elementwise ops, which fuse with others
            %s = generic: 3 <= index(1) < 7 ? %p : %x

First, parts of parts become one (`x[2:5, 3:7] = y`), and what is read of the result, within the part or beside it, is read from %y or
from %x; a small slice that has some of both, like the row that a border is copied from, is put together from slices of both:

    %s = insert_slice %y into %x[1, 1] [98, 98]              %b = concat dim(1) (extract_slice %x[1, 0] [1, 1]),
    %b = extract_slice %s[1, 0] [1, 100]                ->             (extract_slice %y[0, 0] [1, 98]), (extract_slice %x[1, 99] [1, 1])

So fewer want the tensor that is written to. Which of these it is, `strategy.writes` says.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..dialects import builders, own
from ..dialects.mlir import arith, ir, linalg, tensor
from . import structure as st
from .layouts import Layouts
from .strategy import writes as strategy

PASS_NAME = "mlirc-insert-slices"

INT = arith.CmpIPredicate


def insert_slices(function: ir.Operation, writes: Sequence[int]) -> None:
    """Rewrite all of them; `writes[i]` is the tensor argument that the i-th of the last results overwrites."""
    ops = [st.operation(o) for o in function.regions[0].blocks[0].operations]
    if not any(op.name == "tensor.insert_slice" for op in ops):
        return
    layouts = Layouts(function)
    ops = [o for op in ops for o in (*_unsqueezed(op, layouts), *_joined(op, layouts), op)]
    for op in ops:
        if op.name == "tensor.extract_slice":
            _read_past(op, layouts, strategy.MOST_PUT_TOGETHER)
    ops = [st.operation(o) for o in function.regions[0].blocks[0].operations]
    written = _written(function, writes)
    readers = _Readers(ops)
    for chain in _chains([op for op in ops if op.name == "tensor.insert_slice" and op.results[0] not in readers.dead], readers):
        along = _partition(chain, layouts)
        if along is not None:
            chain[-1].results[0].replace_all_uses_with(_concat(chain, along, layouts))
            continue
        argument = written.get(chain[-1].results[0])
        there = argument is not None and chain[0].operands[1] == argument and readers.count(argument) == 1
        for n, op in enumerate(chain):
            first = n == 0 and not there and _covers(op, layouts)
            op.results[0].replace_all_uses_with(_put(op, layouts, alone=there or not (strategy.chosen(len(chain)) or first)))
    for op in reversed(ops):
        if (op.name == "tensor.insert_slice" or st.kind(op) == "view") and not any(True for _ in op.results[0].uses):
            op.erase()


@dataclass
class Slot:
    """Where a slice is: begin, size and step of each dim, ints or index values; `dims` are those that are not whole."""

    begin: list[Any]
    size: list[Any]
    step: list[Any]
    dims: list[int]

    @staticmethod
    def of(op: ir.Operation, layouts: Layouts) -> Slot:
        """Of an extract_slice or insert_slice."""
        inserted = op.name == "tensor.insert_slice"
        left = list(op.operands)[2 if inserted else 1 :]
        parts = [
            [left.pop(0) if n == builders.DYNAMIC else n for n in st.integers(op.attributes[name])]
            for name in ("static_offsets", "static_sizes", "static_strides")
        ]
        whole = layouts.shapes.of(op.operands[1 if inserted else 0])
        sizes = list(layouts.shapes.of(op.operands[0]))
        if not inserted:
            sizes = [1] * len(whole)
            for d, n in zip(st.slice_dims(op), layouts.shapes.of(op.results[0])):
                sizes[d] = n
        return Slot(*parts, [d for d, (n, m) in enumerate(zip(sizes, whole)) if n is None or n != m])

    @property
    def known(self) -> bool:
        """Whether all numbers of `dims` are ints, and neighbours lie side by side."""
        numbers = (n for d in self.dims for n in (self.begin[d], self.size[d], self.step[d]))
        return all(isinstance(n, int) for n in numbers) and all(self.step[d] == 1 for d in self.dims)

    def end(self, d: int) -> int:
        return self.begin[d] + (self.size[d] - 1) * self.step[d] + 1  # type: ignore[no-any-return]


def _joined(op: ir.Operation, layouts: Layouts) -> list[ir.Operation]:
    """A slice of x, written to and put back where it was: y goes into x itself, by an op that takes the place of this one."""
    inner = st.owner(op.operands[0]) if op.name == "tensor.insert_slice" else None
    if inner is None or inner.name != "tensor.insert_slice":
        return []
    part = st.owner(inner.operands[1])
    if part is None or part.name != "tensor.extract_slice" or part.operands[0] != op.operands[1] or part.results[0].type != op.operands[0].type:
        return []
    outer, within, read = (Slot.of(o, layouts) for o in (op, inner, part))
    if not all(isinstance(n, int) for s in (outer, within, read) for n in (*s.begin, *s.step)) or outer.begin != read.begin:
        return []
    if any(n != 1 for s in (outer, within, read) for n in s.step):
        return []
    begin = [a + b for a, b in zip(outer.begin, within.begin)]
    with ir.InsertionPoint(op), op.location:
        new = builders.insert_slice(inner.operands[0], op.operands[1], begin, within.size, [1] * len(begin))
    op.results[0].replace_all_uses_with(new)
    return [st.operation(new.owner)]


def _unsqueezed(op: ir.Operation, layouts: Layouts) -> list[ir.Operation]:
    """A row of x without its unit dim, written to and given the dim back: y, with the dim, goes into the row as it is in x."""
    inner = st.owner(op.operands[0]) if op.name == "tensor.expand_shape" else None
    row = st.owner(inner.operands[1]) if inner is not None and inner.name == "tensor.insert_slice" else None
    if inner is None or row is None or row.name != "tensor.collapse_shape" or row.operands[0].type != op.results[0].type:
        return []
    groups, wide = st.reassociation(op), st.shape(op.results[0])
    if groups != st.reassociation(row) or any(sum(wide[d] != 1 for d in group) > 1 for group in groups):
        return []
    within = Slot.of(inner, layouts)
    begin, size, step = ([n] * len(wide) for n in (0, 1, 1))
    for n, group in enumerate(groups):
        d = next((d for d in group if wide[d] != 1), group[-1])
        begin[d], size[d], step[d] = within.begin[n], within.size[n], within.step[n]
    with ir.InsertionPoint(op), op.location:
        source = builders.expand(inner.operands[0], groups, size)
        new = builders.insert_slice(source, row.operands[0], begin, size, step)
    op.results[0].replace_all_uses_with(new)
    return [st.operation(source.owner), st.operation(new.owner)]


def _read_past(op: ir.Operation, layouts: Layouts, writes: int) -> None:
    """A slice of what a slice was written into: one of the latter, or of what was there before, or of both, of up to so many writes."""
    source = op.operands[0]
    while (into := st.owner(source)) is not None and into.name == "tensor.insert_slice":
        put, got = Slot.of(into, layouts), Slot.of(op, layouts)
        if not put.known or not all(isinstance(n, int) for d in put.dims for n in (got.begin[d], got.size[d], got.step[d])):
            break
        if any(got.end(d) <= put.begin[d] or put.end(d) <= got.begin[d] for d in put.dims):
            source = into.operands[1]
        elif all(put.begin[d] <= got.begin[d] and got.end(d) <= put.end(d) for d in put.dims):
            begin = list(st.integers(op.attributes["static_offsets"]))
            for d in put.dims:
                begin[d] -= put.begin[d]
            op.attributes["static_offsets"] = ir.DenseI64ArrayAttr.get(begin)
            op.operands[0] = source = into.operands[0]
        else:
            along = _apart(op, got, put)
            if writes and along is not None:
                _read_both(op, into, along, layouts, writes - 1)
            return
    op.operands[0] = source


def _apart(op: ir.Operation, got: Slot, put: Slot) -> int | None:
    """The only dim along which a slice is more than what `put` wrote of it, if it may be put together from what is there and what is beside it."""
    part, whole = st.shape(op.results[0]), st.shape(op.operands[0])
    if len(part) != len(whole) or min(part + whole) <= 0 or not strategy.read_apart(math.prod(part), math.prod(whole)):
        return None
    if not all(isinstance(n, int) for n in got.begin) or any(n != 1 for n in (*got.step, *put.step)):
        return None
    more = [d for d in put.dims if got.begin[d] < put.begin[d] or put.end(d) < got.end(d)]
    return more[0] if len(more) == 1 else None


def _read_both(op: ir.Operation, into: ir.Operation, along: int, layouts: Layouts, writes: int) -> None:
    """Side by side what is before, within and behind what was written."""
    got, put = Slot.of(op, layouts), Slot.of(into, layouts)
    cuts = [n for n in (got.begin[along], put.begin[along], put.end(along), got.end(along)) if got.begin[along] <= n <= got.end(along)]
    parts = []
    with ir.InsertionPoint(op), op.location:
        for at, end in zip(cuts, cuts[1:]):
            begin, size = [*got.begin], [*got.size]
            begin[along], size[along] = at, end - at
            if end > at:
                parts.append(builders.extract_slice(op.operands[0], begin, size, [1] * len(begin)))
        whole = builders.concat(parts, along, op.results[0].type, layouts.shapes.of(op.results[0]))
    op.results[0].replace_all_uses_with(whole)
    for part in parts:
        _read_past(st.operation(part.owner), layouts, writes)


class _Readers:
    """Who reads a value, but for slices that nobody reads in their turn; `dead` are the results of these."""

    def __init__(self, ops: Sequence[ir.Operation]) -> None:
        self.dead: set[ir.Value] = set()
        for op in reversed(ops):
            if (op.name == "tensor.insert_slice" or st.kind(op) == "view") and not self.count(op.results[0]):
                self.dead.add(op.results[0])

    def count(self, value: ir.Value) -> int:
        users = [st.operation(use.owner) for use in value.uses]
        return sum(1 for u in users if not len(u.results) or u.results[0] not in self.dead)


def _chains(ops: Sequence[ir.Operation], readers: _Readers) -> list[list[ir.Operation]]:
    """Slices written into one tensor after the other, of which nobody else wants what was there between."""
    chains: list[list[ir.Operation]] = []
    last: dict[ir.Value, list[ir.Operation]] = {}
    for op in ops:
        chain = last.pop(op.operands[1], None) if readers.count(op.operands[1]) == 1 else None
        if chain is None:
            chains.append(chain := [])
        chain.append(op)
        last[op.results[0]] = chain
    return chains


def _partition(chain: Sequence[ir.Operation], layouts: Layouts) -> int | None:
    """The dim of which the slices of a chain are all, each element of it in one, if they are to be side by side."""
    slots = [Slot.of(op, layouts) for op in chain]
    dims = {d for s in slots for d in s.dims}
    if len(dims) != 1 or not all(s.known for s in slots):
        return None
    (along,) = dims
    last = along == len(slots[0].size) - 1
    if not strategy.side_by_side(len(chain), min(s.size[along] for s in slots) if last else None):
        return None
    end = 0
    for s in sorted(slots, key=lambda s: s.begin[along]):
        if s.begin[along] != end:
            return None
        end = s.end(along)
    return along if end == st.shape(chain[0].operands[1])[along] else None


def _concat(chain: Sequence[ir.Operation], along: int, layouts: Layouts) -> ir.Value:
    parts = sorted(chain, key=lambda op: st.integers(op.attributes["static_offsets"])[along])
    with ir.InsertionPoint(chain[-1]), chain[-1].location:
        whole = chain[0].operands[1]
        return builders.concat([p.operands[0] for p in parts], along, whole.type, layouts.shapes.of(whole))


def _covers(op: ir.Operation, layouts: Layouts) -> bool:
    """Whether a part is so large that it had better be computed together with a copy of what is around it."""
    part, whole = st.shape(op.operands[0]), st.shape(op.operands[1])
    return Slot.of(op, layouts).known and min(part + whole) > 0 and strategy.covers(math.prod(part), math.prod(whole))


def _written(function: ir.Operation, writes: Sequence[int]) -> dict[ir.Value, ir.Value]:
    """What overwrites an argument -> the argument."""
    block = function.regions[0].blocks[0]
    tensors = [a for a in block.arguments if st.is_tensor(a)]
    returned = list(st.operation(block.operations[len(block.operations) - 1]).operands)
    return {returned[len(returned) - len(writes) + i]: tensors[a] for i, a in enumerate(writes)}


def _put(op: ir.Operation, layouts: Layouts, alone: bool) -> ir.Value:
    """The result of an insert_slice; `alone`: the part is written to the whole, which nobody else reads."""
    slot = Slot.of(op, layouts)
    if slot.dims:
        return _scatter(op, slot) if alone else _choose(op, slot, layouts)
    with ir.InsertionPoint(op), op.location:  # every second element of a dim of one
        source, kind = op.operands[0], op.results[0].type
        return source if source.type == kind else tensor.cast(kind, source)


def _scatter(op: ir.Operation, slot: Slot) -> ir.Value:
    """The part alone is written; where to is a number for each of its dims, or where that is a symbol, or elements are apart, a tensor of numbers."""
    source, whole = op.operands[0], op.operands[1]
    rank = len(st.shape(source))
    numbered = [d for d in slot.dims if not isinstance(slot.begin[d], int) or slot.step[d] != 1]
    with ir.InsertionPoint(op), op.location:
        sizes = [slot.size[d] for d in numbered]
        i64 = ir.IntegerType.get_signless(64)

        def numbers(k: int, d: int) -> ir.Value:
            def body(_: ir.Value) -> list[ir.Value]:
                i = arith.muli(linalg.IndexOp(k).result, _index(slot.step[d]))
                return [arith.index_cast(i64, arith.addi(i, _index(slot.begin[d])))]

            (out,) = builders.generic([], [builders.empty(sizes, i64)], [builders.identity(len(sizes))], "p" * len(sizes), body)
            return out

        places = [numbers(k, d) for k, d in enumerate(numbered)]
        target = [-1 - numbered.index(d) if d in numbered else d for d in range(rank)]
        offsets = [slot.begin[d] if d in slot.dims and d not in numbered else 0 for d in range(rank)]
        return own.scatter(whole, source, places, builders.projection(rank, numbered), target, own.SET, offsets)


def _choose(op: ir.Operation, slot: Slot, layouts: Layouts) -> ir.Value:
    """Every element asks whether it is in the part. A part in one piece is padded to the size of the whole, so that it is read in vectors."""
    source, whole = op.operands[0], op.operands[1]
    shape = st.shape(whole)
    piece = slot.known and all(shape[d] >= 0 for d in slot.dims)
    with ir.InsertionPoint(op), op.location:
        sizes = layouts.values(whole)
        inputs = [whole]
        if piece:
            low = [slot.begin[d] if d in slot.dims else 0 for d in range(len(shape))]
            high = [shape[d] - slot.end(d) if d in slot.dims else 0 for d in range(len(shape))]
            inputs.append(builders.pad(source, low, high, sizes))

        def body(x: ir.Value, *others: ir.Value) -> list[ir.Value]:
            inside, at = _within(slot, len(shape))
            if piece:
                return [arith.select(inside, others[0], x)]
            at = [arith.select(inside, i, builders.index(0)) if d in slot.dims else i for d, i in enumerate(at)]
            return [arith.select(inside, tensor.extract(source, at), x)]

        init = builders.empty(sizes, builders.element_type(whole))
        maps = [builders.identity(len(shape))] * (len(inputs) + 1)
        (out,) = builders.generic(inputs, [init], maps, "p" * len(shape), body)
        return out


def _within(slot: Slot, rank: int) -> tuple[ir.Value, list[ir.Value]]:
    """Whether the element that is computed is in the part, and where in it."""
    at = [linalg.IndexOp(d).result for d in range(rank)]
    conditions = []
    for d in slot.dims:
        at[d] = arith.subi(at[d], _index(slot.begin[d]))
        conditions.append(arith.cmpi(INT.sge, at[d], builders.index(0)))
        if not isinstance(slot.step[d], int) or slot.step[d] != 1:
            conditions.append(arith.cmpi(INT.eq, arith.remsi(at[d], _index(slot.step[d])), builders.index(0)))
            at[d] = arith.divsi(at[d], _index(slot.step[d]))
        conditions.append(arith.cmpi(INT.slt, at[d], _index(slot.size[d])))
    return functools.reduce(arith.andi, conditions), at


def _index(n: int | ir.Value) -> ir.Value:
    return builders.index(n) if isinstance(n, int) else n
