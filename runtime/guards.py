"""Memory between guard pages: an access outside of a buffer is found, and named, where it happens.

A page is the least that can be closed, so one end of a buffer is exact to the byte and the other has up to a page of slack.
Placed at the "end", an overrun is found at once and slack lies in front; placed at the "start", it is the other way round.
Slack holds a pattern that shows whether somebody wrote there. The buffer itself starts as bytes of 0xFF (NaN, -1), so that
reads of what nobody has written show in the results.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from typing import Any

from ..errors import GuardPageError
from .faults import PAGE, Fault, libc, watch

GUARD = 1 << 16
"""Bytes of closed pages on each side: an access further out than this may hit other memory unseen."""

PLACEMENTS = ("end", "start")

_FRESH, _SLACK = 0xFF, 0xA5
_NONE, _READ, _WRITE = 0, 1, 3
_PRIVATE, _ANONYMOUS, _NORESERVE = 0x02, 0x20, 0x4000
_DONTNEED = 4


class GuardedBlock:
    """`nbytes` bytes at `address`, known in messages as `name`; the memory goes with the last reference.

    The address is a multiple of `alignment`, a power of two up to the page size. Raises MemoryError.
    """

    __slots__ = ("__weakref__", "_base", "_finalizer", "_first", "_pages", "_place", "address", "name", "nbytes", "state")

    def __init__(self, nbytes: int, name: str, placement: str = "end", alignment: int = 1) -> None:
        self.name, self.nbytes = name, nbytes
        padding = -nbytes % alignment if placement == "end" else 0
        self._pages = -(-(nbytes + padding) // PAGE) * PAGE
        total = self._pages + 2 * GUARD
        base = libc().mmap(None, total, _NONE, _PRIVATE | _ANONYMOUS | _NORESERVE, -1, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"cannot allocate {nbytes} bytes between guard pages for {name}")
        self._base: int = base
        self._first: int = base + GUARD
        place = watch().add(base, base + total)
        self._finalizer = weakref.finalize(self, _free, base, total, place)
        self.address = self._first
        if placement == "end":
            self.address += self._pages - nbytes - padding
        self.state = "closed"
        _live[self.address] = self
        self.open()

    def open(self) -> None:
        """Allow access, and forget the contents."""
        self._protect(_WRITE, "open")
        ctypes.memset(self._first, _SLACK, self._pages)
        ctypes.memset(self.address, _FRESH, self.nbytes)

    def freeze(self) -> None:
        """Forbid writing."""
        self._protect(_READ, "frozen")

    def close(self) -> None:
        """Forbid access and free the memory; the addresses stay taken."""
        self._protect(_NONE, "closed")
        if self._pages:
            libc().madvise(self._first, self._pages, _DONTNEED)

    def check(self) -> None:
        """Raises GuardPageError if somebody has written into the slack."""
        if self.state != "open":
            return
        before, after = self.address - self._first, self._first + self._pages - self.address - self.nbytes
        for start, n, side in ((self._first, before, "before the start"), (self.address + self.nbytes, after, "past the end")):
            if n and ctypes.string_at(start, n) != bytes((_SLACK,)) * n:
                changed = [i for i, byte in enumerate(ctypes.string_at(start, n)) if byte != _SLACK]
                at = changed[-1] - n if side == "before the start" else self.nbytes + changed[0]
                raise GuardPageError(f"writes {side} of {self.name} ({self.nbytes} bytes), at byte {at}")

    def blame(self, fault: Fault) -> str:
        """What a fault in the range of this block did wrong."""
        at = fault.address - self.address
        if 0 <= at < self.nbytes:
            why = "which it may only read" if self.state == "frozen" else "before its first or after its last use"
        else:
            why = "outside of it"
        return f"{'writes' if fault.write else 'reads'} {self.name} ({self.nbytes} bytes) at byte {at}, {why}"

    def holds(self, address: int) -> bool:
        """Whether an address lies in this block or the pages around it."""
        return self._base <= address < self._base + self._pages + 2 * GUARD

    def _protect(self, access: int, state: str) -> None:
        if self._pages and libc().mprotect(self._first, self._pages, access):
            raise MemoryError(f"cannot protect the pages of {self.name}")
        self.state = state


_live: weakref.WeakValueDictionary[int, GuardedBlock] = weakref.WeakValueDictionary()


def _free(base: int, total: int, place: int) -> None:
    watch().remove(place)
    libc().munmap(base, total)


def check(what: str, addresses: Iterable[int] = ()) -> None:
    """Raises GuardPageError, saying that `what` did it, for the first fault since the last look, and for a write into the slack
    of the blocks at `addresses`.
    """
    for fault in watch().faults():
        block = next((b for b in list(_live.values()) if b.holds(fault.address)), None)
        raise GuardPageError(f"{what} {block.blame(fault) if block else f'accesses the address {fault.address:#x}'}")
    for address in addresses:
        block = _live.get(address)
        if block is not None:
            try:
                block.check()
            except GuardPageError as error:
                raise GuardPageError(f"{what} {error}") from None


def extent(tensor: Any) -> int:
    """Bytes from a tensor's first element to the end of its last one."""
    if tensor.numel() == 0:
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))) * tensor.element_size()


def copies(tensors: list[Any], names: list[str], written: set[int], placement: str) -> list[tuple[int, GuardedBlock, int]]:
    """Guarded copies of tensors' memory, as (address of the copy, its block, address of what the block is a copy of).

    Tensors that share bytes share a copy; one in which none of the positions `written` lies is frozen.
    """
    ranges = [(t.data_ptr(), t.data_ptr() + extent(t)) for t in tensors]
    found: list[Any] = [None] * len(tensors)
    for group in _sharing(ranges):
        start, end = ranges[group[0]][0], max(ranges[i][1] for i in group)
        name = " = ".join(names[i] for i in group)
        block = GuardedBlock(end - start, name, placement, max(tensors[i].element_size() for i in group))
        ctypes.memmove(block.address, start, end - start)
        if not written.intersection(group):
            block.freeze()
        for i in group:
            found[i] = block.address + ranges[i][0] - start, block, start
    return found


def _sharing(ranges: list[tuple[int, int]]) -> list[list[int]]:
    """Numbers of ranges, those that overlap directly or through others in one group, by address. Empty ones are alone."""
    groups: list[list[int]] = []
    end = 0
    for i in sorted((i for i, (low, high) in enumerate(ranges) if low < high), key=ranges.__getitem__):
        low, high = ranges[i]
        if low >= end:
            groups.append([])
        groups[-1].append(i)
        end = max(end, high)
    return groups + [[i] for i, (low, high) in enumerate(ranges) if low == high]
