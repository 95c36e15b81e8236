"""Calls of the C library, lane by lane: for functions of f64 that have no formula here."""

from __future__ import annotations

from ..mlir import func, ir, vector
from .num import Num, element_type, flat


def call(name: str, *operands: Num) -> Num:
    """The C function `name` on operands of one f64 scalar or vector type; declares it in the module if need be."""
    type_ = operands[0].type
    _declare(name, [element_type(type_)] * len(operands), element_type(type_))
    if not isinstance(type_, ir.VectorType):
        return Num(func.CallOp([type_], name, [n.value for n in operands]).result)
    vectors = [flat(n.value) for n in operands]
    result = vectors[0]
    for lane in range(ir.VectorType(result.type).shape[0]):
        scalars = [vector.ExtractOp(v, [], [lane]).result for v in vectors]
        scalar = func.CallOp([type_.element_type], name, scalars).result
        result = vector.InsertOp(scalar, result, [], [lane]).result
    return Num(result if type_.rank == 1 else vector.ShapeCastOp(type_, result).result)


def _declare(name: str, inputs: list[ir.Type], result: ir.Type) -> None:
    module = ir.InsertionPoint.current.block.owner
    while module.operation.name != "builtin.module":
        module = module.operation.parent
    symbols = ir.SymbolTable(module.operation)
    if name not in symbols:
        with ir.InsertionPoint.at_block_begin(module.operation.regions[0].blocks[0]):
            func.FuncOp(name, (inputs, [result]), visibility="private")
