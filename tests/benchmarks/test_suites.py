"""The model suites: the lists, cases in processes of their own with limits, continued runs, the report."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
import time
from html.parser import HTMLParser

import pytest
import torch
from click.testing import CliRunner
from torch._dynamo.utils import counters

from mlirc.benchmarks import training
from mlirc.benchmarks.suite import compiled
from mlirc.benchmarks.suites import __main__ as command
from mlirc.benchmarks.suites import huggingface, limits, timm_models, torchbench
from mlirc.benchmarks.suites.build import Missing
from mlirc.benchmarks.suites.case import _called_once, _difference, _reference
from mlirc.benchmarks.suites.catalog import PUBLISHED, SUITES, load
from mlirc.benchmarks.suites.report import render
from mlirc.benchmarks.suites.rows import Case, append, finished, read
from mlirc.benchmarks.suites.run import Settings, run_case
from mlirc.benchmarks.suites.statistics import groups
from mlirc.benchmarks.verdict import relative_error, relative_errors
from mlirc.benchmarks.vision import _suppress, prepare_torchvision

BUILDERS = """
import torch

def mlp():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)), (torch.randn(3, 8),), {}

def hungry():
    class Hungry(torch.nn.Module):
        def forward(self, x):
            return x + torch.ones(2**36).sum()
    return Hungry(), (torch.randn(3),), {}

def broken():
    raise ValueError("no such <model>")

def asleep():
    import time
    time.sleep(1000)

def normed():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.5)), (torch.randn(3, 8),), {}

def keeping():
    class Keeping(torch.nn.Linear):
        kept = 0.0
        def forward(self, x):
            self.kept = super().forward(x) + self.kept
            return self.kept
    return Keeping(8, 4), (torch.randn(3, 8),), {}

def frozen():
    return torch.nn.Sequential(torch.nn.Flatten()), (torch.randn(3, 8),), {}

