"""Which cases of a test with many parameters run by default: enough that each value of each parameter is seen.

A test that is marked `sampled`, with stacked `parametrize` marks, is the product of their values. The default run has a sample in which every
value occurs ("each choice"), the other cases are a sweep (`-m sweep`). Of the faults that Kuhn, Wallace and Gallo looked at ("Software Fault
Interactions and Implications for Software Testing", IEEE TSE 30(6), 2004) one value alone showed 29 to 68%, certain pairs up to 97%: where a
pair matters, leave the mark away or write the pair as values of one `parametrize`, which stay together.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pytest


def sample(cases: Sequence[Sequence[Hashable]]) -> list[int]:
    """Numbers of few cases, in order, that have all values between them. `cases`: of each case its value of every parameter.

    Greedy: always the case next that has most values that none before has; among equals the one whose values were taken least often, so that
    values meet others than those of their own place.
    """
    pairs = [{*enumerate(case)} for case in cases]
    missing = set().union(*pairs)
    taken = dict.fromkeys(missing, 0)
    chosen: list[int] = []
    while missing:
        best = min(range(len(cases)), key=lambda i: (-len(pairs[i] & missing), sum(taken[p] for p in pairs[i]), i))
        chosen.append(best)
        missing -= pairs[best]
        for p in pairs[best]:
            taken[p] += 1
    return sorted(chosen)


def mark_sweeps(items: Sequence[pytest.Item]) -> None:
    """Give all cases of the tests marked `sampled` that are not in their sample the mark `sweep`."""
    tests: dict[object, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("sweep"):
            tests.setdefault(getattr(item, "function", item), []).append(item)
    for cases in tests.values():
        shown = {*sample([_values(item) for item in cases])}
        for n, item in enumerate(cases):
            if n not in shown:
                item.add_marker(pytest.mark.sweep)


def _values(item: pytest.Item) -> list[Hashable]:
    """By identity: the same object stands in all cases that have it, and may not be hashable."""
    params = item.callspec.params  # type: ignore[attr-defined]
    marks = [mark.args[0] for mark in item.iter_markers("parametrize")]
    return [tuple(id(params[n.strip()]) for n in (names.split(",") if isinstance(names, str) else names)) for names in marks]
