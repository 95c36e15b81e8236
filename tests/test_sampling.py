"""What of a test with many cases runs by default."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from mlirc.tests.sampling import sample

pytest_plugins = ["pytester"]

MODULE = """
import pytest

@pytest.mark.sampled
@pytest.mark.parametrize("a, b", [(1, [2]), (1, [3]), (2, [2])])
@pytest.mark.parametrize("c", "xyzw")
def test_many(a, b, c):
    pass

@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.parametrize("b", [1, 2])
def test_all(a, b):
    pass
"""


@pytest.mark.parametrize("sizes", [(3,), (5, 5), (7, 3), (10, 5, 2), (2, 3, 4, 5)], ids=str)
def test_every_value_is_in_a_sample_of_the_longest_parameter(sizes: tuple[int, ...]) -> None:
    cases = list(itertools.product(*map(range, sizes)))
    chosen = [cases[i] for i in sample(cases)]
    assert [len(set(values)) for values in zip(*chosen)] == [*sizes] and len(chosen) == max(sizes)


def test_values_of_one_mark_stay_together() -> None:
    """(1, 2) and (2, 1) leave out (1, 1), whose parts they have: a pair is one value."""
    assert sample([((1, 1),), ((1, 2),), ((2, 1),)]) == [0, 1, 2]


def test_a_module(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MODULE)
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makeini("[pytest]\nmarkers =\n    sweep\n    sampled\n")
    pytester.inline_run("-m", "not sweep").assertoutcome(passed=4 + 4)
    pytester.inline_run("-m", "sweep").assertoutcome(passed=8)
