"""Give products of bytes operands that the CPU's instructions multiply: `vpdpbusd` takes unsigned by signed ones, `vpmaddwd` pairs of i16.

 both signed, or both unsigned

    contraction %x[m, k], %w[k, n]                  %u = generic: xor %x, 128;  %c = generic: [n] from 128 * sum over k of %w
                                          ->        %s = contraction %u[m, k], %w[k, n];  generic: %s[m, n] - %c[n]

 without `vpdpbusd`

    contraction %x[m, k], %w[k, n]        ->        contraction (generic: i16 from %x), (generic: i16 from %w)

Signed bytes are 128 less than the unsigned ones that their bits become with the highest one changed (and unsigned ones 128 more), so a
product with these is 128 times the sum of the other operand off: of a weight, which is summed once. What changes or widens an operand
fuses with what makes it.
"""

from __future__ import annotations

from collections.abc import Callable

from ..dialects import builders
from ..dialects.mlir import arith, ir
from . import structure as st
from .layouts import Layouts
from .pack import PackShape
from .weights import weights_of

PASS_NAME = "mlirc-fit-integers"


def fit_integers(function: ir.Operation, shape: PackShape) -> None:
    """Rewrite the contractions and convolutions of bytes with sums in i32 whose columns are those of one operand."""
    weights: set[ir.Value] | None = None
    layouts = Layouts(function)
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if st.kind(op) not in ("contraction", "convolution") or st.word(op) != 4 or not multiplied_in_words(op):
            continue
        layouts.begin_again()
        with ir.InsertionPoint(op), op.location:
            if shape.word(op) == 1:
                for side in (0, 1):
                    _widen(op, side, layouts)
            elif len(set(st.unsigned(op))) == 1:
                weights = weights_of(function) if weights is None else weights
                _shift(op, _rows(op, weights, layouts), layouts)


def multiplied_in_words(op: ir.Operation) -> bool:
    """Whether one operand has the columns, as `pack` wants it: those of a depthwise convolution are in both, positions of an image in none."""
    operands = [st.map_dims(m) for m in st.maps(op)]
    columns = [d for d, n in zip(operands[2], st.shape(op.results[0])) if n != 1]
    return bool(columns) and columns[-1] is not None and (columns[-1] in operands[0]) != (columns[-1] in operands[1])


def _rows(op: ir.Operation, weights: set[ir.Value], layouts: Layouts) -> int:
    """The operand that is to be shifted: the image of a convolution, and of two operands the one that is no weight."""
    if st.kind(op) == "convolution":
        return 0
    known = [layouts.of(op.operands[side]).root in weights for side in (0, 1)]
    return 1 if known == [True, False] else 0


def _widen(op: ir.Operation, side: int, layouts: Layouts) -> None:
    """Its operand in i16, whose sums with another are those of the bytes."""
    i16 = ir.IntegerType.get_signless(16)
    extend = arith.extui if st.unsigned(op)[side] else arith.extsi
    op.operands[side] = elementwise(op.operands[side], i16, layouts, lambda x: extend(i16, x))
    _reinterpret(op, side, i16, arith.extsi)


def _shift(op: ir.Operation, side: int, layouts: Layouts) -> None:
    """Change the sign of the bytes of an operand, and take what that adds from the sums."""
    i8, i32 = (ir.IntegerType.get_signless(n) for n in (8, 32))
    signed = not st.unsigned(op)[side]
    op.operands[side] = elementwise(op.operands[side], i8, layouts, lambda x: arith.xori(x, builders.constant(i8, 128)))
    _reinterpret(op, side, i8, arith.extui if signed else arith.extsi)
    excess, loops = _sums(op, 1 - side, layouts)
    result, stored = op.results[0], st.map_dims(st.maps(op)[2])
    with ir.InsertionPoint.after(op):
        maps = [builders.identity(len(stored)), builders.projection(len(stored), [stored.index(d) for d in loops])]
        take = arith.subi if signed else arith.addi
        init = builders.empty(layouts.values(result), i32)
        (corrected,) = builders.generic(
            [result, excess], [init], [*maps, maps[0]], "p" * len(stored), lambda s, x, _: [take(s, x)]
        )
        result.replace_all_uses_except(corrected, st.operation(corrected.owner))


def _sums(op: ir.Operation, side: int, layouts: Layouts) -> tuple[ir.Value, list[int]]:
    """128 times the sums of an operand over what the product sums, and the loops of the op that the result has as dims."""
    i32 = ir.IntegerType.get_signless(32)
    value, dims, iterators = op.operands[side], st.map_dims(st.maps(op)[side]), st.iterators(op)
    extend = arith.extui if st.unsigned(op)[side] else arith.extsi
    kept = [i for i, d in enumerate(dims) if iterators[d] == "parallel"]  # type: ignore[index]
    sizes = layouts.values(value)
    init = builders.fill([sizes[i] for i in kept], builders.constant(i32, 0))
    maps = [builders.identity(len(dims)), builders.projection(len(dims), kept)]
    letters = "".join("p" if i in kept else "r" for i in range(len(dims)))

    def add(x: ir.Value, total: ir.Value) -> list[ir.Value]:
        return [arith.addi(total, arith.muli(extend(i32, x), builders.constant(i32, 128)))]

    (sums,) = builders.generic([value], [init], maps, letters, add)
    return sums, [dims[i] for i in kept]  # type: ignore[misc]


def elementwise(value: ir.Value, element: ir.Type, layouts: Layouts, body: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """A tensor of `body` of each element."""
    rank = len(st.shape(value))
    init = builders.empty(layouts.values(value), element)
    (made,) = builders.generic([value], [init], [builders.identity(rank)] * 2, "p" * rank, lambda x, _: [body(x)])
    return made


def _reinterpret(op: ir.Operation, side: int, element: ir.Type, extend: Callable[..., ir.Value]) -> None:
    """The body's argument has another element type, or its elements another sign: how it is widened says so."""
    argument = op.regions[0].blocks[0].arguments[side]
    argument.set_type(element)
    for use in list(argument.uses):
        old = st.operation(use.owner)
        with ir.InsertionPoint(old), old.location:
            old.results[0].replace_all_uses_with(extend(old.results[0].type, argument))
        old.erase()
