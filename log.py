"""Logging: everything of ours goes to the logger `mlirc` and its children, which TORCH_LOGS can turn on."""

from __future__ import annotations

import logging

ROOT = "mlirc"


def get_logger(name: str = ROOT) -> logging.Logger:
    """The logger of a module: pass `__name__`, or a short name that becomes `mlirc.NAME`. Needs no torch."""
    if name != ROOT and not name.startswith(ROOT + "."):
        name = f"{ROOT}.{name}"
    return logging.getLogger(name)


def register() -> None:
    """Make `mlirc` a log that torch knows, so that `torch._logging.set_logs(modules={"mlirc": ...})` reaches it.

    Called when the backend is imported; calling it again does nothing. TORCH_LOGS is parsed earlier, while torch is
    imported: torch takes a name that it does not know for a module and sets that module's loggers up by itself, so
    TORCH_LOGS="+mlirc" works before this has run. For the same reason nothing is initialised again here, which would
    undo levels and handlers that the user has set by hand.
    """
    from torch._logging import _internal

    if not _internal.log_registry.is_log(ROOT):
        _internal.register_log(ROOT, ROOT)
