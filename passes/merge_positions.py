"""Make convolutions products whose rows are all positions of an image, where nothing has to be copied for it or its lines would not fill tiles.

 a kernel of one element

    convolution %x[n, h + kh, w + kw, c], %w[kh, kw, c, o]        %r = collapse_shape %x : [n, (h w), c];  %v = collapse_shape %w : [c, o]
                                                        ->        %y = contraction %r[n, p, c], %v[c, o]
                                                                  expand_shape %y : [n, h, w, o]
 patches of bf16 that do not overlap, and for AMX narrow images, if the weight is packed once

    convolution %x[n, h + kh, w + kw, c], %w[kh, kw, c, o]        %t = generic: [n, h, w, kh, kw, c] from %x, what each position sees
                                                        ->        %r = collapse_shape %t : [(n h w), (kh kw c)];  %v = ... %w : [(kh kw c), o]
                                                                  %y = contraction %r[p, k], %v[k, o];  expand_shape %y : [n, h, w, o]

What is chosen for a product (full tiles, parts of the rows that stay in the second-level cache, panels that are fetched) is not for the
lines of an image: 19 x 19 positions of 728 channels take 0.91 ms by lines and 0.78 as rows (bf16, AVX-512), 32 x 32 of 768 2.58 and 2.41.
In AMX's tiles seven positions of a line take as long as sixteen rows, so that even a copy pays; and wherever bf16 are multiplied in words
(196 patches of a vision transformer, 3 x 16 x 16, to 768 channels: 930 us as windows, 460 with the copy), if each element is copied once.
"""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .copies import windows
from .layouts import Layouts
from .pack import PackShape
from .strategy.convolutions import gathers_taps
from .vectorize.access import affine_form
from .weights import weights_of

PASS_NAME = "mlirc-merge-positions"


def merge_positions(function: ir.Operation, shape: PackShape) -> None:
    """Rewrite the convolutions of a function with kernels of one element, and narrow ones whose rows of k have several words."""
    weights, layouts = weights_of(function), Layouts(function)
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if st.kind(op) != "convolution":
            continue
        pointwise = _is_pointwise(op)
        if pointwise or shape.word(op) > 1 and (_is_patches(op, weights) or shape.row > 1 and _is_narrow(op, weights)):
            layouts.begin_again()
            with ir.InsertionPoint(op), op.location:
                taps = _taps(op, planes=not pointwise and _in_planes(op))
                if pointwise:
                    _merge(op, op.operands[0], 1, taps, layouts)
                else:
                    _merge(op, _gathered(op, taps, layouts), 0, taps, layouts)


def _is_pointwise(op: ir.Operation) -> bool:
    """Whether it reads [n, *positions, c] at the positions of its result, with a kernel of one element."""
    image, weight, out = st.maps(op)
    taps = {d for d, n in zip(st.map_dims(weight), st.shape(op.operands[1])) if n == 1}
    read = [affine_form(e, [{} if d in taps else {d: 1} for d in range(image.n_dims)]) for e in image.results]
    stored, used = st.map_dims(out), st.map_dims(weight)
    channels = list(read[-1] or ())
    rest = [d for d in used if d not in taps]
    ordinary = len(stored) >= 4 and len(channels) == 1 and sorted(rest) == sorted([stored[-1], *channels])  # type: ignore[type-var, list-item]
    return ordinary and read[:-1] == [{d: 1} for d in stored[:-1]]


def _is_narrow(op: ir.Operation, weights: set[ir.Value]) -> bool:
    """Whether the lines of its channels-last result are narrow, and the weight is as `_is_kept` says."""
    return gathers_taps(st.shape(op.results[0])[-2]) and _is_kept(op, weights)


def _is_patches(op: ir.Operation, weights: set[ir.Value]) -> bool:
    """Whether windows lie side by side on an image of planes: the step from one to the next is their size.

    Of what is channels-last, words along the channels are read where they are.
    """
    image, weight, out = st.maps(op)
    if not _in_planes(op) or not _is_kept(op, weights):
        return False
    sizes = dict(zip(st.map_dims(weight), st.shape(op.operands[1])))
    read = [affine_form(e, [{d: 1} for d in range(image.n_dims)]) for e in image.results[1:-1]]
    return all(
        form is not None and any(form == {place: n, tap: 1} for tap, n in sizes.items() if n > 1)
        for form, place in zip(read, st.map_dims(out)[1:-1])
    )  # fmt: skip


