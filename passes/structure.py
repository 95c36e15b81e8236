"""What the passes ask of linalg ops: kinds, maps, sizes, and where a value comes from through views."""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ..dialects import builders
from ..dialects.mlir import ir

Answer = TypeVar("Answer")
Asked = TypeVar("Asked", ir.Operation, ir.Value)
Content = TypeVar("Content", ir.Attribute, ir.AffineMap)

VIEWS = frozenset(
    ("tensor.collapse_shape", "tensor.expand_shape", "tensor.extract_slice", "linalg.transpose", "tensor.cast")
)
AUXILIARY = frozenset(("tensor.empty", "linalg.fill", "arith.constant"))

ORDERED = "mlirc.ordered"
"""Of a call: an op that draws random numbers, or one of the user's, which may print or count. These run in the graph's order."""


Answers = defaultdict[object, dict[Any, Any]]
"""By question, and what it is asked of."""


class _Remembered(threading.local):
    facts: Answers | None = None
    contents: Answers | None = None


_remembered = _Remembered()


@contextmanager
def unchanging() -> Iterator[None]:
    """Within, what is asked of an op or a value is remembered, for MLIR is slow to answer. Until then no op may change, nor go: a new one may
    get its address, and with it what is remembered about it."""
    outer, _remembered.facts = _remembered.facts, defaultdict(dict)
    try:
        yield
    finally:
        _remembered.facts = outer


@contextmanager
def one_context() -> Iterator[None]:
    """Within, which is no longer than the current MLIR context lives, what attributes and maps say is remembered: they never change."""
    outer, _remembered.contents = _remembered.contents, defaultdict(dict)
    try:
        yield
    finally:
        _remembered.contents = outer


def remembered(question: Callable[[Asked], Answer]) -> Callable[[Asked], Answer]:
    """A function of an op or a value whose answers, which nobody changes, are kept while the IR is `unchanging`."""

    @functools.wraps(question)
    def ask(op: Asked) -> Answer:
        facts = _remembered.facts
        return question(op) if facts is None else _answer(facts, question, op)

    return ask


def content(question: Callable[[Content], Answer]) -> Callable[[Content], Answer]:
    """A function of an attribute or a map whose answers, which nobody changes, are kept within `one_context`."""

    @functools.wraps(question)
    def ask(of: Content) -> Answer:
        contents = _remembered.contents
        return question(of) if contents is None else _answer(contents, question, of)

    return ask


def _answer(known: Answers, question: Callable[[Any], Answer], of: object) -> Answer:
    answers = known[question]
    try:
        return answers[of]  # type: ignore[no-any-return]
    except KeyError:  # the hash of an op is dear, and so is looking twice
        pass
    answers[of] = found = question(of)
    return found


def operation(x: object) -> ir.Operation:
    try:
        return x.operation  # type: ignore[attr-defined, no-any-return]
    except AttributeError:
        return x  # type: ignore[return-value]


def owner(value: ir.Value) -> ir.Operation | None:
    """The op that defines a value, None for block arguments."""
    o = value.owner
    return None if isinstance(o, ir.Block) else operation(o)


def in_function(op: ir.Operation) -> ir.Operation:
    """The op of the function's own block that an op is, or is inside of."""
    op = operation(op)
    while (parent := op.parent) is not None and operation(parent).name != "func.func":
        op = operation(parent)
    return op


def is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


@remembered
def kind(op: ir.Operation) -> str:
    """`view`, `elementwise`, `reduction`, `contraction`, `convolution`, `pad`, `concat`, `scatter`, `segments`, `bucket`, `scan`,
    `call`, `return` or `aux`."""
    name = op.name
    if name in VIEWS:
        return "view"
    if name == "linalg.generic":
        if "mlirc.kind" in op.attributes:
            return ir.StringAttr(op.attributes["mlirc.kind"]).value
        return "reduction" if "reduction" in iterators(op) else "elementwise"
    return _KINDS.get(name, "aux")


_KINDS = {
    "tensor.pad": "pad",
    "tensor.concat": "concat",
    "mlirc.scatter": "scatter",
    "mlirc.segments": "segments",
    "mlirc.bucket": "bucket",
    "mlirc.scan": "scan",
    "func.call": "call",
    "func.return": "return",
}


def group_number(op: ir.Operation, otherwise: int | None = None) -> int | None:
    """Of the fused group that an op is in; `otherwise` for those in none."""
    return ir.IntegerAttr(op.attributes["mlirc.group"]).value if "mlirc.group" in op.attributes else otherwise


def iterators(op: ir.Operation) -> list[str]:
    """`parallel` or `reduction` for each loop of a linalg.generic."""
    return list(_iterators(op.attributes["iterator_types"]))


