"""Compile workers and the processes around them: forks, signals, parents that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

import mlirc
from mlirc.runtime.process import BOOT, import_paths
from mlirc.tests.runtime.processes import gone


def in_child(function):
    """Run it in a forked child; whether it returned a true value there."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if function() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_fork_after_use(pool):
    """The child starts workers of its own and leaves the parent's alone, also while they are busy."""
    mine = {pool.submit("os:getpid").result(60), *pool.pids()}
    busy = pool.submit("time:sleep", 0.5)

    def child():
        pid = pool.submit("os:getpid").result(60)
        own = pid in pool.pids() and not mine & set(pool.pids())
        pool.shutdown()
        return own

    assert in_child(child)
    assert busy.result(60) is None
    assert pool.submit("os:getpid").result(60) in mine


@pytest.fixture
def run_parent(jobs, tmp_path):
    """Starts a Python process with a pool of two, one of them in an endless job; the process and the workers' pids.

    `body` is what it does then.
    """
    parents = []

    def run(body):
        script = f"""
            import sys, os, signal, time
            sys.path[:] = {sum(import_paths(), [])!r}
            from mlirc.runtime.pool import Pool
            pool = Pool(2)
            pool.warm_up()
            marker = {str(tmp_path / "pid")!r}
            future = pool.submit("pool_jobs:mark_and_sleep", marker)
            idle = pool.submit("os:getpid").result()
            while not (os.path.exists(marker) and os.path.getsize(marker)):
                time.sleep(0.01)
            print(idle, flush=True)
        """
        command = [sys.executable, "-c", textwrap.dedent(script) + textwrap.dedent(body)]
        parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        parents.append(parent)
        return parent, [int(parent.stdout.readline()), int((tmp_path / "pid").read_text())]

    yield run
    for parent in parents:
        parent.kill()
        parent.communicate(timeout=60)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, "exit", "crash"])
def test_no_worker_outlives_its_parent(run_parent, how):
    bodies = {"exit": "", "crash": "os.abort()"}
    parent, workers = run_parent(bodies.get(how, "time.sleep(1000)"))
    if isinstance(how, signal.Signals):
        parent.send_signal(how)
    parent.communicate(timeout=60)
    assert all(gone(pid) for pid in workers)


def test_forked_child_keeps_no_worker_alive(run_parent):
    """The parent is killed while a child of its own, forked earlier, lives on with copies of its descriptors."""
    body = """
        child = os.fork()
        if child:
            print(child, flush=True)
        os.close(1)
        os.close(2)
        time.sleep(1000)
    """
    parent, workers = run_parent(body)
    child = int(parent.stdout.readline())
    try:
        parent.kill()
        assert all(gone(pid) for pid in workers)
    finally:
        os.kill(child, signal.SIGKILL)


def test_interrupt(run_parent):
    """Ctrl-C interrupts the wait; what waits can be cancelled, the workers live and the pool goes on."""
    body = """
        more = [pool.submit("time:sleep", 1000) for _ in range(5)]
        try:
            print("waiting", flush=True)
            future.result()
        except KeyboardInterrupt:
            cancelled = sum(f.cancel() for f in more)
            print(cancelled, len(pool.pids()), future.running(), flush=True)
            for pid in pool.pids():
                os.kill(pid, signal.SIGINT)
            time.sleep(0.05)
            print(len(pool.pids()))
    """
    parent, workers = run_parent(body)
    parent.stdout.readline()
    parent.send_signal(signal.SIGINT)
    stdout, stderr = parent.communicate(timeout=60)
    cancelled, alive, running, later = stdout.split()
    assert int(cancelled) >= 4, stderr
    assert (alive, running, later) == ("2", "True", "2")
    assert all(gone(pid) for pid in workers)


def test_worker_leaves_if_its_parent_is_already_gone():
    config = {
        "parent": os.getppid(),
        "timeout": None,
        "memory_mb": None,
        "path": import_paths()[0],
        "late": [],
        "init": mlirc.__file__,
        "roots": list(mlirc.__path__),
    }
    done = subprocess.run([sys.executable, "-c", BOOT, json.dumps(config)], stdin=subprocess.PIPE, timeout=60)
    assert done.returncode == 0
