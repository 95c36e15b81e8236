"""Programs run in a process of their own, so that a crash of the compiled code is a result like any other.

`Executor` is the parent's end; `python -m mlirc.tests.fuzz.executor PARENT` the other: it reads a line of JSON with `source`, runs
it, and writes a line with `kind` (`ok`, or that of a Difference) and `message`.
"""

from __future__ import annotations

import faulthandler
import json
import linecache
import logging
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import warnings

from mlirc.tests.overhead import without_modules, without_profiles
from mlirc.worker import die_with

PROGRAMS_PER_PROCESS = 1000


class Failure(AssertionError):
    """A program that fails: what `kind` of failure, what was said, and the program."""

    def __init__(self, kind: str, message: str, source: str) -> None:
        super().__init__(f"{kind}: {message}\n\n{source}")
        self.kind, self.message, self.source = kind, message, source


class Executor:
    """Runs sources one after the other; starts a new process after a crash, and now and then."""

    def __init__(self, timeout: float = 180.0) -> None:
        self.timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._ran = 0

    def run(self, source: str) -> tuple[str, str]:
        """(kind, message); the kinds of dead processes are `crash` and `timeout` (twice: a busy machine is no finding)."""
        kind, message = self._run(source)
        return self._run(source) if kind == "timeout" else (kind, message)

    def _run(self, source: str) -> tuple[str, str]:
        if self._process is None or self._ran >= PROGRAMS_PER_PROCESS:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        self._ran += 1
        self._process.stdin.write(json.dumps({"source": source}).encode() + b"\n")
        self._process.stdin.flush()
        line, ended = self._answer()
        if line.endswith(b"\n"):
            answer = json.loads(line)
            return answer["kind"], answer["message"]
        if not ended:
            self._process.kill()
        code = self._process.wait()
        self._process = None
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace")[-2000:]
        if not ended:
            return "timeout", f"no answer within {self.timeout:.0f} s"
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return "crash", f"{name}\n{last}"

    def check(self, source: str) -> str | None:
        """Run; raises Failure. None if all is well, or what torch alone does differently from eager mode."""
        kind, message = self.run(source)
        if kind not in ("ok", "by torch"):
            raise Failure(kind, message, source)
        return message if kind == "by torch" else None

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _start(self) -> None:
        self.close()
        self._errors = tempfile.TemporaryFile()
        command = [sys.executable, "-m", "mlirc.tests.fuzz.executor", str(os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        self._ran = 0

    def _answer(self) -> tuple[bytes, bool]:
        """One line, or what there is of it when time is up or the process has ended; whether it has ended."""
        assert self._process is not None and self._process.stdout is not None
        left = self.timeout
        out = b""
        with selectors.DefaultSelector() as s:
            s.register(self._process.stdout, selectors.EVENT_READ)
            while not out.endswith(b"\n") and left > 0:
                # In slices: where one takes long, this process was stopped, and most likely all others were as well.
                start, slice_ = time.monotonic(), min(left, 1.0)
                if s.select(slice_):
                    piece = os.read(self._process.stdout.fileno(), 1 << 16)
                    if not piece:
                        return out, True  # it may take a while yet until it can be waited for
                    out += piece
                left -= min(time.monotonic() - start, slice_)
        return out, False


def execute(source: str, name: str) -> tuple[str, str]:
    """Run a program in this process: (kind, message)."""
    from .check import Difference

    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    try:
        exec(compile(source, name, "exec"), {"__name__": name})
    except Difference as e:
        return ("by torch" if e.by_torch else e.kind), e.message
    except Exception as e:
        return "invalid", f"{type(e).__name__}: {e}"
    finally:
        linecache.cache.pop(name, None)
    return "ok", ""


def main() -> None:
    die_with(int(sys.argv[1]))
    # What is printed on the way must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    import torch._dynamo.guards  # noqa: F401  what is to be left out is there before the first program

    without_profiles()
    for n, line in enumerate(sys.stdin):
        kind, message = execute(json.loads(line)["source"], f"<program {n}>")
        answers.write(json.dumps({"kind": kind, "message": message}) + "\n")
        answers.flush()
        if not n:
            without_modules()


if __name__ == "__main__":
    main()
