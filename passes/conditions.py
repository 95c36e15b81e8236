"""Where a value can be other than -inf: what the selects and the additions say that make it.

    %s = select(%j <= %i, %u, -inf)                 Limit: j - i <= 0
    %s = select(%mask[%i, %j], %u, -inf)            Mask: the element of the argument at [i, j] is not 0
    %s = %u + %mask[%i, %j]                         Mask: the element of the argument at [i, j] is not -inf

All of the conditions hold where it is. There are no others than these: of what is not understood nothing is said. What is added to -inf
counts as a number, and what is multiplied with it as positive: NaN where nobody looks is nobody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st

if TYPE_CHECKING:
    from .vectorize.kernel import KernelFunction

Term = Union[int, "Part"]
"""The index of a class of loops, or a part of an index."""


@dataclass(frozen=True)
class Linear:
    """An index: a sum of terms, each so many times, and a constant."""

    steps: tuple[tuple[Term, int], ...] = ()
    constant: int = 0

    def plus(self, other: Linear, times: int = 1) -> Linear:
        steps = dict(self.steps)
        for term, n in other.steps:
            steps[term] = steps.get(term, 0) + n * times
        return Linear(tuple((term, n) for term, n in steps.items() if n), self.constant + other.constant * times)

    def step(self, c: int) -> int:
        return dict(self.steps).get(c, 0)

    def without(self, c: int) -> Linear:
        return Linear(tuple((term, n) for term, n in self.steps if term != c), self.constant)

    def parts_of(self, c: int) -> bool:
        """Whether a part of an index depends on a class."""
        return any(isinstance(term, Part) and (term.of.step(c) != 0 or term.of.parts_of(c)) for term, _ in self.steps)


@dataclass(frozen=True)
class Part:
    """An index divided by a number, or the `rest`."""

    of: Linear
    by: int
    rest: bool


@dataclass(frozen=True)
class Limit:
    """It is not above zero."""

    of: Linear


@dataclass(frozen=True)
class Place:
    """In the memory of an argument: a number of elements, and as many times what other arguments say, by their numbers."""

    known: Linear = Linear()
    times: tuple[tuple[int, Linear], ...] = ()

    def plus(self, at: Linear, stride: int | tuple[int]) -> Place:
        if isinstance(stride, int):
            return Place(self.known.plus(at, stride), self.times)
        return Place(self.known, (*self.times, (*stride, at)))

    def depends(self, c: int) -> bool:
        """Whether it moves with a class by a number of elements that is not known."""
        return any(at.step(c) for _, at in self.times)

    def parts_of(self, c: int) -> bool:
        return any(at.parts_of(c) for at in (self.known, *(at for _, at in self.times)))


@dataclass(frozen=True)
class Mask:
    """The element of an argument at this place has other bits than `hidden`."""

    argument: int
    place: Place
    hidden: int


Conditions = tuple[Union[Limit, Mask], ...]


@dataclass(frozen=True)
class _Truth:
    """What holds where a condition does, and where it does not."""

    yes: Conditions = ()
    no: Conditions = ()


@dataclass(frozen=True)
class _Number:
    """A float: -inf but where the conditions hold."""

    unless: Conditions


@dataclass(frozen=True)
class _Element:
    """An element of an argument."""

    argument: int
    place: Place


class _Nowhere:
    """-inf."""


_Answer = Union[Linear, _Truth, _Number, _Element, _Nowhere, float, None]

_COMPARISONS = ("eq", "ne", "slt", "sle", "sgt", "sge")
"""By the numbers of their predicates; unsigned ones follow."""
_SAME = ("arith.index_cast", "arith.extsi", "arith.trunci", "arith.extf", "arith.truncf")
"""Conversions, of numbers that fit (`_Reader.fits`); -inf fits any float."""
MOST = 1 << 20
"""Longer loops than these, of sizes that are symbols, would be over too many scores."""
HIDDEN = {"i1": 0, "f32": 0xFF800000, "bf16": 0xFF80, "f16": 0xFC00}
"""The bits of what hides an element, in masks of these types."""


def conditions(kernel: KernelFunction, op: ir.Operation) -> Conditions:
    """Where what an elementwise op of a kernel makes can be other than -inf, by the kernel's classes."""
    if op.name != "linalg.generic" or st.kind(op) != "elementwise" or op not in kernel.domain.loops:
        return ()
    loops = [Linear() if c is None else Linear(((c, 1),)) for c in kernel.domain.loops[op]]
    answer = _Reader(kernel).yielded(op, loops)
    return answer.unless if isinstance(answer, _Number) else ()


