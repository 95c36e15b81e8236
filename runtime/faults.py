"""A handler for SIGSEGV that lets the code at fault go on, and remembers what it did.

Ranges of addresses are watched: a fault in one of them opens the page that it hit and writes the access down, so that the
instruction succeeds the second time; whoever called the code looks afterwards and raises. That needs no jump out of code that
may run on any thread of a pool. Any other fault goes to the handler that was there before, with a line on stderr that names
what was running. Linux on x86-64 only.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Any

from ..errors import CompileError
from .loader import Library, assemble

PAGE = 4096

_CAPACITY = 1 << 16  # ranges, as many as Linux allows mappings by default
_KEPT = 64  # faults between two looks at them
_RANGES_USED, _FAULTS, _NAME, _NAME_LENGTH, _RECORDS = 0, 1, 2, 3, 8
_RANGES = _RECORDS + 2 * _KEPT

# sigaction(2) of glibc: handler, 1024 bits of mask, flags, restorer.
_SIGACTION_BYTES = 152
_FLAGS_AT = 136
_SA_SIGINFO, _SA_ONSTACK = 4, 0x08000000

# In siginfo_t si_addr; in ucontext_t the page fault's error code, whose bit 1 says that it was a write.
_SI_ADDR, _REG_ERR = 16, 192

_IR = """
@state = internal global ptr inttoptr (i64 {state} to ptr)
@old = internal global ptr inttoptr (i64 {old} to ptr)
declare i32 @mprotect(ptr, i64, i32)
declare i32 @sigaction(i32, ptr, ptr)
declare i64 @write(i32, ptr, i64)

