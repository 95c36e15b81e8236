"""The results file and the table: what was written is read back, what has no explanation is named; dead processes are rows."""

from __future__ import annotations

import json
import os
import signal

import pytest

from mlirc.tests.opinfo import explained, table
from mlirc.tests.opinfo.__main__ import read_rows
from mlirc.tests.opinfo.run import _Worker


def row(op, dtype, mode, outcome, aten=None, detail=""):
    return {"op": op, "dtype": dtype, "mode": mode, "outcome": outcome, "aten": aten or {}, "detail": detail, "sample": "", "samples": 2}


ROWS = [
    row("sort", "f32", "forward", "aten", {"aten.sort.default": "sorting"}),
    row("sort", "i64", "forward", "aten", {"aten.sort.default": "sorting"}),
    row("sort", "f32", "gradient", "compiled"),
    row("exp", "f32", "forward", "differs", detail="output: 2 instead of 1"),
    row("exp", "bf16", "forward", "crash", detail="the process died: SIGSEGV\nmany lines"),
    row("exp", "f64", "forward", "raises", detail="Traceback (most recent call last):\n  File x\nValueError: no"),
]


def test_a_table_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "table.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in table.lines(ROWS)))
    found = table.read(path)
    assert found == {(r["op"], r["dtype"], r["mode"]): (r["outcome"], frozenset(r["aten"])) for r in ROWS}
    assert len(path.read_text().splitlines()) == 3
    assert '"raises": "ValueError: no"' in path.read_text()


def test_the_last_row_of_a_pair_counts_and_a_torn_line_does_not(tmp_path):
    path = tmp_path / "rows.jsonl"
    again = row("exp", "f32", "forward", "compiled")
    path.write_text("".join(json.dumps(r) + "\n" for r in [*ROWS, again]) + '{"op": "exp", "dty')
    found = read_rows(path)
    assert len(found) == len(ROWS) and found["exp", "f32", "forward"] == again


def test_what_nobody_has_explained_is_named(monkeypatch):
    monkeypatch.setattr(table, "generated", lambda: frozenset({"aten.sort.default", "aten.exp.default"}))
    assert [p for p in table.problems(ROWS) if "exp f32 forward differs" in p]
    monkeypatch.setitem(explained.DIFFERS, ("exp", "f32 f64"), "because")
    assert table.problems(ROWS) == []
    left = [row("exp", "f32", "forward", "aten", {"aten.exp.default": "no lowering"})]
    assert len(table.problems(left)) == 1


def test_the_summary_counts_what_inductor_supports():
    text = table.summary(ROWS)
    assert "| forward | 4 | 2 (50.0%) | 0 (0.0%) |" in text
    assert "| exp | f32 | forward | differs | output: 2 instead of 1 |" in text


@pytest.mark.parametrize("what", ["timeout", "crash"])
def test_a_job_that_does_not_end_or_kills_its_process_is_a_row(what):
    worker = _Worker()
    if what == "crash":
        os.kill(worker.process.pid, signal.SIGKILL)
    found, alive = worker.call(("exp", "f32", "forward"), timeout=60 if what == "crash" else 0.0)
    worker.stop()
    assert found["outcome"] == what and not alive
    assert not worker.process.is_alive()
