"""The order in which a kernel's classes are walked over: rows and what is reduced, outermost first, and one of them along the lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...dialects import builders
from ...dialects.mlir import ir
from .. import structure as st
from .common import known, lanes, product
from .near import FARTHEST

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..vectorize.access import Access, Accesses
    from ..vectorize.kernel import KernelFunction


@dataclass
class Walk:
    """Classes in the order of the loops. Neighbours that step through all memory as one are joined."""

    kernel: KernelFunction
    lanes: int
    """Elements per vector, of the widest type that is computed with."""
    lane: int | None
    """The class along the lanes, one of `rows` or of `inner`; None for kernels of one element."""
    interleaved: int | None
    """A class of two to four that is stored inside of the lanes."""
    rows: list[int]
    inner: list[int]
    """Classes that are reduced."""
    sizes: list[object]
    """Of each class, with the neighbours that it stands for."""
    merged: dict[int, int]
    """Those that stand for neighbours, and their sizes."""

    @property
    def horizontal(self) -> bool:
        """Whether rows are reduced along the lanes."""
        return self.lane in self.inner

    @property
    def fixed_inner(self) -> bool:
        """Whether all that is reduced has a known size."""
        return all(isinstance(self.sizes[c], int) for c in self.inner)

    @property
    def ops(self) -> int:
        """Ops of an element. What is the same for a whole row that is reduced along the lanes is done once a row."""
        return body_ops(self.kernel, set(self.inner) if self.horizontal else None)

    def size(self, c: int) -> int:
        """Elements along a class, or a guess."""
        return known(self.sizes[c])

    def product(self, classes: list[int]) -> int:
        """Elements along several."""
        return product(classes, self.sizes)


def walk(kernel: KernelFunction, target: Target) -> Walk:
    """Follow the memory of what is stored, and put along the lanes what is contiguous there."""
    d, acc = kernel.domain, kernel.accesses
    lane, interleaved = _interleaved(kernel) or (None, None)
    sizes: list[object] = list(d.sizes)
    merged: dict[int, int] = {}
    rows = merge(_memory_order([c for c in d.rows if c != interleaved], kernel), acc, sizes, merged)
    inner = merge(_memory_order(list(d.inner), kernel), acc, sizes, merged)
    count = lanes(kernel, target)
    lane = _lane(rows, inner, sizes, kernel, count) if lane is None else lane
    return Walk(kernel, count, lane, interleaved, rows, inner, sizes, {c: n for c, n in merged.items() if c in (*rows, *inner)})


def body_ops(kernel: KernelFunction, along: set[int] | None = None) -> int:
    """How much there is to do for one element; with `along`, without what is the same along these classes."""
    ops = [op for op in kernel.domain.loops if op.name == "linalg.generic"]
    return sum(len(list(op.regions[0].blocks[0].operations)) for op in ops if along is None or along & set(kernel.domain.classes(op)))


def lane_ops(kernel: KernelFunction, lane: int, along: int) -> int:
    """Ops for a vector along `lane`, of those that walk along another class too: without those whose values are the same in all of its
    lanes, as the place of a gathered row is."""
    ops = [op for op in kernel.domain.loops if op.name == "linalg.generic" and along in kernel.domain.loops[op]]
    return sum(_differing(op, kernel.domain.loops[op], lane) for op in ops)


def _differing(op: ir.Operation, loops: Sequence[int | None], lane: int) -> int:
    """How many ops of a body have values that differ along the class."""
    along = {d for d, c in enumerate(loops) if c == lane}
    block = op.regions[0].blocks[0]
    differ = {a for a, m in zip(block.arguments, st.maps(op)) if any(along & st.loops_in(e) for e in m.results)}
    count = 0
    for o in map(st.operation, block.operations):
        index = o.name == "linalg.index" and ir.IntegerAttr(o.attributes["dim"]).value in along
        if index or not differ.isdisjoint(o.operands):
            differ.update(o.results)
            count += 1
    return count


def merge(classes: list[int], acc: Accesses, sizes: list[object], merged: dict[int, int]) -> list[int]:
    """Join neighbours that step through all memory as one, in `sizes` and `merged` too; what is left of the classes."""
    out: list[int] = []
    for c in classes:
        if out and acc.merges(out[-1], c, sizes):
            sizes[c] = merged[c] = sizes[out[-1]] * sizes[c]  # type: ignore[operator]
            merged.pop(out[-1], None)
            out[-1] = c
        else:
            out.append(c)
    return out


def _memory_order(classes: list[int], kernel: KernelFunction) -> list[int]:
    """Outermost first, by the steps of what is stored, then of what is read."""
    best: dict[int, int] = {}
    for a in kernel.accesses.items:
        full = all(a.steps.get(c, 0) not in (0,) for c in classes)
        if full and all(isinstance(a.steps.get(c), int) for c in classes):
            best = {c: abs(a.steps[c]) for c in classes}  # type: ignore[arg-type]
            break
    return sorted(classes, key=lambda c: -best[c]) if best else classes


def _lane(rows: list[int], inner: list[int], sizes: list[object], kernel: KernelFunction, lanes: int) -> int | None:
    """The class along which most elements are read and stored contiguous, stores counting twice, or near; long ones before short ones.

    A few elements are only reduced along the lanes where that is less work than in each lane by itself.
    """
    candidates = [*rows, *inner]
    times = [(a, _times(a, inner, sizes)) for a in kernel.accesses.items]
    most = max((n for _, n in times), default=0) or 1

    def score(c: int) -> tuple[float, int]:
        # An access of each row weighs nothing beside one of each of its elements.
        worth = sum(n / most * _worth(a, c) for a, n in times)
        return worth * (0.25 if known(sizes[c]) < SHORT else 1), candidates.index(c)

    best = max(candidates, key=score, default=None)
    if rows and best in inner and known(sizes[best]) < SHORT:
        work = _Work(kernel, inner, sizes, lanes)
        row = max(rows, key=score)
        return row if work.along_row(row) < work.folded(best) else best
    return best


def _times(a: Access, inner: list[int], sizes: list[object]) -> int:
    """How often an access takes place, for a row."""
    return product([c for c in inner if a.steps.get(c, 0) != 0 or c in a.gathered], sizes)


def _worth(a: Access, c: int) -> float:
    """What an access gains, or loses, where the lanes are along a class."""
    step, times = a.steps.get(c, 0), 2 if a.store else 1
    if c in a.gathered:
        return -2
    if a.near(c):
        return 0.5 if step == -1 else -0.5
    return times * {0: 0, 1: 1, -1: -1}.get(step, -2)  # type: ignore[call-overload]


SHORT = 8
"""Elements that are few for a vector."""


@dataclass
class _Work:
    """What a row takes, in instructions."""

    kernel: KernelFunction
    inner: list[int]
    sizes: list[object]
    lanes: int

    def along_row(self, lane: int) -> float:
        """Where each lane has a row of its own."""
        busy = max(min(known(self.sizes[lane]), self.lanes), 1)
        total = self._ops() / busy
        for a in self.kernel.accesses.items:
            total += self._times(a) * self._vectors(a, lane, busy)
        return total

    @staticmethod
    def _vectors(a: Access, lane: int, busy: int) -> float:
        """Loads or stores for an element, where so many lanes are busy."""
        step = a.steps.get(lane, 0)
        if lane in a.gathered:
            return 1.0
        if step in (0, 1):
            return step / busy
        # Two-byte elements, for which there are no gathers, as two: x / norm of rows of 5 and 6 takes a fifth less, softmax a half more.
        return 2 * abs(step) / busy if a.near(lane) else 1.0  # type: ignore[operator, arg-type]

    def folded(self, lane: int) -> float:
        """Where the lanes are elements of a row, and what they have is put together at its end."""
        n = max(known(self.sizes[lane]), 1)
        total = self._ops() / n + FOLD * len(self.kernel.domain.reductions)
        for a in self.kernel.accesses.items:
            total += self._times(a) / (n if a.steps.get(lane, 0) in (0, 1) and lane not in a.gathered else 1)
        return total

    def _ops(self) -> int:
        return body_ops(self.kernel) * product(self.inner, self.sizes)

    def _times(self, a: Access) -> int:
        return _times(a, self.inner, self.sizes)


FOLD = 3
"""To put the lanes of a vector together, with other rows meanwhile. 20,000 rows, softmax of 3: 53 us along the rows, 163 folded; of 5, which are
gathered, 139 and 177; x / norm of 5 75 and 42; windows of 7 x 7, 265 and 80."""


def _side_by_side(concat: ir.Operation, innermost: list[int | None], columns: list[int]) -> bool:
    """Whether columns are what is concatenated, a known number of each operand's."""
    last = len(st.shape(concat.results[0])) - 1
    return all(st.shape(v)[-1] >= 0 for v in concat.operands) and innermost == columns and ir.IntegerAttr(concat.attributes["dim"]).value == last


