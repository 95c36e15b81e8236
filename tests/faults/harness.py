"""What the tests of faults share: compiling with warnings caught, scripts in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from typing import Any

import torch

import mlirc
from mlirc.frontend.report import listening

PRELUDE = """
import os, signal, subprocess, sys, threading, time
import torch

def net(x):
    return (torch.sin(x) + 1).softmax(-1)

def other(x):
    return (x * 3).cumsum(0).tanh()

def check(function=net, strict=True, shape=(20, 33), **options):
    x = torch.randn(shape)
    f = torch.compile(function, backend="mlirc", options={"cache": False, "strict": strict, "workers": 1, **options})
    torch.testing.assert_close(f(x), function(x), rtol=1e-4, atol=1e-4)
    return f

def processes(pid=None):
    "Ids of the children of a process, its threads' included."
    tasks = f"/proc/{pid or os.getpid()}/task"
    return [int(c) for t in os.listdir(tasks) for c in open(f"{tasks}/{t}/children").read().split()]
"""


def script(
    body: str, *flags: str, shell: str = "", env: dict[str, str] | None = None, cwd: Any = None, prelude: str = PRELUDE,
    timeout: float = 240.0,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run `body` after the prelude in a fresh interpreter; `shell` comes before it in the same shell (limits, closed files)."""
    program = prelude + textwrap.dedent(body)
    command = [sys.executable, *flags, "-c", program]
    if shell:
        command = ["/bin/bash", "-c", f'{shell}\nexec "$@"', "bash", *command]
    where = os.path.dirname(os.path.dirname(os.path.abspath(mlirc.__file__)))
    path = os.pathsep.join(filter(None, [where, os.environ.get("PYTHONPATH")]))
    full = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "2", **(env or {})}
    return subprocess.run(command, env=full, cwd=cwd, capture_output=True, text=True, timeout=timeout)


def succeeds(body: str, *flags: str, **kwargs: Any) -> str:
    """The output of a script that ends well and says nothing of Python exceptions or crashes."""
    done = script(body, *flags, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "Fatal" not in done.stderr, done.stderr
    return done.stdout


class Outcome:
    """A compiled call: its result, mlirc's warnings, and the ops left to ATen."""

    def __init__(self, function: Any, *args: Any, **options: Any) -> None:
        torch._dynamo.reset()
        with warnings.catch_warnings(record=True) as seen, listening() as reports:
            warnings.simplefilter("always")
            self.function = torch.compile(function, backend="mlirc", options={"cache": False, "workers": 1, "strict": False, **options})
            self.result = self.function(*args)
        self.warnings = [str(w.message) for w in seen if str(w.message).startswith("mlirc")]
        self.aten = sorted(a.op for r in reports for a in r.aten)


def error_of(function: Any, *args: Any, **options: Any) -> Exception:
    """What the compiler raises with the option `strict`."""
    torch._dynamo.reset()
    f = torch.compile(function, backend="mlirc", options={"cache": False, "workers": 1, "strict": True, **options})
    try:
        f(*args)
    except Exception as e:
        inner: Exception = getattr(e, "inner_exception", e)
        return inner
    raise AssertionError("nothing was raised")
