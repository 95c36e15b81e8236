"""What rows that are computed together are reduced to, side by side in one vector.

    for row: sums[row] = ...                          # a vector of lanes for each row
    totals = [sums[0] sums[1] sums[2] sums[3]]        # of each row alone that takes ten instructions, which wait for one another; here four
    scale = rsqrt(totals / n + eps)                   # one division and one root for all rows
    for row: store x * scale[row]
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ...dialects import builders
from ...dialects.mlir import ir, vector
from .. import structure as st
from ..domain import Domain
from ..even_odd import ANY_ORDER
from .evaluate import Evaluator
from .lanes import Index
from .reduce import EXTREMES, combine, combiner

if TYPE_CHECKING:
    from .kernel import KernelFunction

DIVISIONS = {f"arith.{name}{kind}" for name in ("div", "rem", "floordiv", "ceildiv") for kind in ("si", "ui")}
"""What is wrong with rows that are not there: by zero."""
WORD = 32
"""Bits of the least elements that are combined so: lanes of bytes and bits are dear to move."""
SAME_POINT = {"tensor.cast", "tensor.expand_shape", "tensor.collapse_shape"}
"""Views through which a value that has one element in a row is that element."""


def combines_rows(op: ir.Operation) -> bool:
    """Whether the vectors of several rows can be combined together: numbers of whole words with one accumulator."""
    return combiner(op).name not in EXTREMES and builders.element_type(op.results[0]).width >= WORD


FEW = 4
"""Rows of which each is folded to 128 bits first, where shuffles are fastest, which all rows wait for: 3,136 layer norms of 96, four at a time,
take 44.1 instead of 46.0 us (Zen 4)."""
FOLDED = 128


def across_rows(op: ir.Operation, vectors: Sequence[ir.Value]) -> ir.Value:
    """Combine the lanes of each vector: the results side by side.

    Two vectors become one of as many lanes, of which each has one half: [a_low b_low] + [a_high b_high]; and so on with pairs of these.
    """
    vectors = list(vectors)
    if 1 < len(vectors) <= FEW:
        narrow = FOLDED // vectors[0].type.element_type.width
        while vectors[0].type.shape[0] > max(narrow, len(vectors)):
            vectors = [combine(op, *halves(v)) for v in vectors]
    (lanes,) = vectors[0].type.shape
    each = lanes
    """Lanes of a row in each of `vectors`."""
    while len(vectors) > 1:
        low = [row + i for row in range(0, 2 * lanes, each) for i in range(each // 2)]
        high = [i + each // 2 for i in low]
        vectors = [combine(op, vector.shuffle(a, b, low), vector.shuffle(a, b, high)) for a, b in zip(vectors[::2], vectors[1::2])]
        each //= 2
    (total,) = vectors
    width = each
    while each > 1:
        other = [i // each * each + (i + each // 2) % each for i in range(lanes)]
        total = combine(op, total, vector.shuffle(total, total, other))
        each //= 2
    return total if width == 1 else vector.shuffle(total, total, list(range(0, lanes, width)))


def halves(v: ir.Value) -> list[ir.Value]:
    """The lower and the upper lanes of a vector."""
    half = v.type.shape[0] // 2
    kind = ir.VectorType.get([half], v.type.element_type)
    return [vector.extract_strided_slice(kind, v, [at], [half], [1]) for at in (0, half)]


def fold(op: ir.Operation, v: ir.Value) -> ir.Value:
    """Combine the two halves of a vector, whatever the order of its lanes is."""
    parts = halves(v)
    for part in parts:
        part.owner.attributes[ANY_ORDER] = ir.UnitAttr.get()
    return combine(op, *parts)


def computed_of(totals: dict[ir.Value, ir.Value], kernel: KernelFunction, e: Evaluator) -> dict[ir.Value, ir.Value]:
    """Of `totals`, and of what the kernel computes of them and of constants alone, what else needs: value -> a vector of the rows."""
    rows = next(iter(totals.values())).type.shape[0]
    side = Evaluator(rows, e.status, e.shapes)
    side.known_scalars = e.known_scalars
    out = dict(totals)
    for op in kernel.ops:
        if _is_of_rows(op, kernel.domain, out):
            side.known = {v: lambda point, total=total: total for v, total in out.items()}
            out.update(zip(op.results, side.body(op, [Index(0)] * len(st.iterators(op)))))
    inside = {st.owner(v) for v in out}
    return {v: total for v, total in out.items() if any(user not in inside for user in _users(v))}


def _users(v: ir.Value) -> list[ir.Operation]:
    """The ops that read a value, at the same point."""
    users = [st.operation(use.owner) for use in v.uses]
    return [u for user in users for u in (_users(user.results[0]) if user.name in SAME_POINT else [user])]


def _is_of_rows(op: ir.Operation, domain: Domain, known: Collection[ir.Value]) -> bool:
    """Whether an op has one element in a row, computed of values in `known`."""
    if op not in domain.loops or st.kind(op) != "elementwise" or op in domain.displaced or not set(domain.classes(op)).isdisjoint(domain.inner):
        return False
    inputs = [_same_point(v) for v in st.inputs(op)]
    inside = [st.operation(o) for o in op.regions[0].blocks[0].operations]
    accumulators = list(op.regions[0].blocks[0].arguments)[len(inputs) :]
    return (
        bool(inputs)
        and all(v in known for v in inputs)
        and all(builders.element_type(v).width >= WORD for v in op.results)
        and all(o.name.startswith(("arith.", "math.", "linalg.yield")) and o.name not in DIVISIONS for o in inside)
        and not any(True for a in accumulators for _ in a.uses)
    )


def _same_point(v: ir.Value) -> ir.Value:
    op = st.owner(v)
    return v if op is None or op.name not in SAME_POINT else _same_point(op.operands[0])
