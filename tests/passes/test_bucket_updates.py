"""Updates of rows, sorted into a bucket for each row: which, how, and that they are as right as one after the other."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from mlirc.dialects import own
from mlirc.dialects.mlir import ir
from mlirc.driver import compile_kernel, find_main
from mlirc.lowering.target import Target
from mlirc.passes.bucket_updates import bucket_updates
from mlirc.passes.strategy import Adjustment, why_in_order
from mlirc.passes.strategy.scatter import gathered_pitch, gathers_in_blocks
from mlirc.tests.frontend.compare import compare, kernels, left_to_aten
from mlirc.tests.lowering.test_to_llvm import filecheck
from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import kernel, stages, strategy

ZEN = Target.parse("znver4")
ROWS, UPDATES = 50000, 90000


def scatter(result: str, update: str, rows: str = "%i", combine: str = "arith.addf", target: str = "-1, 1", updates: int = UPDATES) -> str:
    kind = f"tensor<{ROWS}x64xf32>"
    return (
        f'{result} = "mlirc.scatter"(%x, {update}, {rows}) {{combine = "{combine}", index_map = affine_map<(d0, d1) -> (d0)>, '
        f"target = array<i64: {target}>, operandSegmentSizes = array<i32: 1, 1, 1>}} : "
        f"({kind}, tensor<{updates}x64xf32>, tensor<{updates}xi64>) -> {kind}\n"
    )


def bucketed(body: str, results: str = "%r") -> str:
    """`body` with %x, %u, %i and %j, after the pass."""
    kinds = ", ".join([f"tensor<{ROWS}x64xf32>"] * (results.count(",") + 1))
    arguments = f"%x: tensor<{ROWS}x64xf32>, %u: tensor<{UPDATES}x64xf32>, %i: tensor<{UPDATES}xi64>, %j: tensor<{UPDATES}xi64>"
    text = f"func.func @main({arguments}) -> ({kinds}) {{\n{body}return {results} : {kinds}\n}}"
    with ir.Context(), ir.Location.unknown():
        own.load_for(text)
        module = ir.Module.parse(text)
        bucket_updates(find_main(module), ZEN)
        module.operation.verify()
        return str(module)


def test_a_scatter_becomes_buckets_and_its_segments():
    filecheck(bucketed(scatter("%r", "%u")), f"""
        CHECK: %[[SPACE:.*]] = tensor.empty() : tensor<{ROWS}xi64>
        CHECK: %[[BUCKETS:.*]]:2 = "mlirc.bucket"(%{{{{.*}}}}, %[[SPACE]])
        CHECK: %[[SORTED:.*]] = linalg.generic {{{{.*}}}} ins(%[[BUCKETS]]#0 : tensor<{UPDATES}xi32>)
        CHECK: tensor.extract %arg1[
        CHECK: "mlirc.segments"(%{{{{.*}}}}, %[[SORTED]], %[[BUCKETS]]#1) {{combine = "arith.addf"
        CHECK-NOT: mlirc.scatter
    """)


def test_the_same_index_is_sorted_once():
    text = bucketed(scatter("%r", "%u") + scatter("%s", "%u", combine="arith.mulf") + scatter("%t", "%u", "%j"), "%r, %s, %t")
    assert text.count("mlirc.bucket") == 2 and text.count("mlirc.segments") == 3


def test_writes_are_made_in_order():
    assert "mlirc.bucket" not in bucketed(scatter("%r", "%u", combine="set"))


@pytest.mark.parametrize(
    "sizes,reason",
    [
        ((10000, 80000, 128, 32), None),
        ((None, None, 128, 32), None),
        ((100000, None, 32, 32), None),
        ((100000, 800000, 31, 32), "rows of 31 elements are updated faster than sorted"),
        ((10000, 80000, None, 32), "rows whose length is a symbol"),
        ((1024, 80000, 128, 32), "512 KB of result stay in cache"),
        ((2000, 80000, 64, 32), "500 KB of result stay in cache"),
        ((2100, 80000, 64, 32), None),
        ((32768, 80000, 32, 32), "4096 KB of result stay in cache"),
        ((50000, 512, 768, 32), "512 updates leave most of 50000 rows alone"),
        ((None, 1, 768, 32), "one update"),
    ],
)
def test_reasons(sizes, reason):
    assert why_in_order(*sizes, ZEN) == reason


def test_the_reason_is_a_remark():
    with ir.Context(), ir.Location.unknown():
        body = scatter("%r", "%u").replace("x64xf32", "x8xf32")
        own.load()
        module = ir.Module.parse(
            f"func.func @main(%x: tensor<{ROWS}x8xf32>, %u: tensor<{UPDATES}x8xf32>, %i: tensor<{UPDATES}xi64>) -> tensor<{ROWS}x8xf32> "
            f"{{\n{body}return %r : tensor<{ROWS}x8xf32>\n}}"
        )
        bucket_updates(find_main(module), ZEN)
        filecheck(str(module), 'CHECK: mlirc.in_order = "rows of 8 elements are updated faster than sorted"')


# The kernels


def segments(width: int, updates: str = "%u", body: str = "") -> str:
    """The kernel of the segments, with `body` before it."""
    kind = f"tensor<{ROWS}x{width}xf32>"
    arguments = [("%x", kind), ("%u", f"tensor<{UPDATES}x{width}xf32>"), ("%ends", f"tensor<{ROWS}xi32>")]
    op = (
        f'%r = "mlirc.segments"(%x, {updates}, %ends) {{combine = "arith.addf", '
        f"target = array<i64: -1, 1>}} : ({kind}, tensor<{UPDATES}x{width}xf32>, tensor<{ROWS}xi32>) -> {kind}\n"
    )
    return kernel(arguments, body + op, [("%r", kind)], [[width, 1]])


@pytest.mark.parametrize("target,sums", [("x86-64-v4", 4), ("x86-64-v3", 8)])
def test_sums_stay_in_registers(target, sums):
    """128 elements are twice 4 registers of 16, or 8 registers of 8: nothing is stored before all updates are added."""
    text = stages(segments(128), target)["vector"]
    inner = text[text.index("memref.prefetch") - 400 :]
    body = inner[: inner.index("scf.yield")]
    assert body.count("arith.addf") == sums and body.count("vector.load") == sums and "vector.store" not in body


@pytest.mark.parametrize("width,unroll", [(16, 1), (64, 4), (80, 3), (100, 4), (272, 4), (1024, 4)])
def test_blocks_of_a_row_are_alike(width, unroll):
    """At most four lines of a row at a time: what is fetched for the updates ahead are as many for each."""
    chosen = strategy(segments(width), "x86-64-v4")
    assert chosen.unroll == unroll and chosen.inner and not chosen.parallel


def gathered(width: int) -> str:
    """Rows of a bf16 table that indices name, widened: what `segments` adds up."""
    table, rows, wide = f"tensor<{ROWS}x{width}xbf16>", f"tensor<{UPDATES}x{width}xbf16>", f"tensor<{UPDATES}x{width}xf32>"
    place = "%k = arith.index_cast %a0 : i64 to index\n%n = arith.constant 0 : index\n%m = arith.maxsi %k, %n : index\n%ok = arith.cmpi eq, %k, %m : index"
    body = f'{place}\ncf.assert %ok, "IndexError"\n%c = linalg.index 1 : index\n%o = tensor.extract %t[%m, %c] : {table}'
    ops = generic("%g", [("%i", f"tensor<{UPDATES}xi64>")], rows, ["i", "i, j"], body)
    ops += generic("%w", [("%g", rows)], wide, body="%o = arith.extf %a0 : bf16 to f32")
    return segments(width, "%w", ops).replace("%u: " + wide, f"%i: tensor<{UPDATES}xi64>, %t: {table}")


@pytest.mark.parametrize("target,lanes", [("x86-64-v4", 16), ("x86-64-v3", 8)])
def test_where_a_row_is_is_computed_once(target, lanes):
    """Once for the vectors of a block, four lines or half of the registers, and once for the lines of the row that is fetched ahead of time."""
    text = gathered(256)
    chosen = strategy(text, target)
    assert chosen.unroll == 8
    seen = stages(text, target)["vector"]
    inner = seen[seen.index("memref.prefetch") - 800 :]
    body = inner[: inner.index("scf.yield %")]
    assert body.count("arith.maxsi") == 2 and body.count("scf.if") == 1
    assert body.count("arith.addf") == chosen.unroll and body.count("memref.prefetch") == chosen.unroll * lanes // 32


def narrowed(width: int) -> str:
    """The same, whose result is of bf16 as well."""
    wide, rows = f"tensor<{ROWS}x{width}xf32>", f"tensor<{ROWS}x{width}xbf16>"
    text = gathered(width).replace("%x: " + wide, "%b: " + rows)
    before = generic("%x", [("%b", rows)], wide, body="%o = arith.extf %a0 : bf16 to f32")
    after = generic("%y", [("%r", wide)], rows, body="%o = arith.truncf %a0 : f32 to bf16")
    head, rest = text.split('%r = "mlirc.segments"', 1)
    op, end = rest.split("\n", 1)
    return f'{head}{before}%r = "mlirc.segments"{op}\n{after}{end.replace("%r", "%y").replace(wide, rows)}'.replace(f"-> ({wide}) attr", f"-> ({rows}) attr")


@pytest.mark.parametrize("width, lanes", [(256, 32), (64, 32), (96, 32), (48, 16), (33, 16)])
def test_rows_of_bf16_are_summed_as_their_even_and_odd_lanes(width, lanes):
    chosen = strategy(narrowed(width), "x86-64-v4")
    assert chosen.lanes == lanes and chosen.unroll * lanes <= 256
    seen = stages(narrowed(width), "x86-64-v4")["asm"]
    assert ("vpmovzxwd" in seen) == (lanes == 16)
    assert strategy(gathered(width), "x86-64-v4").lanes == 16, "its sums are stored in f32"


def test_registers_of_256_bits_have_half_of_the_lanes():
    chosen = strategy(narrowed(256), "x86-64-v3")
    assert (chosen.lanes, chosen.unroll) == (16, 4) and "vpmovzxwd" not in stages(narrowed(256), "x86-64-v3")["asm"]


@pytest.mark.parametrize(
    "rows,nbytes,updates,blocks,pitch",
    [
        (10000, 1024, 80000, True, 272),
        (10000, 512, 80000, True, 144),
        (10000, 768, 80000, True, None),
        (10000, 256, 80000, False, None),
        (3000, 512, 80000, False, None),
        (20000, 512, 80000, False, None),
        (10000, 1024, 19999, False, None),
    ],
    ids=["both", "short rows", "an odd number of blocks", "one block", "all in cache", "no block in cache", "gathered once"],
)
def test_gathered_rows_stay_in_the_second_cache_in_part(rows, nbytes, updates, blocks, pitch):
    """2 MB of it; a pitch is an odd number of lines, in elements."""
    target = Target.parse("sapphirerapids")
    assert target.caches.second == 2 << 20
    assert gathers_in_blocks(rows, nbytes, updates, 256, target) == blocks
    assert gathered_pitch(rows, nbytes // 4, updates, 4, target) == pitch


BLOCKS, ROWS_OF_BLOCK = "CHECK: scf.for {{.*}} step %c128 {", "CHECK: scf.for {{.*}} -> (index) {"


def test_blocks_are_outside_of_the_rows():
    """Where the table wants it, and nothing else is pinned."""
    text = gathered(256).replace(f"tensor<{ROWS}x256xbf16>", "tensor<8500x256xbf16>")
    assert strategy(text, "sapphirerapids").blocks_outside and not strategy(gathered(256), "sapphirerapids").blocks_outside
    seen: dict[str, str] = {}
    inside = Adjustment((("blocks_outside", False),))
    compile_kernel(text, Target.parse("sapphirerapids"), "k", lambda name, what: seen.setdefault(name, str(what)), adjustment=inside)
    filecheck(stages(text, "sapphirerapids")["vector"], f"{BLOCKS}\n{ROWS_OF_BLOCK}")
    filecheck(seen["vector"], f"{ROWS_OF_BLOCK}\n{BLOCKS}")


def test_buckets():
    """A result for each row that there is, in order within it; all or nothing."""
    import numpy as np

    from mlirc.tests.passes.vectorize.kernels import built

    space = "%s = tensor.empty() : tensor<4xi64>\n"
    op = '%o, %e = "mlirc.bucket"(%i, %s) : (tensor<7xi32>, tensor<4xi64>) -> (tensor<7xi64>, tensor<4xi64>)\n'
    run = built(kernel([("%i", "tensor<7xi32>")], space + op, [("%o", "tensor<7xi64>"), ("%e", "tensor<4xi64>")], [[1], [1]]))
    order, ends = np.full(7, -1), np.full(4, -1)
    assert run(np.array([2, 0, 2, 3, 3, 2, 0], np.int32), order, ends) == 0
    assert order.tolist() == [1, 6, 0, 2, 5, 3, 4] and ends.tolist() == [2, 2, 5, 7]
    for bad in (4, -1, 1 << 30):
        assert run(np.array([2, 0, 2, 3, bad, 2, 0], np.int32), order, ends) == 1
        assert ends.tolist() == [0, 0, 0, 0] and order.tolist() == [0] * 7


# Whole graphs


@pytest.fixture
def anywhere(bucket_above):
    bucket_above(0)


buckets = pytest.mark.usefixtures("anywhere")


def indices(n: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, n, shape).to(dtype)


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(-9, 9, shape).to(dtype)


def check(f, *args, count: int = 2, **kwargs):  # noqa: ANN001, ANN003, ANN202
    """The buckets and their segments: `count` kernels."""
    out = compare(f, *args, **kwargs)
    assert not left_to_aten() and len(kernels()) == count, kernels()
    return out


@buckets
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8])
def test_dtypes(dtype):
    index = indices(300, 350, dtype=torch.int32)
    check(lambda x, i, s: x.index_add(0, i, s), values(dtype, 300, 520), index, values(dtype, 350, 520))


@buckets
@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("width", [200, 257, 400, 1031])
def test_odd_rows(width, target):
    rows = 300
    args = torch.randn(rows, width), indices(rows, 400), torch.randn(400, width)
    check(lambda x, i, s: x.index_add(0, i, s, alpha=2), *args, options={"strict": True, "target": target})


@buckets
@pytest.mark.parametrize("outside", ["true", "false"])
@pytest.mark.parametrize("width", [64, 97, 320])
def test_blocks_inside_and_outside(width, outside):
    """Also with threads that share rows, batches of rows, and rows without updates."""

    def f(x, edges, w):
        return torch.relu(torch.ones_like(x).index_add(1, edges[1], x[:, edges[0]] * w[:, None])) - 1

    for shape in ((1, 300), (3, 50)):
        args = torch.randn(*shape, width), indices(shape[1] - 7, 2, 900), torch.randn(900)
        compare(f, *args, options={"strict": True, "pin": f"*: blocks_outside={outside}"})


@buckets
def test_along_an_inner_dim():
    check(lambda x, i, s: x.index_add(1, i, s), torch.randn(3, 200, 2, 70), indices(200, 350), torch.randn(3, 350, 2, 70))


@buckets
@pytest.mark.parametrize("reduce", ["amax", "amin", "prod"])
def test_reductions(reduce):
    """NaN goes through, and what is no sum has its order too."""
    source = torch.randn(400, 130)
    source[7, 5], source[9, 6] = float("nan"), float("inf")
    check(lambda x, i, s: x.index_reduce(0, i, s, reduce), torch.randn(300, 130), indices(300, 400), source)


@buckets
def test_sums_round_as_one_after_the_other():
    """Also where one row has all updates, and with other threads."""
    f = torch.compile(lambda x, i, s: x.index_add(0, i, s), backend="mlirc", options={"strict": True})
    x, s = torch.randn(300, 130), torch.randn(500, 130)
    threads = torch.get_num_threads()
    try:
        for index in (indices(300, 500), torch.full((500,), 299), torch.zeros(500, dtype=torch.int64), torch.arange(500) % 300):
            for n in (1, 2, 3):
                torch.set_num_threads(n)
                assert torch.equal(f(x, index, s), x.index_add(0, index, s))
    finally:
        torch.set_num_threads(threads)


@buckets
def test_layers_share_buckets():
    """Messages are gathered, weighted and added up in one kernel; the weights and sorting, also of weights and index, are the others."""

    def f(x, edges, w):
        for _ in range(2):
            x = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]] * torch.sigmoid(w)[:, None])
        return x

    check(f, torch.randn(300, 100), indices(300, 2, 900), torch.randn(900), count=5)


@buckets
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [64, 96, 97, 320])
def test_the_mean_of_neighbours_is_one_kernel(width, dtype):
    """Where sums start, the sums, their number and what is made of them; others sort."""

    def f(x, edges):
        total = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        count = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, edges[1], torch.ones_like(edges[1], dtype=x.dtype))
        return torch.relu(total / count.clamp(min=1)[:, None])

    check(f, torch.randn(300, width).to(dtype), indices(300, 2, 900), count=3)


@buckets
@pytest.mark.parametrize(
    "f,count",
    [
        (lambda x, i, s: (y := (x * 2).index_add(0, i, s), y.exp() + x), 2),
        (lambda x, i, s: x.index_add(0, i, s)[:, None] * s[0], 2),
        (lambda x, i, s: x.index_add(0, i, s).t().exp(), 2),
        (lambda x, i, s: x.index_add(0, i, s).t().contiguous(), 3),
        (lambda x, i, s: x.index_add(0, i, s).softmax(-1), 3),
        (lambda x, i, s: (y := x.index_add(0, i, s))[i] + y[:1], 3),
        (lambda x, i, s: x.index_add(0, i, s)[20:40] * 2, 3),
        (lambda x, i, s: torch.nn.functional.pad(x.index_add(0, i, s), (1, 1)), 3),
        (lambda x, i, s: x.index_add(0, i, x.sin()) + x.sin(), 3),
        (lambda x, i, s: x.index_add(0, i, s) + x.index_add(0, i, s.cos()), 3),
        (lambda x, i, s: x.index_add(0, i, s).index_add(0, i, s.cos()).cos(), 3),
        (lambda x, i, s: (x.index_add(0, i, t := s.cos()), t), 3),
    ],
)  # fmt: skip
def test_neighbours(f, count):
    """What becomes one kernel with the sums, and what does not: other orders, other places, other reductions, the updates themselves."""
    check(f, torch.randn(300, 130), indices(300, 300), torch.randn(300, 130), count=count)


@buckets
@pytest.mark.parametrize("rows", [1, 3])
def test_few_rows_and_unit_dims(rows):
    check(lambda x, i, s: x.index_add(1, i, s).tanh(), torch.randn(2, rows, 1, 70), indices(rows, 5), torch.randn(2, 5, 1, 70))
    check(lambda x, i, s: x.index_add(0, i, s).tanh(), torch.randn(rows, 70, 1), indices(rows, 5), torch.randn(5, 70, 1))


@buckets
def test_rows_without_updates_are_what_they_were():
    """And are overwritten where sums start in memory of their own."""
    for index in (torch.full((20,), 7), torch.zeros(0, dtype=torch.int64), torch.arange(20) + 280):
        f = torch.compile(lambda x, i, s: x.index_add(0, i, s) * 3, backend="mlirc", options={"strict": True})
        x, s = torch.randn(300, 130), torch.randn(len(index), 130)
        assert torch.equal(f(x, index, s), x.index_add(0, index, s) * 3)


@buckets
def test_symbolic_sizes():
    """Of rows and of updates; none of them too."""
    counters.clear()
    f = torch.compile(lambda x, i, s: x.index_add(0, i, s), backend="mlirc", options={"strict": True})
    for rows, updates in ((50, 70), (300, 2000), (2, 500), (7, 3)):
        x, i, s = torch.randn(rows, 33), indices(rows, updates), torch.randn(updates, 33)
        for t in (x, i, s):
            torch._dynamo.mark_dynamic(t, 0)
        assert torch.equal(f(x, i, s), x.index_add(0, i, s))
    assert len(kernels()) == 2
    x = torch.randn(4, 33)
    assert torch.equal(f(x, torch.zeros(0, dtype=torch.int64), torch.zeros(0, 33)), x)


@buckets
@pytest.mark.parametrize("bad", [-1, 300])
def test_nothing_is_written_if_an_index_is_out_of_range(bad):
    def f(x, i, s):
        x.index_add_(0, i, s)
        return x.sum()

    compiled = torch.compile(f, backend="mlirc", options={"strict": True})
    x, i, s = torch.randn(300, 130), indices(300, 300), torch.randn(300, 130)
    expected = x.index_add(0, i, s)
    compiled(x, i, s)
    assert torch.equal(x, expected)
    i[123] = bad
    with pytest.raises(IndexError):
        compiled(x, i, s)
    assert torch.equal(x, expected)
    # And if what is added cannot be gathered, it is as before: an error.
    g = torch.compile(lambda x, i, j, s: x.index_add(0, i, s[j]), backend="mlirc", options={"strict": True})
    good = indices(300, 300)
    torch.testing.assert_close(g(x, good, good, s), x.index_add(0, good, s[good]))
    with pytest.raises(IndexError):
        g(x, good, torch.full((300,), 300), s)
