"""Runs jobs in worker processes: each under a time limit; one that dies is a row, and the next gets a new process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .work import serve

Job = tuple[str, str, str]
"""(name, dtype, mode)"""
START_SECONDS = 180.0
START_TRIES = 3
JOBS_PER_PROCESS = 400
"""Then the process is replaced, so that leaks of torch's do not add up."""


class Runner:
    """`jobs` processes that answer `work`, each job within `timeout` seconds."""

    def __init__(self, processes: int, timeout: float) -> None:
        self.processes = processes
        self.timeout = timeout

    def run(self, work: Sequence[Job], done: Callable[[dict[str, Any]], None]) -> None:
        """Run all jobs; `done` gets each row, in one thread at a time. Raises what `done` raises, after stopping."""
        left = deque(work)
        lock = threading.Lock()
        errors: list[BaseException] = []

        def loop() -> None:
            worker: _Worker | None = None
            served = 0
            try:
                while not errors:
                    with lock:
                        if not left:
                            break
                        job = left.popleft()
                    if worker is None or served >= JOBS_PER_PROCESS:
                        if worker is not None:
                            worker.stop()
                        worker, served = _start(), 0
                    row, alive = worker.call(job, self.timeout)
                    served += 1
                    if not alive:
                        worker.stop()
                        worker = None
                    with lock:
                        done(row)
            except BaseException as e:
                errors.append(e)
            finally:
                if worker is not None:
                    worker.stop()

        threads = [threading.Thread(target=loop) for _ in range(self.processes)]
        for t in threads:
            t.start()
        try:
            for t in threads:
                t.join()
        except BaseException as e:
            errors.append(e)
            for t in threads:
                t.join()
        if errors:
            raise errors[0]


def _start() -> "_Worker":
    """A new worker process; a machine short of memory or time may need several tries."""
    for _ in range(START_TRIES - 1):
        with contextlib.suppress(RuntimeError, EOFError, OSError):
            return _Worker()
    return _Worker()


class _Worker:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.log = tempfile.NamedTemporaryFile("r", suffix=".log")
        self.process = context.Process(target=_with_log, args=(theirs, self.log.name), daemon=True)
        self.process.start()
        theirs.close()
        if not self.connection.poll(START_SECONDS):
            said = self._said()
            self.stop()
            raise RuntimeError(f"a worker process did not start:\n{said}")
        self.connection.recv()

    def call(self, job: Job, timeout: float) -> tuple[dict[str, Any], bool]:
        """(row, whether the process can take another job)."""
        row: dict[str, Any] = dict(zip(("op", "dtype", "mode"), job), outcome="crash", aten={}, detail="", sample="", samples=0, seconds=0)
        try:
            self.connection.send(job)
            if not self.connection.poll(timeout):
                return {**row, "outcome": "timeout", "detail": f"more than {timeout:g} s", "seconds": timeout}, False
            return self.connection.recv(), True
        except (EOFError, OSError):
            self.process.join(5)
            code = self.process.exitcode
            how = signal.Signals(-code).name if code is not None and code < 0 else f"status {code}"
            return {**row, "detail": f"the process died: {how}\n{self._said()}"}, False

    def _said(self) -> str:
        return Path(self.log.name).read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        """End the process and the compile workers that it started."""
        with contextlib.suppress(OSError):
            self.connection.send(None)
        self.process.join(1)
        if self.process.is_alive() and self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
            self.process.join(10)
        self.connection.close()
        self.log.close()


def _with_log(connection: Any, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    serve(connection)
