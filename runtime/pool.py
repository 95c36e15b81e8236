"""Worker processes that run pure functions apart from this one: started lazily, reused, limited in time and memory.

A compiler that aborts, never ends or eats all memory takes a worker with it and becomes a `WorkerError` here. The workers
import no torch and none of the user's modules; `worker.py` is their main.

Each worker is served by a daemon thread of this process, which starts it, sends it one job at a time and replaces it. The
thread lives as long as its worker because the kernel ties a worker's life to the thread that started it (PR_SET_PDEATHSIG); both
end when there has been no job for a while.
"""

from __future__ import annotations

import atexit
import os
import pickle
import re
import signal
import subprocess
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ..options import Options
from .process import START_SECONDS, Silent, WorkerProcess

MOST_WORKERS = 16
"""Workers unless more are asked for."""
IDLE_SECONDS = 300.0
"""A worker without a job for so long ends: it holds about 100 MB, and most programs compile at their start only."""
LONGEST_SECONDS = 1e8
"""A limit beyond this is none: timers do not take it."""

_OUT_OF_MEMORY = re.compile(r"bad_alloc|out of memory|cannot allocate memory|allocation failed|MemoryError", re.IGNORECASE)


class WorkerError(RuntimeError):
    """A job got no answer from its worker.

    `kind` says why: `timeout`, `memory`, `crash` (the worker died; `reason` names the signal), `start` (it could not be
    started) or `shutdown` (the pool was closed meanwhile). `log` is the end of what the worker printed.
    """

    def __init__(self, kind: str, reason: str, log: str = "") -> None:
        self.kind = kind
        self.reason = reason
        self.log = log
        super().__init__(f"{reason}\nThe worker's last output:\n{log}" if log else reason)

    def __reduce__(self) -> tuple[type[WorkerError], tuple[str, str, str]]:
        return WorkerError, (self.kind, self.reason, self.log)


