"""The register tile of a contraction or convolution, and the blocks around it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from ...dialects import builders
from ...dialects.mlir import ir
from .. import structure as st
from . import ahead, blocks, fetching, tiles, traffic
from .common import PACKED_COLUMNS, WORK_PER_THREAD, has_functions, known, lanes, product
from .heights import LOW_TILE, SUMS_UNDER_WAY, high_row_tile, hold_any, low_tiles, row_tile, share_ahead, short_tiles
from .steps import adds_integers, most_apart, sets_of_sums, steps_together
from .stream import WHY_STREAMED, streamed_by_product
from .widths import columns_of_tile, in_pairs, most_rows, panels_together

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
    words: int | None = None
    """The reduction class that is walked in words of 32 bits: two bf16 (`vdpbf16ps`) or i16 (`vpmaddwd`), four bytes (`vpdpbusd`)."""
    tiles: bool = False
    """Whether the product runs on AMX tiles."""
    groups: int | None = None
    """On AMX, the class of the groups of a convolution, of which some have their columns side by side in a lane block."""
    lines: int | None = None
    """On AMX, the class of the lines of an image over whose ends the rows run on, from one line into the next: so they are many, however
    short lines are. The places between the lines have sums as well, which are not stored."""
    pitch: int = 0
    """Rows from the beginning of a line to that of the next then."""
    shared: int | None = None
    """The reduction class of a depthwise convolution that is unrolled in a register tile: its taps are at the same places for
    neighbouring rows, which share the loads."""
    depth: int | None = None
    """Elements of the reduction in a block, where too few whole rows fit the second-level cache; on AMX, where a panel does not fit the first."""
    kept: int | None = None
    """Elements of the reduction, from the first one on, whose part of a panel stays in the first-level cache on AMX, while what is behind
    them passes it by for each register tile; None: all."""
    group: int = 1
    """Lane blocks that are computed together then, so that they share a block of the rows in cache."""
    chunk: int | None = None
    """Elements of the reduction whose rows are copied at a time on AMX, for a group of lane blocks, where all of them are too many."""
    inside: int = 0
    """The last so many of the loops outside of a product are walked inside of those over row blocks, by kernels that take turns."""
    near: int | None = None
    """Row blocks whose rows stay in the second-level cache while all panels pass, before the next ones come; None: all rows."""
    lanes_first: bool = False
    """Whether the blocks of lanes are the outermost loop, so that a panel of the packed operand serves the whole image before the
    next one is loaded; else the outer classes are, and all panels serve one of their rows."""
    groups_first: bool = False
    """Whether the outer classes that the packed operand has, too, are the outermost loops."""
    short_rows: tuple[int, ...] = (1,)
    """Heights of the register tiles, falling, for what whole ones leave of a number of rows that is a symbol."""
    looped_epilogue: bool = False
    """Whether the epilogue is a loop over the rows of a tile, which are stored for it, instead of code for each of them."""
    called_epilogue: bool = False
    """Whether that loop is a function of its own."""
    epilogue_rows: int = 1
    """Rows that one iteration of it computes, which take turns (`passes.interleave`)."""
    turned: bool = False
    """Whether blocks of sums are transposed in registers, so that the epilogue has its lanes along the rows: for results that are
    contiguous there, and not along the columns."""
    fetch_ahead: bool = False
    """Whether register tiles fetch the packed operand into a cache, before they come to it: on AMX blocks of a panel, else what the next
    panel has at the same step, or a single tile what lies ahead in the stream of all panels."""
    fetch_level: int = 2
    """The cache that it is fetched into."""
    fetch_distance: int = 0
    """Bytes from what a single register tile in vector registers reads of the packed operand to what it fetches, in one stream over all panels."""
    few_rows: int = 0
    """Up to so many rows, where their number is a symbol, it fetches into the first-level cache, `few_distance` bytes ahead."""
    few_distance: int = 0
    streams: int = 1
    """In which a step's lines are fetched ahead on AMX, side by side; elsewhere, with more than one, those of the next panel by a single register tile."""
    steps: int = 1
    """Of the reduction in an iteration, where no rows may be missing."""
    apart: int = 0
    """Up to so many sums, these steps take turns with sets of their own, which are added up at the end: a product waits for the one before."""
    rows_copied: bool = False
    """Whether the rows of a block are copied, before they are read for panel after panel: tile by tile on AMX, else row by row with `depth`."""
    rows_once: bool = False
    """Whether the first-level cache keeps nothing of the rows that tiles are loaded with."""
    overlapped: bool = False
    """Whether the epilogue of a register tile on AMX runs with the products of the next one, some rows with each step."""
    reads_ahead: bool = False
    """Whether that epilogue fetches what it will read of the same rows for the next lane block, besides their sums; or a register tile in
    vector registers what its own will read, before its products."""
    rows_ahead: int | None = None
    """The cache into which a register tile in vector registers fetches the rows that the next one reads, a line of each while it multiplies one;
    of a convolution, what these show of the image for the first time, a part at each place of a window."""
    results_ahead: bool = False
    """Whether a register tile in vector registers fetches the lines that it will store, before its products; or the epilogue on AMX those
    where the next lane block is stored, in the same rows."""
    row_tiles: int = 4
    """Register tiles of a parallel iteration, one below the other: they share a panel, or with `depth` a block of one."""
    grain: int = 1
    streamed: list[int] = field(default_factory=list)
    """The numbers of results that are stored past the caches."""
    strength_reduction: bool = True
    """Whether LLVM looks for other ways to compute addresses than those that are written."""
    kind: str = "contraction"
    why: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """A reason for each choice, for people."""

    @property
    def share_ahead(self) -> bool:
        """Whether two register tiles, of rows whose number is a symbol, both fetch of the next panel, or the first one for both."""
        return share_ahead(self.fetch_level, self.short_rows)

    @property
    def in_registers(self) -> bool:
        """Whether a register tile is a loop over the whole reduction, whose sums are in vectors along the lanes."""
        return not self.tiles and self.depth is None and self.dot is None and self.shared is None and self.lane is not None

    @property
    def in_rows(self) -> bool:
        """Whether sums are in registers, and go from there, or by way of a scratch of one tile, to rows of the result."""
        return self.in_registers and not self.turned


