"""Forks while other threads compile: the child must not wait for locks whose owners it has no copy of."""

from __future__ import annotations

import functools
import os
import threading

from llvmlite.binding import ffi
from torch._dynamo import convert_frame

from ..runtime import weights


@functools.cache
def prepare() -> None:
    """From now on, a child that was forked at any moment can call compiled functions and compile.

    What a child cannot do, with us or without: run parallel regions on threads after its parent has (a limit of GNU
    OpenMP), unless `torch.set_num_threads(1)` is called in it. DataLoader workers do that.
    """
    if hasattr(os, "register_at_fork"):
        # LLVM is in use for milliseconds, so fork waits until it is not, and the child finds it whole.
        lock = ffi.lib._lock._lock
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    # Held for as long as a compilation takes, too long to wait for. The compilation itself stays behind in the parent.
    convert_frame.compile_lock._at_fork_reinit()  # type: ignore[attr-defined]
    weights._computing = threading.Lock()
