"""AMX without AMX: the tile ops as plain vector arithmetic, so that kernels for tiles can be run on any CPU.

Follows the pseudo code of TILELOADD, TDPBF16PS and TILESTORED in Intel's manual, without the flush of denormals.
"""

import re

from mlirc.dialects import builders
from mlirc.dialects.mlir import arith, ir, math, vector
from mlirc.passes.vectorize import entry
from mlirc.passes.vectorize.tiles import LOAD_ONCE

_TILE = re.compile(r"!x86\.amx\.tile<(\d+)x(\d+)x(\w+)>")


def emulate(module: ir.Module) -> int:
    """Replace all tile ops of a vector-dialect module in place; returns how many products there were."""
    shapes: dict[ir.Value, tuple[int, int]] = {}
    ops: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        values = list(op.results)
        for region in op.regions:
            for block in region.blocks:
                values += list(block.arguments)
        for v in values:
            found = _TILE.fullmatch(str(v.type))
            if found:
                rows, columns = int(found[1]), int(found[2])
                shapes[v] = rows, columns
                v.set_type(ir.VectorType.get([rows * columns], ir.Type.parse(found[3])))
        if op.name.startswith("x86.amx.") or _loaded_once(op):
            ops.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    products = 0
    for op in ops:
        with ir.InsertionPoint(op), op.location:
            new = None
            match op.name:
                case "x86.amx.tile_zero":
                    new = builders.constant(op.results[0].type, 0)
                case "x86.amx.tile_load":
                    new = _load(op, *shapes[op.results[0]])
                case "builtin.unrealized_conversion_cast":
                    new = _load_once(op, *shapes[op.results[0]])
                case "x86.amx.tile_mulf":
                    new = _multiply(op, shapes)
                    products += 1
                case "x86.amx.tile_store":
                    _store(op, *shapes[op.operands[2]])
        if new is not None:
            op.results[0].replace_all_uses_with(new)
            shapes[new] = shapes[op.results[0]]
        intrinsic = op.operands[0].owner.operation if _loaded_once(op) else None
        op.erase()
        if intrinsic is not None:
            intrinsic.erase()
    return products


def _loaded_once(op: ir.Operation) -> bool:
    """Whether it makes a tile of what TILELOADDT1 loads."""
    if op.name != "builtin.unrealized_conversion_cast" or not isinstance(op.operands[0].owner, (ir.Operation, ir.OpView)):
        return False
    source = op.operands[0].owner.operation
    return source.name == "llvm.call_intrinsic" and source.attributes["intrin"] == ir.StringAttr.get(LOAD_ONCE)


def _slice(v: ir.Value, start: int, length: int) -> ir.Value:
    kind = ir.VectorType.get([length], v.type.element_type)
    return vector.extract_strided_slice(kind, v, [start], [length], [1])


def _load(op: ir.Operation, rows: int, columns: int) -> ir.Value:
    base, at, stride = op.operands
    return _rows(op.results[0].type, base, at, stride, rows, columns)


def _rows(whole: ir.Type, base: ir.Value, at: ir.Value, stride: ir.Value, rows: int, columns: int) -> ir.Value:
    out = builders.constant(whole, 0)
    kind = ir.VectorType.get([columns], whole.element_type)
    for r in range(rows):
        place = arith.addi(at, arith.muli(stride, builders.index(r)))
        out = vector.insert_strided_slice(vector.load(kind, base, [place]), out, [r * columns], [1])
    return out


def _load_once(op: ir.Operation, rows: int, columns: int) -> ir.Value:
    _, _, pointer, stride = op.operands[0].owner.operation.operands
    element = op.results[0].type.element_type
    buffer = entry.memref_at(pointer, element)
    step = arith.divsi(arith.index_cast(ir.IndexType.get(), stride), builders.index(element.width // 8))
    return _rows(op.results[0].type, buffer, builders.index(0), step, rows, columns)


def _store(op: ir.Operation, rows: int, columns: int) -> None:
    base, at, v, stride = op.operands
    for r in range(rows):
        place = arith.addi(at, arith.muli(stride, builders.index(r)))
        vector.store(_slice(v, r * columns, columns), base, [place])


def _multiply(op: ir.Operation, shapes: dict[ir.Value, tuple[int, int]]) -> ir.Value:
    a, b, c = op.operands
    rows, n = shapes[op.results[0]]
    depth = a.type.shape[0] // rows
    wide = ir.VectorType.get([n], ir.F32Type.get())
    parts = []
    for pair in range(depth // 2):
        row = _slice(b, pair * 2 * n, 2 * n)
        for half in (0, 1):
            lanes = vector.shuffle(row, row, list(range(half, 2 * n, 2)))
            parts.append((2 * pair + half, arith.extf(wide, lanes)))
    out = c
    for r in range(rows):
        acc = _slice(c, r * n, n)
        for k, lanes in parts:
            x = arith.extf(ir.F32Type.get(), vector.extract(a, [], [r * depth + k]))
            acc = math.fma(vector.broadcast(wide, x), lanes, acc)
        out = vector.insert_strided_slice(acc, out, [r * n], [1])
    return out