def contraction(kernel: KernelFunction, target: Target) -> ContractionStrategy:
    """Choose from the shape, the registers and the caches (`blocks`)."""
    from ..vectorize.roles import roles

    r, n, words = roles(kernel), lanes(kernel, target), _words(kernel)
    why = {"lanes": f"{target.vector_bits}-bit vectors", "row_tiles": "of a parallel iteration, which share a panel"}
    why["columns"] = f"{known(kernel.domain.sizes[r.lane])} columns, {n} to a vector" if r.lane is not None else "no class of columns"
    if words is not None:
        why["words"] = f"{builders.element_type(kernel.domain.anchor.operands[0])} is multiplied in words of {st.word(kernel.domain.anchor)} along the reduction"
    strategy = ContractionStrategy(lanes=n, rows=1, columns=1, row=r.row, lane=r.lane, words=words, why=why)
    strategy = _streamed(kernel, r, target, strategy) or _on_tiles(kernel, r, target, strategy) or _in_registers(kernel, r, target, strategy)
    first, why["groups_first"] = traffic.groups_first(kernel, r, target.caches)
    strategy = replace(strategy, groups_first=first)
    strategy = _with_addresses(kernel, _with_grain(kernel, r, _with_epilogue(kernel, r, target, strategy)))
    if large := streamed_by_product(kernel, strategy):
        why["streamed"] = WHY_STREAMED
    fetched = ahead.fetched(kernel, r, strategy, target, stored=len(large) < len(kernel.results))
    why.update({name: reason for name, (_, reason) in fetched.items()})
    return replace(strategy, streamed=large, **{name: value for name, (value, _) in fetched.items()})  # type: ignore[arg-type]


def _streamed(kernel: KernelFunction, r: Roles, target: Target, s: ContractionStrategy) -> ContractionStrategy | None:
    """Few rows with unpacked operands that are contiguous along the reduction, which has the lanes then."""
    dot = _dot(kernel, r)
    if dot is None:
        return None
    alone = len(r.reductions) == 1
    s.why["dot"] = "few rows, and both operands are contiguous along the reduction: what is large is read in one stream, unpacked"
    s.why["unroll"] = "sums that hide the latency of an addition" if alone else "several reductions: one vector at a time"
    rows = _rows(kernel, r, 4 if target.vector_bits == 512 else 2, 0, "rows that share a stream", s.why)
    first, s.why["lanes_first"] = traffic.lanes_first(kernel, r, s.lanes, target.caches)
    in_pairs = alone and target.has_avx512_bf16 and s.lanes == 16 and st.reads_bf16(kernel.domain.anchor)
    return replace(s, dot=dot, unroll=4 if alone else 1, dot_pairs=in_pairs, rows=rows, row_tiles=traffic.PLAIN_ROW_TILES, lanes_first=first)


