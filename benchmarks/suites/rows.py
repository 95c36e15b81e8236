"""Results as JSON lines: one row per case, appended as soon as it is there, so that a run can be continued."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]

OUTCOMES = ("right", "wrong", "error", "time", "memory", "unbuilt")
"""right or wrong by PyTorch's rule; the compiler failed; a limit was hit; the model itself could not be built or run."""


@dataclass(frozen=True)
class Case:
    """What a row is about."""

    suite: str
    model: str
    dtype: str
    threads: int
    backend: str
    train: bool = False
    """Steps of training (forward, a loss, backward), not calls."""

    @classmethod
    def of(cls, row: Row) -> Case:
        return cls(row["suite"], row["model"], row["dtype"], row["threads"], row["backend"], row.get("train", False))

    def __str__(self) -> str:
        return f"{self.suite}:{self.model} {self.dtype} {self.backend}" + " training" * self.train


def append(path: Path, row: Row) -> None:
    """Add a row, on a line of its own even after a line that was cut off."""
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(row).encode() + b"\n")


def read(paths: Iterable[Path]) -> list[Row]:
    """The rows of some files, the last one of each case. Lines that were cut off are left out; a missing file has none."""
    latest: dict[Case, Row] = {}
    for path in paths:
        if not path.exists():
            continue
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # the run was stopped while it wrote this
                continue
            latest[Case.of(row)] = row
    return list(latest.values())


def finished(row: Row, timed: bool) -> bool:
    """Whether a rerun need not repeat this row: it failed, it has the times that are asked for, or there can be none."""
    return row["outcome"] != "right" or not timed or "ms" in row or row.get("once", False)


def kind(dtype: str, train: bool) -> str:
    """What a row was measured in: the dtype, and training where it was that."""
    return dtype + ", training" * train
