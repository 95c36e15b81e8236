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


def lowers(*targets: Any) -> Callable[[Lowering], Lowering]:
    """Register a lowering for op overloads, or for all overloads of an op packet."""

    def register(f: Lowering) -> Lowering:
        for target in targets:
            if isinstance(target, torch._ops.OpOverloadPacket):
                for overload in target.overloads():
                    LOWERINGS[getattr(target, overload)] = f
            else:
                LOWERINGS[target] = f
        return f

    return register
