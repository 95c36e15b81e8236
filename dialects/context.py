"""Contexts for compiling kernels, and passes set up for them: making one, with all upstream dialects, takes as long as the passes of a small kernel."""

from __future__ import annotations

import threading

from .mlir import PassManager, ir

USES = 100
"""Kernels after which a context, which keeps every type and attribute that it has seen, is replaced."""


class _Mine(threading.local):
    def __init__(self) -> None:
        self.context: ir.Context | None = None
        self.left = 0
        self.passes: dict[tuple[str, bool], PassManager] = {}


_mine = _Mine()


def kernel_context() -> ir.Context:
    """A context of the calling thread, without threads of its own; what earlier kernels left in it is of no consequence."""
    if _mine.left == 0 or _mine.context is None:
        _mine.context = ir.Context()
        _mine.context.enable_multithreading(False)
        _mine.left = USES
        _mine.passes = {}
    _mine.left -= 1
    return _mine.context


def pass_manager(pipeline: str, verify: bool = True) -> PassManager:
    """Passes (`canonicalize,cse`) on modules of the current context, with or without verifying in between.

    Those for a context of kernels are kept with it: a pass builds its patterns the first time that it runs, which takes as long as a
    small kernel.
    """
    mine = ir.Context.current is _mine.context
    manager = _mine.passes.get((pipeline, verify)) if mine else None
    if manager is None:
        manager = PassManager.parse(f"builtin.module({pipeline})")
        manager.enable_verifier(verify)
        if mine:
            _mine.passes[pipeline, verify] = manager
    return manager
