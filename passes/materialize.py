"""Copy a tensor where its place in memory matters and is not the right one.

    %c = collapse_shape %transposed             %m = generic copy %transposed
    return %argument_view              ->       %c = collapse_shape %m
                                                return (generic copy %argument_view)

    return (transpose %made), loose    ->       return %made                             strides in `mlirc.lying`

Copied are: views whose dims do not merge, results that are not a whole row-major buffer of their own, and whatever is
written back to an input (those copies get `mlirc.write = N`, run last, and are never fused). Results that may lie as they are made
(`passes.results`) are not copied for the order of their dims. What scatters write into is the business of `passes.in_place`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .copies import copy
from .in_place import give_memory
from .layouts import Layouts, NotAView, row_major
from .results import loose, set_lying

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
    placed = give_memory(function, writes, layouts)
    last = st.operation(block.operations[len(block.operations) - 1])
    n_out = len(last.operands) - len(writes)
    taken: set[ir.Value] = set(placed)
    free, lying = loose(function), {}
    for i in range(n_out):
        value = last.operands[i]
        root = layouts.of(value).root
        producer = st.owner(root)
        own = producer is not None and st.kind(producer) not in ("call", "aux") and root not in taken
        if own and i in free and not layouts.whole(value) and (strides := _permuted(value, layouts)):
            lying[i] = strides
            last.operands[i] = root
        elif not own or not layouts.whole(value):
            with ir.InsertionPoint(last), producer.location if producer else ir.Location.unknown():
                last.operands[i] = _copy_merged(value, layouts)
            root = last.operands[i]
        taken.add(root)
    if lying:
        set_lying(function, lying)
        kinds = [a.type for a in block.arguments], [v.type for v in last.operands]
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*kinds))
    for i, argument in enumerate(writes):
        value = last.operands[n_out + i]
        if placed.get(layouts.of(value).root) == argument:
            continue
        with ir.InsertionPoint(last), ir.Location.unknown():
            if st.owner(layouts.of(value).root) is None:
                value = copy(value, layouts)
            last.operands[n_out + i] = copy(value, layouts, write=argument)
    # Views that nothing reads any more: a kernel would store what they look at.
    for op in reversed([st.operation(o) for o in block.operations]):
        if st.kind(op) == "view" and not any(True for _ in op.results[0].uses):
            op.erase()


def _copy_merged(value: ir.Value, layouts: Layouts) -> ir.Value:
    """A copy. Of a transposition of split dims that stay side by side the copy is split, which joins the kernel of what is split:

        transpose (expand_shape %w : [c, kh, kw, o]) to [o, c, kh, kw]     ->     expand_shape (copy (transpose %w to [o, (c kh kw)]))
    """
    transpose = st.owner(value)
    split = st.owner(transpose.operands[0]) if transpose is not None and transpose.name == "linalg.transpose" else None
    if transpose is None or split is None or split.name != "tensor.expand_shape":
        return copy(value, layouts)
    order, groups = st.integers(transpose.attributes["permutation"]), st.reassociation(split)
    swapped = sorted(range(len(groups)), key=lambda g: order.index(groups[g][0]))
    if [d for g in swapped for d in groups[g]] != order:
        return copy(value, layouts)
    sizes = layouts.values(split.operands[0])
    merged = copy(builders.transpose(split.operands[0], swapped, [sizes[g] for g in swapped]), layouts)
    places = iter(range(len(order)))
    return builders.expand(merged, [[next(places) for _ in groups[g]] for g in swapped], layouts.values(value))


def _permuted(value: ir.Value, layouts: Layouts) -> list[int] | None:
    """The strides of a value that is all of its root's memory, its dims in some order; None where it is not, or sizes are symbols."""
    layout, sizes = layouts.of(value), layouts.shapes.of(value)
    strides, whole = layout.strides, layouts.shapes.of(layout.root)
    if layout.offset != 0 or not all(isinstance(n, int) for n in (*strides, *sizes, *whole)):
        return None
    order = sorted(range(len(sizes)), key=lambda d: (-strides[d], -sizes[d]))  # type: ignore[operator]
    dense = all(n == 1 or s == r for n, s, r in ((sizes[d], strides[d], r) for d, r in zip(order, row_major([sizes[d] for d in order]))))  # type: ignore[misc]
    return list(strides) if dense and math.prod(sizes) == math.prod(whole) else None  # type: ignore[arg-type]
