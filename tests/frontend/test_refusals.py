"""What ATen refuses, though torch describes its result, is eager mode's error in compiled programs too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.frontend import refusals
from mlirc.tests.frontend.compare import OPTIONS
from mlirc.tests.frontend.elementwise import matches

I8, U8, F16, BOOL = torch.arange(5, dtype=torch.int8), torch.arange(5, dtype=torch.uint8), torch.linspace(-2, 2, 5).half(), torch.arange(5) > 2
PLACES = torch.tensor([0, 2])


def refuses(f, *args):
    """Assert that `f` raises the same error compiled as in eager mode."""
    with pytest.raises(Exception) as eager:  # noqa: PT011 - which one is what we compare
        f(*args)
    torch._dynamo.reset()
    with pytest.raises(type(eager.value)) as compiled:
        torch.compile(f, backend="mlirc", dynamic=False, options=OPTIONS)(*args)
    assert str(compiled.value).splitlines()[0] == str(eager.value).splitlines()[0]


NUMBERS = {
    "masked_fill": lambda x, v: x.masked_fill(x > 1, v),
    "fill_": lambda x, v: x.clone().fill_(v),
    "full_like": lambda x, v: torch.full_like(x, v),
    "full": lambda x, v: torch.full((3, 4), v, dtype=x.dtype) + x[0],
    "new_full": lambda x, v: x.new_full((1000,), v),
    "clamp": lambda x, v: x.clamp(-1, v),
    "alpha": lambda x, v: torch.add(x, x, alpha=v),
    "factor": lambda x, v: torch.addcmul(x, x, x, value=v),
    "hardtanh": lambda x, v: F.hardtanh(x, -1, v),
    "threshold": lambda x, v: F.threshold(x, 1, v),
    "index_fill": lambda x, v: x.index_fill(0, PLACES, v),
    "scatter": lambda x, v: x.scatter(0, PLACES, v),
    "pad": lambda x, v: F.pad(x, (1, 1), value=v),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_do_not_fit(name):
    f = NUMBERS[name]
    refuses(lambda x: f(x, 300), I8)
    if name != "factor":  # of two-byte floats it is f32
        refuses(lambda x: f(x, 1e5), F16)
    matches(lambda x: f(x, 100), I8)


def test_numbers_that_wrap():
    """Arithmetic takes numbers as they come, and a negative one fits an unsigned type."""
    matches(lambda x: (x + 300, x * 300, x & 300, x - 3000), I8)
    matches(lambda x: (x.masked_fill(x > 1, -1), x.clamp(max=250), x.fill_(-255)), U8)
    refuses(lambda x: x.masked_fill(x > 1, -256), U8)
    refuses(lambda x: torch.where(x > 1, x, 200), I8)
    refuses(lambda x: x**300, I8)


BOOLS = {
    "abs": torch.abs,
    "relu": torch.relu,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "sub": lambda x: x - 1,
    "sub of True": lambda x: x.float() - True,
    "fmod": lambda x: torch.fmod(x, True),
    "remainder": lambda x: x % True,
    "clamp": lambda x: x.clamp(max=True),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "threshold": lambda x: F.threshold(x, 1, 1),
    "avg_pool": lambda x: F.avg_pool2d(x.reshape(1, 1, 1, 5), (1, 2)),
    "convolution": lambda x: F.conv1d(x.reshape(1, 1, 5), x[None, None, :2]),
    "reflection": lambda x: F.pad(x[None, None], (1, 1), mode="reflect"),
    "mv": lambda x: torch.mv(x[None], x),
    "alpha of True": lambda x: torch.add(x.float(), 1, alpha=True),
}


@pytest.mark.parametrize("name", BOOLS)
def test_bools(name):
    refuses(BOOLS[name], BOOL)


def test_targets_of_other_types():
    target = torch.tensor([0, 1, 1])
    refuses(lambda x, t: F.nll_loss(x, t), torch.randn(3, 4), target.int())
    refuses(lambda x, t: F.cross_entropy(x, t), torch.randn(3, 4), target.int())
    matches(lambda x, t: F.cross_entropy(x, t), torch.randn(3, 4), target)


def test_probabilities_are_some():
    p = torch.rand(3, 4)
    matches(lambda p, t: F.binary_cross_entropy(p, t), p, p.round())


def test_places_that_operands_name_are_there():
    x = torch.randn(3, 7)
    matches(lambda x, y: torch.searchsorted(x, y, sorter=x.argsort(), right=True), x, torch.randn(3, 2), aten=True)
    assert refusals.refusal(torch.ops.aten.searchsorted.Tensor, (x, x), {"sorter": x.argsort()}) is None


def test_integers():
    refuses(F.logsigmoid, I8)
    refuses(lambda x: F.avg_pool2d(x.reshape(1, 1, 1, 5), (1, 2)), I8)
    matches(lambda x: F.avg_pool2d(x.reshape(1, 1, 1, 5), (1, 2)), I8.long())


def test_parts_of_an_op_are_not_asked_about():
    """`huber_loss` is taken apart; ATen knows that op, whatever it says of the parts."""
    matches(lambda x, y: F.huber_loss(x, y, delta=1e4), F16, F16.flip(0))


def test_asking_draws_no_random_numbers():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert refusals.asked(torch.ops.aten.mul.Tensor) and not refusals.asked(torch.ops.aten.bernoulli.p)
    assert refusals.refusal(torch.ops.aten.mul.Tensor, (I8, 300), {}) is None
    assert refusals.refusal(torch.ops.aten.add.Tensor, (I8, I8), {"alpha": 300}) is not None
    assert torch.equal(state, torch.get_rng_state())


def test_patches_of_integers():
    x = torch.arange(2 * 27 * 42).reshape(2, 27, 42)
    for dtype in (torch.int64, torch.int8, torch.uint8):
        refuses(lambda x: F.fold(x, (6, 7), 3, padding=1), x.to(dtype))
        refuses(lambda x: F.unfold(x, 3, padding=1), x.reshape(2, 3, 18, 21).to(dtype))
    matches(lambda x: (F.fold(x, (6, 7), 3, padding=1), F.unfold(x.reshape(2, 3, 18, 21), 3)), x % 3 == 0)