@content
def _iterators(types: ir.Attribute) -> list[str]:
    return ["reduction" if "reduction" in str(t) else "parallel" for t in ir.ArrayAttr(types)]


def maps(op: ir.Operation) -> list[ir.AffineMap]:
    """Of each operand of a linalg.generic, from its loops."""
    return list(_maps(op.attributes["indexing_maps"]))


@content
def _maps(attribute: ir.Attribute) -> list[ir.AffineMap]:
    return [ir.AffineMapAttr(a).value for a in ir.ArrayAttr(attribute)]


def map_dims(m: ir.AffineMap) -> list[int | None]:
    """Loop number of each result of a map, None where the result is not a plain loop."""
    return list(_map_dims(m))


@content
def _map_dims(m: ir.AffineMap) -> list[int | None]:
    return [ir.AffineDimExpr(e).position if isinstance(e, ir.AffineDimExpr) else None for e in m.results]


def used_loops(m: ir.AffineMap) -> set[int]:
    """Loops that occur in a map."""
    return {d for e in m.results for d in loops_in(e)}


def loops_in(e: ir.AffineExpr) -> set[int]:
    """Loops that occur in a result of a map."""
    if isinstance(e, ir.AffineDimExpr):
        return {e.position}
    return set() if isinstance(e, ir.AffineConstantExpr) else loops_in(e.lhs) | loops_in(e.rhs)


def inputs(op: ir.Operation) -> list[ir.Value]:
    """The tensors that an op reads: inputs of a generic (without its init), the source of a view, ..."""
    if op.name == "linalg.generic":
        return list(op.operands)[: -len(op.results)]
    if op.name == "linalg.transpose":
        return [op.operands[0]]
    return [o for o in op.operands if is_tensor(o)]


@remembered
def reads_bf16(op: ir.Operation) -> bool:
    """Whether all inputs of a structured op are tensors of bf16."""
    return all(isinstance(builders.element_type(v), ir.BF16Type) for v in inputs(op))


ORDERED = "mlirc.ordered"
"""On an op whose loops are in the order in which its result is read: no layout flows through it."""

WORDS = "mlirc.words"
"""Attribute of a product that is computed in words of 32 bits, in which its second operand is packed: the loop of the reduction that is walked
in them. Of one that is not packed (`is_packed`) pairs of bf16 are put together in registers."""

RAGGED = "mlirc.ragged"
"""Attribute of a product with rows in groups, each of which has a matrix of its own (`passes.ragged`): the loop over all rows, and that over the
groups, which is the last one."""

WORD_TYPES = {"bf16": "f32", "i16": "i32", "i8": "i32"}
"""Element types that instructions multiply word by word -> the type of their sums."""


@remembered
def word(op: ir.Operation) -> int:
    """Elements of the reduction in a word of 32 bits of a product, where both operands have one of `WORD_TYPES`; else 1."""
    first, second = (str(builders.element_type(v)) for v in inputs(op))
    if first != second or WORD_TYPES.get(first) != str(builders.element_type(op.results[0])):
        return 1
    return 32 // builders.element_type(op.operands[0]).width


def ragged_loops(op: ir.Operation) -> tuple[int, int] | None:
    """The loops over rows and over groups of them of a product that has such."""
    if RAGGED not in op.attributes:
        return None
    rows, groups = integers(op.attributes[RAGGED])
    return rows, groups


def is_packed(op: ir.Operation, side: int) -> bool:
    """Whether an operand of a product lies in blocks of the lanes."""
    return any(isinstance(e, ir.AffineFloorDivExpr) for e in maps(op)[side].results)


def unsigned(op: ir.Operation) -> tuple[bool, bool]:
    """Whether the operands of a product that are integers, which it widens, are unsigned."""
    uses = [{operation(u.owner).name for u in a.uses} for a in list(op.regions[0].blocks[0].arguments)[:2]]
    widens = {"arith.extui", "arith.uitofp"}
    return bool(uses[0] & widens), bool(uses[1] & widens)


def views(value: ir.Value) -> Iterator[ir.Operation]:
    """The views that a value is seen through, the last one first."""
    while (op := owner(value)) is not None and kind(op) == "view":
        yield op
        value = op.operands[0]


def root(value: ir.Value) -> ir.Value:
    """What a value is a view of."""
    for view in views(value):
        value = view.operands[0]
    return value


@remembered
def captured(op: ir.Operation) -> list[ir.Value]:
    """Values from outside that the regions of an op use."""
    inside: set[ir.Value] = set()
    out: dict[ir.Value, None] = {}
    for region in op.regions:
        for block in region.blocks:
            inside.update(block.arguments)
            for inner in block.operations:
                o = operation(inner)
                for v in o.operands:
                    if v not in inside:
                        out[v] = None
                for v in captured(o) if len(o.regions) else ():
                    if v not in inside:
                        out[v] = None
                inside.update(o.results)
    return list(out)


