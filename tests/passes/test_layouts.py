"""Where values lie: roots, offsets and strides through views."""

from __future__ import annotations

import pytest

from mlirc.dialects.sizes import parse
from mlirc.passes import structure as st
from mlirc.passes.layouts import Layouts, NotAView, merges, row_major
from mlirc.tests.passes.graph_text import function, transformed

T = "tensor<4x6x8xf32>"


def layout(body: str, kind: str, attributes: dict[str, str] | None = None, source: str = T):
    """(offset, strides, dense) of the value %r that `body` makes from %x."""
    found = []

    def look(main):
        layouts = Layouts(main)
        block = main.regions[0].blocks[0]
        (value,) = st.operation(block.operations[len(block.operations) - 1]).operands
        place = layouts.of(value)
        assert place.root == block.arguments[-1]
        found.extend((place.offset, place.strides, layouts.dense(value)))

    arguments = [("%s", "index"), ("%x", source)] if "%s" in (attributes or {}) else [("%x", source)]
    transformed(function(arguments, body, [("%r", kind)], attributes), look)
    return tuple(found)


def test_transposes_and_slices():
    body = f"%e = tensor.empty() : tensor<8x4x6xf32>\n%r = linalg.transpose ins(%x : {T}) outs(%e : tensor<8x4x6xf32>) permutation = [2, 0, 1]\n"
    assert layout(body, "tensor<8x4x6xf32>") == (0, (1, 48, 8), False)
    body = f"%r = tensor.extract_slice %x[1, 2, 0] [2, 3, 4] [1, 1, 2] : {T} to tensor<2x3x4xf32>\n"
    assert layout(body, "tensor<2x3x4xf32>") == (48 + 16, (48, 8, 2), False)
    body = f"%r = tensor.extract_slice %x[1, 0, 0] [1, 6, 8] [1, 1, 1] : {T} to tensor<6x8xf32>\n"
    assert layout(body, "tensor<6x8xf32>") == (48, (8, 1), False)


def test_collapse_and_expand():
    body = f"%r = tensor.collapse_shape %x [[0, 1], [2]] : {T} into tensor<24x8xf32>\n"
    assert layout(body, "tensor<24x8xf32>") == (0, (8, 1), True)
    body = f"%r = tensor.expand_shape %x [[0, 1], [2], [3, 4]] output_shape [2, 2, 6, 4, 2] : {T} into tensor<2x2x6x4x2xf32>\n"
    assert layout(body, "tensor<2x2x6x4x2xf32>") == (0, (96, 48, 8, 2, 1), True)


def test_arguments_with_strides():
    strides = {"%x": 'mlirc.strides = ["100", "10", "1"]'}
    with pytest.raises(NotAView):
        layout(f"%r = tensor.collapse_shape %x [[0, 1], [2]] : {T} into tensor<24x8xf32>\n", "tensor<24x8xf32>", strides)
    strides = {"%x": 'mlirc.strides = ["60", "10", "1"]'}
    assert layout(f"%r = tensor.collapse_shape %x [[0, 1], [2]] : {T} into tensor<24x8xf32>\n", "tensor<24x8xf32>", strides) == (0, (10, 1), False)


def test_symbols():
    kind = "tensor<?x8xf32>"
    attributes = {"%s": 'mlirc.symbol = "s0"', "%x": 'mlirc.sizes = ["s0", "8"]'}
    body = "%e = tensor.empty(%s) : tensor<8x?xf32>\n%r = linalg.transpose ins(%x : tensor<?x8xf32>) outs(%e : tensor<8x?xf32>) permutation = [1, 0]\n"
    assert layout(body, "tensor<8x?xf32>", attributes, kind) == (0, (1, 8), False)
    body = "%c2 = arith.constant 2 : index\n%o = arith.subi %s, %c2 : index\n%r = tensor.extract_slice %x[%o, 1] [2, 7] [1, 1] : tensor<?x8xf32> to tensor<2x7xf32>\n"
    assert layout(body, "tensor<2x7xf32>", attributes, kind) == (parse("8*s0 - 15"), (8, 1), False)


def test_merging():
    assert merges([3, 4], [4, 1]) and merges([3, 1, 4], [4, 77, 1]) and merges([5], [3])
    assert not merges([3, 4], [5, 1])
    n, m = parse("s0"), parse("s1")
    assert merges([n, m], [m, 1]) and not merges([n, m], [n, 1])
    assert row_major([n, 3, m]) == (parse("3*s1"), m, 1)
