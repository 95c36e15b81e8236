"""Convolutions with few output channels have their lanes along these again, where tiles of AMX multiply words of them.

    %y = convolution %x[n, c, h + kh, w + kw], %w[kh, kw, c, o] : [n, o, h, w]
 ->
    %l = copy of %x : [n, h, w, c]                     not where it is channels-last in memory; for a pad, the pad of a transposed image
    %t = convolution %l[n, h + kh, w + kw, c], %w[kh, kw, c, o] : [n, h, w, o]
    %y = transpose %t : [n, o, h, w]

They were imported with the lanes along the lines of an image, for vectors of f32 (`frontend.ops.convolution`). A tile that is mostly empty
still takes less time, also with that copy: 64 to 3 channels, 7 x 7, of [2, 64, 64] (the last layer of a generator)
take 0.5 instead of 1.8 ms, 320 to 4, 3 x 3, of 64 x 64 (of a diffusion model) 0.7 instead of 2.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .copies import reordered
from .layouts import Layouts
from .pack import PackShape
from .strategy.convolutions import turns

PASS_NAME = "mlirc-turn-convolutions"


def turn_convolutions(function: ir.Operation, shape: PackShape) -> bool:
    """Rewrite the convolutions of a function, for targets whose rows of k have several words; whether there was one."""
    if shape.row == 1:
        return False
    turned, layouts = False, Layouts(function)
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if st.kind(op) == "convolution" and shape.word(op) > 1:
            layouts.begin_again()
            loops = _loops(op, layouts)
            if loops is not None and loops.pays:
                _turn(op, loops, layouts)
                turned = True
    return turned


@dataclass(frozen=True)
class _Loops:
    """Of a convolution."""

    columns: list[int]
    """The loops over the output channels: those over groups, if there are any, and in a group."""
    at: int
    """The dim of the image that has the channels."""
    copied: bool
    """Whether they are not the last one in memory."""
    pays: bool


def _loops(op: ir.Operation, layouts: Layouts) -> _Loops | None:
    """Of a convolution whose lanes run along the lines of an image, with groups only if that is channels-last; None for others."""
    image, weight, out = st.maps(op)
    stored, read, used, iterators = st.map_dims(out), st.map_dims(image), st.map_dims(weight), st.iterators(op)
    groups = [d for d in used if d is not None and iterators[d] == "parallel" and d in read]
    columns = [d for d in used if d is not None and iterators[d] == "parallel" and d not in groups]
    channels = [at for at, d in enumerate(read) if d is not None and iterators[d] == "reduction" and d in used]
    in_windows = {d for e, d in zip(image.results, read) if d is None for d in st.loops_in(e)}
    if None in stored or len(columns) != 1 or len(channels) != 1 or stored[-1] not in in_windows or columns[0] == stored[-1]:
        return None
    sizes = dict(zip(used, layouts.shapes.of(op.operands[1])))
    if not all(isinstance(n, int) for n in sizes.values()):
        return None
    outputs, inputs = sizes.pop(columns[0]), sizes.pop(read[channels[0]])
    taps = math.prod(n for d, n in sizes.items() if d not in groups)  # type: ignore[misc]
    copied = layouts.of(op.operands[0]).strides[channels[0]] != 1
    pays = not (groups and copied) and turns(taps, outputs, inputs, copied, bool(groups))  # type: ignore[arg-type]
    return _Loops([*groups, *columns], channels[0], copied, pays)


def _channels_last(value: ir.Value, order: list[int], layouts: Layouts) -> ir.Value:
    """A copy with the dims in this order; what is a copy already, with padding, made so."""
    op = st.owner(value)
    around = st.padding(op) if op is not None and op.name == "tensor.pad" else None
    if op is None or around is None:
        return reordered(value, order, layouts)
    sizes, result = layouts.values(op.operands[0]), layouts.values(value)
    source = builders.transpose(op.operands[0], order, [sizes[d] for d in order])
    low, high = ([side[d] for d in order] for side in st.pads(op))
    return builders.pad(source, low, high, [result[d] for d in order], around)


def _turn(op: ir.Operation, loops: _Loops, layouts: Layouts) -> None:
    """Store the results of a convolution with the output channels last, and transpose them back."""
    image, weight, out = st.maps(op)
    stored = st.map_dims(out)
    order = [at for at, d in enumerate(stored) if d not in loops.columns] + [stored.index(d) for d in loops.columns]
    with ir.InsertionPoint(op), op.location:
        sizes = layouts.values(op.results[0])
        init = st.owner(op.operands[2])
        assert init is not None and init.name == "linalg.fill"
        filled = builders.fill([sizes[d] for d in order], init.operands[0])
        rows = op.operands[0]
        if loops.copied:
            places = [at for at in range(len(image.results)) if at != loops.at] + [loops.at]
            rows = _channels_last(op.operands[0], places, layouts)
            image = ir.AffineMap.get(image.n_dims, 0, [image.results[at] for at in places])
        new = st.operation(op.clone(ip=ir.InsertionPoint(op)))
        new.operands[0], new.operands[2] = rows, filled
        last = builders.projection(out.n_dims, [stored[d] for d in order])
        new.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in (image, weight, last)])
        new.results[0].set_type(filled.type)
        back = builders.transpose(new.results[0], [order.index(d) for d in range(len(order))], sizes)
    op.results[0].replace_all_uses_with(back)
    op.erase()
