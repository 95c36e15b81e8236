"""No kernel of the demo models reaches outside of its buffers: two small ones here, all and at their own sizes with `-m sweep`."""

from __future__ import annotations

import pytest
import torch

from mlirc.benchmarks import verdict
from mlirc.benchmarks.models import MODELS, build
from mlirc.runtime.faults import available
from mlirc.tests import models

from .test_sizes import DTYPES, TARGETS, target  # noqa: F401

pytestmark = pytest.mark.skipif(not available(), reason="guard pages need Linux on x86-64")


@pytest.fixture(autouse=True)
def guarded(monkeypatch):
    """All that is compiled here runs between guard pages; nn.LSTM is compiled, too."""
    monkeypatch.setenv("MLIRC_OPTIONS", "guard_pages=both")
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def compile_for(monkeypatch, target: str) -> None:  # noqa: F811
    monkeypatch.setenv("MLIRC_OPTIONS", f"guard_pages=both,target={target}")


@pytest.mark.parametrize("name, train", [("encoder_layer", True), ("unet", False), ("llama_decode", False)])
def test_small_models(name, train):
    models.check(*models.ALL[name](), train=train)


@pytest.mark.sweep
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS, indirect=True)
@pytest.mark.parametrize("name", models.ALL)
def test_all_small_models(name, target, dtype, train, monkeypatch):  # noqa: F811
    if train and name == "llama_decode":
        pytest.skip("decoding is not trained")
    compile_for(monkeypatch, target)
    models.check(*models.ALL[name](), dtype=DTYPES[dtype], train=train)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS, indirect=True)
@pytest.mark.parametrize("name", MODELS)
def test_models_at_their_own_sizes(name, target, dtype, monkeypatch):  # noqa: F811
    compile_for(monkeypatch, target)
    module, args, kwargs = build(name)
    module = module.to(DTYPES[dtype])
    args, kwargs = verdict.cast((args, kwargs), DTYPES[dtype])
    compiled = torch.compile(module, backend="mlirc", options={"strict": True})
    with torch.no_grad():
        expected, got = (verdict.tensors(f(*args, **kwargs)) for f in (module, compiled))
    # Exactness is for other tests; what nobody has written is NaN, which the error does not see.
    assert all(g.isfinite().all() for g in got if g.is_floating_point())
    assert verdict.relative_error(expected, got) < {"f32": 1e-2, "bf16": 0.3}[dtype]
