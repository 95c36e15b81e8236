"""Forks, spawned processes, signals and exits, in the middle of compilations and after them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from mlirc.tests.faults.harness import PRELUDE, script, succeeds


def test_data_loader_workers():
    """They call what the parent has compiled, and compile anew; forked ones and spawned ones."""
    out = succeeds("""
        from torch.utils.data import DataLoader, Dataset
        f = check()

        class Data(Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, i):
                x = torch.full((20, 33), float(i))
                return f(x), check(other)(x), x

        for a, b, x in DataLoader(Data(), num_workers=2, multiprocessing_context="fork"):
            torch.testing.assert_close(a[0], net(x[0]))
            torch.testing.assert_close(b[0], other(x[0]))
        print("right")
    """)
    assert out == "right\n"


def test_spawned_processes(tmp_path):
    path = tmp_path / "spawns.py"
    path.write_text(
        PRELUDE
        + "def work(i):\n    check(other)\n    return i\n"
        + "if __name__ == '__main__':\n    check()\n    import multiprocessing as mp\n"
        + "    with mp.get_context('spawn').Pool(2) as pool:\n        print(pool.map(work, [1, 2]))\n"
    )
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=240)
    assert done.stdout == "[1, 2]\n", done.stderr


def test_fork_while_another_thread_compiles():
    out = succeeds("""
        import warnings
        warnings.simplefilter("ignore")
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10**6
        from mlirc.runtime.loader import assemble
        f = check()
        x = torch.randn(20, 33)
        expected = net(x)
        done = threading.Event()

        def compiling():
            n = 0
            while not done.is_set():
                n += 1
                function = eval(f"lambda x: x * {n} + torch.exp(x)")
                check(function)

        def assembling():
            while not done.is_set():
                assemble("define i64 @f(i64 %x) {\\n" + "".join(f"%y{n} = mul i64 %x, {n}\\n" for n in range(2000)) + "ret i64 %y7\\n}")

        threads = [threading.Thread(target=t) for t in (compiling, assembling)]
        for t in threads:
            t.start()
        time.sleep(0.5)
        codes = []
        for n in range(6):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    signal.alarm(60)
                    torch.set_num_threads(1)
                    torch.testing.assert_close(f(x), expected)
                    if n % 2:
                        check(other)
                    code = 0
                finally:
                    os._exit(code)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            time.sleep(0.03 * n)
        done.set()
        for t in threads:
            t.join()
        print(codes)
    """)
    assert out == "[0, 0, 0, 0, 0, 0]\n"


SLOW_PASS = """
import tempfile

def slow(stage):
    "A file with a pass that takes very long."
    path = os.path.join(tempfile.mkdtemp(), "slow.py")
    with open(path, "w") as file:
        file.write("import mlirc, time\\n@mlirc.register_pass(after=" + repr(stage) + ")\\ndef slow(module):\\n    time.sleep(1000)\\n")
    return path
"""


def test_interrupted_compilations():
    """Ctrl-C comes through promptly and leaves no job behind, so that the next compilation has its worker."""
    out = succeeds(
        SLOW_PASS
        + """
def many(x):
    return [torch.sin(x * k).softmax(-1) for k in range(12)]

def press(seconds):
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
check()  # so that everything is imported
for stage in ("fusion", "vector"):
    press(1.0)
    start = time.monotonic()
    try:
        check(passes=[slow(stage)])
    except KeyboardInterrupt:
        print("interrupted")
    check(other)
    print(time.monotonic() - start < 60, len(processes()) <= 1)

# At any other moment of ours: torch's own code loses its modes when it is interrupted.
def ours(frame):
    while frame and f"{os.sep}torch{os.sep}" not in frame.f_code.co_filename:
        if frame.f_code.co_name == "compile_fx":
            return True
        frame = frame.f_back
    return False

def interrupt(number, frame):
    if not compiling:  # it came late, for a compilation that is over
        return
    if ours(frame):
        raise KeyboardInterrupt
    press(0.003)

signal.signal(signal.SIGINT, interrupt)
x = torch.randn(9, 9)
interrupted = 0
for n in range(5):
    torch._dynamo.reset()
    compiling = True
    press(0.15 * n + 0.05)
    try:
        torch.compile(many, backend="mlirc", options={"strict": True, "cache": False, "workers": 1})(x)
    except KeyboardInterrupt:
        interrupted += 1
    compiling = False
    time.sleep(0.02)
print(interrupted > 0)
torch._dynamo.reset()
check(many)
print(len(processes()) <= 1)
"""
    )
    assert out.split() == ["interrupted", "True", "True", "interrupted", "True", "True", "True", "True"]


def test_terminated_compilation():
    """SIGTERM, which Python does not catch: the worker goes too."""
    program = PRELUDE + SLOW_PASS + "print('started', flush=True)\ncheck(passes=[slow('vector')])\n"
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "started\n"
    pids = []
    while not pids:
        pids = _children(parent.pid)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(60) == -signal.SIGTERM
    assert all(_gone(pid) for pid in pids)


def test_exit_while_a_thread_compiles():
    done = script(
        SLOW_PASS
        + """
check()
threading.Thread(target=check, kwargs={"passes": [slow("vector")]}, daemon=True).start()
time.sleep(4.0)
sys.exit(5)
"""
    )
    assert done.returncode == 5 and "Fatal" not in done.stderr, done.stderr


def test_exit_with_live_functions():
    """Compiled functions in modules, threads, caches and reference cycles at the end of the process."""
    done = script("""
        import atexit, gc
        kept = check()
        atexit.register(lambda: kept(torch.randn(20, 33)))
        class Node:
            pass
        node = Node()
        node.self, node.function = node, check(other)
        sys.keep = kept
        threading.Thread(target=time.sleep, args=(0.3,)).start()
        m = torch.nn.Linear(33, 5)
        loss = torch.compile(m, backend="mlirc")(torch.randn(4, 33)).sum()
        sys.exit(7)
    """)
    assert done.returncode == 7 and not done.stderr, done.stderr


def _children(pid):
    tasks = f"/proc/{pid}/task"
    return [int(c) for t in os.listdir(tasks) for c in open(f"{tasks}/{t}/children").read().split()]


def _gone(pid):
    for _ in range(1000):
        if not os.path.exists(f"/proc/{pid}"):
            return True
        time.sleep(0.01)
    return False
