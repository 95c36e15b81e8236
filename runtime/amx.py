"""Linux hands the AMX tile registers only to processes that ask for them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys

from ..errors import CompileError

_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XTILEDATA = 18


@functools.cache
def request_tiles() -> None:
    """Ask for the tile data state, once per process; threads and forked children inherit it.

    Raises CompileError if the system refuses.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA):
        reason = os.strerror(ctypes.get_errno())
        raise CompileError(f"the system refuses the use of AMX ({reason}); options={{'target': 'x86-64-v4'}} does without")


def request_tiles_if_any() -> None:
    """The same where it is not known whether the code needs them, nor whether the CPU has them."""
    with contextlib.suppress(CompileError):
        request_tiles()
