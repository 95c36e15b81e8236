"""Which arguments of a graph are weights, so that what is made of them is kept, and which products are linear layers."""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st

WEIGHTS = "mlirc.weights"
"""Of the graph's function: the tensor arguments that hardly ever change, so that what is made of them is kept."""


def weights_of(function: ir.Operation) -> set[ir.Value]:
    """The tensor arguments that `mlirc.weights` names; all where it is not there."""
    arguments = [a for a in function.regions[0].blocks[0].arguments if st.is_tensor(a)]
    if WEIGHTS not in function.attributes:
        return set(arguments)
    return {arguments[i] for i in ir.DenseI64ArrayAttr(function.attributes[WEIGHTS])}


def is_linear(op: ir.Operation, weights: set[ir.Value]) -> bool:
    """Whether it multiplies rows [m, k] with a weight, [n, k] or [k, n]."""
    if st.kind(op) != "contraction" or [len(m.results) for m in st.maps(op)] != [2, 2, 2]:
        return False
    rows, weight, out = (st.map_dims(m) for m in st.maps(op))
    plain = None not in (*rows, *weight, *out) and out[0] == rows[0] and set(weight) == {out[1], rows[1]}
    return plain and builders.element_type(op.operands[0]) == builders.element_type(op.operands[1]) and st.root(op.operands[1]) in weights
