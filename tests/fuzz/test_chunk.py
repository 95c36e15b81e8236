"""Programs are valid, the same seed draws the same ones, and those that fail shrink to what makes them fail."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys

import pytest
import torch

from mlirc.tests.fuzz.__main__ import main
from mlirc.tests.fuzz.chunk import run_chunk
from mlirc.tests.fuzz.executor import Failure
from mlirc.tests.fuzz.grammar import PARTS
from mlirc.tests.fuzz.program import INVALID, Program


class Eager:
    """In place of an executor: runs nothing compiled, and finds fault with each program that has a softmax."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.sources: list[str] = []

    def check(self, source: str) -> None:
        self.sources.append(source)
        source_alone = re.sub(r"from mlirc.tests.fuzz.(check|errors) import .*", "", source)
        exec(source_alone, {"check": self.call, "check_errors": self.call_that_raises})
        if self.wrong and self.wrong in source:
            raise Failure("values", "made up", source)

    def call_that_raises(self, *args, **kwargs) -> None:
        """In place of `check_errors`."""
        with contextlib.suppress(*INVALID):
            self.call(*args, **kwargs)

    def call(self, f, inputs, sizes, dynamic, grad, between=None) -> None:
        """In place of `check`."""
        for n, s in enumerate(sizes):
            module = f() if isinstance(f, type) else None
            for call in range(1, n + 1) if between else ():
                between(module, call)
            with torch.set_grad_enabled(grad):
                (module or f)(*inputs(*s))


def test_programs_run_in_eager_mode_and_seeds_repeat():
    a, b = Eager(), Eager()
    first = run_chunk(4, 40, a)
    assert first.failure is None and first.ok >= 20
    run_chunk(4, 40, b)
    assert a.sources == b.sources


def test_values_have_as_many_dims_in_each_set_of_sizes():
    p = Program(sizes=[(3,), (1,)], dynamic=True)
    assert not p.add_input("tensor((n0, 2), torch.float32, 0).squeeze()")
    assert p.add_input("tensor((n0, 2), torch.float32, 0)")
    assert not p.add("x0.squeeze()") and p.add("x0 * 1")
    assert not p.change("v0.squeeze_()") and not p.change("v0.unsqueeze_(0).squeeze_()")
    assert [v.size(0) for v in p.values] == [1, 1]  # as they were
    assert p.change("v0.unsqueeze_(0)") and [v.dim for v in p.values] == [2, 3]
    assert not p.change("v0.squeeze_(1)") and p.lines == ["v0 = x0 * 1", "v0.unsqueeze_(0)"]


@pytest.mark.parametrize("part", PARTS)
def test_parts(part):
    assert run_chunk(7, 12, Eager(), part=part).ok >= 5


SHRINK = """
import json
from mlirc.tests.fuzz.chunk import run_chunk
from mlirc.tests.fuzz.test_chunk import Eager
print(json.dumps(run_chunk(5, 300, Eager("softmax(")).failure))
"""


def test_failures_shrink():
    """In a process of its own: hypothesis draws constants of all modules that are loaded, so that the tests before would count."""
    done = subprocess.run([sys.executable, "-c", SHRINK], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    kind, message, source = json.loads(done.stdout.splitlines()[-1])
    body = source[source.index("def f(") : source.index("    return", source.index("def f("))].splitlines()[1:]
    assert kind == "values" and len(body) == 1 and "softmax(" in body[0]
    assert "dynamic=False, grad=False" in source


def test_the_command_starts_without_options():
    assert main.make_context("fuzz", []).params["part"] is None
