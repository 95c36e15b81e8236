"""The common iteration space of a set of fused ops.

Loops of different ops that walk over the same dim of the same values are one *class*: if op C reads at its loop j what
op P wrote at its loop i, then (P, i) and (C, j) are the same class. A set of ops can be one kernel if, in terms of
classes, everything that it stores runs over the same space:

    loops         no reduction: all stored values have the same classes
    rows          reductions: they all reduce the same classes (`inner`), keep the same (`rows`), and whatever else is
                  stored runs over rows, or over rows and inner
    contraction   one contraction or convolution, and stored values that run over exactly its parallel classes; or several
                  contractions that `passes.siblings` found to read the same rows, and of each stored value the sibling's classes
    concat        one tensor.concat of elementwise or padded values
    scatter       one scatter of elementwise values; its loops are those of the updates
    segments      one scatter of elementwise values whose updates are in buckets, and stored values that run over exactly the dims of
                  its result, in that order; its loops are those of the updates, which it reduces, and then the one over the rows
    bucket        the order of a scatter's updates, from elementwise values
    scan          one scan of an elementwise value

The fusion pass asks whether a set is valid; the vectorizer takes the same classes as its loops.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ..dialects import own
from ..dialects.mlir import ir
from . import structure as st
from .padded import without_padding

Loop = tuple[ir.Operation, int]


@dataclass
class Domain:
    """Classes are small integers. `loops[op][i]` is the class of loop i of an op, None for loops of size one."""

    kind: str
    sizes: list[Hashable]
    loops: dict[ir.Operation, list[int | None]]
    rows: list[int] = field(default_factory=list)
    inner: list[int] = field(default_factory=list)
    reductions: list[ir.Operation] = field(default_factory=list)
    anchor: ir.Operation | None = None
    siblings: list[ir.Operation] = field(default_factory=list)
    """The anchor and its siblings, in program order."""
    displaced: set[ir.Operation] = field(default_factory=set)
    """Ops whose values are read at another place than the one that the loops are at, and computed anew there."""

    def classes(self, op: ir.Operation) -> list[int]:
        return [c for c in self.loops[op] if c is not None]


class Invalid(Exception):
    """These ops cannot be one kernel; the text is the reason, shown by `mlirc dump --stage fusion`."""


class Never(Invalid):
    """Nor if more of their loops were tied."""


def result_loops(op: ir.Operation, position: int = 0) -> list[int | None]:
    """The loop that walks over each dim of a result."""
    if op.name == "linalg.generic":
        return st.map_dims(st.maps(op)[len(op.operands) - len(op.results) + position])
    if st.kind(op) == "scatter":
        return [None if t < 0 else t for t in own.target(op)]
    if op.name == "mlirc.segments":
        return [len(st.shape(op.operands[1])) if t < 0 else t for t in own.target(op)]
    if op.name == "mlirc.bucket":
        return [None] if position else [0]
    return list(range(len(st.shape(op.results[position]))))


@st.remembered
def loop_count(op: ir.Operation) -> int:
    if op.name == "linalg.generic":
        return len(st.iterators(op))
    if op.name == "mlirc.segments":
        return len(st.shape(op.operands[1])) + 1
    return len(st.shape(op.operands[1] if st.kind(op) == "scatter" else op.results[0]))


@st.remembered
def operand_loops(op: ir.Operation) -> list[tuple[ir.Value, list[int | None]]]:
    """Each tensor operand with the loop that walks over each of its dims (None: not a plain loop)."""
    if op.name == "linalg.generic":
        return list(zip(st.inputs(op), [st.map_dims(m) for m in st.maps(op)]))
    if op.name == "tensor.concat":
        return [(v, list(range(len(st.shape(v))))) for v in op.operands]
    if op.name in ("mlirc.scan", "mlirc.bucket"):
        return [(op.operands[0], list(range(len(st.shape(op.operands[0])))))]
    if st.kind(op) == "scatter":
        init, updates, *others = op.operands
        walked = [(v, st.map_dims(own.index_map(op))) for v in others]
        return [(init, [None] * len(st.shape(init))), (updates, list(range(len(st.shape(updates))))), *walked]
    if op.name == "mlirc.segments":
        init, updates, *buckets = op.operands
        return [(init, result_loops(op)), (updates, list(range(len(st.shape(updates))))), *((v, [None]) for v in buckets)]
    return [(v, [None] * len(st.shape(v))) for v in st.inputs(op)]


def trace(value: ir.Value, inside: set[ir.Operation]) -> tuple[ir.Value, list[int | None]]:
    """Follow views back to a value that no view in `inside` makes.

    Returns it, and for each dim of `value` the dim of the root that it is, None where it is none (new unit dims, slices,
    merged or split dims).
    """
    op = st.owner(value)
    rank = len(st.shape(value))
    if op is None or op not in inside or st.kind(op) != "view":
        return value, list(range(rank))
    root, below = trace(op.operands[0], inside)
    source = st.shape(op.operands[0])
    mine = st.shape(value)
    dims: list[int | None] = [None] * rank
    if op.name == "linalg.transpose":
        dims = list(st.integers(op.attributes["permutation"]))
    elif op.name == "tensor.cast":
        dims = list(range(rank))
    elif op.name == "tensor.extract_slice":
        dims = [d if source[d] == mine[i] and source[d] >= 0 else None for i, d in enumerate(st.slice_dims(op))]
    else:
        wide, narrow = (source, mine) if op.name == "tensor.collapse_shape" else (mine, source)
        for n, group in enumerate(st.reassociation(op)):
            real = [d for d in group if wide[d] != 1]
            if len(real) == 1:
                if op.name == "tensor.collapse_shape":
                    dims[n] = real[0]
                else:
                    dims[real[0]] = n
    return root, [None if d is None else below[d] for d in dims]


def analyse(ops: Sequence[ir.Operation], stored: Sequence[ir.Value], shapes: st.Shapes) -> Domain:
    """The domain of a set of ops (in program order) of which `stored` values go to memory.

    Raises Invalid with the reason if the ops cannot be one kernel. Loops that are not tied by a value made inside are
    tied, if that is what it takes, by a tensor from outside that both ops read (the row and its mean). Padding around what a product stores
    is no part of it (`passes.padded`).
    """
    ops, stored = without_padding(ops, stored)
    try:
        return _analyse(ops, stored, shapes, False)
    except Never:
        raise
    except Invalid:
        return _analyse(ops, stored, shapes, True)


def _analyse(ops: Sequence[ir.Operation], stored: Sequence[ir.Value], shapes: st.Shapes, siblings: bool) -> Domain:
    inside = set(ops)
    real = [op for op in ops if st.kind(op) not in ("view", "aux")]
    anchors = [op for op in real if st.kind(op) in ("contraction", "convolution")]
    special = [op for op in real if st.kind(op) in ("concat", "scatter", "segments", "bucket", "scan")]
    reductions = [op for op in real if st.kind(op) == "reduction"]
    if len(anchors) + len(special) > 1 and (special or not st.siblings(anchors)):
        raise Never("two anchors")
    if anchors and reductions:
        raise Never("a reduction behind a contraction")
    displaced = _displaced(real, inside)
    if any(st.kind(op) not in ("elementwise", "pad") for op in displaced):
        raise Never("a value is read at another place than where the kernel computes it")
    parent: dict[Loop, Loop] = {}

    def find(x: Loop) -> Loop:
        while parent.setdefault(x, x) != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    size_of: dict[Loop, Hashable] = {}
    outside: dict[tuple[ir.Value, int], Loop] = {}
    for op in real:
        for i, size in enumerate(loop_sizes(op, shapes)):
            size_of[op, i] = size
        for value, loops in operand_loops(op):
            root, dims = trace(value, inside)
            producer = st.owner(root)
            if producer is None or producer not in inside or st.kind(producer) == "aux":
                for mine, d in zip(loops, dims) if siblings else ():
                    if mine is not None and d is not None:
                        parent[find((op, mine))] = find(outside.setdefault((root, d), (op, mine)))
                continue
            made = result_loops(producer, list(producer.results).index(root))
            for mine, d in zip(loops, dims):
                if mine is not None and d is not None and made[d] is not None:
                    parent[find((op, mine))] = find((producer, made[d]))  # type: ignore[arg-type]

    if st.siblings(anchors):
        for op in anchors[1:]:
            for i in rows_of(op):  # the loops of the operand that they share
                parent[find((op, i))] = find((anchors[0], i))

    number: dict[Loop, int] = {}
    sizes: list[Hashable] = []
    loops_of: dict[ir.Operation, list[int | None]] = {}
    for op in real:
        row: list[int | None] = []
        for i in range(loop_count(op)):
            if size_of[op, i] == 1:
                row.append(None)
                continue
            root_loop = find((op, i))
            if root_loop not in number:
                number[root_loop] = len(sizes)
                sizes.append(size_of[op, i])
            row.append(number[root_loop])
            if sizes[row[-1]] is None:  # type: ignore[index]
                sizes[row[-1]] = size_of[op, i]  # type: ignore[index]
        if len([c for c in row if c is not None]) != len({c for c in row if c is not None}):
            raise Invalid("one op walks twice over the same dim")
        loops_of[op] = row
    domain = Domain("loops", sizes, loops_of)
    roots = []
    for v in stored:
        root, _ = trace(v, inside)
        producer = st.owner(root)
        if producer is not None and producer in inside and producer not in roots:
            roots.append(producer)

    domain.displaced, domain.reductions = displaced, reductions
    if anchors:
        return _contraction(domain, anchors, roots)
    if special and st.kind(special[0]) == "segments":
        return _segments(domain, special[0], roots)
    if special:
        padded = any(st.kind(o) == "pad" for o in real) and st.kind(special[0]) != "concat"
        if domain.reductions or roots != special or padded:
            raise Invalid(f"{special[0].name} takes only elementwise producers")
        domain.kind, domain.anchor = st.kind(special[0]), special[0]
        domain.rows = domain.classes(special[0])
        return domain
    if domain.reductions:
        return _rows(domain, roots)
    spaces = {frozenset(domain.classes(r)) for r in roots}
    if len(spaces) > 1:
        raise Invalid("stored values have different shapes")
    domain.rows = domain.classes(roots[0]) if roots else []
    return domain


def _displaced(real: Sequence[ir.Operation], inside: set[ir.Operation]) -> set[ir.Operation]:
    """Members that are read through a slice, a window, padding or computed indices, and whatever they read themselves."""
    out: set[ir.Operation] = set()
    for op in reversed(real):
        computed = [v for v in st.captured(op) if st.is_tensor(v)]
        for value, loops in [*operand_loops(op), *((v, []) for v in computed)]:
            root, dims = trace(value, inside)
            producer = st.owner(root)
            if producer is None or producer not in inside or st.kind(producer) in ("view", "aux"):
                continue
            walked = {d for d, loop in zip(dims, loops) if loop is not None}
            # Of a computed index nobody knows here that it is zero, even if there is nothing else.
            if op in out or st.shape(root) and value in computed or any(n != 1 and d not in walked for d, n in enumerate(st.shape(root))):
                out.add(producer)
    return out


def rows_of(op: ir.Operation) -> list[int]:
    """The loops of a contraction that walk over its first operand."""
    return sorted({d for d in st.map_dims(st.maps(op)[0]) if d is not None})


def _contraction(domain: Domain, anchors: list[ir.Operation], roots: Sequence[ir.Operation]) -> Domain:
    anchor = anchors[0]
    domain.kind, domain.anchor, domain.siblings = st.kind(anchor), anchor, anchors
    iterators = st.iterators(anchor)
    domain.rows = [c for c, it in zip(domain.loops[anchor], iterators) if it == "parallel" and c is not None]
    domain.inner = [c for c, it in zip(domain.loops[anchor], iterators) if it == "reduction" and c is not None]
    for op in domain.loops:
        if st.kind(op) == "pad":
            raise Invalid("padding around a contraction")
    if any(st.RAGGED in a.attributes for a in anchors) and not all(op == anchor or _only_narrows(op, domain) for op in domain.loops):
        raise Invalid("rows that are in no group are zero")
    spaces = [{*domain.classes(a)} - {*domain.inner} for a in anchors]
    if any(op in domain.displaced for op in anchors) and len(anchors) > 1:
        raise Invalid("a sibling is read at another place")
    for r in roots:
        if r not in anchors and set(domain.classes(r)) not in spaces:
            raise Invalid("stored value does not have the contraction's shape")
    return domain


def _only_narrows(op: ir.Operation, domain: Domain) -> bool:
    """Whether an op rounds what another one of the domain makes to another type, in which zeros are zeros."""
    if not st.is_plain(op) or len(st.inputs(op)) != 1 or st.owner(op.operands[0]) not in domain.loops:
        return False
    return {o.name for o in st.body_ops(op)} <= {"arith.truncf", "linalg.yield"}


def _segments(domain: Domain, anchor: ir.Operation, roots: Sequence[ir.Operation]) -> Domain:
    if domain.reductions:
        raise Invalid("a reduction beside updates in buckets")
    if any(st.kind(op) == "pad" for op in domain.loops):
        raise Invalid("padding around updates in buckets")

    def stored(op: ir.Operation) -> list[int]:
        """The classes of the dims of its result."""
        classes = [None if i is None else domain.loops[op][i] for i in result_loops(op)]
        return [c for c in classes if c is not None]

    domain.kind, domain.anchor, domain.rows = "segments", anchor, stored(anchor)
    domain.inner = [c for c in domain.classes(anchor) if c not in domain.rows]
    if any(stored(r) != domain.rows for r in roots):
        raise Invalid("stored value does not have the shape of what is updated")
    return domain


def _rows(domain: Domain, roots: Sequence[ir.Operation]) -> Domain:
    spaces = set()
    for op in domain.reductions:
        pairs = list(zip(domain.loops[op], st.iterators(op)))
        keep = frozenset(c for c, it in pairs if it == "parallel" and c is not None)
        gone = frozenset(c for c, it in pairs if it == "reduction" and c is not None)
        spaces.add((keep, gone))
    if len(spaces) > 1:
        raise Invalid("reductions over different dims")
    keep, gone = next(iter(spaces))
    first = domain.reductions[0]
    domain.kind = "rows"
    domain.rows = [c for c in domain.classes(first) if c in keep]
    domain.inner = [c for c in domain.classes(first) if c in gone]
    for r in roots:
        if frozenset(domain.classes(r)) not in (keep, keep | gone):
            raise Invalid("stored value is neither a row nor a full tensor")
    return domain


def loop_sizes(op: ir.Operation, shapes: st.Shapes) -> list[Hashable]:
    """The size of each loop of an op."""
    if op.name == "mlirc.segments":
        return [*shapes.of(op.operands[1]), *(n for n, t in zip(shapes.of(op.results[0]), own.target(op)) if t < 0)]
    if op.name != "linalg.generic":
        return shapes.of(op.operands[1] if st.kind(op) == "scatter" else op.results[0])
    out: list[Hashable] = [None] * len(st.iterators(op))
    for value, m in zip(op.operands, st.maps(op)):
        for size, loop in zip(shapes.of(value), st.map_dims(m)):
            if loop is not None and (out[loop] is None or isinstance(size, int)):
                out[loop] = size
    return out
