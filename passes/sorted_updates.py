"""What scatters add up, in the order of their buckets: the index of a gather is sorted, and not what it gathers.

    %g = generic %table[%index[e], c]             %s = generic %index[%order[e]] {mlirc.sorted}
    %u = generic %g[e, c] * %w[e]          ->     %t = generic %w[%order[e]]     {mlirc.sorted}
    by bucket: %u[%order[e], c]                   %g = generic %table[%s[e], c]
                                                  %u = generic %g[e, c] * %t[e]

What is short beside an update (`mlirc.sorted`) is stored: read through the order it would be looked for again in each block of a row, and all
over memory. 800,000 updates of 100,000 rows of 1 KB take 57 instead of 76 ms with a sorted index, 80,000 of 10,000 rows 4.0 instead of 4.3
(Emerald Rapids).
"""

from __future__ import annotations

import math

from ..dialects import builders
from ..dialects.mlir import arith, ir, linalg, tensor
from . import structure as st
from .copies import empty_like
from .layouts import Layouts

SORTED = "mlirc.sorted"
"""Attribute of what is stored in the order of buckets."""

SHORT = 8
"""What has at most 1/8 of the elements of an update is stored in order."""


class Sorter:
    """Makes such tensors at the current insertion point, what several of them need once: points come in program order."""

    def __init__(self, layouts: Layouts) -> None:
        self.layouts = layouts
        self.made: dict[tuple[ir.Value, int, ir.Value], ir.Value] = {}
        self.replaced: list[ir.Operation] = []
        """What nobody reads any more once the scatters are gone, users first."""

    def sorted(self, updates: ir.Value, dim: int, order: ir.Value) -> ir.Value:
        """A tensor whose element e along `dim` is element `order[e]` of `updates`."""
        self.width = math.prod(n for d, n in enumerate(st.shape(updates)) if d != dim)
        return self._sorted(updates, dim, order)

    def _sorted(self, value: ir.Value, dim: int, order: ir.Value) -> ir.Value:
        op = st.owner(value)
        if op is not None and op.name == "linalg.fill":
            return value
        if op is None or len(list(value.uses)) > 1:
            return self._leaf(value, dim, order)
        if st.kind(op) == "view":
            source = _dim_of_source(op, dim)
            operands = None if source is None else {0: source}
        else:
            operands = _operands_along(op, dim) if st.kind(op) == "elementwise" and len(op.results) == 1 else None
        if operands is None:
            return self._leaf(value, dim, order)
        if not operands:
            return value
        self.replaced.append(op)
        new = [self._sorted(v, operands[i], order) if i in operands else v for i, v in enumerate(op.operands)]
        copy = st.operation(op.clone())
        for i, v in enumerate(new):
            copy.operands[i] = v
        return copy.results[0]

    def _leaf(self, value: ir.Value, dim: int, order: ir.Value) -> ir.Value:
        others = [n for d, n in enumerate(st.shape(value)) if d != dim]
        if min(others, default=1) < 0 or math.prod(others) * SHORT > self.width:
            return self._permuted(value, dim, order)  # where it is read, and one for each reader
        key = (value, dim, order)
        if key not in self.made:
            self.made[key] = self._permuted(*key)
            st.operation(self.made[key].owner).attributes[SORTED] = ir.UnitAttr.get()
        return self.made[key]

    def _permuted(self, value: ir.Value, dim: int, order: ir.Value) -> ir.Value:
        rank = len(st.shape(value))
        init = empty_like(value, self.layouts)

        def body(e: ir.Value, _: ir.Value) -> list[ir.Value]:
            places = [arith.index_cast(ir.IndexType.get(), e) if d == dim else linalg.IndexOp(d).result for d in range(rank)]
            return [tensor.extract(value, places)]

        maps = [builders.projection(rank, [dim]), builders.identity(rank)]
        return builders.generic([order], [init], maps, "p" * rank, body)[0]


def _operands_along(op: ir.Operation, dim: int) -> dict[int, int] | None:
    """The dim of each input that goes along with `dim` of the result of an elementwise op; None where another place is read, or known."""
    *reads, out = st.maps(op)
    loop = st.map_dims(out)[dim]
    if loop is None or _knows_place(op, loop):
        return None
    found: dict[int, int] = {}
    for i, m in enumerate(reads):
        along = [d for d, e in enumerate(m.results) if loop in st.loops_in(e)]
        if len(along) > 1 or any(st.map_dims(m)[d] is None for d in along):
            return None
        if along:
            found[i] = along[0]
    return found


def _knows_place(op: ir.Operation, loop: int) -> bool:
    return any(o.name == "linalg.index" and ir.IntegerAttr(o.attributes["dim"]).value == loop for o in st.body_ops(op))


def _dim_of_source(view: ir.Operation, dim: int) -> int | None:
    """The dim of what a view is of that is this dim of it, None if that is none or part of one."""
    if view.name == "linalg.transpose":
        return list(st.integers(view.attributes["permutation"]))[dim]
    if view.name not in ("tensor.expand_shape", "tensor.collapse_shape"):
        return None
    collapses = view.name == "tensor.collapse_shape"
    wide = st.shape(view.operands[0] if collapses else view.results[0])
    for n, group in enumerate(st.reassociation(view)):
        real = [d for d in group if wide[d] != 1] or group[:1]
        if (dim == n if collapses else dim in group) and len(real) == 1 and (collapses or dim == real[0]):
            return real[0] if collapses else n
    return None
