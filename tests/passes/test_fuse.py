"""Which ops become one kernel."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from mlirc.dialects.mlir import ir
from mlirc.passes import structure as st
from mlirc.passes.fuse import fuse
from mlirc.passes.layouts import Layouts
from mlirc.tests.frontend.compare import compare, kernels
from mlirc.tests.passes.graph_text import check, function, generic, matmul, transformed

T, ROW, COLUMN = "tensor<4x8xf32>", "tensor<4xf32>", "tensor<8xf32>"
SUM = dict(maps=["i, j", "i"], body="arith.addf", iterators="pr", loops="ij", init="0.0")


def run(main):
    fuse(main, Layouts(main).shapes)


def groups(text: str) -> dict[str, int]:
    """Group of each generic by the names of the ops in its body, and of each op without one by its own."""
    found: dict[str, int] = {}

    def look(main):
        run(main)
        for o in main.regions[0].blocks[0].operations:
            op = st.operation(o)
            if "mlirc.group" in op.attributes:
                names = [i.name for i in st.body_ops(op)] if len(op.regions) else [op.name]
                found["+".join(n for n in names if n != "linalg.yield") or "copy"] = ir.IntegerAttr(op.attributes["mlirc.group"]).value

    transformed(text, look)
    return found


def together(text: str) -> bool:
    return len(set(groups(text).values())) == 1


def test_softmax_is_one_kernel():
    body = generic("%m", [("%x", T)], ROW, ["i, j", "i"], "arith.maximumf", "pr", "ij", "0xFF800000")
    body += generic("%e", [("%x", T), ("%m", ROW)], T, ["i, j", "i", "i, j"], "%s = arith.subf %a0, %a1 : f32\n%o = math.exp %s : f32")
    body += generic("%n", [("%e", T)], ROW, **SUM)
    body += generic("%r", [("%e", T), ("%n", ROW)], T, ["i, j", "i", "i, j"], "arith.divf")
    assert together(function([("%x", T)], body, [("%r", T)]))


def test_reductions_over_different_dims_are_two():
    body = generic("%a", [("%x", T)], ROW, **SUM)
    body += generic("%b", [("%x", T), ("%a", ROW)], T, ["i, j", "i", "i, j"], "arith.subf")
    body += generic("%c", [("%b", T)], COLUMN, ["i, j", "j"], "arith.maximumf", "rp", "ij", "0.0")
    found = groups(function([("%x", T)], body, [("%c", COLUMN)]))
    assert found["arith.addf"] == found["arith.subf"] != found["arith.maximumf"]


def test_the_epilogue_of_a_contraction():
    types = [("%x", T), ("%w", "tensor<8x16xf32>"), ("%b", "tensor<16xf32>")]
    wide = "tensor<4x16xf32>"
    body = generic("%p", [("%x", T)], T, body="math.sin") + matmul("%m", "%p", "%w", 4, 8, 16)
    body += generic("%a", [("%m", wide), ("%b", "tensor<16xf32>")], wide, ["i, j", "j", "i, j"], "arith.addf")
    body += generic("%g", [("%a", wide)], wide, body="math.tanh")
    found = groups(function(types, body, [("%g", wide)]))
    assert found["arith.mulf+arith.addf"] == found["arith.addf"] == found["math.tanh"] != found["math.sin"]
    body += generic("%n", [("%g", wide)], ROW, ["i, j", "i"], "arith.maximumf", "pr", "ij", "0.0")
    found = groups(function(types, body, [("%n", ROW)]))
    assert found["math.tanh"] != found["arith.maximumf"]


def test_the_reason_is_written_down():
    wide = "tensor<4x16xf32>"
    body = generic("%p", [("%x", T)], T) + matmul("%m", "%p", "%w", 4, 8, 16)
    check(
        function([("%x", T), ("%w", "tensor<8x16xf32>")], body, [("%m", wide)]),
        run,
        'CHECK: math.exp\nCHECK: mlirc.kind = "contraction"\nCHECK-SAME: mlirc.unfused = "operands of a contraction are stored"',
    )


def test_around_a_call():
    """exp -> call -> add(exp): the sum cannot be in the kernel of the exponential."""
    body = generic("%e", [("%x", T)], T) + f"%c = func.call @aten_0(%e) : ({T}) -> {T}\n" + generic("%r", [("%e", T), ("%c", T)], T, body="arith.addf")
    found = groups(f"func.func private @aten_0({T}) -> {T}\n" + function([("%x", T)], body, [("%r", T)]))
    assert found["math.exp"] != found["arith.addf"]


def test_around_two_calls():
    """Groups that are joined by a third op must not depend on each other through a call, in either direction."""
    call = f"(%{{}}) : ({T}) -> {T}\n"
    body = generic("%a", [("%x", T)], T) + f"%b = func.call @aten_0{call.format('a')}" + generic("%c", [("%b", T)], T, body="math.sin")
    body += generic("%d", [("%a", T)], T, body="math.cos") + generic("%e", [("%c", T), ("%d", T)], T, body="arith.addf")
    found = groups(f"func.func private @aten_0({T}) -> {T}\n" + function([("%x", T)], body, [("%e", T)]))
    before = {found["math.exp"]}
    assert found["math.sin"] not in before
    assert not (found["arith.addf"] == found["math.sin"] == found["math.exp"])


def test_around_another_kernel():
    """exp -> column sums -> sub(exp, sums): the sums are a kernel of their own, and the difference comes after it."""
    body = generic("%e", [("%x", T)], T)
    body += generic("%a", [("%e", T)], ROW, **SUM)
    body += generic("%c", [("%e", T)], COLUMN, ["i, j", "j"], "arith.maximumf", "rp", "ij", "0.0")
    body += generic("%r", [("%e", T), ("%c", COLUMN), ("%a", ROW)], T, ["i, j", "j", "i", "i, j"], "%s = arith.subf %a0, %a1 : f32\n%o = arith.mulf %s, %a2 : f32")
    text = function([("%x", T)], body, [("%r", T)])
    assert len(set(groups(text).values())) > 1


def test_writes_are_alone():
    body = generic("%a", [("%x", T)], T) + generic("%w", [("%a", T)], T, body="math.absf", attributes="mlirc.write = 0 : i32")
    found = groups(function([("%x", T)], body, [("%w", T)]))
    assert found["math.exp"] != found["math.absf"]


def test_constants_and_broadcasts_are_copied_to_each_user():
    splat = generic("%k", [], T, body="%o = arith.constant 3.0 : f32")
    body = splat + generic("%a", [("%x", T), ("%k", T)], T, body="arith.addf") + matmul("%m", "%a", "%w", 4, 8, 8)
    body += generic("%b", [("%m", "tensor<4x8xf32>"), ("%k", T)], T, body="arith.mulf")
    text = transformed(function([("%x", T), ("%w", "tensor<8x8xf32>")], body, [("%b", T)]), run)
    assert len(re.findall(r"3\.0.*f32", text)) == 2


def pad(result: str, value: str, before: str, after: str, low: int, high: int) -> str:
    """Zeros around the first dim of two."""
    zero = f"{result}_zero"
    return f"{zero} = arith.constant 0.0 : f32\n{result} = tensor.pad {value} low[{low}, 0] high[{high}, 0] {{\n^bb0(%i: index, %j: index):\ntensor.yield {zero} : f32\n}} : {before} to {after}\n"


PADDED = "tensor<6x8xf32>"


def test_padding_and_concatenation_take_their_producers():
    body = generic("%a", [("%x", T)], T) + pad("%p", "%a", T, PADDED, 1, 1) + generic("%b", [("%p", PADDED)], PADDED, body="math.sin")
    assert together(function([("%x", T)], body, [("%b", PADDED)]))
    body = generic("%a", [("%x", T)], T) + generic("%b", [("%x", T)], T, body="math.sin")
    body += f"%c = tensor.concat dim(0) %a, %b : ({T}, {T}) -> tensor<8x8xf32>\n"
    check(
        function([("%x", T)], body, [("%c", "tensor<8x8xf32>")]),
        run,
        "CHECK: mlirc.group = [[G:.*]] : i32\nCHECK: math.exp\nCHECK: mlirc.group = [[G]] : i32\nCHECK: math.sin\nCHECK: tensor.concat {{.*}} {mlirc.group = [[G]] : i32}",
    )


@pytest.mark.parametrize(
    "first,second,one",
    [("arith.negf", "math.sqrt", True), ("arith.negf", "math.exp", False), ("math.exp", "arith.negf", False)],
)
@pytest.mark.parametrize("high", [1, 35])
def test_no_function_is_computed_for_much_padding(first, second, one, high):
    """Ten times as many elements, with padding: what they are made of is computed for each, through all elementwise ops."""
    padded = f"tensor<{5 + high}x8xf32>"
    body = generic("%a", [("%x", T)], T, body=first) + generic("%b", [("%a", T)], T, body=second) + pad("%p", "%b", T, padded, 1, high)
    text = function([("%x", T)], body + generic("%c", [("%p", padded)], padded, body="math.absf"), [("%c", padded)])
    assert together(text) == (one or high == 1)


@pytest.mark.parametrize("copies,place,one", [(5, "middle", False), (3, "middle", True), (5, "innermost", True)])
def test_padding_is_not_looked_for_in_every_copy(copies, place, one):
    copied, read = (f"tensor<6x{copies}x8xf32>", "a, c") if place == "middle" else (f"tensor<6x8x{copies}xf32>", "a, b")
    body = pad("%p", "%x", T, PADDED, 1, 1) + generic("%a", [("%p", PADDED)], PADDED, body="math.absf")
    body += generic("%b", [("%a", PADDED)], copied, [read, "a, b, c"], "arith.negf", loops="abc")
    assert together(function([("%x", T)], body, [("%b", copied)])) == one


def test_a_sum_of_what_is_padded_is_computed_once_for_all_that_read_it():
    body = pad("%p", "%x", T, PADDED, 1, 1) + generic("%a", [("%p", PADDED)], PADDED, body="math.absf")
    body += generic("%s", [("%a", PADDED)], "tensor<6xf32>", **SUM)
    body += generic("%b", [("%a", PADDED), ("%s", "tensor<6xf32>")], PADDED, ["i, j", "i", "i, j"], "arith.divf")
    assert together(function([("%x", T)], body, [("%b", PADDED)]))


def test_windows_that_overlap_are_read_from_memory():
    windows = generic("%b", [("%a", T)], "tensor<4x6x3xf32>", ["i, j + k", "i, j, k"], "math.sin", loops="ijk")
    text = generic("%a", [("%x", T)], T) + windows + generic("%c", [("%b", "tensor<4x6x3xf32>")], "tensor<4x6x3xf32>", body="math.absf")
    found = groups(function([("%x", T)], text, [("%c", "tensor<4x6x3xf32>")]))
    assert found["math.exp"] != found["math.sin"] == found["math.absf"]


def test_another_reader_does_not_bring_windows_and_producer_together():
    """exp(x) is read by windows, and in their centre by an op of their kernel."""
    small = "tensor<4x6xf32>"
    text = generic("%a", [("%x", T)], T)
    text += generic("%b", [("%a", T), ("%w", "tensor<3xf32>")], small, ["i, j + k", "k", "i, j"], "%p = arith.addf %a0, %a1 : f32\n%o = arith.maximumf %p, %a2 : f32", "ppr", "ijk", "0.0")
    text += f"%s = tensor.extract_slice %a[0, 1] [4, 6] [1, 1] : {T} to {small}\n"
    text += generic("%c", [("%b", small), ("%s", small)], small, body="arith.mulf")
    found = groups(function([("%x", T), ("%w", "tensor<3xf32>")], text, [("%c", small)]))
    assert found["math.exp"] != found["arith.addf+arith.maximumf"] == found["arith.mulf"]


def norm(rows: int) -> str:
    """rsqrt(v) * v, which is the same for all rows, and added to each."""
    t = f"tensor<{rows}x8xf32>"
    body = generic("%s", [("%v", COLUMN)], COLUMN, body="math.rsqrt") + generic("%f", [("%s", COLUMN), ("%v", COLUMN)], COLUMN, body="arith.mulf")
    body += generic("%a", [("%x", t), ("%f", COLUMN)], t, ["i, j", "j", "i, j"], "arith.addf")
    return function([("%x", t), ("%v", COLUMN)], body, [("%a", t)])


@pytest.mark.parametrize("weights", [[1], []], ids=["weight", "input"])
def test_what_depends_on_weights_alone_is_apart(weights):
    found = groups(norm(3).replace("{", f"attributes {{mlirc.weights = array<i64{':' * bool(weights)} {', '.join(map(str, weights))}>}} {{", 1))
    assert found["math.rsqrt"] == found["arith.mulf"]
    assert (found["arith.mulf"] != found["arith.addf"]) == bool(weights)


@pytest.mark.parametrize("rows,apart", [(3, False), (4, True)])
def test_functions_are_not_computed_for_many_rows(rows, apart):
    found = groups(norm(rows))
    assert found["math.rsqrt"] == found["arith.mulf"]
    assert (found["arith.mulf"] != found["arith.addf"]) == apart


def test_cheap_functions_of_weights_stay_with_their_reader():
    body = generic("%s", [("%v", COLUMN)], COLUMN, body="arith.negf") + generic("%a", [("%x", T), ("%s", COLUMN)], T, ["i, j", "j", "i, j"], "arith.addf")
    text = function([("%x", T), ("%v", COLUMN)], body, [("%a", T)])
    assert together(text.replace("{", "attributes {mlirc.weights = array<i64: 1>} {", 1))


def steps(n: int) -> str:
    """Steps of a diffusion in one dim: each element becomes the sum of its neighbours, of which there are four."""
    small, large = "tensor<100xf32>", "tensor<104xf32>"
    body, x = "%zero = arith.constant 0.0 : f32\n", "%x"
    for k in range(n):
        body += f"%p{k} = tensor.pad {x} low[2] high[2] {{\n^bb0(%i{k}: index):\ntensor.yield %zero : f32\n}} : {small} to {large}\n"
        for at in (0, 1, 3, 4):
            body += f"%s{k}{at} = tensor.extract_slice %p{k}[{at}] [100] [1] : {large} to {small}\n"
        lines = "%b = arith.addf %a0, %a1 : f32\n%c = arith.addf %b, %a2 : f32\n%o = arith.addf %c, %a3 : f32"
        body += generic(f"%y{k}", [(f"%s{k}{at}", small) for at in (0, 1, 3, 4)], small, body=lines)
        x = f"%y{k}"
    return function([("%x", small)], body, [(x, small)])


@pytest.mark.parametrize(("n", "kernels"), [(3, 1), (4, 2), (6, 2), (8, 3)])
def test_long_chains_of_steps_are_cut(n, kernels):
    """Three steps read what the first has padded at 64 places. Each place is code of its own, and six steps took minutes to compile."""
    text = transformed(steps(n), run)
    assert len(set(re.findall(r"mlirc.group = (\d+)", text))) == kernels
    assert ("computed at too many places" in text) == (kernels > 1)


def halves(n: int) -> str:
    """The sum of 2^n elements in n steps, each of which adds those at even places to those at odd ones."""
    body, x = "", "%x"
    for k in reversed(range(n)):
        large, small = f"tensor<{2 << k}xf32>", f"tensor<{1 << k}xf32>"
        for at in (0, 1):
            body += f"%s{k}{at} = tensor.extract_slice {x}[{at}] [{1 << k}] [2] : {large} to {small}\n"
        body += generic(f"%y{k}", [(f"%s{k}0", small), (f"%s{k}1", small)], small, body="arith.addf")
        x = f"%y{k}"
    return function([("%x", f"tensor<{1 << n}xf32>")], body, [(x, "tensor<1xf32>")])


@pytest.mark.parametrize(("n", "kernels"), [(8, 1), (16, 2), (20, 3)])
def test_sums_by_halves_are_cut(n, kernels):
    """Every place is another one: a million elements were code of a million additions."""
    assert len(set(re.findall(r"mlirc.group = (\d+)", transformed(halves(n), run)))) == kernels


def crosses(n: int) -> str:
    """Steps that read their neighbours inside of what is left: many ways lead to one place."""
    size, body, x = 200, "", "%x"
    for k in range(n):
        large, small = f"tensor<{size}x{size}xf32>", f"tensor<{size - 2}x{size - 2}xf32>"
        for n_at, (i, j) in enumerate([(0, 1), (2, 1), (1, 0), (1, 2)]):
            body += f"%s{k}{n_at} = tensor.extract_slice {x}[{i}, {j}] [{size - 2}, {size - 2}] [1, 1] : {large} to {small}\n"
        lines = "%b = arith.addf %a0, %a1 : f32\n%c = arith.addf %b, %a2 : f32\n%o = arith.addf %c, %a3 : f32"
        body += generic(f"%y{k}", [(f"%s{k}{at}", small) for at in range(4)], small, body=lines)
        x, size = f"%y{k}", size - 2
    return function([("%x", "tensor<200x200xf32>")], body, [(x, f"tensor<{size}x{size}xf32>")])


def test_places_that_many_ways_lead_to_count_once():
    assert together(crosses(8))


def test_steps_of_a_diffusion():
    def diffused(x):
        for _ in range(4):
            p = F.pad(x, (1, 1, 1, 1))
            x = (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]) / 4
        return x

    compare(diffused, torch.randn(19, 37), dynamic=True)


@pytest.mark.parametrize("steps,fused", [(3, True), (40, False)])
def test_places_that_are_long_to_compute_are_not_computed_update_by_update(steps, fused):
    """A binary search, say: its lanes are updates, those of the scatter are elements of one."""
    places, updates, out = "tensor<90xi64>", "tensor<90x8xf32>", "tensor<5x8xf32>"
    body = generic("%p", [("%i", places)], places, ["i", "i"], "%s0 = arith.addi %a0, %a0 : i64\n" + "".join(f"%s{n + 1} = arith.muli %s{n}, %a0 : i64\n" for n in range(steps)) + f"%o = arith.addi %s{steps}, %a0 : i64", "p", "i")
    body += generic("%u", [("%x", updates)], updates, body="math.exp")
    body += (
        '%r = "mlirc.scatter"(%y, %u, %p) {combine = "arith.addf", index_map = affine_map<(d0, d1) -> (d0)>, target = array<i64: -1, 1>, '
        f"operandSegmentSizes = array<i32: 1, 1, 1>}} : ({out}, {updates}, {places}) -> {out}\n"
    )
    found = groups(function([("%i", places), ("%x", updates), ("%y", out)], body, [("%r", out)]))
    of_places = next(group for name, group in found.items() if "arith.muli" in name)
    assert found["math.exp"] == found["mlirc.scatter"] and (of_places == found["mlirc.scatter"]) == fused


@pytest.mark.parametrize("n", [256, 5000])
def test_copies_in_another_order_do_not_join_a_reduction(n):
    """A batch norm of what is channels-last, stored once more in planes."""
    x, planes, row = f"tensor<{n}x64xf32>", f"tensor<64x{n}xf32>", "tensor<64xf32>"
    body = generic("%s", [("%x", x)], row, ["i, j", "j"], "arith.addf", "rp", "ij", "0.0")
    body += generic("%y", [("%x", x), ("%s", row)], x, ["i, j", "j", "i, j"], "arith.subf")
    body += f"%e = tensor.empty() : {planes}\n%t = linalg.transpose ins(%y : {x}) outs(%e : {planes}) permutation = [1, 0]\n"
    body += generic("%c", [("%t", planes)], planes, body="\n").replace("yield %o", "yield %a0")
    found = groups(function([("%x", x)], body, [("%y", x), ("%c", planes)]))
    assert found["arith.addf"] == found["arith.subf"] != found["copy"]


@pytest.mark.parametrize("returned, size, fused", [(True, 90, False), (False, 90, True), (True, 9, True)])
def test_what_is_stored_in_rows_is_transposed_from_there(returned, size, fused):
    """If it is long: beside vectors of rows, its columns would be stored element by element."""
    x, turned = f"tensor<{size}x80xf32>", f"tensor<80x{size}xf32>"
    body = generic("%y", [("%x", x)], x, body="math.exp")
    body += f"%e = tensor.empty() : {turned}\n%t = linalg.transpose ins(%y : {x}) outs(%e : {turned}) permutation = [1, 0]\n"
    body += generic("%c", [("%t", turned)], turned, body="\n").replace("yield %o", "yield %a0")
    results = [("%y", x), ("%c", turned)] if returned else [("%c", turned)]
    found = groups(function([("%x", x)], body, results))
    assert (found["copy"] == found["math.exp"]) == fused


def test_rows_for_a_product_are_transposed_from_where_they_are_stored():
    """The same by an indexing map, as those of a weight's gradient."""
    x, turned = "tensor<90x80xf32>", "tensor<80x90xf32>"
    body = generic("%y", [("%x", x)], x, body="math.exp")
    body += generic("%c", [("%y", x)], turned, ["j, i", "i, j"], body="\n").replace("yield %o", "yield %a0")
    found = groups(function([("%x", x)], body, [("%y", x), ("%c", turned)]))
    assert found["copy"] != found["math.exp"]