define void @mlirc_fault(i32 %signal, ptr %info, ptr %machine) {{
entry:
  %state = load ptr, ptr @state
  %address.at = getelementptr i8, ptr %info, i64 {si_addr}
  %address = load i64, ptr %address.at
  %error.at = getelementptr i8, ptr %machine, i64 {reg_err}
  %error = load i64, ptr %error.at
  %used.at = getelementptr i64, ptr %state, i64 {used}
  %used = load i64, ptr %used.at
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %after, %look ]
  %more = icmp ult i64 %i, %used
  br i1 %more, label %look, label %stranger
look:
  %after = add i64 %i, 1
  %twice = shl i64 %i, 1
  %low.index = add i64 %twice, {ranges}
  %low.at = getelementptr i64, ptr %state, i64 %low.index
  %low = load i64, ptr %low.at
  %high.at = getelementptr i64, ptr %low.at, i64 1
  %high = load i64, ptr %high.at
  %above = icmp uge i64 %address, %low
  %below = icmp ult i64 %address, %high
  %inside = and i1 %above, %below
  br i1 %inside, label %ours, label %next
ours:
  %page = and i64 %address, -{page}
  %page.at = inttoptr i64 %page to ptr
  %failed = call i32 @mprotect(ptr %page.at, i64 {page}, i32 3)
  %opened = icmp eq i32 %failed, 0
  br i1 %opened, label %remember, label %stranger
remember:
  %faults.at = getelementptr i64, ptr %state, i64 {faults}
  %n = atomicrmw add ptr %faults.at, i64 1 seq_cst
  %room = icmp ult i64 %n, {kept}
  br i1 %room, label %record, label %done
record:
  %place = shl i64 %n, 1
  %record.index = add i64 %place, {records}
  %record.at = getelementptr i64, ptr %state, i64 %record.index
  store i64 %address, ptr %record.at
  %second = getelementptr i64, ptr %record.at, i64 1
  store i64 %error, ptr %second
  br label %done
stranger:
  %name.at = getelementptr i64, ptr %state, i64 {name}
  %name = load ptr, ptr %name.at
  %length.at = getelementptr i64, ptr %state, i64 {name_length}
  %length = load i64, ptr %length.at
  %said = call i64 @write(i32 2, ptr %name, i64 %length)
  %old = load ptr, ptr @old
  %restored = call i32 @sigaction(i32 %signal, ptr %old, ptr null)
  br label %done
done:
  ret void
}}
"""


@dataclass(frozen=True)
class Fault:
    """The address at which an access hit a closed page (the first byte of it that did), and whether it was a write."""

    address: int
    write: bool


class Watch:
    """The handler and its table of ranges; there is one in a process, `watch()`."""

    def __init__(self) -> None:
        # The handler reads these without asking anybody, so they stay for good.
        self._state = (ctypes.c_int64 * (_RANGES + 2 * _CAPACITY))()
        self._old = ctypes.create_string_buffer(_SIGACTION_BYTES)
        self._name = b""
        self._lock = threading.Lock()
        self._free: list[int] = []
        text = _IR.format(
            state=ctypes.addressof(self._state), old=ctypes.addressof(self._old), si_addr=_SI_ADDR, reg_err=_REG_ERR, page=PAGE,
            used=_RANGES_USED, faults=_FAULTS, name=_NAME, name_length=_NAME_LENGTH, records=_RECORDS, ranges=_RANGES, kept=_KEPT,
        )  # fmt: skip
        self._library = Library({"mlirc_fault": assemble(text)})
        self._mine = ctypes.create_string_buffer(_SIGACTION_BYTES)
        ctypes.c_int64.from_buffer(self._mine).value = self._library.address("mlirc_fault")
        ctypes.c_int32.from_buffer(self._mine, _FLAGS_AT).value = _SA_SIGINFO | _SA_ONSTACK
        self._sigaction = libc().sigaction

    def install(self) -> None:
        """Make sure that the handler is the one in place: others (faulthandler) may have come after it."""
        now = ctypes.create_string_buffer(_SIGACTION_BYTES)
        self._sigaction(signal.SIGSEGV, None, now)
        if now.raw[:8] != self._mine.raw[:8]:
            ctypes.memmove(self._old, now, _SIGACTION_BYTES)
            self._sigaction(signal.SIGSEGV, self._mine, None)

    def add(self, low: int, high: int) -> int:
        """Watch [low, high); returns the number for `remove`. Raises MemoryError if too many ranges are watched."""
        with self._lock:
            place = self._free.pop() if self._free else self._state[_RANGES_USED]
            if place >= _CAPACITY:
                raise MemoryError(f"more than {_CAPACITY} buffers between guard pages")
            self._state[_RANGES + 2 * place + 1] = high
            self._state[_RANGES + 2 * place] = low
            self._state[_RANGES_USED] = max(self._state[_RANGES_USED], place + 1)
            return place

    def remove(self, place: int) -> None:
        with self._lock:
            self._state[_RANGES + 2 * place + 1] = self._state[_RANGES + 2 * place] = 0
            self._free.append(place)

    def name(self, text: str) -> None:
        """What a fault outside of all ranges is said to have happened in."""
        line = f"mlirc: {text} accesses memory that belongs to no buffer\n".encode()
        # Never a pointer to freed text with the length of another: empty in between.
        self._state[_NAME_LENGTH] = 0
        self._name = line
        self._state[_NAME] = ctypes.cast(ctypes.c_char_p(line), ctypes.c_void_p).value or 0
        self._state[_NAME_LENGTH] = len(line)

    def faults(self) -> list[Fault]:
        """The accesses written down since the last call, and forget them."""
        n = self._state[_FAULTS]
        if n == 0:
            return []
        found = [Fault(self._state[_RECORDS + 2 * i], bool(self._state[_RECORDS + 2 * i + 1] & 2)) for i in range(min(n, _KEPT))]
        self._state[_FAULTS] = 0
        return found


@functools.cache
def watch() -> Watch:
    """The process's handler. Raises CompileError on a platform that it is not made for."""
    if not available():
        raise CompileError("guard pages need Linux on x86-64")
    return Watch()


def available() -> bool:
    """Whether this platform's signal frames are those that the handler knows."""
    return sys.platform == "linux" and ctypes.sizeof(ctypes.c_void_p) == 8 and platform.machine().lower() in ("x86_64", "amd64")


@functools.cache
def libc() -> Any:
    """The C library, with the signatures of what is used of it."""
    c = ctypes.CDLL(None, use_errno=True)
    c.mmap.restype = ctypes.c_void_p
    c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    c.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    c.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    c.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    c.sigaction.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    return c