def _is_kept(op: ir.Operation, weights: set[ir.Value]) -> bool:
    """Whether the weight, without groups, is one that is kept, and the result channels-last."""
    image, weight, out = st.maps(op)
    stored, used, iterators = st.map_dims(out), st.map_dims(weight), st.iterators(op)
    width, sizes = st.shape(op.results[0])[-2], st.shape(op.operands[1])
    if st.root(op.operands[1]) not in weights or None in used or min(width, *sizes) < 0:
        return False
    reductions = [d for d, kind in enumerate(iterators) if kind == "reduction"]
    return (
        set(used) == {*reductions, stored[-1]} and len(image.results) == len(stored) >= 4 and st.map_dims(image)[-1] in reductions
        and st.map_dims(image)[0] == stored[0]
    )  # fmt: skip


def _gathered(op: ir.Operation, taps: list[int], layouts: Layouts) -> ir.Value:
    """What each position sees: [n, *positions, *taps]."""
    _, weight, out = st.maps(op)
    sizes = dict(zip(st.map_dims(weight), st.shape(op.operands[1])))
    shape = [*layouts.values(op.results[0])[:-1], *(sizes[d] for d in taps)]
    return windows(op, [*st.map_dims(out)[:-1], *taps], shape)  # type: ignore[list-item]


def _taps(op: ir.Operation, planes: bool) -> list[int]:
    """The reductions, channels last; first if the image is one of planes."""
    channel = st.map_dims(st.maps(op)[0])[-1]
    return sorted((d for d, kind in enumerate(st.iterators(op)) if kind == "reduction"), key=lambda d: ((d == channel) != planes, d))


def _in_planes(op: ir.Operation) -> bool:
    """Whether the image is the channels-last view of one whose second dim are the channels."""
    producer = st.owner(op.operands[0])
    return producer is not None and producer.name == "linalg.transpose" and st.integers(producer.attributes["permutation"])[-1] == 1


def _merge(op: ir.Operation, rows: ir.Value, outer: int, taps: list[int], layouts: Layouts) -> None:
    """Replace it by the product of [outer, positions, k], of which the positions and what is summed, `taps`, are several dims each."""
    _, weight, out = st.maps(op)
    dims, rank = st.map_dims(weight), len(out.results)
    lead = [[d] for d in range(outer)]
    positions = [*lead, list(range(outer, rank - 1))]
    k = list(range(rank - 1, len(st.shape(rows))))
    rows, y = _collapsed(rows, [*positions, k], layouts), _collapsed(op.operands[2], [*positions, [rank - 1]], layouts)
    # The weight's memory is [o, c, *taps], or what a view makes of it: its dims in the order of the rows'.
    order = [dims.index(d) for d in taps] + [dims.index(st.map_dims(out)[-1])]
    size = layouts.values(op.operands[1])
    flat = op.operands[1]
    if order != list(range(len(order))):
        flat = builders.transpose(flat, order, [size[d] for d in order])
    flat = _collapsed(flat, [list(range(len(order) - 1)), [len(order) - 1]], layouts)
    loops = "npoc"[1 - outer :]
    maps = ["".join(x for x in m if x in loops) for m in ("npc", "co", "npo")]
    product = builders.contraction(op.regions[0].blocks[0], [rows, flat], y, maps, loops)
    result = builders.expand(product, [*positions, [rank - 1]], layouts.values(op.results[0]))
    op.results[0].replace_all_uses_with(result)
    op.erase()


def _collapsed(value: ir.Value, groups: list[list[int]], layouts: Layouts) -> ir.Value:
    """With these dims merged; of a filled tensor, another one that is filled."""
    maker = st.owner(value)
    if maker is not None and maker.name == "linalg.fill":
        return builders.fill(layouts.merged(value, groups), maker.operands[0])
    return layouts.collapsed(value, groups)