@pytest.mark.parametrize("returned", [True, False], ids=["both orders", "across only"])
@pytest.mark.parametrize("across", [True, False], ids=["columns of x", "rows of x"])
def test_what_comes_of_a_reduction_is_transposed_from_where_it_is_stored(returned, across):
    """Element by element, it would be stored across the rows; columns of x that are normalized and stored as they lie in x are in order."""
    x, y, turned, row = ("tensor<90x80xf32>", "tensor<80x90xf32>", "tensor<90x80xf32>", "tensor<80xf32>") if across else ("tensor<80x90xf32>", "tensor<80x90xf32>", "tensor<90x80xf32>", "tensor<80xf32>")
    read = "j, i" if across else "i, j"
    body = generic("%s", [("%x", x)], row, [read, "i"], "arith.addf", "pr", "ij", "0.0")
    body += generic("%y", [("%x", x), ("%s", row)], y, [read, "i", "i, j"], "arith.divf")
    body += generic("%c", [("%y", y)], turned, ["j, i", "i, j"], body="\n").replace("yield %o", "yield %a0")
    found = groups(function([("%x", x)], body, [("%y", y), ("%c", turned)] if returned else [("%c", turned)]))
    assert found["arith.divf"] == found["arith.addf"]
    assert (found["copy"] == found["arith.divf"]) == (across and not returned)


