"""A product of rows in groups: how it is packed, what is fused behind it, and what one group is."""

from __future__ import annotations

import pytest

from mlirc.dialects.mlir import ir
from mlirc.driver import find_main
from mlirc.lowering.target import Target
from mlirc.passes import structure as st
from mlirc.passes.chain import chain
from mlirc.passes.fuse import fuse
from mlirc.passes.layouts import Layouts
from mlirc.passes.outline import outline
from mlirc.passes.pack import PackShape, pack
from mlirc.passes.ragged import ROWS, Ragged, one_group
from mlirc.passes.strategy.trial import worth_trying
from mlirc.passes.vectorize import KernelFunction
from mlirc.passes.weights import WEIGHTS
from mlirc.tests.lowering.test_to_llvm import filecheck
from mlirc.tests.passes.graph_text import function, generic
from mlirc.tests.passes.vectorize.kernels import stages

BODY = """
  %row = linalg.index {s} : index
  %group = linalg.index 3 : index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %g1 = arith.subi %group, %c1 : index
  %before = arith.maxsi %g1, %c0 : index
  %e = tensor.extract %ends[%group] : tensor<4xi64>
  %end = arith.index_cast %e : i64 to index
  %p = tensor.extract %ends[%before] : tensor<4xi64>
  %previous = arith.index_cast %p : i64 to index
  %first = arith.cmpi eq, %group, %c0 : index
  %begin = arith.select %first, %c0, %previous : index
  %behind = arith.cmpi sge, %row, %begin : index
  %ahead = arith.cmpi slt, %row, %end : index
  %inside = arith.andi %behind, %ahead : i1
  %zero = arith.constant 0.0 : f32
"""
X, W, Y, ENDS = "tensor<64x8xf32>", "tensor<4x8x32xf32>", "tensor<64x32xf32>", "tensor<4xi64>"
F32 = "%u = arith.mulf %a0, %a1 : f32\n%v = arith.select %inside, %u, %zero : f32\n%o = arith.addf %a2, %v : f32"


def ragged(name: str, x: tuple[str, str], w: tuple[str, str], result: str = Y, maps: str = "i, k | l, k, j | i, j", body: str = F32, loops: str = "pprr") -> str:
    """Rows are loop 0, or, where they are summed up, 2."""
    rows = 2 if loops[3] == "p" else 0
    return generic(name, [x, w], result, maps.split(" | "), BODY.format(s=rows) + body, loops, "ijkl", "0.0", "contraction", f"mlirc.ragged = array<i64: {rows}, 3>")


def graph(body: str, results: list[tuple[str, str]], w: str = W) -> str:
    return function([("%x", X), ("%w", w), ("%ends", ENDS)], body, results)


def kernels_of(text: str, context_passes=()) -> list[str]:  # noqa: ANN001
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        main = find_main(module)
        for run in context_passes:
            run(main)
        fuse(main, Layouts(main).shapes)
        return [k.text for k in outline(main, [])]


def _one_group(text: str) -> tuple[str, Ragged]:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        found = one_group(st.operation(module.body.operations[0]))
        assert found is not None and module.operation.verify()
        return str(module), found


def _pack(main: ir.Operation) -> None:
    main.attributes[WEIGHTS] = ir.DenseI64ArrayAttr.get([1])
    pack(main, PackShape(16))


def test_one_group_has_rows_of_its_own() -> None:
    """The matrix is the group's, in panels; the question which rows are in it is gone."""
    text = kernels_of(graph(ragged("%y", ("%x", X), ("%w", W)), [("%y", Y)]), [_pack])[-1]
    assert "tensor<4x2x8x16xf32>" in text, "each matrix in panels of its own"
    after, found = _one_group(text)
    filecheck(
        after,
        """
        CHECK-DAG: #[[X:.*]] = affine_map<(d0, d1, d2) -> (d0, d2)>
        CHECK-DAG: #[[W:.*]] = affine_map<(d0, d1, d2) -> (d1 floordiv 16, d2, d1 mod 16)>
        CHECK: func.func @kernel(%[[XS:.*]]: tensor<?x8xf32> {mlirc.sizes = ["rows_of_a_group", "8"], mlirc.strides = ["8", "1"]}, %[[WS:.*]]: tensor<2x8x16xf32> {{.*}}, %{{.*}}: tensor<4xi64>, %[[ROWS:.*]]: index {mlirc.name = "rows_of_a_group"}) -> tensor<?x32xf32>
        CHECK: tensor.empty(%[[ROWS]]) : tensor<?x32xf32>
        CHECK: linalg.generic {indexing_maps = [#[[X]], #[[W]], #{{.*}}], iterator_types = ["parallel", "parallel", "reduction"]} ins(%[[XS]], %[[WS]] :
        CHECK-NOT: linalg.index
        CHECK-NOT: tensor.extract
        CHECK-NOT: arith.select
        CHECK: arith.mulf
        CHECK-NEXT: arith.addf
        """,
    )
    assert found == Ragged(2, 4, 64, False, {0: 8, 3: 32}, {1: 2 * 8 * 16})