class WorkerTraceback(Exception):
    """The cause of an exception that was raised in a worker: its traceback and output there, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass
class _Job:
    path: str
    payload: bytes
    future: Future[Any]


@dataclass
class _Outcome:
    """Of one job: a result or an exception, and whether the worker can take another one."""

    result: Any = None
    error: BaseException | None = None
    reusable: bool = False


class Pool:
    """`workers` processes (0: one per core, at most `MOST_WORKERS`) that each run one job at a time, at most `timeout` seconds (None: no limit).

    A worker may use `memory_mb` MiB of address space on top of what it has after start-up (None: no limit). Thread-safe.
    After a fork of this process the child's pool is empty and starts workers of its own; futures of the parent's jobs
    are never resolved in the child.
    """

    def __init__(self, workers: int = 0, timeout: float | None = 120.0, memory_mb: int | None = 4096) -> None:
        self.workers = workers if workers > 0 else default_workers()
        self.timeout = timeout
        self.memory_mb = memory_mb
        self._closed = self._exiting = False
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._threads: list[threading.Thread] = []
        self._processes: set[WorkerProcess] = set()
        self._running: dict[Future[Any], WorkerProcess] = {}
        self._idle = 0
        self._start_error = ""
        self._hopeless = False

    @property
    def closed(self) -> bool:
        return self._closed

    def submit(self, function_path: str, *args: object) -> Future[Any]:
        """Run `module:function(*args)` in a worker.

        The module must be importable without this process's `__main__`; arguments and result are pickled. The future
        gets the result, the exception that the function raised (a RuntimeError with its text if it cannot be pickled; the
        worker's traceback is its cause), or a `WorkerError`. It can be cancelled until the job starts. Raises whatever
        pickling the arguments raises, and RuntimeError on a pool that was shut down.
        """
        job = _Job(function_path, pickle.dumps((function_path, args), pickle.HIGHEST_PROTOCOL), Future())
        with self._changed:
            if self._closed:
                raise RuntimeError("mlirc: the pool of compile workers was shut down")
            self._queue.append(job)
            if len(self._queue) > self._idle and len(self._threads) < self.workers:
                self._start_thread()
            self._changed.notify()
        return job.future

    def warm_up(self) -> None:
        """Start all workers now, without waiting for them."""
        with self._changed:
            while not self._closed and len(self._threads) < self.workers:
                self._start_thread()

    def pids(self) -> list[int]:
        """Process ids of the workers that run at the moment."""
        return sorted(process.pid for process in list(self._processes) if process.alive())

    def abandon(self, futures: Iterable[Future[Any]]) -> None:
        """Nobody wants these jobs any more: those that wait are cancelled, the workers of those that run are killed."""
        wanted = [f for f in futures if not f.cancel()]
        with self._changed:
            for future in wanted:
                if future in self._running:
                    self._running[future].kill()

    def shutdown(self, at_exit: bool = False) -> None:
        """Kill the workers. Jobs that wait are cancelled, jobs that run fail with kind `shutdown`.

        `at_exit`, no job comes to an end: only daemon threads can still wait for one, and Python ends those that wake up now
        where they stand, which aborts the process if that is below C++ code (torch's, as a rule).
        """
        with self._changed:
            self._closed, self._exiting = True, at_exit
            waiting, self._queue = self._queue, deque()
            processes, threads = list(self._processes), list(self._threads)
            self._changed.notify_all()
        for job in waiting if not at_exit else ():
            job.future.cancel()
        for process in processes:
            process.kill()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout=5.0)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._serve, name="mlirc-worker", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _serve(self) -> None:
        """One thread: keeps a worker and feeds it."""
        process = self._spawn()
        while (job := self._next()) is not None:
            if job.future.set_running_or_notify_cancel():
                if process is None or not process.alive():
                    self._discard(process)
                    process = self._spawn()
                outcome = self._attempt(process, job)
                if self._exiting:
                    break
                if not outcome.reusable:
                    self._discard(process)
                    process = None
                if outcome.error is not None:
                    job.future.set_exception(outcome.error)
                else:
                    job.future.set_result(outcome.result)
                # The replacement starts up while the caller looks at the outcome.
                process = process or self._spawn()
                del outcome
            # While it waits, the thread must not keep the last job's arguments and result alive.
            del job
        self._discard(process)

    def _next(self) -> _Job | None:
        """The next job; None if this thread and its worker shall end."""
        with self._changed:
            self._idle += 1
            late = False
            while not (self._queue or self._closed or late):
                late = not self._changed.wait(IDLE_SECONDS)
            self._idle -= 1
            if self._closed:
                return None
            if not self._queue:
                self._threads.remove(threading.current_thread())
                return None
            return self._queue.popleft()

    def _attempt(self, process: WorkerProcess | None, job: _Job) -> _Outcome:
        if process is None:
            return _Outcome(error=WorkerError("start", f"mlirc: cannot start a compile worker: {self._start_error}"))
        with self._changed:
            self._running[job.future] = process
        try:
            reply = process.call(job.payload, self.timeout)
        except Silent as silent:
            return _Outcome(error=self._explain(process, job, silent))
        finally:
            with self._changed:
                self._running.pop(job.future, None)
        try:
            status, retire, value, text, trace = pickle.loads(reply)
        except Exception as error:
            return _Outcome(error=RuntimeError(f"mlirc: the result of {job.path} cannot be unpickled: {error!r}"))
        if status == "ok":
            return _Outcome(result=value, reusable=not retire)
        if status == "memory":
            reason = f"mlirc: {job.path} wants more memory than its worker may use ({self.memory_mb} MiB)"
            return _Outcome(error=WorkerError("memory", reason, process.output() + trace))
        return _Outcome(error=_revive(value, text, trace, process.output()), reusable=not retire)

    def _explain(self, process: WorkerProcess, job: _Job, silent: Silent) -> WorkerError:
        """Why there was no answer. Ends the process."""
        if silent.timed_out:
            process.interrupt()
        code = process.end(grace=0.0 if self._closed else 2.0)
        log = process.output()
        if self._closed:
            return WorkerError("shutdown", f"mlirc: the pool was shut down while {job.path} ran", log)
        if silent.starting:
            how = f"was not ready after {START_SECONDS:g} s" if silent.timed_out else f"{_how_died(code)} while it started"
            if silent.timed_out:  # and so would the next one be: one wait of that length is enough
                self._hopeless, self._start_error = True, f"an earlier one {how}"
            return WorkerError("start", f"mlirc: a compile worker {how}", log)
        if silent.timed_out or code == -signal.SIGALRM:
            return WorkerError("timeout", f"mlirc: {job.path} was stopped after its time limit of {self.timeout:g} s", log)
        died = f"mlirc: the worker that ran {job.path} {_how_died(code)}"
        if self.memory_mb is not None and code < 0 and _OUT_OF_MEMORY.search(log):
            return WorkerError("memory", f"{died}, out of memory (its limit: {self.memory_mb} MiB)", log)
        return WorkerError("crash", died, log)

    def _spawn(self) -> WorkerProcess | None:
        if self._closed or self._hopeless:
            return None
        try:
            process = WorkerProcess(self.timeout, self.memory_mb)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._start_error = str(error)
            return None
        self._processes.add(process)
        if self._closed:  # shutdown may have looked before it was there to be killed
            process.kill()
        return process

    def _discard(self, process: WorkerProcess | None) -> None:
        if process is not None:
            process.close()
            self._processes.discard(process)

    def _after_fork(self) -> None:
        """In the child: the processes, threads, locks and jobs are the parent's; begin anew."""
        for process in self._processes:
            process.abandon()
        self._reset()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_shared: dict[tuple[int, float | None, int | None], Pool] = {}
_shared_lock = threading.Lock()


def get_pool(options: Options) -> Pool:
    """The process-wide pool for these options' number of workers and limits (0 or less, or years: no limit)."""
    workers = options.workers if options.workers > 0 else default_workers()
    timeout = options.worker_timeout if 0 < options.worker_timeout < LONGEST_SECONDS else None
    memory_mb = options.worker_memory_mb if options.worker_memory_mb > 0 else None
    key = (workers, timeout, memory_mb)
    with _shared_lock:
        pool = _shared.get(key)
        if pool is None or pool.closed:
            pool = _shared[key] = Pool(workers, timeout, memory_mb)
        return pool


def default_workers() -> int:
    """One for each core that this process may run on, but a container may be given less than the cores that it sees."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_WORKERS)


def _revive(data: bytes | None, text: str, trace: str, output: str) -> BaseException:
    """The exception that a worker sent, or a RuntimeError with its text, caused by the worker's traceback."""
    try:
        error = RuntimeError(text) if data is None else pickle.loads(data)
    except Exception:
        error = RuntimeError(text)
    assert isinstance(error, BaseException)
    error.__cause__ = WorkerTraceback(f"{trace}\nThe worker's last output:\n{output}" if output else trace)
    return error


def _how_died(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


def _after_fork_in_child() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for pool in list(_pools):
        pool._after_fork()


def _shutdown_all() -> None:
    for pool in list(_pools):
        pool.shutdown(at_exit=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_shutdown_all)