def test_what_is_stored_in_rows_is_transposed_from_there_for_any_size():
    x, turned = "tensor<?x?xf32>", "tensor<?x?xf32>"
    body = generic("%y", [("%x", x)], x, body="math.exp").replace("tensor.empty() :", "tensor.empty(%m, %n) :")
    body += generic("%c", [("%y", x)], turned, ["j, i", "i, j"], body="\n").replace("yield %o", "yield %a0").replace("tensor.empty() :", "tensor.empty(%n, %m) :")
    found = groups(function([("%m", "index"), ("%n", "index"), ("%x", x)], body, [("%y", x), ("%c", turned)]))
    assert found["copy"] != found["math.exp"]


def convolved(amount: int, reader: str) -> str:
    """A product that is padded; by what it is read then."""
    wide = f"tensor<{4 + 2 * amount}x8xf32>"
    body = matmul("%y", "%x", "%w", 4, 8, 8) + pad("%p", "%y", T, wide, amount, amount)
    if reader == "convolution":
        out = f"tensor<{2 + 2 * amount}x8xf32>"
        product = "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"
        body += generic("%r", [("%p", wide), ("%v", "tensor<3x8x8xf32>")], out, ["i + k, l", "k, l, j", "i, j"], product, "pprr", "ijkl", "0.0", "convolution")
    else:
        out = wide
        body += generic("%r", [("%p", wide)], wide, body="math.absf")
    return function([("%x", "tensor<4x8xf32>"), ("%w", "tensor<8x8xf32>"), ("%v", "tensor<3x8x8xf32>")], body, [("%r", out)])


