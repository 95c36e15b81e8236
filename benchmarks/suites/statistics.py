"""Pass rates and means over the rows of a suite."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from .rows import Row, kind


def geometric_mean(values: Iterable[float]) -> float | None:
    """The geometric mean of positive numbers; None of nothing."""
    numbers = list(values)
    return statistics.geometric_mean(numbers) if numbers else None


@dataclass
class Group:
    """The rows of one suite, dtype, number of threads and backend, of calls or of steps of training."""

    suite: str
    dtype: str
    threads: int
    backend: str
    train: bool
    rows: list[Row]

    @property
    def kind(self) -> str:
        return kind(self.dtype, self.train)

    @property
    def counted(self) -> int:
        """Models that could be built and run in eager mode."""
        return sum(row["outcome"] != "unbuilt" for row in self.rows)

    @property
    def right(self) -> int:
        return sum(row["outcome"] == "right" for row in self.rows)

    @property
    def rate(self) -> float:
        """Share (0 to 1) of the counted models that are right."""
        return self.right / self.counted if self.counted else math.nan

    @property
    def speedup(self) -> float | None:
        """Geometric mean over the models that are right and timed."""
        return geometric_mean(r["speedup"] for r in self.rows if r["outcome"] == "right" and "speedup" in r)


def groups(rows: Iterable[Row]) -> list[Group]:
    """The rows in groups, in the order in which these first appear."""
    found: dict[tuple[str, str, int, str, bool], Group] = {}
    for row in rows:
        key = row["suite"], row["dtype"], row["threads"], row["backend"], row.get("train", False)
        found.setdefault(key, Group(*key, [])).rows.append(row)
    return list(found.values())
