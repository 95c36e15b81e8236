"""Python's garbage collector while a graph is compiled: it would look through all that torch has made, again and again."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No search for cycles inside, each of which takes 0.2 s once torch is loaded; afterwards as before.

    YOLOv3 waits for four of them instead of five (0.7 and 1.0 s, most of it in Dynamo), BERT for two as before, since one only comes later.
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
