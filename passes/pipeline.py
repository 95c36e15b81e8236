"""The stages of a compilation, by name and in order: what runs on a whole graph, and what runs on each kernel.

Dumps, error messages and passes of the user's own all go by these names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..dialects.mlir import PassManager, ir
from . import structure as st
from .bucket_updates import bucket_updates
from .chain import chain
from .check_indices import check_indices
from .constants import lay_out_constants
from .convert_parts import convert_parts
from .copy_lines import copy_lines
from .count_updates import count_updates
from .fill_tiles import fill_tiles
from .fit_integers import fit_integers
from .fold_broadcasts import fold_broadcasts
from .fold_transposes import fold_transposes
from .fuse import fuse
from .gather_windows import gather_windows
from .generalize import generalize
from .insert_slices import insert_slices
from .integer_maxima import integer_maxima
from .integer_products import integer_products
from .keep_wide import keep_wide
from .layouts import Layouts
from .materialize import materialize
from .merge_positions import merge_positions
from .narrow_indices import narrow_indices
from .outline import Kernel, outline
from .overwrite import overwrite
from .pack import pack
from .pad_concats import pad_concats
from .pitch_rows import pitch_rows
from .raise_collapses import raise_collapses
from .read_narrow import read_narrow
from .recompute import recompute
from .select_concats import select_concats
from .siblings import mark_siblings
from .sink_reshapes import sink_reshapes
from .split_columns import split_columns
from .split_reductions import split_reductions
from .spread_broadcasts import spread_broadcasts
from .strategy import pack_shape
from .turn_convolutions import turn_convolutions
from .turn_products import turn_products

if TYPE_CHECKING:
    from ..lowering.target import Target


PURE = ("mlirc.scatter", "mlirc.segments", "mlirc.bucket", "mlirc.scan")


@dataclass
class Graph:
    """What the graph passes work on: `function` is `@main` of `module`; the last one fills `kernels`."""

    module: ir.Module
    function: ir.Operation
    writes: Sequence[int]
    target: Target
    kernels: list[Kernel] = field(default_factory=list)

    def __post_init__(self) -> None:
        # One for all runs: a pass builds its patterns the first time that it runs.
        with self.module.context:
            self._cleaner = PassManager.parse("builtin.module(canonicalize,cse)")

    def clean(self) -> None:
        """Drop what is dead or there twice."""
        while True:
            self._cleaner.run(self.module.operation)
            # Of ops that are defined in Python, MLIR does not know that they have no side effects.
            own = [st.operation(o) for b in self.function.regions[0].blocks for o in b.operations if o.operation.name in PURE]
            dead = [o for o in own if not any(True for r in o.results for _ in r.uses)]
            if not dead:
                dead = _repeated(own)
            for o in dead:
                o.erase()
            if not dead:
                return


def _repeated(ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    """Those that do what one before them does, whose results are read instead."""
    first: dict[tuple[object, ...], ir.Operation] = {}
    repeated = []
    for op in ops:
        attributes = tuple(sorted((a, str(op.attributes[a])) for a in op.attributes))
        # Totals of the same numbers may be rounded to different types.
        before = first.setdefault((op.name, op.block, *op.operands, *(str(r.type) for r in op.results), attributes), op)
        if before is not op:
            for mine, other in zip(op.results, before.results):
                mine.replace_all_uses_with(other)
            repeated.append(op)
    return repeated


def _cleaned(*steps: Callable[[ir.Operation], bool | None]) -> Callable[[Graph], None]:
    """Passes on the graph's function, what they leave behind dropped after each, unless it says that it changed nothing."""

    def run(graph: Graph) -> None:
        for step in steps:
            if step(graph.function) is not False:
                graph.clean()

    return run


def _insert_slices(graph: Graph) -> None:
    insert_slices(graph.function, graph.writes)
    graph.clean()


def _integer_products(graph: Graph) -> None:
    if integer_products(graph.function):
        graph.clean()


def _turn_products(graph: Graph) -> None:
    if turn_products(graph.function):
        raise_collapses(graph.function)


def _turn_convolutions(graph: Graph) -> None:
    if turn_convolutions(graph.function, pack_shape(graph.target)):
        _cleaned(fold_transposes, raise_collapses, fold_transposes)(graph)


def _split_columns(graph: Graph) -> None:
    if split_columns(graph.function, graph.target):
        graph.clean()


def _outline(graph: Graph) -> None:
    graph.kernels = outline(graph.function, graph.writes)


def _generalize(graph: Graph) -> None:
    graph.kernels = generalize(graph.function, graph.kernels)


def _chain(graph: Graph) -> None:
    graph.kernels = chain(graph.function, graph.kernels, graph.target)


GRAPH_PASSES: dict[str, Callable[[Graph], None]] = {
    "linalg": lambda graph: None,
    "canonicalize": Graph.clean,
    "insert-slices": _insert_slices,
    "integer-products": _integer_products,
    "integer-maxima": lambda graph: integer_maxima(graph.function),
    "merge-positions": lambda graph: merge_positions(graph.function, pack_shape(graph.target)),
    "gather-windows": lambda graph: gather_windows(graph.function, pack_shape(graph.target)),
    "turn-products": _turn_products,
    "fold-transposes": _cleaned(fold_transposes),
    "split-columns": _split_columns,
    "sink-reshapes": _cleaned(sink_reshapes, fold_transposes),
    "raise-collapses": _cleaned(raise_collapses, fold_transposes),
    "fold-broadcasts": _cleaned(fold_broadcasts),
    "turn-convolutions": _turn_convolutions,
    "split-reductions": _cleaned(split_reductions),
    "spread-broadcasts": _cleaned(spread_broadcasts),
    "pad-concats": _cleaned(pad_concats),
    "convert-parts": _cleaned(convert_parts),
    "select-concats": _cleaned(select_concats),
    "narrow-indices": _cleaned(narrow_indices),
    "bucket-updates": lambda graph: bucket_updates(graph.function, graph.target),
    "check-indices": lambda graph: check_indices(graph.function),
    "count-updates": _cleaned(count_updates),
    "fit-integers": lambda graph: fit_integers(graph.function, pack_shape(graph.target)),
    "materialize": lambda graph: materialize(graph.function, graph.writes),
    "read-narrow": lambda graph: read_narrow(graph.function),
    "copy-lines": lambda graph: copy_lines(graph.function),
    "fill-tiles": lambda graph: fill_tiles(graph.function, pack_shape(graph.target)),
    "pack": lambda graph: pack(graph.function, pack_shape(graph.target)),
    "recompute": lambda graph: recompute(graph.function),
    "constants": lambda graph: lay_out_constants(graph.function),
    "siblings": lambda graph: mark_siblings(graph.function, graph.target),
    "fusion": lambda graph: fuse(graph.function, Layouts(graph.function).shapes),
    "keep-wide": lambda graph: keep_wide(graph.function),
    "overwrite": lambda graph: overwrite(graph.function),
    "pitch-rows": lambda graph: pitch_rows(graph.function, graph.target),
    "outline": _outline,
    "generalize": _generalize,
    "chain": _chain,
}
"""`linalg` is the graph as it was imported; after `outline` it consists of calls of kernels."""

KERNEL_STAGES = ("kernel", "vector", "math")
"""The stages of a kernel that a pass can follow: linalg on tensors, vectors in loops, and these with `math` expanded."""
