"""The register tile of a contraction or convolution, and the blocks around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...dialects import builders
from ...dialects.mlir import ir
from .. import structure as st
from .common import WORK_PER_THREAD, known, lanes, product

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..pack import PackShape
    from ..vectorize.kernel import KernelFunction
    from ..vectorize.roles import Roles


@dataclass
class ContractionStrategy:
    """For a contraction or convolution: a register tile of `rows` x `columns` vectors."""

    lanes: int
    rows: int
    columns: int
    row: int | None
    lane: int | None
    dot: int | None = None
    """The reduction class that has the vector lanes, for products of few rows; `lane` is walked element by element, so that what
    is large is read in one stream, and has the lanes in the epilogue."""
    unroll: int = 1
    """Vectors of `dot` in flight."""
    dot_pairs: bool = False
    """Whether the vectors along `dot` are multiplied in pairs of bf16 (`vdpbf16ps`)."""
    pairs: int | None = None
    """The reduction class that is walked in pairs of bf16 (`vdpbf16ps`)."""
    tiles: bool = False
    """Whether the product runs on AMX tiles."""
    shared: int | None = None
    """The reduction class of a depthwise convolution that is unrolled in a register tile: its taps are at the same places for
    neighbouring rows, which share the loads."""
    depth: int | None = None
    """Elements of the reduction in a block, where a panel of the packed operand is too large to be read from cache by all rows."""
    group: int = 1
    """Lane blocks that are computed together then, so that they share the rows in cache."""
    lanes_first: bool = False
    """Whether the blocks of lanes are the outermost loop, so that a panel of the packed operand serves the whole image before the
    next one is loaded; else the outer classes are, and all panels serve one of their rows."""
    short_rows: int = 1
    """The height of the second register tile where the number of rows is a symbol: a power of two, at least half of `rows`."""
    looped_epilogue: bool = False
    """Whether the epilogue is a loop over the rows of a tile, which are stored for it, instead of code for each of them."""
    grain: int = 1
    kind: str = "contraction"

CACHE_WAYS = 8
"""Lines of the first-level cache that may have the same address modulo 4096; CPUs have 8 or 12."""


def contraction(kernel: KernelFunction, target: Target) -> ContractionStrategy:
    from ..vectorize.roles import roles

    d = kernel.domain
    r = roles(kernel)
    n = lanes(kernel, target)
    dot = _dot(kernel, r)
    columns = 2 if dot is None and r.lane is not None and known(d.sizes[r.lane]) > n else 1
    unroll = 4 if dot is not None and len(r.reductions) == 1 else 1
    dot_pairs = unroll > 1 and target.has_avx512_bf16 and n == 16 and all(
        isinstance(builders.element_type(v), ir.BF16Type) for v in st.inputs(d.anchor)  # type: ignore[arg-type]
    )
    budget = 28 if target.vector_bits == 512 else 12
    shared = _shared(kernel, r) if dot is None else None
    if shared is not None:
        columns, budget = 1, max(budget - known(d.sizes[shared]), budget // 2)
    limit = max(1, budget // columns) if dot is None else 4 if target.vector_bits == 512 else 2
    if dot is None and _same_cache_sets(kernel, r):
        limit = min(limit, CACHE_WAYS)
    rows = 1
    if r.row is not None:
        rows = _row_tile(d.sizes[r.row], limit)
    pairs = _pairs(kernel)
    tiles = pairs is not None and r.row is not None and r.lane is not None and target.has_amx_bf16 and n == 16
    # A tile register has one shape per function: k comes in whole tiles only.
    tiles = tiles and isinstance(d.sizes[pairs], int) and d.sizes[pairs] % 32 == 0  # type: ignore[index, operator]
    if tiles:
        size = known(d.sizes[r.row])  # type: ignore[index]
        rows = 32 if size >= 32 else min(size, 16)
    work = rows * columns * n // 8
    for c in r.reductions:
        work *= known(d.sizes[c])
    rows = max(rows, 1)
    depth, group = _depth(kernel, r, rows, columns * n) if dot is None and not tiles else (None, 1)
    short = 1 << (-(-rows // 2) - 1).bit_length()
    looped = rows * columns > 4 and dot is None and _epilogue_ops(kernel) > 12
    grain = max(1, WORK_PER_THREAD // max(work, 1))
    first = shared is not None or _lanes_first(kernel, r, columns * n)
    return ContractionStrategy(
        lanes=n, rows=rows, columns=columns, row=r.row, lane=r.lane, dot=dot, unroll=unroll, dot_pairs=dot_pairs, pairs=pairs,
        tiles=tiles, shared=shared, depth=depth, group=group, lanes_first=first, short_rows=short, looped_epilogue=looped, grain=grain,
    )  # fmt: skip


PANEL_BYTES = 256 << 10
"""Of a block of the packed operand: a quarter of a second-level cache of 1 MB."""
MOST_GROUPED = 8
ROW_TILES = 8
"""That share a block: their sums stay in the first-level cache."""


def _depth(kernel: KernelFunction, r: Roles, rows: int, width: int) -> tuple[int | None, int]:
    """(Elements in a block of the reduction, lane blocks in a group) where a panel is more than two blocks."""
    d = kernel.domain
    if len(r.reductions) != 1 or r.row is None or r.lane is None:
        return None, 1
    length, size, lane = (d.sizes[c] for c in (r.reductions[0], r.row, r.lane))
    panel = next((a for a in kernel.accesses.items if a.op == d.anchor and not a.store and not a.steps.get(r.row)), None)
    if not isinstance(length, int) or not isinstance(size, int) or size < 3 * rows or panel is None or length % 2:
        return None, 1
    depth = PANEL_BYTES // (width * builders.element_type(panel.value).width // 8)
    if length <= 2 * depth:
        return None, 1
    row_blocks = -(-size // (ROW_TILES * rows))
    group = min(MOST_GROUPED, -(-known(lane) // width) * row_blocks // 32)
    return depth, group if group > 1 and row_blocks > 1 else 1


TRANSCENDENTAL = 16
"""What a function such as exp counts as, in ops."""

ROUNDING = 4
"""What a rounding to 16 bits counts as: integer arithmetic."""

PLAIN = {"math.fma", "math.absf", "math.copysign", "math.sqrt"}
"""Ops of the math dialect that are an instruction."""


def _epilogue_ops(kernel: KernelFunction) -> int:
    """How many ops an element of the result takes after the product, roughly."""
    n = 0
    for op in kernel.domain.loops:
        if op == kernel.domain.anchor or op.name != "linalg.generic":
            continue
        for inner in op.regions[0].blocks[0].operations:
            name = st.operation(inner).name
            if name == "arith.truncf":
                n += ROUNDING
            else:
                n += TRANSCENDENTAL if name.startswith(("math.", "mlirc.")) and name not in PLAIN else 1
    return n


CACHED = 1 << 19
"""Bytes of an operand that stay in a core's second-level cache while others pass through."""


