"""What products on AMX tiles walk over: blocks of k, blocks of rows and lanes, and the rows whose epilogue is still to come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...dialects.mlir import ir
from .lanes import Index, Number


@dataclass(frozen=True)
class Span:
    """A block of k, in words: sums begin with the first one, and are whole after the last."""

    begin: Number
    end: Number
    first: bool
    last: bool


@dataclass(frozen=True)
class Block:
    """Rows from `begin` to `end`, vectors of lanes with their masks, and how many tiles they take."""

    begin: Number
    end: Number
    lanes: list[Index]
    masks: Sequence[ir.Value | None]
    columns: int

    @property
    def first(self) -> Number:
        """Of the lanes."""
        return self.lanes[0].base


@dataclass(frozen=True)
class Pending:
    """Sums of 32 rows from `row` on whose epilogue is still to come, in the scratch from row `place` on; none if not `there`."""

    row: Number
    place: Number
    there: ir.Value
