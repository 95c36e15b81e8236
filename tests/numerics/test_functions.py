"""Vector math: no function may get worse than the table, and the table has to meet the targets."""

from __future__ import annotations

import pytest
import torch

from mlirc.lowering.target import Target
from mlirc.passes.expand_math import PIECEWISE
from mlirc.tests.numerics import points, table
from mlirc.tests.numerics.formats import BF16, F16, F32
from mlirc.tests.numerics.functions import BINARY, UNARY
from mlirc.tests.numerics.measure import OPTIONS, SAMPLE, arguments, cases, measure

ROWS = table.read()
IDS = [f"{function.name}-{form.name}" for function, form in cases()]


@pytest.mark.parametrize("function, form", cases(), ids=IDS)
def test_no_worse_than_the_table(function, form):
    known = ROWS[function.name, form.name]
    at = [torch.tensor([v], dtype=torch.float64).to(form.dtype) for v in known.at]
    inputs = tuple(torch.cat([x, v]) for x, v in zip(arguments(function, form, SAMPLE), at))
    row = measure(function, form, inputs, eager=False)
    assert row.worst <= known.worst, f"{row.worst:.3f} ulp at {row.at}; the table says {known.worst:.3f}"
    if form in (F16, BF16) and function.name in UNARY:
        assert row.nearest >= known.nearest - 1e-4


@pytest.mark.skipif(not Target.host().gathers_fast, reason="the host computes them in the other tests")
@pytest.mark.parametrize("name", ["gelu", "gelu (tanh)", "mish", "sigmoid", "silu", "tanh", "erf"])
def test_what_the_host_reads_from_a_table_is_as_good_where_it_is_computed(name):
    known, inputs = ROWS[name, BF16.name], arguments(UNARY[name], BF16, SAMPLE)
    row = measure(UNARY[name], BF16, inputs, eager=False, target="x86-64-v4")
    assert row.worst <= known.worst and row.nearest >= known.nearest - 1e-4


@pytest.mark.skipif(not Target.host().has_avx512, reason="the host computes them in the other tests")
@pytest.mark.parametrize("name", [name.split(".")[1] for name in PIECEWISE])
def test_what_avx512_reads_from_registers_is_as_good_on_other_targets(name):
    row = measure(UNARY[name], F32, arguments(UNARY[name], F32, SAMPLE), eager=False, target="x86-64-v3")
    assert row.worst <= ROWS[name, F32.name].worst


@pytest.mark.parametrize("function, form", cases(), ids=IDS)
def test_the_table_meets_the_targets(function, form):
    row = ROWS[function.name, form.name]
    if form.name == "f32":
        assert row.worst <= function.target
    if form in (F16, BF16) and not function.composed:
        assert row.worst <= 1 and row.nearest >= 0.999


GROUPS = [list(UNARY.values())[i::4] for i in range(4)] + [list(BINARY.values())]


@pytest.mark.parametrize("group", range(len(GROUPS)))
@pytest.mark.parametrize(
    "form,sizes",
    [(F32, (1, 33)), (BF16, (3, 17)), *(pytest.param(*other, marks=pytest.mark.sweep) for other in ((F32, (3, 17)), (BF16, (1, 33))))],
    ids=str,
)
def test_scalars_and_tails_see_the_same(form, sizes, group):
    """Every lane of a tail has the value that it has in the middle of a long vector."""
    x = points.spread(F32, 10_000)[:33].to(form.dtype)
    inputs = (x, x.flip(0)) if GROUPS[group][0].name in BINARY else (x,)

    def everything(*inputs):
        return [f.call(*inputs) for f in GROUPS[group]]

    def results(inputs):
        torch._dynamo.reset()
        return torch.compile(everything, backend="mlirc", dynamic=False, options=OPTIONS)(*inputs)

    long = results(tuple(t.repeat(8) for t in inputs))
    for size in sizes:
        for f, whole, part in zip(GROUPS[group], long, results(tuple(t[:size].clone() for t in inputs))):
            torch.testing.assert_close(part, whole[:size], rtol=0, atol=0, equal_nan=True, msg=lambda m, f=f: f"{f.name}: {m}")