def ordered(ops: Sequence[ir.Operation]) -> dict[ir.Operation, ir.Operation]:
    """For each call that has its place in an order (see `ORDERED`) the one that comes before it; `ops` are in program order."""
    calls = [op for op in ops if kind(op) == "call" and ORDERED in op.attributes]
    return dict(zip(calls[1:], calls))


def siblings(ops: Sequence[ir.Operation]) -> bool:
    """Whether these are several contractions that `passes.siblings` found to be one."""
    marks = [op.attributes["mlirc.siblings"] if "mlirc.siblings" in op.attributes else None for op in ops]
    return len(ops) > 1 and marks[0] is not None and all(m is not None and m == marks[0] for m in marks)


def body_ops(op: ir.Operation) -> list[ir.Operation]:
    """The ops of a one-block region."""
    return [operation(o) for o in op.regions[0].blocks[0].operations]


def uses_index(op: ir.Operation) -> bool:
    """Whether the body of a generic asks for its coordinates."""
    return any(o.name == "linalg.index" for o in body_ops(op))


def is_plain(op: ir.Operation) -> bool:
    """Whether this is an elementwise op with one result, stored in the order of its loops, of which no pass has said anything, that reads its
    operands at places of these loops, neither their numbers nor what the result's memory held before."""
    named = {a if isinstance(a, str) else a.name for a in op.attributes}
    if kind(op) != "elementwise" or len(op.results) != 1 or named - {"indexing_maps", "iterator_types", "operandSegmentSizes"}:
        return False
    if uses_index(op) or any(True for _ in op.regions[0].blocks[0].arguments[len(op.operands) - 1].uses):
        return False
    straight = map_dims(maps(op)[-1]) == list(range(len(iterators(op))))
    return straight and all(isinstance(e, (ir.AffineDimExpr, ir.AffineConstantExpr)) for m in maps(op) for e in m.results)


def can_fail(op: ir.Operation) -> bool:
    """Whether an op of a kernel checks what it reads: an index, a divisor."""
    if op.name == "linalg.generic":
        return any(o.name == "cf.assert" for o in body_ops(op))
    return op.name in ("mlirc.scatter", "mlirc.bucket")


@remembered
def tensors_read(op: ir.Operation) -> list[ir.Value]:
    """All tensors that an op reads, those of its region included, but not inits."""
    return [*inputs(op), *(v for v in captured(op) if is_tensor(v))]


def integers(attribute: ir.Attribute) -> list[int]:
    """A dense i64 array attribute as a list."""
    return list(ir.DenseI64ArrayAttr(attribute))


def reassociation(op: ir.Operation) -> list[list[int]]:
    """The groups of expanded dims of a collapse_shape or expand_shape."""
    return [[ir.IntegerAttr(i).value for i in ir.ArrayAttr(g)] for g in ir.ArrayAttr(op.attributes["reassociation"])]


def shape(value: ir.Value) -> list[int]:
    """Static sizes of a tensor, ShapedType's marker where dynamic."""
    return list(value.type.shape)  # type: ignore[attr-defined]


