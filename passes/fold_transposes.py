"""Fold transposes into indexing maps, and let layouts flow through elementwise ops.

    %t = transpose %x [1, 0]                    generic (d0, d1) -> (d1, d0) of %x
    generic (d0, d1) -> (d0, d1) of %t    ->

    %a = transpose %nhwc to nchw                %b' = generic relu(%nhwc)
    %b = generic relu(%a)                 ->    %b = transpose %b' to nchw

    %a, %b = transpose %x, transpose %y         %c' = concat(%x, %y)
    %c = concat(%a, %b)                   ->    %c = transpose %c'

    %t = transpose %nhwc to nchw                %g' = generic %nhwc[n, i, j, c] over n, h, w, c
    %g = generic %t[n, c, i, j]           ->    %g = transpose %g' to nchw

    %t = transpose %nhwc to nchw                %e' = expand_shape %nhwc to n, h, w, g, c
    %e = expand_shape %t to n, g, c, h, w ->    %e = transpose %e'

    %t = transpose %nhwc to nchw                %p' = pad %nhwc
    %p = pad %t, read by a concat         ->    %p = transpose %p' to nchw

    %t = transpose %nchw to nhwc                %p' = max of windows of %nchw : nchw
    %p = max of windows of %t : nhwc      ->    %p = transpose %p' to nhwc

    %t = transpose %nchw to nhwc                %r' = generic sum of %nchw[n, c, y / 2, x / 2] : nchw
    %r = generic sum of %t[n, y / 2, ...] ->    %r = transpose %r' to nhwc

    %t = transpose %nhwgc to ngchw              %s' = generic sum over g of %nhwgc : nhwc
    %s = generic sum over g of %t : nchw  ->    %s = transpose %s' to nchw

An elementwise op takes the dim order of its largest operand, so that a chain of channels-last convolutions stays
channels-last and its ops fuse, also where dims are split and merged between (a group norm); a reduction that of what it reduces; a
gather one in which its innermost loop runs along memory; a concatenation that of its operands, if they agree, and a pad in front of
such, of an elementwise op, of a reduction (a pooling) or of one that transposes back (a convolution) that of its operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .layouts import Layouts
from .weights import weights_of

PASS_NAME = "mlirc-fold-transposes"


def fold_transposes(function: ir.Operation) -> None:
    """One walk in program order over the function's block."""
    weights, layouts = weights_of(function), Layouts(function)
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if op.name == "linalg.transpose":
            _compose(op)
        elif op.name == "tensor.concat":
            follow_operands(op, layouts)
        elif op.name == "tensor.pad":
            follow_padded(op, layouts)
        elif op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
            follow_view(op, layouts, weights)
        elif op.name == "tensor.extract_slice":
            follow_slice(op, layouts, weights)
        elif op.name == "linalg.generic":
            fold_operands(op)
            if st.kind(op) == "elementwise":
                follow_operand(op)
            elif st.kind(op) == "reduction":
                follow_reduced(op)


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
    """Read the transposes' sources: operands through permuted maps, what is gathered by permuted indices."""
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
    for gather in st.body_ops(op):
        producer = st.owner(gather.operands[0]) if gather.name == "tensor.extract" else None
        if producer is not None and producer.name == "linalg.transpose":
            indices = list(gather.operands)[1:]
            for index, d in zip(indices, st.integers(producer.attributes["permutation"])):
                gather.operands[1 + d] = index
            gather.operands[0] = producer.operands[0]
    if changed:
        op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])


def follow_operand(op: ir.Operation) -> None:
    """Give the result of an elementwise op the dim order of its first full operand, or else of what it gathers."""
    maps = st.maps(op)
    rank = maps[-1].n_dims
    if rank < 2 or len(op.results) != 1 or st.map_dims(maps[-1]) != list(range(rank)) or st.ORDERED in op.attributes:
        return
    full = _full(maps)
    if any(m == list(range(rank)) for m in full) or any(len(o.regions) for o in st.body_ops(op)):
        return
    order = full[0] if full else _windows(maps, rank) or _gathered(op, rank)
    if order != list(range(rank)):
        _walk(op, order, st.operation(op.operands[len(op.operands) - 1].owner), builders.empty)


