"""Give contractions operands that their register kernels can stream: lanes contiguous, blocks of them next to each other.

    contraction %x[m, k], %w[n, k]                     %p = generic: [n/32][k][32] from %w       (its own kernel)
                                             ->        contraction %x[m, k], %p[n floordiv 32, k, n mod 32]

    depthwise %x[c, h, w], %w[c, kh, kw]     ->        depthwise (generic: [h, w, c] from %x), (f32 generic: [kh, kw, c] from %w)

The lane loop is the result's last dim. An operand that walks over it with step one in memory is left alone, unless it is
a weight (a graph input), which is packed once and kept (`runtime.weights`), for one row too: what is packed lies in huge pages,
which are read faster. A product of few rows (`FEW`) with another operand that is contiguous along k is left to the dot-product form. One of
bf16 that is not, such as attention's values, is read unpacked by up to `ROWS_TO_PACK` rows, and pairs are put together in registers
(`mlirc.words` without a pack).
Operands of 16-bit floats that the rows broadcast are widened by their producers: a scalar bf16 load per multiplication would cost
more than the product.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dialects import builders
from ..dialects.mlir import arith, ir
from . import structure as st
from .constants import find_constants, maker
from .copies import pad_behind, reordered
from .layouts import Layouts
from .strategy.blocks import SETS
from .strategy.convolutions import in_short_rows
from .weights import weights_of

PASS_NAME = "mlirc-pack"


@dataclass(frozen=True)
class PackShape:
    """Columns per block (the lanes of one register tile), and the element types that are multiplied in words of 32 bits along k.

    Two bf16 are what `vdpbf16ps` takes, two i16 `vpmaddwd`, and four bytes `vpdpbusd`: [n/32][k/2][32][2] or [n/32][k/4][32][4], the
    rows as they are. Zeros behind them fill up k to a multiple of `row` words, of a tile of AMX.
    """

    block: int
    words: frozenset[str] = frozenset()
    row: int = 1

    def word(self, op: ir.Operation) -> int:
        """Elements in a word of a product, 1 where it is not multiplied in words, as sums over groups are not, which begin anywhere."""
        ragged = st.ragged_loops(op)
        if ragged is not None and ragged[0] in _summed(op):
            return 1
        return st.word(op) if str(builders.element_type(op.operands[0])) in self.words else 1

    def in_registers(self, op: ir.Operation) -> bool:
        """Whether words of a product can be put together in registers: pairs of bf16 by AVX-512 (`vpermt2w`)."""
        return self.row == 1 and self.word(op) == 2 and isinstance(builders.element_type(op.operands[0]), ir.BF16Type)


FEW = 5
"""Rows from which on it pays to pack an operand in every call, so that it is read more often by the product than by the packing.

A weight always pays. One row, GB/s from memory without packing and with it, on a Zen 4 that reads 30:

    1 x 8192 x 2048    f32 20 and 29    bf16 13 and 28
    1 x 3072 x 768         27     28         23     26
    1 x 768 x 768          26     28         21     24
"""

ROWS_TO_PACK = 96
"""Rows from which on it pays to pack pairs of bf16 of an operand that is read along its lanes, instead of putting them together in registers
each time. Of eager mode's speed on a Zen 4, packed (up to 4 rows: widened to f32) and in registers:

    32 x 1 x 1024 x 128      1.67  1.78       12 x 8 x 197 x 64      0.63  0.72
    32 x 4 x 1024 x 128      0.94  1.60       4 x 8 x 64 x 1024      0.81  1.00
    32 x 6 x 1024 x 128      0.74  1.22       2048 x 1 x 40 x 40     1.95  2.91
    32 x 16 x 1024 x 128     0.72  1.01       4096 x 8 x 8 x 8       2.45  3.14
    32 x 64 x 1024 x 128     0.83  0.90       12 x 128 x 128 x 64    0.86  0.79

Half as many where its own rows are a multiple of 4096 bytes apart, and evict one another between two tiles of rows: 70 x 2048 x 2048 takes
4.0 ms packed, and 4.9.
"""

Packed = dict[tuple[object, ...], ir.Value]
"""What has been packed, and how: an operand of several contractions (the steps of a recurrent layer) is packed once."""


def pack(function: ir.Operation, shape: PackShape) -> None:
    """Rewrite the contractions and convolutions of the function's block."""
    layouts = Layouts(function)
    packed: Packed = {}
    weights = weights_of(function)
    ops = [st.operation(o) for o in function.regions[0].blocks[0].operations]
    constant, _ = find_constants(ops, weights)
    for op in ops:
        if st.kind(op) in ("contraction", "convolution"):
            kept = [layouts.of(v).root in weights or maker(v) in constant for v in op.operands[:2]]
            _pack(op, shape, layouts, packed, kept)


