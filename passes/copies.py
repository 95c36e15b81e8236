"""An identity generic: the place where a tensor is laid out anew."""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import arith, ir
from . import structure as st
from .layouts import Layouts


def copy(value: ir.Value, layouts: Layouts, write: int | None = None) -> ir.Value:
    """An identity generic: the value, row-major in a buffer of its own."""
    rank = len(st.shape(value))
    layouts.sizes.forget()
    sizes: list[int | ir.Value] = []
    for static, s in zip(st.shape(value), layouts.shapes.of(value)):
        # More may be known about a size than the type says, which has to stay.
        if static == builders.DYNAMIC:
            sizes.append(arith.constant(ir.IndexType.get(), s) if isinstance(s, int) else layouts.sizes.value(s))
        else:
            sizes.append(static)
    init = builders.empty(sizes, builders.element_type(value))
    identity = builders.identity(rank)
    (out,) = builders.generic([value], [init], [identity, identity], "p" * rank, lambda v, _: [v])
    if out.type != value.type:
        raise AssertionError((out.type, value.type))
    if write is not None:
        st.operation(out.owner).attributes["mlirc.write"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), write)
    return out