class _Reader:
    def __init__(self, kernel: KernelFunction) -> None:
        self.k = kernel
        self.arguments = {v: n for n, v in enumerate(kernel.arguments)}

    def tensor(self, value: ir.Value, point: Sequence[Linear | None]) -> _Answer:
        """The element at a point."""
        op = st.owner(value)
        if op is None:
            return self.element(value, point)
        if st.kind(op) == "view":
            source = _seen_through(op, point)
            return None if source is None else self.tensor(op.operands[0], source)
        if op.name != "linalg.generic" or st.kind(op) != "elementwise" or len(op.results) != 1:
            return None
        loops: list[Linear | None] = [Linear()] * len(st.iterators(op))
        for loop, at in zip(st.map_dims(st.maps(op)[-1]), point):
            if loop is not None:
                loops[loop] = at
        return self.yielded(op, loops)

    def element(self, value: ir.Value, point: Sequence[Linear | None]) -> _Answer:
        if value not in self.k.strides:
            return None
        place = Place()
        for at, stride, size in zip(point, self.k.strides[value], st.shape(value)):
            if size == 1:
                continue
            if at is None or not (isinstance(stride, int) or stride in self.arguments):
                return None
            place = place.plus(at, stride if isinstance(stride, int) else (self.arguments[stride],))
        return _Element(self.arguments[value], place)

    def yielded(self, op: ir.Operation, loops: Sequence[Linear | None]) -> _Answer:
        """What the body of an op makes at a place of its loops."""
        *_, last = st.body_ops(op)
        return self.scalar(last.operands[0], op, loops)

    def scalar(self, v: ir.Value, op: ir.Operation, loops: Sequence[Linear | None]) -> _Answer:
        made = st.owner(v)
        if made is None:
            n = ir.BlockArgument(v).arg_number
            if v.owner != op.regions[0].blocks[0] or n >= len(st.inputs(op)):
                return None
            return self.truth(self.tensor(op.operands[n], [_affine(e, loops) for e in st.maps(op)[n].results]))
        if made.name == "linalg.index":
            return loops[ir.IntegerAttr(made.attributes["dim"]).value]
        if made.name == "arith.constant":
            return _constant(v, made)
        answer = self.computed(made, [self.scalar(x, op, loops) for x in made.operands])
        return None if isinstance(answer, Linear) and not self.fits(answer, v.type) else answer

    def fits(self, of: Linear, kind: ir.Type) -> bool:
        """Whether a number is none that wraps around in its type."""
        bits = kind.width if isinstance(kind, ir.IntegerType) else 64
        most = max([MOST, *(n for n in self.k.domain.sizes if isinstance(n, int))])
        return _magnitude(of, most) < 1 << (bits - 1)

    def computed(self, made: ir.Operation, values: Sequence[_Answer]) -> _Answer:
        """What an op of a body makes of these."""
        if made.name in _SAME:
            return values[0]
        match made.name, values:
            case "arith.addi", [Linear() as a, Linear() as b]:
                return a.plus(b)
            case "arith.subi", [Linear() as a, Linear() as b]:
                return a.plus(b, -1)
            case "arith.muli", [Linear() as a, Linear(()) as b] | [Linear(()) as b, Linear() as a]:
                return Linear().plus(a, b.constant)
            case "arith.cmpi", [Linear() as a, Linear() as b]:
                predicate = ir.IntegerAttr(made.attributes["predicate"]).value
                return _comparison(_COMPARISONS[predicate], a, b) if predicate < len(_COMPARISONS) else None
            case "arith.andi", [a, b]:
                return _Truth(_yes(a) + _yes(b))
            case "arith.ori", [a, b]:
                return _Truth((), _no(a) + _no(b))
            case "arith.xori", [_Truth() as a, 1.0] | [1.0, _Truth() as a]:
                return _Truth(a.no, a.yes)
            case "arith.select", [condition, a, b]:
                return _selected(condition, a, b)
            case "arith.addf", [a, b]:
                return _Number(_unless(a) + _unless(b))
            case "arith.mulf", [a, float() as factor] | [float() as factor, a] if factor > 0:
                return _Number(_unless(a))
            case "arith.subf", [a, _]:
                return _Number(_unless(a))
        return None

    def truth(self, answer: _Answer) -> _Answer:
        """An element of a mask as what it says."""
        if not isinstance(answer, _Element):
            return answer
        kind = str(builders.element_type(self.k.arguments[answer.argument]))
        if kind not in HIDDEN:
            return None
        seen = Mask(answer.argument, answer.place, HIDDEN[kind])
        return _Truth((seen,), (Mask(answer.argument, answer.place, 1),)) if kind == "i1" else _Number((seen,))


def _magnitude(of: Linear, most: int) -> int:
    """A bound of the number, where no loop is longer than `most`."""
    terms = (abs(n) * (_magnitude(term.of, most) if isinstance(term, Part) else most) for term, n in of.steps)
    return abs(of.constant) + sum(terms)


