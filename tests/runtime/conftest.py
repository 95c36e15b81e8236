"""The pool of compile workers, and jobs for it that misbehave."""

from __future__ import annotations

import sys

import pytest

from mlirc.runtime.pool import Pool

JOBS = """
import os, sys, time

class Unpicklable(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")
        self.handle = lambda: None

class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")

def raise_unpicklable():
    raise Unpicklable("one", "two")

def raise_two_arguments():
    raise TwoArguments("one", "two")

def return_unpicklable():
    return lambda: None

def facts():
    import signal
    return {
        "torch": "torch" in sys.modules,
        "main": getattr(sys.modules["__main__"], "__file__", None),
        "stdin": sys.stdin.read(),
        "sigint": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        "mlirc": sys.modules["mlirc"].__file__,
        "random": sys.modules["random"].__file__,
    }

def say_and_abort():
    print("from Python", flush=True)
    os.write(2, b"from native code\\n")
    os.abort()

def say_and_raise():
    print("said before")
    raise KeyError("k")

def flood():
    while True:
        os.write(1, b"x" * 65535 + b"\\n")

def keep(megabytes):
    global kept
    kept = b"x" * (megabytes << 20)
    return os.getpid()

def mark_and_sleep(path):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(1000)

def bad_alloc():
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\\n  what():  std::bad_alloc\\n")
    os.abort()

def echo(x):
    return x
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """The folder of a module with jobs, importable here and in workers."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "pool_jobs.py").write_text(JOBS)
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def pool(jobs):
    with Pool(workers=2, timeout=60.0, memory_mb=512) as pool:
        pool.warm_up()
        yield pool
