"""The small models and `check` themselves, with backends of torch's own."""

from __future__ import annotations

import pytest
import torch

from mlirc.tests import models


@pytest.mark.parametrize("name", models.ALL)
def test_live_weights_and_eager(name):
    module, args, kwargs = models.ALL[name]()
    for key, parameter in module.named_parameters():
        assert parameter.numel() < 2 or parameter.max() - parameter.min() > 1e-4, key
    # Without this torch 2.13 skips a module that holds an nn.LSTM altogether.
    with torch._dynamo.config.patch(allow_rnn=name == "lstm_tagger"):
        result = models.check(module, args, kwargs, backend="eager")
    assert result.error < 1e-4


@pytest.mark.parametrize("name", ["mlp", "convnet", "gpt2"])
def test_training_compares_gradients_and_buffers(name):
    models.check(*models.ALL[name](), backend="aot_eager", train=True)


def test_bf16():
    models.check(*models.llama_decode(), dtype=torch.bfloat16, backend="aot_eager")


def test_check_sees_a_wrong_result():
    def wrong(gm, example_inputs):
        return lambda *inputs: [x * 1.01 for x in gm(*inputs)]

    with pytest.raises(AssertionError, match="relative error"):
        models.check(*models.mlp(), backend=wrong)


def test_check_sees_a_graph_break():
    class Breaks(torch.nn.Module):
        def forward(self, x):
            x = x + 1
            torch._dynamo.graph_break()
            return x * 2

    with pytest.raises(AssertionError, match="graph break"):
        models.check(Breaks(), (torch.randn(3),), backend="eager")
