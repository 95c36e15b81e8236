"""Fixtures of the tests of passes."""

from __future__ import annotations

import pytest

from mlirc import driver
from mlirc.passes.outline import Kernel


@pytest.fixture
def outlined(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """Fills with the kernels of what is compiled."""
    found: list[Kernel] = []
    compile_kernels = driver.compile_kernels
    monkeypatch.setattr(driver, "compile_kernels", lambda ks, *a, **k: found.extend(ks) or compile_kernels(ks, *a, **k))
    return found
