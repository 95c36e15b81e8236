"""Where each tensor of the graph function lies: a root buffer, an offset and strides, all in elements.

Views move nothing. What a kernel or a call produces is row-major, with a pitch from row to row if an attribute says so; arguments have the
strides that their attribute says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..dialects import builders
from ..dialects.mlir import ir
from ..dialects.sizes import Extent, Sizes, normal, parse
from . import structure as st

PITCH = "mlirc.pitch"
"""Of an op or a call, for each of its results: the elements from one row to the next, 0 where rows are as long as the last dim."""


@dataclass(frozen=True)
class Layout:
    root: ir.Value
    offset: Extent
    strides: tuple[Extent, ...]


class NotAView(Exception):
    """These dims do not merge: the tensor has to be copied."""


def row_major(sizes: Sequence[Extent], pitch: int = 0) -> tuple[Extent, ...]:
    """Strides of dims, with `pitch` elements from one row to the next if that is not 0."""
    strides: list[Extent] = []
    step: Extent = 1
    for s in reversed(sizes):
        strides.append(step)
        step = pitch if pitch and len(strides) == 1 else normal(step * s)
    return tuple(reversed(strides))


def pitch_of(value: ir.Value) -> int:
    """What `mlirc.pitch` says of a result; 0 of others."""
    op = st.owner(value)
    if op is None or PITCH not in op.attributes:
        return 0
    return st.integers(op.attributes[PITCH])[ir.OpResult(value).result_number]


def set_pitches(op: ir.Operation, pitches: Sequence[int]) -> None:
    """Say so of all results of an op, if there are any that are not dense."""
    if any(pitches):
        op.attributes[PITCH] = ir.DenseI64ArrayAttr.get(list(pitches), op.context)
    elif PITCH in op.attributes:
        del op.attributes[PITCH]


def merges(sizes: Sequence[Extent], strides: Sequence[Extent]) -> bool:
    """Whether dims, outermost first, are one dim with the last one's stride."""
    real = [(n, s) for n, s in zip(sizes, strides) if n != 1]
    return all(normal(a[1] - b[1] * b[0]) == 0 for a, b in zip(real, real[1:]))


class Layouts:
    """Layouts of the values of one function, computed on demand."""

    def __init__(self, function: ir.Operation) -> None:
        self.sizes = Sizes(function)
        self.shapes = st.Shapes(
            self.sizes.expr, parse, lambda xs: normal(_product(xs)), lambda a, b: normal(a + b)  # type: ignore[arg-type, operator]
        ).arguments(function)
        self._arguments: dict[ir.Value, Layout] = {}
        block = function.regions[0].blocks[0]
        if "arg_attrs" in function.attributes:
            for value, attribute in zip(block.arguments, ir.ArrayAttr(function.attributes["arg_attrs"])):
                if "mlirc.strides" in attribute:
                    strides = tuple(parse(ir.StringAttr(s).value) for s in attribute["mlirc.strides"])
                    self._arguments[value] = Layout(value, 0, strides)
        self._known = dict(self._arguments)

    def begin_again(self) -> None:
        """Forget all but the function's arguments, which take long to read: after ops were erased, whose addresses new ones may get."""
        self._known = dict(self._arguments)
        self.sizes.begin_again()
        self.shapes.begin_again()

    def of(self, value: ir.Value) -> Layout:
        """Raises NotAView for a collapse_shape that needs a copy."""
        if value not in self._known:
            self._known[value] = self._view(value)
        return self._known[value]

    def dense(self, value: ir.Value) -> bool:
        """Whether the value fills its memory row-major from offset 0 of its root."""
        layout = self.of(value)
        sizes = self.shapes.of(value)
        return layout.offset == 0 and all(
            n == 1 or normal(s - r) == 0 for n, s, r in zip(sizes, layout.strides, row_major(sizes))  # type: ignore[arg-type]
        )

    def whole(self, value: ir.Value) -> bool:
        """Whether the value is all of its root's memory, row-major."""
        if not self.dense(value):
            return False
        counts = [_product(self.shapes.of(v)) for v in (self.of(value).root, value)]  # type: ignore[arg-type]
        return normal(counts[0] - counts[1]) == 0  # type: ignore[operator]

    def elements(self, value: ir.Value) -> Extent:
        """Of the memory that a value with a root of its own takes."""
        sizes, pitch = self.shapes.of(value), pitch_of(value)
        return _product([*sizes[:-1], pitch] if pitch else sizes)  # type: ignore[arg-type]

    def values(self, value: ir.Value) -> list[builders.Size]:
        """The sizes of a tensor for an op that is built here: ints, and index values made at the insertion point."""
        self.sizes.forget()
        return [self.size(normal(s)) for s in self.shapes.of(value)]  # type: ignore[arg-type]

    def size(self, n: Extent) -> builders.Size:
        """A size for an op that is built here."""
        return n if isinstance(n, int) else self.sizes.value(n)

    def merged(self, value: ir.Value, groups: Sequence[Sequence[int]]) -> list[builders.Size]:
        """The sizes of a tensor with the dims of each group as one, for an op that is built here."""
        self.sizes.forget()
        extents = self.shapes.of(value)
        return [self.size(normal(_product([extents[d] for d in g]))) for g in groups]  # type: ignore[misc]

    def collapsed(self, value: ir.Value, groups: Sequence[Sequence[int]]) -> ir.Value:
        """A view of the tensor with the dims of each group as one."""
        return builders.collapse(value, [list(g) for g in groups], self.merged(value, groups))

    def _view(self, value: ir.Value) -> Layout:
        op = st.owner(value)
        sizes = self.shapes.of(value)
        if op is None or st.kind(op) != "view":
            return Layout(value, 0, row_major(sizes, pitch_of(value)))  # type: ignore[arg-type]
        source = self.of(op.operands[0])
        old = self.shapes.of(op.operands[0])
        match op.name:
            case "tensor.cast":
                return Layout(source.root, source.offset, source.strides)
            case "linalg.transpose":
                order = st.integers(op.attributes["permutation"])
                return Layout(source.root, source.offset, tuple(source.strides[d] for d in order))
            case "tensor.extract_slice":
                offsets, steps = st.slice_parts(op)
                offset = source.offset
                for o, s in zip(offsets, source.strides):
                    offset = offset + (o if isinstance(o, int) else self.sizes.expr(o)) * s
                strides = tuple(normal(s * k) for s, k in zip(source.strides, steps))
                return Layout(source.root, normal(offset), tuple(strides[d] for d in st.slice_dims(op)))
            case "tensor.collapse_shape":
                out: list[Extent] = []
                for group in st.reassociation(op):
                    if not merges([old[d] for d in group], [source.strides[d] for d in group]):  # type: ignore[misc]
                        raise NotAView(str(value.type))
                    real = [d for d in group if old[d] != 1]
                    out.append(source.strides[real[-1]] if real else source.strides[group[-1]])
                return Layout(source.root, source.offset, tuple(out))
        split: list[Extent] = [1] * len(sizes)
        for n, group in enumerate(st.reassociation(op)):
            step = source.strides[n]
            for d in reversed(group):
                split[d] = step
                step = normal(step * sizes[d])  # type: ignore[operator]
        return Layout(source.root, source.offset, tuple(split))


def _product(xs: Sequence[Extent]) -> Extent:
    out: Extent = 1
    for x in xs:
        out = out * x
    return out