def _on_tiles(kernel: KernelFunction, r: Roles, target: Target, s: ContractionStrategy) -> ContractionStrategy | None:
    """Products of bf16 or bytes whose sums are in tile registers (AMX), and the blocks of rows that go with them."""
    if not tiles.possible(kernel, r, s.words, s.lanes, target):
        return None
    joined = tiles.joined(kernel, r, s.words)  # type: ignore[arg-type]
    size = known(kernel.domain.sizes[r.row]) if joined is None else joined.rows  # type: ignore[index]
    rows, columns = size if size <= 16 else 32, min(columns_of_tile(kernel, r, target, s.lanes), 2)
    groups = None if contiguous_rows(kernel, r) else tiles.groups(kernel, r)
    if groups is not None:
        columns, s.why["groups"] = 2, f"{32 // known(kernel.domain.sizes[r.lane])} of them side by side fill the vectors of the epilogue"  # type: ignore[index]
    width, row = columns * s.lanes, tiles.row_length(kernel, r)
    s.why["rows"], s.why["tiles"] = f"tile registers have 16 rows; {size} rows", f"words of {st.word(kernel.domain.anchor)} elements, the reduction in whole rows of {row}"
    depth, s.why["depth"] = tiles.depth(kernel.domain.sizes[s.words], width * tiles.element_bytes(kernel), row, size <= rows, target.caches)  # type: ignore[index, arg-type]
    turned = contiguous_rows(kernel, r)
    kept, s.why["kept"] = (None, "results are transposed") if turned else tiles.kept(kernel, r, rows, size, width * tiles.element_bytes(kernel), target.caches)
    if kept is not None:
        depth, s.why["depth"] = None, "a part of a panel is in the first-level cache, and the rest streams"
    first, s.why["lanes_first"] = traffic.lanes_first(kernel, r, width, target.caches)
    first = first and groups is None and (bool(r.outer) if joined is None else joined.rows > 32)
    around = tiles.row_blocks(kernel, r, rows, first, joined, None if turned else depth, kept, target.caches, s.why)
    streams = tiles.streams(tiles.fetched_lines(width, around.row_tiles)) if around.fetch_ahead else 1
    s.why["streams"] = "of lines side by side, ahead of each of which the CPU's own prefetcher runs" if streams > 1 else "nothing is fetched, or a line at a time"
    if joined is not None:
        s = replace(s, lines=joined.lines, pitch=joined.pitch)
        s.why["lines"] = f"{joined.rows} rows instead of so many lines of {kernel.domain.sizes[r.row]}"  # type: ignore[index]
    return replace(s, tiles=True, groups=groups, rows=rows, columns=columns, depth=depth, kept=kept, lanes_first=first, streams=streams, **asdict(around))


