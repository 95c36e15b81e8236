"""Which ATen ops the importer can lower, and how an op says that it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import CompileError

Lowering = Callable[..., Any]
"""`lowering(b, node, *args, **kwargs)`: b is the GraphBuilder, node the FX node; arguments are as in the FX graph, with
nodes replaced by `T`, `Scalar`, numbers, or lists of them. Returns a `T`, or a list of them for several results."""

LOWERINGS: dict[Any, Lowering] = {}


class Unsupported(Exception):
    """This signature stays with ATen; the text is the reason that the user reads."""


class LeaveGraph(CompileError):
    """There is something in the graph that can neither be lowered nor be a call into ATen: all of it has to run there."""


COMPLEX_LOWERINGS: dict[Any, Lowering] = {}
"""Those that complex64 may be among the operands or results of."""

LOWERINGS_BY_NAME: dict[str, Lowering] = {}
"""Those of ops of other libraries, which may not be there: by `OpOverload.name()`."""


def lowering_of(target: Any) -> Lowering | None:
    """How a node's target is lowered, if it is."""
    found = LOWERINGS.get(target)
    if found is None and isinstance(target, torch._ops.OpOverload):
        found = LOWERINGS_BY_NAME.get(target.name())
    return found


def lowers(*targets: Any) -> Callable[[Lowering], Lowering]:
    """Register a lowering for op overloads, for all overloads of an op packet, or for the name of another library's op."""

    def register(f: Lowering) -> Lowering:
        for target in targets:
            if isinstance(target, str):
                LOWERINGS_BY_NAME[target] = f
            elif isinstance(target, torch._ops.OpOverloadPacket):
                for overload in target.overloads():
                    LOWERINGS[getattr(target, overload)] = f
            else:
                LOWERINGS[target] = f
        return f

    return register


def lowers_complex(*targets: Any) -> Callable[[Lowering], Lowering]:
    """Register a lowering for op overloads whose operands or results are complex."""

    def register(f: Lowering) -> Lowering:
        COMPLEX_LOWERINGS.update(dict.fromkeys(targets, f))
        return f

    return register
