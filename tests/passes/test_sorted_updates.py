"""What scatters add up is sorted where it is short: an index, weights."""

from __future__ import annotations

import pytest
import torch

from mlirc.dialects import own
from mlirc.dialects.mlir import ir
from mlirc.driver import find_main
from mlirc.lowering.target import Target
from mlirc.passes.bucket_updates import bucket_updates
from mlirc.tests.frontend.compare import compare, kernels, left_to_aten
from mlirc.tests.lowering.test_to_llvm import filecheck
from mlirc.tests.passes.graph_text import generic

ROWS, UPDATES, WIDTH = 50000, 90000, 64
TABLE, WIDE, INDEX, COLUMN = f"tensor<{ROWS}x{WIDTH}xf32>", f"tensor<{UPDATES}x{WIDTH}xf32>", f"tensor<{UPDATES}xi64>", f"tensor<{UPDATES}x1xf32>"
ARGUMENTS = f"%x: {TABLE}, %u: {WIDE}, %i: {INDEX}, %j: {INDEX}, %w: {COLUMN}"


def sums(result: str, updates: str) -> str:
    return (
        f'{result} = "mlirc.scatter"(%x, {updates}, %i) {{combine = "arith.addf", index_map = affine_map<(d0, d1) -> (d0)>, '
        f"target = array<i64: -1, 1>, operandSegmentSizes = array<i32: 1, 1, 1>}} : ({TABLE}, {WIDE}, {INDEX}) -> {TABLE}\n"
    )


def gather(name: str) -> str:
    return generic(name, [("%j", INDEX)], WIDE, ["i", "i, j"], f"%k = arith.index_cast %a0 : i64 to index\n%c = linalg.index 1 : index\n%o = tensor.extract %x[%k, %c] : {TABLE}")


def weighted(name: str, rows: str) -> str:
    return generic(name, [(rows, WIDE), ("%w", COLUMN)], WIDE, ["i, j", "i, 0", "i, j"], "arith.mulf")


def in_buckets(body: str, results: str = "%r") -> str:
    kinds = ", ".join([TABLE] * (results.count(",") + 1))
    with ir.Context(), ir.Location.unknown():
        own.load()
        module = ir.Module.parse(f"func.func @main({ARGUMENTS}) -> ({kinds}) {{\n{body}return {results} : {kinds}\n}}")
        bucket_updates(find_main(module), Target.parse("znver4"))
        module.operation.verify()
        return str(module)


def test_the_index_and_the_weights_are_sorted():
    """And nothing is left of the updates as they were."""
    text = in_buckets(gather("%g") + weighted("%m", "%g") + sums("%r", "%m"))
    filecheck(text, """
        CHECK: %[[BUCKETS:.*]]:2 = "mlirc.bucket"
        CHECK: tensor.extract %arg3[
        CHECK: tensor.extract %arg0[
        CHECK: tensor.extract %arg4[
        CHECK: arith.mulf
        CHECK: "mlirc.segments"(%arg0, %{{.*}}, %[[BUCKETS]]#1)
    """)
    assert text.count("mlirc.sorted") == 2 and text.count("linalg.generic") == 4


def test_what_is_short_is_sorted_once():
    """Two gathers by one index; what is as long as an update is read in order by each of its readers."""
    body = gather("%g") + weighted("%m", "%g") + sums("%r", "%m") + gather("%h") + sums("%s", "%h") + sums("%t", "%u") + sums("%v", "%u")
    text = in_buckets(body, "%r, %s, %t, %v")
    assert text.count("mlirc.sorted") == 2 and text.count("tensor.extract %arg3[") == 1 and text.count("tensor.extract %arg1[") == 2


def test_what_others_read_too_is_no_part_of_the_sums():
    """It would be gathered twice."""
    text = in_buckets(gather("%g") + sums("%r", "%g") + generic("%h", [("%g", WIDE)], WIDE) + sums("%s", "%h"), "%r, %s")
    assert "mlirc.sorted" not in text and text.count("tensor.extract %arg0[") == 1