SUITES = {"tiny": {"mlp": mlp, "hungry": hungry, "broken": broken, "asleep": asleep, "normed": normed, "frozen": frozen, "keeping": keeping}}
"""


@pytest.fixture
def builders(tmp_path):
    file = tmp_path / "builders.py"
    file.write_text(BUILDERS)
    return str(file)


def test_lists_have_a_builder_or_a_reason():
    sizes = {}
    for suite, models in SUITES.items():
        for name, model in models.items():
            assert callable(model) != isinstance(model, Missing), name
            assert not isinstance(model, Missing) or len(model.reason) > 15, name
        sizes[suite] = (len(models), sum(not isinstance(m, Missing) for m in models.values()))
    # The lists are fixed: whoever changes them says so here.
    assert sizes == {"torchbench": (116, 51), "huggingface": (61, 60), "timm": (66, 66)}
    assert set(PUBLISHED) == set(SUITES)


@pytest.mark.parametrize("module", [torchbench, huggingface, timm_models])
def test_no_name_is_listed_twice(module):
    # A dict keeps the last of two equal keys without a word.
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            keys = [k.value for k in node.keys if isinstance(k, ast.Constant)]
            assert len(keys) == len(set(keys))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value and "." not in node.value.split()[0]:
            words = node.value.split()
            if all("_" in w or w[0].isupper() or w.isalnum() for w in words):
                assert len(words) == len(set(words))


def test_unknown_cases_are_refused(builders):
    runner = CliRunner()
    for arguments, text in (
        (["timm:resnet51"], "no model resnet51"),
        (["timn"], "torchbench, huggingface, timm"),
        (["torchbench:dlrm"], "torchbenchmark repository"),
        (["--builders", builders + ":NOTHING"], "no dict NOTHING"),
        (["--builders", "no_such_file.py"], "no file no_such_file.py"),
        (["--dtypes", "f31", "timm"], "unknown f31"),
        (["--train", "--backends", "mlirc,inductor-freeze", "timm"], "not for inductor-freeze"),
    ):
        result = runner.invoke(command.main, ["run", *arguments])
        assert result.exit_code == 2 and text in result.output, (arguments, result.output)


def test_builders_of_a_file(builders):
    assert list(load(builders)) == list(load(builders + ":SUITES")) == ["tiny"]
    assert CliRunner().invoke(command.main, ["list", "--builders", builders]).output.splitlines()[0] == "tiny: 7 models, 0 that cannot be built"


def test_run_writes_a_row_and_continues(builders, tmp_path, monkeypatch):
    out = tmp_path / "rows.jsonl"
    arguments = ["run", "tiny:mlp", "--backends", "mlirc", "--seconds", "0.01", "--warm", "--out", str(out), "--builders", builders]
    result = CliRunner().invoke(command.main, arguments)
    assert result.exit_code == 0, result.output
    (row,) = read([out])
    assert row["outcome"] == "right" and row["reference"] == "float64" and row["error"] < 1e-3
    assert row["compile_s"] > 0 and row["speedup"] == pytest.approx(row["eager_ms"] / row["ms"])
    assert row["peak_mb"] > 0 and row["eager_peak_mb"] > 0 and row["parameters"] == 8 * 16 + 16 + 16 * 4 + 4
    assert row["aten"] == [] and row["aten_share"] == 0 and row["warnings"] == []
    assert 0 < len(row["slowest"]) <= row["kernels"] and all(k["ms"] > 0 and 0 < k["share"] < 1 for k in row["slowest"])

    def fail(*_):
        raise AssertionError("a finished case was run again")

    monkeypatch.setattr("mlirc.benchmarks.suites.run.run_case", fail)
    assert CliRunner().invoke(command.main, arguments).exit_code == 0
    assert isinstance(CliRunner().invoke(command.main, [*arguments, "--dtypes", "bf16"]).exception, AssertionError)
    page = tmp_path / "page.html"
    assert CliRunner().invoke(command.main, ["report", str(out), "-o", str(page)]).exit_code == 0
    assert "mlp" in page.read_text()


def test_steps_of_training_are_rows_of_their_own(builders, tmp_path):
    out = tmp_path / "rows.jsonl"
    arguments = ["run", "tiny:normed", "--backends", "mlirc", "--seconds", "0.01", "--warm", "--out", str(out), "--builders", builders]
    for flags in ([], ["--train"]):
        result = CliRunner().invoke(command.main, [*arguments, *flags])
        assert result.exit_code == 0, result.output
    called, trained = read([out])
    assert not called["train"] and trained["train"] and trained["outcome"] == "right" and trained["reference"] == "float64"
    assert trained["graphs"] == 1 and trained["kernels"] > called["kernels"] and trained["ms"] > 0
    assert [g.kind for g in groups([called, trained])] == ["f32", "f32, training"]
    assert "f32, training" in render([called, trained])


def test_what_training_gets_wrong_is_named(builders, monkeypatch):
    from mlirc.benchmarks.suites import case

    def compiled(module, backend):
        return torch.compile(lambda x: module(x) + 0.1 * module[0].bias.sum(), backend="mlirc")

    monkeypatch.setattr("mlirc.benchmarks.suite.compiled", compiled)
    row = case.measure(Case("tiny", "mlp", "f32", 1, "mlirc", True), builders, 0, lambda stage: None)
    assert row["outcome"] == "wrong" and "values differ, most in the gradient of 0.bias" in row["detail"]


@pytest.mark.parametrize("backend", ["mlirc", "aot_eager"])
def test_a_contestant_for_any_sizes(backend):
    counters.clear()
    function = compiled(torch.nn.Linear(8, 3), backend + "-dynamic")
    with torch.no_grad():
        assert [function(torch.randn(n, 8)).shape[0] for n in (5, 7, 33)] == [5, 7, 33]
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    "model, settings, outcome, detail",
    [
        ("hungry", Settings(memory=12), "memory", "more than 12 GiB at: the reference"),
        ("asleep", Settings(timeout=1), "time", "more than 1 s"),
        ("broken", Settings(), "unbuilt", "ValueError: no such <model>"),
        ("frozen", Settings(), "unbuilt", "it cannot be trained"),
        ("keeping", Settings(), "right", "only called once: a second call in eager mode: RuntimeError: Trying to backward"),
    ],
)
def test_what_goes_wrong_becomes_a_row(builders, model, settings, outcome, detail):
    settings = Settings(builders, 0, settings.timeout, settings.memory, cold=False)
    row = run_case(Case("tiny", model, "f32", 1, "eager", model in ("frozen", "keeping")), settings)
    assert row["outcome"] == outcome and detail in row["detail"], row
    json.dumps(row)


def test_a_limit_ends_what_was_started_too():
    code = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True); time.sleep(1000)"
    done = limits.run([sys.executable, "-c", code], {}, 2.0)
    assert done.timed_out and not done.out_of_memory
    state = ["ps", "-o", "state=", "-p", done.stdout.strip()]
    for _ in range(50):  # until somebody has collected it
        if subprocess.run(state, capture_output=True, text=True).stdout.strip() in ("", "Z"):
            return
        time.sleep(0.1)
    raise AssertionError("the process that the case had started is still there")


def test_an_interrupt_ends_the_cases_and_the_run_can_be_continued(builders, tmp_path):
    out = tmp_path / "rows.jsonl"
    code = f"""
