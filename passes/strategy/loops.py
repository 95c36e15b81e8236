"""How kernels of elementwise ops and reductions, scatters and scans are walked over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...dialects import builders, own
from ...dialects.mlir import ir
from .. import structure as st
from .common import WORK_PER_THREAD, known, lanes, product
from .stage import staged, staged_along

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..vectorize.access import Access, Accesses
    from ..vectorize.kernel import KernelFunction


@dataclass
class LoopStrategy:
    """For kernels of elementwise ops and reductions. Classes are those of `passes.domain`."""

    lanes: int
    """Elements per vector."""
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
    """The last of `serial`: walked in blocks of `lanes`, so that loads contiguous along it are transposed in registers.
    Where `staged` is set, the last of `parallel` instead."""
    grain: int = 1
    """Parallel iterations below which no second thread is worth it."""
    kind: str = "loops"
    pairs: int | None = None
    """A class of two that is stored inside of the lanes, as the products of pairs want it: both are computed, and interleaved."""
    rows: int = 1
    """Rows that are computed together, phase by phase: what the reduction of one along the lanes waits for is no time lost for the
    others."""
    staged: int = 0
    """So many rows along `transposed`, which are reduced along the lanes, are copied to a buffer at a time, through registers."""
    split: int | None = None
    """The class of `inner` that the threads share: each reduces chunks of it to partial results, which are combined afterwards."""
    chunks: int = 1
    """At most so many chunks: their number does not depend on that of the threads, and so the result does not."""
    least: int = 1
    """The size of a chunk is a multiple of this."""
    why: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """A reason for each choice, for people."""


KEPT_ELEMENTS = 32 * 1024
"""Values of a row that are kept from phase to phase on the stack, if it has no more elements."""


def loops(kernel: KernelFunction, target: Target) -> LoopStrategy:
    d, acc = kernel.domain, kernel.accesses
    paired = _paired(kernel)
    lane, pairs = paired or (None, None)
    rows, inner = [c for c in d.rows if c != pairs], list(d.inner)
    sizes = list(d.sizes)
    merged: dict[int, int] = {}
    rows = _merge(_memory_order(rows, kernel), acc, sizes, merged)
    inner = _merge(_memory_order(inner, kernel), acc, sizes, merged)
    lane = _lane(rows, inner, sizes, kernel) if lane is None else lane
    transposed = _transposed(rows, inner, lane, pairs, sizes, kernel, target)
    outer = [c for c in rows if c not in (lane, transposed)]
    ops = _body_ops(kernel)
    parallel: list[int] = []
    trip = 1
    if not (lane in rows and trip * product(outer, sizes) < 4 and known(sizes[lane]) > 4096):
        while outer and trip < 64:
            parallel.append(outer.pop(0))
            trip *= known(sizes[parallel[-1]])
    work = ops * product([*outer, *inner], sizes) * (known(sizes[lane]) if lane in rows else 1)
    if not parallel:
        work = ops * 2048
    if lane in inner:
        ops = _body_ops(kernel, set(inner))
    n = lanes(kernel, target)
    unroll, why_unroll = _unroll(kernel, lane, rows, inner, sizes, transposed, ops, n)
    if transposed is not None:
        outer.append(transposed)
    split = _split(kernel, lane, rows, inner, sizes, ops, n * unroll)
    block = staged_along(kernel, lane, rows, inner, sizes, n) if split is None else None
    copied = 0 if block is None else n
    if split is None and lane is not None and pairs is None and transposed is None and _half_width(kernel, target, lane, sizes, block):
        n, unroll = 2 * n, max(1, unroll // 2)
    why = _why(target, work) | {"unroll": why_unroll, "lane": "most accesses are contiguous along it"}
    if transposed is not None:
        why["transposed"] = "loads are contiguous along it, stores are not"
    together = _rows_together(lane, rows, inner, sizes, ops)
    if together > 1:
        why["rows"] = "short rows that are reduced along the lanes"
    if n > lanes(kernel, target):
        why["lanes"] += " of bf16, computed as the even lanes and the odd ones"
    if split is not None:
        why["split"] = f"few results of {known(sizes[split.along])} elements and more"
        return LoopStrategy(
            n, unroll, lane, [], [c for c in rows if c != lane], inner, {c: m for c, m in merged.items() if c in (*rows, *inner)}, None, split.grain,
            d.kind, split=split.along, chunks=split.chunks, least=split.least, why=why,
        )
    if block is not None:
        transposed, parallel, outer = block, [*(c for c in rows if c != block), block], []
        work = ops * copied * product(inner, sizes)
        why.update(grain=_why(target, work)["grain"], transposed="loads are contiguous along it, but not along the rows that are reduced")
    return LoopStrategy(
        n, unroll, lane, parallel, outer, inner, {c: m for c, m in merged.items() if c in (*rows, *inner)},
        transposed, max(1, WORK_PER_THREAD // max(work, 1)), d.kind, pairs, together, copied, why=why,
    )


UNROLLED = 8
"""Vectors along a padded dim that are unrolled, whatever the kernel does."""


def _unroll(
    kernel: KernelFunction, lane: int | None, rows: list[int], inner: list[int], sizes: list[object], transposed: int | None, ops: int, n: int
) -> tuple[int, str]:
    """Vectors of `n` lanes per iteration of the lane loop, and why."""
    d = kernel.domain
    if transposed is not None:
        return 1, "blocks are transposed in registers"
    if lane in kernel.accesses.fixed and lane in rows and not d.reductions and any(st.kind(op) == "pad" for op in d.loops):
        size = sizes[lane]  # type: ignore[index]
        if isinstance(size, int) and size <= UNROLLED * n and size % n == 0:
            return size // n, "what is padding, and what is not, is known for each vector"
    if lane not in inner and d.reductions:
        return 1, "each lane has a reduction of its own"
    if lane is not None and known(sizes[lane]) <= n * 2:
        return 1, f"{known(sizes[lane])} elements along the lanes"
    if ops > 40:
        return 1, f"about {ops} ops for an element"
    if lane in inner:
        return 4, "accumulators that hide the latency of an addition"
    return 2 if ops > 12 else 4, f"about {ops} ops for an element"


def _half_width(kernel: KernelFunction, target: Target, lane: int, sizes: list[object], block: int | None) -> bool:
    """Whether to walk in vectors that are full of bf16, two of f32: what is in memory is bf16 and contiguous, and computed in f32."""
    tensors = [v for v in (*kernel.arguments, *kernel.results) if st.is_tensor(v)]
    if not all(isinstance(builders.element_type(v), ir.BF16Type) for v in tensors):
        return False
    across = sum(a.steps.get(lane, 0) not in (0, 1) for a in kernel.accesses.items)
    if across > (0 if block is None else len(staged(kernel, lane, block, kernel.domain.inner))):
        return False
    bodies = [op for op in kernel.domain.loops if op.name == "linalg.generic"]
    inner = [st.operation(o) for op in bodies for o in op.regions[0].blocks[0].operations]
    if not any(o.name == "arith.extf" for o in inner) or any("f64" in str(r.type) for o in inner for r in o.results):
        return False
    n, size = lanes(kernel, target), sizes[lane]
    # Not where half of the last vector would be past the end, and that is much.
    return not isinstance(size, int) or size > 4 * n or -(-size // n) % 2 == 0


def _why(target: Target, work: int) -> dict[str, str]:
    return {
        "lanes": f"{target.vector_bits}-bit vectors",
        "grain": f"about {work} element-operations an iteration, and a thread is worth {WORK_PER_THREAD}",
    }


@dataclass
class _Split:
    along: int
    chunks: int
    least: int
    grain: int


CHUNKS = 64
CHUNK_ELEMENTS = 4096
"""What a chunk has at least: less is not worth the combining."""
SPLIT_WORK = 16 * WORK_PER_THREAD
"""Element-operations of a reduction from which it is worth to be shared: about ten times what it takes to wake a thread."""
SPLIT_BYTES = 1 << 16
"""Stack for partial results."""
FEW_ROWS = 16
"""As many rows keep the threads busy."""


def _split(
    kernel: KernelFunction, lane: int | None, rows: list[int], inner: list[int], sizes: list[object], ops: int, block: int
) -> _Split | None:
    """How a large reduction to few results is shared by threads; None where it is small, or there are rows enough to share."""
    d = kernel.domain
    if not inner or not d.reductions or not all(isinstance(sizes[c], int) for c in rows):
        return None
    results, elements = product(rows, sizes), product(inner, sizes)
    symbolic = not all(isinstance(sizes[c], int) for c in inner)
    makers = [op for v in kernel.results if (op := st.owner(v)) in d.loops and op not in d.reductions]
    phases = len(d.reductions) > 1 or any(set(d.inner) & set(d.classes(op)) for op in makers)
    if not results * elements or not symbolic and (ops * results * elements < SPLIT_WORK or phases and elements <= KEPT_ELEMENTS):
        return None
    shared = product([c for c in rows if c != lane], sizes)
    if shared >= FEW_ROWS or lane in rows and known(sizes[lane]) > SPLIT_BYTES // 64:
        return None
    width = max(builders.element_type(op.results[0]).width for op in d.reductions) // 8 or 1
    chunks = min(CHUNKS, SPLIT_BYTES // (results * len(d.reductions) * width))
    along = next((c for c in inner if not isinstance(sizes[c], int)), max(inner, key=lambda c: known(sizes[c])))
    if chunks < 8:
        return None
    others = results * elements // known(sizes[along])
    least = -(-CHUNK_ELEMENTS // others)
    if along == lane:
        least = -(-least // block) * block
    chunk = max(least, known(sizes[along]) // chunks)
    return _Split(along, chunks, least, max(1, WORK_PER_THREAD // (ops * chunk * others)))


ROWS = 2
"""Rows that hide one another's waiting; three took 5% less time in a softmax and half as much compilation again."""
LONG_ROW = 2048
"""Elements of a row in which the waiting is no matter."""


