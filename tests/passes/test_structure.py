"""What is remembered of ops, attributes and maps."""

from __future__ import annotations

from mlirc.dialects.mlir import ir
from mlirc.passes import structure as st
from mlirc.tests.passes.graph_text import function, generic, transformed

T, ROW = "tensor<4x8xf32>", "tensor<4xf32>"
SUMS = function([("%x", T)], generic("%s", [("%x", T)], ROW, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0"), [("%s", ROW)])


def reduction(function: ir.Operation) -> ir.Operation:
    return next(op for op in map(st.operation, function.regions[0].blocks[0].operations) if op.name == "linalg.generic")


def test_what_is_remembered_is_nobodys_to_change():
    def ask(f):
        op = reduction(f)
        with st.one_context():
            for _ in range(2):
                answers = st.iterators(op), st.maps(op), st.map_dims(st.maps(op)[0])
                assert answers[0] == ["parallel", "reduction"] and len(answers[1]) == 2 and answers[2] == [0, 1]
                for answer in answers:
                    answer.clear()

    transformed(SUMS, ask)


def test_a_map_is_asked_once_within_a_context():
    asked = []

    @st.content
    def results(m):
        asked.append(m)
        return len(m.results)

    def ask(f):
        op = reduction(f)
        with st.one_context():
            assert [results(m) for m in (*st.maps(op), *st.maps(op))] == [2, 1, 2, 1] and len(asked) == 2
        assert results(st.maps(op)[0]) == 2 and len(asked) == 3, "nothing is kept beyond it"

    transformed(SUMS, ask)


def test_an_op_that_changes_is_asked_anew():
    def ask(f):
        op = reduction(f)
        with st.unchanging():
            assert st.kind(op) == st.kind(op) == "reduction"
        op.attributes["mlirc.kind"] = ir.StringAttr.get("scatter")
        assert st.kind(op) == "scatter"

    transformed(SUMS, ask)
