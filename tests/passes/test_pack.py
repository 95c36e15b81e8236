"""What products read after packing: blocks of columns, pairs along k, and rows that are contiguous along it."""

from __future__ import annotations

from collections.abc import Sequence

from mlirc.passes.pack import PackShape, pack
from mlirc.tests.passes.graph_text import check, function, generic, with_weights
from mlirc.tests.passes.test_fill_tiles import convolution

PRODUCT = "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"
WIDENED = "%u = arith.extf %a0 : bf16 to f32\n%v = arith.extf %a1 : bf16 to f32\n%m = arith.mulf %u, %v : f32\n%o = arith.addf %a2, %m : f32"
PAIRS = PackShape(32, frozenset({"bf16"}), 16)


def product(x: str, w: str, y: str, maps: list[str], weights: Sequence[int] = (1,)) -> str:
    """A contraction of %x and %w; `weights` are the arguments whose copies are kept."""
    body = WIDENED if "bf16" in x else PRODUCT
    op = generic("%y", [("%x", x), ("%w", w)], y, maps, body, "ppr", "ijk", "0.0", "contraction")
    text = function([("%x", x), ("%w", w)], op, [("%y", y)])
    return with_weights(text, *weights)


ROWS_BY_ROWS, ROWS_BY_COLUMNS, COLUMNS_BY_COLUMNS = ["i, k", "j, k", "i, j"], ["i, k", "k, j", "i, j"], ["k, i", "k, j", "i, j"]


def test_a_weight_is_cut_in_blocks_of_columns():
    check(product("tensor<7x20xf32>", "tensor<70x20xf32>", "tensor<7x70xf32>", ROWS_BY_ROWS), lambda f: pack(f, PackShape(32)), """
        CHECK: #[[BLOCKS:.*]] = affine_map<(d0, d1, d2) -> (d1 floordiv 32, d2, d1 mod 32)>
        CHECK: %[[PAD:.*]] = tensor.pad %{{.*}} low[0, 0] high[26, 0]
        CHECK: %[[P:.*]] = linalg.generic {{.*}}ins(%[[PAD]] : tensor<96x20xf32>) {{.*}}mlirc.pack
        CHECK: -> tensor<3x20x32xf32>
        CHECK: linalg.generic {indexing_maps = [{{.*}}, #[[BLOCKS]], {{.*}}ins(%{{.*}}, %[[P]]
    """)  # fmt: skip


def test_pairs_along_the_reduction_are_filled_up_with_zeros():
    check(product("tensor<7x20xbf16>", "tensor<64x20xbf16>", "tensor<7x64xf32>", ROWS_BY_ROWS), lambda f: pack(f, PAIRS), """
        CHECK: #[[PAIRS:.*]] = affine_map<(d0, d1, d2) -> (d1 floordiv 32, d2 floordiv 2, d1 mod 32, d2 mod 2)>
        CHECK: tensor.pad %{{.*}} low[0, 0] high[0, 12]
        CHECK: -> tensor<2x16x32x2xbf16>
        CHECK: indexing_maps = [{{.*}}, #[[PAIRS]], {{.*}}mlirc.words = 2
    """)  # fmt: skip


def test_a_weight_is_packed_for_one_row_too():
    for kind, blocks in (("f32", "tensor<3x20x32xf32>"), ("bf16", "tensor<3x16x32x2xbf16>")):
        text = product(f"tensor<1x20x{kind}>", f"tensor<70x20x{kind}>", "tensor<1x70xf32>", ROWS_BY_ROWS)
        check(text, lambda f: pack(f, PAIRS), f"CHECK: linalg.generic {{{{.*}}}}, {blocks})")
        check(text.replace("array<i64: 1>", "array<i64>"), lambda f: pack(f, PAIRS), "CHECK-NOT: mlirc.pack")


