"""Results that are stored past the caches: too large for whoever reads them to find them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...dialects import builders
from .. import structure as st
from ..phases import phases

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..vectorize.kernel import KernelFunction
    from .loops import LoopStrategy

LARGE = 16 << 20
"""Bytes of the smallest ones. A store through the caches reads each line before it is written. `x + 1` in f32, and reading the result then,
in us (Emerald Rapids, one core, whose third level reads 25 GB/s):

    MB      stored    and read      past the caches    and read
     4         469         222                  430         280
     8       1,134         518                  786         753
    16       2,663       1,418                1,549       1,505
    64       9,727       4,565                7,131       4,618
   256      40,527      20,857               29,512      20,615
"""
LARGE_OF_AMD = 32 << 20
"""A third level of so many MB that is nearly as fast as the second has what is smaller. Not measured."""


def streamed(kernel: KernelFunction, plan: LoopStrategy, target: Target) -> list[int]:
    """The numbers of these results. Those that the kernel itself reads again, and those that take the place of what it reads, are not."""
    plain = kernel.domain.kind in ("loops", "rows") and plan.lane is not None and not kernel.overwrites
    if not plain or any(c is not None for c in (plan.split, plan.staged, plan.transposed, plan.interleaved)):
        return []
    walks = phases(kernel.domain, kernel.results)
    last = walks.walks[-1].stores if walks.walks else walks.row_stores
    large = LARGE_OF_AMD if target.fetches_into_first else LARGE
    return [n for n in last if _bytes(kernel, n) >= large and in_whole_vectors(kernel, n, plan)]


def _bytes(kernel: KernelFunction, n: int) -> int:
    """Of a result; 0 where that is not known."""
    total = builders.element_type(kernel.results[n]).width // 8
    for size in st.shape(kernel.results[n]):
        total *= size if size >= 0 else 0
    return total


def in_whole_vectors(kernel: KernelFunction, n: int, plan: LoopStrategy) -> bool:
    """Whether a result whose memory begins with a vector is stored in vectors that all begin a multiple of their size further on."""
    if n in kernel.padded:
        return False
    size = builders.element_type(kernel.results[n]).width // 8
    steps = next((a.steps for a in kernel.accesses.items if a.store and a.value == kernel.results[n]), {})
    walked: Sequence[int] = [c for c in {*plan.parallel, *plan.serial, *plan.inner} if c != plan.lane]
    others = [steps.get(c, 0) for c in walked]
    return size > 0 and steps.get(plan.lane) == 1 and all(isinstance(s, int) and s % plan.lanes == 0 for s in others)  # type: ignore[arg-type]