def _selected(condition: _Answer, a: _Answer, b: _Answer) -> _Answer:
    if isinstance(b, _Nowhere):
        return _Nowhere() if isinstance(a, _Nowhere) else _Number(_yes(condition) + _unless(a))
    if isinstance(a, _Nowhere):
        return _Number(_no(condition) + _unless(b))
    return None


def _yes(x: _Answer) -> Conditions:
    return x.yes if isinstance(x, _Truth) else ()


def _no(x: _Answer) -> Conditions:
    return x.no if isinstance(x, _Truth) else ()


def _unless(x: _Answer) -> Conditions:
    return x.unless if isinstance(x, _Number) else ()


def _comparison(predicate: str, a: Linear, b: Linear) -> _Truth:
    below, above = Limit(a.plus(b, -1)), Limit(b.plus(a, -1))  # a <= b, a >= b
    less, more = (Limit(x.of.plus(Linear((), 1))) for x in (below, above))
    match predicate:
        case "eq":
            return _Truth((below, above))
        case "ne":
            return _Truth((), (below, above))
        case "sle":
            return _Truth((below,), (more,))
        case "slt":
            return _Truth((less,), (above,))
        case "sge":
            return _Truth((above,), (less,))
    return _Truth((more,), (below,))


def _constant(v: ir.Value, op: ir.Operation) -> _Answer:
    """An index or an integer; a float; `true` as 1.0, which `not` is made of."""
    attribute = op.attributes["value"]
    if isinstance(v.type, ir.FloatType):
        value = ir.FloatAttr(attribute).value
        return _Nowhere() if value == float("-inf") else float(value)
    if isinstance(v.type, ir.IntegerType) and v.type.width == 1:
        return 1.0 if ir.IntegerAttr(attribute).value else None
    if isinstance(v.type, (ir.IntegerType, ir.IndexType)):
        value = ir.IntegerAttr(attribute).value
        return Linear((), value) if abs(value) < 1 << 31 else None
    return None


def _affine(e: ir.AffineExpr, loops: Sequence[Linear | None]) -> Linear | None:
    if isinstance(e, ir.AffineDimExpr):
        return loops[e.position]
    if isinstance(e, ir.AffineConstantExpr):
        return Linear((), e.value)
    if isinstance(e, ir.AffineAddExpr):
        a, b = _affine(e.lhs, loops), _affine(e.rhs, loops)
        return None if a is None or b is None else a.plus(b)
    if not isinstance(e.rhs, ir.AffineConstantExpr) or (a := _affine(e.lhs, loops)) is None:
        return None
    if isinstance(e, ir.AffineMulExpr):
        return Linear().plus(a, e.rhs.value)
    return _part(a, e.rhs.value, isinstance(e, ir.AffineModExpr)) if isinstance(e, (ir.AffineFloorDivExpr, ir.AffineModExpr)) else None


def _part(of: Linear, by: int, rest: bool) -> Linear:
    return Linear(((Part(of, by, rest), 1),))


def _seen_through(view: ir.Operation, point: Sequence[Linear | None]) -> list[Linear | None] | None:
    """The point of a view's source; None where that is not known."""
    source = st.shape(view.operands[0])
    if min(*source, *st.shape(view.results[0]), 1) < 0:
        return None
    if view.name == "linalg.transpose":
        out: list[Linear | None] = [None] * len(source)
        for i, d in enumerate(st.integers(view.attributes["permutation"])):
            out[d] = point[i]
        return out
    if view.name == "tensor.cast":
        return list(point)
    if view.name == "tensor.expand_shape":
        return [_joined([(point[d], st.shape(view.results[0])[d]) for d in group]) for group in st.reassociation(view)]
    if view.name == "tensor.collapse_shape":
        split = []
        for group, at in zip(st.reassociation(view), point):
            split += _split(at, [source[d] for d in group])
        return split
    offsets, steps = st.slice_parts(view)
    if not all(isinstance(n, int) for n in offsets):
        return None
    out = [Linear((), n) for n in offsets]  # type: ignore[arg-type]
    for d, at in zip(st.slice_dims(view), point):
        out[d] = None if at is None else Linear((), offsets[d]).plus(at, steps[d])  # type: ignore[arg-type]
    return out


def _joined(dims: Sequence[tuple[Linear | None, int]]) -> Linear | None:
    """The index of a dim that these are parts of."""
    out = Linear()
    for at, size in dims:
        if size == 1:
            continue
        if at is None:
            return None
        out = Linear().plus(out, size).plus(at)
    return out


def _split(at: Linear | None, sizes: Sequence[int]) -> list[Linear | None]:
    """The indices of dims of these sizes that were merged into one."""
    out: list[Linear | None] = []
    left = [n for n in sizes if n != 1]
    for size in reversed(sizes):
        if size == 1:
            out.append(Linear())
        elif at is None or len(left) == 1:
            out.append(at)
        else:
            out.append(_part(at, size, rest=True))
            at = _part(at, size, rest=False)
            left.pop()
    return out[::-1]