def _pack(op: ir.Operation, shape: PackShape, layouts: Layouts, packed: Packed, kept_once: list[bool]) -> None:
    maps = st.maps(op)
    out = st.map_dims(maps[2])
    sizes = layouts.shapes.of(op.results[0])
    order = [d for d, n in zip(out, sizes) if n != 1]
    if not order or order[-1] is None:
        return
    lane = order[-1]
    used = [lane in _plain(maps[i]) for i in (0, 1)]
    if all(used) and st.kind(op) == "convolution":
        _lanes_last(op, lane, layouts)
    if st.kind(op) == "convolution" and not any(used):
        _positions_last(op, lane, layouts)
    if used[0] == used[1]:
        return
    side = 0 if used[0] else 1
    weight = kept_once[side]
    few = 0 if weight else FEW
    kept = weight or (row_count(op, layouts, side) or few) >= few
    at = st.map_dims(maps[side]).index(lane)
    if not weight and _pairs_in_registers(op, shape, side, at, layouts):
        return
    if shape.word(op) > 1 and (kept or layouts.of(op.operands[side]).strides[at] != 1):
        _rows_for_words(op, side, layouts, few, packed)
        k = next((d for d, step in _word_loops(op, side, layouts, few) if step == 1), None)
        if k is not None:
            _blocked(op, side, at, shape.block, layouts, packed, k, shape.row)
            return
    _widen_rows(op, 1 - side, layouts, packed)
    operand = op.operands[side]
    dims = st.map_dims(maps[side])
    if None in dims or _few_rows(op, layouts, side, few):
        return
    layout = layouts.of(operand)
    contiguous = layout.strides[at] == 1
    rows = [n for d, n in zip(out, sizes) if d != lane and d is not None and d not in dims]
    if contiguous and not weight and not (st.kind(op) == "convolution" and _is_made_for(op, operand)):
        return
    if contiguous and all(isinstance(n, int) for n in sizes) and sizes[-1] <= shape.block:  # type: ignore[operator]
        return
    if not rows:
        return
    extents = layouts.shapes.of(operand)
    if not isinstance(extents[at], int):
        # Unknown number of columns: only make the lanes contiguous.
        if not contiguous:
            _transpose_only(op, side, at, layouts)
        return
    block = shape.block if extents[at] > shape.block // 2 else shape.block // 2
    _blocked(op, side, at, block, layouts, packed)


def _pairs_in_registers(op: ir.Operation, shape: PackShape, side: int, at: int, layouts: Layouts) -> bool:
    """Have pairs of bf16 made of two rows of an operand each time that they are read, if few rows of the other one read them: attention's
    values. Not for AMX, which loads tiles from memory."""
    rows = row_count(op, layouts, side)
    if not shape.in_registers(op) or st.kind(op) != "contraction" or rows is None or not 0 < rows < ROWS_TO_PACK:
        return False
    loops, strides = st.map_dims(st.maps(op)[side]), layouts.of(op.operands[side]).strides
    reduced = _summed(op)
    steps = dict(_word_loops(op, side, layouts, 0))
    if strides[at] != 1 or len(reduced) != 1 or steps.get(reduced[0]) != 1 or None in loops:
        return False
    pitch = strides[loops.index(reduced[0])]
    if rows >= ROWS_TO_PACK // 2 and isinstance(pitch, int) and 2 * pitch % SETS == 0:
        return False
    op.attributes[st.WORDS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), reduced[0])
    return True


def _is_made_for(op: ir.Operation, value: ir.Value) -> bool:
    """Whether an elementwise op makes a value for this op alone, so that it can store it in blocks."""
    producer = st.owner(value)
    return producer is not None and st.kind(producer) == "elementwise" and all(st.operation(use.owner) == op for use in value.uses)


def _word_loops(op: ir.Operation, side: int, layouts: Layouts, few: int) -> list[tuple[int, object]]:
    """The reduction loops of a product that could be cut in words, and the step of the rows along each; it is the first one with step 1."""
    maps = [st.map_dims(m) for m in st.maps(op)]
    if None in maps[side]:
        return []
    lane = next((d for d, n in reversed(list(zip(maps[2], layouts.shapes.of(op.results[0])))) if n != 1), None)
    if _few_rows(op, layouts, side, few) or not isinstance(dict(zip(maps[side], layouts.shapes.of(op.operands[side]))).get(lane), int):
        return []
    iterators = st.iterators(op)
    strides = layouts.of(op.operands[1 - side]).strides
    sizes = layouts.shapes.of(op.operands[1 - side])
    return [
        (d, step)
        for d, step, n in zip(maps[1 - side], strides, sizes)
        if d is not None and iterators[d] == "reduction" and isinstance(n, int) and n > 1 and d in maps[side]
    ]