def _rows_together(lane: int | None, rows: list[int], inner: list[int], sizes: list[object], ops: int) -> int:
    """How many rows are computed together: for short ones of known length, reduced along the lanes."""
    if lane not in inner or not all(isinstance(sizes[c], int) for c in inner) or product(inner, sizes) > LONG_ROW:
        return 1
    return ROWS if product(rows, sizes) >= 4 * ROWS and ops <= 40 else 1


def _paired(kernel: KernelFunction) -> tuple[int, int] | None:
    """(lane class, class of two) of a kernel that packs pairs of 16-bit values, two elements from pair to pair."""
    d, stores = kernel.domain, [a for a in kernel.accesses.items if a.store]
    if not any("mlirc.pack" in op.attributes for op in d.loops) or d.reductions or len(stores) != 1 or builders.element_type(stores[0].value).width != 16:
        return None
    steps = stores[0].steps
    pairs = next((c for c in d.rows if d.sizes[c] == 2 and steps.get(c) == 1), None)
    lane = next((c for c in d.rows if c != pairs and steps.get(c) == 2), None)
    if pairs is None or lane is None:
        return None
    size = d.sizes[lane]
    return (lane, pairs) if isinstance(size, int) and size % 16 == 0 else None


def _transposed(
    rows: list[int], inner: list[int], lane: int | None, pairs: int | None, sizes: list[object], kernel: KernelFunction, target: Target
) -> int | None:
    """A class along which loads are contiguous that are not along the lanes, in a kernel that does little else."""
    acc, n = kernel.accesses, lanes(kernel, target)
    if lane is None or inner or lane in acc.fixed or _body_ops(kernel) > 8 or known(sizes[lane]) < n // 2:
        return None

    def count(c: int) -> int:
        return sum(transposes(a, lane, c, pairs) for a in acc.items)

    if pairs is not None and any(st.kind(op) != "view" and "mlirc.pack" not in op.attributes for op in kernel.domain.loops):
        return None  # pairs are moved as a whole

    candidates = [c for c in rows if c != lane and c not in acc.fixed and known(sizes[c]) >= n and count(c)]
    return max(candidates, key=count, default=None)