def test_what_is_made_of_weights_alone_is_packed_for_one_row_too():
    """It is made once, whatever it takes; with another argument in it, in every call."""
    x, w, y = "tensor<1x20xf32>", "tensor<70x20xf32>", "tensor<1x70xf32>"
    body = generic("%v", [("%w", w)], w, body="%v = arith.addf %a0, %a0 : f32\n%o = arith.mulf %v, %v : f32")
    body += generic("%y", [("%x", x), ("%v", w)], y, ROWS_BY_ROWS, PRODUCT, "ppr", "ijk", "0.0", "contraction")
    text = function([("%x", x), ("%w", w)], body, [("%y", y)])
    for weight, expected in ((1, "CHECK: -> tensor<3x20x32xf32>"), (0, "CHECK-NOT: mlirc.pack")):
        check(with_weights(text, weight), lambda f: pack(f, PackShape(32)), expected)


def test_rows_are_copied_where_they_are_not_contiguous_along_the_reduction():
    check(product("tensor<64x50xbf16>", "tensor<64x70xbf16>", "tensor<50x70xf32>", COLUMNS_BY_COLUMNS), lambda f: pack(f, PAIRS), """
        CHECK: %[[ROWS:.*]] = linalg.generic {{.*}}ins(%arg0 : tensor<64x50xbf16>) outs(%{{.*}} : tensor<50x64xbf16>)
        CHECK: linalg.generic {{.*}}ins(%[[ROWS]], %{{.*}} : tensor<50x64xbf16>, tensor<3x32x32x2xbf16>)
    """)  # fmt: skip


def test_no_rows_are_copied_for_an_operand_that_stays_as_it_is():
    """Three rows read it: packing it, in every call, would take longer than the product."""
    check(product("tensor<64x3xbf16>", "tensor<64x70xbf16>", "tensor<3x70xf32>", COLUMNS_BY_COLUMNS, weights=()), lambda f: pack(f, PAIRS), """
        CHECK-NOT: tensor<3x64xbf16>
        CHECK-NOT: mlirc.words
        CHECK: linalg.generic {{.*}}outs(%{{.*}} : tensor<64x3xf32>)
        CHECK-NOT: mlirc.words
    """)  # fmt: skip


def test_pairs_of_few_rows_are_put_together_in_registers():
    """The operand stays as it is, but for AMX, for f32, and where it is read often enough to pay for a copy in every call."""
    in_registers = PackShape(32, frozenset({"bf16"}), 1)

    def few(rows: int, kind: str = "bf16") -> str:
        return product(f"tensor<{rows}x21x{kind}>", f"tensor<21x70x{kind}>", f"tensor<{rows}x70xf32>", ROWS_BY_COLUMNS, weights=())

    for rows in (1, 4, 95):
        check(few(rows), lambda f: pack(f, in_registers), """
            CHECK-NOT: mlirc.pack
            CHECK: ins(%arg0, %arg1 : {{.*}}mlirc.words = 2
        """)  # fmt: skip
    check(few(96), lambda f: pack(f, in_registers), "CHECK: -> tensor<3x11x32x2xbf16>")
    kept = product("tensor<9x21xbf16>", "tensor<21x70xbf16>", "tensor<9x70xf32>", ROWS_BY_COLUMNS)
    check(kept, lambda f: pack(f, in_registers), "CHECK: -> tensor<3x11x32x2xbf16>")
    for rows, packed in ((47, False), (48, True)):  # of rows in one set
        far = product(f"tensor<{rows}x21xbf16>", "tensor<21x2048xbf16>", f"tensor<{rows}x2048xf32>", ROWS_BY_COLUMNS, weights=())
        check(far, lambda f: pack(f, in_registers), "CHECK: mlirc.pack" if packed else "CHECK-NOT: mlirc.pack")
    check(few(9), lambda f: pack(f, PAIRS), "CHECK: -> tensor<3x16x32x2xbf16>")
    check(few(9, "f32"), lambda f: pack(f, in_registers), "CHECK-NOT: mlirc.words")
    across = product("tensor<21x9xbf16>", "tensor<21x70xbf16>", "tensor<9x70xf32>", COLUMNS_BY_COLUMNS, weights=())
    check(across, lambda f: pack(f, in_registers), "CHECK: -> tensor<3x11x32x2xbf16>")


