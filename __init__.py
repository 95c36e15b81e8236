"""mlirc: `torch.compile(model, backend="mlirc")` for CPUs, through MLIR.

Everything here is loaded on first use: importing the package imports neither torch nor the MLIR bindings, because the
compile workers import it too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .errors import CompileError as CompileError
    from .errors import GuardPageError as GuardPageError
    from .frontend.backend import mlirc as backend
    from .frontend.explain import explain as explain
    from .frontend.export import export as export
    from .lowering.target import Target as Target
    from .options import Options as Options
    from .passes.registry import register_pass as register_pass
    from .passes.registry import register_strategy as register_strategy
    from .runtime.weights import invalidate as invalidate

_HOMES = {
    "backend": (".frontend.backend", "mlirc"),
    "explain": (".frontend.explain", "explain"),
    "export": (".frontend.export", "export"),
    "invalidate": (".runtime.weights", "invalidate"),
    "Options": (".options", "Options"),
    "CompileError": (".errors", "CompileError"),
    "GuardPageError": (".errors", "GuardPageError"),
    "Target": (".lowering.target", "Target"),
    "register_pass": (".passes.registry", "register_pass"),
    "register_strategy": (".passes.registry", "register_strategy"),
}

__all__ = [
    "CompileError", "GuardPageError", "Options", "Target", "backend", "explain", "export", "invalidate", "register_pass", "register_strategy"
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Load a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = getattr(importlib.import_module(module, __name__), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
