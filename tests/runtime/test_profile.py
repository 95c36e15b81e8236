"""Times per kernel: every kernel is seen, under its name, and results and later calls are as without."""

from __future__ import annotations

import torch

from mlirc.frontend.report import listening
from mlirc.runtime.profile import profiling


def test_seconds_of_each_kernel():
    def f(x, y):
        # A call of ATen between two kernels.
        return torch.softmax(torch.sort(torch.exp(x) @ y).values, -1)

    x, y = torch.randn(8, 16), torch.randn(16, 16)
    compiled = torch.compile(f, backend="mlirc")
    with listening() as graphs:
        expected = compiled(x, y)
    with profiling() as seconds:
        assert torch.equal(compiled(x, y), expected)
        once = dict(seconds)
        compiled(x, y)
    (graph,) = graphs
    assert sorted(graph.symbols[s] for s in seconds) == sorted(graph.kernels)
    assert all(seconds[s] > once[s] > 0 for s in seconds)
    done = dict(seconds)
    assert torch.equal(compiled(x, y), expected) and seconds == done
