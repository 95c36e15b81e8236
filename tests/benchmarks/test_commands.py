"""The benchmark commands: what they print, their exit codes, and what a failing backend does to them. Nothing depends on a timing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner
from torch._dynamo.backends.registry import register_backend

from mlirc.benchmarks import (
    attention,
    compiling,
    contractions,
    demo,
    experts,
    exported,
    flex,
    fused,
    groups,
    in_model,
    limits,
    measure,
    models,
    nets,
    products,
    suite,
    training,
    verdict,
)
from mlirc.tests import models as small


@pytest.fixture
def tiny(monkeypatch):
    """A benchmark model that takes no time."""
    monkeypatch.setitem(models.MODELS, "tiny", small.mlp)
    monkeypatch.delenv("MLIRC_OPTIONS", raising=False)


def _wrong(gm, example_inputs):
    return lambda *inputs: [x * 1.1 for x in gm(*inputs)]


def _failing(gm, example_inputs):
    raise RuntimeError("cannot do that")


def _wrong_gradients(gm, example_inputs):
    return lambda *args: [y.detach() + 1.5 * (y - y.detach()) if y.requires_grad else y for y in gm(*args)]


register_backend(_wrong_gradients, name="mlirc_test_wrong_gradients")
register_backend(_wrong, name="mlirc_test_wrong")
register_backend(_failing, name="mlirc_test_failing")


@pytest.mark.parametrize("backend, code, text", [("eager", 0, "yes"), ("mlirc_test_wrong", 1, "NO"), ("mlirc_test_failing", 1, "cannot do that")])
def test_demo(tiny, backend, code, text):
    result = CliRunner().invoke(demo.main, ["--models", "tiny", "--backend", backend, "--seconds", "0"])
    assert result.exit_code == code, result.output
    assert text in result.output
    assert "MLIRC_OPTIONS" not in os.environ


def test_models_of_another_size():
    assert models.parse("bert@129") == ("bert", [129])
    assert models.build("bert@7")[2]["input_ids"].shape == (1, 7)
    for name in ("bert@", "bert@0", "bert@-1", "bert@x"):
        with pytest.raises(ValueError, match="as in bert@129"):
            models.parse(name)
        result = CliRunner().invoke(suite.main, ["--models", name])
        assert result.exit_code == 2 and "as in bert@129" in result.output


def test_demo_leaves_other_models_alone(tiny):
    result = CliRunner().invoke(demo.main, ["--models", "no_such_model,tiny", "--backend", "eager", "--seconds", "0"])
    assert result.exit_code == 1
    assert "no model 'no_such_model'" in result.output
    assert "yes" in result.output


def test_suite_rows(tiny):
    rows = suite.run_case("tiny", "bf16", torch.get_num_threads(), ["eager", "mlirc_test_failing", "mlirc_test_wrong", "aot_eager"], 0.01)
    by_name = {row["backend"]: row for row in rows}
    assert by_name["eager"]["same"] and by_name["aot_eager"]["same"]
    assert not by_name["mlirc_test_wrong"]["same"]
    assert "cannot do that" in by_name["mlirc_test_failing"]["failure"]
    assert by_name["aot_eager"]["calls"] == by_name["eager"]["calls"] >= 5
    json.dumps(rows)


def test_suite_training(tiny):
    """Gradients are judged: a backend that is wrong in nothing else is wrong."""
    rows = suite.run_case("tiny", "f32", torch.get_num_threads(), ["eager", "mlirc_test_wrong_gradients", "aot_eager"], 0.01, train=True)
    right = {row["backend"]: row["same"] for row in rows}
    assert right == {"eager": True, "mlirc_test_wrong_gradients": False, "aot_eager": True}
    assert all(row["ms"] > 0 for row in rows)


class TwoOutputs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.first(x), self.second(x)


def test_suite_training_of_one_of_two_outputs(monkeypatch):
    """What only the other one depends on has no gradient, or zeros."""
    monkeypatch.setitem(models.MODELS, "two", lambda: (TwoOutputs(), (torch.randn(3, 4),), {}))
    assert all(row["same"] for row in suite.run_case("two", "f32", torch.get_num_threads(), ["eager", "aot_eager"], 0, train=True))


def test_suite_training_of_what_cannot_be_trained(tiny):
    result = CliRunner().invoke(suite.main, ["--models", "tiny", "--train", "--backends", "inductor-freeze"])
    assert result.exit_code == 2 and "without freezing" in result.output


def test_training_drops_nothing():
    module = training.prepare(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).eval())
    assert module.training and torch.equal(module(x := torch.ones(2, 4)), module[0](x))
    with pytest.raises(ValueError, match="differentiable"):
        training.step(module, lambda x: x.detach(), (torch.ones(2, 4),), {})


MEMORY_OF_TINY = """
import json
from mlirc.benchmarks import models, suite
from mlirc.tests import models as small
models.MODELS["tiny"] = small.mlp
print(json.dumps(suite.memory_case("tiny", "f32", 1, "mlirc")))
"""


def test_suite_memory(tiny):
    # A process of its own, as in the suite: in this one, what earlier tests left may be given back in between.
    (row,) = json.loads(subprocess.run([sys.executable, "-c", MEMORY_OF_TINY], capture_output=True, text=True, check=True).stdout)
    assert row["peak_mb"] >= row["model_mb"] > 0 and row["packed_mb"] > 0
    assert "MiB above" in suite._describe(row) and "packed weights" in suite._describe(row)
    (failed,) = suite.memory_case("tiny", "f32", torch.get_num_threads(), "mlirc_test_failing")
    assert "cannot do that" in failed["failure"]


def test_suite_refuses_unknown_names():
    result = CliRunner().invoke(suite.main, ["--models", "resnet51"])
    assert result.exit_code == 2
    assert "resnet51" in result.output and "resnet50" in result.output


def test_suite_reports_a_process_that_dies(monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "_child", lambda *_: ([], "Segmentation fault"))
    out = tmp_path / "rows.jsonl"
    result = CliRunner().invoke(suite.main, ["--models", "bert", "--backends", "eager,mlirc", "--out", str(out)])
    assert result.exit_code == 1
    assert [json.loads(line)["failure"] for line in out.read_text().splitlines()] == ["Segmentation fault"] * 2


def test_alternate_gives_everyone_the_same_rounds():
    order: list[str] = []
    times = measure.alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, seconds=0, warm_up=1, least=20)
    assert [len(t) for t in times.values()] == [20, 20]
    assert order[:2] == ["a", "b"]
    assert {tuple(order[i : i + 2]) for i in range(2, 42, 2)} == {("a", "b"), ("b", "a")}, "one of each in a round, now this first and now that"


def test_verdict_allows_what_fp64_excuses_and_no_more():
    fp64 = [torch.linspace(-1, 1, 100, dtype=torch.float64)]
    eager = [fp64[0].float()]
    assert verdict.same(eager, [eager[0] + 1e-6], fp64, torch.float32)
    assert not verdict.same(eager, [eager[0] + 1e-2], fp64, torch.float32)
    assert not verdict.same(eager, [eager[0][:-1]], fp64, torch.float32)
    assert verdict.relative_error(eager, [eager[0] + 1e-2]) == pytest.approx(1e-2, rel=1e-3)


def test_contractions(tmp_path, monkeypatch):
    monkeypatch.setattr(contractions, "MOST_LAYERS", 16)  # that many small ones fit the caches, and are soon traced
    out = tmp_path / "rows.jsonl"
    command = ["--shape", "33x17", "--rows", "1,3", "--dtypes", "f32,bf16,i8", "--seconds", "0.001", "--pin", "grain=1", "--out", str(out)]
    result = CliRunner().invoke(contractions.main, command, catch_exceptions=False)
    assert result.exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(r["dtype"], r["cold"], r["rows"]) for r in rows] == [(d, c, m) for d in ("f32", "bf16", "i8") for c in (False, True) for m in (1, 3)]
    assert all(r["error"] < (0.05 if r["dtype"] == "bf16" else 1e-5) and r["ratio"] > 0 and r["of limit"] > 0 and r["pinned us"] > 0 for r in rows)
    assert result.output.count("geometric mean") == 6


@pytest.mark.parametrize("epilogue", ["gelu", "add"])
def test_contractions_with_epilogues(epilogue, tmp_path, monkeypatch):
    monkeypatch.setattr(contractions, "MOST_LAYERS", 8)
    out = tmp_path / "rows.jsonl"
    command = ["--shape", "33x17", "--rows", "3", "--seconds", "0.001", "--epilogue", epilogue, "--out", str(out)]
    result = CliRunner().invoke(contractions.main, command, catch_exceptions=False)
    assert result.exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(r["dtype"], r["cold"]) for r in rows] == [(d, c) for d in ("f32", "bf16") for c in (False, True)]
    assert all(r["error"] < (0.05 if r["dtype"] == "bf16" else 1e-5) and r["over bare"] > 0 for r in rows)
    assert "x the bare product, at most" in result.output
    assert CliRunner().invoke(contractions.main, ["--dtypes", "i8", "--epilogue", epilogue]).exit_code == 2


def test_products(tmp_path):
    out = tmp_path / "rows.jsonl"
    result = CliRunner().invoke(products.main, ["--models", "odd", "--seconds", "0.001", "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [r["dtype"] for r in rows] == ["f32"] * 4 + ["bf16"] * 4
    assert all(r["error"] < (0.2 if r["dtype"] == "bf16" else 1e-4) and r["ratio"] > 0 and r["of limit"] > 0 for r in rows)
    assert CliRunner().invoke(products.main, ["--models", "none"]).exit_code == 2


def test_limits():
    """That they are about this machine: the units are faster than memory, and caches than memory."""
    assert limits.gflops("f32", 0.01) > 1 and limits.gflops("bf16", 0.01) > 1 and limits.gflops("i8", 0.01) > 1
    assert limits.read_gbytes(1 << 20, 0.01) > 0.1


def test_contestants_are_prepared_right_before_they_are_timed():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in ("one", "other")}
    times = measure.alternate(calls, 0.0, warm_up=0, least=4, before={"one": lambda: order.append("before")})
    assert len(times["one"]) == len(times["other"]) == order.count("before") == 4
    assert all(order[i - 1] == "before" for i, name in enumerate(order) if name == "one")


def test_groups(tiny, tmp_path):
    out = tmp_path / "rows.jsonl"
    command = ["--models", "tiny", "--backends", "eager,mlirc", "--seconds", "0.001", "--out", str(out)]
    result = CliRunner().invoke(groups.main, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows and all(r["mlirc error"] < 1e-5 and r["kernels"] >= 1 and r["aten"] == 0 for r in rows)


def test_groups_of_sorted_sums(monkeypatch, tmp_path):
    """They are timed in a program of their own; what sorts counts for the first of them."""

    def case():
        return nets.GraphSage(128, 160, 4), (torch.randn(20000, 128), torch.randint(0, 20000, (2, 30000))), {}

    monkeypatch.setitem(models.MODELS, "tiny", case)
    found = groups.groups_of("tiny", torch.float32)
    assert {g.sorts for g in found} == {None, True, False}
    sums = [g for g in found if g.sorts is not None]
    timed, real = [], in_model.kernels_ms

    def ms(call, graphs):
        names = list(graphs[0].symbols.values())
        assert set(real(call, graphs)) == set(names)
        timed.append(len(names))
        return dict.fromkeys(names, 2.0)

    monkeypatch.setattr(in_model, "kernels_ms", ms)
    rows = [groups.measure(g, ["mlirc"], 0.001) for g in sums]
    (first, sorting), (second, _) = [fused.kernels_of_sums(g.graph) for g in sums]
    assert len(first) == len(second) == 1 and len(sorting) >= 2 and min(timed) >= 3
    assert [r["kernel ms"] for r in rows] == [2.0 * (1 + len(sorting)), 2.0]
    assert all(r["mlirc error"] < 1e-5 for r in rows)


def test_kernels_of_one_op_are_one_group(monkeypatch):
    """A group norm between convolutions, whose sums are kernels of their own: what they read counts once, however many of them read it."""

    def case():
        model = torch.nn.Sequential(torch.nn.Conv2d(8, 96, 1), torch.nn.GroupNorm(4, 96), torch.nn.SiLU(), torch.nn.Conv2d(96, 8, 3, padding=1))
        return model.eval(), (torch.randn(1, 8, 32, 32),), {}

    monkeypatch.setitem(models.MODELS, "tiny", case)
    (group,) = groups.groups_of("tiny", torch.float32)
    image, few = 96 * 32 * 32 * 4, 2 * 96 * 4
    assert len(group.texts) > 2 and image <= group.moved_bytes <= image + few
    row = groups.measure(group, ["mlirc"], 0.001)
    assert row["calls"] == 1 and row["mlirc error"] < 1e-5 and row["kernel ms"] > 0


def test_halves_of_a_tensor_share_its_memory(monkeypatch):
    class Gated(torch.nn.Module):
        def forward(self, x):
            left, right = x.chunk(2, -1)
            return torch.relu(right) * left

    monkeypatch.setitem(models.MODELS, "tiny", lambda: (Gated(), (torch.randn(64, 256),), {}))
    (group,) = groups.groups_of("tiny", torch.float32)
    (halves,) = group.places
    assert sorted(halves) == [(0, 0), (0, 128)] and groups.measure(group, ["mlirc"], 0.001)["mlirc error"] == 0


def test_groups_beside_a_call_of_aten(monkeypatch):
    class Sorted(torch.nn.Module):
        def forward(self, x):
            return torch.sort(x)[0] * 2

    monkeypatch.setitem(models.MODELS, "tiny", lambda: (Sorted(), (torch.randn(64, 8),), {}))
    assert [g.calls for g in groups.groups_of("tiny", torch.float32)] == [1]


def test_groups_look_up_what_the_model_does(monkeypatch):
    """Also where the indices are a part of a tensor; and none is written to."""

    class Lookup(torch.nn.Module):
        def forward(self, table, ids):
            left, right = ids.chunk(2)
            return table[right].relu() * 2, left * 3 + 1

    ids = torch.randint(0, 1000, (128,))
    monkeypatch.setitem(models.MODELS, "tiny", lambda: (Lookup(), (torch.randn(1000, 16), ids), {}))
    found = groups.groups_of("tiny", torch.float32)
    look_up = next(g for g in found if "index" in g.name)
    _, (_, _, slots, memory) = groups._of_the_model(look_up, 0)
    assert any(kept.dtype == torch.int64 and torch.equal(kept[-64:], ids[64:]) for kept in memory.values())
    before = ids.clone()
    for group in found:
        assert groups.measure(group, ["mlirc"], 0.001)["mlirc error"] == 0
    assert torch.equal(ids, before)


def test_groups_are_compiled(tiny):
    """And not run in eager mode, whatever is said of the graph that they are parts of."""
    (group, *_) = groups.groups_of("tiny", torch.float32)
    with pytest.raises(RuntimeError, match="cannot do that"):
        groups.measure(group, ["mlirc_test_failing"], 0.001)


def test_groups_report(tiny, tmp_path):
    out = tmp_path / "rows.jsonl"
    command = ["--models", "tiny", "--backends", "eager,mlirc", "--seconds", "0.001", "--out", str(out)]
    CliRunner().invoke(groups.main, command, catch_exceptions=False)
    result = CliRunner().invoke(groups.main, ["--report", str(out)], catch_exceptions=False)
    assert result.exit_code == 0 and "f32, 1 threads" in result.output and "of limit, weighted by time" in result.output


@pytest.mark.parametrize("train", [False, True])
def test_compile_time_of_kernels(tiny, train, tmp_path):
    out = tmp_path / "rows.jsonl"
    command = ["--models", "tiny", "--dtypes", "f32", "--repeats", "1", "--above", "0", "--out", str(out)]
    result = CliRunner().invoke(compiling.main, command + ["--train"] * train)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows and all(r["name"] in result.output and r["bytes"] > 0 and r["ms"] > 0 for r in rows)
    assert f"tiny f32: {len(rows)} kernels" in result.output and f"{len(rows)} above 0 ms" in result.output


def test_compile_time_of_what_is_not_there(tiny):
    for command, text in ((["--models", "nothing"], "nothing"), (["--dtypes", "f8"], "dtypes: f32, bf16, f16, f64")):
        result = CliRunner().invoke(compiling.main, command)
        assert result.exit_code == 2 and text in result.output


@pytest.fixture
def own_threads(monkeypatch):
    """What a command sets for its own process."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_exported(tiny, own_threads):
    result = CliRunner().invoke(exported.main, ["--models", "tiny", "--contestants", "eager,compiled,exported", "--seconds", "0"])
    assert result.exit_code == 0, result.output
    assert "tiny           f32  right; made: exported" in result.output and "x eager (geometric mean)" in result.output
    assert "contestants: eager, " in CliRunner().invoke(exported.main, ["--contestants", "none"]).output


