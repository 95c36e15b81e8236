"""Kernels that take turns, a part of the batch at a time, so that what one leaves for the next stays in the second-level cache.

    scores [12, 197, 197] = q k^T;  p = softmax(scores);  out = p v          one head after the other, 230 KB of scores and p for each

The first kernel is a product with a batch. All of them walk over the batch outermost, and so a range of their iterations belongs to a
range of the batch; where the rows of the product are the next loop of all, also to a block of these. Of sizes that are symbols this is asked
with numbers in their place (`passes.numbered`).

us of attention's kernels one after the other and in turns, one core of an Emerald Rapids (L2 2 MB), heads x queries x elements: in bf16
12 x 197 x 64 760 and 455, 32 x 1024 x 64 55,900 and 27,300; whole calls in f32 12 x 197 x 64 1,290 and 1,125, 12 x 512 x 64 6,800 and 6,030.
With lengths that are symbols, 12 x 1024 x 64 before the query on a Zen 4: 37,900 and 19,000 in f32, 34,500 and 11,800 in bf16, a third of which
is due to words of bf16 (`frontend.ops.attention`); of known lengths 18,500 and 11,400.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...dialects import builders
from ...dialects.mlir import ir
from ...errors import CompileError
from .. import structure as st
from ..numbered import numbered
from .common import LINE
from .contractions import ContractionStrategy
from .heights import short_tiles
from .loops import LoopStrategy
from .seen import LEAST_BLOCKS, Seen, roles_of, seen

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..chained import ChainFunction
    from ..vectorize.access import Access
    from ..vectorize.kernel import KernelFunction
    from . import Strategy

CHUNK_SHARE = 8
"""The part of the second-level cache that values between kernels have: beside them there are the operands of each."""
MOST_SHARES = 3
"""So many times that at most, for the rows of a register tile: it is on the stack of a thread."""
LEAST_SHARE = 2
"""The part of it that all values between kernels fill at least: else they are still there for the next kernel anyway."""
LEAST_CHUNKS = 8
"""For threads to share."""
ROWS = 28
"""In a block, about, where nobody knows how long they are: 1,000 columns are 200 KB then."""
SLACK = 16
"""Rows before those of a block: a register tile of AMX that its last rows do not fill begins there, and what it reads there is not used."""


@dataclass(frozen=True)
class Passed:
    """A value from one part to others: `made` is (part, result), `read` are (part, argument)."""

    made: tuple[int, int]
    read: tuple[tuple[int, int], ...]


@dataclass
class ChainStrategy:
    """`batch` times `rows` is what the parts walk over, `together` of the batch at a time, or `row_block` rows of one of them."""

    batch: int
    rows: int
    together: int
    row_block: int
    parts: list[Strategy]
    spans: list[tuple[int, int]]
    """Iterations of each part for one of the batch, and for a block of rows."""
    seen: Seen | None = None
    """Which columns a block of rows sees; None where that is all of them."""
    symbolic: bool = False
    """Sizes are symbols: `batch`, `rows` and `spans` are those of stand-ins (`passes.numbered`)."""
    kind: str = "chain"
    why: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def row_blocks(self) -> int:
        return -(-self.rows // self.row_block)

    @property
    def chunks(self) -> int:
        return self.batch // self.together * self.row_blocks

    @property
    def strength_reduction(self) -> bool:
        return any(getattr(s, "strength_reduction", True) for s in self.parts)


def chain(function: ChainFunction, strategies: Sequence[Strategy], target: Target) -> ChainStrategy | str:
    """How the kernels of a chain take turns; or why they cannot."""
    parts = function.parts
    if all(isinstance(size, int) for k in parts for size in k.domain.sizes):
        return _chain(parts, strategies, function.passed, target, False)
    if any(k.domain.kind not in ("contraction", "loops", "rows") for k in parts) or not isinstance(strategies[0], ContractionStrategy):
        return "sizes are symbols, and it is no attention"
    try:
        stand_ins = numbered(function)
    except CompileError as e:
        return e.reason
    first = function.parts[0]
    if all(isinstance(first.domain.sizes[c], int) for c in _classes_behind_rows(first, strategies[0])):
        return "only the number of rows is a symbol"
    if any(roles_of(a) != roles_of(b) for a, b in zip(parts, stand_ins) if a.domain.kind == "contraction"):
        return "what the loops of a product are depends on its sizes"
    return _chain(stand_ins, strategies, function.passed, target, True)


def _chain(
    parts: Sequence[KernelFunction], strategies: Sequence[Strategy], passed: Sequence[Passed], target: Target, symbolic: bool
) -> ChainStrategy | str:
    from ..vectorize.roles import roles

    first, s = parts[0], strategies[0]
    if not isinstance(s, ContractionStrategy) or s.row is None or not isinstance(first.domain.sizes[s.row], int):
        return "the first kernel is no product of known rows"
    if any(size == 0 for k in parts for size in k.domain.sizes):
        return "sizes are zero"
    if any(kernel.padded for kernel in parts):
        return "results are stored inside of padding"
    rows: int = first.domain.sizes[s.row]  # type: ignore[assignment]
    inside = _behind_rows(first, s) if symbolic else 0
    if inside:
        strategies = [replace(s, inside=inside, near=None), *strategies[1:]]
    outer = roles(first).outer
    batch = math.prod(first.domain.sizes[c] for c in outer[: len(outer) - inside])  # type: ignore[misc]
    batches = _batches(parts, strategies, passed, batch, rows, symbolic)
    if isinstance(batches, str):
        return batches
    whole, batch = batch, batches.batch
    nbytes = sum(_bytes(parts, p) for p in passed)
    room = target.caches.second // CHUNK_SHARE
    if heavy := reads_in_common(parts, target):
        return heavy
    each, why = nbytes // batch, {"together": f"up to {room >> 10} KB between the kernels, an eighth of the second-level cache"}
    most = (ROWS, MOST_SHARES * ROWS) if symbolic else (room * rows // each, MOST_SHARES * room * rows // each)
    if symbolic:
        why["together"] = "sizes are symbols"
    whole_tiles = _without_blocks(batches.strategies)
    hidden = seen(parts, whole_tiles, passed)
    if isinstance(hidden, Seen):
        if whole == batch and isinstance(found := _blocks_that_see(parts, whole_tiles, passed, batch, rows, most[0]), _Spans):
            why["seen"] = f"conditions hide columns ({len(hidden.conditions)}), of which whole blocks are left out"
            why["row_block"] = why.pop("together")
            return ChainStrategy(batch, rows, 1, found.row_block, list(found.strategies), found.spans, hidden, symbolic, why=why)
    elif hidden:
        why["seen"] = f"all columns: {hidden}"
    if each <= room and not symbolic:
        together = max((n for n in range(1, batch + 1) if batch % n == 0 and n * each <= room and batch // n >= LEAST_CHUNKS), default=1)
        return ChainStrategy(batch, rows, together, rows, list(batches.strategies), batches.spans, why=why)
    if whole != batch:
        return "a kernel takes several of the batch at once"
    blocks = _row_blocks(parts, batches.strategies, passed, batch, rows, most)
    if isinstance(blocks, str):
        return blocks if symbolic else f"{each >> 10} KB between the kernels are more than {room >> 10}, and {blocks}"
    why["row_block"] = why.pop("together")
    return ChainStrategy(batch, rows, 1, blocks.row_block, list(blocks.strategies), blocks.spans, symbolic=symbolic, why=why)


def _without_blocks(strategies: Sequence[Strategy]) -> list[Strategy]:
    """With the reductions of products on tiles walked at once, behind the first of them: of some columns nobody knows how many blocks they are."""
    plain = {"overlapped": False, "fetch_ahead": False, "streams": 1, "depth": None, "kept": None, "group": 1, "rows_copied": False}
    return [replace(s, **plain) if n and isinstance(s, ContractionStrategy) and s.tiles else s for n, s in enumerate(strategies)]  # type: ignore[arg-type]


def _blocks_that_see(
    parts: Sequence[KernelFunction], strategies: Sequence[Strategy], passed: Sequence[Passed], batch: int, rows: int, room: int
) -> _Spans | str:
    """Blocks of rows that are low enough to see different columns."""
    most = -(-rows // LEAST_BLOCKS)
    return _row_blocks(parts, strategies, passed, batch, rows, (min(room, most), MOST_SHARES * min(room, most)))


def reads_in_common(parts: Sequence[KernelFunction], target: Target) -> str:
    """Why what all chunks would read is too much; empty if it is not. No strategies are needed for that."""
    room = target.caches.second // CHUNK_SHARE
    return f"each chunk would read more than {room >> 10} KB that all have in common" if any(w > room for w in map(_weights, parts)) else ""


def stays_in_cache(nbytes: int, target: Target) -> str:
    """Why so many bytes between kernels are no reason to take turns; empty if they are one."""
    return f"{nbytes >> 10} KB between the kernels stay in the second-level cache anyway" if nbytes < target.caches.second // LEAST_SHARE else ""


def too_few_chunks(strategy: ChainStrategy) -> str:
    """Why kernels that can take turns had better not; empty if they may."""
    if strategy.symbolic:
        attention = len(strategy.parts) > 2 and all(isinstance(strategy.parts[n], ContractionStrategy) for n in (0, -1))
        return "" if attention else "sizes are symbols, and it is no attention"
    return "" if strategy.chunks >= LEAST_CHUNKS else f"threads would have only {strategy.chunks} parts to share"


def chunk_bytes(parts: Sequence[KernelFunction], value: Passed, s: ChainStrategy) -> int:
    """What a chunk has of a value."""
    whole = _bytes(parts, value) // s.batch * s.together
    return whole if s.row_blocks == 1 else whole // s.rows * s.row_block


def _weights(kernel: KernelFunction) -> int:
    """Bytes of an operand of a product that is the same for all of the batch, if there is any; 0 for other kernels."""
    from ..vectorize.roles import roles

    if kernel.domain.kind not in ("contraction", "convolution"):
        return 0
    outer = [c for c in roles(kernel).outer if kernel.domain.sizes[c] != 1]
    reads = [a for a in kernel.accesses.items if a.op == kernel.domain.anchor and not a.store]
    common = [a.value for a in reads if min(st.shape(a.value), default=0) >= 0 and not any(a.steps.get(c, 0) != 0 for c in outer)]
    return max((math.prod(st.shape(v)) * builders.element_type(v).width // 8 for v in common), default=0)


@dataclass(frozen=True)
class _Spans:
    strategies: Sequence[Strategy]
    spans: list[tuple[int, int]]
    batch: int
    row_block: int


def _bytes(parts: Sequence[KernelFunction], value: Passed) -> int:
    part, n = value.made
    v = parts[part].results[n]
    return _elements(parts[part], v, parts[part].result_strides[n]) * (builders.element_type(v).width // 8 or 1)


def _elements(kernel: KernelFunction, value: ir.Value, strides: Sequence[object]) -> int:
    """From the first one of a value to where the next value begins, with what lies between its rows."""
    return max((size * step for size, step in zip(kernel.shapes.of(value), strides) if size > 1), default=1)  # type: ignore[operator]


def pitch(columns: int, nbytes: int) -> int:
    """Elements of `nbytes` from row to row of a value between kernels: rows begin with a line of the cache, and not in the same set (attention
    of 12 x 197 x 64 in bf16 358 instead of 394 us, of 512 rows 2,130 instead of 2,310)."""
    lines = -(-columns * nbytes // LINE)
    return (lines + (lines % 8 == 0)) * LINE // nbytes if columns * nbytes > LINE else columns


def _batches(
    parts: Sequence[KernelFunction], strategies: Sequence[Strategy], passed: Sequence[Passed], batch: int, rows: int, symbolic: bool
) -> _Spans | str:
    """Strategies with the batch outermost, and the iterations of each part for one of it, or for as many as are together in all parts."""
    chosen: list[Strategy] = []
    for s, k in zip(strategies, parts):
        if isinstance(s, ContractionStrategy):
            plain = s.dot is None and s.shared is None and not s.turned and s.chunk is None and (s.depth is None or s.tiles)
            if not plain or s.row is None or len(k.domain.siblings) > 1:
                return "a product walks in another way"
            s = replace(s, lanes_first=False, groups_first=False)
        elif not isinstance(s, LoopStrategy) or s.kind not in ("loops", "rows") or s.split is not None or s.staged is not None or not s.parallel:
            return "a kernel is no plain loop"
        elif symbolic and s.transposed is None:
            # In the order of the products' loops, whatever else it reads.
            s = replace(s, parallel=sorted((*s.parallel, *s.serial), key=[*k.domain.rows, *s.parallel, *s.serial].index), serial=[])
        # The next part reads it from cache.
        chosen.append(replace(s, streamed=[], why={name: reason for name, reason in s.why.items() if name != "streamed"}))
    trips = [_trips(k, s) for k, s in zip(parts, chosen)]
    batch = math.gcd(batch, *trips)
    if not all(_linear(k, s, _values(parts, passed, n), batch) for n, (k, s) in enumerate(zip(parts, chosen))):
        return "a kernel does not have the batch outermost"
    return _Spans(chosen, [(t // batch, t // batch) for t in trips], batch, rows)


def _row_blocks(
    parts: Sequence[KernelFunction], strategies: Sequence[Strategy], passed: Sequence[Passed], batch: int, rows: int, room: tuple[int, int]
) -> _Spans | str:
    """The same with blocks of rows of the products as the next loop: as many as there is room for, or the fewest that
    are whole register tiles of all."""
    height = _common_height(strategies)
    if height > room[1]:
        strategies = _alike(strategies)
        height = _common_height(strategies)
    if height > room[1]:
        return f"so are those of {height} rows, which are whole register tiles of all products"
    most = max(room[0] // height, 1) * height
    block = -(-rows // -(-rows // most) // height) * height  # blocks that are alike
    chosen, spans = [], []
    for n, (k, s) in enumerate(zip(parts, strategies)):
        if isinstance(s, ContractionStrategy):
            if k.domain.sizes[s.row] != rows:  # type: ignore[index]
                return "the products have unlike rows"
            s = replace(s, row_tiles=block // s.rows, near=None if s.tiles or s.inside else 1)
            per_block = _lane_blocks(k, s) * math.prod(k.domain.sizes[c] for c in inside_classes(k, s))  # type: ignore[misc]
            whole = -(-rows // block) * per_block
        else:
            per_block, whole = block, rows
            if _trips(k, s) != batch * rows:  # type: ignore[arg-type]
                return "a loop between them has no row for each of theirs"
        if not _linear(k, s, _values(parts, passed, n), batch * rows, isinstance(s, ContractionStrategy)):
            return "a kernel does not have the rows next"
        chosen.append(s)
        spans.append((whole, per_block))
    return _Spans(chosen, spans, batch, block)


def _common_height(strategies: Sequence[Strategy]) -> int:
    """Rows that are whole register tiles of all products."""
    return math.lcm(*(s.rows for s in strategies if isinstance(s, ContractionStrategy)))


def _alike(strategies: Sequence[Strategy]) -> list[Strategy]:
    """With register tiles of as many rows in all products: the most that any has, where they are equally wide, and else the fewest."""
    products = [s for s in strategies if isinstance(s, ContractionStrategy)]
    rows = (max if len({s.columns for s in products}) == 1 else min)(s.rows for s in products)
    if any(s.tiles for s in products):
        return list(strategies)
    alike = {id(s): replace(s, rows=rows, short_rows=short_tiles(rows, s.columns)) for s in products}
    return [alike.get(id(s), s) for s in strategies]


def _values(parts: Sequence[KernelFunction], passed: Sequence[Passed], part: int) -> Iterator[tuple[ir.Value, bool, int]]:
    """What a part has of the values between the kernels, whether it makes it, and its elements."""
    k = parts[part]
    for p in passed:
        if p.made[0] == part:
            v = k.results[p.made[1]]
            yield v, True, _elements(k, v, k.result_strides[p.made[1]])
        yield from ((v := k.arguments[n], False, _elements(k, v, k.strides[v])) for at, n in p.read if at == part)


def _classes_behind_rows(kernel: KernelFunction, s: ContractionStrategy) -> list[int]:
    """The loops over dims of a product's result that lie inside of its rows."""
    op = st.owner(kernel.results[0])
    loops = kernel.domain.loops.get(op, []) if op is not None else []
    return [c for c in loops[loops.index(s.row) + 1 :] if c is not None] if s.row in loops else []


