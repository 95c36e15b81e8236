"""How scatters and scans are walked over: threads and lanes share what does not depend on the order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...dialects import builders, own
from ...dialects.mlir import ir
from .common import LINE, OF_HALVES, fills_halves, grain, known, lanes, product, why_grain, why_lanes
from .loops import LoopStrategy
from .traffic import copy_pitch
from .walk import body_ops, lane_ops, merge

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..vectorize.kernel import KernelFunction


def scatter(kernel: KernelFunction, target: Target) -> LoopStrategy:
    """Threads and lanes share what no two updates can collide in; lanes only where the result is contiguous."""
    op, d = kernel.domain.anchor, kernel.domain
    assert op is not None
    steps, sizes = _stored_steps(kernel), list(d.sizes)
    merged: dict[int, int] = {}
    free = [c for t in own.free_loops(op) if (c := d.loops[op][t]) is not None]
    ordered = [c for c in d.rows if c not in free]
    free = merge(free, kernel.accesses, sizes, merged)
    lane = next((c for c in free if steps.get(c) == 1), None)
    n, ops = lanes(kernel, target), 4 + body_ops(kernel)
    unroll = 1 if ops > 24 or lane is None or known(sizes[lane]) <= n else 2 if ops > 12 else 4
    outer = [c for c in free if c != lane]
    parallel: list[int] = []
    if lane is None or product(outer, sizes) >= 8:
        while outer and product(parallel, sizes) < 64:
            parallel.append(outer.pop(0))
    serial = [c for c in d.rows if c in outer or c in ordered]
    width = 1 if lane is None else known(sizes[lane]) if parallel else n * unroll
    work = ops * product(serial, sizes) * width
    why = {"unroll": f"about {ops} ops for an element", "lane": "the result is contiguous along it, and no two updates collide"}
    return LoopStrategy(n, unroll, lane, parallel, serial, [], merged, grain=grain(work), kind=d.kind, why=why_lanes(target) | why_grain(work) | why)


AHEAD = 8
"""4 is 5 to 10% slower, 12 no better, for 80,000 updates of 10,000 rows of 512 bytes to 1 KB."""


FEW_OPS = 6
"""Of a vector of an update, which take no more registers than its sum: what is gathered and widened has five."""


IN_FLIGHT = 4
"""Lines of an update that are added up together. With those of the eight updates ahead they are more than a first-level cache waits for at
a time. 80,000 updates of 10,000 rows of 1 KB, from the third level: all 16 lines of a row 4.1 to 4.7 ms, 8 and 4 3.5 to 4.2; of 512 bytes
(bf16) 2.02 and 1.81; of rows of 512 bytes in f32, and of 256 in bf16, no difference (Emerald Rapids)."""


GATHERED_TWICE = 2
"""Times that a row is gathered from which on it pays to keep it."""


def gathers_in_blocks(rows: int, row: int, updates: int, block: int, target: Target) -> bool:
    """Whether sums of gathered rows, of so many bytes, are better made a block of `block` bytes at a time, for all of them.

    The table is larger than the second cache, but what one block needs of it nearly fits. Row after row, with the blocks outside, and these
    with rows an odd number of lines apart (`pitch_rows`), in ms (a loop in C on an Emerald Rapids with 2 MB, blocks of 256 bytes, sorted
    indices, eight updates for a row):

        rows     bytes   MB        row  blocks  pitch
        5,000    1,024    5.1      1.4     1.4    0.9
        10,000     512    5.1      1.7     1.4    1.1
        10,000   1,024   10.2      4.0     3.5    2.7
        20,000     512   10.2      3.8     3.5    3.2
        20,000   1,024   20.5      8.7    10.2    9.7
        40,000     512   20.5      9.2    10.4   10.7
        40,000   1,024   41       18      23     23
    """
    second = target.caches.second
    return row > block and rows * row > second and rows * block <= second * 3 // 2 and updates >= GATHERED_TWICE * rows


def gathered_pitch(rows: int, columns: int, updates: int, size: int, target: Target) -> int | None:
    """Elements, of `size` bytes, from one row to the next of a table of which such blocks are read, None where rows stay dense.

    The blocks of rows of a multiple of twice their bytes begin in half of the sets of the second-level cache, or less.
    """
    block, row = IN_FLIGHT * LINE, columns * size
    if row % (2 * block) or not gathers_in_blocks(rows, row, updates, block, target):
        return None
    return copy_pitch(columns, size)


def _blocks_outside(kernel: KernelFunction, lane: int, width: object, ordered: int, block: int, target: Target) -> bool:
    """Whether one table is gathered, and had better be in blocks of `block` elements of the `width` of its rows."""
    loads = [a for a in kernel.accesses.items if not a.store and ordered in a.gathered and a.steps.get(lane) == 1]
    tables = {a.value for a in loads}
    if len(tables) != 1:
        return False
    (table,) = tables
    shape, updates = kernel.shapes.of(table), kernel.domain.sizes[ordered]
    if not isinstance(width, int) or not isinstance(updates, int) or not all(isinstance(n, int) for n in shape):
        return False
    size = builders.element_type(table).width // 8
    return gathers_in_blocks(math.prod(shape) // max(width, 1), width * size, updates, block * size, target)


def segments(kernel: KernelFunction, target: Target) -> LoopStrategy:
    """Threads share the rows of the result; a block of a row stays in registers while its updates are read."""
    op, d = kernel.domain.anchor, kernel.domain
    assert op is not None
    sizes = list(d.sizes)
    merged: dict[int, int] = {}
    # A row is contiguous, and so are the results: its last dim is the innermost of all.
    *serial, lane = merge([c for t in own.free_loops(op) if (c := d.loops[op][t]) is not None], kernel.accesses, sizes, merged)
    (ordered,) = d.inner
    halves = _in_halves(kernel, lane, sizes[lane], target)
    each = 2 if halves else 1
    n = each * lanes(kernel, target)
    vectors = -(-known(sizes[lane]) // n)
    # Half of the registers for sums, fewer where the updates take registers to compute.
    most = max(1, target.vector_registers // (2 * each) * FEW_OPS // max(lane_ops(kernel, lane, ordered), FEW_OPS))
    most = min(most, max(1, IN_FLIGHT * LINE * 8 // (n * update_bits(kernel, lane, ordered))))
    unroll = -(-vectors // -(-vectors // most))
    rows = kernel.shapes.of(op.results[0])[own.target(op).index(-1)]
    updates = -(-known(sizes[ordered]) // max(known(rows), 1))
    work = ((4 + body_ops(kernel, {ordered})) * updates + body_ops(kernel)) * product([*serial, lane], sizes)
    why = {
        "unroll": f"{vectors} vectors to a row, {target.vector_registers} registers, and {IN_FLIGHT} lines of an update at a time",
        "ahead": "no prefetcher of the CPU's knows where updates lie",
        "inner": "the updates of a row follow one another: its sums stay in registers, and no two threads write to one row",
    }
    why = why_lanes(target) | why_grain(work) | why
    why["lanes"] += OF_HALVES if halves else ""
    outside = _blocks_outside(kernel, lane, sizes[lane], ordered, n * unroll, target)
    if outside:
        why["blocks_outside"] = "so much of the rows that are gathered stays in the second-level cache, and not all of them"
    return LoopStrategy(
        n, unroll, lane, [], serial, [ordered], merged, grain=grain(work), kind=d.kind, ahead=AHEAD, blocks_outside=outside, why=why
    )


def _in_halves(kernel: KernelFunction, lane: int, size: object, target: Target) -> bool:
    """Whether all that lies along the lanes is bf16, and summed in f32: 80,000 updates of 10,000 rows of 256 take 3.3 instead of 4.1 ms in
    vectors of twice the lanes."""
    n = lanes(kernel, target)
    along = [a for a in kernel.accesses.items if a.steps.get(lane, 0) != 0]
    bf16 = all(a.steps[lane] == 1 and isinstance(builders.element_type(a.value), ir.BF16Type) for a in along)
    summed = isinstance(builders.element_type(kernel.domain.anchor.results[0]), ir.F32Type)  # type: ignore[union-attr]
    return bf16 and summed and target.lanes(16) == 2 * n and fills_halves(size, n)


def update_bits(kernel: KernelFunction, lane: int | None, ordered: int) -> int:
    """Of the widest elements that are read along a row for each update, if any are."""
    op, loops = kernel.domain.anchor, kernel.domain.loops
    assert op is not None
    loads = [a for a in kernel.accesses.items if not a.store and ordered in loops[a.op] and loops[op][-1] not in a.steps]
    read = [a.value for a in loads if a.steps.get(lane) == 1]  # type: ignore[arg-type]
    return max(builders.element_type(v).width for v in read or [op.operands[1]])


def bucket(kernel: KernelFunction, target: Target) -> LoopStrategy:
    """One thread: three walks over the indices, each a few cycles long for one of them."""
    return LoopStrategy(lanes(kernel, target), 1, None, [], [], [], kind="bucket", why={"": "the place of an index depends on those before it"})


NARROWEST = 128
"""Bytes of a row from which on its updates are worth sorting, which takes 4 ns for each."""
WIDE = 256
"""Bytes of a row whose sums are better off in registers, wherever it lies."""
LARGE, LARGE_OF_WIDE = 4, 1 / 2
"""So many times the second cache: results that do not stay in cache, and what was measured of wide rows.

