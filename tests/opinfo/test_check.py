"""The checker notices wrong values, gradients, shapes and inputs, and exceptions; that the compiler is right shows elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from mlirc.tests.opinfo.cases import Pair
from mlirc.tests.opinfo.check import _error, _Run, check


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
        (Pair("nn.functional.poisson_nll_loss", "bf16"), "forward", _off_by_more, "differs"),
    ],
)
def test_what_a_backend_does_wrong_is_seen(pair, mode, change, outcome):
    row = check(pair, mode, aot_autograd(fw_compiler=_changed(change)))
    assert row.outcome == outcome, row


def _in_f32(outputs):
    return [x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in outputs]


@pytest.mark.parametrize("change", [_in_f32, _one_longer])
def test_a_16_bit_result_of_another_kind_differs(change):
    assert check(Pair("exp", "bf16"), "forward", aot_autograd(fw_compiler=_changed(change))).outcome == "differs"


def _run(*outputs):
    return _Run(list(outputs), [], None)


def test_16_bit_results_may_be_as_far_off_as_eager_mode():
    exact = torch.linspace(1, 2, 64)
    eager, near, far = (((1 + error * torch.linspace(-1, 1, 64).sign()) * exact).bfloat16() for error in (0.03, -0.04, 0.2))
    one, infinite = eager.clone(), eager.clone()
    one[7], infinite[7] = 3.0, torch.inf
    close, reference = (1.6e-2, 1e-5), _run(exact.bfloat16(), 1.5)
    assert _run(near, 1.5).as_near("outputs", _run(eager, 1.5), reference, close)
    for wrong in (_run(far, 1.5), _run(one, 1.5), _run(infinite, 1.5), _run(near, 2.5), _run(near.float(), 1.5), _run(near[:-1], 1.5), _run(near)):
        assert not wrong.as_near("outputs", _run(eager, 1.5), reference, close)


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
