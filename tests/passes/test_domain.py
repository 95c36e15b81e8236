"""The common iteration space of a set of ops."""

from __future__ import annotations

import pytest

from mlirc.passes import structure as st
from mlirc.passes.domain import Domain, Invalid, analyse
from mlirc.passes.layouts import Layouts
from mlirc.tests.passes.graph_text import function, generic, matmul, transformed

T, ROW, COLUMN = "tensor<4x8xf32>", "tensor<4xf32>", "tensor<8xf32>"


def domain(text: str) -> tuple[str, list[object], list[object], list[object]]:
    """(kind, sizes of rows, sizes of inner, classes of each op) of all ops of the function."""
    found: list[Domain] = []

    def look(main):
        ops = [st.operation(o) for o in main.regions[0].blocks[0].operations]
        found.append(analyse(ops[:-1], list(ops[-1].operands), Layouts(main).shapes))
        d = found[0]
        found.append([[None if c is None else d.sizes[c] for c in d.loops[o]] for o in ops if o in d.loops])  # type: ignore[arg-type]

    transformed(text, look)
    d, loops = found
    return d.kind, [d.sizes[c] for c in d.rows], [d.sizes[c] for c in d.inner], loops  # type: ignore[return-value]


def test_loops():
    body = generic("%a", [("%x", T), ("%v", COLUMN)], T, ["i, j", "j", "i, j"], "arith.addf")
    kind, rows, inner, _ = domain(function([("%x", T), ("%v", COLUMN)], body, [("%a", T)]))
    assert (kind, rows, inner) == ("loops", [4, 8], [])


def test_rows():
    body = generic("%s", [("%x", T)], ROW, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
    body += generic("%a", [("%x", T), ("%s", ROW)], T, ["i, j", "i", "i, j"], "arith.divf")
    kind, rows, inner, loops = domain(function([("%x", T)], body, [("%a", T), ("%s", ROW)]))
    assert (kind, rows, inner) == ("rows", [4], [8])
    assert loops == [[4, 8], [4, 8]]


def test_contraction():
    body = matmul("%m", "%x", "%w", 4, 8, 16) + generic("%a", [("%m", "tensor<4x16xf32>")], "tensor<4x16xf32>")
    arguments = [("%x", T), ("%w", "tensor<8x16xf32>")]
    kind, rows, inner, _ = domain(function(arguments, body, [("%a", "tensor<4x16xf32>")]))
    assert (kind, rows, inner) == ("contraction", [4, 16], [8])
    # Its own result may be stored as well, alone or with what is computed from it.
    assert domain(function(arguments, matmul("%m", "%x", "%w", 4, 8, 16), [("%m", "tensor<4x16xf32>")]))[0] == "contraction"
    assert domain(function(arguments, body, [("%a", "tensor<4x16xf32>"), ("%m", "tensor<4x16xf32>")]))[0] == "contraction"


def test_through_views():
    """A transposed use walks over the same dims in another order, a use with a unit dim over all but that."""
    body = generic("%a", [("%x", T)], T)
    body += "%e = tensor.empty() : tensor<8x4xf32>\n%t = linalg.transpose ins(%a : tensor<4x8xf32>) outs(%e : tensor<8x4xf32>) permutation = [1, 0]\n"
    body += generic("%b", [("%t", "tensor<8x4xf32>")], "tensor<8x4xf32>", body="math.sin")
    kind, rows, _, loops = domain(function([("%x", T)], body, [("%b", "tensor<8x4xf32>")]))
    assert kind == "loops" and sorted(rows) == [4, 8] and loops == [[4, 8], [8, 4]]
    one = "tensor<4x1x8xf32>"
    body = generic("%a", [("%x", T)], T) + f"%e = tensor.expand_shape %a [[0, 1], [2]] output_shape [4, 1, 8] : {T} into {one}\n"
    body += generic("%b", [("%e", one)], one, body="math.sin")
    assert domain(function([("%x", T)], body, [("%b", one)]))[3] == [[4, 8], [4, None, 8]]


def test_siblings_share_loops_through_what_they_read():
    body = generic("%a", [("%x", T)], ROW, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
    body += generic("%b", [("%x", T)], ROW, ["i, j", "i"], "arith.maximumf", "pr", "ij", "0.0")
    kind, rows, inner, _ = domain(function([("%x", T)], body, [("%a", ROW), ("%b", ROW)]))
    assert (kind, rows, inner) == ("rows", [4], [8])


def test_loops_of_size_one_are_none():
    one = "tensor<1x8xf32>"
    assert domain(function([("%x", one)], generic("%a", [("%x", one)], one), [("%a", one)]))[1] == [8]


REFUSED = {
    "reductions over different dims": (
        generic("%s", [("%x", T)], ROW, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
        + generic("%c", [("%x", T)], COLUMN, ["i, j", "j"], "arith.addf", "rp", "ij", "0.0"),
        [("%s", ROW), ("%c", COLUMN)],
    ),
    "stored values have different shapes": (
        generic("%a", [("%x", T)], T) + generic("%b", [("%y", COLUMN)], COLUMN), [("%a", T), ("%b", COLUMN)]
    ),
    "two anchors": (matmul("%m", "%x", "%u", 4, 8, 16) + matmul("%n", "%m", "%v", 4, 16, 5), [("%n", "tensor<4x5xf32>")]),
    "a reduction behind a contraction": (
        matmul("%m", "%x", "%w", 4, 8, 8) + generic("%s", [("%m", T)], ROW, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0"), [("%s", ROW)]
    ),
    "one op walks twice over the same dim": (
        generic("%a", [("%w", "tensor<8x8xf32>")], "tensor<8x8xf32>")
        + generic("%d", [("%a", "tensor<8x8xf32>"), ("%a", "tensor<8x8xf32>")], "tensor<8x8xf32>", ["i, j", "j, i", "i, j"], "arith.addf"),
        [("%d", "tensor<8x8xf32>")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason):
    body, results = REFUSED[reason]
    with pytest.raises(Invalid, match=reason):
        domain(function([("%x", T), ("%y", COLUMN), ("%w", "tensor<8x8xf32>"), ("%u", "tensor<8x16xf32>"), ("%v", "tensor<16x5xf32>")], body, results))
