"""How kernels of elementwise ops and reductions are walked over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...dialects import builders
from ...dialects.mlir import ir
from .. import structure as st
from ..phases import phases
from .common import OF_HALVES, fills_halves, grain, has_functions, why_grain, why_lanes
from .keep import copied, kept
from .rows import even, rows_side_by_side, rows_that_share, rows_together, widened_for_all_rows
from .split import split
from .stage import staged, staged_along
from .stream import WHY_STREAMED, streamed_by_loops
from .walk import Walk, body_ops, walk

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..vectorize.access import Access
    from ..vectorize.kernel import KernelFunction


@dataclass
class LoopStrategy:
    """For kernels of elementwise ops and reductions. Classes are those of `passes.domain`."""

    lanes: int
    """Elements per vector, which may be several registers (`_wide`)."""
    unroll: int
    """Vectors per iteration of the lane loop."""
    lane: int | None
    """The class that runs along the lanes; None for kernels of one element."""
    parallel: list[int]
    """Row classes that the threads share."""
    serial: list[int]
    """Row classes that each thread walks."""
    inner: list[int]
    """Classes that are reduced, outermost first."""
    merged: dict[int, int] = field(default_factory=dict)
    """Classes that also stand for their outer neighbours: class -> number of elements."""
    transposed: int | None = None
    """The last of `serial`: walked in blocks of `lanes`, so that loads contiguous along it are transposed in registers."""
    grain: int = 1
    """Parallel iterations below which no second thread is worth it."""
    kind: str = "loops"
    interleaved: int | None = None
    """A class of two to four that is stored inside of the lanes, as the products of pairs want it, or (real, imaginary): vectors of all are
    computed, and interleaved."""
    rows: int = 1
    """Rows of a block that are computed together, phase by phase: what the reduction of one along the lanes waits for is no time lost for
    the others."""
    combined: int = 1
    """Rows of a block whose sums are combined in one vector: half of them, so that the others' are under way meanwhile."""
    joined: int = 1
    """Rows that one loop along the lanes walks over: all of a block, where it is more than one."""
    stores_together: bool = False
    """Whether what is stored after the last reduction is stored in one loop for two rows: what is the same for them is read once."""
    staged: int | None = None
    """The last of `parallel`, of which `block` rows at a time, reduced along the lanes, are copied to a buffer through registers."""
    block: int = 0
    keep: list[list[int]] = field(default_factory=list)
    """For each phase of a row, the ops of the kernel (their places in it) whose values later phases find in a buffer."""
    copied: list[int] = field(default_factory=list)
    """The arguments (their numbers) whose elements of a row the first walk over it copies to a buffer, where later walks find them."""
    in_turns: bool = False
    """Vectors of an iteration take turns (`passes.interleave`)."""
    split: int | None = None
    """The class of `inner` that the threads share: each reduces chunks of it to partial results, which are combined afterwards."""
    chunks: int = 1
    """At most so many chunks: their number does not depend on that of the threads, and so the result does not."""
    least: int = 1
    """The size of a chunk is a multiple of this."""
    streamed: list[int] = field(default_factory=list)
    """The numbers of results that are stored past the caches."""
    ahead: int = 0
    """Updates of a scatter from fetching one to adding it."""
    blocks_outside: bool = False
    """Rows that are gathered are walked once for each block of their elements, which stays in the second cache that way."""
    strength_reduction: bool = True
    """Whether LLVM looks for the best way to compute addresses. LLVM takes 20 ms for a layer norm with it and 13 without. Without it, 60
    kernels with sums of training steps take 0.99 of their time (0.91 to 1.07 above 1 us, on a Zen 4), copies up to 1.6 of it."""
    why: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """A reason for each choice, for people."""


