"""Where the results of the weights' program lie."""

from __future__ import annotations

import pytest
import torch

from mlirc.runtime.abi import ALIGNMENT
from mlirc.runtime.weights import WeightTable


class Recorder:
    """In place of a program: the addresses that it is called with."""

    def run(self, inputs, outputs):
        self.inputs, self.outputs = inputs, outputs


@pytest.mark.parametrize("nbytes", [[1, 64, 65, 0, 4], [5 << 20, 3, 1 << 20], [0], []], ids=str)
def test_all_results_share_a_block(nbytes):
    program, weight = Recorder(), torch.ones(3)
    table = WeightTable(program, nbytes)
    results = table.results((weight.data_ptr(),), [weight])
    (block,) = results.blocks
    assert program.inputs == (weight.data_ptr(),) and program.outputs == results.addresses
    ends = [a + n for a, n in zip(results.addresses, nbytes)]
    assert all(a % ALIGNMENT == 0 and a >= end for a, end in zip(results.addresses, [block.address, *ends]))
    assert not ends or ends[-1] <= block.address + block.nbytes
    assert table.memory() == sum(nbytes)
