"""Products of dequantised bytes: what becomes an integer product, what does not, and the numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import mlirc
from mlirc.lowering.target import Target
from mlirc.passes.integer_products import integer_products
from mlirc.tests.passes.graph_text import check, function, generic

X, W, FX, FW, FY = "tensor<7x20xi8>", "tensor<70x20xi8>", "tensor<7x20xf32>", "tensor<70x20xf32>", "tensor<7x70xf32>"
BYTES = "%f = arith.uitofp %a0 : i8 to f32\n%z = arith.constant 3.0 : f32\n%d = arith.subf %f, %z : f32\n%s = arith.constant 0.5 : f32\n%o = arith.mulf %d, %s : f32"
WEIGHT = "%u = arith.sitofp %a0 : i8 to f32\n%o = arith.mulf %u, %a1 : f32"
PRODUCT = "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"


def layer(rows: str = BYTES, scale: str = "70x1", scale_map: str = "i, 0") -> str:
    """(bytes - 3) / 2 by signed bytes with a scale of their own."""
    kind = f"tensor<{scale}xf32>"
    ops = [
        generic("%dx", [("%x", X)], FX, ["i, j", "i, j"], rows, "pp", "ij"),
        generic("%dw", [("%w", W), ("%c", kind)], FW, ["i, j", scale_map, "i, j"], WEIGHT, "pp", "ij"),
        generic("%y", [("%dx", FX), ("%dw", FW)], FY, ["i, k", "j, k", "i, j"], PRODUCT, "ppr", "ijk", "0.0", "contraction"),
    ]
    return function([("%x", X), ("%w", W), ("%c", kind)], "\n".join(ops), [("%y", FY)])


def test_bytes_are_multiplied_and_scales_follow():
    check(layer(), integer_products, """
        CHECK: %[[P:.*]] = linalg.generic {{.*}}["parallel", "parallel", "reduction"]{{.*}}ins(%arg0, %arg1 : tensor<7x20xi8>, tensor<70x20xi8>){{.*}}mlirc.kind = "contraction"
        CHECK: arith.extui
        CHECK: arith.extsi
        CHECK: %[[SUMS:.*]] = linalg.generic {{.*}}["parallel", "reduction"]{{.*}}ins(%arg1 : tensor<70x20xi8>)
        CHECK: linalg.generic {{.*}}ins(%[[P]], %[[SUMS]], %arg2 : tensor<7x70xi32>, tensor<70xi32>, tensor<70x1xf32>)
        CHECK: arith.muli %{{.*}}, %c3_i32
        CHECK: arith.subi
        CHECK: arith.sitofp
        CHECK: arith.mulf
        CHECK: arith.mulf
    """)  # fmt: skip


def test_a_zero_point_of_zero_needs_no_sums():
    check(layer(BYTES.replace("3.0", "0.0")), integer_products, """
        CHECK-NOT: ["parallel", "reduction"]
        CHECK: mlirc.kind = "contraction"
    """)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        layer(BYTES.replace("3.0", "3.5")),
        layer(BYTES.replace("3.0", "300.0")),
        layer(BYTES.replace("3.0", "0x7F800000")),
        layer(scale="1x20", scale_map="0, j"),
        layer(scale="70x20", scale_map="i, j"),
        layer(BYTES.replace("arith.subf %f, %z", "arith.divf %f, %z")),
        layer("%z = arith.constant 3 : i8\n%d = arith.subi %a0, %z : i8\n%o = arith.uitofp %d : i8 to f32"),
        layer(BYTES.replace("arith.subf %f, %z", "arith.mulf %f, %z").replace("%o = arith.mulf %d, %s", "%o = arith.subf %d, %s")),
    ],
    ids=["no integer", "no byte", "infinite", "a scale along what is summed", "a scale for each element", "another op", "bytes that wrap", "a zero point behind a scale"],
)
def test_what_is_no_product_of_bytes_stays(text: str):
    check(text, integer_products, "CHECK-NOT: tensor<7x70xi32>")


def test_a_long_chain_of_products_is_read_once():
    """Each of which has both of its operands from the one before: two ways at each would be 2^40."""
    chain, kind = [], "tensor<1x20xf32>"
    for n in range(40):
        chain.append(generic(f"%v{n}", [(f"%v{n - 1}" if n else "%x", kind)] * 2, kind, body="arith.mulf"))
    chain.append(generic("%y", [("%v39", kind), ("%w", FW)], "tensor<1x70xf32>", ["i, k", "j, k", "i, j"], PRODUCT, "ppr", "ijk", "0.0", "contraction"))
    text = function([("%x", kind), ("%w", FW), ("%b", X)], "\n".join(chain), [("%y", "tensor<1x70xf32>")])
    check(text, integer_products, "CHECK-NOT: xi32>")


def quantised(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    low, high = (0, 256) if dtype == torch.uint8 else (-128, 128)
    return torch.randint(low, high, shape, dtype=dtype)


def _integer(f: Callable[..., torch.Tensor], *args: torch.Tensor, **options: object) -> None:
    """Compiled against eager mode in f64, and nothing is left to ATen."""
    torch._dynamo.reset()
    got = torch.compile(f, backend="mlirc", options={"strict": True, "fallback": False, **options})(*args)
    with torch.no_grad():
        wide = f(*(a.double() if a.is_floating_point() else a for a in args), dtype=torch.float64)
    torch.testing.assert_close(got.double(), wide, rtol=1e-6, atol=1e-6 * wide.abs().max().item() if wide.numel() else 0)


KINDS = [(torch.uint8, 141, torch.int8), (torch.int8, 5, torch.int8), (torch.uint8, 0, torch.uint8), (torch.int8, -7, torch.uint8)]


@pytest.mark.sampled
@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("rows, zero, columns", KINDS)
def test_linear_layers(rows: torch.dtype, zero: int, columns: torch.dtype, target: str) -> None:
    """Zero points of columns that are zero, and others; odd sizes."""
    for m, k, n in ((33, 70, 17), (1, 3, 33), (64, 128, 96)):
        x, w, scale = quantised((m, k), rows), quantised((n, k), columns), torch.rand(n) * 0.01 + 0.001
        for points in (torch.zeros(n, dtype=torch.int64), torch.randint(-9, 99, (n,))):

            def layer(scale, points=points, x=x, w=w, dtype=torch.float32):
                weight = (w.to(dtype) - points[:, None]) * scale[:, None]
                return F.linear((x.to(dtype) - zero) * 0.03, weight).relu()

            _integer(layer, scale, target=target)


@pytest.mark.parametrize("channels, out, kernel, stride, padding, groups", [(16, 32, 3, 1, 1, 1), (5, 33, 3, 2, 1, 1), (3, 16, 7, 2, 3, 1), (32, 64, 1, 1, 0, 1), (16, 32, 3, 1, 1, 2), (64, 64, 3, 1, 1, 8), (8, 8, 3, 1, 1, 8)])
def test_convolutions(channels: int, out: int, kernel: int, stride: int, padding: int, groups: int) -> None:
    """Padding is the zero point; a depthwise one is computed in f32."""
    x, w, scale = quantised((2, channels, 15, 17), torch.uint8), quantised((out, channels // groups, kernel, kernel), torch.int8), torch.rand(out) * 0.01
    for points in (torch.zeros(out, dtype=torch.int64), torch.randint(-9, 9, (out,))):

        def layer(scale, points=points, dtype=torch.float32):
            weight = (w.to(dtype) - points[:, None, None, None]) * scale[:, None, None, None]
            return F.conv2d((x.to(dtype) - 131) * 0.02, weight, None, stride, padding, 1, groups)

        _integer(layer, scale)


def test_bytes_that_wrap_are_no_zero_points() -> None:
    x, w = quantised((20, 40), torch.uint8), quantised((40, 24), torch.int8)
    _integer(lambda scale, dtype=torch.float32: ((x - 131).to(dtype) * scale) @ (w - 5).to(dtype), torch.rand(1))


def test_rows_with_scales_and_zero_points_of_their_own() -> None:
    """As dynamic quantisation makes them for each token, batched too."""
    x, w = quantised((3, 20, 40), torch.uint8), quantised((3, 40, 24), torch.int8)

    def product(rows, columns, dtype=torch.float32):
        zeros = torch.arange(60).reshape(3, 20, 1)
        return torch.bmm((x.to(dtype) - zeros) * rows[..., None], w.to(dtype) * columns)

    _integer(product, torch.rand(3, 20) * 0.01, torch.rand(24) * 0.01)


class Exported(torch.nn.Module):
    """What torch's quantisers leave of a convolution and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.line = (torch.nn.Parameter(quantised(shape, torch.int8), requires_grad=False) for shape in ((32, 16, 3, 3), (24, 32)))
        self.scales = torch.nn.ParameterList([torch.rand(n) * 0.01 + 0.001 for n in (32, 24)])
        self.register_buffer("zeros", torch.zeros(32, dtype=torch.int64))
        self.bias = torch.nn.Parameter(torch.randn(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import torch.ao.quantization.fx._decomposed  # noqa: F401, PLC0415

        q = torch.ops.quantized_decomposed
        byte = (0, 255, torch.uint8)
        x = q.dequantize_per_tensor(q.quantize_per_tensor(x, 0.03, 141, *byte), 0.03, 141, *byte)
        weight = q.dequantize_per_channel(self.weight, self.scales[0], self.zeros, 0, -128, 127, torch.int8)
        x = F.conv2d(x, weight, self.bias, 1, 1).relu().mean((2, 3))
        x = q.dequantize_per_tensor(q.quantize_per_tensor(x, 0.05, 20, *byte), 0.05, 20, *byte)
        return F.linear(x, q.dequantize_per_channel(self.line, self.scales[1], self.zeros[:24], 0, -128, 127, torch.int8))


def test_an_exported_model_runs_on_bytes_between_its_layers() -> None:
    torch.manual_seed(0)
    model, x = Exported().eval(), torch.randn(2, 16, 14, 14)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="mlirc", options={"strict": True})(x), model(x), rtol=1e-5, atol=1e-5)
        report = mlirc.explain(model, x)
    assert not report.aten
    image = 2 * 16 * 14 * 14
    lines = 2 * 16 * 14 * 64 if Target.host().has_amx_int8 else 0  # what the windows of a row of tiles see
    assert report.graphs[0].arena_bytes < 4 * image + lines + 2 * 32 * 14 * 14 * 4, "the image that is convolved has bytes"


@pytest.mark.parametrize("rows", [1, 7])
def test_weights_are_summed_once(rows: int) -> None:
    """For one row, whose results have the shape of the sums, too: these are no part of a kernel that runs in every call."""
    w, scale = torch.nn.Parameter(quantised((96, 64), torch.int8), requires_grad=False), torch.nn.Parameter(torch.rand(96))
    x = quantised((rows, 64), torch.uint8)
    with torch.no_grad():
        report = mlirc.explain(lambda x: F.linear((x.float() - 131) * 0.02, w.float() * scale[:, None]).relu(), x)
    # Where the CPU multiplies no bytes, those of the rows become i16 in a call.
    assert report.graphs[0].calls == (1 if Target.host().has_vnni else 2) and not report.aten
