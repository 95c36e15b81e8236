"""What each result of a weights' plan is computed from, so that graphs of the same weights can share results.

    step k00_pack(weight 3) -> result 0                    result 0: (k00_pack, 0, (weight 3 at 0, the result))
    step k01_fold(result 0, weight 1) -> result 1    ->    result 1: (k01_fold, 0, (<result 0> at 0, weight 1 at 0, the result))

The symbol of a kernel says all that its code depends on, so that equal recipes of the same memory give equal results.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from .plan import KernelStep, Plan, Pointer


@dataclass(frozen=True)
class Weight:
    """The n-th input of the weights' plan."""

    number: int


@dataclass(frozen=True)
class Recipe:
    """Result `position` of a kernel; `arguments` are numbers, or (Weight or Recipe, offset in bytes), or None for results."""

    symbol: str
    position: int
    arguments: tuple[Any, ...]

    def weights(self) -> list[int]:
        """Numbers of the weights that it depends on, in rising order."""
        found: set[int] = set()
        for source in self._sources():
            found.update([source.number] if isinstance(source, Weight) else source.weights())
        return sorted(found)

    def of(self, addresses: Sequence[int]) -> Hashable:
        """The same with the addresses of the weights in place of their numbers."""
        bound = []
        for a in self.arguments:
            if isinstance(a, tuple):
                source, offset = a
                a = (addresses[source.number] if isinstance(source, Weight) else source.of(addresses), offset)
            bound.append(a)
        return self.symbol, self.position, tuple(bound)

    def _sources(self) -> list[Any]:
        return [a[0] for a in self.arguments if isinstance(a, tuple)]


def recipes(plan: Plan) -> list[Recipe]:
    """One for each output of a weights' plan."""
    made: dict[int, Recipe] = {}
    for step in plan.steps:
        assert isinstance(step, KernelStep)
        arguments: list[Any] = []
        results = []
        for a in step.args:
            if not isinstance(a, Pointer):
                arguments.append(a)
            elif a.buffer.kind == "input":
                arguments.append((Weight(a.buffer.index), a.byte_offset))
            elif a.buffer.index in made:
                arguments.append((made[a.buffer.index], a.byte_offset))
            else:
                arguments.append(None)
                results.append(a.buffer.index)
        made.update({index: Recipe(step.symbol, n, tuple(arguments)) for n, index in enumerate(results)})
    return [made[i] for i in range(plan.n_outputs)]