def transposes(access: Access, lane: int, along: int, pairs: int | None = None) -> bool:
    """Whether a load is contiguous along a class (with the pairs inside of it), but not along the lanes."""
    if access.store or access.steps.get(lane, 0) in (0, 1):
        return False
    return access.steps.get(along) == 1 if pairs is None else access.steps.get(along) == 2 and access.steps.get(pairs) == 1


def _body_ops(kernel: KernelFunction, along: set[int] | None = None) -> int:
    """How much there is to do for one element; with `along`, without what is the same along these classes: done once a row."""
    ops = [op for op in kernel.domain.loops if op.name == "linalg.generic"]
    return sum(len(list(op.regions[0].blocks[0].operations)) for op in ops if along is None or along & set(kernel.domain.classes(op)))


def _merge(classes: list[int], acc: Accesses, sizes: list[object], merged: dict[int, int]) -> list[int]:
    """Join neighbours that step through all memory as one, in `sizes` and `merged` too; what is left of the classes."""
    out: list[int] = []
    for c in classes:
        if out and acc.merges(out[-1], c, sizes):
            sizes[c] = merged[c] = sizes[out[-1]] * sizes[c]  # type: ignore[operator]
            merged.pop(out[-1], None)
            out[-1] = c
        else:
            out.append(c)
    return out