import os, signal, subprocess, sys, threading, time
from mlirc.benchmarks.suites import limits
from mlirc.benchmarks.suites.__main__ import main
def interrupt():
    while not limits._running:
        time.sleep(0.05)
    print(*limits._running, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
main(["run", "tiny:asleep,mlp", "--backends", "eager", "--check", "--builders", {builders!r}, "--out", {str(out)!r}])
"""
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode != 0 and time.monotonic() - start < 90, done.stderr
    case = next(line for line in done.stdout.splitlines() if line.strip().isdigit())
    assert subprocess.run(["ps", "-o", "state=", "-p", case], capture_output=True, text=True).stdout.strip() in ("", "Z")
    assert read([out]) == []


def test_rows_survive_being_cut_off(tmp_path):
    out = tmp_path / "rows.jsonl"
    row = {"suite": "s", "model": "m", "dtype": "f32", "threads": 1, "backend": "mlirc", "outcome": "time"}
    append(out, row)
    with out.open("a") as file:
        file.write('{"suite": "s", "mod')
    append(out, {**row, "outcome": "right"})
    assert read([out, tmp_path / "missing.jsonl"]) == [{**row, "outcome": "right"}]
    assert finished(row, timed=True) and not finished({**row, "outcome": "right"}, timed=True) and finished({**row, "outcome": "right"}, timed=False)


def _rows():
    base = {"suite": "timm", "dtype": "f32", "threads": 1, "cpu": "a CPU", "torch": "2.13"}
    times = {"compile_s": 3.0, "eager_peak_mb": 500.0, "peak_mb": 400.0, "error": 1e-6, "eager_ms": 10.0, "warnings": []}
    aten = {"aten": [{"op": "aten.sort.default", "reason": "sorting stays with ATen", "calls": 1, "share": 0.25}], "aten_share": 0.25}
    slow = {"slowest": [{"kernel": "k01_linear", "ms": 3.0, "share": 0.6}], "kernels": 1}
    yield {**base, **times, **aten, **slow, "model": "fast", "backend": "mlirc", "outcome": "right", "ms": 5.0, "speedup": 2.0}
    yield {**base, **times, **slow, "model": "slow", "backend": "mlirc", "outcome": "right", "ms": 20.0, "speedup": 0.5}
    yield {**base, **times, "model": "fast", "backend": "inductor", "outcome": "right", "ms": 8.0, "speedup": 1.25}
    for outcome in ("wrong", "error", "time", "memory", "unbuilt"):
        yield {**base, "model": f"is_{outcome}", "backend": "mlirc", "outcome": outcome, "detail": "<script>alert(1)</script>"}


class _Balanced(HTMLParser):
    """Fails where tags do not match, and collects the text of titles."""

    def __init__(self):
        super().__init__()
        self.open, self.links = [], []

    def handle_starttag(self, tag, attributes):
        self.links += [v for k, v in attributes if k in ("src", "href")]
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_report_shows_every_outcome_and_needs_no_network():
    page = render(list(_rows()))
    parser = _Balanced()
    parser.feed(page)
    assert parser.open == [] and parser.links == []
    assert "alert(1)</script>" not in page and "&lt;script&gt;" in page
    for text in ("2/6", "33.3%", "geometric mean of 2", "wrong result", "out of time", "out of memory", "eager cannot run it", "k01_linear", "sorting stays with ATen"):
        assert text in page, text
    assert page.count('class="faster"') == page.count('class="slower"') == 1 and page.count('class="rival"') == 1


def test_rates_leave_out_what_eager_cannot_run():
    (mlirc, inductor) = groups(_rows())
    assert (mlirc.right, mlirc.counted, mlirc.speedup) == (2, 6, pytest.approx(1.0))
    assert (inductor.right, inductor.counted, inductor.speedup) == (1, 1, pytest.approx(1.25))


@pytest.mark.sweep
@pytest.mark.parametrize("suite, name", [(s, n) for s, models in SUITES.items() for n, m in models.items() if not isinstance(m, Missing)])
def test_every_listed_model_is_built_and_runs(suite, name):
    row = run_case(Case(suite, name, "f32", 1, "eager"), Settings(seconds=0))
    assert row["outcome"] == "right", row.get("detail")


def test_reference_is_of_the_highest_precision_there_is():
    class NoDoubles(torch.nn.Module):
        def forward(self, x):
            if x.dtype == torch.float64:
                raise RuntimeError("not implemented for 'Double'")
            return x + 1

    x = torch.randn(3)
    (exact,), name = _reference(torch.nn.Identity(), (x,), {}, torch.bfloat16)
    assert name == "float64" and exact.dtype == torch.float64
    (exact,), name = _reference(NoDoubles(), (x,), {}, torch.bfloat16)
    assert name == "float32" and torch.equal(exact, (x + 1).double())
    assert _reference(NoDoubles(), (x,), {}, torch.float32) == (None, "eager")


def test_errors_are_relative_to_what_is_no_rounding():
    eager, got = [torch.tensor([2.0]), torch.tensor([1e-9])], [torch.tensor([2.0]), torch.tensor([-1e-9])]
    assert relative_error(eager, got) == pytest.approx(2.0) and relative_error(eager, got, 2e-6) == pytest.approx(1e-3)
    assert relative_errors([torch.tensor([2.0, torch.nan])], [torch.tensor([1.0, torch.nan])]) == [0.5]
    assert relative_errors([torch.tensor([2.0, 1.0])], [torch.tensor([2.0, torch.nan])]) == [torch.inf]
    assert relative_errors([torch.tensor([-torch.inf, 1.0])], [torch.tensor([-torch.inf, 1.0])]) == [0.0]
    assert _difference(eager, [got[0] / 2, got[1]], ["a", "b"], 2e-6) == "values differ, most in a: by 5e-01 of its largest"


def test_errors_of_steps_do_not_depend_on_buffers():
    module = torch.nn.Linear(2, 1, bias=False)
    module.register_buffer("mask", torch.tensor([-torch.inf, -1e30]))
    assert training.names(module) == ["the output", "the gradient of weight", "the buffer mask"]
    assert training.least_magnitude(module, [torch.ones(1), torch.tensor([4.0]), module.mask]) == pytest.approx(4e-6)


def test_a_model_that_is_called_once_is_judged_all_the_same():
    def fails(error):
        def call():
            raise error
        return call

    error = RuntimeError("Trying to backward through the graph a second time")
    wrong = {"outcome": "wrong", "detail": "values differ"}
    row = _called_once(wrong, fails(error), error)
    assert row["outcome"] == "wrong" and row["detail"].startswith("values differ; only called once") and finished({**row, "outcome": "right"}, True)
    assert _called_once(wrong, lambda: None, error)["outcome"] == "error"
    with pytest.raises(MemoryError):
        _called_once(wrong, fails(MemoryError()), error)


def test_non_maximum_suppression():
    prepare_torchvision()
    boxes = torch.tensor([[0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30], [1, 1, 10, 10.0]])
    scores = torch.tensor([0.5, 0.9, 0.1, 0.6])
    assert _suppress(boxes, scores, 0.8).tolist() == [1, 3, 2]  # 0 overlaps 1 by 0.9; 3 overlaps 1 by 0.74
    assert _suppress(boxes, scores, 0.7).tolist() == [1, 2]
    assert _suppress(boxes[:0], scores[:0], 0.5).tolist() == []
