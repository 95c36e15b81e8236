"""Buffers for the values of a row that are kept from phase to phase (`strategy.keep`)."""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects import builders
from ...dialects.mlir import ir, memref
from ..domain import Domain
from ..even_odd import ANY_ORDER
from ..strategy import LoopStrategy
from .lanes import Index, Number, Point
from .memory import Memory, storage_type


class KeptRows:
    """A buffer for each of the values, for each of the rows that are computed together, allocated where this is made.

    `env` is that of the loops: class -> index.
    """

    def __init__(self, strategy: LoopStrategy, domain: Domain, values: Sequence[ir.Value], env: dict[int, Index]) -> None:
        self.s, self.d, self.env = strategy, domain, env
        self.horizontal = strategy.lane in strategy.inner
        self.buffers = {v: self._buffer(v) for v in values}

    def _buffer(self, v: ir.Value) -> Memory:
        """Lanes lie side by side, in whole vectors: their order is not known."""
        s = self.s
        strides, step = {}, 1 if self.horizontal else s.lanes * s.unroll
        for c in sorted(reversed(s.inner), key=lambda c: c != s.lane):
            strides[c] = step
            step *= int(s.merged.get(c, self.d.sizes[c]))  # type: ignore[call-overload]
            step = -(-step // s.lanes) * s.lanes
        element = builders.element_type(v)
        kind = ir.MemRefType.get([s.rows * step + s.lanes], storage_type(element))
        place = memref.AllocaOp(kind, [], [], alignment=64).result
        place.owner.operation.attributes[ANY_ORDER] = ir.UnitAttr.get()
        dynamic = ir.MemRefType.get([builders.DYNAMIC], storage_type(element))
        return Memory(memref.cast(dynamic, place), [step, *(strides[c] for c in s.inner)], element)

    def place(self, v: ir.Value, row: Number) -> tuple[Memory, Point]:
        """Where the current element of a value is, in one of the rows, or that of each lane."""
        buffer, point = self.buffers[v], (Index(row), *(self.env[c] for c in self.s.inner))
        if self.horizontal or self.s.lane is None:
            return buffer, point
        return Memory(buffer.buffer, [*buffer.strides, 1], buffer.element), (*point, Index(0, 1))
