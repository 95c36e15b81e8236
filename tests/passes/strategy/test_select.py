"""What is decided for a kernel, by shape and target."""

from __future__ import annotations

import pytest

from mlirc.dialects.mlir import ir
from mlirc.passes import structure as st
from mlirc.passes.strategy import ContractionStrategy, LoopStrategy
from mlirc.passes.vectorize import KernelFunction
from mlirc.tests.lowering.test_to_llvm import filecheck
from mlirc.tests.passes.graph_text import generic, matmul
from mlirc.tests.passes.vectorize.kernels import kernel, stages, strategy


def elementwise(n: int, m: int, kind: str = "f32", maps=None) -> str:
    t = f"tensor<{n}x{m}x{kind}>"
    return kernel([("%x", t)], generic("%r", [("%x", t)], t, maps, body="math.exp"), [("%r", t)], [[m, 1]])


def row_sums(n: int, m: int) -> str:
    t, row = f"tensor<{n}x{m}xf32>", f"tensor<{n}xf32>"
    return kernel([("%x", t)], generic("%r", [("%x", t)], row, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0"), [("%r", row)], [[1]])


def product(m: int, k: int, n: int) -> str:
    arguments = [("%x", f"tensor<{m}x{k}xf32>"), ("%w", f"tensor<{k}x{n}xf32>")]
    return kernel(arguments, matmul("%r", "%x", "%w", m, k, n), [("%r", f"tensor<{m}x{n}xf32>")], [[n, 1]])


@pytest.mark.parametrize("target,lanes", [("x86-64-v2", 4), ("x86-64-v3", 8), ("x86-64-v4", 16), ("sapphirerapids", 16)])
def test_lanes_follow_the_target(target, lanes):
    assert strategy(elementwise(30, 70), target).lanes == lanes
    assert strategy(product(30, 40, 70), target).lanes == lanes
    assert strategy(elementwise(30, 70, "f64"), target).lanes == max(lanes // 2, 4)


def test_dims_that_lie_together_are_one_loop():
    s = strategy(elementwise(30, 70))
    assert isinstance(s, LoopStrategy) and list(s.merged.values()) == [2100]
    strided = kernel([("%x", "tensor<30x70xf32>")], generic("%r", [("%x", "tensor<30x70xf32>")], "tensor<30x70xf32>"), [("%r", "tensor<30x70xf32>")], [[100, 1]])
    assert not strategy(strided).merged  # type: ignore[union-attr]


def test_lanes_run_along_what_is_contiguous():
    s = strategy(row_sums(30, 70))
    assert isinstance(s, LoopStrategy) and s.lane in s.inner
    t, column = "tensor<30x70xf32>", "tensor<70xf32>"
    columns = kernel([("%x", t)], generic("%r", [("%x", t)], column, ["i, j", "j"], "arith.addf", "rp", "ij", "0.0"), [("%r", column)], [[1]])
    s = strategy(columns)
    assert isinstance(s, LoopStrategy) and s.lane not in s.inner


def test_what_is_stored_once_a_row_does_not_choose_the_lanes():
    """The rows of both results lie side by side, the elements of a row are many more."""
    t, row = "tensor<300x70xf32>", "tensor<300xf32>"
    body = generic("%r", [("%x", t)], row, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
    body += generic("%s", [("%x", t)], row, ["i, j", "i"], "arith.maximumf", "pr", "ij", "0xFF800000")
    body += generic("%u", [("%r", row)], row, ["i", "i"], "math.exp", loops="i")
    s = strategy(kernel([("%x", t)], body, [("%r", row), ("%s", row), ("%u", row)], [[1], [1], [1]]))
    assert isinstance(s, LoopStrategy) and s.lane in s.inner


def test_small_kernels_stay_on_one_thread():
    """The grain is the number of parallel iterations below which one thread does it all."""
    small, large = strategy(row_sums(4, 8)), strategy(row_sums(4096, 4096))
    assert small.grain > 4 and large.grain < 100


@pytest.mark.parametrize("target", ["znver4", "znver5"])
@pytest.mark.parametrize("height,width,rows", [(3136, 96, 32), (3136, 128, 16), (3136, 192, 16), (3136, 1000, 2), (3136, 2048, 2), (3136, 4096, 1), (40, 96, 8), (8, 96, 2), (7, 96, 1)])
def test_the_shorter_rows_are_the_more_are_computed_together(target, height, width, rows):
    """A block of them reads 12 KB, of two rows half of the first-level cache (32 KB, 48 KB); and there are four blocks."""
    s = strategy(row_sums(height, width), target)
    assert isinstance(s, LoopStrategy) and s.rows == rows and s.combined == -(-rows // 2)


LOOKED_UP = "%k = arith.index_cast %a0 : i64 to index"
ROLLED = "%i = linalg.index 0 : index\n%c = arith.constant 1 : index\n%s = arith.addi %i, %c : index\n%m = arith.constant 4096 : index\n%k = arith.remui %s, %m : index"


@pytest.mark.parametrize("inputs,index,rows", [([("%n", "tensor<4096xi64>")], LOOKED_UP, 2), ([("%w", "tensor<4096xf32>")], ROLLED, 32)])
def test_rows_that_are_looked_up_go_by_twos(inputs, index, rows):
    """They come from anywhere, and nothing fetches them; those of a roll follow one another."""
    t, row = "tensor<4096x96xf32>", "tensor<4096xf32>"
    body = generic("%e", inputs, t, ["i", "i, j"], f"{index}\n%l = linalg.index 1 : index\n%o = tensor.extract %x[%k, %l] : {t}")
    body += generic("%r", [("%e", t)], row, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
    s = strategy(kernel([("%x", t), *inputs], body, [("%r", row)], [[1]]), "znver5")
    assert isinstance(s, LoopStrategy) and s.rows == rows


def test_sums_of_rows_that_are_looked_up_are_along_the_rows():
    """The places are contiguous along what is summed, but what they are of is not."""
    x, places, t, rows = "tensor<20000x64xf32>", "tensor<256x10xi64>", "tensor<256x10x64xf32>", "tensor<256x64xf32>"
    body = generic("%e", [("%n", places)], t, ["i, k", "i, k, j"], f"{LOOKED_UP}\n%l = linalg.index 2 : index\n%o = tensor.extract %x[%k, %l] : {x}", "ppp", "ikj")
    body += generic("%r", [("%e", t)], rows, ["i, k, j", "i, j"], "arith.addf", "prp", "ikj", "0.0")
    s = strategy(kernel([("%x", x), ("%n", places)], body, [("%r", rows)], [[64, 1]]), "znver5")
    assert isinstance(s, LoopStrategy) and s.inner == [1] and s.lane not in s.inner


@pytest.mark.parametrize("inputs,index,gathered", [([("%n", "tensor<4096xi64>")], LOOKED_UP, {0}), ([("%w", "tensor<4096xf32>")], ROLLED, set())])
def test_only_what_data_says_is_looked_up(inputs, index, gathered):
    """The next element along a class is anywhere then, and near where its place is computed from loops alone."""
    t = "tensor<4096x96xf32>"
    body = generic("%r", inputs, t, ["i", "i, j"], f"{index}\n%l = linalg.index 1 : index\n%o = tensor.extract %x[%k, %l] : {t}")
    text = kernel([("%x", t), *inputs], body, [("%r", t)], [[96, 1]])
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        accesses = KernelFunction(st.operation(module.body.operations[0])).accesses.items
        assert [a.gathered for a in accesses if not a.store and len(st.shape(a.value)) == 2] == [gathered]


@pytest.mark.parametrize("body,in_turns", [("math.exp", True), ("arith.divf", False), ("arith.addf", False)])
def test_functions_of_several_vectors_take_turns(body, in_turns):
    t = "tensor<300x700xf32>"
    s = strategy(kernel([("%x", t)], generic("%r", [("%x", t)], t, body=body if body == "math.exp" else f"%o = {body} %a0, %a0 : f32"), [("%r", t)], [[700, 1]]))
    assert isinstance(s, LoopStrategy) and s.in_turns == in_turns


def test_rows_that_read_nothing_of_their_own_have_room_on_the_stack():
    """Each element is a number of all rows times one of the row's, and kept."""
    n, m = 256, 16384
    t, row = f"tensor<{n}x{m}xf32>", f"tensor<{n}xf32>"
    body = generic("%e", [("%x", f"tensor<{m}xf32>"), ("%y", row)], t, ["j", "i", "i, j"], "%p = arith.mulf %a0, %a1 : f32\n%o = math.exp %p : f32")
    body += generic("%n", [("%e", t)], row, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
    body += generic("%r", [("%e", t), ("%n", row)], t, ["i, j", "i", "i, j"], "arith.divf")
    s = strategy(kernel([("%x", f"tensor<{m}xf32>"), ("%y", row)], body, [("%r", t)], [[m, 1]]), "znver5")
    assert isinstance(s, LoopStrategy) and any(s.keep) and s.rows == 1


def test_copies_are_shared_by_threads():
    """Moving an element is an op, also where columns are put side by side."""
    x, out = "tensor<1000000x1xf32>", "tensor<1000000x2xf32>"
    body = f"%r = tensor.concat dim(1) %x, %y : ({x}, {x}) -> {out}\n"
    s = strategy(kernel([("%x", x), ("%y", x)], body, [("%r", out)], [[2, 1]]))
    assert s.interleaved is not None and not s.parallel and s.grain < 50


def test_transposed_copies_are_shared_by_threads():
    """What a thread has to do for one of the heads is all of its rows."""
    x, t = "tensor<12x128x64xf32>", "tensor<12x64x128xf32>"
    body = generic("%r", [("%x", x)], t, ["i, j, k", "i, k, j"], "%o = arith.negf %a0 : f32", "ppp", "ijk")
    s = strategy(kernel([("%x", x)], body, [("%r", t)], [[64 * 128, 128, 1]]))
    assert s.transposed is not None and s.parallel and s.grain <= 2


@pytest.mark.parametrize("cols, body, stored, kept", [
    (640, "math.exp", "%r", True),
    (40000, "math.exp", "%r", False),  # longer than what stays in the first levels of the cache
    (640, "%o = arith.addf %a0, %a0 : f32", "%r", False),
    (640, "math.exp", "%e", False),  # stored anyway, and read back from there
])  # fmt: skip
def test_dear_values_of_a_row_are_kept_for_the_next_walk(cols, body, stored, kept):
    t, row = f"tensor<8x{cols}xf32>", "tensor<8xf32>"
    ops = generic("%e", [("%x", t)], t, body=body) + generic("%s", [("%e", t)], row, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
    ops += generic("%r", [("%e", t), ("%s", row)], t, ["i, j", "i", "i, j"], "arith.mulf")
    results = list(dict.fromkeys([stored, "%r"]))
    text = kernel([("%x", t)], ops, [(r, t) for r in results], [[cols, 1]] * len(results))
    s = strategy(text)
    assert isinstance(s, LoopStrategy)
    numbers = [n for phase in s.keep for n in phase]
    assert bool(numbers) == kept and ("keep" in s.why) == kept
    if kept:
        assert len(s.keep) == 2 and not s.keep[1], "computed by the sum, found by what is stored"
        assert "keep = [[" in stages(text)["strategy"]


@pytest.mark.parametrize("ops, kept", [("%o = arith.subf %u, %a1 : f32", False), ("%m = arith.subf %u, %a1 : f32\n%o = arith.mulf %m, %a1 : f32", True)])
def test_widening_does_not_make_a_value_dear(ops, kept):
    """A layer norm of bf16 subtracts the mean again: to store what is left and read it takes longer."""
    x, t, row = "tensor<8x640xbf16>", "tensor<8x640xf32>", "tensor<8xf32>"
    body = generic("%e", [("%x", x), ("%b", row)], t, ["i, j", "i", "i, j"], f"%u = arith.extf %a0 : bf16 to f32\n{ops}")
    body += generic("%s", [("%e", t)], row, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
    body += generic("%r", [("%e", t), ("%s", row)], t, ["i, j", "i", "i, j"], "arith.mulf")
    s = strategy(kernel([("%x", x), ("%b", row)], body, [("%r", t)], [[640, 1]]))
    assert isinstance(s, LoopStrategy) and any(s.keep) == kept


def test_tiles_fit_the_registers():
    for target, registers in (("x86-64-v3", 16), ("x86-64-v4", 32)):
        for m, k, n in ((1, 64, 64), (7, 64, 64), (512, 512, 512), (14, 64, 16), (33, 5, 1000)):
            s = strategy(product(m, k, n), target)
            assert isinstance(s, ContractionStrategy)
            assert s.rows * s.columns + s.columns < registers
            assert s.rows <= max(m, 1)


@pytest.mark.parametrize("rows, columns, tile", [
    (128, 768, (4, 3)), (128, 64, (4, 3)), (128, 48, (4, 3)), (33, 768, (3, 3)), (128, 32, (6, 2)), (60, 56, (6, 2)), (25, 32, (5, 2)), (14, 16, (5, 2)),
])  # fmt: skip
def test_tiles_of_sixteen_registers_have_more_sums_than_are_under_way(rows, columns, tile):
    """Eight are too few: another thread on the core delays them. Three columns where the last block is whole, or does not count."""
    s = strategy(product(rows, 64, columns), "x86-64-v3")
    assert isinstance(s, ContractionStrategy) and (s.rows, s.columns) == tile


def test_siblings_have_no_more_columns_than_a_packed_block():
    x, w, y = "tensor<33x64xf32>", "tensor<4x64x16xf32>", "tensor<33x64xf32>"
    maps = ["i, k", "j floordiv 16, k, j mod 16", "i, j"]
    body = "%product = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %product : f32"
    ops = "".join(generic(f"%y{n}", [("%x", x), (f"%w{n}", w)], y, maps, body, "ppr", "ijk", "0.0", "contraction", "mlirc.siblings") for n in (0, 1))
    s = strategy(kernel([("%x", x), ("%w0", w), ("%w1", w)], ops, [("%y0", y), ("%y1", y)], [[64, 1]] * 2), "x86-64-v3")
    assert isinstance(s, ContractionStrategy) and s.columns == 2


@pytest.mark.parametrize("siblings, columns, ahead", [(1, 1024, True), (2, 1024, False), (1, 256, False)], ids=["one", "siblings", "panels in cache"])
def test_results_are_fetched_where_stores_would_wait(siblings, columns, ahead):
    """Not by siblings, which take turns in storing, and not where rows are stored from end to end."""
    x, w, y = "tensor<128x768xf32>", f"tensor<{columns // 32}x768x32xf32>", f"tensor<128x{columns}xf32>"
    maps = ["i, k", "j floordiv 32, k, j mod 32", "i, j"]
    body = "%product = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %product : f32"
    marks = ["mlirc.siblings"] * (siblings > 1)
    ops = "".join(generic(f"%y{n}", [("%x", x), (f"%w{n}", w)], y, maps, body, "ppr", "ijk", "0.0", "contraction", *marks) for n in range(siblings))
    weights = [(f"%w{n}", w) for n in range(siblings)]
    s = strategy(kernel([("%x", x), *weights], ops, [(f"%y{n}", y) for n in range(siblings)], [[columns, 1]] * siblings), "sapphirerapids")
    assert isinstance(s, ContractionStrategy) and s.results_ahead == ahead and ("results_ahead" in s.why) == ahead


def convolution(size: int, inputs: int, outputs: int) -> str:
    """3x3 on a padded image [size + 2][size + 2][inputs], weights in panels of 32."""
    x, w, y = f"tensor<{size + 2}x{size + 2}x{inputs}xf32>", f"tensor<{outputs // 32}x3x3x{inputs}x32xf32>", f"tensor<{size}x{size}x{outputs}xf32>"
    maps = ["i + l, j + m, n", "k floordiv 32, l, m, n, k mod 32", "i, j, k"]
    body = "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"
    op = generic("%y", [("%x", x), ("%w", w)], y, maps, body, "ppprrr", "ijklmn", "0.0", "convolution")
    return kernel([("%x", x), ("%w", w)], op, [("%y", y)], [[size * outputs, outputs, 1]])


@pytest.mark.parametrize("size, channels, first", [(7, 512, True), (14, 256, True), (56, 64, False), (256, 32, False)])
def test_panels_that_do_not_stay_in_the_cache_serve_the_whole_image(size, channels, first):
    s = strategy(convolution(size, channels, channels))
    assert isinstance(s, ContractionStrategy) and s.lanes_first == first


def grouped(size: int, channels: int, groups: int = 32) -> str:
    """3x3 on a padded image [size + 2][size + 2][groups][channels], to as many."""
    x, w = f"tensor<{size + 2}x{size + 2}x{groups}x{channels}xf32>", f"tensor<{groups}x{-(-channels // 32)}x3x3x{channels}x32xf32>"
    y, maps = f"tensor<{size}x{size}x{groups}x{channels}xf32>", ["i + l, j + m, g, n", "g, k floordiv 32, l, m, n, k mod 32", "i, j, g, k"]
    body = "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"
    op = generic("%y", [("%x", x), ("%w", w)], y, maps, body, "pppprrr", "ijgklmn", "0.0", "convolution")
    return kernel([("%x", x), ("%w", w)], op, [("%y", y)], [[size * groups * channels, groups * channels, channels, 1]])


@pytest.mark.parametrize("size, channels, first", [(14, 64, True), (7, 128, True), (28, 8, False), (112, 4, False)])
def test_groups_whose_panels_do_not_stay_in_the_cache_are_outermost(size, channels, first):
    s = strategy(grouped(size, channels))
    assert isinstance(s, ContractionStrategy) and s.groups_first == first
    whole = strategy(convolution(size, 32 * channels, 32 * channels))
    assert isinstance(whole, ContractionStrategy) and not whole.groups_first


@pytest.mark.parametrize("target, outputs, width, columns", [
    ("x86-64-v4", 3, 64, 4),
    ("x86-64-v4", 3, 40, 3),
    ("x86-64-v4", 1, 16, 1),
    ("x86-64-v4", 5, 64, 2),
    ("x86-64-v3", 4, 64, 3),
])  # fmt: skip
def test_few_output_channels_have_several_vectors_of_the_image_each(target, outputs, width, columns):
    """3x3 on planes [8][34][width + 2]: with two vectors each, their sums would wait for one another."""
    x, w, y = f"tensor<8x34x{width + 2}xf32>", f"tensor<{outputs}x8x3x3xf32>", f"tensor<{outputs}x32x{width}xf32>"
    body = "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"
    op = generic("%y", [("%x", x), ("%w", w)], y, ["c, i + l, j + m", "o, c, l, m", "o, i, j"], body, "ppprrr", "oijclm", "0.0", "convolution")
    s = strategy(kernel([("%x", x), ("%w", w)], op, [("%y", y)], [[32 * width, width, 1]]), target)
    assert isinstance(s, ContractionStrategy)
    assert (s.rows, s.columns) == (outputs, columns)


def test_it_is_written_on_the_kernel():
    filecheck(stages(elementwise(30, 70))["strategy"], 'CHECK: func.func @kernel\nCHECK-SAME: mlirc.strategy = "{{.*}}lanes=16{{.*}}kind=loops')
    filecheck(stages(product(30, 40, 70))["strategy"], "CHECK: mlirc.strategy = {{.*}}rows={{[0-9]+}}{{.*}}kind=contraction")


@pytest.mark.parametrize("rows, k, ops, looped", [(64, 768, 4, True), (64, 40, 4, False), (64, 40, 13, True), (64, 768, 1, False), (1, 768, 4, False)])
def test_epilogues_behind_long_sums_are_loops(rows: int, k: int, ops: int, looped: bool) -> None:
    """The loop takes a third less to compile, and the sums hide that they go through memory."""
    t = f"tensor<{rows}x64xf32>"
    chain = "\n".join(f"%v{i} = arith.addf {f'%v{i - 1}' if i else '%a0'}, %a0 : f32" for i in range(ops))
    body = matmul("%p", "%x", "%w", rows, k, 64) + generic("%r", [("%p", t)], t, body=f"{chain}\n%o = arith.negf %v{ops - 1} : f32")
    s = strategy(kernel([("%x", f"tensor<{rows}x{k}xf32>"), ("%w", f"tensor<{k}x64xf32>")], body, [("%r", t)], [[64, 1]]))
    assert isinstance(s, ContractionStrategy) and s.looped_epilogue == looped, s.why["looped_epilogue"]


def test_llvm_searches_for_addresses_where_no_sum_hides_them():
    assert strategy(elementwise(30, 70)).strength_reduction and not strategy(row_sums(30, 70)).strength_reduction
