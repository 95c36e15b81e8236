"""The net itself: `check` sees differences of every kind, and lets pass what rounding explains."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.tests.fuzz import custom
from mlirc.tests.fuzz.check import Difference, Run, check, compare
from mlirc.tests.fuzz.executor import Executor
from mlirc.tests.fuzz.noise import Double, Noise, near
from mlirc.tests.fuzz.tensors import tensor

compiling = torch.compiler.is_compiling


def inputs():
    return (tensor((7, 5), torch.float32, 1),)


WRONG = {
    "values": lambda x: x + (1e-4 if compiling() else 0),
    "values of an integer": lambda x: (x * 100).to(torch.int32) + (1 if compiling() else 0),
    "values where NaN is": lambda x: x * float("nan") if compiling() else x * 1,
    "strides": lambda x: (x * 2).t() if compiling() else (x * 2).t().contiguous(),
    "type": lambda x: x.double() if compiling() else x,
    "aliasing": lambda x: x.clone() if compiling() else x.view(7, 5),
    "outputs": lambda x: (x * 1, x * 2) if compiling() else x * 1,
    "values of the input": lambda x: x.add_(0 if compiling() else 1) * 1,
    "error": lambda x: x.reshape(-1, 4) if compiling() else x * 1,
    "values of the gradient": lambda x: x * (x.detach() if compiling() else x),
}


@pytest.mark.parametrize("kind", WRONG)
def test_differences_are_seen(kind):
    with pytest.raises(Difference) as e:
        check(WRONG[kind], inputs, grad="gradient" in kind)
    assert e.value.kind == kind.split()[0]
    assert e.value.by_torch  # every backend does as this one


def test_rounding_is_no_difference():
    def f(x):
        y = x.bfloat16()
        z = y * y - y.square()  # zero in eager mode; not with y * y kept in f32
        return z, (y * 1.01 > y + 0.01), y.softmax(0).argmax(0), (y * 3.3).round()

    check(f, inputs)


def test_floats_made_of_integers_are_f64_in_the_exact_run():
    """Where eager mode overflows on the way, and the right result is a number."""
    check(lambda x: torch.i0(x), lambda: (torch.tensor([3, 90]),))
    assert torch.get_default_dtype() == torch.float32


def test_sums_of_many_terms_in_f64():
    def f(x):  # eager mode's variances are 20 roundings off, ours a fifth of one
        return F.batch_norm(torch.cummax(x, 2)[0], None, None, training=True)

    check(f, lambda: (tensor((2, 3, 13, 3, 9), torch.float64, 1, "small integers"),))


def test_results_that_equal_what_they_are_compared_with():
    """-3 in one order of the sums, and a unit beside it in another."""
    x = tensor((64, 3, 7), torch.float64, 1, "small integers")
    results = []
    for seed in range(40):
        with Noise(seed):
            results.append(F.scaled_dot_product_attention(x, x, x)[62, 2, 3].item())
    assert -3.0 in results and any(y != -3.0 for y in results)


def test_windows_whose_sums_cancel_in_f64():
    def f(x):
        x = x.flip(-1).flip(-2).flip(-3) if compiling() else x
        return F.adaptive_avg_pool3d(x, 1), F.avg_pool3d(x, (8, 6, 5))

    check(f, lambda: (tensor((200, 8, 6, 5), torch.float64, 1),))


def test_losses_of_many_terms_in_f64():
    """Of seven different numbers: each rounding of a sum one by one goes the same way."""

    def f(x):
        losses = F.binary_cross_entropy_with_logits(x, x.sigmoid(), reduction="none").flatten()
        return losses.cumsum(0)[-1] / x.numel() if compiling() else F.binary_cross_entropy_with_logits(x, x.sigmoid())

    check(f, lambda: (tensor((33, 8, 9, 4), torch.float64, 0, "small integers"),))


@pytest.mark.parametrize("seed,least,most", [(0, 0.0, 0.01), (1, 0.4, 0.7)])
def test_what_cancels_does_so_exactly_in_every_other_run(seed, least, most):
    """By luck, as a quotient of equals in eager mode; were it so in all, nothing would be left behind several sums."""
    x = tensor((1000,), torch.float32, 0)
    with Noise(seed):
        difference = x - x * (1 + 2**-21)
    assert least <= (difference == 0).float().mean() <= most


def test_noise_leaves_probabilities_in_their_range():
    """So that there are noisy runs of what is made from the numbers that are drawn."""
    for draw in (torch.bernoulli, lambda p: torch.empty(7).bernoulli_(p), lambda p: torch.binomial(torch.ones(7), p)):
        with Noise(0):
            drawn = draw(torch.ones(7) * 1)
        torch.testing.assert_close(drawn, torch.ones(7))
    far = lambda x: torch.bernoulli((x * 0 + 1)[0] * torch.ones(7)) * x.sum() + (3 if compiling() else 0)  # noqa: E731
    with pytest.raises(Difference, match="output 0"):
        check(far, lambda: (tensor((64,), torch.float32, 1),))


def test_noise_that_raises():
    """A rate just below zero is none: there are no noisy runs, and what differs is still told."""
    f = lambda x: (torch.poisson(x - x.clone()), x.sum() + (3 if compiling() else 0))  # noqa: E731
    with pytest.raises(RuntimeError, match="oisson"), Noise(0):
        f(tensor((64,), torch.float32, 1))
    with pytest.raises(Difference, match="output 1"):
        check(f, lambda: (tensor((64,), torch.float32, 1),))


def test_noisy_batch_norms_keep_statistics():
    x, mean, variance = tensor((5, 3), torch.float32, 0, "normal"), torch.zeros(3), torch.ones(3)
    with Noise(0):
        F.batch_norm(x, mean, variance, training=True, momentum=1.0)
    torch.testing.assert_close(mean, x.mean(0))
    torch.testing.assert_close(variance, x.var(0))


def test_running_statistics_are_off_by_a_rounding_of_what_was_there():
    means = []
    for seed in range(4):
        means.append(torch.ones(64))
        with Noise(seed):
            F.batch_norm(torch.zeros(5, 64), means[-1], torch.ones(64), training=True, momentum=0.1)
    assert any((m != means[0]).any() for m in means[1:])
    assert all((m - 0.9).abs().max() < 1e-6 for m in means)


def test_gradients_in_f64_are_those_of_the_same_inputs():
    """A view has none, nor has its copy in f64."""
    args = tensor((3,), torch.float32, 0), tensor((4, 3), torch.float32, 1)[1:], tensor((5,), torch.bfloat16, 2)
    exact = Run(lambda x, y, w: (torch.tanh(w) * x.sum(), y * 2), args, True, Double())
    assert [x.shape for name, x in exact.tensors.items() if name.startswith("gradient")] == [(3,), (5,)]


def test_sums_of_products_rounded_once_or_twice():
    def f(x):  # little is left of it where x is near -1
        third = torch.full((8,), 1 / 3)
        return torch.addcmul(third, x, third)

    check(f, lambda: (tensor((2000, 8), torch.float16, 1),))


def test_logarithm_of_a_sum_near_one():
    def f(x):
        return (x * torch.tensor([0.0, 1, 1, 1, 1])).sum(1, keepdim=True) * torch.tensor([0.0, 1, 1, 1, 1])

    def g(x):
        y = f(x)
        # The sum in another order.
        return y.flip(1).log_softmax(1).flip(1) if compiling() else y.log_softmax(1)

    check(g, lambda: (tensor((500, 5), torch.float64, 1) * 5 - 9,))


def test_products_that_overflow_in_another_order():
    def f(x):
        terms = 1.5e38 * torch.tensor([[1, -1, 1, -1, 1, -1, 1], [1, -2, 1, -2, 1, -2, 1.0]]) * x
        order = [0, 2, 4, 6, 1, 3, 5] if compiling() else list(range(7))
        return (terms[:, order] @ torch.ones(7, 2)).nan_to_num(), x.sum() + wrong * compiling()

    wrong = 0
    check(f, lambda: (torch.ones(7),))
    wrong = 1
    with pytest.raises(Difference, match="output 1"):
        check(f, lambda: (torch.ones(7),))


def test_sums_that_overflow_on_the_way():
    def f(x):
        # Of as many as make the sum overflow, or of the mean of these, whose own sum does.
        return torch.cov(x[:2] if compiling() else F.avg_pool1d(x[None], 4)[0])

    def g(x):  # NaN in f64 too
        return x * float("inf") if compiling() else torch.log(-x.clamp(max=1))

    check(f, lambda: (torch.full((2, 8), 3e38),))
    with pytest.raises(Difference, match="output 0"):
        check(g, lambda: (torch.full((8,), 3e38),))


@pytest.mark.parametrize("function,zero", [(F.mish, -1.1925), (F.silu, -1.2785), (F.gelu, -0.7518)])
def test_derivatives_near_their_zeros(function, zero):
    check(function, lambda: (tensor((5000,), torch.float32, 1) / 1000 + zero,), grad=True)


@pytest.mark.parametrize("mode", [lambda: Noise(0), Double])
def test_gradients_that_have_no_memory(mode):
    Run(lambda x: (torch.sgn(torch.deg2rad(x)), F.huber_loss(x, x * 0.5)), inputs(), True, mode())


def test_one_kind_of_difference_is_asked_for():
    """The second opinion is about the difference that was found, and not about another that comes before it."""
    x = tensor((7, 5), torch.float32, 1)
    eager, got = Run(lambda x: x * 2, (x,), False), Run(lambda x: (x.t().contiguous() * 2 + 1).t(), (x,), False)
    for only, kind in [("", "strides"), ("strides", "strides"), ("values", "values")]:
        with pytest.raises(Difference) as e:
            compare(eager, got, "", lambda mode: Run(lambda x: x * 2, (x,), False, mode), only)
        assert e.value.kind == kind
    compare(eager, got, "", lambda mode: eager, "aliasing")


def test_signs_of_nan_and_roundings_of_one():
    nan = torch.full((3, 2), float("nan"))
    check(lambda x: (-(x * 1) if compiling() else x * 1).signbit(), lambda: (nan.clone(),))
    check(lambda x: x * 0.5 * (1 + torch.erf(x * 0.7071067811865476)) if compiling() else torch.nn.functional.gelu(x), lambda: (tensor((1000,), torch.float64) - 2,))


def test_poles():
    check(torch.digamma, lambda: (torch.tensor([-1.0, -2.0, -3.0, 0.5]),), grad=True)
    check(lambda x: torch.outer(torch.polygamma(1, x), x), lambda: (torch.tensor([-1.0, -2.0, 0.0, 0.5]),))
    with pytest.raises(Difference):
        check(lambda x: torch.where(x < 1, torch.polygamma(1, x), torch.inf) if compiling() else torch.polygamma(1, x), lambda: (torch.tensor([0.5, 2.0]),))


def test_either_zero_may_be_the_maximum():
    zeros = torch.tensor([[0.0, -0.0], [-0.0, 0.0]]).repeat(5, 9)
    check(lambda x: 1 / x.amax(1), lambda: (zeros.clone(),))
    with pytest.raises(Difference):
        check(lambda x: 1 / -x if compiling() else 1 / x, lambda: (zeros.clone(),))


def test_second_call_with_other_sizes():
    def f(x):
        return x.sum(0) * (1 if x.shape[0] == 3 or not compiling() else 2)

    with pytest.raises(Difference, match=r"\(4,\)"):
        check(f, lambda n: (tensor((n, 5), torch.float32, 1),), sizes=[(3,), (4,)], dynamic=True)


class Scaled(torch.nn.Module):
    """Its compiled form multiplies by `factor(module)`."""

    factor = staticmethod(lambda m: m.w)

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(tensor((5,), torch.float32, 2))
        self.register_buffer("other", self.w.detach().clone())
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return x * (self.factor(self) if compiling() else self.w) + self.calls


@pytest.mark.parametrize("grad", [False, True])
def test_what_modules_keep(grad):
    def between(m, call):
        m.w.data.mul_(-3)
        if call == 2:
            m.w = torch.nn.Parameter(tensor((5,), torch.float32, 3))

    check(Scaled, inputs, sizes=[(), (), ()], grad=grad, between=between)
    wrong = type("Wrong", (Scaled,), {"factor": staticmethod(lambda m: m.w * 1 if grad else m.other)})
    if not grad:
        check(wrong, inputs, sizes=[(), ()])
        with pytest.raises(Difference, match="values: call 1, output 0"):
            check(wrong, inputs, sizes=[(), ()], between=between)
    wrong = type("Wrong", (Scaled,), {"factor": staticmethod(lambda m: m.w.detach())})
    if grad:
        with pytest.raises(Difference, match="gradient 1"):
            check(wrong, inputs, grad=True)


def test_results_that_a_later_call_changes():
    memory = torch.zeros(7, 5)

    def f(x):
        return memory.copy_(x * 2) if compiling() else x * 2

    check(f, inputs)
    with pytest.raises(Difference, match=r"kept: sizes \(2,\): changes output 0 of call 0"):
        check(f, lambda seed: (tensor((7, 5), torch.float32, seed),), sizes=[(1,), (2,)])


def test_results_that_are_overwritten():
    ones = torch.ones(7, 5)

    def f(x):
        return x * 2, ones.view(7, 5) if compiling() else torch.ones(7, 5)

    check(f, inputs)
    with pytest.raises(Difference, match="values: call 1, output 1"):
        check(f, inputs, sizes=[(), ()])


def test_what_ops_keep():
    def f(x):
        y = custom.keep(x * 2, 0)
        return custom.keep_view(y, y + 1, 1), custom.keep_result(y, 2)

    check(f, inputs, sizes=[(), ()], grad=True)
    with pytest.raises(Difference, match="values: kept 0"):
        check(lambda x: custom.keep(x * (2 if compiling() else 3), 0) * 0, inputs)


def test_strides_that_torch_announces_for_symbolic_sizes():
    def f(x):
        y = x.index_add(0, torch.tensor([2, 1]), x[:2])  # dense in eager mode; with symbolic sizes, torch's fake tensors lie as x
        return torch.copysign(y, x)

    with pytest.raises(Difference) as e:
        check(f, lambda n, m: (tensor((n, n), torch.bool).t(),), sizes=[(8, 7), (6, 5)], dynamic=True)
    assert e.value.kind == "strides" and e.value.by_torch


def test_strides_that_torch_announces_for_what_is_repeated():
    with pytest.raises(Difference) as e:
        check(lambda x: torch.copysign(x.t(), x).expand(2, 5, 5), lambda: (tensor((5, 5), torch.float32),))
    assert e.value.kind == "strides" and e.value.by_torch


def test_views_that_are_returned_with_gradients():
    def inputs():
        x = tensor((3,), torch.float32)
        return x, x[1:]

    check(lambda x, y: (y, y.neg(), x * 2), inputs, sizes=[()], grad=True)
    check(lambda x, y: (y, y.neg()), inputs, sizes=[()], grad=True)


def test_near():
    a = torch.tensor([1.0, float("nan"), float("inf"), 0.0, 1.0])
    b = torch.tensor([1.0 + 2e-7, float("nan"), float("-inf"), -0.0, 1.001])
    assert near(a, b, torch.float32).tolist() == [True, True, False, True, False]


def test_executor_survives_crashes_and_hangs():
    executor = Executor(timeout=60)
    try:
        assert executor.run("import ctypes; ctypes.string_at(0)")[0] == "crash"
        assert executor.run("import torch; torch.ones(3)") == ("ok", "")
        executor.timeout = 0.5
        assert executor.run("import time; time.sleep(60)")[0] == "timeout"
        executor.timeout = 60
        assert executor.run("raise ValueError('no')") == ("invalid", "ValueError: no")
    finally:
        executor.close()
