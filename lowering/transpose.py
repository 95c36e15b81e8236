"""Transposes of square blocks as a network of two-operand shuffles, each of which is one x86 instruction."""

from __future__ import annotations

from ..dialects.mlir import ir, vector


def transpose(block: ir.Value, permutation: list[int]) -> ir.Value | None:
    """The transpose of a `vector<NxNxT>`; None for another permutation, or where `transpose_rows` knows no way."""
    kind = ir.VectorType(block.type)
    size = kind.shape[0]
    if permutation != [1, 0] or kind.shape != [size, size] or kind.scalable:
        return None
    rows = transpose_rows([vector.extract(block, [], [i]) for i in range(size)])
    result = block
    for i, row in enumerate(rows or ()):
        result = vector.insert(row, result, [], [i])
    return result if rows else None


def transpose_rows(rows: list[ir.Value]) -> list[ir.Value] | None:
    """The columns of a square block, given its N rows; None if N is no power of two from 8 on, or for elements of other sizes.

    N log2 N shuffles: first `unpcklo` and `unpckhi` transpose the blocks within 128-bit lanes, then `vperm2f128` or
    `vshuff64x2` move the lanes. (LLVM, given one shuffle of all elements, finds two to six times as many instructions.)
    """
    kind = ir.VectorType(rows[0].type)
    size = len(rows)
    if kind.shape != [size] or size & (size - 1) or size < 8:
        return None
    bits = {ir.F64Type: 64, ir.F32Type: 32, ir.F16Type: 16, ir.BF16Type: 16}.get(type(kind.element_type))
    if bits is None and isinstance(kind.element_type, ir.IntegerType):
        bits = kind.element_type.width
    if bits not in (8, 16, 32, 64):
        return None
    lane = min(128 // bits, size)
    groups = [_transpose_lanes(rows[i : i + lane], lane) for i in range(0, size, lane)]
    result = list(rows)
    for j, parts in enumerate(zip(*groups)):
        # One row of each group: lane k of it belongs to row k * lane + j of the result.
        for k, row in enumerate(_exchange_lanes(list(parts), lane)):
            result[k * lane + j] = row
    return result


def _transpose_lanes(rows: list[ir.Value], lane: int) -> list[ir.Value]:
    """`lane` rows, each made of pieces of `lane` elements: transpose every piece in its place."""
    size = ir.VectorType(rows[0].type).shape[0]
    half = lane // 2
    # Of each lane of two operands, the lower or upper halves, interleaved.
    low, high = (
        [at + operand for start in range(first, size, lane) for at in range(start, start + half) for operand in (0, size)]
        for first in (0, half)
    )
    for _ in range(lane.bit_length() - 1):
        rows = [vector.shuffle(a, b, mask) for a, b in zip(rows[:half], rows[half:]) for mask in (low, high)]
    return rows


def _exchange_lanes(rows: list[ir.Value], lane: int) -> list[ir.Value]:
    """Result k holds, of all rows in order, lane k, k + len(rows), k + 2 * len(rows), ..."""
    if len(rows) == 1:
        return rows
    size = ir.VectorType(rows[0].type).shape[0]
    # Of the lanes of two operands, the even or odd ones.
    even, odd = ([start + i for start in range(first, 2 * size, 2 * lane) for i in range(lane)] for first in (0, lane))
    pairs = list(zip(rows[::2], rows[1::2]))
    halves = [_exchange_lanes([vector.shuffle(a, b, mask) for a, b in pairs], lane) for mask in (even, odd)]
    return [row for pair in zip(*halves) for row in pair]
