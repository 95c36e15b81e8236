"""Contexts for compiling kernels: making one, with all upstream dialects, takes as long as the passes of a small kernel."""

from __future__ import annotations

import threading

from .mlir import ir

USES = 100
"""Kernels after which a context, which keeps every type and attribute that it has seen, is replaced."""


class _Mine(threading.local):
    context: ir.Context | None = None
    left = 0


_mine = _Mine()


def kernel_context() -> ir.Context:
    """A context of the calling thread, without threads of its own; what earlier kernels left in it is of no consequence."""
    if _mine.left == 0 or _mine.context is None:
        _mine.context = ir.Context()
        _mine.context.enable_multithreading(False)
        _mine.left = USES
    _mine.left -= 1
    return _mine.context
