"""Make convolutions that sum over positions, the gradients of weights, products with what each tap sees.

    convolution %x[n, h + kh, w + kw, c], %g[n, h, w, o] : [kh, kw, c, o]        summed over n, h, w

 -> %t = generic : [c, kh, kw, n, h, w] from %x[n, h + kh, w + kw, c]            in lines of the image
    %r = collapse_shape %t : [(c kh kw), (n h w)];  %s = collapse_shape %g : [(n h w), o]
    %y = contraction %r[k, p], %s[p, o] : [k, o]                                 one reduction, of many elements
    transpose (expand_shape (transpose %y : [o, k]) : [o, c, kh, kw]) to [kh, kw, c, o]

A weight [o, c, kh, kw] is contiguous along k then, so that blocks of its gradient are transposed in registers, where single elements would
be scattered: 3x3 of 512 to 512 channels, 4 images of 4 x 4, in f32 4.3 ms as a convolution. And p is what bf16 can be multiplied in words
along, in registers and on tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .copies import windows
from .layouts import Layouts
from .pack import PackShape
from .strategy.convolutions import gathers_windows

PASS_NAME = "mlirc-gather-windows"


@dataclass(frozen=True)
class _Sum:
    """The loops of such a convolution."""

    positions: list[int]
    taps: list[int]
    channel: int
    out: int


def gather_windows(function: ir.Operation, shape: PackShape) -> None:
    """Rewrite the convolutions of a function that sum over positions alone, where that pays."""
    layouts = Layouts(function)
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if st.kind(op) != "convolution" or (loops := _sum(op)) is None:
            continue
        sizes = dict(zip(st.map_dims(st.maps(op)[1]), st.shape(op.operands[1])))
        positions = 1
        for d in loops.positions:
            positions *= sizes[d]
        if gathers_windows(positions, sizes[loops.out], shape.word(op)):
            layouts.begin_again()
            with ir.InsertionPoint(op), op.location:
                _rewrite(op, loops, layouts)


def _sum(op: ir.Operation) -> _Sum | None:
    """The loops, if the second operand is [*positions, o], all summed but o, the first one [n, *windows, c] and no size is a symbol."""
    image, grad, out = st.maps(op)
    read, stored = st.map_dims(grad), st.map_dims(out)
    if None in read or None in stored or any(min(st.shape(v), default=0) < 0 for v in (*op.operands, op.results[0])):
        return None
    *positions, o = read
    *taps, c, last = stored
    summed = [d for d, kind in enumerate(st.iterators(op)) if kind == "reduction"]
    seen = {d for e in image.results[1:-1] for d in st.loops_in(e)}
    plain = st.map_dims(image)
    if sorted(positions) != summed or last != o or not taps or plain[0] != positions[0] or plain[-1] != c:  # type: ignore[type-var]
        return None
    return _Sum(positions, taps, c, o) if seen == {*taps, *positions[1:]} else None  # type: ignore[arg-type]


def _rewrite(op: ir.Operation, loops: _Sum, layouts: Layouts) -> None:
    grad = op.operands[1]
    sizes = dict(zip(st.map_dims(st.maps(op)[2]), st.shape(op.results[0])))
    sizes |= dict(zip(st.map_dims(st.maps(op)[1]), st.shape(grad)))
    rows = [loops.channel, *loops.taps]
    n, rank = len(rows), len(rows) + len(loops.positions)
    seen = windows(op, [*rows, *loops.positions], [sizes[d] for d in (*rows, *loops.positions)])
    st.operation(seen.owner).attributes[st.ORDERED] = ir.UnitAttr.get()
    seen = layouts.collapsed(seen, [list(range(n)), list(range(n, rank))])
    positions = len(loops.positions)
    flat = layouts.collapsed(grad, [list(range(positions)), [positions]])
    zero = st.owner(op.operands[2])
    assert zero is not None and zero.name == "linalg.fill"
    shape = [st.shape(seen)[0], st.shape(flat)[1]]
    init = builders.fill(shape, zero.operands[0])
    y = builders.contraction(op.regions[0].blocks[0], [seen, flat], init, ["kp", "po", "ko"], "kop")
    y = builders.transpose(y, [1, 0], shape[::-1])
    weight = [shape[1], *(sizes[d] for d in rows)]
    y = builders.expand(y, [[0], list(range(1, n + 1))], weight)
    y = builders.transpose(y, [*range(2, n + 1), 1, 0], [*weight[2:], weight[1], weight[0]])
    op.results[0].replace_all_uses_with(y)
    op.erase()

