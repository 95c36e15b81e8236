"""Scaled dot product attention: against eager in f64, with masks, odd lengths, gradients and symbolic lengths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import same

import mlirc
from mlirc.cli import main
from mlirc.frontend.ops import attention, attention_gradients

from .compare import compare, left_to_aten

LENGTHS = [(1, 1), (3, 17), (17, 3), (33, 33), (1, 65), (67, 197), (128, 128)]


def heads(n: int, *, batch: int = 2, heads: int = 3, size: int = 16, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[batch, heads, n, size], as a projection leaves it: heads next to each other."""
    return torch.randn(batch, n, heads, size, dtype=dtype).transpose(1, 2)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("m,n", LENGTHS)
def test_lengths(m: int, n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    compare(F.scaled_dot_product_attention, heads(m, dtype=dtype), heads(n, dtype=dtype), heads(n, dtype=dtype))


def test_no_call_is_left_to_aten() -> None:
    q = heads(33, size=64)
    report = mlirc.explain(F.scaled_dot_product_attention, q, q, q)
    assert not [node for graph in report.graphs for node in graph.aten]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_causal(dtype: torch.dtype) -> None:
    for m, n in LENGTHS:
        compare(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *(heads(x, dtype=dtype) for x in (m, n, n)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(17, 33), (2, 1, 1, 33), (2, 3, 17, 33), (1, 1, 17, 1)])
def test_masks(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    q, k, v = heads(17, dtype=dtype), heads(33, dtype=dtype), heads(33, dtype=dtype)
    compare(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), q, k, v, torch.randn(shape, dtype=dtype))
    compare(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.3), q, k, v, torch.rand(shape) < 0.6)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("m,n", [(1, 1), (1, 33), (3, 17), (33, 33), (17, 3)])
@pytest.mark.parametrize("groups", [1, 2])
def test_fewer_heads_of_keys(groups: int, m: int, n: int, dtype: torch.dtype) -> None:
    def attend(q, k, v, mask=None, causal=False):  # noqa: ANN001, ANN202
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)

    torch.manual_seed(0)
    q, k, v = heads(m, heads=6, dtype=dtype), heads(n, heads=groups, dtype=dtype), heads(n, heads=groups, dtype=dtype)
    compare(attend, q, k, v)
    compare(lambda q, k, v: attend(q, k, v, causal=True), q, k, v)
    for shape in [(m, n), (2, 1, 1, n), (2, 6, m, n), (1, 6, 1, n), (1, 1, m, 1)]:
        compare(attend, q, k, v, torch.randn(shape, dtype=dtype))
    report = mlirc.explain(attend, q, k, v)
    assert not [node for graph in report.graphs for node in graph.aten]


def test_nothing_is_packed_for_a_few_rows() -> None:
    """Keys and values of a cache are read once, as they are, and so is a matrix that is no weight."""
    q, cache = torch.randn(1, 8, 1, 64), torch.randn(1, 2, 300, 64)
    report = mlirc.explain(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), q, cache, cache + 1)
    assert [len(graph.kernels) for graph in report.graphs] == [3]
    for rows in (2, 8, 64):
        report = mlirc.explain(torch.mm, torch.randn(rows, 64), torch.randn(64, 96))
        assert [len(graph.kernels) for graph in report.graphs] == [1]


def test_gradients_of_fewer_heads_of_keys() -> None:
    q, k, v = (heads(17, heads=n).double().float().requires_grad_() for n in (6, 2, 2))

    def grads(f) -> list[torch.Tensor]:  # noqa: ANN001
        return list(torch.autograd.grad(f(q, k, v, is_causal=True, enable_gqa=True).square().sum(), (q, k, v)))

    torch._dynamo.reset()
    for e, g in zip(grads(F.scaled_dot_product_attention), grads(torch.compile(F.scaled_dot_product_attention, backend="mlirc"))):
        torch.testing.assert_close(e, g, atol=1e-4, rtol=1e-4)


def test_queries_that_see_no_key() -> None:
    mask = torch.rand(2, 1, 17, 33) < 0.5
    mask[:, :, 3] = False
    q, k, v = heads(17), heads(33), heads(33)
    (out,) = compare(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), q, k, v, mask)
    assert (out[:, :, 3] == 0).all()
    for f, *args in ((F.scaled_dot_product_attention, q, k, v, mask), (fewer_heads, q[:, :, :1], k[:, :1], v[:, :1], mask[:, :, 3:4])):
        expected, got = (gradients(g, *args) for g in (f, torch.compile(f, backend="mlirc")))
        for e, g in zip(expected, got):
            torch.testing.assert_close(g, e, atol=1e-4, rtol=1e-4)


def fewer_heads(q, k, v, mask):  # noqa: ANN001, ANN201
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


def gradients(f, q, k, v, mask) -> tuple[torch.Tensor, ...]:  # noqa: ANN001
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(f(*inputs, mask).square().sum(), inputs)


def test_large_and_infinite_values() -> None:
    q, k, v = heads(9), heads(9), heads(9)
    compare(F.scaled_dot_product_attention, 100 * q, 100 * k, v)
    v[0, 0, 2, 3] = float("inf")
    compare(F.scaled_dot_product_attention, q, k, v)


def test_nan() -> None:
    """It spreads as through the three parts; of a query of NaN, ATen's kernel makes zeros."""
    q, k, v = heads(9), heads(9), heads(9)
    q[0, 1, 2] = float("nan")
    torch._dynamo.reset()
    out = torch.compile(F.scaled_dot_product_attention, backend="mlirc")(q, k, v)
    assert out[0, 1, 2].isnan().all() and out.isnan().sum() == 16
    k[0, 0, 1] = float("nan")
    out = torch.compile(F.scaled_dot_product_attention, backend="mlirc")(q, k, v)
    assert out[0, 0].isnan().all() and out.isnan().sum() == 16 + 9 * 16


def test_output_as_the_next_projection_wants_it() -> None:
    q = heads(17)
    compare(lambda q, k, v: F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 17, -1), q, q, q)
    compare(lambda q, k, v: F.scaled_dot_product_attention(q, k, v).transpose(1, 2).view(2, 17, -1), q, q, q)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients(dtype: torch.dtype) -> None:
    """They take our logarithms of sums."""

    def grads(f, dtype: torch.dtype) -> list[torch.Tensor]:  # noqa: ANN001
        args = [a.detach().to(dtype).requires_grad_() for a in (q, k, v)]
        f(*args, is_causal=True).square().sum().backward()
        return [a.grad for a in args]  # type: ignore[misc]

    torch.manual_seed(0)
    q, k, v = heads(33, dtype=dtype), heads(33, dtype=dtype), heads(33, dtype=dtype)
    torch._dynamo.reset()
    compiled = torch.compile(F.scaled_dot_product_attention, backend="mlirc")
    eager = F.scaled_dot_product_attention
    assert same(grads(eager, dtype), grads(compiled, dtype), grads(eager, torch.float64), tol=1e-4 if dtype == torch.float32 else 2e-2)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("m,n,keys", [(1, 1, 3), (17, 33, 3), (33, 33, 1), (1, 65, 1), (67, 19, 3)])
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float"])
def test_gradients_by_kernels_of_ours(kind: str, m: int, n: int, keys: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    mask = {"bool": torch.rand(2, 1, m, n) < 0.7, "float": torch.randn(m, n, dtype=dtype)}.get(kind)

    def f(q, k, v, g, *mask):  # noqa: ANN001, ANN202
        out = F.scaled_dot_product_attention(q, k, v, *mask, is_causal=kind == "causal", scale=0.3, enable_gqa=keys != 3)
        return out, *torch.autograd.grad(out, (q, k, v), g)

    args = [heads(m, dtype=dtype), heads(n, heads=keys, dtype=dtype), heads(n, heads=keys, size=16, dtype=dtype)]
    leaves = [t.detach().requires_grad_() for t in args]
    masks = [] if mask is None else [mask]
    compare(f, *leaves, torch.randn_like(args[0]), *masks)


def test_no_gradient_is_left_to_aten() -> None:
    q = heads(33, size=64).detach().requires_grad_()
    report = mlirc.explain(F.scaled_dot_product_attention, q, q, q)
    assert [graph.direction for graph in report.graphs] == ["forward", "backward"]
    assert not [node for graph in report.graphs for node in graph.aten]


def of_any_length(x: torch.Tensor, *dims: int) -> torch.Tensor:
    for dim in dims:
        torch._dynamo.mark_dynamic(x, dim)
    return x


CHANGING: dict[str, Callable[..., torch.Tensor]] = {
    "plain": lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v),
    "causal": lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "mask": F.scaled_dot_product_attention,
    "by hand": lambda q, k, v, m: (q @ k.mT * 0.3).masked_fill(~m, float("-inf")).softmax(-1) @ v,
}


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("case", CHANGING)
def test_lengths_that_change(case: str, batches: bool, dtype: torch.dtype) -> None:
    """One graph for all of them, whose kernels take turns; the keys of bf16 are cut in blocks, and what is behind the last one is not seen."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("mlirc")
    f = torch.compile(CHANGING[case], backend=counter)
    for n, (m, length) in enumerate([(33, 33), (128, 128), (17, 65), (65, 17), (3, 96), (300, 301), (257, 64)]):
        batch, dims = (2 + n, (0, 2)) if batches else (1, (2,))
        q, k, v = (of_any_length(heads(x, batch=batch, dtype=dtype), *dims) for x in (m, length, length))
        mask = torch.rand(batch, 1, m, length) < 0.6
        mask[..., 0] = True
        with torch.no_grad():
            got = f(q, k, v, of_any_length(mask, *dims, 3))
            want, exact = CHANGING[case](q, k, v, mask), CHANGING[case](q.double(), k.double(), v.double(), mask)
        assert same(want, got, fp64_ref=exact)
    assert counter.frame_count == 1
    assert not left_to_aten()


@pytest.mark.sampled
@pytest.mark.parametrize("shape", [(1, "n"), ("m", "n"), (2, 1, 1, "n"), (1, 6, "m", 1), (2, 6, "m", "n")], ids=str)
@pytest.mark.parametrize("keys", [6, 2])
def test_masks_of_lengths_that_change(shape: tuple[int | str, ...], keys: int) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=keys != 6)

    f = torch.compile(attend, backend="mlirc", options={"strict": True})
    for m, n in [(33, 40), (50, 100), (17, 31)]:
        q, k, v = (
            of_any_length(heads(x, heads=h, dtype=torch.bfloat16), 2) for x, h in ((m, 6), (n, keys), (n, keys))
        )
        sizes = [{"m": m, "n": n}.get(x, x) for x in shape]  # type: ignore[call-overload]
        for mask in (torch.rand(sizes) < 0.6, torch.randn(sizes, dtype=torch.bfloat16) + 9):
            of_any_length(mask, *(d for d, x in enumerate(shape) if isinstance(x, str)))
            with torch.no_grad():
                got, want = f(q, k, v, mask), attend(q, k, v, mask)
                exact = attend(q.double(), k.double(), v.double(), mask if mask.dtype == torch.bool else mask.double())
            assert same(want, got, fp64_ref=exact)
    assert not left_to_aten()


def test_tiles_for_lengths_that_change(tmp_path: Path) -> None:
    """The products are those of whole tiles of AMX, whatever the lengths, and words for `vdpbf16ps`."""
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\n"
        "net = torch.nn.functional.scaled_dot_product_attention\n"
        "inputs = [torch.randn(1, 4, 100, 64, dtype=torch.bfloat16) for _ in range(3)]\n"
        "for x in inputs: torch._dynamo.mark_dynamic(x, 2)\n"
        "example_inputs = lambda: inputs\n"
    )
    for target, instruction in (("sapphirerapids", "tdpbf16ps"), ("znver4", "vdpbf16ps")):
        torch._dynamo.reset()
        out = CliRunner().invoke(main, ["dump", f"{path}:net", "--stage", "asm", "--target", target])
        assert out.exit_code == 0, out.output
        kernels = out.output.split("---- graph")
        assert sum(instruction in text for text in kernels) == 1, 'a chain of both products'


def test_too_many_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then ATen's kernel runs, which keeps none; a symbolic length that grows past the limit compiles anew."""
    monkeypatch.setattr(attention, "MAX_SCORES", 20000)
    for q, k, reason in ((heads(600), heads(600), "more than 1280000 scores"), (heads(1, heads=1), heads(30000, heads=1), "scores of 1 queries")):
        torch._dynamo.reset()
        report = mlirc.explain(F.scaled_dot_product_attention, q, k, k)
        (call,) = [node for graph in report.graphs for node in graph.aten]
        assert reason in call.reason
    torch._dynamo.reset()
    f = torch.compile(F.scaled_dot_product_attention, backend="mlirc", dynamic=True)
    for n in (33, 40, 128, 50, 200):
        q = heads(n)
        with torch.no_grad():
            torch.testing.assert_close(f(q, q, q), F.scaled_dot_product_attention(q, q, q), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("keys", [8, 4])
def test_heads_in_parts_for_lengths_that_change(keys: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are made for longer ones than the first; one that fits them compiles nothing, and one that fits no parts is ATen's."""
    monkeypatch.setattr(attention, "MAX_SCORES", 8 * 100 * 100 - 1)
    torch.manual_seed(0)
    torch._dynamo.reset()

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=keys != 8)

    counter = CompileCounterWithBackend("mlirc")
    f = torch.compile(attend, backend=counter)
    for n, graphs, ours in ((100, 1, True), (130, 1, True), (250, 2, False)):
        q, k, v = (of_any_length(heads(n, batch=1, heads=h, dtype=dtype), 2) for h in (8, keys, keys))
        mask = of_any_length(torch.rand(1, 8, n, n) < 0.6, 2, 3)
        with torch.no_grad():
            got, want = f(q, k, v, mask), attend(q, k, v, mask)
            assert same(want, got, fp64_ref=attend(q.double(), k.double(), v.double(), mask))
        assert counter.frame_count == graphs
        assert (not left_to_aten()) == ours


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("limit", [20000, 3000])
@pytest.mark.parametrize("m,n,keys", [(67, 65, 3), (67, 65, 1), (65, 17, 3), (17, 97, 1), (97, 17, 3)])
def test_queries_in_parts(m: int, n: int, keys: int, limit: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last part is smaller; a part of queries that see only the keys before them reads no others, and the first ones may be all there are."""
    monkeypatch.setattr(attention, "MAX_SCORES", limit)
    monkeypatch.setattr(attention, "MOST_PARTS", 99)
    torch.manual_seed(0)
    q, k, v = heads(m, dtype=dtype), heads(n, heads=keys, dtype=dtype), heads(n, heads=keys, dtype=dtype)

    def attend(q, k, v, mask=None, causal=False):  # noqa: ANN001, ANN202
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=keys != 3)

    compare(lambda q, k, v: (attend(q, k, v), attend(q, k, v, causal=True)), q, k, v)
    masks = torch.randn(m, n, dtype=dtype), torch.rand(2, 1, 1, n) < 0.8, torch.randn(1, 3, m, 1, dtype=dtype), torch.rand(1, n) < 0.8
    compare(lambda q, k, v, masks: [attend(q, k, v, mask) for mask in masks], q, k, v, masks)
    report = mlirc.explain(lambda q, k, v: attend(q, k, v, causal=True), q, k, v)
    assert not [node for graph in report.graphs for node in graph.aten]


@pytest.mark.parametrize("causal", [False, True])
def test_parts_of_queries_for_keys_that_change(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which each part reads all: how many the queries before see is not known."""
    monkeypatch.setattr(attention, "MAX_SCORES", 4000)
    torch.manual_seed(0)
    torch._dynamo.reset()
    f = torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), backend="mlirc", options={"strict": True})
    q = heads(64, batch=1)
    for n in (70, 90, 20):
        k, v = (of_any_length(heads(n, batch=1), 2) for _ in range(2))
        with torch.no_grad():
            torch.testing.assert_close(f(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=causal), atol=1e-5, rtol=1e-5)
    assert not left_to_aten()


def test_parts_serve_fewer_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled for a length that needs no parts, where there are some."""
    monkeypatch.setattr(attention, "MAX_SCORES", 6 * 100 * 100 - 1)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("mlirc")
    f = torch.compile(F.scaled_dot_product_attention, backend=counter)
    for n in (100, 33, 2, 128):
        q, k, v = (of_any_length(heads(n, batch=1, heads=6), 2) for _ in range(3))
        with torch.no_grad():
            torch.testing.assert_close(f(q, k, v), F.scaled_dot_product_attention(q, k, v), atol=1e-5, rtol=1e-5)
    assert counter.frame_count == 1 and not left_to_aten()


def test_gradients_of_many_scores_of_lengths_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are ATen's, which takes the logarithms of all our parts."""
    monkeypatch.setattr(attention, "MAX_SCORES", 6 * 100 * 100 - 1)
    torch.manual_seed(0)
    torch._dynamo.reset()
    f = torch.compile(F.scaled_dot_product_attention, backend="mlirc")
    for n in (100, 120, 40):
        leaves = [of_any_length(heads(n, batch=1, heads=6).detach().requires_grad_(), 2) for _ in range(3)]
        got, want = (torch.autograd.grad(g(*leaves, is_causal=True).square().sum(), leaves) for g in (f, F.scaled_dot_product_attention))
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    assert left_to_aten() == ["aten._scaled_dot_product_flash_attention_for_cpu_backward.default"]


def parts_of(shape: tuple[int, int, int, int], keys: int, causal: bool, monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[int, ...], int]]:
    """Batch, heads and queries of each part, and its keys."""
    parts: list[tuple[tuple[int, ...], int]] = []
    attend = attention._attend
    monkeypatch.setattr(attention, "_attend", lambda b, dims, q, k, *rest: (parts.append((q.shape[:-1], k.shape[2])), attend(b, dims, q, k, *rest))[1])
    batch, n, m, d = shape
    q, k = heads(m, batch=batch, heads=n, size=d), heads(keys, batch=batch, heads=n, size=d)
    compare(lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=causal), q, k)
    return parts


def test_parts_are_of_heads_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which share a kernel; two of them at least, whose products are a batch; then of queries, which see the keys before them."""
    monkeypatch.setattr(attention, "MAX_SCORES", 4 * 64 * 64)
    assert parts_of((2, 6, 64, 8), 64, False, monkeypatch) == [((1, 3, 64), 64)] * 4
    assert parts_of((1, 2, 128, 8), 128, True, monkeypatch) == [((1, 2, 64), 64), ((1, 2, 64), 128)]


def test_parts_of_many_keys_are_of_queries_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which a quarter sees a quarter of the keys."""
    monkeypatch.setattr(attention, "MAX_SCORES", 2 * 3 * 64 * 64 // 4)
    monkeypatch.setattr(attention, "MANY_KEYS", 63)
    assert [keys for _, keys in parts_of((2, 3, 64, 8), 64, True, monkeypatch)] == [16, 32, 48, 64]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("m,n,keys", [(67, 65, 4), (65, 17, 2), (17, 97, 4)])
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float"])
def test_gradients_in_parts(kind: str, m: int, n: int, keys: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of heads, and of queries, whose contributions to the gradients of keys and values are added up."""
    monkeypatch.setattr(attention, "MAX_SCORES", 3000)
    monkeypatch.setattr(attention, "MOST_PARTS", 99)
    monkeypatch.setattr(attention_gradients, "PARTS_OF_QUERIES", ((1, 3),))
    torch.manual_seed(0)
    mask = {"bool": torch.rand(2, 1, m, n) < 0.7, "float": torch.randn(4, m, n, dtype=dtype)}.get(kind)

    def f(q, k, v, g, *mask):  # noqa: ANN001, ANN202
        out = F.scaled_dot_product_attention(q, k, v, *mask, is_causal=kind == "causal", enable_gqa=keys != 4)
        return out, *torch.autograd.grad(out, (q, k, v), g)

    leaves = [heads(size, heads=h, dtype=dtype).detach().requires_grad_() for size, h in ((m, 4), (n, keys), (n, keys))]
    compare(f, *leaves, torch.randn_like(leaves[0]), *([] if mask is None else [mask]))
    assert not left_to_aten()


def test_parts_of_queries_for_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of many keys, of which the first queries see few."""
    parts: list[tuple[int, int]] = []
    gradients = attention_gradients._gradients
    monkeypatch.setattr(attention_gradients, "_gradients", lambda b, dims, x, *rest: (parts.append((x[0].shape[2], x[1].shape[2])), gradients(b, dims, x, *rest))[1])
    for n, causal, expected in ((255, True, [(255, 255)]), (256, True, [(128, 128), (128, 256)]), (256, False, [(256, 256)])):
        parts.clear()
        leaves = [heads(n, batch=1, heads=2).detach().requires_grad_() for _ in range(3)]
        torch._dynamo.reset()
        torch.compile(F.scaled_dot_product_attention, backend="mlirc", dynamic=False)(*leaves, is_causal=causal).sum().backward()
        assert parts == expected


def test_no_elements() -> None:
    for m, n in [(0, 5), (5, 0)]:
        q, k = heads(m), heads(n)
        torch._dynamo.reset()
        got = torch.compile(F.scaled_dot_product_attention, backend="mlirc")(q, k, k)
        torch.testing.assert_close(got, F.scaled_dot_product_attention(q, k, k), equal_nan=True)
