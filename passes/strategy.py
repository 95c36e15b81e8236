"""What to do with a kernel, decided in one place and written on it as attributes; the vectorizers only read it.

    func @kernel(...) attributes {mlirc.strategy = {kind = "rows", lanes = 16, unroll = 4, lane = 1, ...}}
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ..dialects import builders, own
from ..dialects.mlir import ir
from . import structure as st

if TYPE_CHECKING:
    from ..lowering.target import Target
    from .pack import PackShape
    from .vectorize.access import Access, Accesses
    from .vectorize.kernel import KernelFunction
    from .vectorize.roles import Roles


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
    """The last of `serial`: walked in blocks of `lanes`, so that loads contiguous along it are transposed in registers."""
    grain: int = 1
    """Parallel iterations below which no second thread is worth it."""
    kind: str = "loops"
    pairs: int | None = None
    """A class of two that is stored inside of the lanes, as the products of pairs want it: both are computed, and interleaved."""


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


Strategy = LoopStrategy | ContractionStrategy

CACHE_WAYS = 8
"""Lines of the first-level cache that may have the same address modulo 4096; CPUs have 8 or 12."""

WORK_PER_THREAD = 16384
"""Element-operations that are worth waking another thread for: about 5 us at 16 lanes and a few ops per cycle."""


def select_strategy(kernel: KernelFunction, target: Target) -> Strategy:
    """Choose from ops, shapes, dtypes and target."""
    if kernel.domain.kind in ("contraction", "convolution"):
        return _contraction(kernel, target)
    if kernel.domain.kind == "scatter":
        return _scatter(kernel, target)
    if kernel.domain.kind == "scan":
        return _scan(kernel, target)
    return _loops(kernel, target)


def lanes(kernel: KernelFunction, target: Target) -> int:
    """Lanes of 32 bits; of 64 where the kernel computes in f64."""
    wide = any("f64" in str(v.type) for op in kernel.ops for v in (*op.operands, *op.results))
    return max(target.vector_bits // (64 if wide else 32), 4)


def _known(size: object) -> int:
    return size if isinstance(size, int) else 64


def _loops(kernel: KernelFunction, target: Target) -> LoopStrategy:
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
    if not (lane in rows and trip * _product(outer, sizes) < 4 and _known(sizes[lane]) > 4096):
        while outer and trip < 64:
            parallel.append(outer.pop(0))
            trip *= _known(sizes[parallel[-1]])
    work = ops * _product([*outer, *inner], sizes) * (_known(sizes[lane]) if lane in rows else 1)
    if not parallel:
        work = ops * 2048
    unroll = 1 if ops > 40 else 2 if ops > 12 else 4
    n = lanes(kernel, target)
    if lane is not None and _known(sizes[lane]) <= n * 2:
        unroll = 1
    if lane not in inner and d.reductions:
        unroll = 1
    elif lane in inner and unroll > 1:
        unroll = 4  # accumulators that hide the latency of an addition
    if transposed is not None:
        outer.append(transposed)
        unroll = 1
    return LoopStrategy(
        n, unroll, lane, parallel, outer, inner, {c: m for c, m in merged.items() if c in (*rows, *inner)},
        transposed, max(1, WORK_PER_THREAD // max(work, 1)), d.kind, pairs,
    )


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
    if lane is None or inner or lane in acc.fixed or _body_ops(kernel) > 8 or _known(sizes[lane]) < n // 2:
        return None

    def count(c: int) -> int:
        return sum(transposes(a, lane, c, pairs) for a in acc.items)

    if pairs is not None and any(st.kind(op) != "view" and "mlirc.pack" not in op.attributes for op in kernel.domain.loops):
        return None  # pairs are moved as a whole

    candidates = [c for c in rows if c != lane and c not in acc.fixed and _known(sizes[c]) >= n and count(c)]
    return max(candidates, key=count, default=None)


def transposes(access: Access, lane: int, along: int, pairs: int | None = None) -> bool:
    """Whether a load is contiguous along a class (with the pairs inside of it), but not along the lanes."""
    if access.store or access.steps.get(lane, 0) in (0, 1):
        return False
    return access.steps.get(along) == 1 if pairs is None else access.steps.get(along) == 2 and access.steps.get(pairs) == 1


def _body_ops(kernel: KernelFunction) -> int:
    """How much there is to do for one element."""
    return sum(len(list(op.regions[0].blocks[0].operations)) for op in kernel.domain.loops if op.name == "linalg.generic")


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


def _scatter(kernel: KernelFunction, target: Target) -> LoopStrategy:
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
    unroll = 1 if ops > 24 or lane is None or _known(sizes[lane]) <= n else 2 if ops > 12 else 4
    outer = [c for c in free if c != lane]
    parallel: list[int] = []
    if lane is None or _product(outer, sizes) >= 8:
        while outer and _product(parallel, sizes) < 64:
            parallel.append(outer.pop(0))
    serial = [c for c in d.rows if c in outer or c in ordered]
    width = 1 if lane is None else _known(sizes[lane]) if parallel else n * unroll
    work = ops * _product(serial, sizes) * width
    return LoopStrategy(n, unroll, lane, parallel, serial, [], merged, None, max(1, WORK_PER_THREAD // work), d.kind)


def _scan(kernel: KernelFunction, target: Target) -> LoopStrategy:
    """Lanes run along a contiguous dim if it is not the scanned one; everything else is shared by the threads."""
    op, d = kernel.domain.anchor, kernel.domain
    assert op is not None
    scanned = d.loops[op][ir.IntegerAttr(op.attributes["dim"]).value]
    steps = _stored_steps(kernel)
    lane = next((c for c in d.rows if c != scanned and steps.get(c) == 1), None)
    parallel = [c for c in d.rows if c not in (scanned, lane)]
    n = lanes(kernel, target)
    work = (4 + _body_ops(kernel)) * _known(d.sizes[scanned]) * (1 if lane is None else n)  # type: ignore[index]
    return LoopStrategy(n, 1, lane, parallel, [], [scanned], {}, None, max(1, WORK_PER_THREAD // work), d.kind)  # type: ignore[list-item]


def _product(classes: list[int], sizes: list[object]) -> int:
    n = 1
    for c in classes:
        n *= _known(sizes[c])
    return n


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
        short = _known(sizes[c]) < 8
        return (acc.contiguous(c) - 2 * acc.scattered(c)) * (0.25 if short else 1), candidates.index(c)

    return max(candidates, key=score)


def _contraction(kernel: KernelFunction, target: Target) -> ContractionStrategy:
    from .vectorize.roles import roles

    d = kernel.domain
    r = roles(kernel)
    n = lanes(kernel, target)
    dot = _dot(kernel, r)
    columns = 2 if dot is None and r.lane is not None and _known(d.sizes[r.lane]) > n else 1
    unroll = 4 if dot is not None and len(r.reductions) == 1 else 1
    dot_pairs = unroll > 1 and target.has_avx512_bf16 and n == 16 and all(
        isinstance(builders.element_type(v), ir.BF16Type) for v in st.inputs(d.anchor)  # type: ignore[arg-type]
    )
    budget = 28 if target.vector_bits == 512 else 12
    shared = _shared(kernel, r) if dot is None else None
    if shared is not None:
        columns, budget = 1, max(budget - _known(d.sizes[shared]), budget // 2)
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
        size = _known(d.sizes[r.row])  # type: ignore[index]
        rows = 32 if size >= 32 else min(size, 16)
    work = rows * columns * n // 8
    for c in r.reductions:
        work *= _known(d.sizes[c])
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
    group = min(MOST_GROUPED, -(-_known(lane) // width) * row_blocks // 32)
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
    from .vectorize.roles import used_loops

    op = kernel.domain.anchor
    assert op is not None
    packed, image = (1, 0) if not r.swapped else (0, 1)
    classes = {kernel.domain.loops[op][d] for d in used_loops(st.maps(op)[packed])}
    if r.lane is None or classes & set(r.outer):
        return False
    blocks = -(-_known(kernel.domain.sizes[r.lane]) // width)
    panels, whole = (_bytes(op.operands[i], kernel) for i in (packed, image))
    by_rows = panels * _product(r.outer, kernel.domain.sizes) if panels > CACHED else 0
    return (whole * blocks if whole > CACHED else 0) < by_rows


def _bytes(value: ir.Value, kernel: KernelFunction) -> int:
    n = builders.element_type(value).width // 8
    for size in kernel.shapes.of(value):
        n *= _known(size)
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
    from .pack import PackShape

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


def write_strategy(function: ir.Operation, strategy: Strategy) -> None:
    """Put the strategy on the function as `mlirc.strategy`."""
    function.attributes["mlirc.strategy"] = ir.StringAttr.get(
        ", ".join(f"{k}={v}" for k, v in asdict(strategy).items())
    )
