"""Which values of a row are kept in a buffer from one walk over it to the next, because they are dear to compute, or to read again.

    phase 1: for inner: t = exp(x - max); buffer[inner] = t; sum += t
    phase 2: for inner: out[inner] = buffer[inner] / sum
"""

from __future__ import annotations

from ...dialects import builders
from ...dialects.mlir import ir
from ...lowering.caches import Caches
from .. import structure as st
from ..phases import phases
from .blocks import same_set_lines
from .split import KEPT_ELEMENTS
from .walk import Walk


def kept(w: Walk, lanes: int) -> list[list[int]]:
    """For each phase, the ops (by their places in the kernel) whose values later phases want: full-sized, and not stored anyway."""
    kernel, d = w.kernel, w.kernel.domain
    plan = phases(d, kernel.results)
    first: dict[ir.Operation, int] = {}
    again: dict[ir.Operation, None] = {}

    def visit(v: ir.Value, phase: int, here: set[ir.Operation]) -> None:
        op = st.owner(v)
        if op is None or op in here or st.kind(op) in ("reduction", "aux"):
            return
        here.add(op)
        if st.kind(op) == "elementwise" and first.setdefault(op, phase) != phase:
            again[op] = None
        for read in st.tensors_read(op):
            visit(read, phase, here)

    for n, phase in enumerate(plan.walks):
        here: set[ir.Operation] = set()
        for v in [*(v for op in phase.reductions for v in st.tensors_read(op)), *(kernel.results[i] for i in phase.stores)]:
            visit(v, n, here)
    out: list[list[int]] = [[] for _ in plan.walks]
    stored = {st.owner(kernel.results[i]) for phase in plan.walks for i in phase.stores}
    full = {*d.rows, *d.inner}
    for op in again if _room(w, lanes) else ():
        if set(d.classes(op)) == full and op not in stored and op not in d.displaced and _dear(op):
            out[first[op]].append(kernel.ops.index(op))
    return out if any(out) else []


def copied(w: Walk, lanes: int, caches: Caches) -> list[int]:
    """The arguments (their numbers) of which the first walk over a row copies what it reads: where each lane has a row of its own, whose elements
    lie so far apart that their lines evict one another from the second-level cache before the next walk, and that reads them, too.

    Norms over the channels of planes: layer norm of [64, 128 * 128] in f32 takes 0.72 instead of 1.09 ms, of [320, 32 * 32] 225 instead of
    290 us (Zen 4). Where the second level has room for them, copying gains nothing: in bf16 [320, 32 * 32] takes 124 instead of 114 us.
    """
    kernel = w.kernel
    if w.horizontal or w.lane not in w.rows or len(w.inner) != 1 or not _room(w, lanes):
        return []
    (inner,) = w.inner
    walks = [_reads([*(v for op in p.reductions for v in st.tensors_read(op)), *(kernel.results[i] for i in p.stores)]) for p in phases(kernel.domain, kernel.results).walks]
    out: list[int] = []
    room = min(caches.second // 2, MOST_COPIED)
    for n, v in enumerate(kernel.arguments):
        reads = [a for a in kernel.accesses.items if a.value == v and not a.store]
        if len(reads) != 1 or sum(v in walk for walk in walks) < 2 or not _read_alike(v):
            continue
        steps, size = reads[0].steps, builders.element_type(v).width // 8
        step, taken = steps.get(inner), w.size(inner) * lanes * size
        if steps.get(w.lane) == 1 and step and w.size(inner) > same_set_lines(abs(step) * size, caches) and taken <= room:
            out.append(n)
            room -= taken
    return out


MOST_COPIED = 512 << 10
"""Bytes of all copies of a row, which lie on the stack."""


def _reads(values: list[ir.Value]) -> set[ir.Value]:
    """The arguments that values are made of without another walk."""
    todo, seen, found = list(values), set(), set()
    while todo:
        v = todo.pop()
        op = st.owner(v)
        if op is None:
            found.add(v)
        elif op not in seen and st.kind(op) not in ("reduction", "aux"):
            seen.add(op)
            todo += st.tensors_read(op)
    return found


def _read_alike(v: ir.Value, seen: set[ir.Value] | None = None) -> bool:
    """Whether all that is made of a value in one walk is made of the same element of it at the same place of the loops: nothing slices, pads or
    gathers it, nor what elementwise ops make of it."""
    seen = seen if seen is not None else set()
    if v in seen:
        return True
    seen.add(v)
    for use in v.uses:
        op = st.operation(use.owner)
        if op.name in ("linalg.transpose", "tensor.expand_shape", "tensor.collapse_shape"):
            if use.operand_number or not _read_alike(op.results[0], seen):
                return False
        elif op.name == "linalg.generic":
            if None in st.map_dims(st.maps(op)[use.operand_number]):
                return False
            if st.kind(op) == "elementwise" and not all(_read_alike(r, seen) for r in op.results):
                return False
        elif op.name != "func.return":
            return False
    return True


def _room(w: Walk, lanes: int) -> bool:
    """Whether one row has a known size that fits the cache; where each lane has a row of its own, as many."""
    return w.fixed_inner and w.product(w.inner) * (1 if w.horizontal else lanes) <= KEPT_ELEMENTS


def _dear(op: ir.Operation) -> bool:
    """Whether a value is worth a trip through the cache: it, or what it is made of, has transcendental functions, gathers, several operands."""
    todo, seen = [op], {op}
    while todo:
        one = todo.pop()
        if _dear_by_itself(one):
            return True
        for p in map(st.owner, st.inputs(one)):
            if p is not None and p not in seen and st.kind(p) == "elementwise":
                seen.add(p)
                todo.append(p)
    return False


def _dear_by_itself(op: ir.Operation) -> bool:
    names = [st.operation(o).name for o in op.regions[0].blocks[0].operations]
    cheap = {"math.absf", "math.fma", "math.sqrt"}
    if any((n.startswith(("math.", "mlirc.")) and n not in cheap) or n in ("tensor.extract", "arith.divf") for n in names):
        return True
    # A layer norm of 128 x 768 bf16 takes 18.4 us where the mean is subtracted again, 20.3 where what is left is kept.
    return len(st.inputs(op)) > 1 and sum(n not in ("arith.extf", "linalg.yield") for n in names) > 1