def _behind_rows(kernel: KernelFunction, s: ContractionStrategy) -> int:
    """How many of the last loops outside of a product are such."""
    behind, outer = _classes_behind_rows(kernel, s), roles_of(kernel).outer
    count = sum(c in behind for c in outer)
    return count if all(c in behind for c in outer[len(outer) - count :]) else 0


def inside_classes(kernel: KernelFunction, s: ContractionStrategy) -> list[int]:
    """The loops outside of a product that are walked inside of its row blocks."""
    from ..vectorize.roles import roles

    return roles(kernel).outer[-s.inside :] if s.inside else []


def _lane_blocks(kernel: KernelFunction, s: ContractionStrategy) -> int:
    return 1 if s.lane is None else -(-kernel.domain.sizes[s.lane] // (s.columns * s.lanes))  # type: ignore[operator]


def _trips(kernel: KernelFunction, s: Strategy) -> int:
    """Iterations of the parallel loop."""
    from ..vectorize.roles import roles

    if isinstance(s, LoopStrategy):
        return math.prod(_size(kernel, s, c) for c in s.parallel)
    outer = math.prod(kernel.domain.sizes[c] for c in roles(kernel).outer)  # type: ignore[misc]
    return outer * -(-kernel.domain.sizes[s.row] // (s.rows * s.row_tiles)) * _lane_blocks(kernel, s)  # type: ignore[index, operator, no-any-return]


def _size(kernel: KernelFunction, s: Strategy, c: int) -> int:
    merged = s.merged if isinstance(s, LoopStrategy) else {}
    return merged.get(c, kernel.domain.sizes[c])  # type: ignore[return-value]


def _linear(kernel: KernelFunction, s: Strategy, values: Iterator[tuple[ir.Value, bool, int]], count: int, with_rows: bool = False) -> bool:
    """Whether the outermost `count` iterations, or so many blocks of them, have equal parts of each value, one behind the other."""
    from ..vectorize.roles import roles

    if isinstance(s, LoopStrategy):
        order = s.parallel
        active = {*s.parallel, *s.serial, *s.inner, *(c for c in (s.lane, s.interleaved) if c is not None)}
    else:
        outer = roles(kernel).outer
        before = len(outer) - s.inside
        order = [*outer[:before], *([s.row] if with_rows and s.row is not None else []), *outer[before:]]
        active = {*range(len(kernel.domain.sizes))}
    prefix: list[int] = []
    covered = 1
    for c in order:
        if covered % count == 0:
            break
        prefix.append(c)
        covered *= _size(kernel, s, c)
    if covered % count:
        return False
    for value, made, elements in values:
        part, rest = divmod(elements, covered)
        found = [a for a in kernel.accesses.items if a.value == value and a.store == made]
        if rest or not found or not all(_part_after_part(kernel, s, a, prefix, active, part) for a in found):
            return False
    return True


def _part_after_part(kernel: KernelFunction, s: Strategy, access: Access, prefix: Sequence[int], active: set[int], part: int) -> bool:
    """Whether an access is in the next `part` elements with each step of the nested loops over `prefix`, and stays there in all others."""
    steps = {c: access.steps.get(c, 0) for c in active}
    if access.gathered or any(step is None or step < 0 for step in steps.values()):
        return False
    expected = part
    for c in reversed(prefix):
        size = _size(kernel, s, c)
        if size > 1 and steps[c] != expected:
            return False
        expected *= size
    return sum((_size(kernel, s, c) - 1) * step for c, step in steps.items() if c not in prefix) < part  # type: ignore[operator]
