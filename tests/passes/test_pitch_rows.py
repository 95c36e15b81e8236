"""Rows that evict one another where a product reads them lie apart, and only those."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from mlirc.benchmarks.verdict import same
from mlirc.dialects.mlir import ir
from mlirc.lowering.target import Target
from mlirc.passes import pipeline
from mlirc.passes import structure as st
from mlirc.passes.layouts import PITCH
from mlirc.passes.outline import outline
from mlirc.passes.pitch_rows import pitch_rows
from mlirc.passes.strategy.scatter import gathered_pitch
from mlirc.passes.strategy.traffic import row_pitch
from mlirc.tests.frontend.compare import OPTIONS, compare, kernels
from mlirc.tests.passes.graph_text import check, function, generic

AMX = Target.parse("sapphirerapids")


def pitched(function: ir.Operation) -> None:
    pitch_rows(function, AMX)


WIDEN = "%u = arith.extf %a0 : bf16 to f32\n%v = arith.extf %a1 : bf16 to f32\n"
DOT = "%m = arith.mulf %u, %v : f32\n%o = arith.addf %a2, %m : f32"


def product(k: int = 2048, rows: str = "%h", shape: str | None = None, views: str = "", groups: tuple[int, int] = (1, 2), last: str = "%y") -> str:
    """A negation of [9, k] in one group, which a product reads in another."""
    x, w, y = f"tensor<9x{k}xbf16>", f"tensor<5x{k}xbf16>", "tensor<9x5xf32>"
    body = generic("%h", [("%x", x)], x, body="arith.negf", attributes=f"mlirc.group = {groups[0]} : i32") + views
    maps, loops = ["i, k", "j, k", "i, j"], "ijk"
    body += generic("%y", [(rows, shape or x), ("%w", w)], y, maps, WIDEN + DOT, "ppr", loops, "0.0", "contraction", f"mlirc.group = {groups[1]} : i32")
    return function([("%x", x), ("%w", w)], body, [(last, x if last == "%h" else y)])


def test_rows_of_a_product_get_a_pitch():
    """Of an odd number of lines of 64 bytes, also where the product reads a view of the rows."""
    check(product(), pitched, "CHECK: linalg.generic\nCHECK-SAME: mlirc.pitch = array<i64: 2080>\nCHECK-NOT: mlirc.pitch")
    kinds = "tensor<9x2048xbf16>", "tensor<3x3x2048xbf16>"
    split = f"%s = tensor.expand_shape %h [[0, 1], [2]] output_shape [3, 3, 2048] : {kinds[0]} into {kinds[1]}\n"
    split += f"%c = tensor.collapse_shape %s [[0, 1], [2]] : {kinds[1]} into {kinds[0]}\n"
    check(product(rows="%c", views=split), pitched, "CHECK: mlirc.pitch = array<i64: 2080>")


def test_kernels_and_calls_know_the_pitch():
    def run(main: ir.Operation) -> None:
        pitched(main)
        texts = [k.text for k in outline(main)]
        assert 'mlirc.result_strides = [["2080", "1"]]' in texts[0] and "mlirc.pitch" not in texts[0]
        assert 'tensor<9x2048xbf16> {mlirc.strides = ["2080", "1"]}' in texts[1]

    check(product(), run, "CHECK: call @k00{{.*}}mlirc.pitch = array<i64: 2080>\nCHECK: call @k01\nCHECK-NOT: mlirc.pitch")


NODES, EDGES = 10000, 80000


def neighbours(width: int, others: str = "", table: str = "%h") -> str:
    """Rows of a negation in one group are gathered in another, which adds them up."""
    x, i, u, e = f"tensor<{NODES}x{width}xf32>", f"tensor<{EDGES}xi64>", f"tensor<{EDGES}x{width}xf32>", f"tensor<{NODES}xi32>"
    body = generic("%h", [("%x", x)], x, body="arith.negf", attributes="mlirc.group = 1 : i32")
    place = f"%k = arith.index_cast %a0 : i64 to index\n%c = linalg.index 1 : index\n%o = tensor.extract {table}[%k, %c] : {x}"
    body += generic("%g", [("%i", i)], u, ["i", "i, j"], place, attributes="mlirc.group = 2 : i32")
    body += f'%r = "mlirc.segments"(%x, %g, %e) {{combine = "arith.addf", target = array<i64: -1, 1>, mlirc.group = 2 : i32}} : ({x}, {u}, {e}) -> {x}\n'
    return function([("%x", x), ("%i", i), ("%e", e)], body + others, [("%r", x)])


@pytest.mark.parametrize("width, pitch", [(128, 144), (256, 272)])
def test_rows_of_gathered_blocks_get_a_pitch(width, pitch):
    check(neighbours(width), pitched, f"CHECK: linalg.generic\nCHECK-SAME: mlirc.pitch = array<i64: {pitch}>\nCHECK-NOT: mlirc.pitch")


CALL = "func.call @f(%h) : (tensor<10000x128xf32>) -> ()\n"


@pytest.mark.parametrize(
    "text",
    [neighbours(64), neighbours(192), neighbours(128, table="%x"), neighbours(128, CALL) + "func.func private @f(tensor<10000x128xf32>)"],
    ids=["one block", "an odd number of them", "an input", "read by ATen"],
)
def test_other_tables_stay_dense(text):
    check(text, pitched, "CHECK: linalg.generic\nCHECK-NOT: mlirc.pitch = array<i64: {{[1-9]}}")


FLAT = "%f = tensor.collapse_shape %h [[0, 1]] : tensor<9x2048xbf16> into tensor<18432xbf16>\n"
FLAT += generic("%g", [("%f", "tensor<18432xbf16>")], "tensor<18432xbf16>", attributes="mlirc.group = 3 : i32", body="arith.negf")


@pytest.mark.parametrize(
    "text",
    [
        product(k=2047),
        product(k=1024),
        product(groups=(1, 1)),
        product(last="%h"),
        product(views=FLAT),
        product(views="func.call @f(%h) : (tensor<9x2048xbf16>) -> ()\n") + "func.func private @f(tensor<9x2048xbf16>)",
    ],
    ids=["others", "short ones", "never stored", "returned", "read as one row", "read by ATen"],
)
def test_other_rows_stay_dense(text):
    check(text, pitched, "CHECK: linalg.generic\nCHECK-NOT: mlirc.pitch = array<i64: {{[1-9]}}")


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_pitch_is_an_odd_number_of_lines(size):
    assert row_pitch(4096 // size - 1, size) is None
    for nbytes in (4096, 6144, 12288):
        pitch = row_pitch(nbytes // size, size)
        assert pitch is not None and pitch * size == nbytes + 64


def layers(also: str):
    """Two layers: what lies between them is read by the second one, and by `also`."""

    def run(x, v, b, w):
        h = F.gelu(F.linear(x, v, b))
        h = h / h.square().mean(-1, keepdim=True).add(1).sqrt() if also == "norm" else h
        y = F.linear(h, w)
        match also:
            case "column":
                return y, h[..., 3:70:2] * 2
            case "flat":
                return y, h.reshape(-1) + 1
            case "returned":
                return y, h
            case "transposed":
                return y, h.transpose(0, -1).exp()
            case "sorted":
                return y, h.sort(0).values
        return y

    return run


def inputs(shape, width: int, dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    made = torch.randn(shape), torch.randn(width, 33) / 6, torch.randn(width), torch.randn(17, width) / 50
    return [t.to(dtype) for t in made]


ALSO = ["nothing", "norm", "column", "flat", "returned", "transposed", "sorted"]


@pytest.fixture
def pitches(monkeypatch):
    """What the pass has said of each graph."""
    found: list[list[int]] = []

    def run(function: ir.Operation, target: Target) -> None:
        pitch_rows(function, target)
        ops = [st.operation(o) for o in function.regions[0].blocks[0].operations]
        found.append([n for op in ops if PITCH in op.attributes for n in st.integers(op.attributes[PITCH]) if n])

    monkeypatch.setattr(pipeline, "pitch_rows", run)
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("also", ALSO)
@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 1024), (torch.bfloat16, 2048), (torch.bfloat16, 3072)])
def test_numbers(also, dtype, width, pitches):
    for shape in ((1, 33), (3, 11, 33)):
        compare(layers(also), *inputs(shape, width, dtype), options=OPTIONS)
    # Without AVX-512, rows of bf16 are widened to f32, in memory of ours, before they are read for panel after panel.
    widened = dtype == torch.bfloat16 and not Target.host().has_avx512
    size = 4 if widened else dtype.itemsize
    apart = [width + 64 // size] if widened or also not in ("returned", "sorted") else []
    assert pitches == [[], apart]


@pytest.mark.parametrize("also", ["norm", "column"])
def test_nothing_is_read_outside_of_the_memory(also, pitches):
    compare(layers(also), *inputs((33, 33), 1024), options=OPTIONS | {"guard_pages": "both"})
    assert pitches == [[1040]]


class Layers(torch.nn.Module):
    """The same with weights of its own, whose sizes are known where those of inputs are symbols."""

    def __init__(self, also: str) -> None:
        super().__init__()
        self.run, (_, *weights) = layers(also), inputs((1, 33), 1024)
        self.weights = torch.nn.ParameterList(weights)

    def forward(self, x):
        return self.run(x, *self.weights)


@pytest.mark.parametrize("also", ALSO[:3])
def test_symbolic_rows(also, pitches):
    torch._dynamo.reset()
    model = Layers(also)
    compiled, exact = torch.compile(model, backend="mlirc", dynamic=True, options=OPTIONS), copy.deepcopy(model).double()
    with torch.no_grad():
        for rows in (17, 33, 2):
            x = torch.randn(rows, 33)
            got, eager, reference = (pytree.tree_leaves(f(x)) for f, x in ((compiled, x), (model, x), (exact, x.double())))
            assert same(eager, got, reference, torch.float32)
    assert pitches == [[1040]]


def test_results_of_chains(pitches):
    """Of attention's softmax, which another product reads too: they leave the chain, with a pitch."""
    if not Target.host().has_amx_bf16:
        pytest.skip("what takes turns depends on the target, and this CPU has no AMX")

    def attention(q, k, v, w):
        p = (q @ k.transpose(-2, -1)).softmax(-1)
        return p @ v, p @ w

    q, k, v, w = (torch.randn(4, n, 32, dtype=torch.bfloat16) for n in (512, 2048, 2048, 2048))
    compare(attention, q, k, v, w)
    assert pitches == [[2080]] and any("_chain_" in k for k in kernels())


