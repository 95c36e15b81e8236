"""Fold transposes into indexing maps, and let layouts flow through elementwise ops.

    %t = transpose %x [1, 0]                    generic (d0, d1) -> (d1, d0) of %x
    generic (d0, d1) -> (d0, d1) of %t    ->

    %a = transpose %nhwc to nchw                %b' = generic relu(%nhwc)
    %b = generic relu(%a)                 ->    %b = transpose %b' to nchw

    %a, %b = transpose %x, transpose %y         %c' = concat(%x, %y)
    %c = concat(%a, %b)                   ->    %c = transpose %c'

An elementwise op takes the dim order of its largest operand, so that a chain of channels-last convolutions stays
channels-last and its ops fuse; a concatenation that of its operands, if they agree.
"""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .layouts import Layouts

PASS_NAME = "mlirc-fold-transposes"


def fold_transposes(function: ir.Operation) -> None:
    """One walk in program order over the function's block."""
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if op.name == "linalg.transpose":
            _compose(op)
        elif op.name == "tensor.concat":
            follow_operands(op, function)
        elif op.name == "linalg.generic":
            fold_operands(op)
            if st.kind(op) == "elementwise" and not st.uses_index(op):
                follow_operand(op)


def _compose(op: ir.Operation) -> None:
    """transpose(transpose(x)) reads x; the identity disappears."""
    order = st.integers(op.attributes["permutation"])
    below = st.owner(op.operands[0])
    if below is not None and below.name == "linalg.transpose":
        inner = st.integers(below.attributes["permutation"])
        order = [inner[d] for d in order]
        op.operands[0] = below.operands[0]
        op.attributes["permutation"] = ir.DenseI64ArrayAttr.get(order)
    if order == sorted(order):
        op.results[0].replace_all_uses_with(op.operands[0])


def fold_operands(op: ir.Operation) -> None:
    """Read the transposes' sources, through permuted maps."""
    maps = st.maps(op)
    changed = False
    for i, v in enumerate(st.inputs(op)):
        producer = st.owner(v)
        if producer is None or producer.name != "linalg.transpose":
            continue
        order = st.integers(producer.attributes["permutation"])
        results: list[ir.AffineExpr] = [None] * len(order)  # type: ignore[list-item]
        for k, d in enumerate(order):
            results[d] = maps[i].results[k]
        op.operands[i] = producer.operands[0]
        maps[i] = ir.AffineMap.get(maps[i].n_dims, 0, results)
        changed = True
    if changed:
        op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])


def follow_operand(op: ir.Operation) -> None:
    """Give the result of an elementwise op the dim order of its first full operand."""
    maps = st.maps(op)
    rank = maps[-1].n_dims
    if rank < 2 or len(op.results) != 1 or st.map_dims(maps[-1]) != list(range(rank)):
        return
    full = [m for m in (st.map_dims(m) for m in maps[:-1]) if None not in m and sorted(m) == list(range(rank))]  # type: ignore[type-var]
    if not full or any(m == list(range(rank)) for m in full):
        return
    order = full[0]
    # Loop d of the old op is loop order.index(d) of the new one: the chosen operand is then walked in order.
    renamed = [ir.AffineDimExpr.get(order.index(d)) for d in range(rank)]
    rename = ir.AffineMap.get(rank, 0, renamed)
    new_maps = [_substitute(m, rename) for m in maps[:-1]] + [builders.identity(rank)]
    with ir.InsertionPoint(op), op.location:
        init = st.operation(op.operands[len(op.operands) - 1].owner)
        sizes = _sizes(init)
        new_init = builders.empty([sizes[d] for d in order], builders.element_type(op.results[0]))  # type: ignore[index]
        new = op.clone(ip=ir.InsertionPoint(op))
        new = st.operation(new)
        new.operands[len(new.operands) - 1] = new_init
        new.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in new_maps])
        new.results[0].set_type(new_init.type)
        back = builders.transpose(new.results[0], [order.index(d) for d in range(rank)], sizes)
    op.results[0].replace_all_uses_with(back)
    op.erase()


def follow_operands(op: ir.Operation, function: ir.Operation) -> None:
    """Concatenate the sources of operands that are all transposed in the same way, and transpose the result."""
    orders = []
    for v in op.operands:
        producer = st.owner(v)
        if producer is None or producer.name != "linalg.transpose":
            return
        orders.append(st.integers(producer.attributes["permutation"]))
    order = orders[0]
    if any(o != order for o in orders):
        return
    layouts = Layouts(function)
    with ir.InsertionPoint(op), op.location:
        kind = op.results[0].type
        # More may be known about a size than the type says, which has to stay.
        sizes = [builders.index(s) if isinstance(s, int) and n < 0 else s for s, n in zip(layouts.values(op.results[0]), kind.shape)]
        sources = [st.owner(v).operands[0] for v in op.operands]  # type: ignore[union-attr]
        # Dim order[i] of the sources is dim i of what was concatenated.
        back = [order.index(d) for d in range(len(order))]
        flat = builders.tensor_type([kind.shape[i] for i in back], kind.element_type)
        names = layouts.shapes.of(op.results[0])
        new = builders.concat(sources, order[ir.IntegerAttr(op.attributes["dim"]).value], flat, [names[i] for i in back])
        result = builders.transpose(new, order, sizes)
    op.results[0].replace_all_uses_with(result)
    op.erase()


def _substitute(m: ir.AffineMap, rename: ir.AffineMap) -> ir.AffineMap:
    return ir.AffineMap.get(m.n_dims, 0, [e.compose(rename) for e in m.results])


def _sizes(empty: ir.Operation) -> list[builders.Size]:
    left = list(empty.operands)
    return [s if s >= 0 else left.pop(0) for s in st.shape(empty.results[0])]
