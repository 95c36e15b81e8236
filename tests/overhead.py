"""What compiling many small programs in one process need not pay for: a quarter of the time of tests and fuzzing."""

from __future__ import annotations

import gc
import sys


def without_profiles() -> None:
    """Neither time guards, for which Dynamo flushes the caches at every compilation, nor collect garbage after each. Only where Dynamo is there."""
    guards = sys.modules.get("torch._dynamo.guards")
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *args: 0.0  # type: ignore[union-attr]
    config = sys.modules.get("torch._dynamo.config")
    if hasattr(config, "run_gc_after_compile"):
        config.run_gc_after_compile = False  # type: ignore[union-attr]


def without_modules() -> None:
    """Collect garbage less often, and never look through what the modules that are imported by now have made."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20000, 20, 50)
