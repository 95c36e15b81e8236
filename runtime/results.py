"""Memory of large results that the caller has dropped, for those of the next call.

The system gives and takes memory of this size page by page: the logits of GPT-2 (512 tokens) are 12,500 page faults in bf16, 25 of the
195 ms of a call. So a graph keeps the storages of its large results, and has one again as soon as nobody else has it.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .memory import prefer_huge_pages

LARGE = 4 << 20
"""Bytes from which on a result is worth it: the C library returns such memory to the system when it is freed."""

LARGE_IN_TRAINING = 1 << 18
"""The same for what a step of training saves and makes, hundreds of tensors of all sizes that come and go together: the C library may give
back the end of its heap with them. The gradients of BERT-base in bf16 are up to 53,000 page faults, 80 of the 268 ms of a step."""

MOST = 2
"""Storages that are kept for a result: in `y = f(x)`, the last `y` is there until the next one is."""

_CPU = torch.device("cpu")
dispatch_modes = torch._C._len_torch_dispatch_stack
"""How many dispatch modes (of fake tensors, ...) are in force."""
_make = torch._C._dynamo.guards._empty_strided_cpu
_use_count = getattr(torch._C, "_storage_Use_Count", None)


def new_result(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """As `torch.empty_strided` on the CPU, whatever the default device is; in 0.4 us instead of 1.0 where no dispatch mode (of fake tensors,
    ...) wants to see it."""
    return torch.empty_strided(shape, strides, dtype=dtype, device=_CPU) if dispatch_modes() else _make(shape, strides, dtype)


class ResultMemory:
    """Makes one of the results of a graph, call after call. Thread-safe."""

    def __init__(self, large: int = LARGE) -> None:
        self._large = large
        self._kept: deque[tuple[torch.UntypedStorage, int]] = deque()
        """Storages, and where their memory is: it moves where somebody resizes or shares it."""

    def make(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor with undefined contents; as `torch.empty_strided`, also where that makes no real tensor."""
        found = self._dropped(extent(shape, strides, dtype))
        if found is not None:
            t = new_result((0,), (1,), dtype)
            if not isinstance(t, FakeTensor):
                t.set_(found[0], 0, shape, strides)  # type: ignore[call-overload]
                self._keep(found)
                return t
        t = new_result(shape, strides, dtype)
        if _use_count is not None and not isinstance(t, FakeTensor) and t.nbytes >= self._large:
            storage = t.untyped_storage()
            prefer_huge_pages(storage.data_ptr(), storage.nbytes())
            self._keep((storage, storage.data_ptr()))
        return t

    def _keep(self, entry: tuple[torch.UntypedStorage, int]) -> None:
        self._kept.append(entry)
        while len(self._kept) > MOST:
            try:
                self._kept.popleft()
            except IndexError:  # other threads have them
                return

    def _dropped(self, nbytes: int) -> tuple[torch.UntypedStorage, int] | None:
        """A storage of this size that nobody has, not kept any more."""
        for _ in range(len(self._kept)):
            try:
                entry = self._kept.popleft()
            except IndexError:  # another thread has it
                return None
            storage, address = entry
            if storage.nbytes() != nbytes or storage.data_ptr() != address:
                continue
            del storage
            if _unused(entry):
                return entry
            self._kept.append(entry)
        return None


def most_kept() -> int:
    """Bytes up to which a graph of a training step keeps what it makes: a tenth of what the machine has.

    Above, what a forward graph saves is freed bit by bit while the backward graph runs, which uses that memory for gradients.
    """
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10


def _unused(entry: tuple[Any, int]) -> bool:
    """Whether the entry alone has its storage: no tensor shows it, and nobody has the Python object or waits for its end."""
    return _use_count(entry[0]._cdata) == 1 and sys.getrefcount(entry[0]) == 2 and weakref.getweakrefcount(entry[0]) == 0  # type: ignore[misc]


def extent(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes from the first element to the end of the last."""
    if 0 in shape:
        return 0
    return (1 + sum((n - 1) * stride for n, stride in zip(shape, strides))) * dtype.itemsize
