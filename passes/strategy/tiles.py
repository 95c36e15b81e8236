"""Products on AMX tiles, of bf16 (here) or bytes: the sizes of their blocks.

A step of k takes four products of 16x16x32, 64 cycles, and 4 KB of operands: twice what the second-level cache delivers in that time
beside everything else. So one of the operands comes from the first level: a block of the panel, which several register tiles share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...dialects import builders
from .. import structure as st
from . import blocks
from .common import known, product

if TYPE_CHECKING:
    from ...lowering.caches import Caches
    from ...lowering.target import Target
    from ..vectorize.access import Access
    from ..vectorize.kernel import KernelFunction
    from ..vectorize.roles import Roles


def possible(kernel: KernelFunction, r: Roles, words: int | None, lanes: int, target: Target) -> bool:
    """Whether a product can run on tiles. A tile register has one shape per function: k comes in whole tiles, or its end is copied."""
    d = kernel.domain
    if words is None or r.row is None or r.lane is None or d.sizes[r.row] == 0 or lanes != 16 or len(d.siblings) > 1:
        return False
    if not {"bf16": target.has_amx_bf16, "i8": target.has_amx_int8}.get(str(builders.element_type(d.anchor.operands[0]))):  # type: ignore[union-attr]
        return False
    length = d.sizes[words]
    return isinstance(length, int) and (length % row_length(kernel, r) == 0 or (len(r.reductions) == 1 and _padded(kernel, r)))


def _padded(kernel: KernelFunction, r: Roles) -> bool:
    """Whether the packed operand has zeros up to a whole tile behind its reduction."""
    op = kernel.domain.anchor
    assert op is not None
    words, length = st.shape(op.operands[r.along_lanes])[-3], kernel.domain.sizes[r.reductions[0]]
    row = row_length(kernel, r)
    return isinstance(length, int) and st.word(op) * words >= -(-length // row) * row


def row_length(kernel: KernelFunction, r: Roles) -> int:
    """Elements of k in a row of a tile: 64 bytes, or what is packed where that is less, the few channels of a group."""
    op = kernel.domain.anchor
    assert op is not None
    return min(16, st.shape(op.operands[r.along_lanes])[-3]) * st.word(op)


def element_bytes(kernel: KernelFunction) -> int:
    """Of both operands."""
    return 4 // st.word(kernel.domain.anchor)  # type: ignore[arg-type]


def groups(kernel: KernelFunction, r: Roles) -> int | None:
    """The class of the groups of a convolution with few columns each, where these lie side by side in all that the epilogue reads and stores.

    Of one with several taps, whose reduction is whole rows of tiles: there is no rest of it, and its rows are not copied.
    """
    d = kernel.domain
    assert d.anchor is not None
    both = set.intersection(*({d.loops[d.anchor][loop] for loop in st.used_loops(m)} for m in st.maps(d.anchor)[:2]))
    found = [c for c in r.outer if c in both]
    columns = d.sizes[r.lane]  # type: ignore[index]
    plain = all(st.kind(op) == "elementwise" and not st.uses_index(op) for op in d.loops if op != d.anchor)
    if len(found) != 1 or len(r.reductions) < 2 or kernel.padded or columns not in FEW_COLUMNS or not plain:
        return None
    (c,) = found
    side_by_side = kernel.accesses.beside(d.anchor).merges(c, r.lane, d.sizes)  # type: ignore[arg-type]
    return c if side_by_side and d.sizes[c] % (32 // columns) == 0 else None  # type: ignore[operator]


FEW_COLUMNS = (4, 8, 16)
"""Of a group: some groups have as many together as two tiles."""


def overlaps(kernel: KernelFunction, r: Roles, rows: int, words: int, turned: bool) -> str:
    """Why the epilogue of a register tile cannot be shared out to the steps of the next one; empty if it can."""
    sizes = {c: kernel.domain.sizes[c] for c in r.reductions}
    if turned:
        return "results are transposed in blocks"
    if rows != 32:
        return "only pairs of tiles, one below the other, take turns"
    if any(not isinstance(n, int) or n == 0 for n in sizes.values()) or sizes[words] < row_length(kernel, r):  # type: ignore[operator]
        return "the number of steps is not known, or there are none"
    return ""


def reads_of_rows(kernel: KernelFunction, r: Roles) -> list[Access]:
    """What the epilogue reads of an argument along the lanes, for each row anew: a residual, or what a gradient is multiplied with."""
    loads = [a for a in kernel.accesses.items if not a.store and a.op not in kernel.domain.siblings and a.value in kernel.arguments]
    return [a for a in loads if r.lane is not None and r.row is not None and a.steps.get(r.lane) == 1 and a.steps.get(r.row) and None not in a.steps.values()]


def bytes_of(reads: list[Access], kernel: KernelFunction) -> int:
    """What so many reads see of memory, each element once."""
    sizes = kernel.domain.sizes
    return sum(product([c for c in a.steps if a.steps[c]], sizes) * builders.element_type(a.value).width // 8 for a in reads)


FEW_STEPS = 4
"""Of k in tiles, whose products are over before what the epilogue reads is there. Residuals of ResNet-50: 64 -> 256 of 56 x 56 350 -> 313 us,
128 -> 512 of 28 x 28 185 -> 173; behind 8 steps, 256 -> 1024 of 14 x 14, nothing."""

SOME_STEPS = 32
"""Up to which that pays for what is larger than the second-level cache, too: GELU's gradient of 1024 x 3072 behind 768 6.15 -> 4.95 ms. A
residual of 197 x 768 is there anyway, and to fetch it costs 3%, as that of 1024 x 768 behind 3072 does."""


def reads_ahead(kernel: KernelFunction, r: Roles, caches: Caches) -> str:
    """Why the epilogue had better fetch what it reads of rows for the next lane block; empty if not."""
    reads, d = reads_of_rows(kernel, r), kernel.domain
    steps = product(r.reductions, d.sizes) // row_length(kernel, r)
    nbytes = bytes_of(reads, kernel)
    if reads and steps <= FEW_STEPS:
        return f"a line of each row, which no prefetcher sees coming, behind {steps} steps"
    if reads and steps <= SOME_STEPS and nbytes > caches.second:
        return f"a line of each row, which no prefetcher sees coming, of {nbytes >> 10} KB"
    return ""


@dataclass(frozen=True)
class Joined:
    """Lines of an image, whose rows are one after the other."""

    lines: int
    """Their class."""
    pitch: int
    """Rows from the beginning of a line to that of the next."""
    rows: int
    """From the first one to the last, with what is between the lines."""
    channels: int
    """Of the image: a row sees what the one before does, but for as many elements of each line of taps."""


def joined(kernel: KernelFunction, r: Roles, words: int) -> Joined | None:
    """The lines of an image that are better walked as one: there are fewer tiles then, or pairs of them in place of single ones.

    The image has to have them one behind the other, as that of a convolution with steps of one has.
    """
    d = kernel.domain
    width = d.sizes[r.row]  # type: ignore[index]
    reads = [a.steps for a in kernel.accesses.items if a.op == d.anchor and not a.store and a.steps.get(r.row)]
    if len(r.reductions) < 2 or len(reads) != 1 or not isinstance(width, int) or not isinstance(reads[0][r.row], int):
        return None
    step = reads[0][r.row]  # type: ignore[index]
    panels = st.used_loops(st.maps(d.anchor)[r.along_lanes])  # type: ignore[arg-type]
    theirs = {d.loops[d.anchor][loop] for loop in panels}  # type: ignore[index]
    for c in reversed(r.outer):
        count, from_line = d.sizes[c], reads[0].get(c)
        if c in theirs or not isinstance(count, int) or count < 2 or not isinstance(from_line, int) or from_line % step:
            continue
        pitch = from_line // step
        rows = joined_rows(count, width, pitch)
        if width <= pitch <= MOST_BETWEEN * width and _pairs(rows) <= count * _pairs(width):
            return Joined(c, pitch, rows, known(d.sizes[words]))
    return None


def joined_rows(lines: int, width: int, pitch: int) -> int:
    """From the first one of the first line to the last one of the last, with what is between the lines."""
    return (lines - 1) * pitch + width


def _pairs(rows: int) -> float:
    """What so many rows take, in pairs of tiles; a single one, which waits for its loads, as much as three quarters of a pair."""
    whole, rest = divmod(rows, 32)
    return whole + (0 if rest == 0 else 0.75 if rest <= 16 else 1)


MOST_BETWEEN = 2
"""Rows from line to line, for each of a line: other classes, such as that of images, are further apart."""


def depth(length: int, step: int, row: int, alone: bool, caches: Caches) -> tuple[int | None, str]:
    """Elements in a block of the reduction of a product on tiles, of `step` bytes of the panel each, `row` in a row of a tile; None where
    it is not cut. A register tile that is `alone` reads a block once: it is what is fetched in streams, and longer ones are better
    (2 x 9216 x 4096 from memory 4.31 instead of 4.56 ms, 32 x 4096 x 4096 2.11 instead of 2.20)."""
    size, whole, block = length * step, blocks.tile_panel_bytes(caches), blocks.tile_block_bytes(caches)
    if alone:
        whole = block = caches.first
    parts = 1 if size <= whole else -(-size // block)
    why = f"a panel has {size >> 10} KB: up to {whole >> 10} KB it is not cut, else in blocks of up to {block >> 10} KB of a first-level cache of {caches.first >> 10}"
    return (None if parts == 1 else -(-length // (row * parts)) * row), why


def kept(kernel: KernelFunction, r: Roles, rows: int, size: object, step: int, caches: Caches) -> tuple[int | None, str]:
    """Elements of the reduction that a panel, `step` bytes each, has in the first-level cache for good, where it is not cut though it does
    not fit; None where it is cut, or fits. What is left comes from the second level for each register tile, as the rows do, and so it has to
    be the smaller part; sums need not go there and back then. 512 x 768 x 768 takes 301 instead of 327 us, 512 x 1024 x 1024 501 instead of
    585, 512 x 1280 x 1024 778 instead of 796 and 512 x 1536 x 1024 as long as before; but 128 x 768 x 768 3% longer, and 128 x 768 x 3072 4%:
    the second level has enough to do with panels from beyond it, each of which few register tiles read."""
    length = kernel.domain.sizes[r.reductions[0]]
    panel, most = known(length) * step, blocks.tile_kept_bytes(caches)
    why = f"a panel has {panel >> 10} KB, of which {most >> 10} KB may stay in the first-level cache of {caches.first >> 10}"
    if len(r.reductions) > 1 or r.outer or kernel.seen is not None or rows != 32 or not isinstance(length, int):
        return None, "only for pairs of tiles, of a product that has one reduction, of known size, and no batch"
    if not blocks.tile_panel_bytes(caches) < panel <= 2 * most or not isinstance(size, int) or size < KEPT_ROW_TILES * rows:
        return None, f"{why}; {size} rows"
    row = row_length(kernel, r)
    return min(most // (step * row), length // row - 1) * row, why


KEPT_ROW_TILES = 8
"""Register tiles of 32 rows that are worth it: 256 x 768 x 768 takes as long either way, 197 x 768 x 2304 1% longer."""


@dataclass(frozen=True)
class RowBlocks:
    """How a product on tiles reads its rows: fields of `ContractionStrategy`."""

    row_tiles: int
    group: int = 1
    chunk: int | None = None
    fetch_ahead: bool = False
    rows_copied: bool = False
    rows_once: bool = False


def row_blocks(
    kernel: KernelFunction,
    r: Roles,
    rows: int,
    lanes_first: bool,
    joined: Joined | None,
    depth: int | None,
    kept: int | None,
    caches: Caches,
    why: dict[str, str],
) -> RowBlocks:
    """Choose for register tiles of `rows` rows, and blocks of the reduction of `depth` elements, or panels of which as many as `kept` stay near."""
    d = kernel.domain
    each = element_bytes(kernel)
    row_bytes = each * (product(r.reductions, d.sizes) if joined is None else joined.channels)
    most = max(blocks.resident(caches) // (rows * row_bytes), 1)
    size = d.sizes[r.row] if joined is None else joined.rows  # type: ignore[index]
    once, panels = len(r.reductions) == 1, -(-known(d.sizes[r.lane]) // 32)  # type: ignore[index]
    step = next((a.steps.get(r.row) for a in kernel.accesses.items if a.op == d.anchor and not a.store and a.steps.get(r.row)), None)
    unaligned = not isinstance(step, int) or each * step % 64 != 0
    if isinstance(size, int):
        tiles = max(-(-size // rows), 1)
        together, block = min(MOST_ROW_TILES if once else MOST_OF_TAPS, most), min(ONE_BLOCK if once else ONE_OF_TAPS, most * 3 // 2)
        if kept is not None and panels <= MANY_PANELS:
            together = block = min(ROW_TILES_OF_KEPT, most)
        if once and unaligned and panels >= FEW_PANELS and not lanes_first:  # a copy is worth more than what its size leaves out
            fit = max(_rows_to_copy(row_bytes) // rows, 1)
            together, block = min(together, fit), min(block, fit)
        if tiles > (block if joined is None else together):
            tiles = -(-tiles // -(-tiles // together))
    else:
        tiles = min(MOST_OF_TAPS - 1, most)
    if isinstance(size, int) and _stays(kernel, r, rows, caches):
        tiles = 1
    why["row_tiles"] = "each block of a panel comes from the second-level cache once for all of them; the rows stream through the first level"
    why["rows_once"] = "a panel's rows pass the first-level cache by" if once else "the taps of a convolution see the same rows"
    # Few rows have little to hide the instructions behind: those of 768 x 768, from the second level, take 20% longer.
    fetch = once and not r.outer and (rows == 32 or row_bytes * known(d.sizes[r.lane]) > caches.second)  # type: ignore[index]
    if fetch:
        why["fetch_ahead"] = "the block of the panel after the next one: the register tiles of a block of rows fetch it together"
    if rows < 32 or not once:
        return RowBlocks(tiles, rows_once=once, fetch_ahead=fetch)
    bad = unaligned or each * step % 2048 == 0  # type: ignore[operator]
    if isinstance(size, int) and size > most * rows and most < CHUNK_ROW_TILES and depth is not None and panels >= FEW_PANELS and not lanes_first:
        return _in_chunks(size, rows, panels, depth, each, why)
    copied = panels >= (FEW_PANELS if bad else MANY_PANELS) and not lanes_first and copy_bytes(tiles * rows, row_bytes) <= COPY_BYTES
    if bad:
        why["rows_copied"] = "rows begin within a line of the cache, or a multiple of 2048 bytes apart, so that they evict one another"
    else:
        why["rows_copied"] = f"{panels} panels read the same rows"
    why["rows_copied"] += "" if copied else "; but the copy is too large, or read too few times"
    return RowBlocks(tiles, fetch_ahead=fetch, rows_copied=copied, rows_once=once)


def _stays(kernel: KernelFunction, r: Roles, rows: int, caches: Caches) -> bool:
    """Whether the packed operand as a whole stays in the first-level cache, and there are no steps to share an epilogue out to: rows
    are stored from end to end then, one after the other (128 instead of 158 us for 2048 x 13 x 512)."""
    d = kernel.domain
    steps = -(-product(r.reductions, d.sizes) // row_length(kernel, r))
    panels = -(-known(d.sizes[r.lane]) // 32)  # type: ignore[index]
    return rows == 32 and steps == 1 and panels * 32 * 64 <= blocks.tile_panel_bytes(caches)


def _in_chunks(size: int, rows: int, panels: int, depth: int, each: int, why: dict[str, str]) -> RowBlocks:
    """Of rows that are so long that the second-level cache has room for too few of them."""
    tiles = -(-size // rows)
    tiles = -(-tiles // -(-tiles // CHUNK_ROW_TILES))
    chunk = max(COPY_BYTES // copy_bytes(tiles * rows, each * depth), 1) * depth
    group = max(min(SUM_BYTES // sum_bytes(tiles * rows), panels, MOST_PANELS), 1)
    why["rows_copied"] = "a chunk of their reduction at a time, for a group of panels"
    why["chunk"] = f"up to {COPY_BYTES >> 10} KB of the rows of a block, which the second-level cache has room for"
    why["group"] = f"of up to {SUM_BYTES >> 10} KB of sums, which stay there as well"
    return RowBlocks(tiles, group=group, chunk=chunk, fetch_ahead=True, rows_copied=True, rows_once=True)


def fetched_lines(width: int, row_tiles: int) -> int:
    """Of the next panels, `width` columns wide, that a register tile fetches at each of its steps."""
    return -(-width // row_tiles)


def streams(lines: int) -> int:
    """In which so many lines a step are fetched: up to `MOST_STREAMS`, with as few lines too many as can be."""
    return min(range(min(lines, MOST_STREAMS), min(lines, MOST_STREAMS // 2) - 1, -1), key=lambda n: -(-lines // n) * n)


MOST_STREAMS = 8
"""Of lines that are fetched side by side. The CPU's own prefetcher runs ahead of each of them by as many lines, and so longer ahead of
slower ones; what is asked for before it is there occupies one of few fill buffers, for which the tiles wait. 128 x 768 x 3072 in bf16, alone
with 170 MB of weights in turns: 545 us with one stream, two 415, four 390, eight 380, and 325 with weights in cache. As a chain of layers,
with 64 to 512 rows, eight take 0 to 20% less than one, 6% on average."""


def copy_bytes(rows: int, row_bytes: int) -> int:
    """What a copy of a block of rows takes: the last tile may begin before the block."""
    return (rows + 16) * (-(-row_bytes // 64) * 64)


def _rows_to_copy(row_bytes: int) -> int:
    """For which a copy has room."""
    return COPY_BYTES // (-(-row_bytes // 64) * 64) - 16


def sum_bytes(rows: int) -> int:
    """What the sums of a panel take for a block of rows; the last tile may begin before the block."""
    return (rows + 16) * 32 * 4


COPY_BYTES = 512 << 10
"""On the stack of a thread at most, for rows that are copied."""
SUM_BYTES = 512 << 10
"""The same for the sums of a group of lane blocks."""
MOST_PANELS = 32
"""In a group."""
CHUNK_ROW_TILES = 4
"""Register tiles one below the other that read a chunk; where the second-level cache has room for as many whole rows, these are not cut:
with chunks 512 x 8192 x 2048 takes 13.0 instead of 17.9 ms and 512 x 14336 x 4096 about 60 instead of 115, but 128 x 4096 x 1024 0.82
instead of 0.74."""
FEW_PANELS, MANY_PANELS = 4, 32
"""That pay for a copy of the rows: where it mends what is wrong with them (970 instead of 480 GF/s for 512 x 769 x 3071), and else
(128 x 768 x 3072 in 525 instead of 550 us, but 128 x 768 x 768 in 113 instead of 105)."""
MOST_ROW_TILES, ONE_BLOCK = 8, 12
"""Register tiles of 32 rows that share a block of a panel. Each block comes from the second-level cache once for all of them, and their sums
go there: 512 x 768 x 3072 takes 1,970 us with eight, 2,200 with 16 and 2,290 with four, 1024 x 768 x 3072 3,840 instead of 4,270, 512 x 512 x 512
180 instead of 200. A few more had better be together, so that the panels are read once: 384 x 768 x 768 in 350 instead of 360 us."""
ROW_TILES_OF_KEPT = 16
"""The same where a panel is not cut, so that no sums go to the second level: 512 x 768 x 768 takes 304 us with 16, 334 with eight. Of many
panels eight and a copy of the rows are better: 512 x 768 x 3072 1,231 instead of 1,304 us."""
MOST_OF_TAPS, ONE_OF_TAPS = 5, 7
"""The same for several reductions, those of a convolution; and one less for a number of rows that is a symbol."""