def test_rows_that_are_summed_up() -> None:
    """Each group makes a matrix, of zeros if it has no rows."""
    dw = "tensor<4x8x32xf32>"
    body = ragged("%y", ("%x", X), ("%dy", Y), dw, "k, i | k, j | l, i, j", loops="pprp")
    text = kernels_of(function([("%x", X), ("%dy", Y), ("%ends", ENDS)], body, [("%y", dw)]))[-1]
    after, found = _one_group(text)
    filecheck(
        after,
        """
        CHECK: func.func @kernel(%{{.*}}: tensor<?x8xf32> {{.*}}, %{{.*}}: tensor<?x32xf32> {{.*}}, %{{.*}}: tensor<4xi64>, %{{.*}}: index {{.*}}) -> tensor<8x32xf32> attributes {mlirc.result_strides = {{\\[\\["32", "1"\\]\\]}}}
        CHECK: iterator_types = ["parallel", "parallel", "reduction"]
        """,
    )
    assert found == Ragged(2, 4, 64, True, {0: 8, 1: 32}, {3: 8 * 32})


def test_the_number_of_all_rows_may_be_a_symbol() -> None:
    text = kernels_of(graph(ragged("%y", ("%x", X), ("%w", W)), [("%y", Y)]))[-1]
    sizes = '%arg0: tensor<?x8xf32> {mlirc.sizes = ["n0", "8"]}'
    text = text.replace("%arg0: tensor<64x8xf32>", sizes).replace("64x", "?x").replace("tensor.empty() : tensor<?x", "tensor.empty(%n) : tensor<?x")
    text = text.replace("%arg2: tensor<4xi64>)", '%arg2: tensor<4xi64>, %n: index {mlirc.name = "n0"})')
    after, found = _one_group(text)
    assert found.count == "n0" and f'mlirc.name = "{ROWS}"' in after and 'mlirc.name = "n0"' in after


NARROW = generic("%n", [("%y", Y)], "tensor<64x32xbf16>", body="%o = arith.truncf %a0 : f32 to bf16")
RELU = generic("%n", [("%y", Y)], Y, body="%z = arith.constant 0.0 : f32\n%o = arith.maximumf %a0, %z : f32")


@pytest.mark.parametrize(("behind", "result", "fused"), [(NARROW, "tensor<64x32xbf16>", True), (RELU, Y, False)], ids=["narrowed", "relu"])
def test_what_is_fused_behind(behind: str, result: str, fused: bool) -> None:
    """What leaves zeros zeros: no kernel of a group sees the rows that are in none."""
    texts = kernels_of(graph(ragged("%y", ("%x", X), ("%w", W)) + behind, [("%n", result)]))
    assert len(texts) == (1 if fused else 2)
    if fused:
        after, _ = _one_group(texts[0])
        assert "-> tensor<?x32xbf16>" in after


def test_words_of_sums_over_rows() -> None:
    """Groups begin at any row, in the middle of a word of two."""
    x, dy, dw = "tensor<64x8xbf16>", "tensor<64x32xbf16>", "tensor<4x8x32xf32>"
    wide = "%p0 = arith.extf %a0 : bf16 to f32\n%p1 = arith.extf %a1 : bf16 to f32\n" + F32.replace("%a0, %a1", "%p0, %p1")
    body = ragged("%y", ("%x", x), ("%dy", dy), dw, "k, i | k, j | l, i, j", wide, "pprp")
    words = lambda main: pack(main, PackShape(16, frozenset({"bf16"})))  # noqa: E731
    texts = kernels_of(function([("%x", x), ("%dy", dy), ("%ends", ENDS)], body, [("%y", dw)]), [words])
    assert not any(st.WORDS in text for text in texts)


def test_it_takes_no_turns_and_is_not_measured() -> None:
    text = kernels_of(graph(ragged("%y", ("%x", X), ("%w", W)), [("%y", Y)]))[-1]
    assert not worth_trying(text)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(graph(ragged("%y", ("%x", X), ("%w", W)) + RELU, [("%n", Y)]))
        main = find_main(module)
        fuse(main, Layouts(main).shapes)
        kernels = outline(main, [])
        assert len(chain(main, kernels, Target.parse("x86-64-v4"))) == len(kernels) == 2


def test_the_loop_over_groups_is_around_the_kernel_of_one() -> None:
    text = kernels_of(graph(ragged("%y", ("%x", X), ("%w", W)), [("%y", Y)]))[-1]
    filecheck(
        stages(text)["vector"],
        """
        CHECK: func.func @k_group(%{{.*}}: !llvm.ptr) attributes {llvm.linkage = #llvm.linkage<internal>, no_inline}
        CHECK: func.func @k(%{{.*}}: !llvm.ptr)
        CHECK: scf.for
        CHECK: memref.load %{{.*}} : memref<?xi64>
        CHECK: scf.if
        CHECK: call @k_group
        CHECK: scf.for
        CHECK: vector.maskedstore
        """,
    )


def test_a_kernel_without_groups_is_left_alone() -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(kernels_of(graph(RELU.replace("%y", "%q"), [("%n", Y)]).replace("%w", "%q").replace(W, Y))[-1])
        before = str(module)
        assert one_group(st.operation(module.body.operations[0])) is None and str(module) == before
        assert KernelFunction.of(module).ragged is None
