"""Results that are stored past the caches: too large for whoever reads them to find them there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...dialects import builders
from ...dialects.mlir import ir
from ...lowering.caches import Caches
from .. import structure as st
from ..phases import phases
from .common import LINE

if TYPE_CHECKING:
    from ..vectorize.kernel import KernelFunction
    from .contractions import ContractionStrategy
    from .loops import LoopStrategy

LARGE = 16 << 20
"""Bytes of the smallest ones. A store through the caches reads each line before it is written. `x + 1` in f32, and reading the result then,
in us, one core of an Emerald Rapids, whose third level reads 25 GB/s, and of a Zen 4, of whose 32 MB others use a part:

    MB      stored    and read      past the caches    and read          Zen 4
     4         469         222                  430         280            108      46       154     137
     8       1,134         518                  786         753            359     162       315     372
    12                                                                     926     387       677     611
    16       2,663       1,418                1,549       1,505          1,298     743       929     829
    32                                                                   3,506   1,962     2,415   1,927
    64       9,727       4,565                7,131       4,618          6,902   3,953     4,499   3,872
   256      40,527      20,857               29,512      20,615
"""
LARGE_OF_TILES, APART = 4 << 20, 2048
"""The same for what products on AMX return, whose rows are so many bytes apart: the unit waits for stores, which wait for lines, and rows
that are a multiple of 2048 bytes apart evict one another. In parts of the time of stores through the caches, on a Granite Rapids, by columns,
the bytes of a row, and MB of results:

    1024 behind 1024     2048     4    0.79          4096 behind 1024     8192    4    0.81
    1024 behind 479      2048     4    0.65          8192 behind 2048    16384    8    0.79
    2304 behind 768      4608     9    0.68          3072 behind  768     6144   12    0.70

What the next kernel reads is another matter: its memory serves one kernel after the other, so that the caches have it. Past the caches
five perceptrons of 512 to 2048 rows, 768 or 1024 columns and 3 to 16 MB between two products take 0 to 6% longer, with as much noise.
"""
ROWS_OF_SYMBOL = 512
"""What a symbolic size is taken for, of a result that is returned."""
WHY_STREAMED = "no cache has them when they are read, and a store past the caches does not read the line first"


def streamed_by_loops(kernel: KernelFunction, plan: LoopStrategy) -> list[int]:
    """The numbers of these results, but for those that the kernel itself reads again."""
    if not (large := _large(kernel)) or kernel.domain.kind not in ("loops", "rows") or plan.lane is None:
        return []
    if any(c is not None for c in (plan.split, plan.staged, plan.transposed, plan.interleaved)):
        return []
    walks = phases(kernel.domain, kernel.results)
    last = walks.walks[-1].stores if walks.walks else walks.row_stores
    size = plan.merged.get(plan.lane, kernel.domain.sizes[plan.lane])
    if not isinstance(size, int) or size < plan.lanes:
        return []
    # Rows along the lanes that are reduced one by one: the next vector is stored a reduction later.
    together = plan.lanes * plan.unroll if plan.inner and plan.lane not in plan.inner else None
    walked = {*plan.parallel, *plan.serial, *plan.inner}
    return [n for n in large if n in last and _in_lines(kernel, n, plan.lane, walked, plan.lanes, together)]


def streamed_by_product(kernel: KernelFunction, plan: ContractionStrategy) -> list[int]:
    """The numbers of these results of a product or a convolution."""
    if plan.lane is None or plan.turned or plan.dot is not None or len(kernel.domain.siblings) > 1:
        return []
    walked, together = set(kernel.domain.rows), plan.lanes * plan.columns
    large = _large(kernel)
    if plan.tiles and plan.row is not None:
        apart = {n: (_steps(kernel, n).get(plan.row) or 0) * _width(kernel, n) for n in kernel.returned}
        large = [n for n in _large(kernel, LARGE_OF_TILES) if n in large or apart.get(n, 0) >= APART]
    return [n for n in large if _in_lines(kernel, n, plan.lane, walked, plan.lanes, together)]


def matters_if_returned(value: ir.Value) -> bool:
    """Whether a product's result is so large that it may matter whether its memory is new: no smaller than the second-level caches of CPUs
    with AVX-512. Kernels of others are the same whether they are the last of a graph or not."""
    return returned_bytes(value) >= Caches().second


def returned_bytes(value: ir.Value) -> int:
    """Of a result that is returned."""
    sizes = [ROWS_OF_SYMBOL if n < 0 else n for n in st.shape(value)]
    return math.prod(sizes) * builders.element_type(value).width // 8


def _large(kernel: KernelFunction, least: int = LARGE) -> list[int]:
    """The results that no cache has later; quickly asked, since few kernels have any. What takes the place of an argument is in one already."""
    return [] if kernel.overwrites else [n for n in range(len(kernel.results)) if _bytes(kernel, n) >= least]


def _steps(kernel: KernelFunction, n: int) -> dict[int, int | None]:
    """Elements from place to place of a result along each class."""
    return next((a.steps for a in kernel.accesses.items if a.store and a.value == kernel.results[n]), {})


def _width(kernel: KernelFunction, n: int) -> int:
    """Bytes of an element."""
    return builders.element_type(kernel.results[n]).width // 8


def _in_lines(kernel: KernelFunction, n: int, lane: int, walked: set[int], lanes: int, together: int | None) -> bool:
    """Whether a result is stored in whole vectors (next to each other along the lanes, and along other classes a multiple of a vector further
    on), and of these `together` elements at once, which are whole lines; None: one vector after the other."""
    steps = next((a.steps for a in kernel.accesses.items if a.store and a.value == kernel.results[n]), {})
    others = [steps.get(c, 0) for c in walked if c != lane]
    vectors = steps.get(lane) == 1 and all(s is not None and s % lanes == 0 for s in others)
    lines = together is None or together * _width(kernel, n) % LINE == 0
    return n not in kernel.padded and vectors and lines


def _bytes(kernel: KernelFunction, n: int) -> int:
    """Of a result; 0 where that is not known."""
    shape = st.shape(kernel.results[n])
    return math.prod(shape) * _width(kernel, n) if min(shape, default=0) >= 0 else 0
