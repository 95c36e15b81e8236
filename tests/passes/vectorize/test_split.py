"""Large reductions to few results: chunks that threads share, the same result for any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import built, kernel, padded, stages, strategy, untouched

TARGETS = ["x86-64-v3", "host"]
rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def sums(n: int, m: int, by: str, body: str = "arith.addf", init: str = "0.5") -> str:
    t = f"tensor<{n}x{m}xf32>"
    maps, kinds, out = {"rows": (["i, j", "i"], "pr", n), "columns": (["i, j", "j"], "rp", m)}[by]
    return kernel([("%x", t)], generic("%r", [("%x", t)], f"tensor<{out}xf32>", maps, body, kinds, "ij", init), [("%r", f"tensor<{out}xf32>")], [[1]])


@pytest.mark.parametrize("n, m, by, split", [(1, 1 << 20, "rows", True), (3, 1 << 18, "rows", True), (1 << 17, 32, "columns", True), (1, 4096, "rows", False), (64, 1 << 16, "rows", False), (1 << 14, 4096, "columns", False)])
def test_what_is_split(n, m, by, split):
    assert (strategy(sums(n, m, by)).split is not None) == split


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n, m, by", [(1, 300001, "rows"), (3, 100003, "rows"), (100001, 3, "columns"), (20011, 33, "columns"), (4099, 700, "columns")])
def test_sums(n, m, by, target):
    text = sums(n, m, by)
    assert strategy(text, target).split is not None
    run = built(text, target)
    x = rng.standard_normal((n, m)).astype(np.float32)
    results = []
    for count in (1, 2, 4):
        torch.set_num_threads(count)
        r = padded(np.zeros(n if by == "rows" else m, np.float32))
        assert run(x, r) == 0 and untouched(r)
        results.append(r)
    np.testing.assert_allclose(results[0], 0.5 + x.sum(1 if by == "rows" else 0, dtype=np.float64), rtol=0, atol=2e-3)
    assert all((r == results[0]).all() for r in results)


@pytest.mark.parametrize("n, m, by", [(1, 3_000_001, "rows"), (1_000_003, 4, "columns")])
def test_sums_of_many_of_the_same(n, m, by):
    text = sums(n, m, by)
    x, r = np.full((n, m), 0.1, np.float32), padded(np.zeros(n if by == "rows" else m, np.float32))
    assert built(text)(x, r) == 0 and untouched(r)
    np.testing.assert_allclose(r, 0.5 + x.sum(1 if by == "rows" else 0, dtype=np.float64), rtol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_maximum_with_nan(target):
    text = sums(1, 300001, "rows", "arith.maximumf", "0xFF800000")
    run = built(text, target)
    x = rng.standard_normal((1, 300001)).astype(np.float32)
    for nans in ([], [0], [300000], [123456]):
        x[0, nans] = np.nan
        r = padded(np.zeros(1, np.float32))
        assert run(x, r) == 0 and untouched(r)
        np.testing.assert_array_equal(r, x.max(1))


def test_no_chunk_without_elements():
    """A size that is known at run time only, down to none at all."""
    t, out = "tensor<1x?xf32>", "tensor<1xf32>"
    body = generic("%r", [("%x", t)], out, ["i, j", "i"], "arith.addf", "pr", "ij", "0.5")
    named = {"%x": 'mlirc.sizes = ["1", "a"], mlirc.strides = ["a", "1"]', "%n": 'mlirc.name = "a"'}
    text = kernel([("%x", t), ("%n", "index")], body, [("%r", out)], [[1]], named)
    assert strategy(text).split is not None
    run = built(text)
    for n in (0, 1, 15, 64, 4095, 4096, 4097, 262144, 262145, 1000003):
        x = rng.standard_normal(n).astype(np.float32)
        r = padded(np.zeros(1, np.float32))
        assert run(x, n, r) == 0 and untouched(r)
        np.testing.assert_allclose(r, 0.5 + x.sum(dtype=np.float64), rtol=0, atol=1e-3)


def test_partial_results_are_on_the_stack_of_the_caller():
    found = stages(sums(1, 1 << 20, "rows"))["vector"]
    entry = found[found.index("func.func @k(") :]
    assert entry.count("llvm.alloca") == 3  # the context, partial results, the whole one
    assert entry.count("torch_parallel_for") >= 1 and "call @k_body1(" in entry


CASES = {
    "mean": lambda x: x.mean(),
    "variance": lambda x: x.var(),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x.view(1, -1), (x.numel(),)),
    "softmax": lambda x: torch.softmax(x.view(2, -1), -1),
    "loss": lambda x: torch.nn.functional.mse_loss(x, x * 0.5 + 1),
    "cross_entropy": lambda x: torch.nn.functional.cross_entropy(x[:20000].view(5, 4000), torch.arange(5)),
    "argmax": lambda x: x.argmax(),
    "argmin_dim": lambda x: x[:300000].view(-1, 3).argmin(0),
    "any": lambda x: (x > 4.9).any(),
    "all": lambda x: (x < 9).all(),
    "columns": lambda x: x[:320000].view(-1, 32).sum(0),
    "channels": lambda x: x[:320000].view(40, 8, 1000).sum((0, 2)),
    "norm": lambda x: x.norm(),
    "count": lambda x: (x > 0).sum(),
}


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_against_eager(name, dtype):
    x = torch.randn(400002, generator=torch.Generator().manual_seed(1)).to(dtype)
    torch._dynamo.reset()
    compiled = torch.compile(CASES[name], backend="mlirc")
    want = CASES[name](x.double())
    results = []
    for count in (1, 2, 4):
        torch.set_num_threads(count)
        results.append(compiled(x))
    got = results[0]
    assert all(torch.equal(r, got) for r in results)
    if not got.is_floating_point():
        assert torch.equal(got, CASES[name](x))
    else:
        limit = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float64: 1e-13}[dtype]
        assert ((got.double() - want).abs().max() / want.abs().max()).item() < limit
