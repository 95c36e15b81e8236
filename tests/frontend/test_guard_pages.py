"""The option `guard_pages`: right kernels pass, wrong ones are named, and the caller's tensors are treated as without it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from mlirc import GuardPageError
from mlirc.runtime.faults import available

from ..guards.shifted import READS, WRITES, shifting
from .compare import compare

pytestmark = pytest.mark.skipif(not available(), reason="guard pages need Linux on x86-64")

def guarded(f, placement: str = "both", **options):
    return torch.compile(f, backend="mlirc", options={"guard_pages": placement, "strict": True, **options})


CASES = {
    # (ops, elements, placement, what the message says)
    "read past the end": (READS, 1, "end", r"k00_mul_add \(step 0\) reads input 0 \(84 bytes\) at byte 84, outside"),
    "write past the end": (WRITES, 1, "end", r"k00_mul_add \(step 0\) writes output 0 \(84 bytes\) at byte 8[47], "),  # Intel's CPUs name the last byte
    "read before the start": (READS, -1, "start", r"k00_mul_add \(step 0\) reads input 0 \(84 bytes\) at byte -4, "),
    "write before the start": (WRITES, -1, "start", r"k00_mul_add \(step 0\) writes output 0 .* at byte -4, "),
    "write past the end into slack": (WRITES, 1, "start", r"step 0\) writes past the end of output 0"),
    "write before the start into slack": (WRITES, -1, "end", r"step 0\) writes before the start of output 0"),
}


@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("case", CASES)
def test_a_kernel_that_is_one_element_off_is_named(tmp_path, case, target):
    names, by, placement, message = CASES[case]
    f = guarded(lambda x: x * 2 + 1, placement, passes=[shifting(tmp_path, names, by)], target=target)
    with pytest.raises(GuardPageError, match=message):
        f(torch.randn(21))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("n", [1, 33, 1024])
def test_every_size_and_type_is_exact(tmp_path, dtype, n):
    x = torch.ones(n, dtype=dtype)
    assert torch.equal(guarded(lambda x: x + x)(x), x + x)
    torch._dynamo.reset()
    f = guarded(lambda x: x + x, passes=[shifting(tmp_path, READS, 1)])
    with pytest.raises(GuardPageError, match=f"reads input 0 .* at byte {n * x.element_size()}, outside"):
        f(x)


def test_intermediates_and_packed_weights_are_guarded(tmp_path):
    a, b = torch.nn.Linear(33, 17), torch.nn.Linear(17, 5)

    def f(x):
        return b(torch.softmax(a(x), -1))

    own = shifting(tmp_path, READS, 1)
    with torch.no_grad(), pytest.raises(GuardPageError):
        guarded(f, passes=[own])(torch.randn(3, 33))
    torch._dynamo.reset()
    x = torch.randn(3, 33)
    with torch.no_grad():
        torch.testing.assert_close(guarded(f)(x), f(x))


def test_the_process_is_sound_after_a_fault(tmp_path):
    x = torch.randn(40)
    bad = guarded(lambda x: x * 2, passes=[shifting(tmp_path, READS, 1)])
    for _ in range(3):
        with pytest.raises(GuardPageError):
            bad(x)
    torch._dynamo.reset()
    assert torch.equal(guarded(lambda x: x * 2)(x), x * 2)


def test_what_the_caller_sees_is_as_without_it():
    options = {"guard_pages": "both", "strict": True}
    base = torch.randn(4, 6)

    def writes(x, y):
        x.mul_(2)
        y.t().add_(x[:3, :4].sum())
        return x, y[1], x + 1

    compare(writes, base, torch.randn(4, 3), options=options)
    compare(lambda x, y: (x.add_(1), y * 2), base[:2], base[1:3], options=options)
    compare(lambda x, y: (x.mul_(3), y.sum()), base.t()[1:, ::2], base[0], options=options)
    compare(lambda x: (x[:, 1:], x[0].relu(), x), torch.randn(3, 0), options=options)
    compare(lambda x: (torch.sort(x)[0] + 1, x.median()), torch.randn(9), options=options)
    compare(lambda x: F.softmax(x, -1), torch.randn(7, 13, requires_grad=True), options=options)


def test_symbolic_sizes_and_weights_that_change():
    layer = torch.nn.Linear(19, 23)
    f = torch.compile(layer, backend="mlirc", dynamic=True, options={"guard_pages": "both", "strict": True})
    with torch.no_grad():
        for n in (3, 7, 40):
            x = torch.randn(n, 19)
            torch.testing.assert_close(f(x), layer(x))
            layer.weight.mul_(1.5)


def test_random_numbers_are_drawn_once():
    def f(x):
        return torch.rand_like(x) + x

    x = torch.zeros(5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        expected = [f(x), torch.rand(2)]
        torch.manual_seed(0)
        got = [guarded(f, rng="aten")(x), torch.rand(2)]
    assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])


def test_an_access_far_outside_names_the_kernel_before_the_process_ends(tmp_path):
    own = shifting(tmp_path, READS, 1 << 44)
    code = f"""
import torch
f = torch.compile(lambda x: x * 2, backend="mlirc", options={{"guard_pages": "end", "strict": True, "passes": [{own!r}]}})
f(torch.randn(40))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -11
    assert "mlirc: kernel k00_mul (step 0) accesses memory that belongs to no buffer" in done.stderr



def test_arguments_without_memory():
    f = guarded(lambda x, y: (x.exp() + y, y * 2))
    x, y = torch.randn(3, 4), torch.randn(4)
    expected = [x.exp() + y, y * 2]
    torch.testing.assert_close(f(x, y), expected)
    with FakeTensorMode():
        assert [t.shape for t in f(torch.empty(3, 4), torch.empty(4))] == [(3, 4), (4,)]
    torch.testing.assert_close(f(torch._efficientzerotensor((3, 4)), y)[0], (1 + y).expand(3, 4))
    torch.testing.assert_close(f(x, y), expected)
    y.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="freed"):
        f(x, y)
