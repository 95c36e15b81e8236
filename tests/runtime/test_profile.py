"""Times per kernel: every kernel is seen, under its name, and results and later calls are as without."""

from __future__ import annotations

import contextlib
import ctypes

import torch

from mlirc.frontend.report import listening
from mlirc.runtime.plan import Buffer, HostStep, KernelStep, Plan, Pointer
from mlirc.runtime.profile import profiling
from mlirc.runtime.program import Program

from .test_program import OBJECTS


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


def test_calls_during_which_it_begins_or_ends():
    """In another thread, say: they go on as they have begun."""
    result = ctypes.c_int64(0)
    out = Pointer(Buffer("output", 0))
    plan = Plan(n_outputs=1, steps=[KernelStep("fill", [1, 1, out]), HostStep(0), KernelStep("copy", [2, out])])
    with contextlib.ExitStack() as stack:
        program = Program(plan, OBJECTS, [lambda frame: stack.enter_context(profiling())])
        program.run([], [ctypes.addressof(result)])
    assert result.value == 2
    with contextlib.ExitStack() as stack:
        program = Program(plan, OBJECTS, [lambda frame: stack.close()])
        seconds = stack.enter_context(profiling())
        program.run([], [ctypes.addressof(result)])
        assert result.value == 2 and set(seconds) == {"fill", "copy"}
        program.run([], [ctypes.addressof(result)])


def test_two_at_once():
    result = ctypes.c_int64(0)
    program = Program(Plan(n_outputs=1, steps=[KernelStep("fill", [1, 5, Pointer(Buffer("output", 0))])]), OBJECTS)
    before = program.way
    first, second = profiling(), profiling()
    first.__enter__()
    seconds = second.__enter__()
    for leave in (lambda: None, lambda: first.__exit__(None, None, None), lambda: second.__exit__(None, None, None)):
        leave()
        result.value = 0
        program.run([], [ctypes.addressof(result)])
        assert result.value == 5
    assert seconds["fill"] > 0 and program.way == before