def _lanes_first(kernel: KernelFunction, r: Roles, width: int) -> bool:
    """Whether reading the other operand for every block of lanes moves less memory than reading all panels for every outer row."""
    from ..vectorize.roles import used_loops

    op = kernel.domain.anchor
    assert op is not None
    packed, image = (1, 0) if not r.swapped else (0, 1)
    classes = {kernel.domain.loops[op][d] for d in used_loops(st.maps(op)[packed])}
    if r.lane is None or classes & set(r.outer):
        return False
    blocks = -(-known(kernel.domain.sizes[r.lane]) // width)
    panels, whole = (_bytes(op.operands[i], kernel) for i in (packed, image))
    by_rows = panels * product(r.outer, kernel.domain.sizes) if panels > CACHED else 0
    return (whole * blocks if whole > CACHED else 0) < by_rows


def _bytes(value: ir.Value, kernel: KernelFunction) -> int:
    n = builders.element_type(value).width // 8
    for size in kernel.shapes.of(value):
        n *= known(size)
    return n


MAX_SHARED = 16
"""Taps that are unrolled at most."""


def _shared(kernel: KernelFunction, r: Roles) -> int | None:
    """The innermost reduction class by which the rows of a tile see the same elements, if both operands have the lanes."""
    reads = [a.steps for a in kernel.accesses.items if a.op == kernel.domain.anchor and not a.store]
    if r.row is None or r.lane is None or len(reads) != 2 or any(s.get(r.lane) != 1 for s in reads):
        return None
    moving = [s for s in reads if s.get(r.row)]
    if len(moving) != 1:
        return None
    row = moving[0][r.row]
    for c in reversed(r.reductions):
        size, tap = kernel.domain.sizes[c], moving[0].get(c)
        if isinstance(size, int) and size <= MAX_SHARED and row and tap and row % tap == 0 and row // tap < size:
            return c
    return None


def pack_shape(target: Target) -> PackShape:
    """How contraction operands are packed for a target.

    AMX takes bf16 in pairs. So does `vdpbf16ps`, which pays where it is a full-rate unit (Zen); CPUs with AMX run it at half
    the rate of f32 products.
    """
    from ..pack import PackShape

    return PackShape(target.vector_bits // 16, target.has_avx512_bf16 or target.has_amx_bf16)


def _pairs(kernel: KernelFunction) -> int | None:
    op = kernel.domain.anchor
    if op is None or "mlirc.pairs" not in op.attributes:
        return None
    return kernel.domain.loops[op][ir.IntegerAttr(op.attributes["mlirc.pairs"]).value]


def _same_cache_sets(kernel: KernelFunction, r: Roles) -> bool:
    """Whether the rows of the operand that is broadcast lie a multiple of 4096 bytes apart, so that they evict one another."""
    if r.row is None:
        return False
    for a in kernel.accesses.items:
        step = a.steps.get(r.row)
        if not a.store and step and a.steps.get(r.lane, 0) == 0 and step * builders.element_type(a.value).width // 8 % 4096 == 0:  # type: ignore[arg-type]
            return True
    return False


def _row_tile(size: object, limit: int) -> int:
    """Rows per register tile: a divisor of the rows if a good one exists, else tiles of about the same height."""
    if not isinstance(size, int):
        return limit
    for rows in range(limit, limit // 2, -1):
        if size % rows == 0:
            return rows
    return -(-size // max(1, -(-size // limit)))


def _dot(kernel: KernelFunction, r: Roles) -> int | None:
    """A reduction class along which both operands are contiguous, if the lanes are better off there.

    That is when the operand with the lane class is not contiguous along it, and the rows are too few to pay for packing.
    """
    op = kernel.domain.anchor
    steps = [a.steps for a in kernel.accesses.items if a.op == op and not a.store]
    if len(steps) != 2 or r.lane is None:
        return None
    if any(s.get(r.lane, 0) == 1 for s in steps):
        return None
    for c in reversed(r.reductions):
        if all(s.get(c) == 1 for s in steps):
            return c
    return None
