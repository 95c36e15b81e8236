"""Linear layers over positions have the weight for rows, where what they make is transposed back."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from mlirc.benchmarks.verdict import same
from mlirc.frontend.report import recorded
from mlirc.passes.raise_collapses import raise_collapses
from mlirc.passes.turn_products import turn_products
from mlirc.tests.frontend.compare import OPTIONS
from mlirc.tests.frontend.elementwise import module_matches
from mlirc.tests.lowering.test_to_llvm import filecheck
from mlirc.tests.passes.graph_text import check, function, generic, matmul, transformed


def transposed(name: str, value: str, b: int, m: int, n: int) -> str:
    """[b, n, m] of [b, m, n]."""
    kinds = f"tensor<{b}x{m}x{n}xf32>", f"tensor<{b}x{n}x{m}xf32>"
    return f"{name}e = tensor.empty() : {kinds[1]}\n{name} = linalg.transpose ins({value} : {kinds[0]}) outs({name}e : {kinds[1]}) permutation = [0, 2, 1]\n"


def mixed(b: int, k: int, c: int, n: int, back: bool = True, weight: str = "%w", positions_last: bool = False) -> str:
    """exp of a linear layer over the positions of [b, k, c], perhaps a view of [b, c, k]."""
    wide, rows, out = f"tensor<{b}x{c}x{k}xf32>", f"tensor<{b * c}x{k}xf32>", f"tensor<{b * c}x{n}xf32>"
    held, body = f"tensor<{b}x{k}x{c}xf32>", transposed("%t", "%x", b, k, c)
    if positions_last:
        held, body = wide, transposed("%v", "%x", b, c, k) + transposed("%t", "%v", b, k, c)
    body += f"%r = tensor.collapse_shape %t [[0, 1], [2]] : {wide} into {rows}\n"
    if weight != "%w":
        body += generic(weight, [("%w", f"tensor<{k}x{n}xf32>")], f"tensor<{k}x{n}xf32>", body="math.exp")
    body += matmul("%p", "%r", weight, b * c, k, n) + generic("%e", [("%p", out)], out, body="math.exp")
    body += f"%y = tensor.expand_shape %e [[0, 1], [2]] output_shape [{b}, {c}, {n}] : {out} into tensor<{b}x{c}x{n}xf32>\n"
    body += transposed("%z", "%y", b, c, n) if back else ""
    result = ("%z", f"tensor<{b}x{n}x{c}xf32>") if back else ("%y", f"tensor<{b}x{c}x{n}xf32>")
    return function([("%x", held), ("%w", f"tensor<{k}x{n}xf32>")], body, [result])


def turn(main):
    assert turn_products(main)
    raise_collapses(main)


def test_several_batches():
    check(mixed(2, 20, 64, 30), turn, """
        CHECK-DAG: #[[W:.*]] = affine_map<(d0, d1, d2, d3) -> (d3, d1)>
        CHECK-DAG: #[[X:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d3, d2)>
        CHECK-DAG: #[[Y:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
        CHECK: linalg.generic {indexing_maps = [#[[W]], #[[X]], #[[Y]]], {{.*}}ins(%arg1, {{.*}} : tensor<20x30xf32>, tensor<2x20x64xf32>) outs({{.*}}tensor<2x30x64xf32>)
        CHECK: %[[T:.*]] = linalg.transpose ins(%{{.*}} : tensor<2x30x64xf32>) outs(%{{.*}} : tensor<2x64x30xf32>)
        CHECK: linalg.generic {{.*}}ins(%[[T]] : tensor<2x64x30xf32>)
        CHECK: math.exp
    """, clean=True)  # fmt: skip


def test_one_batch_has_no_dim():
    check(mixed(1, 20, 64, 30), turn_products, """
        CHECK: %[[P:.*]] = linalg.generic {{.*}}["parallel", "parallel", "reduction"]{{.*}}ins(%arg1, %{{.*}} : tensor<20x30xf32>, tensor<20x64xf32>) outs(%{{.*}} : tensor<30x64xf32>)
        CHECK: linalg.transpose ins(%{{.*}} : tensor<30x64xf32>)
    """, clean=True)  # fmt: skip


UNTURNED = 'CHECK: ins(%{{.*}}, %{{.*}} : tensor<128x20xf32>, tensor<20x30xf32>)'


@pytest.mark.parametrize(
    "text",
    [mixed(2, 20, 64, 30, back=False), mixed(2, 20, 64, 30, weight="%v"), mixed(2, 20, 64, 30, positions_last=True)],
    ids=["stays transposed", "no weight", "positions last in memory"],
)
def test_others_stay(text):
    filecheck(transformed(text, turn_products, clean=True), UNTURNED)


def test_few_channels_stay():
    filecheck(transformed(mixed(8, 20, 16, 30), turn_products, clean=True), UNTURNED)


class Mixer(torch.nn.Module):
    """Token mixing of MLP-Mixer, or the gate of gMLP, or of gMixer: the hidden layer in halves."""

    def __init__(self, kind: str, positions: int, channels: int, hidden: int) -> None:
        super().__init__()
        self.kind = kind
        self.norm = torch.nn.LayerNorm(channels)
        self.up = torch.nn.Linear(positions, hidden)
        self.down = torch.nn.Linear(hidden // 2 if kind == "halves" else hidden, positions)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(self.norm(x).transpose(1, 2))
        if self.kind == "gate":
            return x * y.transpose(1, 2)[:, : x.shape[1]]
        if self.kind == "halves":
            a, b = y.chunk(2, dim=-1)
            return x + self.down(F.silu(a) * b).transpose(1, 2)
        return x + self.down(F.gelu(y)).transpose(1, 2)


def matches(model: Mixer, *inputs: torch.Tensor, dynamic: bool | None = None) -> list[str]:
    """Assert that it computes what it does in eager mode, of each input; the names of the kernels."""
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="mlirc", dynamic=dynamic, options=OPTIONS)
    with torch.no_grad():
        for x in inputs:
            reference = copy.deepcopy(model).double()(x.double())
            assert same([model(x)], [compiled(x)], [reference], x.dtype)
    return recorded()[-1].kernels


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["two", "halves", "gate"])
@pytest.mark.parametrize("batch,positions,channels,hidden", [(1, 17, 64, 34), (2, 17, 33, 34), (3, 6, 40, 2), (1, 33, 1, 66), (0, 5, 64, 10)])
def test_layers_over_positions(kind, dtype, batch, positions, channels, hidden):
    torch.manual_seed(0)
    model = Mixer(kind, positions, channels, max(hidden, positions) if kind == "gate" else hidden).to(dtype).eval()
    matches(model, torch.randn(batch, positions, channels).to(dtype))


@pytest.mark.parametrize("kind", ["two", "halves", "gate"])
def test_of_several_batch_sizes(kind):
    matches(Mixer(kind, 17, 64, 34).eval(), *(torch.randn(b, 17, 64) for b in (2, 5, 1, 3)), dynamic=True)


@pytest.mark.parametrize("batch", [1, 2])
def test_nothing_is_copied_in_another_order(batch):
    names = matches(Mixer("two", 20, 64, 40).eval(), torch.randn(batch, 20, 64))
    assert len(names) == 3 and not any("view" in n for n in names), names


class Pixels(torch.nn.Module):
    """The pixels of a convolution as tokens, through two layers and back, as in networks of diffusion models."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.into, self.out = torch.nn.Conv2d(channels, channels, 1), torch.nn.Conv2d(channels, channels, 1)
        self.norm = torch.nn.LayerNorm(channels)
        self.up, self.down = torch.nn.Linear(channels, 2 * channels), torch.nn.Linear(2 * channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.into(x).flatten(2).transpose(1, 2)
        y = y + self.down(F.gelu(self.up(self.norm(y))))
        return x + self.out(y.transpose(1, 2).unflatten(2, x.shape[2:]))


def test_pixels_of_a_convolution_keep_their_channels_last():
    """The layers' weights are packed, once, and not the tokens, in each call."""
    model = Pixels(64).eval()
    matches(model, torch.randn(1, 64, 8, 8))
    assert recorded()[-1].packed_bytes >= sum(w.nbytes for w in model.parameters() if w.dim() > 1)


@pytest.mark.parametrize("view", [lambda s: s.expand(2, 64, 20), lambda s: (s * torch.ones(20)).expand(2, 64, 20), lambda s: s.view(1, 1, 1).expand(2, 64, 20).exp()], ids=["expanded", "times a row", "exp"])
def test_rows_that_are_one_number(view):
    """A tensor without dims has no innermost one."""
    layer = torch.nn.Linear(20, 30)

    def f(s: torch.Tensor) -> torch.Tensor:
        return F.relu(layer(view(s))).transpose(1, 2)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(f, backend="mlirc", options=OPTIONS)(torch.tensor(0.5)), f(torch.tensor(0.5)))


def test_gradients():
    module_matches(Mixer("two", 20, 64, 40), torch.randn(2, 20, 64), factor=4)