def loops(kernel: KernelFunction, target: Target) -> LoopStrategy:
    """One of four walks: large reductions shared by threads, rows copied to a buffer, blocks transposed in registers, or plain rows."""
    w = walk(kernel, target)
    transposed = _transposed(w)
    unroll, why_unroll = _unroll(w, transposed)
    why = why_lanes(target) | {"unroll": why_unroll, "lane": "most accesses are contiguous along it"}
    plan = LoopStrategy(w.lanes, unroll, w.lane, [], [], w.inner, w.merged, kind=kernel.domain.kind, interleaved=w.interleaved, why=why)
    if w.inner:
        plan.strength_reduction = False
        why["strength_reduction"] = "sums of rows hide an addition for an address; copies and single products do not"
    if shared := split(w, w.lanes * unroll):
        plan.serial = [c for c in w.rows if c != w.lane]
        plan.split, plan.chunks, plan.least, plan.grain = shared.along, shared.chunks, shared.least, grain(shared.work)
        why.update(why_grain(shared.work), split=f"few results of {w.size(shared.along)} elements and more")
        return _widened(w, plan, target)
    plan.staged = staged_along(w)
    if w.lane is not None and w.interleaved is None and transposed is None and (of := _half_width(w, w.lane, plan.staged)):
        plan.lanes, plan.unroll = 2 * w.lanes, max(1, unroll // 2)
        why["lanes"] += of
    if plan.unroll > 1 and has_functions(kernel):
        plan.in_turns, why["in_turns"] = True, "long chains, which the vectors of an iteration have each for itself"
    plan.keep = kept(w, plan.lanes)
    if plan.keep:
        why["keep"] = "dear to compute, and wanted again in a later walk over the row"
    plan.copied = copied(w, plan.lanes, target.caches)
    if plan.copied:
        why["copied"] = "read again in a later walk over the row, before which its lines would evict one another"
    if transposed is None and plan.staged is None:
        plan = _widened(w, plan, target)
    plan.rows = rows_together(w, target)
    if plan.rows > 1:
        why["rows"] = "short rows that are reduced along the lanes"
        if together := rows_side_by_side(w, plan, target):
            plan.rows, plan.unroll = plan.joined, _ = together
            why["joined"] = "what is the same for all rows is read once, and their sums stay in registers"
        elif len(w.inner) == 1 and widened_for_all_rows(w):
            plan.stores_together, why["stores_together"] = True, "16-bit numbers that are the same for all rows are widened once"
    if plan.staged is not None:
        plan.parallel, plan.block = [*(c for c in w.rows if c != plan.staged), plan.staged], w.lanes
        work = _ops(kernel) * plan.block * w.product(w.inner)
        why["staged"] = "loads are contiguous along it, but not along the rows that are reduced"
    else:
        plan.parallel, plan.serial = _shared_by_threads(w, transposed)
        if transposed is not None:
            plan.transposed = transposed
            plan.serial.append(transposed)
            why["transposed"] = "loads are contiguous along it, stores are not"
        work = _ops(kernel) * _elements(w, plan)
    if plan.rows > 1 and plan.staged is not None:
        plan.rows = even(plan.block, plan.rows)
    elif plan.rows > 1 and plan.serial:
        plan.rows = even(w.size(plan.serial[-1]), plan.rows)
        plan.joined = min(plan.joined, plan.rows)
    elif (together := rows_that_share(w, plan)) > 1:
        plan.rows = plan.joined = together
        work *= 1 if plan.serial else together
        plan.unroll = max(plan.unroll // together, 1)
        why["joined"] = "what all rows read is the same, and its elements are apart: they are put together in vectors once"
    plan.combined = -(-plan.rows // 2)
    plan.grain = grain(work)
    why.update(why_grain(work))
    plan.streamed = streamed_by_loops(kernel, plan)
    if plan.streamed:
        why["streamed"] = WHY_STREAMED
    return plan


def _shared_by_threads(w: Walk, transposed: int | None) -> tuple[list[int], list[int]]:
    """(rows that threads share, rows that each of them walks): outer rows; chunks of the lanes, if they are few and those are many."""
    serial = [c for c in w.rows if c not in (w.lane, transposed)]
    parallel: list[int] = []
    if w.lane in w.rows and w.product(serial) < 4 and w.size(w.lane) > 4096:
        return parallel, serial
    while serial and w.product(parallel) < 64:
        parallel.append(serial.pop(0))
    return parallel, serial


def _ops(kernel: KernelFunction) -> int:
    """Ops of an element; moving it is one."""
    return max(body_ops(kernel), 1)


def _elements(w: Walk, plan: LoopStrategy) -> int:
    """Elements of a parallel iteration."""
    lanes = LANE_CHUNK if not plan.parallel else w.size(w.lane) if w.lane in w.rows else 1  # type: ignore[arg-type]
    return w.product([*plan.serial, *w.inner]) * lanes


LANE_CHUNK = 2048
"""Elements along the lanes in a parallel iteration, where threads have no rows to share."""


UNROLLED = 8
"""Vectors along a padded dim that are unrolled, whatever the kernel does."""


def _unroll(w: Walk, transposed: int | None) -> tuple[int, str]:
    """Vectors per iteration of the lane loop, and why."""
    d, ops = w.kernel.domain, w.ops
    if transposed is not None:
        return 1, "blocks are transposed in registers"
    if w.lane in w.kernel.accesses.fixed and w.lane in w.rows and not d.reductions and any(st.kind(op) == "pad" for op in d.loops):
        size = w.sizes[w.lane]
        if isinstance(size, int) and size <= UNROLLED * w.lanes and size % w.lanes == 0:
            return size // w.lanes, "what is padding, and what is not, is known for each vector"
    if not w.horizontal and d.reductions:
        return 1, "each lane has a reduction of its own"
    if w.lane is not None and w.size(w.lane) <= w.lanes * 2:
        return 1, f"{w.size(w.lane)} elements along the lanes"
    if ops > 40:
        return 1, f"about {ops} ops for an element"
    if w.horizontal:
        return 4, "accumulators that hide the latency of an addition"
    return 2 if ops > 12 else 4, f"about {ops} ops for an element"


def _half_width(w: Walk, lane: int, along: int | None) -> str:
    """Of what vectors are full that hold twice the lanes, if numbers of 16 bits are walked over so; empty if not.

    Either what is in memory is bf16 and contiguous, and computed in f32, in two vectors; what is staged `along` a class is contiguous
    then. Or it is reduced as it is, in 16 bits (see `integer_maxima`).
    """
    kernel = w.kernel
    elements = [builders.element_type(v) for v in (*kernel.arguments, *kernel.results) if st.is_tensor(v)]
    bodies = [op for op in kernel.domain.loops if op.name == "linalg.generic"]
    inside = [st.operation(o) for op in bodies for o in op.regions[0].blocks[0].operations]
    computed = [r.type for o in inside for r in o.results]
    if kernel.domain.reductions and {getattr(t, "width", 0) for t in (*elements, *computed)} == {16}:
        return " of 16-bit numbers, compared as they are"
    if not all(isinstance(t, ir.BF16Type) for t in elements):
        return ""
    across = sum(a.steps.get(lane, 0) not in (0, 1) for a in kernel.accesses.items)
    if across > (0 if along is None else len(staged(kernel, lane, along, kernel.domain.inner))):
        return ""
    if not any(o.name == "arith.extf" for o in inside) or any("f64" in str(t) for t in computed):
        return ""
    return OF_HALVES if fills_halves(w.sizes[lane], w.lanes) else ""


def _widened(w: Walk, plan: LoopStrategy, target: Target) -> LoopStrategy:
    """The plan with lanes of several vectors, where that is better."""
    wide = _wide(w, plan, target)
    if wide:
        plan.why["lanes"] += f", {wide // plan.lanes} side by side: what is read of each row comes in a stream"
        plan.lanes = wide
    return plan


SIDE_BY_SIDE, FULL, LEAST_DOWN = (8, 4, 2), 16, 16
"""Vectors that are reduced down the rows together; how many times a row holds so many lanes at least, if not a whole number of times; and rows
from which on they are: maxima of 2 x 2 take 7% longer."""

MOST_WIDE_OPS, MOST_WIDENED_OPS = 16, 6
"""For an element of such vectors, all of which are in registers; of bf16, whose lanes are widened into two registers. The gradients of a norm's
weight and bias, of 512 x 768, take 32 us by 128 lanes of bf16, and 27 by 32; relu's with its sum, of 512 x 3072, 137 and 115, in f32 196 and 593."""


def _wide(w: Walk, plan: LoopStrategy, target: Target) -> int:
    """Lanes of several vectors that lie side by side, where each lane has a reduction of its own and what is read is contiguous; 0 if one is better.

    A single line of each row comes at 30 GB/s from the third level of a Zen 4, lines beside one another at 85, as whole rows do. us:

        64 x 16384    sum f32 147  52    bf16 62  42    maximum f32 135  60
        512 x 3072                            77  70
        4096 x 256            64  53          59  41
    """
    kernel, lane, size = w.kernel, w.lane, None if w.lane is None else w.sizes[w.lane]
    d, acc = kernel.domain, kernel.accesses
    if w.horizontal or lane not in w.rows or not isinstance(size, int) or lane in acc.fixed or d.kind != "rows" or not d.reductions or w.product(w.inner) < LEAST_DOWN:
        return 0
    if plan.interleaved is not None or plan.keep or plan.copied or has_functions(kernel):
        return 0
    if body_ops(kernel) > (MOST_WIDE_OPS if plan.lanes == w.lanes else MOST_WIDENED_OPS):
        return 0
    if any(a.steps.get(lane, 0) not in (0, 1) or lane in a.gathered for a in acc.items) or len(phases(d, kernel.results).walks) > 1:
        return 0
    if any(builders.element_type(v).width != 32 or len(op.results) > 1 or st.uses_index(op) for op in d.reductions for v in op.results):
        return 0
    accumulators = 2 * len(d.reductions)  # of an extreme there is one for NaN, too
    for times in SIDE_BY_SIDE:
        wide = times * plan.lanes
        if wide // w.lanes * accumulators <= target.vector_registers // 2 and (size % wide == 0 or size >= FULL * wide):
            return wide
    return 0


MOST_OPS = 16
"""For an element of a block that is transposed in registers, each of whose rows has code of its own: a norm and a sum of bf16 planes, padded as
channels-last (512 x 16 x 16, 9 ops), take 60 us so and 112 ms to compile, 286 and 56 element by element."""


def _transposed(w: Walk) -> int | None:
    """A class along which loads are contiguous that are not along the lanes, in a kernel that does little else than pad."""
    acc, lane = w.kernel.accesses, w.lane
    if lane is None or w.inner or lane in acc.numbered or body_ops(w.kernel) > MOST_OPS or w.size(lane) < w.lanes // 2:
        return None
    if lane in acc.padded and not _padded_behind(w.kernel, lane):
        return None
    if w.interleaved is not None and any(st.kind(op) not in ("view", "pad") and "mlirc.pack" not in op.attributes for op in w.kernel.domain.loops):
        return None  # pairs are moved as a whole

    def count(c: int) -> int:
        return sum(transposes(a, lane, c, w.interleaved) for a in acc.items)

    def inside(c: int) -> int:
        around = margins(w.kernel, c)
        return 0 if around is None else w.size(c) - sum(around)

    candidates = [c for c in w.rows if c != lane and inside(c) >= w.lanes and count(c)]
    return max(candidates, key=count, default=None)


def _padded_behind(kernel: KernelFunction, lane: int) -> bool:
    """Whether what is padded along the lanes is padded at its end only, not empty, and read element by element, as by what packs it."""
    from ..vectorize.access import affine_form

    loops = kernel.domain.loops
    for pad in (op for op in loops if st.kind(op) == "pad"):
        low, high = st.pads(pad)
        for use in pad.results[0].uses:
            op, n = st.operation(use.owner), use.operand_number
            if op.name != "linalg.generic" or op not in loops:
                return False
            for e, size, before, behind in zip(st.maps(op)[n].results, st.shape(pad.operands[0]), low, high):
                step = (affine_form(e, [{} if c is None else {c: 1} for c in loops[op]]) or {}).get(lane, 0)
                there = size > 0 or size < 0 and "mlirc.pack" in op.attributes
                if (before, behind) != (0, 0) and step != 0 and ((before, step) != (0, 1) or not there):
                    return False
    return True


def margins(kernel: KernelFunction, c: int) -> tuple[int, int] | None:
    """How many indices of a class are padding, at its begin and its end; None where they are computed with, or that is not known."""
    acc, loops = kernel.accesses, kernel.domain.loops
    if c in acc.numbered:
        return None
    if c not in acc.padded:
        return 0, 0
    around = []
    for op in loops:
        if st.kind(op) == "pad" and c in loops[op]:
            amounts = [side[loops[op].index(c)] for side in st.pads(op)]
            if op.results[0] not in kernel.results or not all(isinstance(n, int) for n in amounts):
                return None
            around.append(amounts)
    return tuple(around[0]) if len(around) == 1 else None  # type: ignore[return-value]


def transposes(access: Access, lane: int, along: int, interleaved: int | None = None) -> bool:
    """Whether a load is contiguous along a class (with what is interleaved inside of it), but not along the lanes."""
    if access.store or access.steps.get(lane, 0) in (0, 1):
        return False
    return access.steps.get(along) == 1 if interleaved is None else access.steps.get(along) == 2 and access.steps.get(interleaved) == 1
