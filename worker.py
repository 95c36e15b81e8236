"""The process main of a compile worker: reads jobs from its stdin, runs them one at a time, writes the results back.

`runtime.pool` starts it. It imports no torch, limits its own address space, and ends when the parent does: at the end of
its stdin, by a signal from the kernel (Linux), or by an alarm if it is busy elsewhere.

A frame is a length (8 bytes, little endian) and a pickle. A job is `("module:function", args)`. Replies are tuples:
`("ready",)` once after start-up, then per job `(status, retire, value, text, trace)` with status `ok` (value: the result),
`raise` (value: the pickled exception or None, text: its type and message, trace: the traceback) or `memory`. `retire` says
that the worker ends after this reply and wants to be replaced.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import pickle
import signal
import struct
import sys
import traceback
from typing import Any

PRELOAD = ("mlirc.dialects.mlir", "llvmlite.binding", "mlirc.driver")
LOG_LIMIT = 256 << 20
LENGTH = struct.Struct("<Q")


def main(config: str) -> None:
    """Serve jobs until the parent closes the channel.

    `config` is JSON: `parent` (process id), `late` (entries for the end of `sys.path`, once the libraries are imported), `memory_mb` (address space on top of what start-up takes, or null) and
    `timeout` (seconds per job, or null; the parent enforces it, the worker's own alarm comes later and only matters to
    an orphan).
    """
    settings = json.loads(config)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(settings["parent"])
    channel = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    faulthandler.enable()
    # What the libraries make stays; to look for garbage in it again and again takes a seventh of their import (0.34 instead of 0.29 s).
    gc.disable()
    for name in PRELOAD:
        # What is broken here is broken for the job too, and there the exception has somebody to go to.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    with contextlib.suppress(Exception):
        importlib.import_module("mlirc.lowering.codegen").own_process()
    gc.freeze()
    gc.enable()
    sys.path += settings["late"]
    limits = _Limits(settings["memory_mb"])
    _write(channel, pickle.dumps(("ready",)))
    alarm = 0.0 if settings["timeout"] is None else settings["timeout"] + 5.0
    while (request := _read(channel)) is not None:
        signal.setitimer(signal.ITIMER_REAL, alarm)
        reply, retire = _run(request, limits)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        sys.stdout.flush()
        sys.stderr.flush()
        _write(channel, reply)
        if retire:
            break
    # Skips the destructors of native libraries, which have nothing to say any more but can crash.
    os._exit(0)


class _Limits:
    """Limits on address space, size of files (the log) and core dumps, where the platform has them."""

    def __init__(self, memory_mb: int | None) -> None:
        self.ceiling: int | None = None
        self.retire_at: int | None = None
        try:
            import resource
        except ImportError:
            return
        self._resource = resource
        self._lower(resource.RLIMIT_CORE, 0)
        self._lower(resource.RLIMIT_FSIZE, LOG_LIMIT)
        used = _address_space()
        if memory_mb is not None and used is not None:
            self.ceiling = used + (memory_mb << 20)
            self.retire_at = used + (memory_mb << 19)
            self._lower(resource.RLIMIT_AS, self.ceiling)

    def _lower(self, which: int, value: int) -> None:
        _, hard = self._resource.getrlimit(which)
        if hard != self._resource.RLIM_INFINITY:
            value = min(value, hard)
        with contextlib.suppress(OSError, ValueError, OverflowError):
            self._resource.setrlimit(which, (value, hard))

    def lift(self) -> None:
        """Allow memory again, to report that there was not enough."""
        if self.ceiling is not None:
            _, hard = self._resource.getrlimit(self._resource.RLIMIT_AS)
            self._resource.setrlimit(self._resource.RLIMIT_AS, (hard, hard))

    def should_retire(self) -> bool:
        """Whether earlier jobs left so much behind that the next one would start with half the memory."""
        used = _address_space() if self.retire_at is not None else None
        return used is not None and self.retire_at is not None and used > self.retire_at


def _run(request: bytes, limits: _Limits) -> tuple[bytes, bool]:
    """One job: the pickled reply, and whether to end after it."""
    try:
        path, args = pickle.loads(request)
        result = _resolve(path)(*args)
        retire = limits.should_retire()
        return pickle.dumps(("ok", retire, result, "", ""), pickle.HIGHEST_PROTOCOL), retire
    except MemoryError:
        limits.lift()
        return pickle.dumps(("memory", True, None, "MemoryError", traceback.format_exc())), True
    except BaseException as error:
        retire = limits.should_retire()
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        return pickle.dumps(("raise", retire, _pickle_exception(error), text, traceback.format_exc())), retire


def _resolve(path: str) -> Any:
    module, _, name = path.partition(":")
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _pickle_exception(error: BaseException) -> bytes | None:
    """The exception as bytes that are known to load again; None if there are none or it must not travel.

    SystemExit and its like would end the parent, which asked for a result.
    """
    if not isinstance(error, Exception):
        return None
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return None
    return data


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux; elsewhere the end of stdin must do)."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _address_space() -> int | None:
    """Bytes of address space in use, None where /proc does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _read(channel: int) -> bytes | None:
    """The next frame's content, None when the parent is gone."""
    header = _read_exactly(channel, LENGTH.size)
    return None if header is None else _read_exactly(channel, LENGTH.unpack(header)[0])


def _read_exactly(channel: int, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            chunk = os.read(channel, min(size - len(data), 1 << 20))
        except ConnectionError:
            return None
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def _write(channel: int, content: bytes) -> None:
    view = memoryview(LENGTH.pack(len(content)) + content)
    while view:
        try:
            view = view[os.write(channel, view) :]
        except ConnectionError:
            os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
