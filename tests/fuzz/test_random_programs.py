"""Random programs, compiled, against eager mode: a fixed set; `python -m mlirc.tests.fuzz` runs more of them.

The set is kept as text: what hypothesis draws for a seed depends on the modules that are loaded.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlirc.tests.fuzz.chunk import run_chunk
from mlirc.tests.fuzz.executor import Executor, Failure

CORPUS = Path(__file__).with_name("corpus.jsonl")
"""A program in each line, as a JSON string."""


@pytest.fixture(scope="module")
def executor():
    executor = Executor()
    yield executor
    executor.close()


@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.sweep) for part in (2, 3, 4, 5))])
def test_random_programs(part, executor):
    for line in CORPUS.read_text().splitlines()[part::6]:
        executor.check(json.loads(line))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(100, 110))
def test_more_random_programs(seed, executor):
    result = run_chunk(seed, 100, executor)
    if result.failure:
        raise Failure(*result.failure)
