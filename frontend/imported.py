"""What the importer hands on: the module, and as data what Python needs to call the compiled graph."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
import torch.fx

from ..dialects.mlir import ir
from .extents import Extent
from .replay import Replay


@dataclass
class TensorSpec:
    """Sizes and strides (integers or expressions, logical order) and dtype of a tensor that Python handles."""

    shape: tuple[Extent, ...]
    strides: tuple[Extent, ...]
    dtype: torch.dtype


@dataclass
class OutputSpec:
    """One output of the graph: a new tensor, a view of another output or that output itself, an input or a view of one, a
    number, or None."""

    kind: str  # "tensor" | "view" | "same" | "input" | "replay" | "number" | "none"
    tensor: TensorSpec | None = None
    gaps: tuple[Extent, ...] | None = None
    """Strides of a new tensor that leave out memory between its elements: the program makes it without gaps, a copy has them.
    Callers go by them; the backward graph of a forward graph reads its results so."""
    order: tuple[int, ...] | None = None
    """Of a new tensor that may lie as the program makes it: the order of its dims in the program's result."""
    input: int = -1
    number: Any = None
    base: int = -1
    """The other output; a view shows its memory from element `offset` on."""
    offset: Extent = 0
    lazy: tuple[bool, bool] = (False, False)
    """Whether the view is of the conjugates, or negatives, of the numbers in memory."""
    detached: bool = False
    """Whether no gradient flows into the other output by way of the view."""
    replay: Replay | None = None


@dataclass
class Spent:
    """Seconds in a call while `frontend.aten.profiling` was on. Apart from the call, which holds graphs: reports outlive these."""

    seconds: float = 0.0


@dataclass
class AtenCall:
    """A node left to ATen. `arguments` is (args, kwargs) with `Slot` in place of tensors and expressions of numbers."""

    name: str
    target: Any
    arguments: Any
    operands: list[TensorSpec]
    results: list[TensorSpec | None]
    single: bool
    reason: str
    node: str
    source: str | None
    strides: list[tuple[Extent, ...] | None] = field(default_factory=list)
    """Per operand: the strides that the op may count on, or None. Where an operand lies depends on what it is computed from:
    the copy that gave it these strides in the graph may be gone."""
    spent: Spent = field(default_factory=Spent)


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A graph among the arguments of a call."""

    gm: torch.fx.GraphModule


@dataclass(frozen=True)
class Slot:
    """The n-th tensor operand of an ATen call."""

    index: int


@dataclass
class ImportedGraph:
    """The module and what surrounds it.

    `inputs[i]` is what FX placeholder i is: a TensorSpec, or a sympy expression for a SymInt; `constants` are tensors of the
    graph itself, passed behind the placeholders. The results of `@main` are the outputs of kind "tensor" in order, then one
    per entry of `writes`: the input position that it overwrites. The first `returned` outputs are those of the FX graph;
    others are only there to be the memory of views.
    """

    module: ir.Module
    inputs: list[TensorSpec | sympy.Expr | None] = field(default_factory=list)
    symbols: list[sympy.Symbol] = field(default_factory=list)
    outputs: list[OutputSpec] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    aten_calls: list[AtenCall] = field(default_factory=list)
    constants: list[torch.Tensor] = field(default_factory=list)
    seeds: int = 0
    """How many seeds of random numbers each call draws; they are inputs behind the constants."""
    rounded: dict[sympy.Symbol, sympy.Expr] = field(default_factory=dict)
    """Symbols that stand for expressions of the other ones."""
    returned: int = 0
    nodes: int = 0

    @property
    def tensors(self) -> list[int]:
        """The positions of the tensors among the inputs: the program's inputs, in order."""
        return [i for i, spec in enumerate(self.inputs) if isinstance(spec, TensorSpec)]


def source_of(n: torch.fx.Node) -> str | None:
    """`file:line` of the user's model, from the innermost frame that is not torch's own."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', n.meta.get("stack_trace") or n.stack_trace or "")
    if not frames:
        return None
    path, line = next((f for f in reversed(frames) if "/torch/nn/" not in f[0]), frames[-1])
    return f"{path}:{line}"