def _rows_for_words(op: ir.Operation, side: int, layouts: Layouts, few: int, packed: Packed) -> None:
    """Rows that are not contiguous along the one reduction, or an image that is not along its channels, are copied, which fuses with what makes them."""
    loops = _word_loops(op, side, layouts, few)
    rows = st.map_dims(st.maps(op)[1 - side])
    if len(loops) != 1 or loops[0][1] == 1:
        return
    if st.kind(op) == "contraction" and (len(_summed(op)) != 1 or None in rows):
        return
    at, v = rows.index(loops[0][0]), op.operands[1 - side]
    _transpose_only(op, 1 - side, at, layouts, known=packed.get((v, at)))
    packed[v, at] = op.operands[1 - side]


def _few_rows(op: ir.Operation, layouts: Layouts, side: int, few: int) -> bool:
    """Whether the rows are so few (known, fewer than `few`) that the lanes had better run along a reduction.

    Then both operands have to be contiguous along it, as a weight [n, k] is.
    """
    maps = [st.map_dims(m) for m in st.maps(op)]
    rows = row_count(op, layouts, side)
    if rows is None or rows >= few or None in maps[0] or None in maps[1]:
        return False
    steps = [dict(zip(maps[i], layouts.of(op.operands[i]).strides)) for i in (0, 1)]
    iterators = st.iterators(op)
    return any(iterators[d] == "reduction" and steps[1].get(d) == 1 for d, n in steps[0].items() if n == 1)


def row_count(op: ir.Operation, layouts: Layouts, side: int) -> int | None:
    """How many rows each vector of operand `side` serves; None where that is not known."""
    maps = [st.map_dims(m) for m in st.maps(op)]
    rows = 1
    for d, n in zip(maps[2], layouts.shapes.of(op.results[0])):
        if d not in maps[side]:
            if not isinstance(n, int):
                return None
            rows *= n
    return rows


def _summed(op: ir.Operation) -> list[int]:
    """The loops that a product reduces, for each of the groups that its rows may be in."""
    groups = (st.ragged_loops(op) or (None, None))[1]
    return [d for d, it in enumerate(st.iterators(op)) if it == "reduction" and d != groups]


def _plain(m: ir.AffineMap) -> set[int]:
    return {d for d in st.map_dims(m) if d is not None}


def _widen_rows(op: ir.Operation, side: int, layouts: Layouts, packed: Packed) -> None:
    """Two-byte floats that are broadcast become f32 in an op of their own, which fuses with what makes them."""
    v = op.operands[side]
    element = builders.element_type(v)
    acc = builders.element_type(op.results[0])
    if element == acc or not isinstance(element, (ir.BF16Type, ir.F16Type)):
        return
    if (v, acc) not in packed:
        with ir.InsertionPoint(op), op.location:
            rank = len(st.shape(v))
            init = builders.empty(layouts.values(v), acc)
            (packed[v, acc],) = builders.generic(
                [v], [init], [builders.identity(rank)] * 2, "p" * rank, lambda x, _: [arith.extf(acc, x)]
            )
    op.operands[side] = packed[v, acc]
    _retype(op, side, acc)


def _retype(op: ir.Operation, side: int, acc: ir.Type) -> None:
    """The body's block argument has the new element type; its extf is then the identity."""
    argument = op.regions[0].blocks[0].arguments[side]
    argument.set_type(acc)
    for use in list(argument.uses):
        user = st.operation(use.owner)
        if user.name == "arith.extf":
            user.results[0].replace_all_uses_with(argument)
            user.erase()


def _lanes_last(op: ir.Operation, lane: int, layouts: Layouts) -> None:
    """The weight of a depthwise convolution, [channel, taps], becomes [taps, channel] in the accumulator's dtype, an image channels-last."""
    maps = [st.map_dims(m) for m in st.maps(op)]
    iterators = st.iterators(op)
    acc = builders.element_type(op.results[0])
    for side in (0, 1):
        at = maps[side].index(lane)
        if layouts.of(op.operands[side]).strides[at] == 1:
            continue
        taps = None not in maps[side] and all(d == lane or iterators[d] == "reduction" for d in maps[side])  # type: ignore[index]
        widened = acc if taps and isinstance(builders.element_type(op.operands[side]), (ir.BF16Type, ir.F16Type)) else None
        _transpose_only(op, side, at, layouts, widened)
        if widened is not None:
            _retype(op, side, acc)


def _positions_last(op: ir.Operation, lane: int, layouts: Layouts) -> None:
    """An image whose lanes run along its lines becomes planes."""
    at = [d for d, e in enumerate(st.maps(op)[0].results) if lane in st.loops_in(e)]
    if len(at) == 1 and layouts.of(op.operands[0]).strides[at[0]] != 1:
        _transpose_only(op, 0, at[0], layouts)


