"""`mlirc.explain`: what it counts, what it leaves as it was, and how it looks."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import mlirc
from mlirc.frontend import aten
from mlirc.frontend.explain import Report, measure
from mlirc.frontend.report import listening, readable


class Net(nn.Module):
    """Left to ATen: one sort, one running log-sum-exp."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        y = self.norm(self.linear(x))
        values, _ = torch.sort(y, dim=1)
        return values.logcumsumexp(0).relu()


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def explain(model, *args, **kwargs) -> Report:
    return measure(model, args, kwargs)


def test_inference(net, capsys):
    with torch.no_grad():
        report = mlirc.explain(net, torch.randn(64, 16))
    assert [g.direction for g in report.graphs] == ["inference"]
    assert report.graphs[0].nodes == report.nodes + 2
    assert set(report.aten_calls) == {"aten.sort.default", "aten.logcumsumexp.default"}
    assert all(report.aten_calls.values())
    assert all(re.fullmatch(r"k\d\d_\w+", k) for k in report.kernels) and report.kernels == report.graphs[0].kernels
    assert list(report.stages)[0] == "torch" and {"import", "graph passes", "kernels", "link"} <= set(report.stages)
    assert all(s >= 0 for s in report.stages.values()) and report.run_seconds > 0
    assert not report.graph_breaks
    printed = capsys.readouterr().out
    assert "intermediates" in printed, "squeezed to 80 columns"
    assert "aten.sort.default" in printed and report.kernels[0] in printed
    for part in ("aten.logcumsumexp.default", "nodes compiled", "Compile time: torch", report.kernels[-1]):
        assert part in str(report)


def test_memory(net):
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64))

        def forward(self, x):
            return self.layers(x).softmax(-1)

    with torch.no_grad():
        report = explain(Deep().eval(), torch.randn(100, 64))
    (graph,) = report.graphs
    # The hidden layer, and what the second product made, at the same time.
    assert 100 * 256 * 4 <= graph.arena_bytes <= 100 * (256 + 64) * 4 + 4096
    assert graph.packed_bytes >= 2 * 64 * 256 * 4
    assert graph.arena in str(report) and "packed weights" in str(report) and graph.memory() in graph.summary()


def test_memory_of_symbolic_sizes():
    compiled = torch.compile(lambda x: torch.softmax(x @ x.T, -1).sum(0), backend="mlirc", dynamic=True)
    with listening() as graphs:
        compiled(torch.randn(20, 30))
    assert graphs[0].arena_bytes is None and "s" in graphs[0].arena and graphs[0].packed_bytes == 0


@pytest.mark.parametrize("n, text", [(0, "0 bytes"), (9000, "9000 bytes"), (98304, "96.0 KiB"), (1 << 20, "1024 KiB"), (123 << 20, "123 MiB"), (5 << 30, "5120 MiB")])
def test_readable(n, text):
    assert readable(n) == text


def test_each_call_has_reason_line_and_share(net):
    with torch.no_grad():
        report = explain(net, torch.randn(64, 16))
    assert [a.share for a in report.aten] == sorted((a.share for a in report.aten), reverse=True)
    assert all(0 < a.share < 1 for a in report.aten)
    assert report.aten_share == pytest.approx(sum(a.share for a in report.aten)) and report.aten_share < 1
    for a in report.aten:
        assert a.reason and a.node and a.source.startswith(__file__)
    line = {a.op: int(a.source.rpartition(":")[2]) for a in report.aten}
    assert line["aten.logcumsumexp.default"] == line["aten.sort.default"] + 1


def test_training_follows_the_mode_of_the_call(net):
    net.train()
    x = torch.randn(64, 16)
    report = explain(net, x)
    assert [g.direction for g in report.graphs] == ["forward", "backward"]
    assert report.kernels == [k for g in report.graphs for k in g.kernels]
    with torch.no_grad():
        assert [g.direction for g in explain(net, x).graphs] == ["inference"]


def test_nothing_is_left_changed(net):
    net.train()
    x = torch.randn(64, 16, requires_grad=True)
    state = {k: v.clone() for k, v in net.state_dict().items()}
    explain(net, x)
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert x.grad is None and all(p.grad is None for p in net.parameters())

    def shift(x):
        return x.add_(torch.rand_like(x))

    argument = torch.zeros(5)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    explain(shift, argument)
    assert torch.equal(argument, torch.zeros(5))
    assert torch.equal(torch.rand(3), expected)
    assert not aten._profilers


@pytest.mark.parametrize("how", ["around", "argument", "method"])
def test_modules_that_a_function_uses(net, how):
    net.train()
    x = torch.randn(64, 16)
    state = {k: v.clone() for k, v in net.state_dict().items()}
    if how == "argument":
        report = explain(lambda m, x: m(x), net, x)
    else:
        report = explain((lambda x: net(x)) if how == "around" else net.forward, x)
    assert [g.direction for g in report.graphs] == ["forward", "backward"]
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())


def test_arguments_that_cannot_be_compared_or_written_to():
    nan = torch.full((1,), float("nan"))
    report = explain(lambda x: x * 2, nan.expand(4))
    assert report.kernels and nan.isnan().all()
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    for x in (torch.eye(3).to_sparse(), torch.empty(3, device="meta"), nested):
        explain(lambda x: x * 2, x)
    sparse, bits = torch.eye(3).to_sparse(), torch.ones(4, dtype=torch.float8_e4m3fn)
    explain(lambda x, y: (x.mul_(2), y.fill_(3)), sparse, bits)
    assert torch.equal(sparse.to_dense(), torch.eye(3)) and torch.equal(bits.float(), torch.ones(4))


def test_other_compilations_stay(net):
    x = torch.randn(64, 16)
    calls = 0

    def backend(gm, inputs):
        nonlocal calls
        calls += 1
        return gm.forward

    with torch.no_grad():
        mine = torch.compile(net, backend=backend)
        ours = torch.compile(net, backend="mlirc")
        mine(x), ours(x)
        compiled = torch._dynamo.utils.counters["mlirc"]["graphs"]
        # Also of what is compiled already, and more often than Dynamo recompiles a function.
        for _ in range(10):
            assert len(explain(ours, x).graphs) == 1
        mine(x), ours(x)
    assert calls == 1
    assert torch._dynamo.utils.counters["mlirc"]["graphs"] == compiled + 10


def test_functions_keyword_arguments_and_graph_breaks():
    def f(x, *, scale):
        y = x * scale
        print(end="")
        return y + 1

    report = explain(f, torch.ones(4), scale=3.0)
    assert len(report.graphs) == 2 and report.nodes == 2 and not report.aten
    assert len(report.graph_breaks) == 1
    text = str(report)
    assert "Nothing is left to ATen." in text and "Graph break (1x)" in text


def test_what_holds_no_graph():
    assert "no graph reached the backend" in str(explain(lambda x: 3, torch.ones(2)))


def test_errors_of_the_compiler_come_through(net, monkeypatch):
    monkeypatch.setenv("MLIRC_OPTIONS", "fallback=0")
    with pytest.raises(Exception, match="would be left to ATen"), torch.no_grad():
        explain(net, torch.randn(4, 16))
    assert not aten._profilers