def _in_registers(kernel: KernelFunction, r: Roles, target: Target, s: ContractionStrategy) -> ContractionStrategy:
    """A tile of sums in vector registers, and the blocks of the reduction around it; of a depthwise convolution with its taps."""
    shared = _shared(kernel, r)
    fetch = shared is None and fetching.may_fetch(kernel, r, target, s.lanes)
    panels, reason = panels_together(kernel, r, target, s.lanes) if fetch else (1, "")
    if panels > 1:
        fetch, columns, s.why["columns"] = False, PACKED_COLUMNS * panels, reason
    else:
        columns = columns_of_tile(kernel, r, target, s.lanes, fetch) if shared is None else 1
    width = columns * s.lanes
    low = SUMS_UNDER_WAY // columns if shared is None else 0
    turned = contiguous_rows(kernel, r)
    step = traffic.panel_step(kernel, r, width) if s.lanes == 16 and shared is None and not turned else None
    high = step is not None and known(kernel.domain.sizes[r.reductions[0]]) * step > target.caches.first // 2

    def rows_of_tile(copied: bool) -> int:
        limit, reason = _most_rows(kernel, r, target, columns, shared, fetch, copied)
        return _rows(kernel, r, limit, low, reason, s.why, high)

    rows = rows_of_tile(copied=True)
    cut = traffic.cut(kernel, r, rows, width, target.caches, s.why)
    if not cut.rows_copied:
        rows = rows_of_tile(copied=False)
        cut = traffic.cut(kernel, r, rows, width, target.caches, s.why)
    level, distance, panel_streams = 2, 0, 1
    if fetch:
        size = 1 if r.row is None else kernel.domain.sizes[r.row]
        level, s.why["fetch_level"] = fetching.level(target, size)
        distance = fetching.distance(target, level)
        if few := fetching.few_rows(target, size):
            s.why["few_rows"] = "alone, they have room in the first-level cache beside what is fetched"
            s = replace(s, few_rows=few, few_distance=fetching.distance(target, 1))
        s.why["fetch_ahead"] = "panels may come from beyond the second-level cache: each is fetched while the one before is read"
        s.why["fetch_distance"] = "bytes, where the rows are a single register tile, in one stream"
        panel_streams, s.why["streams"] = fetching.streams(target, size, rows)
    first, s.why["lanes_first"] = traffic.lanes_first(kernel, r, width, target.caches)
    if shared is not None:
        s.why["shared"] = "neighbouring rows see the same elements through different taps: each is loaded once"
        first, s.why["lanes_first"] = True, "the weights of a block of channels are in registers"
    if cut.depth is not None:
        first, s.why["lanes_first"] = False, "the lane blocks of a group share their rows"
    elif turned and traffic.stores_lanes_last(kernel, r, target.caches):
        first, s.why["lanes_first"] = True, "rows of the result are stored from end to end: it does not fit the second-level cache"
    alone = cut.depth is None and shared is None and not (first and (r.outer or turned))
    around = asdict(cut)
    if alone and (part := traffic.near(kernel, r, rows, width, target.caches, turned, s.why)):
        around["row_tiles"], around["near"] = part
    steps, s.why["steps"] = steps_together(fetch, rows * columns, target.vector_registers, adds_integers(kernel))
    apart = most_apart(steps, target.vector_registers)
    if sets_of_sums(steps, rows * columns, apart) > 1:
        s.why["apart"] = f"{rows * columns} sums wait for one another: more of them do not"
    return replace(s, rows=rows, columns=columns, shared=shared, lanes_first=first, fetch_ahead=fetch, fetch_level=level, fetch_distance=distance, streams=panel_streams, steps=steps, apart=apart, **around)


def _rows(kernel: KernelFunction, r: Roles, limit: int, low: int, reason: str, why: dict[str, str], high: bool = False) -> int:
    """Of a register tile: at most `limit`, for that `reason`, and more than `low` where they are to divide all rows, which `high` ones need not."""
    if r.row is None:
        why["rows"] = "no class of rows"
        return 1
    size = kernel.domain.sizes[r.row]
    rows = high_row_tile(size, limit, low) if high and isinstance(size, int) and size > limit else row_tile(size, limit, low)
    why["rows"] = f"{reason}; {_tiling(size, rows)}"
    return rows


def _with_epilogue(kernel: KernelFunction, r: Roles, target: Target, s: ContractionStrategy) -> ContractionStrategy:
    """How results leave the registers: transposed or not, by one copy of the epilogue's code or one for each row."""
    ops = _epilogue_ops(kernel)
    steps = product(r.reductions, kernel.domain.sizes) // (1 if s.words is None else st.word(kernel.domain.anchor))  # type: ignore[arg-type]
    most = SHORT_EPILOGUE if steps >= MANY_STEPS else LONG_EPILOGUE
    behind = f"{steps} steps" if all(isinstance(kernel.domain.sizes[c], int) for c in r.reductions) else "steps whose number is a symbol"
    s.why["looped_epilogue"] = f"about {ops} ops for an element of the result; above {most}, behind {behind}, one copy of them serves all rows"
    if s.dot is not None:
        return s
    row_tiles, turned = s.row_tiles, contiguous_rows(kernel, r)
    if s.tiles and not turned:
        s.why["looped_epilogue"] = "the sums are in memory already, and one copy of the ops serves all rows"
    if turned:
        s.why["turned"] = "results are contiguous along the rows: vectors of these are stored, instead of single elements"
        if s.depth is None and not s.tiles:
            row_tiles, s.why["row_tiles"] = _turned_row_tiles(kernel.domain.sizes[r.row], s.rows, s.lanes)  # type: ignore[index]
    apart = tiles.overlaps(kernel, r, s.rows, s.words, turned) if s.tiles else "no tiles"  # type: ignore[arg-type]
    if s.tiles:
        s.why["overlapped"] = apart or "vectors store 32 rows while tiles multiply the next 32"
    possible = s.tiles and not turned and s.lines is None and not s.lanes_first
    fetched = tiles.reads_ahead(kernel, r, target.caches) if possible else ""
    if fetched:
        s.why["reads_ahead"] = fetched
    looped = s.rows * s.columns > 4 and ops > most and (turned or not s.tiles)
    # Around a call, tiles would have to be configured anew.
    called = not s.tiles and (ops > 1 if turned else looped and ops >= CALLED_EPILOGUE)
    if called:
        few = "it rounds, or has other constants" if turned else f"it has {CALLED_EPILOGUE} ops or more"
        s.why["called_epilogue"] = f"{few}: LLVM may give its constants the registers of the sums, in the innermost loop"
    together = EPILOGUE_ROWS if looped and not turned and (called or has_functions(kernel)) else 1
    if together > 1:
        s.why["epilogue_rows"] = "chains that one row has too few of"
    return replace(
        s, turned=turned, overlapped=not apart, reads_ahead=bool(fetched), row_tiles=row_tiles, looped_epilogue=looped, called_epilogue=called, epilogue_rows=together
    )  # fmt: skip


