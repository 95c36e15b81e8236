"""Give convolutions reductions that fill AMX tiles, whose rows have 32 bf16 or 64 bytes of k (here bf16).

    convolution %x[n, h + kh, w + kw, c], %w[o, c, kh, kw]                         c < 32 * j

 few channels: what a row of taps sees lies together in a channels-last image

    %r = collapse_shape %x : [n, h, (w c)]
    %p = pad (generic: %r[n, h, C w + t]) : [n, h, w, 32 * i]              t < KW * C
 -> %v = pad (generic: [o, kh, (kw c)] from %w) : [o, kh, 32 * i]
    convolution %p[n, h + kh, w, t], %v[o, kh, t]

 else channels of zeros

    %p = pad %x : [n, h, w, 32 * j];   %v = pad %w : [o, 32 * j, kh, kw]
 -> convolution %p[n, h + kh, w + kw, c], %v[o, c, kh, kw]

A product of one long reduction needs neither: the register kernel copies its rows (`vectorize.tiles`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dialects import builders
from ..dialects.mlir import ir
from ..dialects.sizes import Extent, normal
from . import structure as st
from .copies import pad_behind, reordered
from .layouts import Layouts, row_major
from .pack import PackShape
from .strategy.convolutions import fills, in_short_rows, merges_taps
from .vectorize.access import affine_form

PASS_NAME = "mlirc-fill-tiles"


@dataclass(frozen=True)
class _Window:
    """A convolution: the loops over the taps of a line and over channels."""

    tap: int
    channel: int
    taps: int
    channels: int
    others: int
    """Taps of the other dims."""
    columns: int
    """Output channels."""
    step: int
    """From position to position of a line."""
    dilation: int
    grouped: bool


def fill_tiles(function: ir.Operation, shape: PackShape) -> None:
    """Rewrite the convolutions of a function whose layouts are known; for targets whose rows of k have several words."""
    if shape.row == 1:
        return
    layouts = Layouts(function)
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if st.kind(op) != "convolution" or shape.word(op) == 1:
            continue
        word = shape.word(op)
        depth = word * shape.row
        window = _window(op, depth, layouts)
        if window is not None and window.channels % depth and not in_short_rows(window.grouped, window.channels, word, depth):
            with ir.InsertionPoint(op), op.location:
                if _together(op, window, depth, layouts):
                    _merge_taps(op, window, depth, layouts)
                else:
                    _pad_channels(op, window, depth, layouts)


def _window(op: ir.Operation, depth: int, layouts: Layouts) -> _Window | None:
    """With several taps, and results that have the output channels, of a group, last."""
    image, weight, out = st.maps(op)
    iterators = st.iterators(op)
    loops = [{d: 1} for d in range(len(iterators))]
    if len(image.results) < 3:
        return None
    extents = layouts.shapes.of(op.operands[1])
    sizes = dict(zip(st.map_dims(weight), extents))
    *lines, channel = st.map_dims(image)
    group = lines[-1] if lines[-1] in sizes else None
    across = affine_form(image.results[-2 if group is None else -3], loops) or {}  # type: ignore[arg-type]
    reductions = [d for d in sizes if d is not None and iterators[d] == "reduction"]
    columns = [d for d in sizes if d is not None and iterators[d] == "parallel" and d != group]
    taps = [d for d in across if d in reductions]
    steps = [step for d, step in across.items() if iterators[d] == "parallel"]
    read = [d for e in image.results for d in st.loops_in(e)]
    if len(taps) != 1 or len(steps) != 1 or channel not in reductions or len(columns) != 1 or st.map_dims(out)[-1] != columns[0]:
        return None
    if None in sizes or read.count(taps[0]) != 1 or read.count(channel) != 1 or not all(isinstance(n, int) for n in extents):
        return None
    others = 1
    for d in reductions:
        others *= sizes[d] if d not in (taps[0], channel) else 1  # type: ignore[operator]
    w = _Window(taps[0], channel, sizes[taps[0]], sizes[channel], others, sizes[columns[0]], steps[0], across[taps[0]], group is not None)  # type: ignore[arg-type]
    return w if w.taps * others > 1 and fills(w.columns, w.grouped, w.taps * w.others, w.channels, depth) else None


def _together(op: ir.Operation, w: _Window, depth: int, layouts: Layouts) -> bool:
    """Whether taps and channels are better off in one loop; the image has to lie together for that."""
    *_, row, last = layouts.of(op.operands[0]).strides
    lie_together = not w.grouped and w.dilation == 1 and last == 1 and normal(row - w.channels) == 0  # type: ignore[operator]
    return lie_together and merges_taps(w.taps, w.others, w.channels, w.columns, depth)


def _pad_channels(op: ir.Operation, w: _Window, depth: int, layouts: Layouts) -> None:
    for side in (0, 1):
        at = st.map_dims(st.maps(op)[side]).index(w.channel)
        op.operands[side] = pad_behind(op.operands[side], at, -w.channels % depth, layouts.values(op.operands[side]))


def _merge_taps(op: ir.Operation, w: _Window, depth: int, layouts: Layouts) -> None:
    image, weight, out = st.maps(op)
    loops = [d for d in range(len(st.iterators(op))) if d != w.tap]
    merged = ir.AffineDimExpr.get(loops.index(w.channel))
    new = [ir.AffineConstantExpr.get(0) if d == w.tap else ir.AffineDimExpr.get(loops.index(d)) for d in range(len(loops) + 1)]
    without = ir.AffineMap.get(len(loops), 0, new)
    (position,) = st.loops_in(image.results[-2]) - {w.tap}
    width = layouts.shapes.of(op.results[0])[st.map_dims(out).index(position)]
    op.operands[0] = _rows_of_taps(op.operands[0], w, width, depth, layouts)
    dims = st.map_dims(weight)
    order = [d for d in range(len(dims)) if dims[d] not in (w.tap, w.channel)] + [dims.index(w.tap), dims.index(w.channel)]
    value = _joined(_ordered(op.operands[1], order, layouts), layouts)
    op.operands[1] = pad_behind(value, len(order) - 2, -w.taps * w.channels % depth, layouts.values(value))
    maps = [
        [*(e.compose(without) for e in image.results[:-2]), new[position], merged],
        [*(weight.results[d].compose(without) for d in order[:-2]), merged],
        [e.compose(without) for e in out.results],
    ]
    op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(ir.AffineMap.get(len(loops), 0, m)) for m in maps])
    op.attributes["iterator_types"] = ir.ArrayAttr.get([op.attributes["iterator_types"][d] for d in loops])


def _rows_of_taps(image: ir.Value, w: _Window, width: Extent, depth: int, layouts: Layouts) -> ir.Value:
    """[..., W, C] -> [..., width, KW * C]: at each output position what the taps of its row see, filled up with zeros."""
    rows = _joined(image, layouts)
    rank = len(st.shape(image))
    sizes = [*layouts.values(image)[:-2], layouts.size(width), w.taps * w.channels]
    init = builders.empty(sizes, builders.element_type(image))
    dims = [ir.AffineDimExpr.get(d) for d in range(rank)]
    place = ir.AffineExpr.get_add(ir.AffineExpr.get_mul(dims[-2], ir.AffineConstantExpr.get(w.step * w.channels)), dims[-1])
    maps = [ir.AffineMap.get(rank, 0, [*dims[:-2], place]), builders.identity(rank)]
    (copy,) = builders.generic([rows], [init], maps, "p" * rank, lambda x, _: [x])
    return pad_behind(copy, rank - 1, -w.taps * w.channels % depth, sizes)


def _joined(value: ir.Value, layouts: Layouts) -> ir.Value:
    """The value with its last two dims as one."""
    rank = len(st.shape(value))
    return layouts.collapsed(value, [*([d] for d in range(rank - 2)), [rank - 2, rank - 1]])


def _ordered(value: ir.Value, order: list[int], layouts: Layouts) -> ir.Value:
    """A copy with the dims in another order; itself where it has that."""
    strides, sizes = layouts.of(value).strides, layouts.shapes.of(value)
    if order == list(range(len(order))) and strides[-2:] == row_major(sizes)[-2:]:  # type: ignore[arg-type]
        return value
    return reordered(value, order, layouts)