def follow_reduced(op: ir.Operation) -> None:
    """Give the result of a reduction the order that its dims have in the first operand that has all loops, which are walked in order."""
    maps, init = st.maps(op), st.owner(op.operands[len(op.operands) - 1])
    stored = st.map_dims(maps[-1])
    if len(op.results) != 1 or None in stored or init is None or init.name != "linalg.fill" or any(len(o.regions) for o in st.body_ops(op)):
        return
    places = [d for d in stored if d is not None]
    order = next(iter(_full(maps)), None) or _windowed(maps, places) or _looked_up(op, places)
    empty = st.owner(init.operands[1])
    if order and [d for d in order if d in places] != places and empty is not None and empty.name == "tensor.empty":
        _walk(op, order, empty, lambda sizes, _: builders.fill(sizes, init.operands[0]))


def _full(maps: Sequence[ir.AffineMap]) -> list[list[int]]:
    """The loops of the operands that have all of them, in the order of their dims."""
    loops = list(range(maps[-1].n_dims))
    return [m for m in map(st.map_dims, maps[:-1]) if None not in m and sorted(m) == loops]  # type: ignore[type-var, misc]


def _windowed(maps: Sequence[ir.AffineMap], stored: Sequence[int]) -> list[int] | None:
    """The loops of the operand whose windows are reduced (a pool's): places in the order of the dims, then what runs within a window."""
    for m in maps[:-1]:
        dims = [list(st.loops_in(e)) for e in m.results]
        outer = [d for loops in dims for d in loops if d in stored or len(loops) == 1]
        inner = [d for loops in dims for d in loops if d not in outer]
        if sorted(outer + inner) == list(range(m.n_dims)) and all(sum(d in stored for d in loops) < 2 for loops in dims):
            return outer + sorted(inner)
    return None


def _looked_up(op: ir.Operation, stored: Sequence[int]) -> list[int] | None:
    """The same of what is read at computed places, each of which depends on one place of the result (a pool's gradient)."""
    for o in st.body_ops(op):
        if o.name == "tensor.extract":
            outer = [d for index in list(o.operands)[1:] for d in _behind(index) if d in stored]
            single = [d for d, n in zip(stored, st.shape(op.results[0])) if n == 1 and d not in outer]
            if sorted(single + outer) == sorted(stored):
                return [*single, *outer, *(d for d in range(len(st.iterators(op))) if d not in stored)]
    return None


def _behind(index: ir.Value) -> list[int]:
    """The loops that an index is computed from."""
    todo, loops = [index], set()
    while todo:
        o = st.owner(todo.pop())
        if o is not None and o.name == "linalg.index":
            loops.add(ir.IntegerAttr(o.attributes["dim"]).value)
        elif o is not None and o.name.startswith("arith."):
            todo += o.operands
    return sorted(loops)


def _walk(op: ir.Operation, order: list[int], empty: ir.Operation, start: Callable[[list[builders.Size], ir.Type], ir.Value]) -> None:
    """Walk over the loops of an op in another order, store its result in that, and transpose it back.

    `empty` has the sizes of the result, `start` makes what it begins with of such.
    """
    maps, iterators = st.maps(op), st.iterators(op)
    rank, stored = maps[-1].n_dims, st.map_dims(maps[-1])
    dims = [stored.index(d) for d in order if d in stored]
    # Loop d of the old op is loop order.index(d) of the new one.
    rename = ir.AffineMap.get(rank, 0, [ir.AffineDimExpr.get(order.index(d)) for d in range(rank)])
    new_maps = [*(_substitute(m, rename) for m in maps[:-1]), builders.projection(rank, [order.index(stored[d]) for d in dims])]  # type: ignore[arg-type]
    with ir.InsertionPoint(op), op.location:
        sizes = builders.sizes_of(empty)
        init = start([sizes[d] for d in dims], builders.element_type(op.results[0]))
        new = st.operation(op.clone(ip=ir.InsertionPoint(op)))
        new.operands[len(new.operands) - 1] = init
        new.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in new_maps])
        new.attributes["iterator_types"] = builders.iterator_types("".join(iterators[d][0] for d in order))
        new.results[0].set_type(init.type)
        for o in st.body_ops(new):
            if o.name == "linalg.index":
                d = order.index(ir.IntegerAttr(o.attributes["dim"]).value)
                o.attributes["dim"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), d)
        back = builders.transpose(new.results[0], [dims.index(d) for d in range(len(dims))], sizes)
    op.results[0].replace_all_uses_with(back)
    op.erase()


