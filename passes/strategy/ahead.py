"""What a register tile had better fetch before it comes to it, of the rows, the results and what an epilogue reads; panels are in `fetching`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...dialects import builders
from .. import structure as st
from . import blocks
from .common import LINE, known, product
from .stream import returned_bytes
from .tiles import bytes_of, reads_of_rows
from .traffic import packed_operands, tensor_bytes

if TYPE_CHECKING:
    from ...lowering.caches import Caches
    from ...lowering.target import Target
    from ..vectorize.access import Access
    from ..vectorize.kernel import KernelFunction
    from ..vectorize.roles import Roles
    from .contractions import ContractionStrategy

STEPS_AHEAD, ROWS_AHEAD, BYTES_AHEAD = 512, 64, 2048
"""Of the reduction, rows, and bytes from row to row, from which on what a register tile stores is fetched before. In f32, with weights from
memory, 128 x 768 x 3072 takes 4.25 instead of 4.5 ms and 128 x 768 x 2304 3.15 instead of 3.5; with weights in cache 4.1 instead of 4.35, and
2.98 instead of 3.02. But 16 x 768 x 3072 takes 645 instead of 630 us, 128 x 128 x 3072 716 instead of 701, and convolutions of ResNet-50, whose
rows follow one another, up to 5% longer."""


def fetched(kernel: KernelFunction, r: Roles, s: ContractionStrategy, target: Target, stored: bool) -> dict[str, tuple[bool | int, str]]:
    """What a register tile had better fetch before it is read or, if results are `stored` in caches, written: field -> (value, reason)."""
    reasons, level, reason = {}, 0, ""
    if s.in_rows:
        reasons = {"results_ahead": results_ahead(kernel, r, s.words, target.caches) if stored else "", "reads_ahead": reads_ahead(kernel, r, s.words, target)}
        level, reason = rows_ahead(kernel, r, s.rows, s.columns * s.lanes, target.caches)
    elif s.tiles and stored:
        reasons = {"results_ahead": results_of_tiles(kernel, r, s, target.caches)}
    if s.in_registers and (windows := windows_of(kernel, r, s.words)) is not None:
        level, reason = windows_ahead(kernel, windows, r, target.caches)
        if s.in_rows and stored:
            reasons["results_ahead"] = reasons["results_ahead"] or results_of_windows(kernel, target)
    return {**{name: (True, why) for name, why in reasons.items() if why}, **({"rows_ahead": (level, reason)} if level else {})}


def results_ahead(kernel: KernelFunction, r: Roles, words: int | None, caches: Caches) -> str:
    """Why a register tile had better fetch what it will store; empty if not: siblings store parts of theirs in turns, and where all panels
    stay in the second-level cache, rows are stored from end to end."""
    d = kernel.domain
    rows = d.sizes[r.row] if r.row is not None else 1
    if r.lane is None or not isinstance(rows, int) or rows < ROWS_AHEAD or len(d.siblings) > 1:
        return ""
    steps = product(r.reductions, d.sizes) // (1 if words is None else st.word(d.anchor))  # type: ignore[arg-type]
    apart = min((a.steps.get(r.row) or 0) * builders.element_type(a.value).width // 8 for a in kernel.accesses.items if a.store)  # type: ignore[arg-type]
    if steps < STEPS_AHEAD or apart < BYTES_AHEAD or sum(tensor_bytes(v, kernel) for v in packed_operands(kernel, r)) <= blocks.resident(caches):
        return ""
    return f"stores would wait for a line of each row, {apart} bytes apart, which no prefetcher sees coming, behind {steps} steps"


def results_of_tiles(kernel: KernelFunction, r: Roles, s: ContractionStrategy, caches: Caches) -> str:
    """Why a register tile on AMX had better fetch what the next lane block will store in the same rows; empty if not. On a Granite Rapids (2 MB
    of second level, the third far), for what is returned, in parts of the time without it, by columns and MB of results:

        1024 columns behind 1024     1 MB  1.05    4 MB  1.01            1024 behind 479      1 MB  0.96    4 MB  0.66
        3072 columns behind  768     3 MB  0.94   12 MB  0.77             768 behind 768      1 MB  1.01    3 MB  1.02
        4096 columns behind 1024     4 MB  0.91                          2304 behind 768      2 MB  0.99    9 MB  0.92
    """
    d = kernel.domain
    if not kernel.returned or s.turned or s.lanes_first or s.lines is not None or len(r.reductions) > 1 or r.outer:
        return ""
    nbytes = sum(returned_bytes(kernel.results[n]) for n in kernel.returned)
    if known(d.sizes[r.lane]) < 2 * s.columns * s.lanes or nbytes <= caches.second:  # type: ignore[index]
        return ""
    return f"what is returned, {nbytes >> 10} KB, is in no cache: stores would wait for a line of each row, which no prefetcher sees coming"


def reads_ahead(kernel: KernelFunction, r: Roles, words: int | None, target: Target) -> str:
    """Why a register tile in vector registers had better fetch what its epilogue will read, before its products; empty if not.

    10,000 x 128 x 256 with a sum with another tensor and relu takes 3.4 instead of 4.0 ms in bf16 and 8.2 instead of 8.6 in f32 (Zen 4),
    where what it reads is in the third level 0 to 2% less (ResNet-50's residuals). On other CPUs than AMD's it was not measured.
    """
    reads, d = reads_of_rows(kernel, r), kernel.domain
    if not target.is_amd or not reads or len(d.siblings) > 1:
        return ""
    steps = product(r.reductions, d.sizes) // (1 if words is None else st.word(d.anchor))  # type: ignore[arg-type]
    nbytes = bytes_of(reads, kernel)
    if steps >= STEPS_AHEAD or nbytes <= target.caches.second:
        return ""
    return f"a line of each row, which no prefetcher sees coming, of {nbytes >> 10} KB, behind {steps} steps"


PANELS_AHEAD = 4
"""Up to which rows that share sets of the first level are fetched: of more, most reads are from the second level anyway."""


def rows_ahead(kernel: KernelFunction, r: Roles, tile: int, width: int, caches: Caches) -> tuple[int, str]:
    """The cache into which a register tile of `tile` rows had better fetch those of the next one, and why; 0 if nowhere. On a Zen 4, in ms:

        rows x reduction x columns         bf16: not, 1, 2      f32: not, 1, 2
        8192 x 256 x 64                    1.69 1.31            3.50 2.75 2.80
        8192 x 64 x 256                    1.32 1.31            3.03 2.87
        2048 x 768 x 768                   10.8 10.6            23.7 23.7
        8192 x 512 x 64                                         5.80 5.49 5.41
        2048 x 512 x 512                                        9.93 10.8 10.2
        4096 x 1024 x 64                                        5.31 6.01 5.27
        512 x 1023 x 513                                        5.20 7.68
    """
    if not follows_rows(kernel, r):
        return 0, ""
    (rows,) = reads_along_rows(kernel, r)
    apart, nbytes = rows.steps[r.row] * builders.element_type(rows.value).width // 8, bytes_of([rows], kernel)  # type: ignore[index, operator]
    if nbytes <= caches.second:
        return 0, ""
    reason = f"of {nbytes >> 10} KB, a line of each row at a time, {apart} bytes apart, which no prefetcher sees coming"
    if blocks.lines_of_a_set(apart, 2 * tile) <= caches.first_ways:
        return 1, reason
    # In the first level they would evict those that are being read.
    panels = -(-known(kernel.domain.sizes[r.lane]) // width) if r.lane is not None else 1
    return (2, f"{reason}; in few sets of the first level") if panels <= PANELS_AHEAD else (0, "")


def reads_along_rows(kernel: KernelFunction, r: Roles) -> list[Access]:
    """What a product reads of the operand that has the rows."""
    op = kernel.domain.anchor
    return [a for a in kernel.accesses.items if a.op == op and not a.store and a.value == op.operands[r.along_rows]]  # type: ignore[union-attr]


def follows_rows(kernel: KernelFunction, r: Roles) -> bool:
    """Whether a register tile reads rows of memory from their beginning to their end."""
    d = kernel.domain
    if d.anchor is None or len(d.siblings) > 1 or len(r.reductions) != 1 or r.row is None:
        return False
    reads = reads_along_rows(kernel, r)
    return len(reads) == 1 and reads[0].steps.get(r.reductions[0]) == 1 and isinstance(reads[0].steps.get(r.row), int) and None not in reads[0].steps.values()


@dataclass(frozen=True)
class Windows:
    """What the register tiles of a convolution read of an image, in elements, and what of it the next tile is the first to see.

    3x3 in steps of two, 64 channels, lines of w pixels: the windows of a tile's rows are 128 elements apart (`stride`); behind what the tile before
    saw of a line follow 128 for each of them (`run`), in the last line of the windows and in the one before it (`lines`: 0 and -64 w), as
    the windows one line of results higher saw the third.
    """

    taps: list[int]
    """The classes of a window's places; at each are `channels`, side by side."""
    channels: int
    stride: int
    run: int
    """`stride` where windows follow one another in memory without gaps, else the channels of a window's last place."""
    lines: list[int]
    """Distances from the last place of a window."""


def windows_of(kernel: KernelFunction, r: Roles, words: int | None) -> Windows | None:
    """None for what is no convolution, or has channels apart, in part or of unknown sizes."""
    d = kernel.domain
    if d.kind != "convolution" or d.anchor is None or r.row is None or not r.reductions:
        return None
    channel = r.reductions[-1] if words is None else words
    reads = reads_along_rows(kernel, r)
    if len(reads) != 1:
        return None  # the image is computed here
    (image,) = reads
    taps, channels, stride = [c for c in r.reductions if c != channel], d.sizes[channel], image.steps.get(r.row)
    known_sizes = isinstance(channels, int) and all(isinstance(d.sizes[c], int) for c in taps)
    if not taps or not known_sizes or not stride or None in image.steps.values() or image.steps.get(channel) != 1:
        return None
    dense = any(image.steps.get(c) == channels and stride <= channels * d.sizes[c] for c in taps)
    run = stride if dense else channels
    if run != stride and run * builders.element_type(image.value).width < LINE * 4:
        return None  # groups of few channels: a line of each row for half of it or less
    return Windows(taps, channels, stride, run, [-n for n in _new_lines(image, r, d.sizes, taps)])


def _new_lines(image: Access, r: Roles, sizes: list[object], taps: list[int]) -> range:
    """Of an image that is walked line by line, or column by column, how far before the last one of a window those begin that the windows
    of the line before do not reach."""
    for outer in r.outer:
        for tap in taps:
            step, walked = image.steps.get(tap, 0), image.steps.get(outer, 0)
            if 0 < step <= walked and walked % step == 0 and walked // step <= sizes[tap]:
                return range(0, walked, step)
    return range(1)


LONG_PLACE = 1024
"""Bytes at a place of a window up to which an image is fetched: along more of them the CPU's own prefetchers run."""


def windows_ahead(kernel: KernelFunction, w: Windows, r: Roles, caches: Caches) -> tuple[int, str]:
    """As `rows_ahead`, for a convolution. With relu on a Zen 4, in tiles of 14 rows, channels to channels of pixels,
    in ms, and with `results_of_windows` as well:

        3 x 3                          f32: not, so, both     bf16: not, so, both
        64 to 64 of 224 x 224          37.4  36.3  36.0       16.6  16.4  16.3
        64 to 64 of 160 x 239          27.0  26.0  25.5       12.7  12.5  12.5
        128 to 128 of 112 x 112        37.1  34.2  33.8       16.4  16.2  16.1
        32 to 64 of 224 x 224, / 2      5.3   4.8   4.7        2.35  2.20  2.29
        64 to 128 of 112 x 112, / 2     4.62  4.56  4.52       2.18  2.16  2.13
        256 to 256 of 56 x 56          35.1  34.8  33.8       16.3  16.1  16.1
        512 to 512 of 28 x 28          34.4  34.8  35.0       16.1  16.2  16.2
        32 to 32 of 56 x 56, 4 groups   2.53  2.52  2.37       1.21  1.17  1.16
    """
    image = kernel.domain.anchor.operands[r.along_rows]  # type: ignore[union-attr]
    nbytes, at_a_place = tensor_bytes(image, kernel), w.channels * builders.element_type(image).width // 8
    if nbytes <= caches.second or at_a_place > LONG_PLACE:
        return 0, ""
    return 2, f"of {nbytes >> 10} KB, what no window has shown yet: a part at each place of a window"


def results_of_windows(kernel: KernelFunction, target: Target) -> str:
    """Why a register tile of a convolution had better fetch what it will store; empty if not. On other CPUs than AMD's that was up to 5% slower
    for those of ResNet-50, whose images have room in the second level."""
    nbytes = sum(tensor_bytes(v, kernel) for v in kernel.results)
    if not target.is_amd or nbytes <= target.caches.second:
        return ""
    return f"of {nbytes >> 10} KB, which stores would wait for"
