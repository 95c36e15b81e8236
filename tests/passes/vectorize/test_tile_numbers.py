"""The numbers of AMX kernels: with the tile ops emulated, and on the tiles of this machine if it has them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch

from mlirc import driver
from mlirc.dialects.mlir import PassManager, ir
from mlirc.dialects.own import load_for
from mlirc.lowering.bridge import to_llvm22
from mlirc.lowering.codegen import emit_object
from mlirc.lowering.target import Target
from mlirc.lowering.to_llvm import lower_to_llvm_ir
from mlirc.passes import chain as chain_pass
from mlirc.passes.chained import ChainFunction, is_chain
from mlirc.passes.expand_math import expand_math
from mlirc.passes.registry import NOTHING
from mlirc.passes.vectorize import KernelFunction, vectorize
from mlirc.passes.vectorize.chain import vectorize_chain
from mlirc.tests.amx_emulation import emulate


@pytest.fixture
def amx(monkeypatch):
    """torch.compile for this machine plus AMX, the tile ops emulated."""
    host = Target.host()
    if not host.has_avx512:
        pytest.skip("the CPU lacks AVX-512, which every CPU with AMX has")
    fake = dataclasses.replace(host, features=tuple(sorted({*host.features, "amx-tile", "amx-bf16", "amx-int8", "avx512bf16", "avx512vnni"})))
    products = []

    def compile_kernels(kernels, target, options, files, adjustments):
        out = []
        for n, (k, adjustment) in enumerate(zip(kernels, adjustments)):
            with ir.Context(), ir.Location.unknown():
                load_for(k.text)
                module = ir.Module.parse(k.text)
                kernel = ChainFunction(module) if is_chain(module) else KernelFunction(module.body.operations[0].operation)
                strategy = driver._strategy(kernel, target, NOTHING, adjustment)
                vectors = (vectorize_chain if isinstance(kernel, ChainFunction) else vectorize)(kernel, strategy, f"kernel{n}")
                products.append(emulate(vectors))
                vectors.operation.verify()
                PassManager.parse("builtin.module(canonicalize,cse)").run(vectors.operation)
                expand_math(vectors)
                text = lower_to_llvm_ir(vectors)
            code = emit_object(to_llvm22(text), host)
            out.append(driver.CompiledKernel(k.name, f"kernel{n}", code, k.origins, k.text))
        return out

    monkeypatch.setattr(driver, "compile_kernels", compile_kernels)
    monkeypatch.setattr(Target, "parse", classmethod(lambda cls, name: fake))
    monkeypatch.setattr(Target, "check_runnable", lambda self: None)
    monkeypatch.setattr("mlirc.frontend.backend.request_tiles", lambda: None)
    torch._dynamo.reset()
    yield products
    torch._dynamo.reset()


def _layers(*convolutions: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.Sequential(convolutions[0], torch.nn.ReLU(), convolutions[1], torch.nn.Hardtanh())


def _grouped(channels: int, groups: int, size: int) -> torch.nn.Module:
    """A convolution with groups between two without, and norms, which see all channels."""
    n = torch.nn
    norm = n.BatchNorm2d(channels)
    torch.nn.init.normal_(norm.running_mean)
    grouped = n.Conv2d(channels, channels, (3, size), padding=(1, size // 2), groups=groups)
    return n.Sequential(n.Conv2d(channels, channels, 1), n.ReLU(), grouped, norm, n.ReLU(), n.Conv2d(channels, 32, 1)).eval()


MODELS = [
    (torch.nn.Linear(64, 80), (38, 64)),
    (torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.GELU()), (3, 7, 32)),
    (torch.nn.Linear(640, 33), (45, 640)),
    (torch.nn.Linear(1024, 64), (160, 1024)),
    (torch.nn.Linear(96, 64), (13, 96)),
    (torch.nn.Linear(570, 33), (257, 570)),
    (torch.nn.Linear(1130, 72), (301, 1130)),  # a panel that is not cut though it is larger, in parts, and what is left of k
    (torch.nn.Linear(70, 161), (5, 33, 70)),  # what is left of k, and rows that begin within a line
    (torch.nn.Linear(13, 40), (50, 13)),
    (torch.nn.Linear(512, 400), (130, 512)),  # rows that are copied
    (torch.nn.Conv2d(32, 40, 3, stride=2, padding=1), (2, 32, 9, 11)),
    (torch.nn.Conv2d(3, 40, 5, stride=2, padding=2), (2, 3, 4, 37)),  # taps merged; results contiguous along the rows
    (torch.nn.Conv2d(40, 33, 3, padding=(0, 1)), (1, 40, 3, 19)),  # channels padded
    (torch.nn.Conv2d(32, 24, 3, padding=1, groups=2), (1, 32, 2, 20)),  # of each group
    (torch.nn.Sequential(torch.nn.Conv1d(32, 40, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv1d(40, 16, 1)), (1, 32, 3)),  # without tiles, three vectors
    (torch.nn.Conv2d(36, 40, 1), (2, 36, 5, 7)),  # positions merged
    (torch.nn.Conv2d(32, 24, 3, padding=1), (2, 32, 3, 7)),  # of several taps
    (_grouped(32, 8, 3), (2, 32, 9, 14)),  # rows with the 4 channels of a group, several groups in a lane block, positions of all lines
    (_grouped(64, 8, 1), (1, 64, 7, 35)),  # of 8; lines of their own
    (_grouped(48, 3, 5), (1, 48, 3, 40)),  # of 16, an odd number of them, each alone
    (torch.nn.Conv2d(4, 6, 3, padding=1), (2, 4, 13, 19)),  # lines joined, here without anything between them, and results along the rows
    (torch.nn.Conv2d(32, 70, 3, padding=1), (2, 32, 19, 17)),  # several blocks of rows
    (_layers(torch.nn.Conv2d(32, 40, 3, padding=1), torch.nn.Conv2d(40, 16, 3)), (2, 32, 9, 20)),  # results along the columns
    (_layers(torch.nn.Conv2d(3, 32, 1), torch.nn.Conv2d(32, 33, 3, dilation=2)), (1, 3, 30, 14)),
    (_layers(torch.nn.Conv2d(3, 64, 1), torch.nn.Conv2d(64, 33, (3, 1), padding=(1, 0))), (1, 3, 12, 12)),
    (_layers(torch.nn.Conv2d(3, 544, 1), torch.nn.Conv2d(544, 16, (1, 3))), (1, 3, 5, 13)),  # a reduction in blocks
    (torch.nn.Conv2d(544, 16, (2, 3), padding=(0, 1)), (1, 544, 6, 14)),
    (torch.nn.Linear(64, 1024), (2065, 64)),  # stored past the caches
    (torch.nn.Linear(70, 1001), (1100, 70)),  # whose results are fetched
]


def _check(
    model: torch.nn.Module, x: torch.Tensor, compiled: Callable[[torch.Tensor], torch.Tensor], view: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> None:
    with torch.no_grad():
        got = compiled(x)
        want = copy.deepcopy(model).double()((view(x) if view else x).double())
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)


def _emulated(cases: list) -> list:  # type: ignore[type-arg]
    """Those that are run on emulated tiles: some, to see that these are right, where the machine has its own, on which all run."""
    return cases[::4] if Target.host().has_amx_bf16 else cases


@pytest.mark.parametrize(("model", "shape"), _emulated(MODELS))
def test_emulated_tiles_give_the_right_numbers(amx, model: torch.nn.Module, shape: tuple[int, ...]) -> None:  # noqa: ANN001
    torch.manual_seed(0)
    model = copy.deepcopy(model).bfloat16()
    _check(model, torch.randn(*shape, dtype=torch.bfloat16), torch.compile(model, backend="mlirc"))
    assert sum(amx) > 0, "no kernel used tiles"


@pytest.mark.parametrize(("k", "n"), [(320, 40), (75, 400)])
def test_emulated_tiles_take_any_number_of_rows(amx, k: int, n: int) -> None:  # noqa: ANN001
    model = torch.nn.Linear(k, n).bfloat16()
    compiled = torch.compile(model, backend="mlirc", dynamic=True)
    for rows in (150, 2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 128, 129, 161):
        _check(model, torch.randn(rows, k, dtype=torch.bfloat16), compiled)
    assert sum(amx) > 0, "no kernel used tiles"


PINS = [
    ("rows=16, row_tiles=1", 131),
    ("rows=32, row_tiles=7, columns=1, rows_once=false", 70),
    ("depth=64, fetch_ahead=false", 17),
    ("rows=16, rows_copied=true", 70),
    ("overlapped=false", 131),
    ("overlapped=true, depth=32", 131),
    ("reads_ahead=true", 131),
    ("depth=32, chunk=64, rows_copied=true, group=2", 131),
    ("depth=32, chunk=32, rows_copied=true, group=1, row_tiles=1, overlapped=false", 70),
]


def _check_pin(pin: str, rows: int) -> None:
    model = torch.nn.Linear(100, 72).bfloat16()
    _check(model, torch.randn(rows, 100, dtype=torch.bfloat16), torch.compile(model, backend="mlirc", options={"pin": f"*: {pin}", "strict": True}))


@pytest.mark.parametrize(("pin", "rows"), _emulated(PINS))
def test_pinned_tiles_give_the_same_numbers(amx, pin: str, rows: int) -> None:  # noqa: ANN001
    _check_pin(pin, rows)
    assert sum(amx) > 0, "no kernel used tiles"


def test_tiles_with_a_long_epilogue_can_be_pinned(amx) -> None:  # noqa: ANN001
    model = torch.nn.Sequential(torch.nn.Linear(96, 72), torch.nn.GELU()).bfloat16()
    options = {"pin": "*: row_tiles=2, depth=32", "strict": True}
    _check(model, torch.randn(70, 96, dtype=torch.bfloat16), torch.compile(model, backend="mlirc", options=options))
    assert sum(amx) > 0, "no kernel used tiles"


def test_what_lies_behind_the_rows_does_not_count(amx) -> None:  # noqa: ANN001
    """The last tile of a row holds the beginning of the next one, or none of the tensor's memory at all: times zero, NaN is NaN."""
    model = torch.nn.Linear(40, 64).bfloat16()
    x = torch.randn(33, 48, dtype=torch.bfloat16)
    x[:, 40:] = float("nan")
    _check(model, x[:, :40], torch.compile(model, backend="mlirc"))
    assert sum(amx) > 0, "no kernel used tiles"


