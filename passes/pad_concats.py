"""Padding of a concatenation is a concatenation of padded tensors, which is one kernel instead of two.

    %c = concat dim(3) %x, %y                        %a, %b = pad %x, pad %y
    %p = pad %c low[0, 1, 1, 0] high[0, 1, 1, 0]  ->  %p = concat dim(3) %a, %b

For dims other than the concatenated one, where nothing else reads the concatenation.
"""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .layouts import Layouts

PASS_NAME = "mlirc-pad-concats"


def pad_concats(function: ir.Operation) -> bool:
    """One walk over the function's block; whether there was one."""
    swapped, layouts = False, Layouts(function)
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if op.name == "tensor.pad":
            below = st.owner(op.operands[0])
            if below is not None and below.name == "tensor.concat" and len(list(below.results[0].uses)) == 1:
                dim = ir.IntegerAttr(below.attributes["dim"]).value
                if all(p[dim] == 0 for p in st.pads(op)):
                    layouts.begin_again()
                    _swap(op, below, dim, layouts)
                    swapped = True
    return swapped


def _swap(pad: ir.Operation, concat: ir.Operation, dim: int, layouts: Layouts) -> None:
    kind = pad.results[0].type
    parts = []
    with ir.InsertionPoint(pad), pad.location:
        for v in concat.operands:
            part = st.operation(pad.clone())
            part.operands[0] = v
            part.results[0].set_type(
                builders.tensor_type([n if d == dim else m for d, (m, n) in enumerate(zip(kind.shape, v.type.shape))], kind.element_type)
            )
            parts.append(part.results[0])
        new = builders.concat(parts, dim, kind, layouts.shapes.of(pad.results[0]))
    pad.results[0].replace_all_uses_with(new)
    pad.erase()
    concat.erase()
