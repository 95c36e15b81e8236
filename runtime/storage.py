"""Torch's storages, seen from outside: whether they are still there, and where their memory is."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

WORD = 8

_WORDS = 6
"""Of a StorageImpl, which is longer: among the first of them is the address of its memory."""


class Storage:
    """The storage of a tensor, held weakly: its memory may go, but no other storage gets the same `id` meanwhile."""

    __slots__ = ("_weak", "id")

    def __init__(self, tensor: torch.Tensor) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self._weak = StorageWeakRef(tensor.untyped_storage())
        self.id: int = self._weak.cdata

    def alive(self) -> bool:
        return not self._weak.expired()

    def place(self) -> int:
        """The address of the word that says where the memory is, zero if it has none; 0 if this torch has it elsewhere."""
        word = _address_word()
        return 0 if word is None else self.id + word * WORD

    def move(self, lender: Any) -> None:
        """Give a storage that lives in memory of others a copy of its own, which `lender`, the object that the storage holds, takes
        along: all tensors that show it go on with that."""
        import torch

        storage = torch.UntypedStorage._new_with_weak_ptr(self.id)  # type: ignore[attr-defined]
        if storage is not None:
            lender.copy = copy = storage.clone()
            ctypes.c_int64.from_address(self.place()).value = copy.data_ptr()


def movable() -> bool:
    """Whether storages can be moved: it is known where this torch keeps their address."""
    return _address_word() is not None


@functools.cache
def _address_word() -> int | None:
    """Which word of a StorageImpl is the address of its memory; None if this torch has it elsewhere."""
    import torch

    found = set(range(_WORDS))
    for size in (24, 4096):
        tensor = torch.zeros(size, dtype=torch.uint8, device="cpu")
        storage = Storage(tensor)
        words = (ctypes.c_int64 * _WORDS).from_address(storage.id)
        address = tensor.data_ptr()
        found &= {i for i, word in enumerate(words) if word == address}
        del tensor
        found &= {i for i, word in enumerate(words) if word == 0}
    return min(found, default=None)
