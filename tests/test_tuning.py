"""mode="max-autotune": what is measured, once, and kept on disk; and `mlirc dump`, which shows it. No clock decides anything here."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest
import torch

import mlirc
from mlirc import tuning
from mlirc.driver import kernel_cache
from mlirc.lowering.target import Target
from mlirc.options import Options
from mlirc.passes.strategy import Adjustment
from mlirc.runtime import bench
from mlirc.runtime.cache import pack, unpack
from mlirc.tests.passes.strategy.test_blocks import linear
from mlirc.tests.passes.strategy.test_select import row_sums
from mlirc.tests.test_own_pass import dump

MODEL = """
import torch
def f(x, w):
    return torch.relu(x @ w)
"""
X, W = torch.randn(24, 40), torch.randn(40, 64)


@pytest.fixture
def measured(monkeypatch):
    """How many strategies were compared, kernel by kernel; number `winner` is the fastest."""
    seen = []
    winner = 2

    def fake(calls):
        seen.append(len(calls))
        return [[(5.0 if n == winner else 10.0 + n) * 1e-6] * 5 for n in range(len(calls))]

    monkeypatch.setattr(bench, "rounds", fake)
    monkeypatch.setattr(tuning, "_remembered", {})
    return seen


def f(x, w):
    return torch.relu(x @ w)


def compiled(folder, **options):
    """One compilation of `f`; checks the result."""
    torch._dynamo.reset()
    with torch.no_grad():
        call = torch.compile(f, backend="mlirc", options={"mode": "max-autotune", "cache_dir": str(folder), "strict": True, "workers": 1, **options})
        torch.testing.assert_close(call(X, W), f(X, W), rtol=1e-4, atol=1e-4)


def records(folder):
    """The records in a folder, by file."""
    out = {}
    for path in folder.glob("*.kernel"):
        metadata, _ = unpack(kernel_cache(Options(cache_dir=str(folder))).get(path.name.removesuffix(".kernel")))
        if "fields" in metadata:
            out[path] = metadata
    return out


def test_the_mode_sets_the_option():
    assert Options.make(mode="max-autotune").tune and not Options().tune
    assert not Options.make({"tune": False}, "max-autotune").tune
    assert Options(tune=True).key() != Options().key()


def test_a_shape_is_measured_once(measured, tmp_path):
    compiled(tmp_path)
    assert len(measured) == 1 and 4 <= measured[0] <= 8
    (record,) = records(tmp_path).values()
    assert record["fields"] and (record["us"], record["model_us"], record["tried"]) == (5.0, 10.0, measured[0] - 1)
    compiled(tmp_path)
    tuning._remembered.clear()  # another process
    compiled(tmp_path)
    assert len(measured) == 1


def test_without_a_cache_the_process_remembers(measured, tmp_path):
    compiled(tmp_path, cache=False)
    compiled(tmp_path, cache=False)
    assert len(measured) == 1 and not list(tmp_path.iterdir())


def test_the_default_mode_neither_measures_nor_reads(measured, tmp_path):
    compiled(tmp_path)
    kernels = set(tmp_path.glob("*.kernel"))
    compiled(tmp_path, mode="default")
    assert len(measured) == 1
    assert len(set(tmp_path.glob("*.kernel")) - kernels) == 1  # the analytic choice's own object


def test_another_number_of_threads_is_measured_anew(measured, tmp_path):
    before = torch.get_num_threads()
    try:
        for n in (1, 2, 1):
            torch.set_num_threads(n)
            compiled(tmp_path)
    finally:
        torch.set_num_threads(before)
    assert len(measured) == 2 and len(records(tmp_path)) == 2


def test_keys_tell_machines_and_shapes_apart(monkeypatch):
    host, text = Target.host(), linear(24, 40, 64)
    key = tuning.record_key(text, host, 1)
    assert key == tuning.record_key(text, host, 1)
    others = {tuning.record_key(text, host, 2), tuning.record_key(linear(25, 40, 64), host, 1), tuning.record_key(linear(24, 40, 64, "f64"), host, 1)}
    monkeypatch.setattr(tuning, "cpu", lambda: "another CPU")
    others |= {tuning.record_key(text, host, 1), tuning.record_key(text, Target.parse("x86-64-v2"), 1)}
    assert len(others | {key}) == 6


@pytest.mark.parametrize("damage", ["a flipped bit", "half", "nothing left"])
def test_a_damaged_record_is_measured_anew(measured, tmp_path, damage):
    compiled(tmp_path)
    (path,) = records(tmp_path)
    whole = path.read_bytes()
    path.write_bytes({"a flipped bit": whole[:-1] + bytes([whole[-1] ^ 1]), "half": whole[: len(whole) // 2], "nothing left": b""}[damage])
    tuning._remembered.clear()
    compiled(tmp_path)
    assert len(measured) == 2
    assert path.read_bytes() == whole


GOOD = {"name": "k", "fields": [["rows", 2]], "us": 1.0, "model_us": 2.0, "tried": 3}


@pytest.mark.parametrize(
    "wrong", [{}, {**GOOD, "fields": [["rows", "many"]]}, {**GOOD, "fields": 3}, {**GOOD, "us": None}, {**GOOD, "fields": [["rows"]]}, "text"],
    ids=str,
)  # fmt: skip
def test_a_whole_record_that_makes_no_sense_is_none(measured, tmp_path, wrong):
    cache = kernel_cache(Options(cache_dir=str(tmp_path)))
    key = tuning.record_key("text", Target.host(), torch.get_num_threads())
    cache.put(key, b"\xff\xff" if wrong == "text" else pack(wrong, b""))
    assert tuning.recall("text", Target.host(), cache) is None
    cache.put(key, pack(GOOD, b""))
    assert tuning.recall("text", Target.host(), cache) == Adjustment((("rows", 2),), "measured: 1.0 us, analytic choice 2.0 us")


@pytest.mark.parametrize("fields", [[["rows", 99]], [["no_such_field", 1]], [["lanes_first", 7]]], ids=str)
def test_a_record_of_the_impossible_is_left_out(measured, tmp_path, fields):
    compiled(tmp_path)
    (path,) = records(tmp_path)
    kernel_cache(Options(cache_dir=str(tmp_path))).put(path.name.removesuffix(".kernel"), pack({**GOOD, "fields": fields}, b""))
    tuning._remembered.clear()
    compiled(tmp_path)
    assert len(measured) == 1


def test_processes_that_measure_at_once_leave_one_whole_record(tmp_path):
    code = f"""
