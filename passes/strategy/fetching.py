"""What register tiles in vector registers fetch of a packed operand before they come to it: into which cache, and how far ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import traffic
from .common import PACKED_COLUMNS
from .widths import sum_registers

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..vectorize.kernel import KernelFunction
    from ..vectorize.roles import Roles


FEW_ROWS, MANY_ROWS = 6, 32
"""Up to which, and above which, an AMD CPU whose first-level cache has 32 KB had better fetch into that: see `level`."""

MOST_DISTANCE = 1 << 20
"""That can be pinned."""


def may_fetch(kernel: KernelFunction, r: Roles, target: Target, n: int) -> bool:
    """Whether panels, of vectors of `n` lanes, may come from beyond the second-level cache, so that register tiles had better see to it."""
    most_alone = sums_of_tile(target, fetch=True) // PACKED_COLUMNS
    return n == target.lanes(32) >= 8 and traffic.streams(kernel, r, target.caches, most_alone, PACKED_COLUMNS * n)


def sums_of_tile(target: Target, fetch: bool) -> int:
    """Registers for sums. Where something is fetched, two steps are together, if there are registers enough."""
    return sum_registers(target) - (PACKED_COLUMNS if fetch and target.vector_registers > 16 else 0)


def level(target: Target, size: object) -> tuple[int, str]:
    """The cache that tiles of `size` rows, an int or a symbol, fetch into, and why.

    In the first level of an AMD CPU a line comes sooner; but 32 KB have no room for many, beside the rows: what two or three tiles fetch of the
    next panel is gone from there before it is read. With weights from memory, us, by `prefetcht0` and `prefetcht1`:

        Zen 4, f32, 4 x 768 x 3072     406   487        Zen 4, AVX2, f32, 4 x 768 x 3072     397   482
                    6 x 2048 x 2048    761   793                          8 x 768 x 3072     863   450
                    8 x 768 x 3072     447   419                          12 x 768 x 3072    859   585
                    12 x 2048 x 8192  5960  3788                          16 x 2048 x 2048  1829  1343
                    16 x 768 x 3072    892   707                          32 x 768 x 3072   1458  1473
                    32 x 768 x 3072   1465  1410                          64 x 768 x 3072   2735  2765
                    64 x 768 x 3072   2738  2760
              bf16, 4 x 768 x 3072     200   245        Zen 5, f32, 16 x 768 x 768            77   111
                    8 x 768 x 3072     245   225
                    16 x 768 x 3072    458   369

    The number of rows is a symbol (Zen 4, f32): 8 x 768 x 3072 takes 459 and 385, 16 x 768 x 3072 861 and 733; for fewer see `few_rows`.
    """
    if not target.is_amd:
        return 2, "the first one has the rows"
    if not levels_compete(target):
        return 1, "an AMD CPU, whose first one has 48 KB"
    if not isinstance(size, int):
        return 2, "an AMD CPU, and the rows may be more than have room in its first one"
    few = size <= FEW_ROWS
    return (1, f"an AMD CPU, and {'few' if few else 'many'} rows") if few or size > MANY_ROWS else (2, f"{size} rows, whose tiles fill the first one")


def few_rows(target: Target, size: object) -> int:
    """Rows, of a number that is a symbol, up to which a register tile fetches into the first-level cache, whatever `level` says for more.

    From memory on a Zen 4, us, into the second level and so: f32 2 x 768 x 3072 493 and 383, 4 x 2048 x 2048 824 and 741; bf16 2 x 768 x 3072 258
    and 199. The tiles of 5 and 4 rows that nine are would wait for it, in bf16 705 instead of 401 for 9 x 2048 x 2048.
    """
    return 0 if isinstance(size, int) or not levels_compete(target) else FEW_ROWS


def distance(target: Target, level: int) -> int:
    """Bytes from what a single register tile reads to what it fetches into that cache. In f32, us:

        Granite Rapids, second level, 1 x 768 x 3072, from beyond it     nothing 598     4 KB 561                           96 KB 545
        Zen 5, first level, 4 x 768 x 3072                               nothing 245     4 KB 208   8 KB 201   16 KB 215
        Zen 4, first level, 6 x 768 x 3072, from memory                                  4 KB 402   8 KB 433   16 KB 436
        Zen 4, second level, 7 x 768 x 3072, from memory                                            8 KB 407                96 KB 426
        Zen 3, first level, 4 x 768 x 3072, from memory                  2 KB 466        3 KB 508   8 KB 529
        Zen 3, first level, 4 x 768 x 3072, from the third level         2 KB 199                   8 KB 209
    """
    if level == 2:
        return 8 << 10 if target.is_amd else 96 << 10
    if not target.has_avx512:
        return 2 << 10
    return 4 << 10 if levels_compete(target) else 8 << 10


MOST_STREAMS = 8
"""That can be pinned."""


def streams(target: Target, size: object, rows: int) -> tuple[int, str]:
    """In which a single register tile of up to `rows` rows fetches the next panel, side by side, and why; with one it fetches what lies ahead
    in that of all panels. `size`: an int or a symbol.

    The prefetchers of a CPU run ahead in each page that is read, or fetched from. In f32 on a Zen 3, by loops in C, us, with 110 MB of weights
    in turns, and with 9 MB of them, in the third-level cache:

        streams                1     2     4              1     2     4
        3 x  768 x 3072      792   713   673            286   281   304
        4 x  768 x 3072      824   695   716            446   405   413
        5 x  768 x 3072      933   625   651            395   424   440
        4 x 3072 x  768      813   693   687
        4 x 2048 x 2048     1385  1224  1147

    Compiled, with one, two and four, from memory: 3 x 768 x 3072 612, 564 and 520, 4 x 2048 x 2048 944, 898 and 846, 6 x 2048 x 2048 935, 835 and
    840; from the third level 0.95 to 1.1 of the time with one. On a Zen 4 with AVX-512 2 to 6 rows, which one stream brings to 0.73 to 1.1 of
    what memory delivers, gain nothing from two or four: 1.0 of the time (median of 32, 0.94 to 1.24, once 0.74).
    Several tiles share a panel, and gain nothing: 8 x 768 x 3072 takes 1007, 978 and 1021.
    """
    if isinstance(size, int) and size > rows:
        return 1, "several tiles fetch the next panel"
    if not levels_compete(target) or target.has_avx512:
        return 1, "what lies ahead"
    return 4, "quarters of the next panel of a single tile: the CPU's own prefetchers run ahead in all of them"


def levels_compete(target: Target) -> bool:
    """Whether it depends on the rows which level is better: on AMD's CPUs before Zen 5, whose first one has 32 KB."""
    return target.is_amd and target.caches.first < 48 << 10
