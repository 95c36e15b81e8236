"""A process of its own for each case, with limits on time and memory that end it and everything it has started."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import tempfile
from dataclasses import dataclass

_OUT_OF_MEMORY = ("can't allocate memory", "bad_alloc", "MemoryError", "Cannot allocate memory", "std::length_error")


@dataclass(frozen=True)
class Finished:
    """A process that has ended. `timed_out` if it was ended here; `returncode` as in subprocess (negative: a signal)."""

    stdout: str
    stderr: str
    returncode: int
    timed_out: bool

    @property
    def out_of_memory(self) -> bool:
        """Whether it died for lack of memory: by an error that says so, or killed by the system."""
        return self.returncode == -signal.SIGKILL and not self.timed_out or any(text in self.stderr for text in _OUT_OF_MEMORY)


def limit_memory(gigabytes: float) -> None:
    """Limit the address space of this process and of those that it starts; 0 sets no limit."""
    if gigabytes > 0:
        limit = int(gigabytes * 2**30)
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def die_with_parent() -> None:
    """Let the system kill this process when the one that started it ends, however it ends (Linux only)."""
    set_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def run(command: list[str], environment: dict[str, str], seconds: float) -> Finished:
    """Run a command to its end, or for so many seconds. What it leaves running (compile workers) is killed with it."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, start_new_session=True)
        _running.add(process.pid)
        timed_out = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _kill(process.pid)
            _running.discard(process.pid)
            process.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
        return Finished(texts[0], texts[1], process.returncode, timed_out)


_running: set[int] = set()
"""Leaders of the process groups that `run` waits for, in all threads."""


def stop_all() -> None:
    """End what `run` waits for in other threads: on an interrupt, which the cases' sessions do not get."""
    for group in list(_running):
        _kill(group)


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
