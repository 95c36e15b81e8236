"""The stages of a compilation, by name and in order: what runs on a whole graph, and what runs on each kernel.

Dumps, error messages and passes of the user's own all go by these names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..dialects.mlir import PassManager, ir
from . import structure as st
from .fold_transposes import fold_transposes
from .fuse import fuse
from .layouts import Layouts
from .materialize import materialize
from .outline import Kernel, outline
from .pack import pack
from .pad_concats import pad_concats
from .raise_collapses import raise_collapses
from .sink_reshapes import sink_reshapes
from .strategy import pack_shape

if TYPE_CHECKING:
    from ..lowering.target import Target


PURE = ("mlirc.scatter", "mlirc.scan")


@dataclass
class Graph:
    """What the graph passes work on: `function` is `@main` of `module`; the last one fills `kernels`."""

    module: ir.Module
    function: ir.Operation
    writes: Sequence[int]
    target: Target
    kernels: list[Kernel] = field(default_factory=list)

    def clean(self) -> None:
        """Drop what is dead or there twice."""
        while True:
            PassManager.parse("builtin.module(canonicalize,cse)").run(self.module.operation)
            # Of ops that are defined in Python, MLIR does not know that they have no side effects.
            own = [st.operation(o) for b in self.function.regions[0].blocks for o in b.operations if o.operation.name in PURE]
            dead = [o for o in own if not any(True for r in o.results for _ in r.uses)]
            for o in dead:
                o.erase()
            if not dead:
                return


def _sink_reshapes(graph: Graph) -> None:
    sink_reshapes(graph.function)
    graph.clean()
    _fold_transposes(graph)


def _fold_transposes(graph: Graph) -> None:
    fold_transposes(graph.function)
    graph.clean()


def _raise_collapses(graph: Graph) -> None:
    raise_collapses(graph.function)
    graph.clean()
    _fold_transposes(graph)


def _pad_concats(graph: Graph) -> None:
    pad_concats(graph.function)
    graph.clean()


def _outline(graph: Graph) -> None:
    graph.kernels = outline(graph.function, graph.writes)


GRAPH_PASSES: dict[str, Callable[[Graph], None]] = {
    "linalg": lambda graph: None,
    "canonicalize": Graph.clean,
    "fold-transposes": _fold_transposes,
    "sink-reshapes": _sink_reshapes,
    "raise-collapses": _raise_collapses,
    "pad-concats": _pad_concats,
    "materialize": lambda graph: materialize(graph.function, graph.writes),
    "pack": lambda graph: pack(graph.function, pack_shape(graph.target)),
    "fusion": lambda graph: fuse(graph.function, Layouts(graph.function).shapes),
    "outline": _outline,
}
"""`linalg` is the graph as it was imported; after `outline` it consists of calls of kernels."""

KERNEL_STAGES = ("kernel", "vector", "math")
"""The stages of a kernel that a pass can follow: linalg on tensors, vectors in loops, and these with `math` expanded."""
