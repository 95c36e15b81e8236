"""What the strategies of all kernels share: sizes that may be symbols, lanes, and when a second thread pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..constants import is_function

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..vectorize.kernel import KernelFunction

WORK_PER_THREAD = 16384
"""Element-operations that are worth waking another thread for: about 5 us at 16 lanes and a few ops per cycle."""

LINE = 64
"""Bytes of a line of the caches."""

PACKED_COLUMNS = 2
"""Vectors of f32 in a block of a packed operand."""


def lanes(kernel: KernelFunction, target: Target) -> int:
    """Lanes of 32 bits; of 64 where the kernel computes in f64."""
    wide = any("f64" in str(v.type) for op in kernel.ops for v in (*op.operands, *op.results))
    return max(target.vector_bits // (64 if wide else 32), 4)


OF_HALVES = " of bf16, computed as the even lanes and the odd ones"
"""Of vectors that are full of 16-bit numbers, which are widened to two of f32 (see `even_odd`)."""


def fills_halves(size: object, lanes: int) -> bool:
    """Whether such vectors, of twice so many lanes, do along a class: not where half of the last one would be past the end, and that is much."""
    return not isinstance(size, int) or size > 4 * lanes or -(-size // lanes) % 2 == 0


def has_functions(kernel: KernelFunction) -> bool:
    """Whether an element takes a chain of tens of instructions somewhere."""
    return any(op.name == "linalg.generic" and is_function(op) for op in kernel.domain.loops)


def known(size: object) -> int:
    """A size, or a guess at a symbol."""
    return size if isinstance(size, int) else 64


def product(classes: list[int], sizes: list[object]) -> int:
    n = 1
    for c in classes:
        n *= known(sizes[c])
    return n


def grain(work: int) -> int:
    """Parallel iterations below which no second thread is worth it, for the element-operations of one."""
    return max(1, WORK_PER_THREAD // max(work, 1))


def why_grain(work: int) -> dict[str, str]:
    return {"grain": f"about {work} element-operations an iteration, and a thread is worth {WORK_PER_THREAD}"}


def why_lanes(target: Target) -> dict[str, str]:
    return {"lanes": f"{target.vector_bits}-bit vectors"}
