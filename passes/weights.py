"""Which arguments of a graph are weights, so that what is made of them is kept."""

from __future__ import annotations

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
