"""What torch looks up as the backend `mlirc`: the same function, imported without searches for cycles meanwhile."""

from __future__ import annotations

from .collector import paused

with paused():
    from .backend import mlirc

__all__ = ["mlirc"]
