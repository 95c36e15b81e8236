"""What to measure against the analytic choice: its neighbourhood, a handful of strategies that might be better on a given machine.

The model knows registers and cache sizes, and neither the latencies nor how much a machine does at once. So for a product:
other shapes of the register tile, the order of the outermost loops, other blocks of the reduction, the loop of the epilogue, and what is
fetched ahead of time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import blocks
from .adjust import Adjustment, Value, adjusted
from .common import PACKED_COLUMNS
from .contractions import ContractionStrategy
from .fetching import levels_compete, may_fetch
from .heights import row_tile
from .traffic import LEAST_NEAR, outer_only, panel_step
from .widths import most_rows, sum_registers

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..vectorize.kernel import KernelFunction

MOST = 7
"""Candidates besides the model's choice."""

Fields = tuple[tuple[str, Value], ...]


def candidates(kernel: KernelFunction, target: Target, model: ContractionStrategy) -> list[Fields]:
    """Fields of the strategies to try, none of them the model's own; each is possible for the kernel."""
    found: dict[str, Fields] = {}
    seen = {repr(model)}
    for proposal in _proposals(kernel, target, model):
        fields = tuple((name, value) for name, value in proposal.items() if getattr(model, name) != value)
        # What is impossible comes back as the model's choice.
        other = adjusted(kernel, target, model, Adjustment(fields))
        if repr(other) not in seen and len(found) < MOST:
            seen.add(repr(other))
            found[repr(other)] = fields
    return list(found.values())


def _proposals(kernel: KernelFunction, target: Target, model: ContractionStrategy) -> Iterator[dict[str, Value]]:
    from ..vectorize.roles import roles

    r = roles(kernel)
    size = kernel.domain.sizes[r.row] if r.row is not None else 1
    if model.dot is not None:
        yield {"unroll": 8}
        yield {"unroll": 2}
        yield {"dot_pairs": not model.dot_pairs}
        return
    if model.tiles:
        yield {"fetch_ahead": False}
        yield {"row_tiles": max(model.row_tiles // 2, 1)}
        yield {"row_tiles": 7}
        if model.depth is not None:
            yield {"depth": model.depth * 3 // 2 // 32 * 32}
        if model.kept is not None:
            yield {"kept": None, "depth": model.kept * 2 // 3 // 32 * 32, "row_tiles": 8}
        if outer_only(kernel, r) and r.outer:
            yield {"lanes_first": not model.lanes_first}
        if model.lines is not None and isinstance(size, int):
            yield {"lines": None, "rows": size if size <= 16 else 32, "row_tiles": -(-size // 32)}
        yield {"rows": 16}
        yield {"columns": 1}
        return
    if model.rows_ahead is not None:
        yield {"rows_ahead": None}
    budget = sum_registers(target)
    most = most_rows(target, model.columns, budget)
    if outer_only(kernel, r) and r.outer:
        yield {"lanes_first": not model.lanes_first}
    fetch = model.shared is None and may_fetch(kernel, r, target, model.lanes)
    for columns in (3, 4, 1, 2):
        if columns != model.columns:
            # Panels side by side are streams of their own.
            yield {"columns": columns, "rows": row_tile(size, most_rows(target, columns, budget)), "fetch_ahead": fetch and columns <= PACKED_COLUMNS}
    if model.fetch_ahead and levels_compete(target):
        yield {"fetch_level": 3 - model.fetch_level}
    if isinstance(size, int):
        yield {"rows": -(-size // -(-size // most))}  # as high as it can be, whatever is left for the last tile
    yield {"rows": row_tile(size, most)}
    step = panel_step(kernel, r, model.columns * model.lanes)
    if step is not None and len(kernel.domain.siblings) == 1:
        if model.depth is not None:
            yield {"depth": max(model.depth // 2 // 16, 1) * 16}
            yield {"depth": None, "row_tiles": 4}
        else:
            yield {"depth": max(blocks.rows_bytes(target.caches) // (LEAST_NEAR * 4) // 16, 1) * 16, "row_tiles": 8, "group": 8, "rows_copied": True}
    yield {"rows": row_tile(size, max(most * 2 // 3, 1))}
    yield {"looped_epilogue": not model.looped_epilogue}
    yield {"rows": row_tile(size, max(most // 2, 1))}
    yield {"turned": False}


__all__ = ["MOST", "Fields", "candidates"]