def _windows(maps: Sequence[ir.AffineMap], rank: int) -> list[int] | None:
    """The loops of windows of one operand (`unfold`), with that one innermost along which it is contiguous."""
    if len(maps) != 2 or not any(isinstance(e, ir.AffineAddExpr) for e in maps[0].results):
        return None
    last = st.map_dims(maps[0])[-1]
    return None if last is None else [*(d for d in range(rank) if d != last), last]


def _gathered(op: ir.Operation, rank: int) -> list[int]:
    """The loops with that one innermost which all gathers take for the last dim of what they read, as they are if there is none."""
    last = [st.owner(o.operands[len(o.operands) - 1]) for o in st.body_ops(op) if o.name == "tensor.extract" and len(o.operands) > 1]
    along = {ir.IntegerAttr(o.attributes["dim"]).value if o is not None and o.name == "linalg.index" else None for o in last}
    loop = along.pop() if len(along) == 1 else None
    return list(range(rank)) if loop is None else [*(d for d in range(rank) if d != loop), loop]


def follow_padded(op: ir.Operation, layouts: Layouts) -> None:
    """Pad the source of a transposed operand, and transpose the result.

    Convolutions choose themselves how their operands lie; those that want planes get them from the pass that packs.
    """
    below = st.owner(op.operands[0])
    users = [st.operation(u.owner) for u in op.results[0].uses]
    if below is None or below.name != "linalg.transpose":
        return
    order = st.integers(below.attributes["permutation"])
    if not all(st.kind(u) in ("concat", "elementwise", "reduction") or _undoes(u, order) or _wants_planes(u) for u in users):
        return
    if (around := st.padding(op)) is None:
        return
    back = [order.index(d) for d in range(len(order))]
    low, high = ([side[i] for i in back] for side in st.pads(op))
    with ir.InsertionPoint(op), op.location:
        sizes = _known(op.results[0], layouts)
        shape = [op.results[0].type.shape[i] for i in back]
        result = builders.transpose(builders.pad(below.operands[0], low, high, shape, around), order, sizes)
    op.results[0].replace_all_uses_with(result)
    op.erase()


def _undoes(op: ir.Operation, order: Sequence[int]) -> bool:
    """Whether it transposes back what was transposed to `order`, perhaps with its dims split."""
    groups = [[d] for d in range(len(order))]
    users = [op]
    if op.name == "tensor.expand_shape":
        groups = st.reassociation(op)
        users = [st.operation(u.owner) for u in op.results[0].uses]
    back = [d for at in range(len(order)) for d in groups[order.index(at)]]
    return all(u.name == "linalg.transpose" and list(st.integers(u.attributes["permutation"])) == back for u in users)


def _wants_planes(op: ir.Operation) -> bool:
    """Whether it is a convolution, perhaps behind a view, that has its innermost loop along the lines of the image."""
    if op.name == "tensor.expand_shape":
        return all(_wants_planes(st.operation(u.owner)) for u in op.results[0].uses)
    if st.kind(op) != "convolution":
        return False
    image, _, out = st.maps(op)
    lane = st.map_dims(out)[-1]
    return any(lane in st.loops_in(e) for d, e in zip(st.map_dims(image), image.results) if d is None)


