"""Where the results of the weights' program lie, and which graphs share them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlirc.runtime.abi import ALIGNMENT
from mlirc.runtime.fingerprint import Samples
from mlirc.runtime.plan import Buffer, KernelStep, Plan, Pointer
from mlirc.runtime.recipes import recipes
from mlirc.runtime.weights import MAX_PLACES, WeightTable, invalidate


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


@pytest.mark.parametrize("nbytes", [1, 3, 4, 7, 8, 9, 12, 16, 40, 63, 64])
def test_small_weights_are_seen_as_a_whole(nbytes):
    weight = torch.zeros(nbytes, dtype=torch.uint8)
    samples = Samples([torch.ones(3), weight])
    seen = {samples.fingerprint()}
    for i in range(nbytes):
        weight[i] = 7
        seen.add(samples.fingerprint())
    assert len(seen) == nbytes + 1


def test_nothing_is_read_outside_of_a_weight():
    whole = np.zeros(300, np.uint8)
    for start, shape, strides in ((8, (100,), (1,)), (9, (3,), (1,)), (16, (5, 9), (20, 1)), (40, (0,), (1,)), (100, (7, 7), (0, 0))):
        weight = torch.from_numpy(whole).as_strided(shape, strides, start)
        end = start + sum((n - 1) * s for n, s in zip(shape, strides)) + 1 if weight.numel() else start
        before = Samples([weight]).fingerprint()
        whole[:start], whole[end:] = 1, 1
        assert Samples([weight]).fingerprint() == before
        whole[...] = 0


def test_storages_that_go():
    memory = np.zeros(1000, np.float32)
    weight = torch.from_numpy(memory)
    samples = Samples([weight])
    before, version = samples.fingerprint(), weight._version
    assert samples.in_place()
    weight.data = torch.empty(0)
    weight.data = torch.from_numpy(memory)  # the same address, version and elements
    assert weight.data_ptr() == memory.ctypes.data and weight._version == version
    assert samples.fingerprint() != before and not samples.in_place()


def test_other_memory_at_the_same_address():
    memory = np.zeros(1000, np.float32)
    weight = torch.from_numpy(memory)
    table, _, _ = filled(["pack"], weight)
    pointers = (weight.data_ptr(),)
    weight.data = torch.empty(0)
    memory[77] = 1
    weight.data = torch.from_numpy(memory)
    table.program.outputs = None
    results = table.results(pointers, [weight])
    assert table.program.outputs == results.addresses
    table.program.outputs = None
    assert table.results(pointers, [weight]) is results and table.program.outputs is None


def test_one_write_that_is_not_counted_is_a_hint_at_others():
    first, second = torch.zeros(1000), torch.zeros(1000)
    program = Recorder("pack", "fold")
    program.plan.n_inputs = 2
    program.plan.steps[1].args[0] = Pointer(Buffer("input", 1))
    table = WeightTable(program, [64, 64])
    pointers = (first.data_ptr(), second.data_ptr())
    a, b = table.results(pointers, [first, second]).addresses
    first.add_(1)
    c, d = table.results(pointers, [first, second]).addresses
    assert c != a and d == b
    first.data[77] += 1  # not seen by itself
    assert table.results(pointers, [first, second]).addresses == [c, d]
    second.data.add_(1)
    e, f = table.results(pointers, [first, second]).addresses
    assert e != c and f != d
    # Nor is it by another graph of these weights.
    kept = table.results(pointers, [first, second])
    first.data[77] += 1
    second.data.add_(1)
    other = WeightTable(program, [64, 64]).results(pointers, [first, second]).addresses
    assert e not in other and f not in other and kept.addresses == [e, f]


def test_tensors_that_move_often():
    weight, still = torch.zeros(100), torch.zeros(100)
    table = WeightTable(Recorder("pack"), [64])
    old = [weight.data]
    for _ in range(3 * MAX_PLACES):
        table.results((weight.data_ptr(),), [weight])
        table.results((still.data_ptr(),), [still])
        old.append(weight.data)
        weight.data = torch.zeros(100)
    assert len(table._entries) == MAX_PLACES + 1
    table.program.outputs = None
    weight.data = old[-2]
    table.results((weight.data_ptr(),), [weight])
    assert table.program.outputs is None, "moved back"