@pytest.mark.parametrize("view", [lambda x: x.transpose(1, 2), lambda x: x.permute(2, 0, 1)], ids=["transposed", "permuted"])
def test_rows_that_are_not_contiguous_are_copied(amx, view: Callable[[torch.Tensor], torch.Tensor]) -> None:  # noqa: ANN001
    x = torch.randn(3, 36, 36, dtype=torch.bfloat16)
    model = torch.nn.Linear(view(x).shape[-1], 48).bfloat16()
    _check(model, x, torch.compile(lambda x: model(view(x)), backend="mlirc"), view)
    assert sum(amx) > 0, "no kernel used tiles"


def _check_groups(pin: str) -> None:
    """Two of 64 to 16 channels."""
    torch.manual_seed(0)
    model = torch.nn.Conv2d(128, 32, 3, padding=1, groups=2).bfloat16()
    x = torch.randn(1, 128, 9, 20, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    _check(model, x, torch.compile(model, backend="mlirc", options={"pin": f"*conv*: {pin}"}))


def test_reductions_of_groups_can_be_cut(amx) -> None:  # noqa: ANN001
    _check_groups("depth=32")
    assert sum(amx) > 0, "no kernel used tiles"


@pytest.mark.parametrize("channels", [32, 64])
def test_groups_do_not_see_one_another(amx, channels: int) -> None:  # noqa: ANN001
    """Infinity times zero is NaN: a group is multiplied by weights of its own only."""
    model = torch.nn.Sequential(torch.nn.Conv2d(channels, channels, 3, padding=1, groups=8), torch.nn.ReLU()).bfloat16()
    x = torch.randn(1, channels, 9, 20, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    x[:, : channels // 8] = float("inf")
    with torch.no_grad():
        got, want = torch.compile(model, backend="mlirc")(x), model(x)
    assert sum(amx) > 0, "no kernel used tiles"
    assert not got[:, channels // 8 :].isnan().any()
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2, equal_nan=True)


needs_amx = pytest.mark.skipif(not Target.host().has_amx_bf16, reason="the CPU lacks AMX")


@needs_amx
@pytest.mark.parametrize("rows", [17, 33, 70, 131])
@pytest.mark.parametrize("pin", [pin for pin, _ in PINS])
def test_pinned_tiles_of_this_machine(pin: str, rows: int) -> None:
    torch._dynamo.reset()
    _check_pin(pin, rows)


@needs_amx
@pytest.mark.parametrize("pin", ["depth=32", "rows=16", "columns=1", "lines=none, rows=16", "overlapped=false", "row_tiles=1", "lanes_first=true, groups_first=true"])
def test_pinned_groups_of_this_machine(pin: str) -> None:
    torch._dynamo.reset()
    _check_groups(pin)


@needs_amx
@pytest.mark.parametrize(("model", "shape"), MODELS)
@pytest.mark.parametrize("threads", [1, 2])
def test_tiles_of_this_machine(model: torch.nn.Module, shape: tuple[int, ...], threads: int) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, before = copy.deepcopy(model).bfloat16(), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        _check(model, torch.randn(*shape, dtype=torch.bfloat16), torch.compile(model, backend="mlirc", options={"strict": True}))
    finally:
        torch.set_num_threads(before)


@needs_amx
@pytest.mark.parametrize(("channels", "outputs", "size", "shape"), [(32, 40, 3, (2, 9, 20)), (3, 33, 5, (1, 13, 19)), (64, 17, (3, 1), (1, 12, 12))])
def test_nothing_is_read_beside_an_image(channels: int, outputs: int, size: int | tuple[int, int], shape: tuple[int, ...]) -> None:
    """What is between the lines is; the image begins or ends where memory does, and NaN around its lines do not count."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    conv = torch.nn.Conv2d(channels, outputs, size).bfloat16()
    x = torch.randn(shape[0], channels, *shape[1:]).bfloat16().contiguous(memory_format=torch.channels_last)
    wide = torch.full((shape[0], channels, shape[1], shape[2] + 3), float("nan")).bfloat16().contiguous(memory_format=torch.channels_last)
    wide[..., :-3] = x
    compiled = torch.compile(lambda x: conv(x).relu(), backend="mlirc", options={"strict": True, "guard_pages": "both"})
    with torch.no_grad():
        want = copy.deepcopy(conv).double()(x.double()).relu()
        for given in (x, x.contiguous(), wide[..., :-3]):
            torch.testing.assert_close(compiled(given).double(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.sampled
@pytest.mark.parametrize("case", ["plain", "causal", "mask"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_attention(amx, case, dynamic, monkeypatch):  # noqa: ANN001, ANN201
    """Its three kernels take turns, and walk over the columns that blocks of rows see: whole tiles of them."""
    monkeypatch.setattr(chain_pass, "stays_in_cache", lambda *_: "")
    monkeypatch.setattr(chain_pass, "too_few_chunks", lambda s: "" if len(s.parts) > 2 else "one more")
    torch.manual_seed(0)
    names = []
    compile_kernels = driver.compile_kernels
    monkeypatch.setattr(driver, "compile_kernels", lambda kernels, *rest: names.extend(k.name for k in kernels) or compile_kernels(kernels, *rest))
    attend = torch.nn.functional.scaled_dot_product_attention
    f = {"plain": lambda q, k, v, _: attend(q, k, v), "causal": lambda q, k, v, _: attend(q, k, v, is_causal=True), "mask": attend}[case]
    compiled = torch.compile(f, backend="mlirc", dynamic=None if dynamic else False, options={"strict": True})
    for m, n in ((288, 288), (300, 300), (77, 320), (320, 257), (17, 512)):
        q, k, v = (torch.randn(1, size, 3, 32).transpose(1, 2).bfloat16() for size in (m, n, n))
        mask = torch.arange(m)[:, None] // 64 == torch.arange(n) // 64
        mask[:, :2] = True
        for x, dim in ((q, 2), (k, 2), (v, 2), (mask, 0), (mask, 1)):
            if dynamic:
                torch._dynamo.mark_dynamic(x, dim)
        with torch.no_grad():
            got, want = compiled(q, k, v, mask), f(q.double(), k.double(), v.double(), mask)
        torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)
    assert sum(amx) > 4
    # The mask of a number of keys that is not known is padded, and that number is none of those that the products know.
    assert any("_chain_" in name for name in names) or dynamic and case == "mask"