def test_flex(own_threads):
    arguments = ["--shapes", "1x2x16x8", "--dtypes", "f32", "--changes", "alibi,documents", "--backends", "eager,mlirc", "--seconds", "0"]
    result = CliRunner().invoke(flex.main, arguments)
    assert result.exit_code == 0, result.output
    errors = [float(e) for e in re.findall(r"mlirc .*? ms, error (\S+),", result.output)]
    assert len(errors) == 2 and max(errors) < 1e-5
    assert "shapes are like" in CliRunner().invoke(flex.main, ["--shapes", "big"]).output
    assert "changes: none, " in CliRunner().invoke(flex.main, ["--changes", "odd"]).output


@pytest.mark.parametrize("options", [(), ("--train", "--heads-of-keys", "1")], ids=["inference", "training"])
def test_attention(own_threads, options):
    arguments = ["--shapes", "1x2x16x8", "--dtypes", "f32", "--kinds", "causal,documents", "--backends", "eager,mlirc,mlirc-dynamic", "--seconds", "0"]
    result = CliRunner().invoke(attention.main, [*arguments, *options])
    assert result.exit_code == 0, result.output
    errors = [float(e) for e in re.findall(r"mlirc\S* .*? ms, error (\S+?)[;\n]", result.output)]
    assert len(errors) == 4 and max(errors) < 1e-5
    assert "shapes are like" in CliRunner().invoke(attention.main, ["--shapes", "big"]).output
    assert "kinds: all, " in CliRunner().invoke(attention.main, ["--kinds", "odd"]).output
    assert "no part of 2" in CliRunner().invoke(attention.main, ["--shapes", "1x2x16x8", "--heads-of-keys", "3"]).output


def test_experts(monkeypatch):
    monkeypatch.setitem(experts.MIXTURES, "tiny", (4, 2, 16, 24))
    options = ["--mixtures", "tiny", "--dtypes", "bf16", "--tokens", "3", "--seconds", "0"]
    result = CliRunner().invoke(experts.main, [*options, "--backends", "eager,mlirc"])
    assert result.exit_code == 0 and "mlirc: " in result.output and "x eager" in result.output, result.output
    assert max(map(float, re.findall(r"error (\S+?)(?:;|\n)", result.output))) < 0.02
    result = CliRunner().invoke(experts.main, [*options, "--backends", "mlirc", "--train"])
    assert result.exit_code == 0, result.output
    for bad, text in (("--mixtures nope", "unknown nope"), ("--tokens 1,x", "numbers of tokens"), ("--train", "inductor-freeze has no gradients")):
        result = CliRunner().invoke(experts.main, bad.split())
        assert result.exit_code == 2 and text in result.output
    assert experts.weight_bytes((4, 2, 16, 24), 1, "bf16") == 2 * 3 * 16 * 24 * 2
