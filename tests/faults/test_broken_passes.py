"""Passes that raise, crash, never end, eat memory or leave nonsense: an error or ATen, and a process that goes on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from mlirc.errors import CompileError
from mlirc.tests.faults.harness import Outcome, error_of

X = torch.randn(20, 20)
FAST = {"worker_timeout": 5.0, "worker_memory_mb": 700}

HEAD = """
import ctypes, os, sys
import mlirc
from mlirc.dialects.mlir import PassManager, func, ir

def block(module):
    return module.body.operations[len(module.body.operations) - 1].regions[0].blocks[0]

@mlirc.register_pass(after="{stage}")
def broken(module):
    if "sin" in str(module):
"""

SOURCES = {
    "raises": "raise KeyError('oops')",
    "exits": "sys.exit(3)",
    "recurses": "(lambda f: f(f))(lambda f: f(f))",
    "leaves invalid IR": "block(module).operations[len(block(module).operations) - 1].operation.erase()",
    "leaves half a function": "[o.operation.erase() for o in list(block(module).operations)[:-1]]",
    "erases everything": "[o.erase() for o in list(module.body.operations)]",
    "aborts": "os.abort()",
    "crashes": "ctypes.string_at(0)",
    "ends the process": "os._exit(7)",
    "never ends": "while True: pass",
    "eats memory": "kept = []\n        while True: kept.append(bytearray(1 << 26))",
    "wants operations from nowhere": (
        "module.context.allow_unregistered_dialects = True\n"
        "        with ir.InsertionPoint.at_block_begin(block(module)), ir.Location.unknown():\n"
        "            ir.Operation.create('nowhere.op')"
    ),
    "calls a function that nobody has": (
        "with ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown():\n"
        "            func.FuncOp('nobody_has_this', ([], []), visibility='private')\n"
        "        with ir.InsertionPoint.at_block_begin(block(module)), ir.Location.unknown():\n"
        "            func.CallOp([], 'nobody_has_this', [])"
    ),
}
ON_A_KERNEL = {
    "raises": "KeyError: 'oops'",
    "exits": "SystemExit: 3",
    "recurses": "RecursionError",
    "leaves invalid IR": "invalid IR",
    "leaves half a function": "killed by SIG|invalid IR",
    "erases everything": "the function of the kernel is gone",
    "aborts": "killed by SIGABRT",
    "crashes": "killed by SIGSEGV",
    "ends the process": "ended with exit code 7",
    "never ends": "time limit of 5 s",
    "eats memory": "MemoryError|more memory|out of memory",
    "wants operations from nowhere": "killed by SIG|nowhere.op",
    "calls a function that nobody has": "unresolved symbol nobody_has_this",
}
ON_A_GRAPH = {
    **{k: v for k, v in ON_A_KERNEL.items() if k not in ("wants operations from nowhere", "calls a function that nobody has")},
    "erases everything": "the module has no @main",
}
STRICT = ("raises", "crashes", "calls a function that nobody has")


def f(x):
    return torch.sin(x) + 1, x @ x.t()


def own_pass(tmp_path: Path, kind: str, stage: str) -> str:
    path = tmp_path / "broken.py"
    path.write_text(HEAD.format(stage=stage) + "        " + SOURCES[kind] + "\n")
    return str(path)


@pytest.mark.parametrize("kind", ON_A_KERNEL)
def test_on_a_kernel(tmp_path, kind):
    options = {**FAST, "passes": [own_pass(tmp_path, kind, "vector")]}
    got = Outcome(f, X, **options)
    torch.testing.assert_close(got.result, f(X), rtol=1e-4, atol=1e-4)
    (text,) = got.warnings
    assert re.search(ON_A_KERNEL[kind], text), text
    assert re.search(r"kernel: k\d\d_", text), text
    reproducer = Path(text.split("reproducer: ")[1].split()[0]).read_text()
    assert "math.sin" in reproducer and reproducer.startswith("// mlirc dump") and "--passes" in reproducer
    assert "aten.sin.default" in got.aten and "aten.mm.default" not in got.aten
    if kind in STRICT:
        error = error_of(f, X, **options)
        assert isinstance(error, CompileError) and error.kernel and error.reproducer


@pytest.mark.parametrize("kind", ON_A_GRAPH)
def test_on_a_graph(tmp_path, kind):
    options = {**FAST, "passes": [own_pass(tmp_path, kind, "fusion" if kind == "never ends" else "linalg")]}
    got = Outcome(f, X, **options)
    torch.testing.assert_close(got.result, f(X), rtol=1e-4, atol=1e-4)
    (text,) = got.warnings
    assert "as a whole" in text and re.search(ON_A_GRAPH[kind], text), text
    if kind in STRICT:
        assert isinstance(error_of(f, X, **options), CompileError)
    # The next compilation knows nothing of it.
    after = Outcome(f, X, **FAST)
    assert not after.warnings and not after.aten


@pytest.mark.parametrize("text", ["import os\nos.abort()", "while True: pass", "raise SystemExit", "import ctypes; ctypes.string_at(0)"])
def test_on_import(tmp_path, text):
    path = tmp_path / "broken.py"
    path.write_text(text)
    got = Outcome(f, X, **FAST, passes=[str(path)])
    torch.testing.assert_close(got.result, f(X), rtol=1e-4, atol=1e-4)
    assert len(got.warnings) == 1 and "as a whole" in got.warnings[0]
    if "while" in text:
        assert f"{path}:1" in got.warnings[0]  # where it was when it was stopped


def test_a_missing_file_is_an_error_whatever_the_options():
    with pytest.raises(Exception, match="cannot read a file of the option `passes`"):
        Outcome(f, X, passes=["/nowhere/mine.py"])


def test_no_place_for_reproducers(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    got = Outcome(f, X, **FAST, passes=[own_pass(tmp_path, "raises", "vector")])
    assert len(got.warnings) == 1 and "KeyError" in got.warnings[0] and "reproducer:" not in got.warnings[0]
    assert "aten.mm.default" not in got.aten


def test_workers_that_cannot_start(monkeypatch):
    """No kernel is at fault, so there is one error and one warning, and the graph goes to ATen at once."""
    from mlirc.runtime import pool, process

    def nothing():
        raise OSError("no Python today")

    monkeypatch.setattr(process, "interpreter", nothing)
    monkeypatch.setattr(pool, "_shared", {})
    got = Outcome(f, X)
    torch.testing.assert_close(got.result, f(X))
    (text,) = got.warnings
    assert "as a whole" in text and "no Python today" in text and "kernel:" not in text
    error = error_of(f, X)
    assert isinstance(error, CompileError) and error.stage == "start"