def _stored_steps(kernel: KernelFunction) -> dict[int, int | None]:
    """How the one result of a kernel is walked over: class -> step."""
    return next(a.steps for a in kernel.accesses.items if a.store)


def scatter(kernel: KernelFunction, target: Target) -> LoopStrategy:
    """Threads and lanes share what no two updates can collide in; lanes only where the result is contiguous."""
    op, d = kernel.domain.anchor, kernel.domain
    assert op is not None
    steps, sizes = _stored_steps(kernel), list(d.sizes)
    merged: dict[int, int] = {}
    free = [c for t in own.free_loops(op) if (c := d.loops[op][t]) is not None]
    ordered = [c for c in d.rows if c not in free]
    free = _merge(free, kernel.accesses, sizes, merged)
    lane = next((c for c in free if steps.get(c) == 1), None)
    n, ops = lanes(kernel, target), 4 + _body_ops(kernel)
    unroll = 1 if ops > 24 or lane is None or known(sizes[lane]) <= n else 2 if ops > 12 else 4
    outer = [c for c in free if c != lane]
    parallel: list[int] = []
    if lane is None or product(outer, sizes) >= 8:
        while outer and product(parallel, sizes) < 64:
            parallel.append(outer.pop(0))
    serial = [c for c in d.rows if c in outer or c in ordered]
    width = 1 if lane is None else known(sizes[lane]) if parallel else n * unroll
    work = ops * product(serial, sizes) * width
    why = _why(target, work) | {"unroll": f"about {ops} ops for an element", "lane": "the result is contiguous along it, and no two updates collide"}
    return LoopStrategy(n, unroll, lane, parallel, serial, [], merged, None, max(1, WORK_PER_THREAD // work), d.kind, why=why)


def scan(kernel: KernelFunction, target: Target) -> LoopStrategy:
    """Lanes run along a contiguous dim if it is not the scanned one; everything else is shared by the threads."""
    op, d = kernel.domain.anchor, kernel.domain
    assert op is not None
    scanned = d.loops[op][ir.IntegerAttr(op.attributes["dim"]).value]
    steps = _stored_steps(kernel)
    lane = next((c for c in d.rows if c != scanned and steps.get(c) == 1), None)
    parallel = [c for c in d.rows if c not in (scanned, lane)]
    n = lanes(kernel, target)
    work = (4 + _body_ops(kernel)) * known(d.sizes[scanned]) * (1 if lane is None else n)  # type: ignore[index]
    why = _why(target, work) | {"lane": "the result is contiguous along it"}
    return LoopStrategy(n, 1, lane, parallel, [], [scanned], {}, None, max(1, WORK_PER_THREAD // work), d.kind, why=why)  # type: ignore[list-item]


def _memory_order(classes: list[int], kernel: KernelFunction) -> list[int]:
    """Outermost first, by the steps of what is stored, then of what is read."""
    best: dict[int, int] = {}
    for a in kernel.accesses.items:
        full = all(a.steps.get(c, 0) not in (0,) for c in classes)
        if full and all(isinstance(a.steps.get(c), int) for c in classes):
            best = {c: abs(a.steps[c]) for c in classes}  # type: ignore[arg-type]
            break
    return sorted(classes, key=lambda c: -best[c]) if best else classes


def _lane(rows: list[int], inner: list[int], sizes: list[object], kernel: KernelFunction) -> int | None:
    """The class along which most accesses are contiguous, stores counting twice; long ones before short ones."""
    acc = kernel.accesses
    candidates = [c for c in (*rows, *inner)]
    if not candidates:
        return None

    def score(c: int) -> tuple[float, int]:
        short = known(sizes[c]) < 8
        return (acc.contiguous(c) - 2 * acc.scattered(c)) * (0.25 if short else 1), candidates.index(c)

    return max(candidates, key=score)
