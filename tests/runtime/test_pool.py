"""Compile workers: whatever a job does to its process is one clear error here, and the next job runs."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import CancelledError

import pytest

import mlirc
from mlirc.options import Options
from mlirc.runtime.pool import Pool, WorkerError, WorkerTraceback, get_pool
from mlirc.runtime.process import import_paths
from mlirc.tests.runtime.processes import gone


def fails(pool, *job):
    with pytest.raises(WorkerError) as caught:
        pool.submit(*job).result(60)
    assert pool.submit("math:sqrt", 4).result(60) == 2.0
    return caught.value


def wait_for(path):
    for _ in range(3000):
        if path.exists() and path.read_text():
            return int(path.read_text())
        time.sleep(0.01)
    raise AssertionError(f"{path} did not appear")


def test_results(pool):
    assert pool.submit("math:sqrt", 2.25).result(60) == 1.5
    assert pool.submit("os.path:join", "a", "b").result(60) == "a/b"
    assert pool.submit("builtins:str.upper", "a").result(60) == "A"
    assert pool.submit("os:getpid").result(60) in pool.pids()


def test_large_arguments_and_results(pool):
    data = os.urandom(20 << 20)
    assert pool.submit("pool_jobs:echo", data).result(60) == data


def test_hundred_jobs_on_two_workers(pool):
    futures = [pool.submit("pool_jobs:echo", n) for n in range(100)]
    assert [f.result(60) for f in futures] == list(range(100))
    assert len(pool.pids()) == 2


def test_submit_from_threads(pool):
    results: dict[int, list[int]] = {}

    def work(n):
        results[n] = [pool.submit("pool_jobs:echo", n * 100 + i).result(60) for i in range(20)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [n * 100 + i for i in range(20)] for n in range(8)}


def test_worker_has_no_torch_and_nothing_of_the_user(pool):
    facts = pool.submit("pool_jobs:facts").result(60)
    assert os.path.samefile(facts.pop("mlirc"), mlirc.__file__)
    assert "pool_jobs" not in facts.pop("random")
    assert facts == {"torch": False, "main": None, "stdin": "", "sigint": True}


def test_files_in_the_working_directory_do_not_shadow(tmp_path):
    """A script next to files named like modules that a worker imports later than the script's process."""
    for name in ("numpy", "llvmlite", "mlirc", "pickle", "json", "struct", "faulthandler", "worker", "errors"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    script = f"""
        import sys
        script_folder = sys.path.pop(0)
        sys.path[:0] = {sum(import_paths(), [])!r}
        import mlirc.runtime.pool
        sys.path.insert(0, script_folder)
        if __name__ == "__main__":
            with mlirc.runtime.pool.Pool(1) as pool:
                print(pool.submit("math:sqrt", 4).result(60))
        else:
            raise SystemExit("the script was imported")
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("2.0\n", 0), done.stderr


def test_exceptions_come_back(pool):
    with pytest.raises(TypeError, match="must be real number") as caught:
        pool.submit("math:sqrt", "x").result(60)
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    with pytest.raises(KeyError) as caught:
        pool.submit("pool_jobs:say_and_raise").result(60)
    assert "said before" in str(caught.value.__cause__)
    assert "in say_and_raise" in str(caught.value.__cause__)
    with pytest.raises(ModuleNotFoundError):
        pool.submit("no_such_module:f").result(60)
    with pytest.raises(AttributeError):
        pool.submit("math:no_such_function").result(60)


@pytest.mark.parametrize("name", ["raise_unpicklable", "raise_two_arguments"])
def test_exceptions_that_cannot_be_pickled(pool, name):
    with pytest.raises(RuntimeError, match="one and two") as caught:
        pool.submit(f"pool_jobs:{name}").result(60)
    assert f"in {name}" in str(caught.value.__cause__)


def test_a_job_cannot_end_its_parent(pool):
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        pool.submit("sys:exit", 3).result(60)


def test_unpicklable_arguments_and_results(pool):
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pool.submit("pool_jobs:echo", lambda: None)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pool.submit("pool_jobs:return_unpicklable").result(60)
    assert pool.submit("pool_jobs:echo", 1).result(60) == 1


def test_crashes(pool):
    error = fails(pool, "ctypes:string_at", 0)
    assert (error.kind, "SIGSEGV" in error.reason) == ("crash", True)
    error = fails(pool, "pool_jobs:say_and_abort")
    assert (error.kind, "SIGABRT" in error.reason) == ("crash", True)
    assert "from Python" in error.log
    assert "from native code" in str(error)
    error = fails(pool, "os:_exit", 7)
    assert (error.kind, "exit code 7" in error.reason) == ("crash", True)
    again = pickle.loads(pickle.dumps(error))
    assert (again.kind, str(again)) == (error.kind, str(error))


def test_killed_in_a_job(pool, tmp_path):
    """Only the job that ran there fails; those that wait go on."""
    victims = [pool.submit("pool_jobs:mark_and_sleep", str(tmp_path / f"pid{n}")) for n in range(2)]
    waiting = [pool.submit("pool_jobs:echo", n) for n in range(10)]
    os.kill(wait_for(tmp_path / "pid0"), signal.SIGKILL)
    assert [f.result(60) for f in waiting] == list(range(10))
    assert not victims[1].done()
    os.kill(wait_for(tmp_path / "pid1"), signal.SIGKILL)
    for victim in victims:
        error = victim.exception(60)
        assert isinstance(error, WorkerError)
        assert (error.kind, "SIGKILL" in error.reason) == ("crash", True)


def test_killed_while_idle(pool):
    pool.submit("math:sqrt", 1).result(60)
    for pid in pool.pids():
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)
    assert [f.result(60) for f in [pool.submit("pool_jobs:echo", n) for n in range(4)]] == list(range(4))


def test_memory(pool):
    error = fails(pool, "builtins:bytearray", 10 << 30)
    assert (error.kind, "512 MiB" in error.reason) == ("memory", True)
    assert fails(pool, "pool_jobs:bad_alloc").kind == "memory"


def test_worker_that_keeps_memory_is_replaced(pool):
    pid = pool.submit("pool_jobs:keep", 300).result(60)
    assert gone(pid)
    assert fails(pool, "pool_jobs:keep", 600).kind == "memory"


def test_job_that_never_finishes():
    with Pool(workers=1, timeout=1.0, memory_mb=None) as pool:
        stuck = pool.submit("time:sleep", 1000)
        fine = pool.submit("os:getpid")
        error = stuck.exception(60)
        assert isinstance(error, WorkerError)
        assert (error.kind, "limit of 1 s" in error.reason) == ("timeout", True)
        assert fine.result(60) in pool.pids()


def test_job_that_prints_without_end(pool):
    with pytest.raises(OSError) as caught:
        pool.submit("pool_jobs:flood").result(60)
    assert caught.value.errno == errno.EFBIG
    assert len(str(caught.value.__cause__)) < 10000
    assert pool.submit("math:sqrt", 4).result(60) == 2.0


def test_shutdown():
    pool = Pool(workers=1)
    with pool:
        running = pool.submit("time:sleep", 1000)
        waiting = pool.submit("time:sleep", 1000)
        while not running.running():
            time.sleep(0.01)
        cancelled = pool.submit("time:sleep", 1000)
        assert cancelled.cancel()
        assert not running.cancel()
    error = running.exception(60)
    assert isinstance(error, WorkerError)
    assert error.kind == "shutdown"
    with pytest.raises(CancelledError):
        waiting.result(60)
    assert pool.pids() == []
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit("math:sqrt", 1)


def test_worker_that_cannot_start(monkeypatch, tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/false\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "exec_prefix", "/nowhere")
    monkeypatch.setattr(sys, "base_exec_prefix", "/nowhere")
    monkeypatch.setattr(sys, "_base_executable", "")
    for executable in ("/nonexistent/python", "/bin/false", "", None, str(broken)):
        monkeypatch.setattr(sys, "executable", executable)
        with Pool(workers=1) as pool:
            error = pool.submit("math:sqrt", 1).exception(60)
            assert isinstance(error, WorkerError)
            assert error.kind == "start"


def test_a_worker_that_never_gets_ready_is_waited_for_once(monkeypatch, tmp_path):
    idle = tmp_path / "python"
    idle.write_text("#!/bin/sh\nexec sleep 1000\n")
    idle.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(idle))
    monkeypatch.setattr("mlirc.runtime.process.START_SECONDS", 0.7)
    with Pool(workers=1) as pool:
        errors = [pool.submit("math:sqrt", 1).exception(60) for _ in range(2)]
        assert [e.kind for e in errors] == ["start", "start"]
        assert "was not ready" in errors[0].reason and "an earlier one was not ready" in errors[1].reason
        assert pool.pids() == []


@pytest.mark.parametrize("executable", ["", None, "/usr/bin/blender", "/nonexistent/python3"])
def test_python_is_found_where_it_is_embedded(monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    with Pool(workers=1) as pool:
        assert pool.submit("math:sqrt", 4).result(60) == 2.0


def test_abandoned_jobs(pool, tmp_path):
    """What runs is killed, what waits is cancelled, and neither is in the way of the next job."""
    marker = tmp_path / "pid"
    running = [pool.submit("pool_jobs:mark_and_sleep", str(marker)), pool.submit("time:sleep", 1000)]
    waiting = [pool.submit("time:sleep", 1000) for _ in range(3)]
    pid = wait_for(marker)
    pool.abandon([*running, *waiting])
    assert pool.submit("math:sqrt", 4).result(60) == 2.0
    assert gone(pid)
    assert all(f.cancelled() for f in waiting)
    assert isinstance(running[0].exception(60), WorkerError)
    pool.abandon(running)
    assert len(pool.pids()) == 2


def test_very_many_folders_of_libraries(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, *(f"/nowhere/{n}/{'library/' * 30}" for n in range(2000))])
    with Pool(workers=1) as pool:
        assert pool.submit("math:sqrt", 4).result(60) == 2.0
        error = pool.submit("os:abort").exception(60)
    assert "nowhere" not in error.log


def test_idle_workers_end(monkeypatch):
    """And later jobs start new ones, also those that come at the very moment."""
    monkeypatch.setattr("mlirc.runtime.pool.IDLE_SECONDS", 0.05)
    with Pool(workers=2) as pool:
        first = [pool.submit("os:getpid").result(60) for _ in range(2)]
        for pid in first:
            assert gone(pid)
        assert pool.pids() == []
        for n in range(12):
            time.sleep(0.047 + 0.0005 * n)
            assert pool.submit("math:sqrt", n * n).result(60) == n


def test_a_job_that_is_stopped_says_where_it_was():
    with Pool(workers=1, timeout=1.0) as pool:
        error = pool.submit("time:sleep", 1000).exception(60)
    assert error.kind == "timeout" and "in _run" in error.log


@pytest.mark.parametrize("seconds", [float("inf"), 1e30])
def test_limits_that_are_none(seconds):
    pool = get_pool(Options(workers=1, worker_timeout=seconds, worker_memory_mb=1 << 60))
    assert pool.timeout is None
    assert pool.submit("math:sqrt", 4).result(60) == 2.0
    pool.shutdown()


def test_get_pool_is_shared():
    options = Options(workers=1, worker_timeout=50.0)
    assert get_pool(options) is get_pool(Options(workers=1, worker_timeout=50.0, strict=True))
    assert get_pool(options) is not get_pool(Options(workers=1, worker_timeout=51.0))
    first = get_pool(options)
    first.shutdown()
    assert get_pool(options) is not first
    assert get_pool(Options(worker_timeout=0.0, worker_memory_mb=0)).timeout is None
