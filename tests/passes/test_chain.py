"""Kernels that take turns: which, in what parts, and that they are as right as one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

from mlirc import driver
from mlirc.cli import main
from mlirc.dialects.context import kernel_context
from mlirc.dialects.mlir import ir
from mlirc.dialects.own import load_for
from mlirc.errors import CompileError, OptionError
from mlirc.lowering.caches import Caches
from mlirc.lowering.target import Target
from mlirc.passes import chain as chain_pass
from mlirc.passes.chained import ChainFunction
from mlirc.passes.numbered import numbered
from mlirc.passes.outline import Kernel
from mlirc.passes.strategy import Adjustment, select_strategy
from mlirc.passes.strategy.chains import SLACK, ChainStrategy, chain, chunk_bytes, pitch, stays_in_cache, too_few_chunks
from mlirc.passes.vectorize.tiles import SIDE
from mlirc.tests.frontend.compare import compare, kernels, left_to_aten

AMX, AVX512 = "sapphirerapids", "x86-64-v4"


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels take turns wherever they can."""
    monkeypatch.setattr(chain_pass, "stays_in_cache", lambda *_: "")
    monkeypatch.setattr(chain_pass, "too_few_chunks", lambda *_: "")


def heads(n: int, *, batch: int = 1, heads: int = 12, size: int = 32, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """[batch, heads, n, size], as a projection leaves it: heads next to each other."""
    return torch.randn(batch, n, heads, size, dtype=dtype).transpose(1, 2)


def cpu_of(target: str) -> Target:
    return replace(Target.parse(target), caches=Caches(48 << 10, 12, 2 << 20))


def chosen(kernel: Kernel, target: str) -> tuple[ChainFunction, ChainStrategy | str]:
    with kernel_context(), ir.Location.unknown():
        load_for(kernel.text)
        module = ir.Module.parse(kernel.text)
        found = ChainFunction(module)
        cpu = cpu_of(target)
        return found, chain(found, [select_strategy(k, cpu) for k in found.parts], cpu)


def attention_kernel(m: int, n: int, target: str, **of_heads: int) -> Kernel:
    """The chain for a target, whose code the host need not run: nothing is compiled."""
    torch._dynamo.reset()
    q, k, v = heads(m, **of_heads), heads(n, **of_heads), heads(n, **of_heads)
    found: list[Kernel] = []
    passes = driver.run_graph_passes

    def stop(kernels: list[Kernel], *_: object) -> None:
        found.extend(kernels)
        raise CompileError("seen")

    with pytest.MonkeyPatch.context() as patch, torch.no_grad(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="seen"):
        patch.setattr(driver, "run_graph_passes", lambda module, writes, _, observer: passes(module, writes, Target.parse(target), observer))
        patch.setattr(driver, "compile_kernels", stop)
        torch.compile(F.scaled_dot_product_attention, backend="mlirc", options={"strict": True})(q, k, v)
    (kernel,) = [k for k in found if "_chain_" in k.name]
    return kernel


def test_attention_takes_turns(outlined: list[Kernel]) -> None:
    """Its scores are 1.9 MB; of smaller ones each kernel is one of its own, which pins and measurements can tell apart."""
    if not Target.host().has_amx_bf16:
        pytest.skip("what is a kernel depends on the target, and this CPU has no AMX")
    compare(F.scaled_dot_product_attention, *(heads(197) for _ in range(3)))
    assert sum("_chain_" in k.name for k in outlined) == 1 and len([k for k in kernels() if "pack" not in k]) == 1
    outlined.clear()
    compare(F.scaled_dot_product_attention, *(heads(33) for _ in range(3)))
    assert not any("_chain_" in k.name for k in outlined) and len([k for k in kernels() if "pack" not in k]) == 3


CASES: dict[str, Callable[..., torch.Tensor]] = {
    "plain": F.scaled_dot_product_attention,
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "mask": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, (torch.arange(k.shape[2]) % 3 > 0).expand(q.shape[2], -1)),
    "by hand": lambda q, k, v: (q @ k.transpose(-2, -1) * 0.1).softmax(-1) @ v,
    "scores, too": lambda q, k, v: ((p := (q @ k.transpose(-2, -1)).softmax(-1)) @ v, p.sum(-1)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_numbers(always: None, case: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for m, n in ((1, 1), (3, 17), (17, 3), (33, 33), (65, 197)):
        compare(CASES[case], heads(m, dtype=dtype, heads=4), heads(n, dtype=dtype, heads=4), heads(n, dtype=dtype, heads=4))
    assert not left_to_aten()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("m, n", [(300, 300), (259, 520), (1030, 129)])
def test_numbers_of_blocks_of_rows(always: None, m: int, n: int, dtype: torch.dtype) -> None:
    """What a head has between its kernels is more than their share of the cache; the last block has fewer rows, or one tile of AMX."""
    torch.manual_seed(0)
    q, k, v = (heads(rows, heads=3, dtype=dtype) for rows in (m, n, n))
    compare(F.scaled_dot_product_attention, q, k, v)
    if Target.host().has_amx_bf16:
        assert any("_chain_" in k for k in kernels())


def test_threads_share_the_parts(always: None) -> None:
    before = torch.get_num_threads()
    q, k, v = heads(129, heads=7), heads(70, heads=7), heads(70, heads=7)
    torch.set_num_threads(1)
    try:
        compiled = torch.compile(F.scaled_dot_product_attention, backend="mlirc", options={"strict": True})
        alone = compiled(q, k, v)
        torch.set_num_threads(2)
        assert torch.equal(alone, compiled(q, k, v))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("target", [AMX, AVX512])
def test_a_head_or_some_after_the_other(always: None, target: str) -> None:
    """What is between the kernels fills no more than an eighth of the second-level cache."""
    share = cpu_of(target).caches.second // 8
    for size, together in ((64, 2), (150, 1)):
        kernel = attention_kernel(size, size, target, heads=16)
        found, s = chosen(kernel, target)
        assert isinstance(s, ChainStrategy) and (s.batch, s.row_block, s.row_blocks) == (16, size, 1)
        assert s.together == together and s.chunks == 16 // together
        assert sum(chunk_bytes(found.parts, p, s) for p in found.passed) <= share


def test_blocks_of_rows_of_longer_ones(always: None) -> None:
    found, s = chosen(attention_kernel(500, 500, AMX, heads=2), AMX)
    assert isinstance(s, ChainStrategy) and s.together == 1 and s.row_block % 32 == 0 and s.row_block < 500
    assert s.chunks == 2 * -(-500 // s.row_block)
    first, loops, last = s.parts
    assert first.row_tiles == last.row_tiles == s.row_block // 32
    assert s.spans[1] == (500, s.row_block), "the softmax has an iteration for a row"
    assert SLACK >= SIDE, "rows of a tile that may lie before a block"


def test_whether_it_is_worth_it(always: None) -> None:
    cpu = cpu_of(AMX)
    assert "stay in the second-level cache" in stays_in_cache(1000 << 10, cpu) and not stays_in_cache(1024 << 10, cpu)
    _, s = chosen(attention_kernel(180, 180, AMX, heads=7), AMX)
    assert isinstance(s, ChainStrategy) and s.chunks == 7 and "threads" in too_few_chunks(s)
    _, s = chosen(attention_kernel(200, 200, AMX, heads=12), AMX)
    assert isinstance(s, ChainStrategy) and not too_few_chunks(s)


def test_the_graph_says_why_not(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("import torch\ndef net(q, k, v):\n    return torch.nn.functional.scaled_dot_product_attention(q, k, v)\n")
    inputs = ["--input", "1x4x33x32xbf16"] * 3
    out = CliRunner().invoke(main, ["dump", f"{path}:net", *inputs, "--stage", "chain", "--target", AMX])
    assert out.exit_code == 0 and 'mlirc.unchained = "' in out.output and "stay in the second-level cache anyway" in out.output


def test_rows_between_kernels_begin_with_a_line(always: None) -> None:
    kernel = attention_kernel(33, 197, AMX)
    assert 'mlirc.result_strides = [["82368", "6864", "208", "1"]]' in kernel.text, "scores in f32"
    assert '["88704", "7392", "224", "1"]' in kernel.text, "their powers in bf16"
    assert (pitch(197, 4), pitch(512, 4), pitch(512, 2), pitch(16, 4), pitch(17, 4)) == (208, 528, 544, 16, 32)


def test_each_part_is_a_function_and_what_passes_is_on_the_stack(always: None) -> None:
    seen: dict[str, str] = {}
    kernel = attention_kernel(64, 64, AMX)
    driver.compile_kernel(kernel.text, Target.parse(AMX), "k", lambda name, what: seen.update({name: str(what)}))
    assert all(f"call @k_{n}_body" in seen["vector"] for n in range(3))
    assert "// together = 1" in seen["strategy"] and seen["strategy"].count("// part ") == 3
    assert seen["asm"].count("tdpbf16ps") >= 8


def test_weights_that_all_have_in_common_are_not_read_again_and_again(outlined: list[Kernel], always: None) -> None:
    """A product of a batch with the same large weight begins no chain: each chunk would read it."""
    layer = torch.nn.Conv1d(600, 600, 1)
    compare(lambda x: layer.to(x.dtype)(x).softmax(1).abs(), torch.randn(16, 600, 130))
    assert outlined and not any("_chain_" in k.name for k in outlined)


def test_pins_are_for_the_parts_that_have_the_field(always: None) -> None:
    seen: dict[str, str] = {}
    kernel, rows = attention_kernel(129, 129, AVX512), Adjustment((("rows", 4),), "pinned", pinned=True, exact=True)
    driver.compile_kernel(kernel.text, Target.parse(AVX512), "k", lambda name, what: seen.update({name: str(what)}), adjustment=rows)
    assert seen["strategy"].count("// rows = 4: pinned") == 2, "the products, and not the softmax, whose rows nobody can pin"
    with pytest.raises(OptionError, match="valid"):
        driver.compile_kernel(kernel.text, Target.parse(AVX512), "k", adjustment=replace(rows, fields=(("rows", 1000),)))


def test_what_is_read_elsewhere_is_stored(always: None) -> None:
    """The powers are a result of the graph as well, and what is summed up of them comes after the chain."""

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = (q @ k.transpose(-2, -1)).softmax(-1)
        return p @ v, p

    torch.manual_seed(0)
    compare(f, heads(65), heads(65), heads(65))


FOLLOWERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "scan": lambda x: x.cumsum(-1),
    "concat": lambda x: torch.cat([x, x.flip(-1)], -1),
}


@pytest.mark.parametrize("follower", FOLLOWERS)
def test_products_before_kernels_that_are_none(always: None, follower: str) -> None:
    torch.manual_seed(0)
    compare(lambda q, k: FOLLOWERS[follower](q @ k.transpose(-2, -1)), heads(65).float()[0], heads(65).float()[0])
    assert not left_to_aten()


def test_a_chain_that_reads_what_another_makes(always: None, outlined: list[Kernel]) -> None:
    torch.manual_seed(0)
    attend = F.scaled_dot_product_attention
    compare(lambda q, k, v: attend(attend(attend(q, k, v), k, v), v, k), heads(70), heads(70), heads(70))
    assert any("_chain_" in k.name for k in outlined) and not left_to_aten()


def test_a_dump_of_a_chain(always: None, tmp_path: Path) -> None:
    path = tmp_path / "chain.mlir"
    path.write_text(attention_kernel(64, 64, AMX).text)
    out = CliRunner().invoke(main, ["dump", str(path), "--stage", "strategy", "--stage", "asm", "--target", AMX])
    assert out.exit_code == 0 and "// part 2:" in out.output and "tdpbf16ps" in out.output


def test_gradients_of_a_chain(always: None) -> None:
    torch.manual_seed(0)

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        F.scaled_dot_product_attention(q, k, v).float().square().sum().backward()
        return [x.grad for x in (q, k, v)]  # type: ignore[misc]

    args = [heads(70, heads=4, dtype=torch.float32) for _ in range(3)]
    compiled = torch.compile(F.scaled_dot_product_attention, backend="mlirc", options={"strict": True})
    leaves = [x.detach().requires_grad_() for x in args]
    compiled(*leaves).square().sum().backward()
    for got, want in zip(leaves, step(*(x.double() for x in args))):
        torch.testing.assert_close(got.grad.double(), want, rtol=1e-3, atol=1e-3)


def test_what_is_passed_on_is_not_stored_past_the_caches() -> None:
    """Scores are 50 MB in all, of which those of a few heads are there at a time."""
    _, plan = chosen(attention_kernel(512, 512, "sapphirerapids", batch=4), "sapphirerapids")
    assert isinstance(plan, ChainStrategy) and all(part.streamed == [] for part in plan.parts)


def symbolic_attention(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, masked: bool = False) -> list[Kernel]:
    """The kernels of attention with lengths that change; nothing is compiled."""
    torch._dynamo.reset()
    found: list[Kernel] = []

    def stop(kernels: list[Kernel], *_: object) -> None:
        found.extend(kernels)
        raise CompileError("seen")

    monkeypatch.setattr(driver, "compile_kernels", stop)
    q, k, v = (heads(100, dtype=dtype) for _ in range(3))
    mask = torch.ones(100, 100, dtype=torch.bool) if masked else None
    for x in (q, k, v):
        torch._dynamo.mark_dynamic(x, 2)
    if mask is not None:
        torch._dynamo.mark_dynamic(mask, 1)
        torch._dynamo.mark_dynamic(mask, 0)
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="seen"):
        torch.compile(F.scaled_dot_product_attention, backend="mlirc", options={"strict": True})(q, k, v, mask)
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_lengths_that_are_symbols(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that are computed in several places are one argument, and equal stand-ins; different ones are not."""
    (kernel,) = [k for k in symbolic_attention(dtype, monkeypatch) if "_chain_" in k.name]
    found, s = chosen(kernel, AVX512)
    assert isinstance(s, ChainStrategy) and s.symbolic and s.row_block <= 3 * 28 and not too_few_chunks(s)
    with kernel_context(), ir.Location.unknown():
        load_for(kernel.text)
        function = ChainFunction(ir.Module.parse(kernel.text))
        scores, softmax, values = (k.domain.sizes for k in numbered(function))
        assert set(softmax) <= set(scores) and len({n for n in scores if n > 1000}) == 2  # type: ignore[operator]
        assert softmax[0] in values and softmax[1] in values, "heads and rows"
    code: dict[str, str] = {}
    driver.compile_kernel(kernel.text, Target.host(), "k", lambda name, what: code.update({name: str(what)}))
    assert code["vector"].count("call @malloc") == code["vector"].count("call @free") == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_masks_of_lengths_that_are_symbols(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where keys are in blocks, the mask is, too, and is read to see which of them no query sees."""
    (kernel,) = [k for k in symbolic_attention(dtype, monkeypatch, masked=True) if "_chain_" in k.name]
    _, s = chosen(kernel, AVX512)
    assert isinstance(s, ChainStrategy) and s.symbolic and not too_few_chunks(s)
    assert "conditions hide columns" in s.why["seen"]


def test_threads_share_lengths_that_change() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        q, k, v = (heads(n, heads=7, dtype=torch.float32) for n in (129, 300, 300))
        for x in (q, k, v):
            torch._dynamo.mark_dynamic(x, 2)
        compiled = torch.compile(F.scaled_dot_product_attention, backend="mlirc", options={"strict": True})
        with torch.no_grad():
            alone = compiled(q, k, v)
            torch.set_num_threads(2)
            assert torch.equal(alone, compiled(q, k, v))
    finally:
        torch.set_num_threads(before)


def test_other_products_of_symbols_take_no_turns(outlined: list[Kernel]) -> None:
    """A layer norm behind a product would gain nothing that is known."""
    layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 32))
    x = torch.randn(50, 32)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(layers, backend="mlirc")(x), layers(x), rtol=1e-4, atol=1e-5)
    assert outlined and not any("_chain_" in k.name for k in outlined)
