"""Ours in torch's table of backends, for threads that look it up for the first time at once."""

from __future__ import annotations

from typing import Any

from torch._dynamo.backends import registry

NAME = "mlirc"


class _Backends(dict[str, Any]):
    """`registry._COMPILER_FNS`, where entering ours again is no mistake.

    torch looks whether a backend has been entered, imports it, which takes a while, and then enters it: of several threads all
    but one are told of a duplicate name. What it asks is whether the name is `in` the table; ours is found by its key alone.
    """

    def __contains__(self, name: object) -> bool:
        return name != NAME and super().__contains__(name)


def allow_several_threads() -> None:
    """To be called while this package is imported, which all of the threads wait for."""
    table = getattr(registry, "_COMPILER_FNS", None)
    if isinstance(table, dict) and not isinstance(table, _Backends):
        registry._COMPILER_FNS = _Backends(table)
