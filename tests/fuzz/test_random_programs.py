"""Random programs, compiled, against eager mode: a fixed set; `python -m mlirc.tests.fuzz` runs more of them."""

from __future__ import annotations

import pytest

from mlirc.tests.fuzz.chunk import run_chunk
from mlirc.tests.fuzz.executor import Executor, Failure


@pytest.fixture(scope="module")
def executor():
    executor = Executor()
    yield executor
    executor.close()


@pytest.mark.parametrize("seed", range(3))
def test_random_programs(seed, executor):
    result = run_chunk(seed, 60, executor, shrink=False)
    if result.failure:
        raise Failure(*result.failure)
    assert result.ok >= 30


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(100, 110))
def test_more_random_programs(seed, executor):
    result = run_chunk(seed, 100, executor)
    if result.failure:
        raise Failure(*result.failure)
