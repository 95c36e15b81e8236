"""A number that changes, nearly always, when weights are written to or lie in other memory: for what `_version` does not count.

It is made from a few words of each weight, and from the place where its storage keeps the address of its memory:

    storage            the address of its memory; zero once the storage is gone, even if another one has the address now
    weight of 4 MB     first word, a word at 3/8, a word at 3/4, last word
    bias of 40 bytes   every word
    scale of 4 bytes   every byte
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .loader import Library, assemble
from .storage import WORD, Storage

if TYPE_CHECKING:
    import torch

SMALL = 64
"""Bytes, up to which every word of a weight is read: they lie in one line of cache, or two."""

_EIGHTHS = (0, 3, 6, 8)
"""Where the words of larger weights lie. Not in the middle, where a row begins: the first column is likelier than others to have no
gradient, like the first row and the last column (the edges of images)."""

_GONE = -1
"""The fingerprint of a tensor without its memory."""


class Samples:
    """Places to look at, of some tensors; `storages` are those of the tensors."""

    __slots__ = ("_table", "storages")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.storages = [Storage(t) for t in tensors]
        table: list[int] = []
        for t, storage in zip(tensors, self.storages):
            start, n = t.data_ptr(), _extent(t)
            last = n - WORD
            words: list[int] = []
            single: list[int] = []
            if last < 0:
                single = list(range(start, start + n))
            elif n <= SMALL:
                words = [*range(start, start + last, WORD), start + last]
            else:
                words = [start + (last if k == 8 else last * k // (8 * WORD) * WORD) for k in _EIGHTHS]
            # The place of an address, and what is there now: without that, nothing else may be read.
            place = storage.place()
            expected = t.untyped_storage().data_ptr() if place else 0
            table += [place, expected, len(words), len(single), *words, *single]
        self._table = (ctypes.c_int64 * len(table))(*table)

    def fingerprint(self) -> int:
        """Of what is there now."""
        found: int = _native()(self._table, len(self.storages), None)
        return found

    def in_place(self) -> bool:
        """Whether the storages are still there, and have the same memory."""
        return all(s.alive() for s in self.storages) and _GONE not in self.each()

    def each(self) -> list[int]:
        """One for each tensor."""
        out = (ctypes.c_int64 * len(self.storages))()
        _native()(self._table, len(out), out)
        return list(out)


def _extent(t: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last one."""
    if not t.numel() or not t.data_ptr():
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))) * t.element_size()


_IR = f"""
define i64 @mlirc_fingerprint(ptr %table, i64 %tensors, ptr %out) {{
entry:
  %wanted = icmp ne ptr %out, null
  br label %tensor
tensor:
  %t = phi i64 [ 0, %entry ], [ %t.next, %stored ]
  %at = phi ptr [ %table, %entry ], [ %at.next, %stored ]
  %total = phi i64 [ 1469598103934665603, %entry ], [ %total.next, %stored ]
  %t.more = icmp slt i64 %t, %tensors
  br i1 %t.more, label %head, label %done
head:
  %where = load ptr, ptr %at
  %expected.slot = getelementptr i64, ptr %at, i64 1
  %expected = load i64, ptr %expected.slot
  %words.slot = getelementptr i64, ptr %at, i64 2
  %words = load i64, ptr %words.slot
  %single.slot = getelementptr i64, ptr %at, i64 3
  %single = load i64, ptr %single.slot
  %places = getelementptr i64, ptr %at, i64 4
  %all = add i64 %words, %single
  %at.next = getelementptr i64, ptr %places, i64 %all
  %unknown = icmp eq ptr %where, null
  br i1 %unknown, label %word, label %storage
storage:
  %address = load i64, ptr %where
  %here = icmp eq i64 %address, %expected
  br i1 %here, label %word, label %mixed
word:
  %i = phi i64 [ 0, %head ], [ 0, %storage ], [ %i.next, %word.body ]
  %h = phi i64 [ %expected, %head ], [ %expected, %storage ], [ %h.next, %word.body ]
  %i.more = icmp slt i64 %i, %words
  br i1 %i.more, label %word.body, label %byte
word.body:
  %i.slot = getelementptr ptr, ptr %places, i64 %i
  %i.place = load ptr, ptr %i.slot
  %i.word = load i64, ptr %i.place, align 1
  %h.mixed = xor i64 %h, %i.word
  %h.next = mul i64 %h.mixed, 1099511628211
  %i.next = add i64 %i, 1
  br label %word
byte:
  %j = phi i64 [ %i, %word ], [ %j.next, %byte.body ]
  %g = phi i64 [ %h, %word ], [ %g.next, %byte.body ]
  %j.more = icmp slt i64 %j, %all
  br i1 %j.more, label %byte.body, label %mixed
byte.body:
  %j.slot = getelementptr ptr, ptr %places, i64 %j
  %j.place = load ptr, ptr %j.slot
  %j.byte = load i8, ptr %j.place
  %j.wide = zext i8 %j.byte to i64
  %g.mixed = xor i64 %g, %j.wide
  %g.next = mul i64 %g.mixed, 1099511628211
  %j.next = add i64 %j, 1
  br label %byte
mixed:
  %found = phi i64 [ {_GONE}, %storage ], [ %g, %byte ]
  %total.mixed = xor i64 %total, %found
  %total.next = mul i64 %total.mixed, 1099511628211
  br i1 %wanted, label %store, label %stored
store:
  %out.slot = getelementptr i64, ptr %out, i64 %t
  store i64 %found, ptr %out.slot
  br label %stored
stored:
  %t.next = add i64 %t, 1
  br label %tensor
done:
  ret i64 %total
}}
"""


@functools.cache
def _native() -> Any:
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    library = Library({"mlirc_fingerprint": assemble(_IR)})
    function = kind(library.address("mlirc_fingerprint"))
    function.library = library  # type: ignore[attr-defined]
    return function
