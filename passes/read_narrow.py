"""Products of few rows read weights of bytes as they are, and widen them in registers.

    %w = generic sitofp %bytes : tensor<nxkxi8> to bf16
    %y = contraction %x[1, k], %w[n, k]                  ->      %y = contraction %x[1, k], %bytes[n, k]      sitofp in its body

Weights that are quantised without their inputs (`linear(x, w.to(x.dtype)) * scales`) are so for the memory that they take: a product of
one row takes as long as the weights take to come. A copy of them in the dtype of the rows would be made once and kept, and twice or four
times as many bytes would come in every call. Of many rows arithmetic takes longer than the memory does; they read that copy.
"""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import arith, ir
from . import structure as st
from .layouts import Layouts
from .pack import FEW, row_count
from .weights import weights_of

PASS_NAME = "mlirc-read-narrow"

_TO_FLOAT = {"arith.sitofp": arith.sitofp, "arith.uitofp": arith.uitofp}


def read_narrow(function: ir.Operation) -> None:
    """Rewrite the products of a function's block with fewer than `FEW` rows."""
    weights, layouts = weights_of(function), Layouts(function)
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if st.kind(op) == "contraction" and str(builders.element_type(op.results[0])) == "f32":
            for side in (0, 1):
                cast = _cast(op.operands[side])
                if cast is not None and st.root(cast.operands[0]) in weights and _is_read_by_few(op, side, layouts):
                    _read(op, side, cast)


def _cast(value: ir.Value) -> ir.Operation | None:
    """The op that makes a float of each byte of a tensor, and nothing else."""
    op = st.owner(value)
    if op is None or st.kind(op) != "elementwise" or len(op.operands) != 2 or len(op.results) != 1:
        return None
    source, *_ = st.inputs(op)
    straight = list(range(len(st.shape(value))))
    if str(builders.element_type(source)) != "i8" or [st.map_dims(m) for m in st.maps(op)] != [straight] * 2:
        return None
    names = [o.name for o in st.body_ops(op)]
    return op if len(names) == 2 and names[0] in _TO_FLOAT and names[1] == "linalg.yield" else None


def _is_read_by_few(op: ir.Operation, side: int, layouts: Layouts) -> bool:
    """Whether an operand has the last dim of the result, and few rows, which are known, read it."""
    *maps, out = [st.map_dims(m) for m in st.maps(op)]
    columns = [d for d, n in zip(out, st.shape(op.results[0])) if n != 1]
    if not columns or columns[-1] not in maps[side] or columns[-1] in maps[1 - side]:
        return False
    return (row_count(op, layouts, side) or FEW) < FEW


def _read(op: ir.Operation, side: int, cast: ir.Operation) -> None:
    """The bytes become the operand, and the body makes a float of each, in the type of the sum: exactly, as in all types that bytes fit."""
    make = _TO_FLOAT[st.body_ops(cast)[0].name]
    op.operands[side] = cast.operands[0]
    block = op.regions[0].blocks[0]
    argument = block.arguments[side]
    argument.set_type(builders.element_type(cast.operands[0]))
    f32 = builders.element_type(op.results[0])
    with ir.InsertionPoint.at_block_begin(block), op.location:
        wide = make(f32, argument)
    for use in list(argument.uses):
        user = st.operation(use.owner)
        if user == wide.owner:
            continue
        if user.name == "arith.extf":
            user.results[0].replace_all_uses_with(wide)
            user.erase()
        else:
            user.operands[use.operand_number] = wide
