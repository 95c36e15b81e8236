"""The count of a kernel's arithmetic: products, divisions and everything, in vectors of 16 lanes, each element once."""

from __future__ import annotations

import pytest

from mlirc.benchmarks.arithmetic import Work, count

KERNEL = """
#map = affine_map<(d0, d1) -> (d0, d1)>
func.func @kernel(%x: tensor<{rows}xf32>, %y: tensor<{rows}xf32>) -> tensor<{rows}xf32> attributes {{mlirc.result_strides = [["32", "1"]]}} {{
  %e = tensor.empty() : tensor<{rows}xf32>
  %0 = linalg.generic {{indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel"]}}
      ins(%x, %y : tensor<{rows}xf32>, tensor<{rows}xf32>) outs(%e : tensor<{rows}xf32>) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    {body}
    linalg.yield %r : f32
  }} -> tensor<{rows}xf32>
  return %0 : tensor<{rows}xf32>
}}
"""


@pytest.mark.parametrize(
    "body, each",
    [
        ("%r = arith.mulf %a, %b : f32", Work(1, 0, 1)),
        ("%r = arith.addf %a, %b : f32", Work(0, 0, 1)),
        ("%p = arith.mulf %a, %b : f32\n %r = arith.addf %p, %b : f32", Work(1, 0, 1)),  # one instruction
        ("%r = arith.divf %a, %b : f32", Work(0, 1, 1)),
        ("%c = arith.constant 2.0 : f32\n %r = arith.mulf %a, %c : f32", Work(1, 0, 1)),
        ("%w = arith.extf %a : f32 to f64\n %p = arith.mulf %w, %w : f64\n %r = arith.truncf %p : f64 to f32", Work(2, 0, 6)),
    ],
)
def test_count(body, each):
    assert count(KERNEL.format(rows="4x32", body=body)) == each.times(4 * 32 / 16)


def test_functions_count_as_their_arithmetic():
    work = count(KERNEL.format(rows="4x32", body="%r = math.exp %a : f32"))
    assert 5 <= work.products / 8 <= 20 and work.all > work.products


def test_symbols_have_no_count():
    text = KERNEL.format(rows="?x32", body="%r = arith.mulf %a, %b : f32")
    text = text.replace("(%x:", "(%x:").replace("%e = tensor.empty()", "%c0 = arith.constant 0 : index\n %d = tensor.dim %x, %c0 : tensor<?x32xf32>\n %e = tensor.empty(%d)")
    text = text.replace("%x: tensor<?x32xf32>, %y: tensor<?x32xf32>)", '%x: tensor<?x32xf32> {mlirc.sizes = ["s", "32"], mlirc.strides = ["32", "1"]}, %y: tensor<?x32xf32> {mlirc.sizes = ["s", "32"], mlirc.strides = ["32", "1"]}, %s: index {mlirc.name = "s"})')
    assert count(text) is None
