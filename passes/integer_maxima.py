"""Maxima of 16-bit floats, as a pool takes them of what is in memory, become maxima of integers in the same order.

    %m = generic max over bf16 %x, from -inf       ->      %k = generic maxsi over i16 key(%x), from -32768
                                                           %m = generic: the bf16 of key %k

The bits of floats are ordered as integers are, those of negative ones the other way round. With these turned round (all bits but the
sign), a CPU compares twice as many at once as in f32, and need not widen them: a pool of 2 x 2 takes half of the time, of 3 x 3 0.4 of
it. A maximum keeps NaN of either sign: positive ones are above infinity already, negative ones below minus infinity, from where a
subtraction that wraps takes them to the top. Of zeros, the positive one is the larger.
"""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import arith, ir
from . import structure as st
from .fit_integers import elementwise
from .layouts import Layouts
from .vectorize.reduce import combiner

PASS_NAME = "mlirc-integer-maxima"


def integer_maxima(function: ir.Operation) -> None:
    """Rewrite the reductions of `function` that take maxima of bf16 or f16 as they are."""
    layouts = Layouts(function)
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if st.kind(op) == "reduction" and _is_maximum(op):
            layouts.begin_again()
            with ir.InsertionPoint(op), op.location:
                _rewrite(op, layouts)


def _is_maximum(op: ir.Operation) -> bool:
    kind = builders.element_type(op.results[0])
    if len(op.results) != 1 or not isinstance(kind, (ir.BF16Type, ir.F16Type)):
        return False
    *arguments, _ = op.regions[0].blocks[0].arguments
    body = st.body_ops(op)
    if len(body) != 2 or combiner(op).name != "arith.maximumf" or not any(v in arguments for v in body[0].operands):
        return False
    fill = st.owner(op.operands[len(op.operands) - 1])
    start = st.owner(fill.operands[0]) if fill is not None and fill.name == "linalg.fill" else None
    return start is not None and start.name == "arith.constant" and ir.FloatAttr(start.attributes["value"]).value == float("-inf")


def _rewrite(op: ir.Operation, layouts: Layouts) -> None:
    arguments = list(op.regions[0].blocks[0].arguments)
    (place,) = [arguments.index(v) for v in combiner(op).operands if v != arguments[-1]]
    kind, i16 = arguments[place].type, ir.IntegerType.get_signless(16)
    nans = builders.constant(i16, 0x7FFF - (0x7F80 if isinstance(kind, ir.BF16Type) else 0x7C00))  # of each sign

    def turned(bits: ir.Value) -> ir.Value:
        """Negative ones the other way round; its own inverse."""
        signs = arith.shrsi(bits, builders.constant(i16, 15))
        return arith.xori(bits, arith.andi(signs, builders.constant(i16, 0x7FFF)))

    def body(*values: ir.Value) -> list[ir.Value]:
        return [arith.maxsi(arith.subi(turned(arith.bitcast(i16, values[place])), nans), values[-1])]

    def back(key: ir.Value) -> ir.Value:
        return arith.bitcast(kind, turned(arith.addi(key, nans)))

    start = builders.fill(layouts.values(op.results[0]), builders.constant(i16, -0x8000))  # the key of -inf
    letters = "".join(name[0] for name in st.iterators(op))
    (keys,) = builders.generic(st.inputs(op), [start], st.maps(op), letters, body)
    op.results[0].replace_all_uses_with(elementwise(keys, kind, layouts, back))
    op.erase()