class OfWeights(torch.nn.Module):
    """Rows that are made of weights, once, by kernels that differ in sizes only and become one."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.rows = torch.nn.ParameterList([torch.randn(33, w) for w in widths])
        self.others = torch.nn.ParameterList([torch.randn(w, 17) / w for w in widths])

    def forward(self, x):
        y = x[:, :17]
        for p, w in zip(self.rows, self.others):
            t = torch.tanh(p * p.sigmoid()).exp()
            y = y + x @ (t @ w) + (x @ t).mean(-1, keepdim=True) + x @ (t @ w.sin())
        return y


def test_rows_that_are_made_of_weights(pitches):
    torch.manual_seed(0)
    model, x = OfWeights((1024, 2048, 3072)), torch.randn(5, 33)
    with torch.no_grad():
        got, eager = torch.compile(model, backend="mlirc", options=OPTIONS)(x), model(x)
        assert same([eager], [got], [model.double()(x.double())], torch.float32)
    assert pitches == [[1040, 2064, 3088]]


def test_gathered_rows_with_a_pitch(pitches):
    """A product makes the table, and another one reads it too; on a machine with a second-level cache of another size it may be dense."""
    rows, updates = 10000, 30000
    edges = torch.randint(0, rows, (2, updates))

    def f(x, w, v):
        h = torch.relu(x @ w)
        return torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]) @ v + h @ v

    compare(f, torch.randn(rows, 16), torch.randn(16, 256) / 4, torch.randn(256, 8) / 16, options=OPTIONS | {"guard_pages": "both"})
    host = Target.parse("host")
    assert pitches == [[p] if (p := gathered_pitch(rows, 256, updates, 4, host)) else []]