def _transpose_only(
    op: ir.Operation, side: int, at: int, layouts: Layouts, widened: ir.Type | None = None, known: ir.Value | None = None
) -> None:
    """Read a copy with dim `at` last, in another dtype if one is given; or one that is known already."""
    v = op.operands[side]
    order = [d for d in range(len(st.shape(v))) if d != at] + [at]
    if known is None:
        with ir.InsertionPoint(op), op.location:
            known = reordered(v, order, layouts, widened)
    _reread(op, side, known, [st.maps(op)[side].results[d] for d in order])


def _blocked(op: ir.Operation, side: int, at: int, block: int, layouts: Layouts, packed: Packed, k: int | None = None, row: int = 1) -> None:
    """[..., n, ...] becomes [..., n / block, (the reduced dims), block], padded with zeros to whole blocks.

    With a loop `k`, it is cut in words: [..., n / block, ..., k / 2, block, 2] for bf16, k filled up to a multiple of `row` words, and `mlirc.words`
    says so.
    """
    v = op.operands[side]
    m = st.maps(op)[side]
    loops = st.map_dims(m)
    reduced = [d for d in range(len(loops)) if loops[d] in _summed(op)]
    batch = [d for d in range(len(loops)) if d != at and d not in reduced]
    reduced.sort(key=lambda d: (loops[d] == k, loops[d]))  # type: ignore[arg-type, return-value]
    order = [*batch, at, *reduced]
    word = 1 if k is None else st.word(op)
    if k is not None and st.kind(op) == "convolution" and in_short_rows(bool(batch), layouts.shapes.of(v)[order[-1]], word, word * row):  # type: ignore[arg-type]
        row = 1
    key = (v, at, tuple(order), block, word)
    if key not in packed:
        with ir.InsertionPoint(op), op.location:
            packed[key] = _copy_blocked(v, at, order, block, word, layouts, row)
    lane = m.results[at]
    size = ir.AffineConstantExpr.get(block)
    exprs = [ir.AffineExpr.get_floor_div(lane, size) if d == at else m.results[d] for d in order]
    exprs.append(ir.AffineExpr.get_mod(lane, size))
    if k is not None:
        elements = ir.AffineConstantExpr.get(word)
        exprs.append(ir.AffineExpr.get_mod(exprs[-2], elements))
        exprs[-3] = ir.AffineExpr.get_floor_div(exprs[-3], elements)
        op.attributes[st.WORDS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), k)
    _reread(op, side, packed[key], exprs)


def _copy_blocked(v: ir.Value, at: int, order: list[int], block: int, word: int, layouts: Layouts, row: int) -> ir.Value:
    """The copy that `_blocked` reads, dims in the given order."""
    sizes = layouts.values(v)
    n = sizes[at]
    assert isinstance(n, int)
    if n % block:
        v = pad_behind(v, at, -n % block, sizes)
        n += -n % block
        sizes = [n if d == at else s for d, s in enumerate(sizes)]
    if word > 1 and (left := -sizes[order[-1]] % (word * row)):  # type: ignore[operator]
        v = pad_behind(v, order[-1], left, sizes)
        sizes = [s + left if d == order[-1] else s for d, s in enumerate(sizes)]  # type: ignore[operator]
    shape = [n // block if d == at else sizes[d] for d in order] + [block]
    if word > 1:
        shape[-2] = shape[-2] // word  # type: ignore[operator]
        shape.append(word)
    rank = len(shape)
    dims: list[ir.AffineExpr] = [None] * len(sizes)  # type: ignore[list-item]
    for k, d in enumerate(order):
        dims[d] = ir.AffineDimExpr.get(k)
    dims[at] = _join(dims[at], block, len(order))
    if word > 1:
        dims[order[-1]] = _join(dims[order[-1]], word, rank - 1)
    init = builders.empty(shape, builders.element_type(v))
    maps = [ir.AffineMap.get(rank, 0, dims), builders.identity(rank)]
    (packed,) = builders.generic([v], [init], maps, "p" * rank, lambda x, _: [x])
    st.operation(packed.owner).attributes["mlirc.pack"] = ir.UnitAttr.get()
    return packed


def _join(e: ir.AffineExpr, block: int, inner: int) -> ir.AffineExpr:
    """block * e + (loop `inner`)."""
    return ir.AffineExpr.get_add(ir.AffineExpr.get_mul(e, ir.AffineConstantExpr.get(block)), ir.AffineDimExpr.get(inner))


def _reread(op: ir.Operation, side: int, value: ir.Value, exprs: list[ir.AffineExpr]) -> None:
    maps = st.maps(op)
    maps[side] = ir.AffineMap.get(maps[side].n_dims, 0, exprs)
    op.operands[side] = value
    op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])
