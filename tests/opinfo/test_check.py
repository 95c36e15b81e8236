"""The checker notices wrong values, gradients, shapes and inputs, and exceptions; that the compiler is right shows elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from mlirc.tests.opinfo.cases import Pair
from mlirc.tests.opinfo.check import _error, check


def _changed(change):
    """A backend that hands on what `change` makes of the graph's outputs."""

    def compiler(gm, example_inputs):
        def run(*args):
            return change(list(gm(*args)))

        return run

    return compiler


def _off_by_a_little(outputs):
    return [x * 1.001 if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in outputs]


def _off_by_more(outputs):
    return [x * 1.03 if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in outputs]


def _one_longer(outputs):
    return [torch.cat([x, x[-1:]]) if isinstance(x, torch.Tensor) and x.dim() else x for x in outputs]


def _raises(outputs):
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize(
    ("pair", "mode", "change", "outcome"),
    [
        (Pair("exp", "f32"), "forward", lambda outputs: outputs, "eager"),
        (Pair("exp", "f32"), "forward", _off_by_a_little, "differs"),
        (Pair("exp", "f64"), "dynamic", _off_by_a_little, "differs"),
        (Pair("cumsum", "i64"), "forward", _one_longer, "differs"),
        (Pair("exp", "f32"), "forward", _raises, "raises"),
        (Pair("module:nn.Linear", "f32"), "forward", _off_by_a_little, "differs"),
        (Pair("nn.functional.poisson_nll_loss", "bf16"), "forward", lambda outputs: outputs, "eager"),
        (Pair("nn.functional.poisson_nll_loss", "bf16"), "forward", _off_by_more, "differs"),
    ],
)
def test_what_a_backend_does_wrong_is_seen(pair, mode, change, outcome):
    row = check(pair, mode, aot_autograd(fw_compiler=_changed(change)))
    assert row.outcome == outcome, row


@pytest.mark.parametrize("pair", [Pair("mul", "f32"), Pair("module:nn.Conv2d", "f32")])
def test_a_wrong_gradient_is_seen(pair):
    same = _changed(lambda outputs: outputs)
    assert check(pair, "gradient", aot_autograd(fw_compiler=same)).outcome == "eager"
    row = check(pair, "gradient", aot_autograd(fw_compiler=same, bw_compiler=_changed(_off_by_a_little)))
    assert row.outcome == "differs" and "gradient" in row.detail


def test_what_eager_raises_too_is_not_counted():
    assert check(Pair("cholesky", "i64"), "forward").outcome == "nothing"


def test_native_stacks_are_left_out():
    frames = "".join(f"\nframe #{i}: f(int) + 0x{i} (0x7e0 in lib.so)" for i in range(500))
    try:
        raise ValueError(f"no such thing{frames}\n{('quoted' + frames)!r}, and so on")
    except ValueError:
        text = _error()
    assert text.startswith("Traceback") and "ValueError: no such thing" in text and "and so on" in text
    assert "frame #" not in text