@pytest.mark.parametrize(("amount", "reader", "padded"), [(1, "convolution", True), (2, "convolution", True), (3, "convolution", False), (1, "other", False)])
def test_a_product_is_stored_inside_of_the_padding_of_a_convolution(amount, reader, padded):
    numbers: dict[str, int] = {}

    def look(main):
        run(main)
        for o in main.regions[0].blocks[0].operations:
            op = st.operation(o)
            if "mlirc.group" in op.attributes:
                numbers[st.kind(op)] = ir.IntegerAttr(op.attributes["mlirc.group"]).value

    transformed(convolved(amount, reader), look)
    assert (numbers["pad"] == numbers["contraction"]) == padded


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("windows, fused", [(2, True), (64, False)])
def test_places_of_a_table_are_looked_up_once_for_all_rows(heads, windows, fused):
    """Relative positions, next to one another in a row of scores but not in the table: a load each."""
    at = torch.randint(0, 9, (33 * 7,))

    def biased(x, table):
        return x + table[at].view(33, 7, heads).permute(2, 0, 1)[None]

    compare(biased, torch.randn(windows, heads, 33, 7), torch.randn(9, heads))
    assert (len(kernels()) == 1) == fused


def test_rows_of_a_table_are_read_where_they_are():
    compare(lambda x, table, at: x + table[at], torch.randn(16, 40, 65), torch.randn(50, 65), torch.randint(0, 50, (40,)))
    assert len(kernels()) == 1


