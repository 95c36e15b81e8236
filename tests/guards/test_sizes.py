"""No kernel of the fused groups reaches outside of its buffers: a few sizes here, all of 1 to 70 with `-m sweep`."""

from __future__ import annotations

import pytest
import torch

from mlirc import CompileError, GuardPageError
from mlirc.lowering.target import Target
from mlirc.runtime.faults import available

from .check import check, check_symbolic
from .groups import GROUPS
from .scratch import fenced
from .shifted import READS, shifting

TARGETS = ("host", "x86-64-v3", "skylake-avx512")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# Sizes that share a graph, so that the work of each graph is done once.
CHUNKS = [list(range(n, min(n + 5, 71))) for n in range(1, 71, 5)]

pytestmark = pytest.mark.skipif(not available(), reason="guard pages need Linux on x86-64")


@pytest.fixture
def target(request):
    try:
        Target.parse(request.param).check_runnable()
    except CompileError as error:
        pytest.skip(str(error))
    return request.param


@pytest.mark.parametrize("group", GROUPS)
def test_a_few_sizes(group):
    check(group, [3, 17], torch.float32)


@pytest.mark.parametrize("target", ["x86-64-v3"], indirect=True)
@pytest.mark.parametrize("group", GROUPS)
def test_tails_of_avx2_forward_and_backward(group, target):
    check(group, [5], torch.bfloat16, backward=True, target=target)


@pytest.mark.parametrize("target", ["x86-64-v3"], indirect=True)
def test_siblings_of_avx2_read_no_block_behind_the_last(target):
    """64 columns are blocks of 16, and none of three vectors."""
    check("siblings", [63], torch.float32, target=target)


@pytest.mark.parametrize("group", ["attention"])
def test_symbolic_sizes(group):
    check_symbolic(group, [2, 9, 31], torch.float32)


@pytest.mark.parametrize("group", GROUPS)
def test_reading_one_element_further_is_caught(group, tmp_path):
    own = shifting(tmp_path, READS, 1)
    with pytest.raises(GuardPageError, match="kernel .* reads .*, outside of it"):
        check(group, [7], torch.float32, placement="end", passes=[own])


@pytest.mark.sweep
@pytest.mark.parametrize("chunk", CHUNKS, ids=lambda c: f"{c[0]}-{c[-1]}")
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS, indirect=True)
@pytest.mark.parametrize("group", GROUPS)
def test_all_sizes(group, target, dtype, backward, chunk):
    check(group, chunk, DTYPES[dtype], backward=backward, target=target)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS, indirect=True)
@pytest.mark.parametrize("group", GROUPS)
def test_all_sizes_in_one_compilation(group, target, dtype):
    check_symbolic(group, range(2, 71), DTYPES[dtype], target=target)


@pytest.mark.parametrize("group", ["normalisations", "linears"])
def test_scratch(group, tmp_path):
    check(group, [5, 33], torch.float32, placement="end", passes=[fenced(tmp_path)])


def test_scratch_that_is_too_small_is_noticed(tmp_path):
    with pytest.raises(RuntimeError, match="assertion failed in compiled graph"):
        check("normalisations", [33], torch.float32, placement="end", passes=[fenced(tmp_path, shrink=40)])


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS, indirect=True)
@pytest.mark.parametrize("group", GROUPS)
def test_all_scratch(group, target, dtype, tmp_path):
    for n in range(1, 71, 6):
        check(group, [n], DTYPES[dtype], backward=True, target=target, placement="end", passes=[fenced(tmp_path)])
