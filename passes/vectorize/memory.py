"""Where the tensors of a kernel lie, and blocks of them that are transposed on the way in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...dialects import builders
from ...dialects.mlir import ir, memref, vector
from ...lowering.transpose import transpose_rows
from .. import structure as st
from .lanes import Arithmetic, Index, Number


class Memory:
    """A tensor in memory: a 1-D memref of its storage type, strides in elements (ints or index values), and where it begins.

    Whole vectors of what `streams` are stored past the caches (`passes.stream_stores`).
    """

    def __init__(self, buffer: ir.Value, strides: Sequence[Number], element: ir.Type, begin: int = 0, streams: bool = False) -> None:
        self.buffer = buffer
        self.begin = begin
        self.strides = list(strides)
        self.element = element
        self.streams = streams

    @property
    def storage(self) -> ir.Type:
        return storage_type(self.element)


def one_lane(mask: ir.Value) -> bool:
    """Whether a mask is a constant that lets one lane through.

    LLVM 22 stores that lane as wide as it was before a `trunci`: over what lies behind it.
    """
    op = st.owner(mask)
    return op is not None and op.name == "vector.constant_mask" and list(op.attributes["mask_dim_sizes"]) == [1]


def storage_type(element: ir.Type) -> ir.Type:
    """bool is `i1` in the IR and a byte in memory."""
    if isinstance(element, ir.IntegerType) and element.width == 1:
        return ir.IntegerType.get_signless(8)
    return element


class Tile:
    """A block of `lanes` x `lanes` elements: loads along the block's rows, transposed in registers to be used by lanes.

    The kernel is evaluated for row 0, 1, ... of the block. In row 0 every load of `buffers` loads and transposes the whole
    block; the same load in the other rows, which come in the same order, takes its row of the result. With `pairs` the
    elements of the block are pairs of 16-bit values, as one integer. `left` counts the lanes that are not past the end, `mask`
    has the rows of the block that are not. What lies `ahead` elements behind each load is fetched meanwhile.
    """

    def __init__(
        self, buffers: set[ir.Value], left: Number | None, pairs: bool = False, mask: ir.Value | None = None, ahead: int = 0
    ) -> None:
        self.buffers = buffers
        self.left = left
        self.pairs = pairs
        self.mask = mask
        self.ahead = ahead
        self.blocks: list[list[ir.Value]] = []
        self.start(0)

    def start(self, row: int) -> None:
        self.row = row
        self.next = 0

    @contextmanager
    def ending(self, m: Arithmetic, left: Number) -> Iterator[None]:
        """Lanes from `left` on are padding: meanwhile, they repeat the last one before, which may lie before the block."""
        before = self.left
        self.left = left if before is None else m.minimum(before, left)
        yield
        self.left = before

    def load(self, m: Arithmetic, place: Memory, at: Index) -> ir.Value:
        if self.row == 0:
            self.blocks.append(self._block(m, place, at))
        self.next += 1
        return self.blocks[self.next - 1][self.row]

    def _block(self, m: Arithmetic, place: Memory, at: Index) -> list[ir.Value]:
        n = m.lanes
        element = ir.IntegerType.get_signless(32) if self.pairs else place.storage
        rows = []
        for i in range(n):
            # Lanes past the end repeat the last one: what they load is in bounds, and not stored.
            lane = i if self.left is None else m.minimum(i, m.sub(self.left, 1))
            offset = m.add(at.base, m.mul(lane, at.stride))
            wide = ir.VectorType.get([2 * n if self.pairs else n], place.storage)
            if self.ahead:
                memref.prefetch(place.buffer, [m.value(m.add(offset, self.ahead))], False, 3, True)
            if self.mask is None:
                row = vector.load(wide, place.buffer, [m.value(offset)])
            else:
                row = vector.maskedload(wide, place.buffer, [m.value(offset)], self.mask, builders.constant(wide, 0))
            if self.pairs:
                row = vector.bitcast(m.vector_type(element), row)
            rows.append(row)
        return transposed(rows)


def transposed(rows: list[ir.Value]) -> list[ir.Value]:
    """The columns of a square block, given its rows."""
    # Not as a `vector.transpose`, which canonicalisation takes apart, element by element.
    if columns := transpose_rows(rows):
        return columns
    n = len(rows)
    kind = ir.VectorType.get([n, n], ir.VectorType(rows[0].type).element_type)
    block = builders.constant(kind, 0)
    for i, row in enumerate(rows):
        block = vector.insert(row, block, [], [i])
    block = vector.transpose(kind, block, [1, 0])
    return [vector.extract(block, [], [i]) for i in range(n)]
