"""`check_errors` sees what is wrong about errors: none, one too many, one of ours, and inputs that are half written."""

from __future__ import annotations

import pytest
import torch

from mlirc.tests.fuzz.check import Difference
from mlirc.tests.fuzz.errors import check_errors
from mlirc.tests.fuzz.tensors import tensor

compiling = torch.compiler.is_compiling


def inputs():
    return tensor((7, 5), torch.float32, 1), torch.tensor([0, 9])


def writes_half(x, i):
    if compiling():
        torch._dynamo.graph_break()
        x[:1] = 5
        torch._dynamo.graph_break()
    y = x[i]
    x[2:] = 5
    return y


WRONG = {
    "no error": lambda x, i: x[i.clamp(max=3)] if compiling() else x[i],
    "error": lambda x, i: x[i] if compiling() else x[i.clamp(max=3)],
    "written": writes_half,
}


@pytest.mark.parametrize("kind", WRONG)
def test_differences_are_seen(kind):
    with pytest.raises(Difference) as e:
        check_errors(WRONG[kind], inputs)
    assert e.value.kind == kind
    assert e.value.by_torch  # every backend does as this one


@pytest.mark.parametrize("line", ["x.index_fill_(0, i, 1)", "x[i] = x[:2]", "x.mul_(2); return x[1 + i // i]", "return x.sum().long() // (i - i)"])
def test_errors_that_are_right(line):
    names: dict = {}
    exec(f"def f(x, i):\n    {line}\n    return x + 1", names)
    check_errors(names["f"], inputs)


def test_what_nobody_reads_is_not_computed():
    """In eager mode it raises; without it, compiled graphs have less to do. So it is with other compilers."""

    def f(x, i):
        y = torch.nn.functional.max_pool1d(x, 2)  # its decomposition needs a module of Inductor
        y.index_fill_(0, i, 1)
        y.fill_(2)
        return y

    with pytest.raises(Difference) as e:
        check_errors(f, inputs)
    assert e.value.kind == "no error" and e.value.by_torch


def test_what_is_overwritten_is_not_computed():
    def f(x, i):
        x.index_fill_(0, i + 100, 1)
        x.copy_(i.sum() * torch.ones(7, 5))

    with pytest.raises(Difference) as e:
        check_errors(f, inputs)
    assert e.value.kind == "no error" and e.value.by_torch