def test_all_positions_of_an_image_are_rows():
    """Of a convolution whose weight is computed, as the parts of a transposed convolution's are: 400 rows are worth packing it."""
    check(with_weights(convolution(24, 2)), lambda f: pack(f, PAIRS), """
        CHECK: -> tensor<2x2x2x16x32x2xbf16>
        CHECK: linalg.generic {{.*}}ins(%arg0, %{{.*}} : tensor<1x20x20x24xbf16>, tensor<2x2x2x16x32x2xbf16>) {{.*}}mlirc.words
    """)  # fmt: skip


def test_columns_that_are_contiguous_and_no_weight_stay_as_they_are():
    text = product("tensor<9x20xf32>", "tensor<20x70xf32>", "tensor<9x70xf32>", ROWS_BY_COLUMNS, weights=())
    check(text, lambda f: pack(f, PackShape(32)), "CHECK-NOT: mlirc.pack")
    check(text.replace("array<i64>", "array<i64: 1>"), lambda f: pack(f, PackShape(32)), "CHECK: -> tensor<3x20x32xf32>")


def test_an_image_whose_lanes_run_along_its_lines_becomes_planes():
    """[h, w, c] of a convolution with three results of each position."""
    x, w, y = "tensor<9x32x8xf32>", "tensor<3x3x8x3xf32>", "tensor<3x7x30xf32>"
    op = generic("%y", [("%x", x), ("%w", w)], y, ["y + u, x + v, c", "u, v, c, o", "o, y, x"], PRODUCT, "ppprrr", ["o", "y", "x", "u", "v", "c"], "0.0", "convolution")
    check(function([("%x", x), ("%w", w)], op, [("%y", y)]), lambda f: pack(f, PackShape(32)), """
        CHECK: #[[PLANES:.*]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d1 + d3, d5, d2 + d4)>
        CHECK: %[[X:.*]] = linalg.generic {{.*}}ins(%arg0 : tensor<9x32x8xf32>) outs(%{{.*}} : tensor<9x8x32xf32>)
        CHECK: linalg.generic {indexing_maps = [#[[PLANES]], {{.*}}ins(%[[X]], %arg1
    """)  # fmt: skip


def test_an_image_of_planes_that_is_multiplied_in_words_becomes_channels_last():
    text = convolution(64, 3).replace("n, h * 1 + i * 1, w * 1 + j * 1, c)", "n, c, h + i, w + j)")
    planes = text.replace("tensor<1x20x20x64xbf16>", "tensor<1x64x20x20xbf16>")
    check(planes, lambda f: pack(f, PAIRS), """
        CHECK-DAG: #[[LAST:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d3, d1, d2)>
        CHECK-DAG: #[[IMAGE:.*]] = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1 + d4, d2 + d5, d6)>
        CHECK: %[[X:.*]] = linalg.generic {indexing_maps = [#[[LAST]], {{.*}}ins(%arg0 : {{.*}}outs(%{{.*}} : tensor<1x20x20x64xbf16>)
        CHECK: linalg.generic {indexing_maps = [#[[IMAGE]], {{.*}}ins(%[[X]], {{.*}}mlirc.words = 6 : i32
    """)  # fmt: skip


def test_what_is_made_for_a_convolution_is_made_in_blocks():
    """The flipped weight of a gradient, in training: whoever stores it may as well store it so. An argument is read where it is."""
    text = convolution(24, 3, kind="f32")
    check(with_weights(text), lambda f: pack(f, PackShape(32)), "CHECK-NOT: mlirc.pack")
    made = text.replace("%ey = tensor.empty()", generic("%v", [("%w", "tensor<3x3x24x64xf32>")], "tensor<3x3x24x64xf32>", body="%o = arith.negf %a0 : f32") + "%ey = tensor.empty()", 1)
    made = made.replace("ins(%x, %w :", "ins(%x, %v :")
    check(with_weights(made), lambda f: pack(f, PackShape(32)), "CHECK: mlirc.pack} {\nCHECK: -> tensor<2x3x3x24x32xf32>")