def _known(value: ir.Value, layouts: Layouts) -> list[builders.Size]:
    """Sizes of a value, those that the type does not say as values, even if more is known about them: the type has to stay."""
    layouts.begin_again()
    return [builders.index(s) if isinstance(s, int) and n < 0 else s for s, n in zip(layouts.values(value), value.type.shape)]


def follow_view(op: ir.Operation, layouts: Layouts, weights: set[ir.Value]) -> None:
    """Split or merge the dims of a transposed operand's source, if what is merged lies in the same order there, and transpose the result.

    Dims of one come and go as before where an argument, or what is made of weights, gets or loses nothing else: the copy of a constant
    that is read so (`passes.constants`) is found by its transposition.
    """
    below = st.owner(op.operands[0])
    if below is None or below.name != "linalg.transpose":
        return
    order, groups = st.integers(below.attributes["permutation"]), st.reassociation(op)
    expands = op.name == "tensor.expand_shape"
    wide = st.shape(op.results[0] if expands else op.operands[0])
    if all(sum(wide[d] != 1 for d in g) < 2 for g in groups) and (sum(n != 1 for n in wide) < 2 or _is_constant(below.operands[0], weights)):
        return
    # The dims of the source, and of the result, that belong together.
    pairs = [([order[d]], g) for d, g in enumerate(groups)] if expands else [([order[d] for d in g], [k]) for k, g in enumerate(groups)]
    if any(source != list(range(source[0], source[0] + len(source))) for source, _ in pairs if source):
        return
    pairs.sort()
    flat = [d for _, result in pairs for d in result]
    split = iter(range(len(flat) if expands else len(order)))
    with ir.InsertionPoint(op), op.location:
        sizes = _known(op.results[0], layouts)
        view = builders.expand if expands else builders.collapse
        merged = [[next(split) for _ in (result if expands else source)] for source, result in pairs]
        new = view(below.operands[0], merged, [sizes[d] for d in flat])
        result = builders.transpose(new, [flat.index(d) for d in range(len(flat))], sizes)
    op.results[0].replace_all_uses_with(result)
    op.erase()


def _is_constant(value: ir.Value, weights: set[ir.Value]) -> bool:
    """Whether a value is an argument, or made of weights alone, by a few ops."""
    if st.owner(value) is None:
        return True
    todo, seen = [value], 0
    while todo:
        v = todo.pop()
        op, seen = st.owner(v), seen + 1
        if seen > MOST_OF_CONSTANTS or op is None and v not in weights:
            return False
        if op is not None:
            todo += [o for o in (*op.operands, *st.captured(op)) if st.is_tensor(o) and ((p := st.owner(o)) is None or p.name not in st.AUXILIARY)]
    return True


MOST_OF_CONSTANTS = 32
"""Values that one is made of, at most; what is made of inputs has more."""


def follow_slice(op: ir.Operation, layouts: Layouts, weights: set[ir.Value]) -> None:
    """Slice the source of a transposed operand, and transpose the result; of constants see `follow_view`."""
    below = st.owner(op.operands[0])
    if below is None or below.name != "linalg.transpose" or len(st.shape(op.results[0])) != len(st.shape(op.operands[0])):
        return
    if _is_constant(below.operands[0], weights):
        return
    order = st.integers(below.attributes["permutation"])
    back = [order.index(d) for d in range(len(order))]
    offsets, steps = st.slice_parts(op)
    with ir.InsertionPoint(op), op.location:
        sizes = _known(op.results[0], layouts)
        shape = [s if n < 0 else n for s, n in zip(sizes, st.shape(op.results[0]))]
        new = builders.extract_slice(below.operands[0], [offsets[i] for i in back], [shape[i] for i in back], [steps[i] for i in back])
        result = builders.transpose(new, order, sizes)
    op.results[0].replace_all_uses_with(result)
    op.erase()


def follow_operands(op: ir.Operation, layouts: Layouts) -> None:
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
    with ir.InsertionPoint(op), op.location:
        kind = op.results[0].type
        sizes = _known(op.results[0], layouts)
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
