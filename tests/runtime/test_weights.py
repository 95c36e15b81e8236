"""Where the results of the weights' program lie, and which graphs share them."""

from __future__ import annotations

import pytest
import torch

from mlirc.runtime.abi import ALIGNMENT
from mlirc.runtime.plan import Buffer, KernelStep, Plan, Pointer
from mlirc.runtime.recipes import recipes
from mlirc.runtime.weights import WeightTable, invalidate


class Recorder:
    """In place of a program, whose kernels have these symbols and one result each: the addresses that it is called with."""

    def __init__(self, *symbols):
        weight = Pointer(Buffer("input", 0))
        steps = [KernelStep(s, [weight, Pointer(Buffer("output", i))]) for i, s in enumerate(symbols)]
        self.plan = Plan([], 1, len(symbols), steps=steps)
        self.inputs = self.outputs = None

    def run(self, inputs, outputs):
        self.inputs, self.outputs = inputs, outputs


@pytest.mark.parametrize("nbytes", [[1, 64, 65, 0, 4], [5 << 20, 3, 1 << 20], [0], []], ids=str)
def test_all_results_share_a_block(nbytes):
    program, weight = Recorder(*range(len(nbytes))), torch.ones(3)
    table = WeightTable(program, nbytes)
    results = table.results((weight.data_ptr(),), [weight])
    blocks = {k.block for k in results.memory}
    if not nbytes:
        assert not blocks and program.inputs is None
        return
    (block,) = blocks
    assert program.inputs == (weight.data_ptr(),) and program.outputs == results.addresses
    ends = [a + n for a, n in zip(results.addresses, nbytes)]
    assert all(a % ALIGNMENT == 0 and a >= end for a, end in zip(results.addresses, [block.address, *ends]))
    assert ends[-1] <= block.address + block.nbytes
    assert table.memory() == sum(nbytes)


def filled(symbols, weight):
    """(addresses of the results, what the program was told to write to; None if it did not run)."""
    program = Recorder(*symbols)
    table = WeightTable(program, [256] * len(symbols))
    return table, table.results((weight.data_ptr(),), [weight]).addresses, program.outputs


def test_graphs_share_what_they_compute_alike():
    weight = torch.randn(64)
    first, (a, b), ran = filled(["pack", "fold"], weight)
    assert ran == [a, b]
    second, (c, d), ran = filled(["fold", "cast"], weight)
    assert c == b and d not in (a, b) and ran[1] == d and ran[0] != b
    third, both, ran = filled(["cast", "pack"], weight)
    assert both == [d, a] and ran is None
    del first, second
    assert filled(["fold"], weight)[2] is not None and filled(["pack"], weight)[2] is None


def test_no_results_of_other_weights():
    weight = torch.zeros(64)
    kept, _, _ = filled(["pack"], weight)
    assert filled(["pack"], weight.detach())[2] is not None, "another tensor, which may go sooner"
    for change in (lambda: weight.add_(1), lambda: weight.data.add_(1), invalidate):
        kept, _, _ = filled(["pack"], weight)
        assert filled(["pack"], weight)[2] is None
        change()
        assert filled(["pack"], weight)[2] is not None


def test_recipes_follow_results():
    weight, other = Pointer(Buffer("input", 0), 8), Pointer(Buffer("input", 1))
    one, two, three = (Pointer(Buffer("output", i)) for i in range(3))
    plan = Plan([], 2, 3, steps=[KernelStep("split", [weight, 5, one, two]), KernelStep("add", [two, other, three])])
    made = recipes(plan)
    assert [r.weights() for r in made] == [[0], [0], [0, 1]]
    assert len({r.of([64, 128]) for r in made}) == 3 and made[2].of([64, 128]) != made[2].of([72, 128])
