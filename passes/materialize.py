"""Copy a tensor where its place in memory matters and is not the right one.

    %c = collapse_shape %transposed             %m = generic copy %transposed
    return %argument_view              ->       %c = collapse_shape %m
                                                return (generic copy %argument_view)

Copied are: views whose dims do not merge, results that are not a whole row-major buffer of their own, and whatever is
written back to an input (those copies get `mlirc.write = N`, run last, and are never fused).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dialects import builders
from ..dialects.mlir import func, ir
from . import structure as st
from .layouts import Layouts, NotAView

PASS_NAME = "mlirc-materialize"


def materialize(function: ir.Operation, writes: Sequence[int]) -> None:
    """`writes[i]` is the tensor argument that the i-th of the last results overwrites."""
    block = function.regions[0].blocks[0]
    layouts = Layouts(function)
    for op in [st.operation(o) for o in block.operations]:
        if st.kind(op) == "view":
            try:
                layouts.of(op.results[0])
            except NotAView:
                with ir.InsertionPoint(op), op.location:
                    op.operands[0] = copy(op.operands[0], layouts)
                layouts.of(op.results[0])
    last = st.operation(block.operations[len(block.operations) - 1])
    n_out = len(last.operands) - len(writes)
    taken: set[ir.Value] = set()
    for i in range(n_out):
        value = last.operands[i]
        root = layouts.of(value).root
        producer = st.owner(root)
        own = producer is not None and st.kind(producer) not in ("call", "aux") and root not in taken
        if not own or not layouts.dense(value) or not _whole(root, value, layouts):
            with ir.InsertionPoint(last), producer.location if producer else ir.Location.unknown():
                last.operands[i] = copy(value, layouts)
            root = last.operands[i]
        taken.add(root)
    for i, argument in enumerate(writes):
        value = last.operands[n_out + i]
        with ir.InsertionPoint(last), ir.Location.unknown():
            if st.owner(layouts.of(value).root) is None:
                value = copy(value, layouts)
            last.operands[n_out + i] = copy(value, layouts, write=argument)


def _whole(root: ir.Value, value: ir.Value, layouts: Layouts) -> bool:
    from .layouts import _product
    from ..dialects.sizes import normal

    return normal(_product(layouts.shapes.of(root)) - _product(layouts.shapes.of(value))) == 0  # type: ignore[arg-type]


def copy(value: ir.Value, layouts: Layouts, write: int | None = None) -> ir.Value:
    """An identity generic: the value, row-major in a buffer of its own."""
    rank = len(st.shape(value))
    layouts.sizes.forget()
    sizes = [s if isinstance(s, int) else layouts.sizes.value(s) for s in layouts.shapes.of(value)]  # type: ignore[arg-type]
    init = builders.empty(sizes, builders.element_type(value))
    identity = builders.identity(rank)
    (out,) = builders.generic([value], [init], [identity, identity], "p" * rank, lambda v, _: [v])
    if out.type != value.type:
        raise AssertionError((out.type, value.type))
    if write is not None:
        st.operation(out.owner).attributes["mlirc.write"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), write)
    return out


__all__ = ["copy", "func", "materialize"]