In order against in buckets, medians in ms on a Zen 4 with a second cache of 1 MB, sums of gathered rows of f32:

    rows    updates  columns  MB    in order  in buckets
    16,000   80,000       32   2.0       0.5         0.8
    80,000  320,000       32  10.2      10.0         6.5
       300   30,000      512   0.6       1.5         1.1
     1,000   20,000      256   1.0       0.6         0.4
     4,000    4,000      128   2.0       0.2         0.2
    10,000   80,000       64   2.6       1.2         0.8
     5,000   40,000      256   5.1       2.7         1.6
    10,000   80,000      256  10.2      10.8         4.6
    40,000  320,000       64  10.2      16.4         7.0
    40,000   20,000      128  20.5       3.4         3.2
   160,000  640,000       16  10.2      12.8        12.5
   100,000  400,000      128  51        73          47
"""


def why_in_order(rows: int | None, updates: int | None, width: int | None, bits: int, target: Target) -> str | None:
    """A reason to take the updates of a scatter one after the other, None if they had better be sorted into buckets.

    `rows` of the result, each with `width` elements of so many `bits`; None for a symbol. One after the other, an update waits for the
    row that it reads and for the one that it changes, neither of which is in cache; in buckets, rows are read and written once, in order.
    """
    if updates == 1:
        return "one update"
    if width is None:
        return "rows whose length is a symbol"
    row = width * bits // 8
    if row < NARROWEST:
        return f"rows of {width} elements are updated faster than sorted"
    if rows is not None and rows * row <= (LARGE_OF_WIDE if row >= WIDE else LARGE) * target.caches.second:
        return f"{rows * row >> 10} KB of result stay in cache"
    if rows is not None and updates is not None and updates < rows:
        return f"{updates} updates leave most of {rows} rows alone"
    return None


def scan(kernel: KernelFunction, target: Target) -> LoopStrategy:
    """Lanes run along the contiguous dim, the scanned one where no other is; everything else is shared by the threads."""
    op, d = kernel.domain.anchor, kernel.domain
    assert op is not None
    scanned = d.loops[op][ir.IntegerAttr(op.attributes["dim"]).value]
    assert scanned is not None
    steps = _stored_steps(kernel)
    lane = next((c for c in (*(c for c in d.rows if c != scanned), scanned) if steps.get(c) == 1), None)
    parallel = [c for c in d.rows if c not in (scanned, lane)]
    n = lanes(kernel, target)
    if lane == scanned:  # a row of few elements is a vector of as many: 4000 x 8 in f32 takes 28 us instead of 30, its products 15 instead of 31
        n = min(n, max(4, 1 << (known(d.sizes[scanned]) - 1).bit_length()))
    work = (4 + body_ops(kernel)) * known(d.sizes[scanned]) * (1 if lane in (None, scanned) else n)
    why = {"lane": "the result is contiguous along it"}
    return LoopStrategy(n, 1, lane, parallel, [], [scanned], grain=grain(work), kind=d.kind, why=why_lanes(target) | why_grain(work) | why)


def _stored_steps(kernel: KernelFunction) -> dict[int, int | None]:
    """How the one result of a kernel is walked over: class -> step."""
    return next(a.steps for a in kernel.accesses.items if a.store)
