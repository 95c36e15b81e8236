"""Convolutions with few output channels have their lanes along these again, where tiles of AMX multiply words of them.

    %y = convolution %x[n, c, h + kh, w + kw], %w[kh, kw, c, o] : [n, o, h, w]           %x channels-last in memory
 ->
    %t = convolution %x[n, c, h + kh, w + kw], %w[kh, kw, c, o] : [n, h, w, o]
    %y = transpose %t : [n, o, h, w]

They were imported with the lanes along the lines of an image, for vectors of f32 (`frontend.ops.convolution`). A tile that is mostly empty
still takes less time, and the image need not be copied in planes: 64 to 3 channels, 7 x 7, of [2, 64, 64] (the last layer of a generator)
take 0.5 instead of 1.8 ms, 320 to 4, 3 x 3, of 64 x 64 (of a diffusion model) 0.7 instead of 2.1.
"""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .layouts import Layouts
from .pack import PackShape
from .strategy.convolutions import turns

PASS_NAME = "mlirc-turn-convolutions"


def turn_convolutions(function: ir.Operation, shape: PackShape) -> bool:
    """Rewrite the convolutions of a function, for targets whose rows of k have several words; whether there was one."""
    if shape.row == 1:
        return False
    turned = False
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if st.kind(op) == "convolution" and shape.word(op) > 1:
            layouts = Layouts(function)
            if (column := _column(op, layouts)) is not None:
                _turn(op, column, layouts)
                turned = True
    return turned


def _column(op: ir.Operation, layouts: Layouts) -> int | None:
    """The loop over the output channels of a convolution without groups whose lanes run along the lines of a channels-last image; None if
    it is another one, or better off so."""
    image, weight, out = st.maps(op)
    stored, read, used, iterators = st.map_dims(out), st.map_dims(image), st.map_dims(weight), st.iterators(op)
    columns = [d for d in used if d is not None and iterators[d] == "parallel"]
    channels = [at for at, d in enumerate(read) if d is not None and iterators[d] == "reduction" and d in used]
    in_windows = {d for e, d in zip(image.results, read) if d is None for d in st.loops_in(e)}
    if None in stored or len(columns) != 1 or len(channels) != 1 or stored[-1] not in in_windows or columns[0] == stored[-1]:
        return None
    sizes = layouts.shapes.of(op.operands[1])
    counts = [sizes[used.index(d)] for d in (columns[0], read[channels[0]])]
    taps = [n for n, d in zip(sizes, used) if d not in (columns[0], read[channels[0]])]
    if layouts.of(op.operands[0]).strides[channels[0]] != 1 or not all(isinstance(n, int) for n in (*counts, *taps)):
        return None
    total = 1
    for n in taps:
        total *= n  # type: ignore[operator]
    return columns[0] if turns(total, *counts) else None  # type: ignore[arg-type]


def _turn(op: ir.Operation, column: int, layouts: Layouts) -> None:
    """Store the results of a convolution with the loop `column` last, and transpose them back."""
    image, weight, out = st.maps(op)
    stored = st.map_dims(out)
    order = [at for at, d in enumerate(stored) if d != column] + [stored.index(column)]
    with ir.InsertionPoint(op), op.location:
        sizes = layouts.values(op.results[0])
        init = st.owner(op.operands[2])
        assert init is not None and init.name == "linalg.fill"
        filled = builders.fill([sizes[d] for d in order], init.operands[0])
        new = st.operation(op.clone(ip=ir.InsertionPoint(op)))
        new.operands[2] = filled
        last = builders.projection(out.n_dims, [stored[d] for d in order])
        new.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in (image, weight, last)])
        new.results[0].set_type(filled.type)
        back = builders.transpose(new.results[0], [order.index(d) for d in range(len(order))], sizes)
    op.results[0].replace_all_uses_with(back)
    op.erase()
