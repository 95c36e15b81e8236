"""How many rows are computed together, and whether one loop along the lanes walks over all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...dialects import builders
from ...dialects.mlir import ir
from .. import structure as st
from ..constants import is_function
from ..phases import phases
from .walk import Walk

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..vectorize.kernel import KernelFunction
    from .loops import LoopStrategy

BLOCK_BYTES = 12 << 10
"""That a block of rows reads: it comes while the block before is computed, and stays in the first-level cache from phase to phase. With 48 KB,
norms of 768 f32 take 7.9 us by 4 rows and 9.3 by 8, of 192 13.0 by 16 and 15.5 by 32; with 32 KB (Zen 4), of 384 f32 11.3 us by 4 rows, 9.9
by 8 and 11.0 by 16, of 768 21.8, 20.7 and 24.1 by 2, 4 and 8, of 768 bf16 25.1, 22.8 and 22.2 by 4, 8 and 16."""

MOST_ROWS = 32
"""Of a block. Layer norms of 96 bf16, 3,136 of them, take 23.9 us by 16 rows, and 20.3 by 32."""

LEAST_BYTES = 2
"""That an element of a row counts for: 12 KB are 6,144 elements then, of which each value that is kept has 24 KB on the stack."""

WINDOW = 9
"""Elements, of a pool's window, that are reduced without a loop: in f32 maxima of 2 x 2 in [64, 128, 128] take 62 instead of 65 us, averages
56 instead of 71."""

MOST_GATHERED = 2
"""Of rows that are looked up, which nothing fetches: norms of 128 rows of 768 f32 out of 94 MB take 17.2 us by 2 and 22.0 by 4."""


def rows_together(w: Walk, target: Target) -> int:
    """How many rows are computed together, where they are of known length and reduced along the lanes.

    As many as `BLOCK_BYTES` have room for. Two rows are better than one up to half of the first-level cache: of 2048 f32 44.8 and 53.2 us.
    Where rows read little of their own, what is kept of them still has to have room.
    """
    if not w.horizontal or not w.fixed_inner:
        return 1
    loads = {a.value for a in w.kernel.accesses.items if not a.store and {*w.inner} & {*a.steps} and any(a.steps.get(c, 0) != 0 for c in w.rows)}
    read = w.product(w.inner) * max(sum(builders.element_type(v).width // 8 for v in loads), LEAST_BYTES)
    rows = MOST_GATHERED if any(map(looks_up, w.kernel.domain.loops)) else MOST_ROWS
    while rows > 1 and (rows * read > (BLOCK_BYTES if rows > 2 else target.caches.first // 2) or 4 * rows > w.product(w.rows)):
        rows //= 2
    return rows


def looks_up(op: ir.Operation) -> bool:
    """Whether an op reads elements at indices that are in memory; not those of a roll, which follow one another."""
    indices = [v for v in st.inputs(op) if st.is_tensor(v) and isinstance(builders.element_type(v), ir.IntegerType)]
    return bool(indices) and any(map(st.is_tensor, st.captured(op)))


def even(size: int, block: int) -> int:
    """The size of as many blocks that are alike: 49 rows are 25 and 24, and not 32 and 17."""
    return -(-size // -(-size // block))


def widened_for_all_rows(w: Walk) -> bool:
    """Whether 16-bit numbers along the lanes are the same for all rows, as the weight of a norm in bf16.

    In f32 one loop for the stores alone gains nothing (layer norm of 128 x 768: 13.0 and 12.6 us), and loses where the row is gathered (RMS norm of
    looked up rows, 1.6 MB: 21 to 25 and 30 to 31). In bf16, that layer norm: 15.3 and 14.5.
    """
    loads = [a.steps for a in w.kernel.accesses.items if not a.store and builders.element_type(a.value).width == 16]
    return any(_is_for_all_rows(w, steps) for steps in loads)


MOST_JOINED = 8
"""Rows that one loop walks over."""


def most_joined(kernel: KernelFunction, lanes: int) -> int:
    """How many rows can be side by side: their sums end in one vector, of half the lanes where these may be in another order, as those of bf16."""
    tensors = [v for v in (*kernel.arguments, *kernel.results) if st.is_tensor(v)]
    return min(MOST_JOINED, lanes // 2 if any(isinstance(builders.element_type(v), ir.BF16Type) for v in tensors) else lanes)


LEAST_VECTORS = {32: (6, 24), 16: (12, 64)}
"""Registers -> vectors of a row from which on rows are better side by side, and those of bf16. On a Zen 4, times of what they were:

                        AVX-512 f32 (rows)   bf16 (4 rows)     AVX2 f32 (rows)   bf16 (2 rows)
    layer norm of 96        0.98 (4)            1.28             0.98 (4)
        192                 0.89 (4)            1.13             0.84 (4)            1.21
        320                 0.83 (4)            0.99             0.95 (4)            1.12
        384                 0.77 (4)            1.00             0.84 (4)            1.11
        768                 0.78 (2)            0.94             0.84 (2)            0.99
        1024                0.90 (2)            0.91             0.96 (2)            0.92
        2048                0.87 (2)            0.92             0.95 (2)            0.91
    RMS norm of 96          0.78 (4)            1.36             0.82 (4)
        320                 0.74 (4)            0.96             0.87 (4)            1.09
        768                 0.85 (2)            0.97             0.84 (2)            0.97