@pytest.mark.parametrize("shape", [(8, 4, 130), (4160,), (2, 4, 10, 52)], ids=str)
def test_copies_behind_reductions_of_reshaped_columns(shape):
    """Transposed views with more dims, or fewer, than what they show."""

    def f(x):
        y = x.t().reshape(shape).softmax(-1)
        return y.transpose(-1, 0).contiguous(), y.sum(-1)

    compare(f, torch.randn(520, 8))


def test_one_place_for_a_row_is_looked_up_in_the_kernel():
    """Of all lanes alike, a lookup is a load of one number."""
    compare(lambda x, table, at: x + table[at][:, None], torch.randn(16, 40, 65), torch.randn(50), torch.randint(0, 50, (40,)))
    assert len(kernels()) == 1


def test_views_of_more_dims_than_what_they_show_have_an_order_too():
    x, turned, split, row, copy = "tensor<520x8xf32>", "tensor<8x520xf32>", "tensor<8x4x130xf32>", "tensor<8x4xf32>", "tensor<130x4x8xf32>"
    body = f"%n = tensor.empty() : {turned}\n%t = linalg.transpose ins(%x : {x}) outs(%n : {turned}) permutation = [1, 0]\n"
    body += f"%v = tensor.expand_shape %t [[0], [1, 2]] output_shape [8, 4, 130] : {turned} into {split}\n"
    body += generic("%s", [("%v", split)], row, ["i, j, k", "i, j"], "arith.addf", "ppr", "ijk", "0.0")
    body += generic("%y", [("%v", split), ("%s", row)], split, ["i, j, k", "i, j", "i, j, k"], "arith.divf")
    body += generic("%c", [("%y", split)], copy, ["k, j, i", "i, j, k"], body="\n").replace("yield %o", "yield %a0")
    found = groups(function([("%x", x)], body, [("%c", copy)]))
    assert found["arith.divf"] == found["arith.addf"] and found["copy"] != found["arith.divf"]