import torch
from mlirc.runtime import bench
bench.rounds = lambda calls: [[(5.0 if n == 1 else 10.0) * 1e-6] * 5 for n in range(len(calls))]
def f(x, w): return torch.relu(x @ w)
x, w = torch.ones(24, 40), torch.ones(40, 64)
with torch.no_grad():
    got = torch.compile(f, backend="mlirc", options={{"tune": True, "cache_dir": {str(tmp_path)!r}, "strict": True, "workers": 1}})(x, w)
assert (got == 40).all()
"""
    processes = [subprocess.Popen([sys.executable, "-W", "error::RuntimeWarning", "-c", code], stderr=subprocess.PIPE) for _ in range(2)]
    for p in processes:
        _, errors = p.communicate(timeout=500)
        assert p.returncode == 0, errors.decode()
    (record,) = records(tmp_path).values()
    assert record["us"] == 5.0
    assert not [p for p in tmp_path.iterdir() if not p.name.endswith(".kernel")]


def test_symbols_and_other_kernels_keep_the_analytic_choice(measured, tmp_path):
    torch._dynamo.reset()
    call = torch.compile(f, backend="mlirc", dynamic=True, options={"tune": True, "cache_dir": str(tmp_path), "strict": True, "workers": 1})
    torch.testing.assert_close(call(X, W), f(X, W), rtol=1e-4, atol=1e-4)
    assert not measured and not records(tmp_path)
    assert "not measured: its sizes are symbols" in {a.reason for a in tuning._remembered.values()}


def test_only_kernels_with_products_are_asked_about(measured, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "tune", None)
    torch._dynamo.reset()
    call = torch.compile(lambda x: x.exp().sum(-1), backend="mlirc", options={"tune": True, "cache_dir": str(tmp_path), "strict": True, "workers": 1})
    torch.testing.assert_close(call(X), X.exp().sum(-1))
    assert "contraction" not in row_sums(4, 8)


def test_strategies_of_the_user_are_not_measured_against(measured, tmp_path):
    own = tmp_path / "own.py"
    own.write_text("import mlirc\n@mlirc.register_strategy\ndef keep(kernel, target, default):\n    return default\n")
    compiled(tmp_path / "cache", passes=[str(own)])
    assert not measured


def test_a_pinned_kernel_is_not_measured(measured, tmp_path):
    compiled(tmp_path, pin="*_matmul*: rows=3")
    assert not measured


def test_progress_is_shown_on_terminals_only(capfd, monkeypatch):
    with tuning._progress(10) as advance:
        advance(3)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with tuning._progress(10) as advance:
        advance(3)
    assert "measuring kernels" in capfd.readouterr().err
    monkeypatch.setattr(logging.getLogger("mlirc.tuning"), "level", logging.ERROR)
    logging.getLogger("mlirc.tuning").manager._clear_cache()
    with tuning._progress(10) as advance:
        advance(3)
    assert capfd.readouterr().err == ""
    monkeypatch.undo()
    logging.getLogger("mlirc.tuning").manager._clear_cache()
    monkeypatch.setattr(sys, "stderr", None)
    with tuning._progress(10) as advance:
        advance(3)


def test_a_dump_shows_what_was_measured_and_measures_nothing(measured, tmp_path):
    model = tmp_path / "model.py"
    model.write_text(MODEL)
    args = (f"{model}:f", "--input", "24x40xf32", "--input", "40x64xf32", "--stage", "strategy", "--option", f"cache_dir={tmp_path / 'cache'}")
    assert "// the analytic choice: not measured yet on this machine" in dump(*args, "--mode", "max-autotune")
    compiled(tmp_path / "cache")
    (record,) = records(tmp_path / "cache").values()
    output = dump(*args, "--mode", "max-autotune")
    for name, value in record["fields"]:
        assert f"// {name} = {json.dumps(value)}: measured: 5.0 us, analytic choice 10.0 us" in output.replace(" none", " null")
    assert "measured" not in dump(*args)
    assert len(measured) == 1


def test_a_pin_is_obeyed_and_explained(tmp_path):
    model = tmp_path / "model.py"
    model.write_text(MODEL)
    args = (f"{model}:f", "--input", "24x40xf32", "--input", "40x64xf32", "--target", "x86-64-v4")
    output = dump(*args, "--stage", "strategy", "--option", "pin=*_matmul_relu: rows=3, columns=1; k99*: rows=7")
    assert "// rows = 3: pinned by '*_matmul_relu'\n// columns = 1: pinned by" in output and "rows=3, columns=1, " in output
    assert "// rows = 6: 32 registers: 28 for sums, 4 to a row; 24 rows are 4 tiles\n" in dump(*args, "--stage", "strategy")
    assert "rows=99 is impossible for this kernel; valid: 1 to 6" in dump(*args, "--stage", "asm", "--option", "pin=*: rows=99", code=1)
    assert "unknown field 'rowz'; valid fields: rows," in dump(*args, "--option", "pin=*: rowz=9", code=2)


@pytest.mark.parametrize(
    "pin, said", [("*_matmul*: rows=99", "rows=99 is impossible.*valid: 1 to"), ("*: rowz=1", "unknown field 'rowz'"), ("rows=1", "wants 'KERNEL: field=value")]
)
def test_a_wrong_pin_is_an_error_and_no_fallback(tmp_path, pin, said):
    torch._dynamo.reset()
    with pytest.raises(Exception, match=said) as caught:
        torch.compile(f, backend="mlirc", options={"pin": pin, "cache_dir": str(tmp_path), "workers": 1})(X, W)
    error = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(error, mlirc.CompileError) and isinstance(error, ValueError)


def test_pinned_kernels_have_their_own_place_in_the_cache(tmp_path):
    compiled(tmp_path, mode="default")
    before = len(list(tmp_path.glob("*.kernel")))
    for n, pin in enumerate(("*_matmul_relu: rows=3", "*_matmul_relu: rows=4", "nothing: rows=5")):
        compiled(tmp_path, mode="default", pin=pin)
        assert len(list(tmp_path.glob("*.kernel"))) == before + min(n + 1, 2)
