"""Values of a row that several phases of `loops` need, kept in a buffer instead of computed again.

    phase 1: for inner: t = exp(x - max); buffer[inner] = t; sum += t
    phase 2: for inner: out[inner] = buffer[inner] / sum
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from ...dialects import builders
from ...dialects.mlir import ir, memref
from .. import structure as st
from ..domain import Domain
from ..even_odd import ANY_ORDER
from ..strategy import KEPT_ELEMENTS, LoopStrategy
from .evaluate import Memory, storage_type
from .kernel import KernelFunction
from .lanes import Index, Point


def values_to_keep(
    kernel: KernelFunction, strategy: LoopStrategy, phases: Sequence[Sequence[ir.Value]], stored: Collection[ir.Value]
) -> list[list[ir.Value]]:
    """For each phase, which values to keep for later ones: dear, full-sized, used again, not among those that are `stored` anyway.

    `phases[n]` is what phase n asks for.
    """
    d = kernel.domain
    first: dict[ir.Value, int] = {}
    again: dict[ir.Value, ir.Operation] = {}

    def visit(v: ir.Value, phase: int, here: set[ir.Value]) -> None:
        op = st.owner(v)
        if op is None or v in here or st.kind(op) in ("reduction", "aux"):
            return
        here.add(v)
        if st.kind(op) == "elementwise" and first.setdefault(v, phase) != phase:
            again[v] = op
        for w in st.tensors_read(op):
            visit(w, phase, here)

    for n, values in enumerate(phases):
        here: set[ir.Value] = set()
        for v in values:
            visit(v, n, here)
    out: list[list[ir.Value]] = [[] for _ in phases]
    full = {*d.rows, *d.inner}
    for v, op in again.items():
        if set(d.classes(op)) == full and v not in stored and op not in d.displaced and _room(strategy, d) and _dear(op):
            out[first[v]].append(v)
    return out


def _room(strategy: LoopStrategy, domain: Domain) -> bool:
    """Whether one row has a known size that fits the cache."""
    n = 1 if strategy.lane in strategy.inner else strategy.lanes
    for c in strategy.inner:
        size = strategy.merged.get(c, domain.sizes[c])
        if not isinstance(size, int):
            return False
        n *= size
    return n <= KEPT_ELEMENTS


def _dear(op: ir.Operation) -> bool:
    """Whether a value is worth a trip through the cache: transcendental functions, gathers, several operands."""
    names = [st.operation(o).name for o in op.regions[0].blocks[0].operations]
    cheap = {"math.absf", "math.fma", "math.sqrt"}
    if any((n.startswith(("math.", "mlirc.")) and n not in cheap) or n in ("tensor.extract", "arith.divf") for n in names):
        return True
    return len(st.inputs(op)) > 1 and len(names) > 2 or any(
        (p := st.owner(v)) is not None and st.kind(p) == "elementwise" and _dear(p) for v in st.inputs(op)
    )


class KeptRows:
    """A buffer for each of the values, for each of the rows that are computed together, allocated where this is made.

    `env` is that of the loops: class -> index.
    """

    def __init__(self, strategy: LoopStrategy, domain: Domain, values: Sequence[ir.Value], env: dict[int, Index]) -> None:
        self.s, self.d, self.env = strategy, domain, env
        self.horizontal = strategy.lane in strategy.inner
        self.buffers = {(row, v): self._buffer(v) for row, v in itertools.product(range(strategy.rows), values)}

    def _buffer(self, v: ir.Value) -> Memory:
        """Lanes lie side by side, in whole vectors: their order is not known."""
        s = self.s
        strides, step = {}, 1 if self.horizontal else s.lanes * s.unroll
        for c in sorted(reversed(s.inner), key=lambda c: c != s.lane):
            strides[c] = step
            step *= int(s.merged.get(c, self.d.sizes[c]))  # type: ignore[call-overload]
            step = -(-step // s.lanes) * s.lanes
        element = builders.element_type(v)
        kind = ir.MemRefType.get([step + s.lanes], storage_type(element))
        place = memref.AllocaOp(kind, [], [], alignment=64).result
        place.owner.operation.attributes[ANY_ORDER] = ir.UnitAttr.get()
        dynamic = ir.MemRefType.get([builders.DYNAMIC], storage_type(element))
        return Memory(memref.cast(dynamic, place), [strides[c] for c in s.inner], element)

    def place(self, v: ir.Value, row: int) -> tuple[Memory, Point]:
        """Where the current element of a value is, or that of each lane."""
        buffer, point = self.buffers[row, v], tuple(self.env[c] for c in self.s.inner)
        if self.horizontal or self.s.lane is None:
            return buffer, point
        return Memory(buffer.buffer, [*buffer.strides, 1], buffer.element), (*point, Index(0, 1))
