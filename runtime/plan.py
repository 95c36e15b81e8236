"""What one compiled graph does, as data: buffers, kernel calls and calls back into ATen, in order.

The driver writes a `Plan`; `runtime.program` turns it into one native function. Sizes are integers or sympy expressions
over `Plan.symbols`, evaluated natively at every call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Union

if TYPE_CHECKING:
    import sympy

Expr = Union[int, "sympy.Expr"]


@dataclass(frozen=True)
class Buffer:
    """Some memory that a step reads or writes.

    `index` counts within the kind: graph inputs, graph outputs, `Plan.arena`, `Plan.constants`, or the table of tensors
    that host steps produce.
    """

    kind: Literal["input", "output", "arena", "constant", "host"]
    index: int


@dataclass(frozen=True)
class Pointer:
    """An address: a buffer and an offset in bytes."""

    buffer: Buffer
    byte_offset: Expr = 0


@dataclass
class ArenaBuffer:
    """An intermediate of `nbytes` bytes, live from step `first` to step `last`, both inclusive."""

    nbytes: Expr
    first: int
    last: int


@dataclass
class KernelStep:
    """A call of the exported function `symbol`; `args` fill the context slots from 1 on (slot 0 is the status word)."""

    symbol: str
    args: list[Pointer | Expr | float]


@dataclass
class HostStep:
    """A call of the `index`-th Python callable. All steps before it have run, none after it has."""

    index: int


@dataclass
class Plan:
    """One graph. `steps` run in order; `constants` are raw bytes that stay in memory as long as the program does.

    `n_hosts`: buffers that host steps make, if there are more of them than kernels read.
    """

    symbols: list[str] = field(default_factory=list)
    n_inputs: int = 0
    n_outputs: int = 0
    n_hosts: int = 0
    arena: list[ArenaBuffer] = field(default_factory=list)
    steps: list[KernelStep | HostStep] = field(default_factory=list)
    constants: list[bytes] = field(default_factory=list)
