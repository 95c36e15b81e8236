"""How each memory access of a kernel moves with each class of loops.

For every load and store: class -> step in elements (None where it is not a constant). From that follow the lane class
(most accesses contiguous), and which neighbouring classes are really one loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...dialects import own
from ...dialects.mlir import ir
from .. import structure as st
from ..domain import Domain, operand_loops, result_loops
from ..strategy.near import is_near

Form = dict[int, int] | None
"""Linear in the classes (constants dropped), or None: not linear."""


@dataclass
class Access:
    """`steps` of one load or store of `value`; `op` is the linalg op that reads or, for a store, made it."""

    steps: dict[int, int | None]
    store: bool
    op: ir.Operation
    value: ir.Value
    gathered: frozenset[int] = frozenset()
    """Classes that an index which is data, not a step, depends on: the next element along one is anywhere."""

    def near(self, c: int) -> bool:
        """Whether it is a load of elements along a class that are a few apart (`strided`)."""
        return not self.store and is_near(self.steps.get(c))


@dataclass
class Accesses:
    """All accesses of a kernel, and the classes whose index is used for something else than addressing."""

    items: list[Access] = field(default_factory=list)
    numbered: set[int] = field(default_factory=set)
    """Their index is computed with."""
    padded: set[int] = field(default_factory=set)
    """Their index says what is padding."""

    @property
    def fixed(self) -> set[int]:
        return self.numbered | self.padded

    def beside(self, op: ir.Operation) -> Accesses:
        """The same without what an op reads."""
        return Accesses([a for a in self.items if a.store or a.op != op])

    def merges(self, outer: int, inner: int, sizes: Sequence[object]) -> bool:
        """Whether two nested classes step through all memory as one."""
        n = sizes[inner]
        if not isinstance(n, int) or not isinstance(sizes[outer], int) or {outer, inner} & self.fixed:
            return False
        for a in self.items:
            big, small = a.steps.get(outer, 0), a.steps.get(inner, 0)
            if big is None or small is None or big != small * n:
                return False
        return True


def collect(
    domain: Domain, stored: Sequence[tuple[ir.Value, Sequence[object]]], strides: dict[ir.Value, Sequence[object]]
) -> Accesses:
    """Walk from the stored values and the reductions to the arguments.

    `stored` are (value, strides of its buffer), `strides` those of the arguments; ints, or anything else for unknown.
    """
    walker = _Walker(domain, strides)
    if domain.siblings:  # an access belongs to the first op that has it: the product's are asked for
        walker.read(domain.siblings[0], walker.loop_forms(domain.siblings[0]))
    for value, steps in stored:
        op = st.owner(value)
        if op is None or op not in domain.loops:
            continue
        loops = walker.loop_forms(op)
        dims = result_forms(op, loops, value)
        walker.accesses.items.append(Access(_steps(dims, steps), True, op, value))
        walker.read(op, loops)
    for op in (*domain.reductions, *([domain.anchor] if domain.anchor is not None else [])):
        walker.read(op, walker.loop_forms(op))
    return walker.accesses


def read_at(domain: Domain, strides: dict[ir.Value, Sequence[object]], value: ir.Value, classes: Sequence[int | None]) -> Accesses:
    """What it takes to read a value at the indices of these classes, one for each dim (None: a unit dim)."""
    walker = _Walker(domain, strides)
    walker.value(value, [{} if c is None else {c: 1} for c in classes], next(iter(domain.loops)))
    return walker.accesses


def result_forms(op: ir.Operation, loops: Sequence[Form], value: ir.Value) -> list[Form]:
    if st.kind(op) == "scatter":
        return [None if t < 0 else loops[t] for t in own.target(op)]
    if op.name == "mlirc.segments":
        return [None if i is None else loops[i] for i in result_loops(op)]
    if op.name == "mlirc.bucket":
        return [None] if value == op.results[1] else list(loops)
    if op.name != "linalg.generic":
        return list(loops)
    m = st.maps(op)[len(op.operands) - len(op.results) + list(op.results).index(value)]
    return [affine_form(e, loops) for e in m.results]


def affine_form(e: ir.AffineExpr, loops: Sequence[Form]) -> Form:
    if isinstance(e, ir.AffineDimExpr):
        return loops[e.position]
    if isinstance(e, ir.AffineConstantExpr):
        return {}
    if isinstance(e, ir.AffineAddExpr):
        a, b = affine_form(e.lhs, loops), affine_form(e.rhs, loops)
        return None if a is None or b is None else {c: a.get(c, 0) + b.get(c, 0) for c in {*a, *b}}
    if isinstance(e, ir.AffineMulExpr) and isinstance(e.rhs, ir.AffineConstantExpr):
        a = affine_form(e.lhs, loops)
        return None if a is None else {c: n * e.rhs.value for c, n in a.items()}
    return None


def _steps(dims: Sequence[Form], strides: Sequence[object]) -> dict[int, int | None]:
    out: dict[int, int | None] = {}
    for form, stride in zip(dims, strides):
        for c, n in (form or {}).items():
            step = n * stride if isinstance(stride, int) else None
            old = out.get(c, 0)
            out[c] = None if step is None or old is None else old + step
    return out


def _joined(group: Sequence[int], dims: Sequence[Form], sizes: Sequence[int]) -> Form:
    """The index of a dim that was split into these, of known sizes but for the outermost: linear in theirs."""
    out: dict[int, int] = {}
    for d in group:
        form = dims[d]
        if form is None or d != group[0] and sizes[d] < 0:
            return None
        above = {c: n * sizes[d] for c, n in out.items()}
        out = {c: above.get(c, 0) + form.get(c, 0) for c in {*above, *form}}
    return out


def _classes_behind(index: ir.Value, op: ir.Operation, loops: Sequence[Form]) -> set[int]:
    """The classes of the data that an index computed in the body of a linalg op depends on."""
    out: set[int] = set()
    maps, block = st.maps(op), op.regions[0].blocks[0]
    todo, seen = [(index, False)], set()
    while todo:
        v, looked_up = todo.pop()
        if (v, looked_up) in seen:
            continue
        seen.add((v, looked_up))
        p = st.owner(v)
        if p is None:
            if v.owner == block:
                for e in maps[ir.BlockArgument(v).arg_number].results:
                    out.update(affine_form(e, loops) or {})
        elif p.name == "linalg.index":
            if looked_up:
                out.update(loops[ir.IntegerAttr(p.attributes["dim"]).value] or {})
        elif p.operation.block == block:
            todo.extend((o, looked_up or p.name == "tensor.extract") for o in p.operands)
    return out


class _Walker:
    def __init__(self, domain: Domain, strides: dict[ir.Value, Sequence[object]]) -> None:
        self.domain = domain
        self.strides = strides
        self.accesses = Accesses()
        self.seen: set[tuple[ir.Value, str, frozenset[int]]] = set()

    def loop_forms(self, op: ir.Operation) -> list[Form]:
        return [{} if c is None else {c: 1} for c in self.domain.loops[op]]

    def read(self, op: ir.Operation, loops: Sequence[Form]) -> None:
        """The accesses of one op whose loops move as said."""
        if op.name in ("tensor.concat", "mlirc.scan", "mlirc.bucket"):
            for v, _ in operand_loops(op):
                self.value(v, list(loops), op)
            return
        if st.kind(op) == "scatter":
            self.value(op.operands[1], list(loops), op)
            for v in own.indices(op):
                self.value(v, [affine_form(e, loops) for e in own.index_map(op).results], op)
            return
        if op.name == "mlirc.segments":
            for v, places in operand_loops(op)[:2]:
                self.value(v, [None if i is None else loops[i] for i in places], op)
            return
        if st.kind(op) == "pad":
            self._pad(op, loops)
            return
        if op.name != "linalg.generic":
            for form in loops:
                self._fix(form)
            for v in st.inputs(op):
                self.value(v, list(loops), op)
            return
        self._indices(op, loops)
        for v, m in zip(st.inputs(op), st.maps(op)):
            forms = [affine_form(e, loops) for e in m.results]
            for _e, f in zip(m.results, forms):
                if f is None:
                    for form in loops:
                        self._fix(form)
            self.value(v, forms, op)

    def _indices(self, op: ir.Operation, loops: Sequence[Form]) -> None:
        """Loops whose number the body sees cannot be merged; what it reads by computed indices is unknown."""
        for inner in op.regions[0].blocks[0].operations:
            o = st.operation(inner)
            if o.name == "linalg.index":
                self._fix(loops[ir.IntegerAttr(o.attributes["dim"]).value])
            elif o.name == "tensor.extract":
                forms: list[Form] = []
                gathered: set[int] = set()
                for v in list(o.operands)[1:]:
                    p = st.owner(v)
                    is_index = p is not None and p.name == "linalg.index"
                    forms.append(loops[ir.IntegerAttr(p.attributes["dim"]).value] if is_index else {})  # type: ignore[union-attr]
                    if not is_index:
                        gathered |= _classes_behind(v, op, loops)
                self.value(o.operands[0], forms, op, frozenset(gathered))

    def _fix(self, form: Form) -> None:
        self.accesses.numbered.update(form or {})

    def value(self, v: ir.Value, dims: list[Form], reader: ir.Operation, gathered: frozenset[int] = frozenset()) -> None:
        key = (v, repr(dims), gathered)
        if key in self.seen:
            return
        self.seen.add(key)
        if v in self.strides:
            self.accesses.items.append(Access(_steps(dims, self.strides[v]), False, reader, v, gathered))
            return
        op = st.owner(v)
        if op is None:
            return
        kind = st.kind(op)
        if kind == "elementwise":
            loops: list[Form] = [{}] * len(st.iterators(op))
            for d, f in zip(st.map_dims(st.maps(op)[len(op.operands) - 1]), dims):
                if d is not None:
                    loops[d] = f
            self.read(op, loops)
        elif kind == "pad":
            self._pad(op, dims)
        elif kind == "view":
            self._view(op, dims, reader)

    def _pad(self, op: ir.Operation, dims: Sequence[Form]) -> None:
        for form, *amounts in zip(dims, *st.pads(op)):
            if amounts != [0, 0]:
                self.accesses.padded.update(form or {})
        self.value(op.operands[0], list(dims), op)

    def _view(self, op: ir.Operation, dims: list[Form], reader: ir.Operation) -> None:
        source = st.shape(op.operands[0])
        mine = st.shape(op.results[0])
        out: list[Form] = [{}] * len(source)
        if op.name == "linalg.transpose":
            for i, d in enumerate(st.integers(op.attributes["permutation"])):
                out[d] = dims[i]
        elif op.name == "tensor.cast":
            out = dims
        elif op.name == "tensor.extract_slice":
            _, steps = st.slice_parts(op)
            for f, d in zip(dims, st.slice_dims(op)):
                out[d] = None if f is None else {c: n * steps[d] for c, n in f.items()}
        else:
            wide = source if op.name == "tensor.collapse_shape" else mine
            for n, group in enumerate(st.reassociation(op)):
                real = [d for d in group if wide[d] != 1]
                if len(real) > 1:
                    if op.name == "tensor.expand_shape" and (form := _joined(real, dims, mine)) is not None:
                        out[n] = form
                        continue
                    for d in group if op.name == "tensor.expand_shape" else [n]:
                        self._fix(dims[d])
                    continue
                if real and op.name == "tensor.collapse_shape":
                    out[real[0]] = dims[n]
                elif real:
                    out[n] = dims[real[0]]
        self.value(op.operands[0], out, reader)
