"""Memory for intermediates: where in the arena each buffer lies, and the arenas themselves."""

from __future__ import annotations

import ctypes
import mmap
import sys
from bisect import insort
from collections.abc import Sequence

import sympy

from .abi import ALIGNMENT
from .faults import libc
from .plan import ArenaBuffer, Expr

# From this many bytes per unit on, a size is rounded up per unit (at most 6% lost) so that different sizes share memory.
_WIDE = 1024


class RoundUp(sympy.Function):
    """RoundUp(x, m): the least multiple of m that is not below x. Unevaluated while x has symbols in it."""

    nargs = (2,)
    is_integer = True
    is_nonnegative = True

    @classmethod
    def eval(cls, x: sympy.Expr, multiple: sympy.Expr) -> sympy.Expr | None:
        if x.is_Integer and multiple.is_Integer:
            return sympy.Integer(_round_up(int(x), int(multiple)))
        return None


def plan_offsets(buffers: Sequence[ArenaBuffer], alignment: int = ALIGNMENT) -> tuple[list[Expr], Expr]:
    """Byte offsets of `buffers` in one arena, and the arena's size in bytes.

    Two buffers whose lifetimes touch never overlap, whatever values the symbols take (sizes are not negative); every
    offset is a multiple of `alignment`. Buffers are planned in groups that lie one after another: all static sizes; per
    symbolic factor, all sizes that are a large integer times that factor (768*s0 and 3072*s0); and equal small symbolic
    sizes. In a group, offsets are found by "Greedy by Size for Offset Calculation" (Pisarchyk & Lee, Efficient Memory
    Management for Deep Neural Net Inference, 2020), in units of the common factor.
    """
    groups: dict[Expr, list[tuple[int, int]]] = {}
    for number, buffer in enumerate(buffers):
        unit, count = _unit(buffer.nbytes, alignment)
        groups.setdefault(unit, []).append((number, count))
    offsets: list[Expr] = [0] * len(buffers)
    base: Expr = 0
    # Static sizes first, so that offsets in there stay plain integers.
    for unit in sorted(groups, key=lambda unit: unit != 1):
        members = groups[unit]
        found, total = _greedy_by_size([(count, buffers[n].first, buffers[n].last) for n, count in members])
        for (number, _), offset in zip(members, found):
            offsets[number] = base + offset * unit
        base = base + total * unit
    return offsets, base


def _unit(nbytes: Expr, alignment: int) -> tuple[Expr, int]:
    """Split a size into (unit, count) with unit * count >= nbytes and a multiple of `alignment`."""
    if isinstance(nbytes, int) or nbytes.is_Integer:
        return 1, _round_up(int(nbytes), alignment)
    content, factor = nbytes.primitive()
    if content.is_Integer and content >= _WIDE and factor.is_integer is not False:
        return factor, _round_up(int(content), alignment)
    return RoundUp(nbytes, alignment), 1


def _greedy_by_size(blocks: list[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Offsets for blocks (size, first, last), largest first, each in the tightest gap that is free over its lifetime."""
    offsets = [0] * len(blocks)
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), by offset
    total = 0
    for i in sorted(range(len(blocks)), key=lambda i: (-blocks[i][0], blocks[i][1])):
        size, first, last = blocks[i]
        if size == 0:
            continue
        best, best_gap, cursor = -1, 0, 0
        for offset, end, other_first, other_last in placed:
            if other_first <= last and first <= other_last:
                gap = offset - cursor
                if gap >= size and (best < 0 or gap < best_gap):
                    best, best_gap = cursor, gap
                cursor = max(cursor, end)
        if best < 0:
            best = cursor
        offsets[i] = best
        insort(placed, (best, best + size, first, last))
        total = max(total, best + size)
    return offsets, total


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def prefer_huge_pages(address: int, nbytes: int) -> None:
    """Ask the system for huge pages, as far as memory that is not written yet has whole ones. Without effect where it has none."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    first, end = _round_up(address, HUGE_PAGE), (address + nbytes) // HUGE_PAGE * HUGE_PAGE
    if first < end:
        libc().madvise(first, end - first, mmap.MADV_HUGEPAGE)


HUGE_PAGE = 2 << 20


class Block:
    """Some writable bytes, page-aligned, given back to the system with the last reference."""

    __slots__ = ("_map", "_view", "address", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = _round_up(max(nbytes, 1), mmap.PAGESIZE)
        # Private: after a fork the child must not write into its parent's arena.
        private = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
        try:
            self._map = mmap.mmap(-1, self.nbytes, **private)
        except OSError as error:
            raise MemoryError(f"cannot allocate {nbytes} bytes for intermediates: {error}") from None
        self._view = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._view)
        if self.nbytes >= 2 * HUGE_PAGE:
            prefer_huge_pages(self.address, self.nbytes)


class ArenaPool:
    """Blocks for calls in flight: `take` one for a call, `give` it back after it. Thread-safe.

    It keeps about as many blocks as calls were ever in flight at once, and frees them when it goes itself.
    """

    def __init__(self) -> None:
        self._free: list[Block] = []

    def take(self, nbytes: int) -> Block:
        """A block of at least `nbytes` bytes (0 is fine), its contents undefined. Raises MemoryError."""
        free = self._free
        too_small = []
        try:
            # pop and append are atomic: no lock. The block given back last is the warmest in the caches.
            while (block := free.pop()).nbytes < nbytes:
                too_small.append(block)
        except IndexError:
            # One that is too small makes room for its larger successor.
            block = None
            del too_small[:1]
        if too_small:
            free.extend(too_small)
        return block or Block(nbytes)

    def give(self, block: Block) -> None:
        """Take back a block for a later call."""
        self._free.append(block)
