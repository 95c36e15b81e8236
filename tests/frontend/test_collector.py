"""While a graph is compiled nobody looks for garbage; afterwards it is as it was."""

from __future__ import annotations

import gc

import pytest
import torch

from mlirc.frontend.collector import paused


@pytest.mark.parametrize("enabled", [True, False])
def test_afterwards_it_is_as_before(enabled):
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ValueError), paused():
            assert not gc.isenabled()
            with paused():
                pass
            assert not gc.isenabled(), "the inner one has changed nothing"
            raise ValueError
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_compilations_pause_it(monkeypatch):
    from mlirc.frontend import backend

    seen = []
    compile_fx = backend.compile_fx
    monkeypatch.setattr(backend, "compile_fx", lambda *args, **kwargs: seen.append(gc.isenabled()) or compile_fx(*args, **kwargs))
    torch.compile(lambda x: x + 2, backend=backend.mlirc)(torch.ones(3))
    assert seen == [False] and gc.isenabled()
