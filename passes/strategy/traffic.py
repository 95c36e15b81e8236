"""The loops around the register tiles of a product: what comes from beyond the second-level cache, and how often.

Rows and panels of the packed operand meet in every register tile. What of them stays in the second level need come from beyond it but
once; so the order of the loops, parts of the rows, and blocks of the reduction follow from their bytes and from the caches (`blocks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...dialects import builders
from ...dialects.mlir import ir
from .. import structure as st
from . import blocks
from .common import LINE, known, product
from .tiles import FEW_PANELS, SUM_BYTES

if TYPE_CHECKING:
    from ...lowering.caches import Caches
    from ..vectorize.kernel import KernelFunction
    from ..vectorize.roles import Roles

LEAST_CUT = 2048
"""Steps of a reduction below which it is not cut: 512 x 1024 x 1024 in f32, cut in two, takes 6.0 instead of 5.7 ms, 197 x 768 x 768 1.31
instead of 1.19; 197 x 3072 x 768 takes 4.9 cut in four, and 5.6 as one."""

LEAST_PANELS = FEW_PANELS
"""That pay for a copy of the rows, and for sums in memory: as on AMX, where it was measured."""

FEW_TILES = 3
"""Register tiles whose rows are too few to be copied: of 16 and 32 rows, 4096 and 8192 long, the products take 3 to 5% longer with a copy."""

PLAIN_ROW_TILES = 4
"""Row tiles of a parallel iteration where the reduction is not cut: some, so that a panel is read from cache."""


def lanes_first(kernel: KernelFunction, r: Roles, width: int, caches: Caches) -> tuple[bool, str]:
    """Whether reading the other operand for every block of lanes moves less memory than reading all panels for every outer row."""
    if not outer_only(kernel, r):
        return False, "each outer row has panels of its own"
    op = kernel.domain.anchor
    assert op is not None
    packed, image = r.along_lanes, r.along_rows
    blocks_of_lanes = -(-known(kernel.domain.sizes[r.lane]) // width)  # type: ignore[index]
    panels, whole = (tensor_bytes(op.operands[i], kernel) for i in (packed, image))
    outer = product(r.outer, kernel.domain.sizes)
    resident = blocks.resident(caches)
    by_rows = panels * outer if panels > resident else 0
    by_lanes = whole * blocks_of_lanes if whole > resident else 0
    return by_lanes < by_rows, (
        f"{by_lanes >> 10} KB come from beyond the second-level cache with the lanes outermost ({blocks_of_lanes} times {whole >> 10} KB), "
        f"else {by_rows >> 10} KB ({outer} times {panels >> 10} KB); what takes up to {resident >> 10} KB stays there"
    )


def groups_first(kernel: KernelFunction, r: Roles, caches: Caches) -> tuple[bool, str]:
    """Whether the groups of a convolution had better be the outermost loop: its panels are read once then, and the image as often as there
    are groups that have their channels in the same lines of a cache. 3x3 in f32, 32 groups: 64 channels each of 14 x 14 take 3.2 instead of
    4.8 ms, 128 of 7 x 7 3.4 instead of 5.5; 32 of 28 x 28, with 1.1 MB of panels and a cache of 2 MB, 3.6 instead of 3.3."""
    op = kernel.domain.anchor
    assert op is not None
    panels, image = (op.operands[i] for i in (r.along_lanes, r.along_rows))
    theirs = panel_classes(kernel, r)
    groups, others = [c for c in r.outer if c in theirs], [c for c in r.outer if c not in theirs]
    if st.kind(op) != "convolution" or not groups or not others:
        return False, "there are no groups, or nothing else outside of a product"
    channel_bytes = known(kernel.shapes.of(image)[-1]) * builders.element_type(image).width // 8
    again = max(LINE // max(channel_bytes, 1), 1)
    stays = caches.second * 3 // 4
    moved = [tensor_bytes(v, kernel) if tensor_bytes(v, kernel) > stays else 0 for v in (panels, image)]
    rounds = product(others, kernel.domain.sizes)
    return again * moved[1] < rounds * moved[0], (
        f"{again * moved[1] >> 10} KB of the image come from beyond the second-level cache then, else {rounds * moved[0] >> 10} KB of the panels, "
        f"{rounds} times; what takes up to {stays >> 10} KB stays there"
    )


SHORT_ROW = 2048
"""Bytes of a row up to which it is read for every block of lanes while what is turned is stored from end to end: weight gradients of 3x3, 512
to 512 channels, of 64 positions take 0.71 instead of 1.09 ms in bf16, 1.49 instead of 1.71 in f32, of 784 positions 7.4 instead of 7.6, and in
f32, with rows of 3 KB, 16.3 instead of 15.7."""


def stores_lanes_last(kernel: KernelFunction, r: Roles, caches: Caches) -> bool:
    """Whether lines of a result that is contiguous along the rows are still in the second-level cache when the next block of rows comes, only if
    the blocks of lanes are the outermost loop."""
    return not r.outer and _row_bytes(kernel, r) <= SHORT_ROW and sum(tensor_bytes(v, kernel) for v in kernel.results) > blocks.resident(caches)


def outer_only(kernel: KernelFunction, r: Roles) -> bool:
    """Whether the panels are the same for all outer rows, so that either can be the outermost loop."""
    op = kernel.domain.anchor
    assert op is not None
    return r.lane is not None and not panel_classes(kernel, r) & set(r.outer)


def panel_classes(kernel: KernelFunction, r: Roles) -> set[int | None]:
    """Those that the packed operand of a product has."""
    op = kernel.domain.anchor
    assert op is not None
    return {kernel.domain.loops[op][d] for d in st.used_loops(st.maps(op)[r.along_lanes])}


def _row_bytes(kernel: KernelFunction, r: Roles) -> int:
    """Of what a row of the product is reduced from."""
    op = kernel.domain.anchor
    assert op is not None
    return product(r.reductions, kernel.domain.sizes) * builders.element_type(op.operands[r.along_rows]).width // 8


def tensor_bytes(value: ir.Value, kernel: KernelFunction) -> int:
    n = builders.element_type(value).width // 8
    for size in kernel.shapes.of(value):
        n *= known(size)
    return n


LEAST_NEAR = 128
"""Rows that a panel serves at least: with 48, 512 x 3072 x 768 in f32 takes 5% longer than with all of them, from beyond the second level.
With twice as many, which have no room beside a panel and what is fetched of the next one, 512 x 768 x 3072 takes 3% longer."""


MANY_ROWS = 16 * LEAST_NEAR
"""As which a reduction is cut for a symbol. Few rows take longer then than if it were known how few they are (16 x 3072 x 768 in f32
1.13 instead of 0.92 ms, from beyond the second level), many take less (128 x 3072 x 768 3.25 instead of 3.96)."""


def streams(kernel: KernelFunction, r: Roles, caches: Caches, rows: int, width: int) -> bool:
    """Whether panels, [reduction][block of lanes], are to be fetched before they are read, by register tiles of up to `rows` rows.

    Weights come from beyond the second-level cache wherever those of all layers do not fit it, be they small: 128 x 256 x 512 in f32 takes
    184 instead of 241 us then. Where they are there, it costs nothing beside the products of two tiles: 171 us. A single tile has as many
    lines to fetch as to read: 7.8 instead of 6.3 us for one row, from the second level, and 23 instead of 26 us from beyond it.
    A single row of bf16 gains as much (1 x 2048 x 8192 takes 1.81 instead of 2.00 ms); 128 x 768 x 3072 by `vdpbf16ps` takes 1.09 instead of
    1.22 ms on a Zen 5.
    """
    op = kernel.domain.anchor
    size = 1 if r.row is None else kernel.domain.sizes[r.row]
    if r.lane is None or op is None or len(r.reductions) != 1:
        return False
    shape = [width, st.word(op)] if st.WORDS in op.attributes else [width]
    most = blocks.resident(caches) if isinstance(size, int) and size <= rows else caches.first
    packed = st.is_packed(op, r.along_lanes) and all(st.owner(v) is None and len(st.shape(v)) == 2 + len(shape) and [*st.shape(v)[2:]] == shape for v in packed_operands(kernel, r))
    return packed and sum(tensor_bytes(v, kernel) for v in packed_operands(kernel, r)) > most


def packed_operands(kernel: KernelFunction, r: Roles) -> list[ir.Value]:
    """The operands that have the lanes: one for each sibling."""
    return [op.operands[r.along_lanes] for op in kernel.domain.siblings]


def _lane_blocks(kernel: KernelFunction, width: int) -> int:
    """Of all siblings."""
    d = kernel.domain
    return sum(-(-known(kernel.shapes.of(op.results[0])[-1]) // width) for op in d.siblings)


def near(
    kernel: KernelFunction, r: Roles, rows: int, width: int, caches: Caches, turned: bool, why: dict[str, str]
) -> tuple[int, int] | None:
    """(Row tiles in a block, blocks whose rows stay in the second-level cache while all panels pass), where not all rows stay there, and
    would come from beyond it for every panel, or where all panels do. Results that are `turned` are contiguous along the rows."""
    d = kernel.domain
    op = d.anchor
    if r.row is None or r.lane is None or op is None:
        return None
    # Of one outer row, where each has its own; there may be none.
    panels = sum(tensor_bytes(v, kernel) for v in packed_operands(kernel, r))
    panels = panels if outer_only(kernel, r) else panels // max(product(r.outer, d.sizes), 1)
    if len(r.reductions) == 1 and not turned and panels <= blocks.resident(caches):
        why["near"] = (
            f"all panels, {panels >> 10} KB, stay in the second-level cache, so that rows of the result are stored from end to end: "
            "the lines that they are written to come from memory, and are fetched while they follow one another"
        )
        return PLAIN_ROW_TILES, 1
    row_bytes = _row_bytes(kernel, r)
    size, resident = d.sizes[r.row], blocks.resident(caches)
    lanes = -(-known(d.sizes[r.lane]) // width) if len(d.siblings) == 1 else _lane_blocks(kernel, width)
    if LEAST_NEAR * row_bytes > resident or isinstance(size, int) and size * row_bytes <= resident:
        return None
    part = max(blocks.rows_bytes(caches) // max(row_bytes, 1), LEAST_NEAR)
    tiles, parts = round(part / rows), 1
    if isinstance(size, int):
        whole_tiles = -(-size // rows)
        parts = round(whole_tiles * rows / part)
        if parts < 2:
            return None
        tiles = -(-whole_tiles // parts)
    moved, whole = panels if panels > resident else panels // parts, tiles * rows * row_bytes
    if moved >= whole * (lanes - 1):
        return None
    why["near"] = (
        f"{whole >> 10} KB of rows for each of {lanes} panels are more than {panels >> 10} KB of panels for each part of the rows, of which the "
        f"second-level cache has room for {tiles * rows}"
    )
    why["row_tiles"] = "such a part"
    return tiles, 1


@dataclass(frozen=True)
class Cut:
    """How a reduction is cut in blocks: fields of `ContractionStrategy`."""

    row_tiles: int = PLAIN_ROW_TILES
    depth: int | None = None
    group: int = 1
    rows_copied: bool = False


def cut(kernel: KernelFunction, r: Roles, rows: int, width: int, caches: Caches, why: dict[str, str]) -> Cut:
    """Blocks of the reduction where the second-level cache has no room for the rows and a panel, which all register tiles read, beside the next
    one, and what they share. In f32, with weights from memory, whole and cut, in ms on a Granite Rapids (2 MB):

        16 x 4096 x 2048   4.07  3.65        48 x 3072 x  768    1.70  1.58        64 x 2048 x 2048   3.50  3.40
        32 x 4096 x 2048   5.39  4.45        48 x 4096 x 2048    6.52  5.38        64 x 3072 x 3072   8.91  7.81
        16 x 8192 x 2048   11.4   7.3        32 x 8192 x 2048    16.0   9.0       128 x 2048 x 2048   6.69  6.35
    """
    d, op = kernel.domain, kernel.domain.anchor
    step = panel_step(kernel, r, width)
    if step is None or op is None or len(d.siblings) > 1:
        why["depth"] = "the reduction is not cut: that wants a single product, with one reduction of a known size, in whole words, and rows"
        return Cut()
    length, size = d.sizes[r.reductions[0]], d.sizes[r.row]  # type: ignore[index]
    size = size if isinstance(size, int) else MANY_ROWS
    assert isinstance(length, int)
    image = op.operands[r.along_rows]
    row_bytes, resident = length * builders.element_type(image).width // 8, blocks.resident(caches)
    least = min(size, LEAST_NEAR)
    panels = -(-known(d.sizes[r.lane]) // width)  # type: ignore[index]
    tiles, together = -(-size // rows), 2 * length * step + least * row_bytes
    why["depth"] = f"a panel, the next one and {least} rows have {together >> 10} KB, and the second-level cache keeps {resident >> 10} KB from one tile to the next: "
    if tiles < 2 or panels < LEAST_PANELS and length * step <= resident:
        why["depth"] = f"{size} rows and {panels} panels are too few to share blocks"
        return Cut()
    if length < LEAST_CUT or together <= resident:
        why["depth"] += f"not cut, as reductions below {LEAST_CUT} are not" if length < LEAST_CUT else "not cut"
        return Cut()
    parts = -(-max(least * row_bytes, length * step) // blocks.rows_bytes(caches))
    depth = -(-length // parts // 16) * 16
    shared = -(-tiles // max(round(tiles * rows / LEAST_NEAR), 1))
    sums = shared * rows * width * builders.element_type(op.results[0]).width // 8
    why["depth"] += f"a block of them {blocks.rows_bytes(caches) >> 10} KB"
    why["row_tiles"] = f"about {LEAST_NEAR} rows"
    why["group"] = f"of {panels} panels, which share the rows in cache: up to {SUM_BYTES >> 10} KB of sums"
    copied = tiles > FEW_TILES and panels >= LEAST_PANELS and copies(kernel, r) and _contiguous(kernel, r) and same_cache_sets(kernel, r)
    why["rows_copied"] = "they lie a multiple of 4096 bytes apart, and would evict one another" if copied else f"only rows of more than {FEW_TILES} tiles that are contiguous and evict one another, for several panels, and no words"
    return Cut(shared, depth, max(min(panels, SUM_BYTES // sums), 1), copied)


def copies(kernel: KernelFunction, r: Roles) -> bool:
    """Whether rows can be copied: single elements, which are told from those of the other operand."""
    op = kernel.domain.anchor
    assert op is not None
    panels = op.operands[r.along_lanes]
    return st.WORDS not in op.attributes and st.owner(panels) is None and op.operands[0] != op.operands[1]


def _contiguous(kernel: KernelFunction, r: Roles) -> bool:
    """Whether the rows are in memory, contiguous along the reduction."""
    image = [a for a in kernel.accesses.items if a.op == kernel.domain.anchor and not a.store and a.steps.get(r.row)]
    return len(image) == 1 and image[0].steps.get(r.reductions[0]) == 1


def same_cache_sets(kernel: KernelFunction, r: Roles) -> bool:
    """Whether the rows of the operand that is broadcast lie a multiple of 4096 bytes apart, so that they evict one another."""
    return any(step % blocks.SETS == 0 for step in row_steps(kernel, r))


def row_steps(kernel: KernelFunction, r: Roles) -> list[int]:
    """Bytes from row to row of what is broadcast."""
    if r.row is None:
        return []
    loads = [a for a in kernel.accesses.items if not a.store and a.steps.get(r.row) and a.steps.get(r.lane, 0) == 0]  # type: ignore[arg-type]
    return [a.steps[r.row] * builders.element_type(a.value).width // 8 for a in loads]  # type: ignore[operator]


def panel_step(kernel: KernelFunction, r: Roles, width: int) -> int | None:
    """Bytes of a panel for one step of the reduction; None unless this is a single one of a known size, in whole words, with rows."""
    d = kernel.domain
    word = st.word(d.anchor) if d.anchor is not None and st.WORDS in d.anchor.attributes else 1
    if len(r.reductions) != 1 or r.row is None or r.lane is None:
        return None
    length = d.sizes[r.reductions[0]]
    panel = next((a for a in kernel.accesses.items if a.op == d.anchor and not a.store and not a.steps.get(r.row)), None)
    if not isinstance(length, int) or panel is None or length % word:
        return None
    return width * builders.element_type(panel.value).width // 8


def copy_pitch(depth: int, size: int) -> int:
    """Elements, of `size` bytes, from one row to the next where `depth` of each are copied: an odd number of lines, so that the first-level
    cache has sets enough for all rows of a tile."""
    line = 64 // size
    return (-(-depth // line) | 1) * line


FAR = 4096
"""Bytes of the shortest rows that are worth a pitch."""


def row_pitch(columns: int, size: int) -> int | None:
    """Elements, of `size` bytes, from one row to the next of what a product reads, an odd number of lines; None where rows stay dense.

    Rows of a multiple of 2048 bytes begin in two sets of the first-level cache, where tiles of 12 to 32 rows evict one another. Products
    with and without a pitch, in us (Emerald Rapids, the best of some):

        rows x reduction x columns   bf16, AMX       f32
        128 x 1024 x 1024             211    211
        128 x 1024 x 768                           1,251  1,185
        128 x 2048 x 2048             891    816
        128 x 2048 x 768                           2,560  2,450
        128 x 3072 x 768              473    436   3,781  3,565
        197 x 3072 x 768              884    763
        512 x 2048 x 2048           3,711  3,400
        512 x 3072 x 768            2,077  1,909  15,333 14,651
        512 x 4096 x 1024           4,051  3,846
        32 x 3072 x 768               238    237   1,031  1,027
    """
    row = columns * size
    return copy_pitch(columns, size) if row >= FAR and row % (blocks.SETS // 2) == 0 else None
