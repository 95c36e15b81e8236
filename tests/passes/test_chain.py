"""Kernels that take turns: which, in what parts, and that they are as right as one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mlirc import driver
from mlirc.dialects.mlir import ir
from mlirc.dialects.own import load_for
from mlirc.errors import OptionError
from mlirc.lowering.target import Target
from mlirc.passes.chained import ChainFunction, is_chain
from mlirc.passes.strategy import chains, select_strategy
from mlirc.tests.frontend.compare import compare
from mlirc.tests.frontend.kernels import kernels_of

AMX, AVX512, AVX2 = "sapphirerapids", "x86-64-v4", "x86-64-v3"


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels take turns wherever they can."""
    monkeypatch.setattr(chains, "worthless", lambda *_: "")
    monkeypatch.setattr("mlirc.passes.chain.worthless", lambda *_: "")