"""

FOUR_ROWS = 2 << 10
"""Bytes of rows of f32 below which four are better than two: layer norms of 320 take 0.85 and 1.02 of what they did, of 768 0.89 and 0.81."""


def rows_side_by_side(w: Walk, plan: LoopStrategy, target: Target) -> tuple[int, int] | None:
    """(rows, vectors of each in an iteration) where one loop walks over several rows; None where row after row is better.

    That is so where each has functions of its own (softmax takes 3 to 30% longer side by side), where nothing is the same for all rows, and
    where the extremes of a row are found for itself.
    """
    d, acc = w.kernel.domain, w.kernel.accesses
    size = w.product(w.inner)
    inside = [op for op in d.loops if op.name == "linalg.generic" and not set(d.classes(op)).isdisjoint(w.inner)]
    walks = phases(d, w.kernel.results).walks
    if plan.staged is not None or plan.keep or plan.copied or any(map(is_function, inside)) or len(walks) < 2:
        return None
    if not all(_is_sum(op) for op in d.reductions) or not any(_is_for_all_rows(w, a.steps) for a in acc.items if not a.store):
        return None
    halves = plan.lanes > w.lanes
    least = LEAST_VECTORS[32 if target.vector_registers >= 32 else 16][halves]
    loads = {a.value for a in acc.items if not a.store and any(a.steps.get(c, 0) != 0 for c in d.rows)}
    row = size * sum(builders.element_type(v).width // 8 for v in loads)
    if size < least * plan.lanes or any(map(looks_up, d.loops)):
        return None
    rows = min(4 if row < FOUR_ROWS or halves and target.vector_registers >= 32 else 2, most_joined(w.kernel, plan.lanes))
    accumulators = max(len(phase.reductions) for phase in walks) * (plan.lanes // w.lanes)
    unroll = min(plan.unroll, 8 // rows, target.vector_registers // 2 // (accumulators * rows))
    return (rows, unroll) if unroll and rows > 1 else None


JAMMED = 4
"""Rows whose vectors are computed together where they share some."""


def rows_that_share(w: Walk, plan: LoopStrategy) -> int:
    """How many rows, each with its lanes along what is stored, read vectors together: several where what they read is the same, and its elements
    are apart, so that a vector of them is put together by some instructions.

    Squares of distances of points to as many, their coordinates summed (Zen 3, f32), us, one row at a time and by four:

        1024 points, 2 coordinates    309  246        512 points, 4    325  156
        1024 points, 3                510  324        512 points, 6    723  261
    """
    d, acc = w.kernel.domain, w.kernel.accesses
    c = next(iter((plan.serial or plan.parallel)[-1:]), None)
    alone = plan.transposed is None and plan.staged is None and plan.interleaved is None and not plan.keep and not plan.copied
    if w.horizontal or w.lane is None or c is None or not plan.parallel or not alone or d.kind not in ("loops", "rows"):
        return 1
    walks = phases(d, w.kernel.results).walks
    if not w.fixed_inner or w.product(w.inner) > WINDOW or len(walks) > 1 or any(walk.stores for walk in walks) or c in acc.fixed:
        return 1
    apart = [a for a in acc.items if not a.store and a.steps.get(w.lane, 0) not in (0, 1)]
    return even(max(w.size(c), 1), JAMMED) if any(a.steps.get(c, 0) == 0 and c not in a.gathered for a in apart) else 1


def _is_sum(op: ir.Operation) -> bool:
    return any(o.name == "arith.addf" and builders.element_type(op.results[0]).width == 32 for o in st.body_ops(op)[-2:])


def _is_for_all_rows(w: Walk, steps: dict[int, int | None]) -> bool:
    return steps.get(w.lane) == 1 and not any(steps.get(c, 0) != 0 for c in w.kernel.domain.rows)  # type: ignore[arg-type]
