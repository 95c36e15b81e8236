"""Transposes become indexing maps, and layouts flow through elementwise ops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.passes.fold_transposes import fold_transposes
from mlirc.tests.frontend.compare import compare
from mlirc.tests.passes.graph_text import check, function, generic, matmul, with_weights

T = "tensor<4x8xf32>"
S = "tensor<8x4xf32>"


def transpose(name, x, source, result, order):
    return f"%e{name[1:]} = tensor.empty() : {result}\n{name} = linalg.transpose ins({x} : {source}) outs(%e{name[1:]} : {result}) permutation = {order}\n"


def test_a_reader_takes_the_source():
    body = transpose("%t", "%x", T, S, [1, 0]) + generic("%r", [("%t", S), ("%y", S)], S, body="arith.addf")
    check(
        function([("%x", T), ("%y", S)], body, [("%r", S)]),
        fold_transposes,
        """
        CHECK: #[[SWAP:.*]] = affine_map<(d0, d1) -> (d1, d0)>
        CHECK: @main(%[[X:.*]]: tensor<4x8xf32>, %[[Y:.*]]: tensor<8x4xf32>)
        CHECK-NOT: linalg.transpose
        CHECK: linalg.generic {indexing_maps = [#[[SWAP]], #
        CHECK-SAME: ins(%[[X]], %[[Y]] :
        """,
        clean=True,
    )


def test_two_transposes_are_one_or_none():
    body = transpose("%a", "%x", T, S, [1, 0]) + transpose("%b", "%a", S, T, [1, 0])
    check(function([("%x", T)], body, [("%b", T)]), fold_transposes, "CHECK-NOT: linalg.transpose\nCHECK: return %arg0", clean=True)
    three = "tensor<2x3x4xf32>"
    body = transpose("%a", "%x", three, "tensor<4x2x3xf32>", [2, 0, 1]) + transpose("%b", "%a", "tensor<4x2x3xf32>", "tensor<3x4x2xf32>", [2, 0, 1])
    check(
        function([("%x", three)], body, [("%b", "tensor<3x4x2xf32>")]),
        fold_transposes,
        "CHECK: linalg.transpose ins(%arg0 {{.*}} permutation = [1, 2, 0]\nCHECK-NOT: linalg.transpose",
        clean=True,
    )


def test_windows_are_stored_as_they_are_contiguous():
    """x[b, t + k, c] as [b, t, c, k]: the loop of c is innermost, and the copy is no transposition."""
    x, windows = "tensor<2x20x64xf32>", "tensor<2x14x64x7xf32>"
    body = generic("%r", [("%x", x)], windows, ["i, j + l, k", "i, j, k, l"], "%o = arith.negf %a0 : f32", loops="ijkl")
    check(
        function([("%x", x)], body, [("%r", windows)]),
        fold_transposes,
        """
        CHECK: #[[WINDOWS:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d1 + d2, d3)>
        CHECK: linalg.generic {indexing_maps = [#[[WINDOWS]], #
        CHECK-SAME: outs(%{{.*}} : tensor<2x14x7x64xf32>)
        CHECK: linalg.transpose {{.*}} permutation = [0, 1, 3, 2]
        """,
        clean=True,
    )


def test_windows_along_memory_stay():
    x, windows = "tensor<2x64x20xf32>", "tensor<2x64x14x7xf32>"
    body = generic("%r", [("%x", x)], windows, ["i, j, k + l", "i, j, k, l"], "%o = arith.negf %a0 : f32", loops="ijkl")
    check(function([("%x", x)], body, [("%r", windows)]), fold_transposes, "CHECK-NOT: linalg.transpose", clean=True)


def test_elementwise_ops_keep_the_layout_of_their_operand():
    """relu(transpose(x)) is transpose(relu(x)): a chain stays channels-last."""
    nchw, nhwc = "tensor<1x3x5x7xf32>", "tensor<1x5x7x3xf32>"
    body = transpose("%t", "%x", nhwc, nchw, [0, 3, 1, 2]) + generic("%a", [("%t", nchw)], nchw)
    body += generic("%b", [("%a", nchw), ("%a", nchw)], nchw, body="arith.mulf")
    check(
        function([("%x", nhwc)], body, [("%b", nchw)]),
        fold_transposes,
        """
        CHECK: %[[A:.*]] = linalg.generic
        CHECK-SAME: outs(%{{.*}} : tensor<1x5x7x3xf32>)
        CHECK: math.exp
        CHECK: %[[B:.*]] = linalg.generic
        CHECK-SAME: ins(%[[A]], %[[A]] : tensor<1x5x7x3xf32>, tensor<1x5x7x3xf32>)
        CHECK: %[[T:.*]] = linalg.transpose ins(%[[B]] : tensor<1x5x7x3xf32>)
        CHECK-SAME: permutation = [0, 3, 1, 2]
        CHECK: return %[[T]]
        """,
        clean=True,
    )


def test_an_op_with_one_straight_operand_stays():
    body = transpose("%t", "%x", T, S, [1, 0]) + generic("%r", [("%y", S), ("%t", S)], S, body="arith.addf")
    check(function([("%x", T), ("%y", S)], body, [("%r", S)]), fold_transposes, "CHECK: outs({{.*}} : tensor<8x4xf32>)\nCHECK-NOT: linalg.transpose\nCHECK: return", clean=True)


def test_bodies_that_see_their_place_see_the_new_one():
    index = "%d = linalg.index 0 : index\n%c = arith.index_cast %d : index to i32\n%f = arith.sitofp %c : i32 to f32\n%o = arith.addf %f, %a0 : f32"
    body = transpose("%t", "%x", T, S, [1, 0]) + generic("%r", [("%t", S)], S, body=index)
    check(
        function([("%x", T)], body, [("%r", S)]),
        fold_transposes,
        "CHECK: linalg.generic\nCHECK-SAME: ins(%arg0 : tensor<4x8xf32>) outs({{.*}} : tensor<4x8xf32>)\nCHECK: linalg.index 1\nCHECK: linalg.transpose",
        clean=True,
    )


def test_contractions_read_transposed_weights():
    body = transpose("%t", "%w", "tensor<16x8xf32>", "tensor<8x16xf32>", [1, 0]) + matmul("%r", "%x", "%t", 4, 8, 16)
    check(
        function([("%x", T), ("%w", "tensor<16x8xf32>")], body, [("%r", "tensor<4x16xf32>")]),
        fold_transposes,
        """
        CHECK-DAG: #[[X:.*]] = affine_map<(d0, d1, d2) -> (d0, d2)>
        CHECK-DAG: #[[W:.*]] = affine_map<(d0, d1, d2) -> (d1, d2)>
        CHECK-NOT: linalg.transpose
        CHECK: linalg.generic {indexing_maps = [#[[X]], #[[W]], #
        CHECK-SAME: ins(%arg0, %arg1 :
        """,
        clean=True,
    )


def test_a_concatenation_keeps_the_layout_of_its_operands():
    nchw, nhwc, both = "tensor<1x3x5x7xf32>", "tensor<1x5x7x3xf32>", "tensor<1x6x5x7xf32>"
    body = transpose("%a", "%x", nhwc, nchw, [0, 3, 1, 2]) + transpose("%b", "%y", nhwc, nchw, [0, 3, 1, 2])
    body += f"%c = tensor.concat dim(1) %a, %b {{mlirc.sizes = [\"1\", \"6\", \"5\", \"7\"]}} : ({nchw}, {nchw}) -> {both}\n"
    check(
        function([("%x", nhwc), ("%y", nhwc)], body, [("%c", both)]),
        fold_transposes,
        """
        CHECK: %[[C:.*]] = tensor.concat dim(3) %arg0, %arg1 {mlirc.sizes = ["1", "5", "7", "6"]}
        CHECK-SAME: -> tensor<1x5x7x6xf32>
        CHECK: %[[T:.*]] = linalg.transpose ins(%[[C]] : {{.*}} permutation = [0, 3, 1, 2]
        CHECK: return %[[T]]
        """,
        clean=True,
    )


def test_a_concatenation_of_different_layouts_stays():
    nchw, nhwc, both = "tensor<1x3x5x7xf32>", "tensor<1x5x7x3xf32>", "tensor<1x6x5x7xf32>"
    body = transpose("%a", "%x", nhwc, nchw, [0, 3, 1, 2])
    body += f"%c = tensor.concat dim(1) %a, %y : ({nchw}, {nchw}) -> {both}\n"
    check(
        function([("%x", nhwc), ("%y", nchw)], body, [("%c", both)]),
        fold_transposes,
        "CHECK: %[[A:.*]] = linalg.transpose\nCHECK: tensor.concat dim(1) %[[A]], %arg1\nCHECK-NOT: linalg.transpose\nCHECK: return",
        clean=True,
    )


NHWC, NCHW = "tensor<1x5x7x3xf32>", "tensor<1x3x5x7xf32>"


def test_gathers_run_along_memory():
    """Rows and columns of a channels-last image are gathered with its channels side by side."""
    rows, out = "tensor<9xi64>", "tensor<1x3x9x7xf32>"
    body = transpose("%t", "%x", NHWC, NCHW, [0, 3, 1, 2])
    gather = "%c0 = arith.constant 0 : index\n%c = linalg.index 1 : index\n%w = linalg.index 3 : index\n%h = arith.index_cast %a0 : i64 to index\n"
    gather += f"%o = tensor.extract %t[%c0, %c, %h, %w] : {NCHW}"
    body += generic("%g", [("%i", rows)], out, ["c", "a, b, c, d"], gather, loops="abcd") + generic("%r", [("%g", out)], out)
    check(
        function([("%x", NHWC), ("%i", rows)], body, [("%r", out)]),
        fold_transposes,
        """
        CHECK: #[[ROWS:.*]] = affine_map<(d0, d1, d2, d3) -> (d1)>
        CHECK: %[[G:.*]] = linalg.generic {indexing_maps = [#[[ROWS]], #
        CHECK-SAME: outs(%{{.*}} : tensor<1x9x7x3xf32>)
        CHECK-DAG: %[[C:.*]] = linalg.index 3
        CHECK-DAG: %[[W:.*]] = linalg.index 2
        CHECK: tensor.extract %arg0[%{{.*}}, %{{.*}}, %[[W]], %[[C]]] : tensor<1x5x7x3xf32>
        CHECK: linalg.generic {{.*}} ins(%[[G]] :
        CHECK: linalg.transpose {{.*}} permutation = [0, 3, 1, 2]
        """,
        clean=True,
    )


def test_pads_in_front_of_concatenations_keep_the_layout():
    wide, both = "tensor<1x3x5x9xf32>", "tensor<1x6x5x9xf32>"
    body = transpose("%t", "%x", NHWC, NCHW, [0, 3, 1, 2]) + "%z = arith.constant 2.0 : f32\n"
    body += f"%p = tensor.pad %t low[0, 0, 0, 1] high[0, 0, 0, 1] {{\n^bb0(%i: index, %j: index, %k: index, %l: index):\ntensor.yield %z : f32\n}} : {NCHW} to {wide}\n"
    body += transpose("%u", "%y", "tensor<1x5x9x3xf32>", wide, [0, 3, 1, 2])
    body += f"%c = tensor.concat dim(1) %p, %u : ({wide}, {wide}) -> {both}\n"
    check(
        function([("%x", NHWC), ("%y", "tensor<1x5x9x3xf32>")], body, [("%c", both)]),
        fold_transposes,
        """
        CHECK: %[[Z:.*]] = arith.constant 2.0
        CHECK: %[[P:.*]] = tensor.pad %arg0 low[0, 0, 1, 0] high[0, 0, 1, 0]
        CHECK: tensor.yield %[[Z]]
        CHECK: tensor.concat dim(3) %[[P]], %arg1
        CHECK: linalg.transpose {{.*}} permutation = [0, 3, 1, 2]
        """,
        clean=True,
    )


def test_pads_in_front_of_convolutions_along_the_lines_keep_the_layout():
    """A channels-last image, whose three outputs have the vector lanes along w: `pack` makes planes of it. Others see to it themselves."""
    nchw, nhwc, padded, y = "tensor<1x8x5x30xf32>", "tensor<1x5x30x8xf32>", "tensor<1x8x7x32xf32>", "tensor<1x3x5x30xf32>"
    body = transpose("%t", "%x", nhwc, nchw, [0, 3, 1, 2]) + "%z = arith.constant 0.0 : f32\n"
    body += f"%p = tensor.pad %t low[0, 0, 1, 1] high[0, 0, 1, 1] {{\n^bb0(%i: index, %j: index, %k: index, %l: index):\ntensor.yield %z : f32\n}} : {nchw} to {padded}\n"
    multiply = "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32"

    def convolution(out, kind):
        maps = ["n, c, y + u, x + v", "u, v, c, o", out]
        op = generic("%r", [("%p", padded), ("%w", "tensor<3x3x8x3xf32>")], kind, maps, multiply, "pppprrr", ["n", "o", "y", "x", "u", "v", "c"], "0.0", "convolution")
        return function([("%x", nhwc), ("%w", "tensor<3x3x8x3xf32>")], body + op, [("%r", kind)])

    check(
        convolution("n, o, y, x", y),
        fold_transposes,
        """
        CHECK: %[[P:.*]] = tensor.pad %arg0 low[0, 1, 1, 0] high[0, 1, 1, 0]
        CHECK: linalg.generic {{.*}}ins(%[[P]], %arg1
        """,
        clean=True,
    )
    check(convolution("n, y, x, o", "tensor<1x5x30x3xf32>"), fold_transposes, "CHECK: linalg.transpose\nCHECK: tensor.pad", clean=True)


@pytest.mark.parametrize("groups", [1, 2])
def test_pads_whose_readers_transpose_back_keep_the_layout(groups):
    """As between channels-last convolutions; for grouped ones channels are split first."""
    nchw, nhwc, padded = "tensor<1x6x5x7xf32>", "tensor<1x5x7x6xf32>", "tensor<1x6x7x9xf32>"
    body = transpose("%t", "%x", nhwc, nchw, [0, 3, 1, 2]) + "%z = arith.constant 0.0 : f32\n"
    body += f"%p = tensor.pad %t low[0, 0, 1, 1] high[0, 0, 1, 1] {{\n^bb0(%i: index, %j: index, %k: index, %l: index):\ntensor.yield %z : f32\n}} : {nchw} to {padded}\n"
    split, last = ("tensor<1x2x3x7x9xf32>", "tensor<1x7x9x2x3xf32>") if groups == 2 else (padded, "tensor<1x7x9x6xf32>")
    if groups == 2:
        body += f"%s = tensor.expand_shape %p [[0], [1, 2], [3], [4]] output_shape [1, 2, 3, 7, 9] : {padded} into {split}\n"
    body += transpose("%u", "%s" if groups == 2 else "%p", split, last, [0, 3, 4, 1, 2] if groups == 2 else [0, 2, 3, 1])
    check(
        function([("%x", nhwc)], body, [("%u", last)]),
        fold_transposes,
        """
        CHECK-NOT: linalg.transpose
        CHECK: tensor.pad %arg0 low[0, 1, 1, 0] high[0, 1, 1, 0]
        CHECK-NOT: linalg.transpose
        """,
        clean=True,
    )


def test_reductions_keep_the_layout_of_their_operand():
    """The maximum over groups of channels, and one that is a number for each image."""
    nhwgc, ngchw, nchw = "tensor<2x5x7x3x4xf32>", "tensor<2x3x4x5x7xf32>", "tensor<2x4x5x7xf32>"
    body = transpose("%t", "%x", nhwgc, ngchw, [0, 3, 4, 1, 2])
    body += generic("%m", [("%t", ngchw)], nchw, ["i, j, k, l, m", "i, k, l, m"], "arith.maximumf", "prppp", "ijklm", "0xFF800000")
    body += generic("%r", [("%m", nchw)], nchw, body="%o = math.exp %a0 : f32")
    body += generic("%n", [("%t", ngchw)], "tensor<2xf32>", ["i, j, k, l, m", "i"], "arith.maximumf", "prrrr", "ijklm", "0xFF800000")
    check(
        function([("%x", nhwgc)], body, [("%r", nchw), ("%n", "tensor<2xf32>")]),
        fold_transposes,
        """
        CHECK-DAG: #[[KEPT:.*]] = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d4)>
        CHECK-DAG: #[[IN_ORDER:.*]] = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3, d4)>
        CHECK: linalg.generic {indexing_maps = [#[[IN_ORDER]], #[[KEPT]]], iterator_types = ["parallel", "parallel", "parallel", "reduction", "parallel"]} ins(%arg0 {{.*}} outs(%{{.*}} : tensor<2x5x7x4xf32>)
        CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<2x5x7x4xf32>)
        CHECK: math.exp
        CHECK: linalg.transpose {{.*}} permutation = [0, 3, 1, 2]
        CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "reduction", "reduction", "reduction", "reduction"]
        """,
        clean=True,
    )


def test_gradients_of_pools_keep_the_layout_of_what_they_read():
    """Planes, of one image and of several, whose elements look for the windows that they lie in."""
    for n in (1, 2):
        nchw, nhwc, out = f"tensor<{n}x3x4x8xf32>", f"tensor<{n}x4x8x3xf32>", f"tensor<{n}x8x16x3xf32>"
        body = transpose("%t", "%g", nchw, nhwc, [0, 2, 3, 1]) + "%w = tensor.empty() : tensor<1x1xf32>\n"
        image = "%n = linalg.index 0 : index" if n > 1 else "%n = arith.constant 0 : index"
        look = f"""{image}\n%y = linalg.index 1 : index\n%x = linalg.index 2 : index\n%c = linalg.index 3 : index\n%two = arith.constant 2 : index
            %i = arith.divsi %y, %two : index\n%j = arith.divsi %x, %two : index\n%e = tensor.extract %t[%n, %i, %j, %c] : {nhwc}
            %o = arith.addf %e, %a1 : f32"""
        body += generic("%r", [("%w", "tensor<1x1xf32>")], out, ["u, v", "n, y, x, c"], look, "pppprr", "nyxcuv", "0.0")
        check(
            function([("%g", nchw)], body, [("%r", out)]),
            fold_transposes,
            f"""
            CHECK: %[[SUM:.*]] = linalg.generic {{{{.*}}}} outs(%{{{{.*}}}} : tensor<{n}x3x8x16xf32>)
            CHECK: tensor.extract %arg0
            CHECK: linalg.transpose ins(%[[SUM]] {{{{.*}}}} permutation = [0, 2, 3, 1]
            """,
            clean=True,
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n,h,w", [(1, 12, 40), (2, 7, 33), (2, 3, 1)])
def test_pools_of_planes_and_their_gradients(dtype, n, h, w):
    x = torch.randn(n, 3, h, w).to(dtype)
    x[0, 0, 0, 0] = float("nan")

    def f(x):
        y = F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 1, 1), F.adaptive_avg_pool2d(x, (2, 1)), F.max_pool2d(x, 3, 1, 1)
        return *y, *torch.autograd.grad([(t * t).sum() for t in y], [x])

    compare(f, x.requires_grad_())


@pytest.mark.sampled
@pytest.mark.parametrize("dtype,dynamic", [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)])
@pytest.mark.parametrize("h,w", [(5, 7), (1, 33), (17, 1)])
def test_reductions_between_convolutions(h, w, dtype, dynamic):
    """Sums over groups of channels weighted for each (ResNeSt), over lines, over channels, and the place of an extreme."""

    def f(x, w1, w2):
        y = F.conv2d(x, w1, padding=1)
        parts = y.unflatten(1, (2, 8))
        gap = parts.sum(1).mean((2, 3), keepdim=True)
        mixed = (parts * gap.softmax(1).unsqueeze(1)).sum(1)
        return F.conv2d(mixed, w2), y.amax(3), y.mean(2), parts.var(2), y.argmax(1), y.sum((0, 2)), parts.prod(1)

    torch.manual_seed(0)
    compare(f, torch.randn(2, 4, h, w).to(dtype), torch.randn(16, 4, 3, 3).to(dtype), torch.randn(5, 8, 1, 1).to(dtype), dynamic=dynamic)


def test_pads_in_front_of_pooling_keep_the_layout():
    """Planes stay planes, and what is pooled is planes, too, though the pooling's own order is channels-last."""
    nchw, nhwc, padded, pooled = "tensor<1x3x5x8xf32>", "tensor<1x5x8x3xf32>", "tensor<1x7x10x3xf32>", "tensor<1x5x8x3xf32>"
    body = transpose("%t", "%x", nchw, nhwc, [0, 2, 3, 1]) + "%z = arith.constant 0xFF800000 : f32\n%w = tensor.empty() : tensor<3x3xf32>\n"
    body += f"%p = tensor.pad %t low[0, 1, 1, 0] high[0, 1, 1, 0] {{\n^bb0(%i: index, %j: index, %k: index, %l: index):\ntensor.yield %z : f32\n}} : {nhwc} to {padded}\n"
    maps = ["n, y + u, x + v, c", "u, v", "n, y, x, c"]
    body += generic("%m", [("%p", padded), ("%w", "tensor<3x3xf32>")], pooled, maps, "%o = arith.maximumf %a0, %a2 : f32", "pppprr", "nyxcuv", "0xFF800000")
    check(
        function([("%x", nchw)], body, [("%m", pooled)]),
        fold_transposes,
        """
        CHECK: affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d2 + d4, d3 + d5)>
        CHECK: tensor.pad %arg0 low[0, 0, 1, 1] high[0, 0, 1, 1]
        CHECK: %[[POOLED:.*]] = linalg.generic {{.*}} outs(%{{.*}} : tensor<1x3x5x8xf32>)
        CHECK: linalg.transpose ins(%[[POOLED]] {{.*}} permutation = [0, 2, 3, 1]
        """,
        clean=True,
    )


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("n,c,h,w", [(2, 5, 6, 7), (1, 17, 3, 4)])
def test_resampled_beside_what_was_skipped(n, c, h, w, mode, dynamic):
    """As a U-Net does: convolution, resampled, padded to the size of another, put beside it."""

    def f(x, w, s):
        u = F.interpolate(F.conv2d(x, w).relu(), scale_factor=2, mode=mode, align_corners=None if mode == "nearest" else True)
        u = F.pad(u, (1, s.shape[3] - u.shape[3] - 1, 0, s.shape[2] - u.shape[2]), value=0.5)
        masked = torch.where(torch.arange(u.shape[3]) % 2 == 0, u, u.tril())
        return torch.cat([F.conv2d(s, w), u[..., 1:-1, 1:-1]], 1), masked.flip(3)

    torch.manual_seed(0)
    args = torch.randn(n, c, h, w), torch.randn(c, c, 3, 3), torch.randn(n, c, 2 * h - 3, 2 * w + 1)
    compare(f, *args, dynamic=dynamic, options={"strict": True})


def test_layouts_flow_through_split_and_merged_dims():
    """As in a group norm between channels-last convolutions; a dim of one that is added changes nothing."""
    nhwc, nchw, split = "tensor<2x5x7x12xf32>", "tensor<2x12x5x7xf32>", "tensor<2x3x4x5x7xf32>"
    body = transpose("%t", "%x", nhwc, nchw, [0, 3, 1, 2])
    body += f"%s = tensor.expand_shape %t [[0], [1, 2], [3], [4]] output_shape [2, 3, 4, 5, 7] : {nchw} into {split}\n"
    body += generic("%g", [("%s", split)], split, body="%o = math.exp %a0 : f32")
    body += f"%c = tensor.collapse_shape %g [[0], [1, 2], [3], [4]] : {split} into {nchw}\n" + generic("%r", [("%c", nchw)], nchw, body="%o = math.sin %a0 : f32")
    check(
        function([("%x", nhwc)], body, [("%r", nchw)]),
        fold_transposes,
        """
        CHECK: tensor.expand_shape %arg0 {{\\[\\[}}0], [1], [2], [3, 4]] {{.*}} into tensor<2x5x7x3x4xf32>
        CHECK: math.exp
        CHECK: tensor.collapse_shape {{.*}} {{\\[\\[}}0], [1], [2], [3, 4]] : tensor<2x5x7x3x4xf32> into tensor<2x5x7x12xf32>
        CHECK: math.sin
        CHECK: linalg.transpose {{.*}} permutation = [0, 3, 1, 2]
        """,
        clean=True,
    )


def test_dims_of_one_come_and_go():
    """Not those of an argument or a constant."""
    body = transpose("%t", "%x", T, S, [1, 0]) + f"%s = tensor.expand_shape %t [[0, 1], [2]] output_shape [1, 8, 4] : {S} into tensor<1x8x4xf32>\n"
    check(function([("%x", T)], body, [("%s", "tensor<1x8x4xf32>")]), fold_transposes, "CHECK: linalg.transpose\nCHECK: tensor.expand_shape", clean=True)
    computed = function([("%x", T)], generic("%y", [("%x", T)], T) + body.replace("ins(%x", "ins(%y"), [("%s", "tensor<1x8x4xf32>")])
    check(computed, fold_transposes, "CHECK: linalg.transpose\nCHECK: tensor.expand_shape", clean=True)
    check(
        with_weights(computed),
        fold_transposes,
        "CHECK: math.exp\nCHECK: tensor.expand_shape {{.*}} into tensor<4x1x8xf32>\nCHECK: linalg.transpose {{.*}} permutation = [1, 2, 0]",
        clean=True,
    )


def test_slices_keep_the_layout_of_what_they_are_of():
    """Not those of an argument or a constant."""
    nhwc, nchw, part = "tensor<1x5x7x8xf32>", "tensor<1x8x5x7xf32>", "tensor<1x3x5x3xf32>"
    body = transpose("%t", "%y", nhwc, nchw, [0, 3, 1, 2]) + f"%s = tensor.extract_slice %t[0, 2, 0, 1] [1, 3, 5, 3] [1, 1, 1, 2] : {nchw} to {part}\n"
    computed = function([("%x", nhwc)], generic("%y", [("%x", nhwc)], nhwc) + body, [("%s", part)])
    check(computed, fold_transposes, "CHECK: linalg.transpose\nCHECK: tensor.extract_slice", clean=True)
    check(
        with_weights(computed),
        fold_transposes,
        """
        CHECK: %[[S:.*]] = tensor.extract_slice %{{.*}}[0, 0, 1, 2] [1, 5, 3, 3] [1, 1, 2, 1]
        CHECK: linalg.transpose ins(%[[S]] {{.*}} permutation = [0, 3, 1, 2]
        """,
        clean=True,
    )
    check(function([("%y", nhwc)], body, [("%s", part)]), fold_transposes, "CHECK: linalg.transpose\nCHECK: tensor.extract_slice", clean=True)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype,dynamic", [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)])
@pytest.mark.parametrize("h,w", [(5, 7), (1, 33), (17, 1)])
def test_slices_between_convolutions(h, w, dtype, dynamic):
    """Channels that are added and others that are put beside (DPN), every second line, and the last dims dropped."""

    def f(x, w1, w2):
        y = F.conv2d(x, w1, padding=1)
        z = torch.cat([y[:, :4] + y[:, 4:8], torch.cat([y[:, 12:], y[:, 8:12]], 1)], 1)
        return F.conv2d(z, w2, stride=2), F.conv2d(z[:, :, ::2, -1:], w2), y[:, 3:, :, 0], z[..., 1:].flip(1)

    torch.manual_seed(0)
    compare(f, torch.randn(2, 4, h, w).to(dtype), torch.randn(16, 4, 3, 3).to(dtype), torch.randn(5, 12, 1, 1).to(dtype), dynamic=dynamic)


@pytest.mark.parametrize("order", ["merged in order", "merged against it", "split", "symbolic"])
def test_views_of_transposed_tensors(order):
    f = {
        "merged in order": lambda x: x.permute(2, 0, 1).flatten(1).exp(),
        "merged against it": lambda x: x.permute(1, 0, 2).flatten(0, 1).exp(),
        "split": lambda x: x.permute(2, 0, 1).unflatten(0, (2, 3, -1)).softmax(1),
        "symbolic": lambda x: (x.permute(0, 2, 1).unflatten(1, (3, -1)).exp() + 1).flatten(1, 2).sin().sum(2),
    }[order]
    compare(f, torch.randn(5, 7, 12), dynamic=order == "symbolic")
    compare(f, torch.randn(1, 1, 6), dynamic=order == "symbolic")