def test_what_knows_its_place_keeps_it():
    """The number of an update is another one once it is sorted."""
    numbered = generic("%n", [("%u", WIDE)], WIDE, body="%k = linalg.index 0 : index\n%m = arith.index_cast %k : index to i64\n%f = arith.sitofp %m : i64 to f32\n%o = arith.addf %a0, %f : f32")
    text = in_buckets(numbered + sums("%r", "%n"))
    filecheck(text, """
        CHECK: %[[OWN:.*]] = linalg.generic
        CHECK: linalg.index 0
        CHECK: tensor.extract %[[OWN]][
    """)


@pytest.fixture
def buckets(bucket_above):
    bucket_above(0)


def indices(n: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, n, shape)


@pytest.mark.usefixtures("buckets")
@pytest.mark.parametrize(
    "f",
    [
        lambda x, e, w: x.index_add(0, e[1], x[e[0]] * w[:, :1]),
        lambda x, e, w: x.index_add(0, e[1], x[e[0]] * w.repeat_interleave(32, 1)),
        lambda x, e, w: x.index_add(0, e[1], (x.view(-1, 4, 32)[e[0]] * w[..., None]).flatten(1)),
        lambda x, e, w: x.index_add(0, e[1], x[e[0]] + x[e[1]]),
        lambda x, e, w: x.index_add(0, e[1], torch.relu(x[e[0]] - x[e[1]]) * w.sum(1, keepdim=True)),
        lambda x, e, w: x.index_add(0, e[1], x[e[0]] * torch.arange(len(w), dtype=x.dtype)[:, None]),
        lambda x, e, w: x.index_add(0, e[1], torch.full((len(w), x.shape[1]), 0.5, dtype=x.dtype)),
        lambda x, e, w: x.index_add(0, e[1], x[e[0] - x.shape[0]]),
        lambda x, e, w: x.index_add(0, e[1].int(), x[e[0].int()]),
        lambda x, e, w: x.index_add(0, e[1], x.t()[:, e[0]].t()),
        lambda x, e, w: (x.index_add(0, e[1], m := x[e[0]] * w[:, 1:2]), m.sum(0)),
        lambda x, e, w: torch.cat([x.index_add(0, e[1], x[e[0]]), x.index_add(0, e[0], x[e[1]])], 1),
    ],
    ids=["weights", "repeated", "heads", "both ends", "of sums", "numbers", "constants", "from behind", "narrow indices", "turned", "others", "both ways"],
)  # fmt: skip
def test_messages(f):
    for dtype in (torch.float32, torch.bfloat16):
        compare(f, torch.randn(300, 128).to(dtype), indices(300, 2, 900), torch.rand(900, 4).to(dtype))
        assert not left_to_aten()


@pytest.mark.usefixtures("buckets")
def test_no_edges_and_symbols():
    """Of nodes and edges; the order of no edges is not read."""

    def f(x, e, w):
        return x.index_add(0, e[1], x[e[0]] * w[:, None])

    compiled = torch.compile(f, backend="mlirc", options={"strict": True})
    for nodes, edges in ((50, 70), (300, 2000), (7, 3), (5, 0)):
        x, e, w = torch.randn(nodes, 128), indices(nodes, 2, edges), torch.randn(edges)
        for t, dims in ((x, (0,)), (e, (1,)), (w, (0,))):
            for d in dims:
                torch._dynamo.mark_dynamic(t, d)
        torch.testing.assert_close(compiled(x, e, w), f(x, e, w))


@pytest.mark.usefixtures("buckets")
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("bad", [300, -301])
def test_edges_to_nowhere_are_an_error(at, bad):
    """Wherever they come from, or lead to; kernels that have the order of no updates read nothing outside."""
    f = torch.compile(lambda x, e, w: x.index_add(0, e[1], x[e[0]] * w[:, None]), backend="mlirc", options={"strict": True, "guard_pages": "both"})
    x, e, w = torch.randn(300, 128), indices(300, 2, 900), torch.randn(900)
    f(x, e, w)
    assert len(kernels()) == 4
    e[at, 500] = bad
    with pytest.raises(IndexError):
        f(x, e, w)