@dataclass
class Shapes:
    """Sizes of tensor values as ints or as hashable stand-ins for dynamic ones; equal stand-ins are equal sizes.

    `leaf` turns an `index` value into a stand-in, `named` the text in an attribute. Sizes that are not known this way
    (a product of dynamic dims that nobody has computed) are None, unless `multiply` is given.
    """

    leaf: Callable[[ir.Value], Hashable]
    named: Callable[[str], Hashable]
    multiply: Callable[[Sequence[Hashable]], Hashable] | None = None
    add: Callable[[Hashable, Hashable], Hashable] | None = None

    def __post_init__(self) -> None:
        self._known: dict[ir.Value, list[Hashable]] = {}
        self._arguments: dict[ir.Value, list[Hashable]] = {}

    def arguments(self, function: ir.Operation) -> "Shapes":
        """Read `mlirc.sizes` of the function's tensor arguments."""
        block = function.regions[0].blocks[0]
        if "arg_attrs" in function.attributes:
            for value, attribute in zip(block.arguments, ir.ArrayAttr(function.attributes["arg_attrs"])):
                if "mlirc.sizes" in attribute:
                    self._arguments[value] = [self.named(ir.StringAttr(s).value) for s in attribute["mlirc.sizes"]]
        self.begin_again()
        return self

    def begin_again(self) -> None:
        """Forget all but the arguments."""
        self._known = dict(self._arguments)

    def of(self, value: ir.Value) -> list[Hashable]:
        if value not in self._known:
            static = shape(value)
            if any(s < 0 for s in static):
                self._known[value] = [s if s >= 0 else d for s, d in zip(static, self._dynamic(value))]
            else:
                self._known[value] = list(static)
        return self._known[value]

    def _dynamic(self, value: ir.Value) -> list[Hashable]:
        op = owner(value)
        static = shape(value)
        if op is None:
            return [None] * len(static)
        position = list(op.results).index(value)

        def fill(values: Sequence[ir.Value]) -> list[Hashable]:
            left = [self.leaf(v) for v in values]
            return [s if s >= 0 else left.pop(0) for s in static]

        if "mlirc.sizes" in op.attributes and op.name != "func.call":
            return [self.named(ir.StringAttr(t).value) for t in ir.ArrayAttr(op.attributes["mlirc.sizes"])]
        match op.name:
            case "tensor.empty":
                return fill(list(op.operands))
            case "linalg.fill" | "linalg.transpose":
                return self.of(op.operands[len(op.operands) - 1])
            case "linalg.generic":
                return self.of(op.operands[len(op.operands) - len(op.results) + position])
            case "tensor.cast" | "mlirc.scatter" | "mlirc.segments" | "mlirc.scan":
                return self.of(op.operands[0])
            case "tensor.insert_slice":
                return self.of(op.operands[1])
            case "mlirc.bucket":
                return self.of(op.operands[position])
            case "tensor.expand_shape":
                return fill(list(op.operands)[1:])
            case "tensor.collapse_shape":
                source = self.of(op.operands[0])
                return [self._product([source[i] for i in g]) for g in reassociation(op)]
            case "tensor.extract_slice":
                n = [sum(s < 0 for s in integers(op.attributes[a])) for a in ("static_offsets", "static_sizes")]
                full = integers(op.attributes["static_sizes"])
                left = [self.leaf(v) for v in list(op.operands)[1 + n[0] : 1 + n[0] + n[1]]]
                sizes = [s if s >= 0 else left.pop(0) for s in full]
                return [sizes[d] for d in slice_dims(op)]
            case "tensor.pad":
                source = self.of(op.operands[0])
                low, high = pads(op)
                sizes = []
                for s, lo, hi in zip(source, low, high):
                    lo, hi = (p if isinstance(p, int) else self.leaf(p) for p in (lo, hi))
                    sizes.append(self._sum(self._sum(s, lo), hi))
                return sizes
        if op.name == "func.call" and "mlirc.sizes" in op.attributes:
            texts = ir.ArrayAttr(ir.ArrayAttr(op.attributes["mlirc.sizes"])[position])
            return [self.named(ir.StringAttr(t).value) for t in texts]
        return [None] * len(static)

    def _product(self, sizes: Sequence[Hashable]) -> Hashable:
        dynamic = [s for s in sizes if s != 1]
        if len(dynamic) <= 1:
            return dynamic[0] if dynamic else 1
        return self.multiply(sizes) if self.multiply and None not in sizes else None

    def _sum(self, a: Hashable, b: Hashable) -> Hashable:
        if b == 0:
            return a
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return self.add(a, b) if self.add and a is not None and b is not None else None


def pads(op: ir.Operation) -> tuple[list[int | ir.Value], list[int | ir.Value]]:
    """Low and high padding of a tensor.pad, ints or index values."""
    left = list(op.operands)[1:]
    out = []
    for name in ("static_low", "static_high"):
        out.append([s if s >= 0 else left.pop(0) for s in integers(op.attributes[name])])
    return out[0], out[1]


def padding(op: ir.Operation) -> ir.Value | None:
    """What a tensor.pad puts around; None if that is computed."""
    last = operation(op.regions[0].blocks[0].operations[0])
    return last.operands[0] if last.name == "tensor.yield" else None


def slice_parts(op: ir.Operation) -> tuple[list[int | ir.Value], list[int]]:
    """Offsets and steps of a tensor.extract_slice."""
    static = integers(op.attributes["static_offsets"])
    left = list(op.operands)[1:]
    return [s if s >= 0 else left.pop(0) for s in static], integers(op.attributes["static_strides"])


def slice_dims(op: ir.Operation) -> list[int]:
    """The source dim of each result dim of a tensor.extract_slice, which may drop dims of size one."""
    sizes = integers(op.attributes["static_sizes"])
    kept: list[int] = []
    want = shape(op.results[0])
    for d, s in enumerate(sizes):
        if len(kept) < len(want) and want[len(kept)] == s:
            kept.append(d)
    return kept
