"""No kernel of the fused groups reaches outside of its buffers: a few sizes here, all of 1 to 70 with `-m sweep`."""

from __future__ import annotations

import pytest
import torch

from mlirc import CompileError, GuardPageError
from mlirc.lowering.target import Target
from mlirc.runtime.faults import available

from .check import check, check_symbolic
from .groups import GROUPS
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
