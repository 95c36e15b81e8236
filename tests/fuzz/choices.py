"""The numbers that decide a program, as choices among what is possible; 0 always means the simplest one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Reads `numbers` one by one; zeros after their end. Any sequence is a program, so that hypothesis can shrink it."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._rest = iter(numbers)

    def below(self, n: int) -> int:
        """0 to n - 1."""
        return next(self._rest, 0) % n if n > 1 else 0

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def chance(self, n: int) -> bool:
        """True once in n times."""
        return self.below(n) == n - 1
