"""Shared by all tests: nothing that one test compiled or tuned may reach the next."""

from __future__ import annotations

import importlib
import signal
import sys
import zlib

import pytest

from mlirc.lowering.codegen import own_process
from mlirc.tests import overhead, sampling

pytest.register_assert_rewrite("mlirc.tests.models")


def pytest_configure():
    """A shell starts what runs behind it (`make test &`) with interrupts ignored, and what the tests start and interrupt would be as well."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    own_process()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
    sampling.mark_sweeps(items)


def pytest_collection_finish():
    overhead.without_modules()


@pytest.fixture(autouse=True)
def _seed(request):
    """A test draws the same numbers on its own and after any others, which the run's workers share out differently each time."""
    seed = zlib.crc32(request.node.nodeid.encode())
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    if "rng" in vars(request.module):
        request.module.rng = type(request.module.rng)(type(request.module.rng.bit_generator)(seed))


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    """Forget Dynamo's compilations and counters after a test that used torch; tests of the torch-free parts stay torch-free."""
    overhead.without_profiles()
    yield
    if "torch" in sys.modules and "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
        sys.modules["torch._dynamo.utils"].counters.clear()


@pytest.fixture
def cache_dir(tmp_path, monkeypatch):
    """A kernel cache of the test's own, for this process and those it starts (through MLIRC_OPTIONS)."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MLIRC_OPTIONS", f"cache_dir={folder}")
    return folder


@pytest.fixture
def bucket_above(monkeypatch):
    """`bucket_above(n)`: updates of results that are larger than n times the second cache are sorted into buckets; 0 for all."""
    strategy = importlib.import_module("mlirc.passes.strategy.scatter")  # the name is a function of the folder, too
    return lambda n: [monkeypatch.setattr(strategy, name, n) for name in ("LARGE", "LARGE_OF_WIDE")]