def _interleaved(kernel: KernelFunction) -> tuple[int, int] | None:
    """(lane class, class of a few) of a kernel that stores so many elements next to each other for each index along the lanes."""
    d = kernel.domain
    stores = [a for a in kernel.accesses.items if a.store]
    if d.reductions or not stores:
        return None
    steps = stores[0].steps
    few = next((c for c in d.rows if d.sizes[c] in range(2, FARTHEST + 1) and steps.get(c) == 1), None)
    lane = next((c for c in d.rows if c != few and few is not None and steps.get(c) == d.sizes[few]), None)
    if few is None or lane is None or any(a.steps.get(few) != 1 or a.steps.get(lane) != d.sizes[few] for a in stores):
        return None
    packs = any("mlirc.pack" in op.attributes for op in d.loops)
    return (lane, few) if (_whole_pairs if packs else _few_columns)(kernel, lane, few) else None


def _whole_pairs(kernel: KernelFunction, lane: int, few: int) -> bool:
    """Whether a packed operand has pairs of two-byte elements, in whole vectors."""
    d = kernel.domain
    (first, *others) = (a for a in kernel.accesses.items if a.store)
    size = d.sizes[lane]
    whole = isinstance(size, int) and size % 16 == 0
    return whole and d.sizes[few] == 2 and not others and builders.element_type(first.value).width == 16


def _few_columns(kernel: KernelFunction, lane: int, few: int) -> bool:
    """Whether rows are read along the lanes, or nearly, and those of a concatenation are columns side by side."""
    d, acc = kernel.domain, kernel.accesses
    near = all(a.store or a.steps.get(lane, 0) in (0, 1) or a.near(lane) for a in acc.items)
    free = d.anchor is None or (st.kind(d.anchor) == "concat" and _side_by_side(d.anchor, d.loops[d.anchor][-2:], [lane, few]))
    return free and near and known(d.sizes[lane]) >= 16 and not acc.merges(lane, few, d.sizes)
