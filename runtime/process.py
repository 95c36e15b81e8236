"""One compile worker process, seen from the parent: start, call, output, end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from typing import BinaryIO

LENGTH = struct.Struct("<Q")
START_SECONDS = 120.0
LOG_TAIL = 4096
TICK_SECONDS = 0.5
LONGEST_ARGUMENT = 100_000
"""Linux takes 128 KiB. Longer settings (`sys.path` may have a folder for each of many libraries) are left in the log."""
# Everything else in the environment that starts with PYTHON is for the user's program (paths, debugging, start-up files).
KEPT_VARIABLES = {"PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE"}
# The package is loaded from where the parent has it, however it was installed and whatever lies in the working directory.
BOOT = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import json
text = sys.argv[1]
if text.isdigit():
    import os
    text = os.pread(1, int(text), 0).decode()
    os.ftruncate(1, 0)
config = json.loads(text)
sys.path[:] = config["path"]
import importlib.util
spec = importlib.util.spec_from_file_location("mlirc", config["init"], submodule_search_locations=config["roots"])
sys.modules["mlirc"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["mlirc"])
from mlirc.worker import main
main(text)
"""


class Silent(Exception):
    """A worker gave no reply: it passed its time (`timed_out`) or died, before it was ready (`starting`) or in a job."""

    def __init__(self, timed_out: bool, starting: bool) -> None:
        super().__init__(timed_out, starting)
        self.timed_out = timed_out
        self.starting = starting


