"""A linear layer whose columns meet in parts is a layer for each part."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import same

from mlirc.frontend.report import recorded
from mlirc.lowering.target import Target
from mlirc.passes.split_columns import split_columns
from mlirc.passes.strategy.parts import why_whole
from mlirc.tests.frontend.elementwise import module_matches
from mlirc.tests.passes.graph_text import check, function, generic, matmul

TARGET = Target.parse("znver4")
M, K, N = 4096, 64, 128
SQUARE = f"tensor<{2 * N}x{2 * N}xf32>"
WHOLE, HALF, VIEW = f"tensor<{M}x{2 * N}xf32>", f"tensor<{M}x{N}xf32>", f"tensor<2x{M // 2}x{2 * N}xf32>"
ARGUMENTS = [("%x", f"tensor<{M}x{K}xf32>"), ("%w", f"tensor<{K}x{2 * N}xf32>"), ("%b", f"tensor<{2 * N}xf32>")]
PRODUCT = matmul("%p", "%x", "%w", M, K, 2 * N)
BIAS = generic("%q", [("%p", WHOLE), ("%b", f"tensor<{2 * N}xf32>")], WHOLE, ["i, j", "j", "i, j"], "arith.addf")


def cut(name: str, begin: int, value: str = "%q", width: int = N) -> str:
    return f"{name} = tensor.extract_slice {value}[0, {begin}] [{M}, {width}] [1, 1] : {WHOLE} to tensor<{M}x{width}xf32>\n"


def split(main):  # noqa: ANN001, ANN201
    split_columns(main, TARGET)


JOINED = cut("%h", 0) + cut("%g", N) + generic("%e", [("%g", HALF)], HALF) + generic("%r", [("%h", HALF), ("%e", HALF)], HALF, body="arith.mulf")


def test_halves_that_meet():
    check(
        function(ARGUMENTS, PRODUCT + BIAS + JOINED, [("%r", HALF)]),
        split,
        f"""
        CHECK-COUNT-2: tensor.extract_slice %arg1[0, {{{{(0|128)}}}}] [64, 128] [1, 1]
        CHECK-NOT: {WHOLE}
        CHECK: return %{{{{.*}}}} : {HALF}
        """,
        clean=True,
    )
    check(
        function(ARGUMENTS, PRODUCT + BIAS + JOINED, [("%r", HALF)]),
        split,
        """
        CHECK-DAG: %[[W0:.*]] = tensor.extract_slice %arg1[0, 0]
        CHECK-DAG: %[[B0:.*]] = tensor.extract_slice %arg2[0]
        CHECK-DAG: %[[P0:.*]] = linalg.generic {{.*}} ins(%arg0, %[[W0]]
        CHECK-DAG: %[[Q0:.*]] = linalg.generic {{.*}} ins(%[[P0]], %[[B0]]
        CHECK-DAG: %[[W1:.*]] = tensor.extract_slice %arg1[0, 128]
        CHECK-DAG: %[[B1:.*]] = tensor.extract_slice %arg2[128]
        CHECK-DAG: %[[P1:.*]] = linalg.generic {{.*}} ins(%arg0, %[[W1]]
        CHECK-DAG: %[[Q1:.*]] = linalg.generic {{.*}} ins(%[[P1]], %[[B1]]
        CHECK-DAG: linalg.generic {{.*}} ins(%[[Q1]]
        CHECK-DAG: linalg.generic {{.*}} ins(%[[Q0]]
        """,
        clean=True,
    )


def test_through_a_view_of_the_rows():
    half = f"tensor<2x{M // 2}x{N}xf32>"
    view = f"%v = tensor.expand_shape %q [[0, 1], [2]] output_shape [2, {M // 2}, {2 * N}] : {WHOLE} into {VIEW}\n"
    cuts = "".join(f"{name} = tensor.extract_slice %v[0, 0, {at}] [2, {M // 2}, {N}] [1, 1, 1] : {VIEW} to {half}\n" for name, at in (("%h", 0), ("%g", N)))
    join = generic("%r", [("%h", half), ("%g", half)], half, body="arith.mulf")
    check(
        function(ARGUMENTS, PRODUCT + BIAS + view + cuts + join, [("%r", half)]),
        split,
        f"CHECK-NOT: {2 * N}xf32> into\nCHECK-COUNT-2: tensor.expand_shape {{{{.*}}}} : {HALF} into {half}",
        clean=True,
    )


@pytest.mark.parametrize(
    ("body", "results"),
    [
        (PRODUCT + BIAS + JOINED, [("%r", HALF), ("%q", WHOLE)]),
        (PRODUCT + BIAS + cut("%h", 0) + cut("%g", N), [("%h", HALF), ("%g", HALF)]),
        (PRODUCT + BIAS + cut("%h", 0) + cut("%g", N // 2) + generic("%r", [("%h", HALF), ("%g", HALF)], HALF, body="arith.mulf"), [("%r", HALF)]),
        (PRODUCT + generic("%q", [("%p", WHOLE), ("%p", WHOLE)], WHOLE, ["i, j", "i, 0", "i, j"], "arith.addf") + JOINED, [("%r", HALF)]),
        (PRODUCT + generic("%q", [("%p", WHOLE), ("%d", SQUARE)], WHOLE, ["i, j", "j, j", "i, j"], "arith.addf") + JOINED, [("%r", HALF)]),
    ],
    ids=["somebody reads all", "they do not meet", "they overlap", "columns depend on one another", "a diagonal"],
)
def test_others_stay(body: str, results: list[tuple[str, str]]) -> None:
    check(function([*ARGUMENTS, ("%d", SQUARE)], body, results), split, f"CHECK: linalg.generic {{{{.*}}}} outs(%{{{{.*}}}} : {WHOLE})\nCHECK-NOT: tensor.extract_slice %arg1")


def test_what_stays_in_the_second_level_is_whole():
    assert "second-level" in (why_whole(16, 4096, 32, TARGET) or "") and "symbol" in (why_whole(None, 4096, 32, TARGET) or "")
    assert why_whole(4096, 4096, 16, TARGET) is None


class Gated(torch.nn.Module):
    def __init__(self, parts: int, bias: bool) -> None:
        super().__init__()
        self.parts, self.layer = parts, torch.nn.Linear(33, parts * 150, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *others = self.layer(x).chunk(self.parts, -1)
        for other in others:
            first = first * F.gelu(other)
        return first


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_gates_of_one_layer(bias: bool, parts: int, dtype: torch.dtype) -> None:
    """As right as eager mode, where they are computed in parts and where in one."""
    model = Gated(parts, bias).to(dtype)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="mlirc", dynamic=False)
    for rows, split in ((2100, True), (5, False)):
        x = torch.randn(3, rows, 33, dtype=dtype)
        with torch.no_grad():
            got, eager, exact = compiled(x), model(x), copy.deepcopy(model).double()(x.double())
        assert same(eager, got, exact, tol=2e-2 if dtype == torch.bfloat16 else 1e-4)
        last = recorded()[-1].kernels[-1]
        assert "gelu" in last and any(word in last for word in ("linear", "matmul")) == split


@pytest.mark.parametrize("rows", [7, 400])
def test_gradients_of_gates(rows: int) -> None:
    module_matches(Gated(2, True), torch.randn(3, rows, 33))


class Layers(torch.nn.Module):
    """A function of some linear layers and a tensor, without gradients."""

    def __init__(self, body: Callable[..., torch.Tensor], *sizes: tuple[int, int]) -> None:
        super().__init__()
        self.body, self.layers = body, torch.nn.ModuleList(torch.nn.Linear(*size) for size in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x, *self.layers)


def compiled(model: torch.nn.Module, x: torch.Tensor, dynamic: bool = False) -> list[str]:
    """The kernels of a model, which has eager mode's result; as one graph."""
    torch._dynamo.reset()
    with torch.no_grad():
        got = torch.compile(model, backend="mlirc", dynamic=dynamic, fullgraph=True, options={"fallback": False})(x)
        torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-4)
    return [k for k in recorded()[-1].kernels if "pack" not in k]


def test_why_columns_stay_whole_is_no_part_of_a_kernel() -> None:
    """Two equal products are one kernel, though the columns of one of them meet."""

    def body(x: torch.Tensor, first: torch.nn.Module, second: torch.nn.Module) -> torch.Tensor:
        a, b = second(first(x)).chunk(2, -1)
        return a / b.exp()

    model = Layers(body, (64, 64), (64, 64))
    for layer in model.layers:
        layer.bias = None
    assert sum("matmul" in k for k in compiled(model, torch.randn(16, 64))) == 1


def test_values_that_are_read_twice_again_and_again() -> None:
    """To look for where parts meet takes a step for each op, not one for each way to it."""

    def body(x: torch.Tensor, layer: torch.nn.Module) -> torch.Tensor:
        a, b = layer(x).chunk(2, -1)
        y = a * b
        for _ in range(40):
            y = y + torch.sin(y) * 0.5
        return y

    assert any("linear" in k for k in compiled(Layers(body, (8, 16)), torch.randn(4, 8)))


def test_many_ops_behind_one_another() -> None:
    def body(x: torch.Tensor, layer: torch.nn.Module) -> torch.Tensor:
        a, b = layer(x).chunk(2, -1)
        y = a * b
        for i in range(600):
            y = torch.abs(y) - i
        return y

    compiled(Layers(body, (8, 16)), torch.randn(4, 8))


@pytest.mark.parametrize("rows, k", [(4096, 0), (0, 33), (4096, 33)])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_no_rows_or_nothing_to_add_up(dynamic: bool, rows: int, k: int) -> None:
    def body(x: torch.Tensor, layer: torch.nn.Module) -> torch.Tensor:
        a, b = layer(x).chunk(2, -1)
        return a * torch.sigmoid(b)

    compiled(Layers(body, (k, 512)), torch.randn(rows, k), dynamic)
