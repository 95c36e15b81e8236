"""Random graphs, compiled whole, against eager."""

from __future__ import annotations

import pytest

from mlirc.tests.frontend.compare import compare
from mlirc.tests.frontend.random_graphs import Builder

# Those that have found something: reductions read elsewhere than at their place, broadcasts that only a guard shows.
KNOWN = (0, 10, 20, 145)


def run(seed: int, dynamic: bool) -> None:
    graph = Builder(seed)
    try:
        compare(lambda *x: graph(*x), *graph.inputs, dynamic=dynamic)
    except Exception as e:
        raise AssertionError(f"seed {seed}, dynamic={dynamic}:\n{graph}") from e


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("seed", [*KNOWN, *range(1000, 1010)])
def test_random_graphs(seed, dynamic):
    run(seed, dynamic)


@pytest.mark.sweep
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("seed", range(2000, 2300))
def test_many_random_graphs(seed, dynamic):
    run(seed, dynamic)
