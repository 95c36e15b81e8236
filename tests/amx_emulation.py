"""AMX without AMX: the tile ops as plain vector arithmetic, so that kernels for tiles can be run on any CPU.

Follows the pseudo code of TILELOADD, TDPBF16PS, TDPBUSD and its like, and TILESTORED in Intel's manual, without the flush of denormals.
"""

import contextlib
import re
from collections.abc import Callable, Iterator

from mlirc.dialects import builders
from mlirc.dialects.mlir import arith, ir, math, memref, scf, vector
from mlirc.passes.vectorize import entry
from mlirc.passes.vectorize.words import LOAD_ONCE

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
                case "x86.amx.tile_mulf" | "x86.amx.tile_muli":
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


def _load(op: ir.Operation, rows: int, columns: int) -> ir.Value:
    base, at, stride = op.operands
    return _rows(op, base, at, stride, rows, columns)


def _rows(op: ir.Operation, base: ir.Value, at: ir.Value, stride: ir.Value, rows: int, columns: int) -> ir.Value:
    """Through memory of our own, as are stores: LLVM takes seconds for the shuffles that make a tile of its rows."""
    whole = op.results[0].type
    kind = ir.VectorType.get([columns], whole.element_type)
    (buffer,) = _buffers(op, [whole])
    with _each_row(rows) as r:
        row = vector.load(kind, base, [arith.addi(at, arith.muli(stride, r))])
        vector.store(row, buffer, [arith.muli(r, builders.index(columns))])
    return vector.load(whole, buffer, [builders.index(0)])


def _load_once(op: ir.Operation, rows: int, columns: int) -> ir.Value:
    _, _, pointer, stride = op.operands[0].owner.operation.operands
    element = op.results[0].type.element_type
    buffer = entry.memref_at(pointer, element)
    step = arith.divsi(arith.index_cast(ir.IndexType.get(), stride), builders.index(element.width // 8))
    return _rows(op, buffer, builders.index(0), step, rows, columns)


def _store(op: ir.Operation, rows: int, columns: int) -> None:
    base, at, v, stride = op.operands
    kind = ir.VectorType.get([columns], v.type.element_type)
    (buffer,) = _buffers(op, [v.type])
    vector.store(v, buffer, [builders.index(0)])
    with _each_row(rows) as r:
        row = vector.load(kind, buffer, [arith.muli(r, builders.index(columns))])
        vector.store(row, base, [arith.addi(at, arith.muli(stride, r))])


@contextlib.contextmanager
def _each_row(rows: int) -> Iterator[ir.Value]:
    """A loop over the rows of a tile."""
    loop = scf.ForOp(builders.index(0), builders.index(rows), builders.index(1))
    with ir.InsertionPoint(loop.body):
        yield loop.induction_variable
        scf.YieldOp([])


def _multiply(op: ir.Operation, shapes: dict[ir.Value, tuple[int, int]]) -> ir.Value:
    """In loops over memory: code for each element of a tile takes LLVM half a minute a kernel."""
    a, b, c = op.operands
    rows, n = shapes[op.results[0]]
    depth = a.type.shape[0] // rows
    element, zero = c.type.element_type, builders.index(0)
    word = 32 // a.type.element_type.width
    widen = [_widening(op, flag) for flag in ("isZextLhs", "isZextRhs")]
    buffers = _buffers(op, [v.type for v in (a, b, c)])
    for v, buffer in zip((a, b, c), buffers):
        vector.store(v, buffer, [zero])
    wide, one = ir.VectorType.get([n], element), builders.index(1)
    outer = scf.ForOp(zero, builders.index(rows), one)
    with ir.InsertionPoint(outer.body):
        place = arith.muli(outer.induction_variable, builders.index(n))
        start = arith.muli(outer.induction_variable, builders.index(depth))
        inner = scf.ForOp(zero, builders.index(depth // word), one, [vector.load(wide, buffers[2], [place])])
        with ir.InsertionPoint(inner.body):
            row = ir.VectorType.get([word * n], b.type.element_type)
            row = vector.load(row, buffers[1], [arith.muli(inner.induction_variable, builders.index(word * n))])
            first = arith.addi(start, arith.muli(inner.induction_variable, builders.index(word)))
            acc = inner.inner_iter_args[0]
            for k in range(word):
                lanes = widen[1](wide, vector.shuffle(row, row, list(range(k, word * n, word))))
                x = memref.load(buffers[0], [arith.addi(first, builders.index(k))])
                x = vector.broadcast(wide, widen[0](element, x))
                acc = math.fma(x, lanes, acc) if op.name.endswith("f") else arith.addi(acc, arith.muli(x, lanes))
            scf.YieldOp([acc])
        vector.store(inner.results[0], buffers[2], [place])
        scf.YieldOp([])
    return vector.load(c.type, buffers[2], [zero])


def _buffers(op: ir.Operation, kinds: list[ir.Type]) -> list[ir.Value]:
    """Memory for vectors of these types, of the function that the op is in."""
    body = op.parent
    while body.name != "func.func":
        body = body.operation.parent
    with ir.InsertionPoint.at_block_begin(body.regions[0].blocks[0]):
        types = [ir.MemRefType.get(list(kind.shape), kind.element_type) for kind in kinds]
        return [memref.AllocaOp(kind, [], [], alignment=64).result for kind in types]


def _widening(op: ir.Operation, flag: str) -> Callable[[ir.Type, ir.Value], ir.Value]:
    """Of an operand, to the type of the sums."""
    if op.name.endswith("f"):
        return arith.extf
    return arith.extui if flag in op.attributes else arith.extsi