def _with_grain(kernel: KernelFunction, r: Roles, s: ContractionStrategy) -> ContractionStrategy:
    """The iterations that are worth a thread, and the lower register tiles for symbolic rows."""
    work = s.rows * s.columns * s.lanes // 8
    for c in r.reductions:
        work *= known(kernel.domain.sizes[c])
    s.why["grain"] = f"about {work} element-operations an iteration, and a thread is worth {WORK_PER_THREAD}"
    return replace(s, grain=max(1, WORK_PER_THREAD // max(work, 1)), short_rows=short_tiles(s.rows, s.columns))


LEAST_ADDRESSES = 8
"""Sums of a register tile from which on LLVM's search among the ways to compute its addresses is left out."""


def _with_addresses(kernel: KernelFunction, s: ContractionStrategy) -> ContractionStrategy:
    """Those of many rows are a variable that they share and constants, where no stride is a symbol, which fits the addressing modes. LLVM
    takes half of all code generation to find that out (for the products of a BERT layer 172 instead of 80 ms), and the result is as
    fast. On AMX there are few addresses, and tiles take so long that the instructions for them are free (20 products and convolutions of
    BERT, GPT-2 and ResNet-50: within 1%, code generation 393 -> 232 ms for BERT)."""
    symbols = any(isinstance(a.type, ir.IndexType) for a in kernel.arguments)
    if symbols and not s.tiles and hold_any(s.short_rows):  # rows that may be missing have addresses of their own
        symbols = any(step is None for a in kernel.accesses.items for step in a.steps.values())
    plain = not symbols and (bool(s.tiles) or s.rows * s.columns >= LEAST_ADDRESSES)
    s.why["strength_reduction"] = "addresses are a variable and constants" if plain else "of symbols, or few"
    return replace(s, strength_reduction=not plain)


def _tiling(size: object, rows: int) -> str:
    if not isinstance(size, int):
        return "the number of rows is a symbol"
    return f"{size} rows are {size // rows} tiles" + (f" and {size % rows} rows" if size % rows else "")


def contiguous_rows(kernel: KernelFunction, r: Roles) -> bool:
    """Whether all results are contiguous along the rows, and none along the columns."""
    if r.row is None or r.lane is None or len(kernel.domain.siblings) > 1:
        return False
    stores = [a.steps for a in kernel.accesses.items if a.store]
    return len(stores) == len(kernel.results) and all(s.get(r.row) == 1 and s.get(r.lane, 0) not in (0, 1) for s in stores)


def _turned_row_tiles(size: object, rows: int, lanes: int) -> tuple[int, str]:
    """How many register tiles are stored together, so that vectors of their rows are full, and why."""

    def vectors(tiles: int) -> float:
        """That it takes to store a row of the result, or one element of it."""
        block = tiles * rows
        if not isinstance(size, int):
            return -(-block // lanes) / block
        return size // block * -(-block // lanes) + -(-(size % block) // lanes)

    tiles = min(range(traffic.PLAIN_ROW_TILES, 2 * traffic.PLAIN_ROW_TILES + 1), key=vectors)
    return tiles, f"of which the rows, {tiles * rows}, are stored in vectors of {lanes}"


LONG_EPILOGUE = 12
"""Ops for an element of the result that are too many to be repeated for each row of a tile."""

SHORT_EPILOGUE, MANY_STEPS = 3, 224
"""The same behind sums of so many steps, which hide that they go through memory. 128 rows of bf16, columns x reduction, added to another
tensor, on a Zen 4: 768 x 768 takes 0.4 to 0.8% more, 1024 x 1024 0.4%, 112 x 672 0.3%, and 57 instead of 94 ms to compile; behind 192 steps
it is 0.9%, behind 20 5%."""

EPILOGUE_ROWS = 2
"""Of a tile of two columns: a GELU behind a product of 256 x 768 x 3072 in bf16 takes 2.46 ms so, by single rows 2.53, 2.28 without it;
by three rows 2.48, and a tanh 3.6. It takes 24 of 77 ms more to compile."""

CALLED_EPILOGUE = 40
"""Ops from which on they are a function: six bf16 products one after the other, each rounded, 49 ops, take 3.5 ms behind a product of
256 x 768 x 3072 in a loop of the same function, and 2.5 in one of their own; a GELU, 29 ops, 2.50 and 2.57."""

def _most_rows(
    kernel: KernelFunction, r: Roles, target: Target, columns: int, shared: int | None, fetch: bool, copied: bool
) -> tuple[int, str]:
    """How many rows a register tile may have, which are copied or read where they are, and why."""
    budget = fetching.sums_of_tile(target, fetch)
    reason = f"{target.vector_registers} registers: {budget} for sums"
    if shared is not None:
        taps = known(kernel.domain.sizes[shared])
        budget, reason = max(budget - taps, budget // 2), f"{reason}, fewer by {taps} for the taps"
    limit, reason = most_rows(target, columns, budget, in_pairs(kernel, r)), f"{reason}, {columns} to a row"
    if not copied and shared is None and low_tiles(kernel, r, target):
        limit, reason = min(limit, LOW_TILE), f"{reason}; f32 on an AMD CPU before Zen 5: lower tiles wait less for their rows"
    near = min((blocks.same_set_rows(step, target.caches) for step in traffic.row_steps(kernel, r)), default=limit)
    if not copied and near < limit:
        return near, f"rows a multiple of {blocks.SETS * target.caches.first_ways // near} bytes apart evict one another: the first-level cache has room for {near}"
    return limit, reason


TRANSCENDENTAL = 16
"""What a function such as exp counts as, in ops."""

ROUNDING = 4
"""What a rounding to 16 bits counts as: integer arithmetic."""

PLAIN = {"math.fma", "math.absf", "math.copysign", "math.sqrt"}
"""Ops of the math dialect that are an instruction."""


def _epilogue_ops(kernel: KernelFunction) -> int:
    """How many ops an element of the result takes after the product, roughly; of several results, that with the most."""
    d = kernel.domain
    return max(_ops_over(kernel, {*d.classes(a)} - {*d.inner}) for a in d.siblings)


def _ops_over(kernel: KernelFunction, space: set[int]) -> int:
    """Ops of the epilogue that have no other classes."""
    n = 0
    for op in kernel.domain.loops:
        if op in kernel.domain.siblings or op.name != "linalg.generic" or not space.issuperset(kernel.domain.classes(op)):
            continue
        for inner in op.regions[0].blocks[0].operations:
            name = st.operation(inner).name
            if name == "arith.truncf":
                n += ROUNDING
            else:
                n += TRANSCENDENTAL if name.startswith(("math.", "mlirc.")) and name not in PLAIN else 1
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
    the rate of f32 products. Bytes are multiplied in fours where there is `vpdpbusd`, or AMX; all CPUs have `vpmaddwd` for pairs of i16.
    """
    from ..pack import PackShape

    words = {"i16"}
    if target.has_avx512_bf16 or target.has_amx_bf16:
        words.add("bf16")
    if target.has_vnni or target.has_amx_int8:
        words.add("i8")
    return PackShape(target.vector_bits // 16, frozenset(words), 16 if target.has_amx_bf16 or target.has_amx_int8 else 1)


def _words(kernel: KernelFunction) -> int | None:
    op = kernel.domain.anchor
    if op is None or st.WORDS not in op.attributes:
        return None
    return kernel.domain.loops[op][ir.IntegerAttr(op.attributes[st.WORDS]).value]


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
