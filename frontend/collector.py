"""Python's garbage collector while a graph is compiled: it would look through all that torch has made, again and again."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No search for cycles inside (0.2 s each, once torch is loaded); afterwards as before.

    Of several threads, the first that ends switches the collector on again, which costs the others time and nothing else.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
