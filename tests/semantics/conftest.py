"""Compilations that Dynamo gives up on would compare eager mode with itself: they are errors here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_silent_eager():
    import torch._dynamo

    with torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True):
        yield