class WorkerProcess:
    """A worker, the socket to it, and the file that takes its output. Only the thread that made it may call it.

    Raises OSError if it cannot be started. `timeout` (seconds) and `memory_mb` are what the worker is told of its limits.
    """

    def __init__(self, timeout: float | None, memory_mb: int | None) -> None:
        python = interpreter()
        libraries, users = import_paths()
        package = sys.modules[__name__.partition(".")[0]]
        config = {
            "parent": os.getpid(),
            "timeout": timeout,
            "memory_mb": memory_mb,
            "path": libraries,
            "late": users,
            "init": os.path.abspath(str(package.__file__)),
            "roots": [os.path.abspath(root) for root in package.__path__],
        }
        self._ready = False
        self._killed = False
        self._log = _open_log()
        self._socket, theirs = socket.socketpair()
        try:
            settings = json.dumps(config)
            if len(settings) > LONGEST_ARGUMENT:
                settings = str(self._log.write(settings.encode()))
            self._popen = subprocess.Popen(
                [python, "-c", BOOT, settings],
                stdin=theirs.fileno(),
                stdout=self._log,
                stderr=self._log,
                env=_environment(),
                start_new_session=True,  # out of reach of the terminal's Ctrl-C
            )
        except BaseException:
            self._socket.close()
            self._log.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def alive(self) -> bool:
        return not self._killed and self._popen.poll() is None

    def call(self, payload: bytes, timeout: float | None) -> bytes:
        """Send a job and wait for its reply, at most `timeout` seconds after the worker is up. Raises Silent."""
        if not self._ready:
            self._receive(time.monotonic() + START_SECONDS)
            self._ready = True
        with contextlib.suppress(OSError):
            self._log.truncate(0)
        deadline = None if timeout is None else time.monotonic() + timeout
        self._send(payload, deadline)
        return self._receive(deadline)

    def output(self) -> str:
        """The end of what the worker printed during its last job, native output included."""
        try:
            size = os.fstat(self._log.fileno()).st_size
            tail = os.pread(self._log.fileno(), LOG_TAIL, max(0, size - LOG_TAIL))
        except (OSError, ValueError):
            return ""
        text = tail.decode("utf-8", "replace")
        return text.partition("\n")[2] if size > LOG_TAIL else text

    def kill(self) -> None:
        """Have the process die; any thread may ask."""
        self._killed = True
        with contextlib.suppress(OSError):
            self._popen.kill()

    def interrupt(self) -> None:
        """Have the process say where it is, in its output, and die."""
        with contextlib.suppress(OSError):
            self._popen.send_signal(signal.SIGABRT)

    def end(self, grace: float = 0.0) -> int:
        """Wait `grace` seconds for the process to end by itself, then kill it; its exit code, negative for a signal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(grace)
        self.kill()
        return self._popen.wait()

    def close(self) -> None:
        """End the process and free what this side holds."""
        self._socket.close()
        self.end()
        self._log.close()

    def abandon(self) -> None:
        """In a forked child: close the copies of what belongs to the parent, and do not wait for its child."""
        self._popen.returncode = 0
        for file in (self._socket, self._log):
            with contextlib.suppress(OSError):
                file.close()

    def _send(self, content: bytes, deadline: float | None) -> None:
        view = memoryview(LENGTH.pack(len(content)) + content)
        no_signal = getattr(socket, "MSG_NOSIGNAL", 0)  # the user's program may let SIGPIPE kill it
        while view:
            self._wait_at_most(deadline)
            try:
                view = view[self._socket.send(view, no_signal) :]
            except (TimeoutError, BlockingIOError):
                if not self.alive():
                    raise Silent(False, not self._ready) from None
            except OSError:
                raise Silent(False, not self._ready) from None

    def _receive(self, deadline: float | None) -> bytes:
        (size,) = LENGTH.unpack(self._receive_exactly(LENGTH.size, deadline))
        return self._receive_exactly(size, deadline)

    def _receive_exactly(self, size: int, deadline: float | None) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        dead = False
        while view:
            self._wait_at_most(0.0 if dead else deadline, even_late=dead)
            try:
                count = self._socket.recv_into(view)
            except (TimeoutError, BlockingIOError):
                # A process forked elsewhere may hold a copy of the other end, so the end of the stream may never come.
                if dead:
                    raise Silent(False, not self._ready) from None
                dead = not self.alive()
                continue
            except OSError:
                count = 0
            if count == 0:
                raise Silent(False, not self._ready)
            view = view[count:]
        return bytes(data)

    def _wait_at_most(self, deadline: float | None, even_late: bool = False) -> None:
        """Let the next socket operation block for a tick or until the deadline; Silent when that has passed."""
        left = TICK_SECONDS if deadline is None else min(TICK_SECONDS, deadline - time.monotonic())
        if left <= 0.0 and not even_late:
            raise Silent(True, not self._ready)
        self._socket.settimeout(max(left, 0.0))


def interpreter() -> str:
    """The Python that runs workers. Raises OSError if none is found.

    `sys.executable` is empty or some other program where Python is embedded in one, or does not exist any more.
    """
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    places = [os.path.join(prefix, "bin", name) for prefix in (sys.exec_prefix, sys.base_exec_prefix)]
    candidates = [sys.executable, *places, getattr(sys, "_base_executable", None)]
    for path in candidates:
        if path and "python" in os.path.basename(path).lower() and os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise OSError(f"no Python to run it with: sys.executable is {sys.executable!r}, and there is none in {', '.join(places)}")


def import_paths() -> tuple[list[str], list[str]]:
    """This process's `sys.path` for a worker: (libraries, the script's folder and the working directory).

    The second come last, and after the libraries are imported, so that files of the user's that are named like one do not take
    its place. (Any module comes before a package without `__init__.py`, such as torch_mlir, wherever they lie.)
    """
    try:
        here = [os.getcwd()]
    except OSError:  # removed, as folders of tests and jobs are: what is relative to it is gone too
        here = []
    known = [e for e in sys.path if isinstance(e, str) and (here or os.path.isabs(e))]
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    scripts = [] if main is None or not (here or os.path.isabs(main)) else [os.path.dirname(os.path.realpath(main))]
    users = {*here, *scripts}
    entries = list(dict.fromkeys(map(os.path.abspath, known)))
    return [e for e in entries if os.path.realpath(e) not in users], [e for e in entries if os.path.realpath(e) in users]


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") or k in KEPT_VARIABLES}
    # Sets of strings iterate in the same order in every worker, so the same kernel gives the same bytes; and libraries
    # that start a thread per core on import would spend the limit of address space on their stacks.
    return {**kept, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _open_log() -> BinaryIO:
    """An anonymous file in append mode; in memory where possible, because a full disk is no reason to fail."""
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):
            return os.fdopen(_appending(os.memfd_create("mlirc-worker-log")), "w+b", buffering=0)
    file = tempfile.TemporaryFile("w+b", buffering=0)
    _appending(file.fileno())
    return file


def _appending(fd: int) -> int:
    import fcntl

    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd
