"""Columns that a mask hides from a block of rows: which these are, that nothing depends on them, and that nobody computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from mlirc import driver
from mlirc.dialects.context import kernel_context
from mlirc.dialects.mlir import ir
from mlirc.dialects.own import load_for
from mlirc.lowering.target import Target
from mlirc.passes import neutral
from mlirc.passes.chained import ChainFunction
from mlirc.passes.conditions import Conditions, Limit, Linear, Mask, Place
from mlirc.passes.outline import Kernel
from mlirc.passes.strategy import chains
from mlirc.passes.strategy.chains import ChainStrategy
from mlirc.passes.vectorize.kernel import KernelFunction
from mlirc.tests.frontend.compare import compare, left_to_aten
from mlirc.tests.passes.test_chain import AMX, AVX512, always, attention_kernel, chosen, heads

__all__ = ["always"]

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

BATCH, ROW, COLUMN = Linear(((0, 1),)), Linear(((1, 1),)), Linear(((2, 1),))


def masked(where: torch.Tensor | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Attention:
    """Attention by hand with the scores that are not `where` hidden: a tensor, or of the numbers of queries and keys."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen = where
        if not isinstance(seen, torch.Tensor):
            seen = seen(torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2]))
        return (q @ k.mT * 0.2).masked_fill(~seen, float("-inf")).softmax(-1) @ v

    return attend


def chain_of(f: Attention, m: int, n: int, monkeypatch: pytest.MonkeyPatch, target: str = AVX512) -> tuple[ChainFunction, ChainStrategy]:
    monkeypatch.setattr(F, "scaled_dot_product_attention", f)
    found, s = chosen(attention_kernel(m, n, target, heads=3, dtype=torch.float32), target)
    assert isinstance(s, ChainStrategy), s
    return found, s


def found_in(f: Attention, monkeypatch: pytest.MonkeyPatch) -> Conditions:
    """By the classes batch, row and column."""
    _, s = chain_of(f, 300, 300, monkeypatch)
    assert s.seen is not None and s.seen.classes[0] is None and None not in s.seen.classes[1:]
    names = {c: n for n, c in enumerate((*s.seen.outer, s.seen.row, s.seen.column.walked))}

    def named(of: Linear) -> Linear:
        return Linear(tuple((names[c], n) for c, n in of.steps), of.constant)  # type: ignore[index]

    return tuple(Limit(named(c.of)) if isinstance(c, Limit) else Mask(c.argument, Place(named(c.place.known)), c.hidden) for c in s.seen.conditions)


def limit(a: Linear, b: Linear, more: int = 0) -> Limit:
    """a - b + more <= 0."""
    return Limit(a.plus(b, -1).plus(Linear((), more)))


def same(found: Conditions, wanted: list[Limit]) -> bool:
    def key(c: Limit | Mask) -> tuple[object, ...]:
        assert isinstance(c, Limit)
        return tuple(sorted(c.of.steps)), c.of.constant  # type: ignore[arg-type]

    return {key(c) for c in found} == {key(c) for c in wanted}


LIMITS: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], list[Limit]]] = {
    "before": (lambda i, j: j <= i, [limit(COLUMN, ROW)]),
    "before, not itself": (lambda i, j: i > j, [limit(COLUMN, ROW, 1)]),
    "not after": (lambda i, j: ~(j > i), [limit(COLUMN, ROW)]),
    "window": (lambda i, j: (j <= i) & (j > i - 70), [limit(COLUMN, ROW), limit(ROW, COLUMN, -69)]),
    "around": (lambda i, j: ~((j > i + 5) | (j + 3 < i)), [limit(COLUMN, ROW, -5), limit(ROW, COLUMN, -3)]),
    "some keys": (lambda i, j: (j < 100) & (i >= 0), [limit(COLUMN, Linear(), -99)]),
}


@pytest.mark.parametrize("case", LIMITS)
def test_limits_of_the_indices(always: None, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, wanted = LIMITS[case]
    assert same(found_in(masked(where), monkeypatch), wanted)


def test_nothing_is_said_of_what_is_not_understood(always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either may hide a column here, and both must."""
    _, s = chain_of(masked(lambda i, j: (j <= i) | (j % 7 == 0)), 300, 300, monkeypatch)
    assert s.seen is None


def test_masks_are_looked_through(always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of bools, and of numbers that are added; of all rows, of each head."""
    for mask, steps in ((torch.rand(300, 300) < 0.5, (0, 300, 1)), (torch.rand(300) < 0.5, (0, 0, 1)), (torch.rand(3, 1, 300) < 0.5, (300, 0, 1))):
        (found,) = found_in(masked(mask), monkeypatch)
        assert isinstance(found, Mask) and tuple(found.place.known.step(c) for c in range(3)) == steps and found.hidden in (0, 1)
    added = torch.zeros(300, 300)
    (found,) = found_in(lambda q, k, v: (q @ k.mT + added).softmax(-1) @ v, monkeypatch)
    assert isinstance(found, Mask) and found.hidden == 0xFF800000


def test_a_mask_of_each_batch(always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is added where the softmax is, whose loops tell a batch from a head, and not to the products."""
    mask = torch.rand(2, 1, 300, 300) < 0.5
    monkeypatch.setattr(F, "scaled_dot_product_attention", masked(mask))
    found, s = chosen(attention_kernel(300, 300, AVX512, batch=2, heads=3, dtype=torch.float32), AVX512)
    assert isinstance(s, ChainStrategy) and s.seen is not None and s.seen.part == 1 and len(s.seen.outer) == 2
    (condition,) = s.seen.conditions
    assert isinstance(condition, Mask) and dict(condition.place.known.steps) == {s.seen.outer[0]: 90000, s.seen.row: 300, s.seen.column.walked: 1}


def kernel_text(body: str, result: str) -> str:
    return f"""
    #rows = affine_map<(d0, d1) -> (d0, d1)>
    #row = affine_map<(d0, d1) -> (d0)>
    func.func @kernel(%s: tensor<8x16xf32>) -> {result} attributes {{mlirc.result_strides = [["16", "1"]]}} {{
      %least = arith.constant 0xFF800000 : f32
      %zero = arith.constant 0.0 : f32
      %e = tensor.empty() : tensor<8xf32>
      %full = tensor.empty() : tensor<8x16xf32>
      %lows = linalg.fill ins(%least : f32) outs(%e : tensor<8xf32>) -> tensor<8xf32>
      %zeros = linalg.fill ins(%zero : f32) outs(%e : tensor<8xf32>) -> tensor<8xf32>
      %top = linalg.generic {{indexing_maps = [#rows, #row], iterator_types = ["parallel", "reduction"]}} ins(%s : tensor<8x16xf32>) outs(%lows : tensor<8xf32>) {{
      ^bb0(%a: f32, %o: f32):
        %m = arith.maxnumf %a, %o : f32
        linalg.yield %m : f32
      }} -> tensor<8xf32>
      %p = linalg.generic {{indexing_maps = [#rows, #row, #rows], iterator_types = ["parallel", "parallel"]}} ins(%s, %top : tensor<8x16xf32>, tensor<8xf32>) outs(%full : tensor<8x16xf32>) {{
      ^bb0(%a: f32, %t: f32, %o: f32):
        {body}
        linalg.yield %x : f32
      }} -> tensor<8x16xf32>
      %total = linalg.generic {{indexing_maps = [#rows, #row], iterator_types = ["parallel", "reduction"]}} ins(%p : tensor<8x16xf32>) outs(%zeros : tensor<8xf32>) {{
      ^bb0(%a: f32, %o: f32):
        %m = arith.addf %a, %o : f32
        linalg.yield %m : f32
      }} -> tensor<8xf32>
      %q = linalg.generic {{indexing_maps = [#rows, #row, #rows], iterator_types = ["parallel", "parallel"]}} ins(%p, %total : tensor<8x16xf32>, tensor<8xf32>) outs(%full : tensor<8x16xf32>) {{
      ^bb0(%a: f32, %t: f32, %o: f32):
        %d = arith.divf %a, %t : f32
        linalg.yield %d : f32
      }} -> tensor<8x16xf32>
      return %q : {result}
    }}
    """


SOFTMAX = "%y = arith.subf %a, %t : f32\n%x = math.exp %y : f32"


def columns_of(body: str) -> tuple[tuple[int, ...], dict[int, str]]:
    text = kernel_text(body, "tensor<8x16xf32>")
    with kernel_context(), ir.Location.unknown():
        load_for(text)
        module = ir.Module.parse(text)
        return neutral.columns(KernelFunction.of(module), {0: neutral.NOWHERE})


def test_a_softmax_leaves_nothing_of_them() -> None:
    assert columns_of(SOFTMAX) == ((1,), {0: neutral.ZERO})


@pytest.mark.parametrize(
    "body",
    [
        "%x = arith.subf %a, %t : f32",  # -inf counts in a sum
        "%x = arith.mulf %a, %t : f32",
        "%y = arith.subf %t, %a : f32\n%x = math.exp %y : f32",  # inf
        "%y = arith.subf %a, %t : f32\n%z = math.exp %y : f32\n%x = arith.addf %z, %t : f32",
        "%y = arith.subf %a, %t : f32\n%x = math.tanh %y : f32",  # -1
    ],
)
def test_others_leave_something(body: str) -> None:
    with pytest.raises(neutral.NotNeutral, match="counts them"):
        columns_of(body)


def test_what_others_read_is_computed(always: None, monkeypatch: pytest.MonkeyPatch, outlined: list[Kernel]) -> None:
    """Weights that are a result of the graph have all their columns."""

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = torch.arange(q.shape[2])[:, None] < torch.arange(k.shape[2])
        p = (q @ k.mT).masked_fill(hidden, float("-inf")).softmax(-1)
        return p @ v, p

    torch.manual_seed(0)
    compare(f, *(heads(300, heads=2, dtype=torch.float32) for _ in range(3)))
    for kernel in outlined:
        if "_chain_" in kernel.name:
            _, s = chosen(kernel, AVX512)
            assert not isinstance(s, ChainStrategy) or s.seen is None


def weights(q: torch.Tensor, k: torch.Tensor, more: torch.Tensor | float = 0) -> torch.Tensor:
    hidden = torch.arange(q.shape[2])[:, None] < torch.arange(k.shape[2])
    return (q @ k.mT * 0.1 + more).masked_fill(hidden, float("-inf")).softmax(-1)


BESIDE: dict[str, Callable[..., torch.Tensor]] = {
    "another softmax": lambda q, k, v, x: (weights(q, k) * (k @ k.mT * 0.1).softmax(-1)) @ v,
    "of a bias": lambda q, k, v, x: (weights(q, k) * x.softmax(-1)) @ v,
    "a norm": lambda q, k, v, x: (weights(q, k) * (x / x.norm(dim=-1, keepdim=True))) @ v,
    "in the scores": lambda q, k, v, x: weights(q, k, x.softmax(-1) * 100) @ v,
}


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("case", BESIDE)
def test_what_else_is_summed_up_over_the_columns(always: None, case: str, dtype: torch.dtype) -> None:
    """Such as a second softmax, which sees all of them."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 3, 300, 64, dtype=dtype) for _ in range(3))
    compare(BESIDE[case], q, k, v, torch.randn(1, 3, 300, 300, dtype=dtype))


def test_a_reduction_of_something_else() -> None:
    text = kernel_text(SOFTMAX, "tensor<8x16xf32>").replace("(%s: tensor<8x16xf32>)", "(%s: tensor<8x16xf32>, %b: tensor<8x16xf32>)")
    # The divisor is the sum of something else, plus nothing.
    text = text.replace("ins(%p : tensor<8x16xf32>) outs(%zeros", "ins(%b : tensor<8x16xf32>) outs(%zeros")
    text = text.replace("ins(%p, %total :", "ins(%r, %total :").replace(
        "      %total = ",
        """      %r = linalg.generic {indexing_maps = [#rows, #rows, #rows], iterator_types = ["parallel", "parallel"]} ins(%p, %b : tensor<8x16xf32>, tensor<8x16xf32>) outs(%full : tensor<8x16xf32>) {
      ^bb0(%a: f32, %t: f32, %o: f32):
        %m = arith.mulf %a, %t : f32
        linalg.yield %m : f32
      } -> tensor<8x16xf32>
      %total = """,
    )
    with kernel_context(), ir.Location.unknown():
        load_for(text)
        module = ir.Module.parse(text)
        kernel = KernelFunction.of(module)
        with pytest.raises(neutral.NotNeutral, match="something else"):
            neutral.columns(kernel, {0: neutral.NOWHERE})


WRAPPING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda a: a + 2147483400 <= a[:, None],
    "product": lambda a: a <= -((a[:, None] + torch.arange(3, dtype=torch.int32)[:, None, None]) * (1 << 24)),
    "difference": lambda a: a - 2147483500 <= a[:, None] - 2147483400,
}


@pytest.mark.parametrize("case", WRAPPING)
def test_numbers_that_wrap_around(always: None, case: str) -> None:
    torch.manual_seed(0)

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen = WRAPPING[case](torch.arange(300, dtype=torch.int32))
        return torch.where(seen, q @ k.mT * 0.1, float("-inf")).softmax(-1) @ v

    compare(f, *(heads(300, heads=3, dtype=torch.float32) for _ in range(3)))


WHERE: dict[str, Callable[[int, int], torch.Tensor]] = {
    "before": lambda m, n: torch.ones(m, n).tril().bool(),
    "window": lambda m, n: torch.ones(m, n).tril(20).triu(-40).bool(),
    "documents": lambda m, n: torch.arange(m)[:, None] // 90 == torch.arange(n) // 90,
    "few": lambda m, n: torch.rand(m, n) < 0.003,
    "one row sees the last": lambda m, n: (torch.arange(m)[:, None] == 7) & (torch.arange(n) == n - 1),
    "all": lambda m, n: torch.ones(m, n, dtype=torch.bool),
    "nothing": lambda m, n: torch.zeros(m, n, dtype=torch.bool),
    "some keys": lambda m, n: (torch.arange(n) < 77).expand(1, n),
}


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("case", WHERE)
def test_numbers(always: None, case: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for m, n in ((300, 300), (259, 520), (70, 257)):
        q, k, v = (heads(size, heads=3, dtype=dtype) for size in (m, n, n))
        where = WHERE[case](m, n)
        # Rows that see nothing: NaN by hand, zeros otherwise.
        compare(lambda q, k, v, where: (masked(where)(q, k, v), F.scaled_dot_product_attention(q, k, v, where)), q, k, v, where)
    assert not left_to_aten()


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("case", LIMITS)
def test_numbers_of_limits(always: None, case: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for m, n in ((300, 300), (259, 520), (520, 259)):
        compare(masked(LIMITS[case][0]), *(heads(size, heads=3, dtype=dtype) for size in (m, n, n)))


@pytest.mark.parametrize("shape", [(2, 1, 1, 300), (2, 4, 300, 300), (1, 4, 1, 300), (2, 1, 300, 300), (300, 1)], ids=str)
def test_numbers_of_masks_with_heads(always: None, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    mask = torch.rand(shape) < 0.7
    mask[..., 100:] &= torch.rand(shape[:-1])[..., None] < 0.5
    q, k, v = heads(300, batch=2, heads=4), heads(300, batch=2, heads=2), heads(300, batch=2, heads=2)
    compare(lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True), q, k, v, mask)
    compare(lambda q, k, v, mask: masked(mask)(q, k, v), q, q, q, mask)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_nobody_computes_what_is_not_seen(always: None, dtype: torch.dtype) -> None:
    """NaN in keys and values is not in rows that do not see them, which are in another block of rows: 0 * NaN would be."""
    if not (Target.host().has_avx512 or Target.host().has_amx_bf16):
        pytest.skip("which kernels take turns depends on the target: registers")
    torch.manual_seed(0)
    q, k, v = (heads(512, heads=2, dtype=dtype) for _ in range(3))
    k[:, :, 384:], v[:, :, 384:] = float("nan"), float("nan")
    mask = torch.ones(512, 512).tril().bool()
    for f in (lambda q, k, v, _: F.scaled_dot_product_attention(q, k, v, is_causal=True), F.scaled_dot_product_attention):
        torch._dynamo.reset()
        with torch.no_grad():
            out = torch.compile(f, backend="mlirc")(q, k, v, mask)
            assert not out[:, :, :256].isnan().any() and out[:, :, 384:].isnan().all()


@pytest.mark.parametrize("target, n", [(AMX, 512), (AMX, 1024), (AVX512, 512), ("x86-64-v3", 512)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_code(always: None, target: str, n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The products walk from one bound of the columns to the other, in whole words or tiles."""
    attend = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v: attend(q, k, v, is_causal=True))
    kernel = attention_kernel(n, n, target, heads=2, dtype=dtype)
    _, s = chosen(kernel, target)
    assert isinstance(s, ChainStrategy) and s.seen is not None and s.row_blocks >= 4 and s.together == 1
    seen: dict[str, str] = {}
    driver.compile_kernel(kernel.text, replace(Target.parse(target)), "k", lambda name, what: seen.update({name: str(what)}))
    assert "conditions hide columns" in seen["strategy"] and "asm" in seen
    if target == AMX and dtype == torch.bfloat16:
        assert seen["asm"].count("tdpbf16ps") >= 8
        assert not s.parts[2].overlapped and s.parts[2].depth is None and s.seen.block % 32 == 0  # type: ignore[union-attr]


def test_low_blocks_of_rows(always: None) -> None:
    """Even if all rows of a head fit the cache: they would see all columns."""
    attend = F.scaled_dot_product_attention
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", lambda q, k, v: attend(q, k, v, is_causal=True))
        kernel = attention_kernel(256, 256, AVX512, dtype=torch.float32)
    _, s = chosen(kernel, AVX512)
    assert isinstance(s, ChainStrategy) and s.seen is not None and s.row_block <= 64
    assert isinstance(chosen(attention_kernel(256, 256, AVX512, dtype=torch.float32), AVX512)[1].seen, type(None))  # type: ignore[union-attr]
    assert chains.LEAST_BLOCKS * s.seen.block <= 256
