"""What kernels make of columns that hold -inf, as far as that is nothing at all.

    scores -inf                          in
    top = max over columns               as without them
    p = exp(scores - top)                0
    total = sum of p over columns        as without them
    p / total                            0
    product with p over columns          as without them

Two numbers are told apart, -inf and 0. Whatever else would be made of them is not known, and then the columns have to be walked; so they have
to be if the same loops sum up something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..dialects.mlir import ir
from . import structure as st

if TYPE_CHECKING:
    from .vectorize.kernel import KernelFunction

NOWHERE, ZERO, CLEAN, OTHER = "-inf", "0", "clean", "other"
"""What an element of such a column is: the first two; nothing that has to do with columns; anything."""
_EXPONENTIALS = ("math.exp", "math.exp2", "mlirc.softmax_exp", "mlirc.coarse_softmax_exp")


class NotNeutral(Exception):
    """The columns count; the text says where."""


def columns(
    kernel: KernelFunction, given: Mapping[int, str], hidden: Sequence[ir.Operation] = (), dims: int = 1
) -> tuple[tuple[int, ...], dict[int, str]]:
    """The classes of the columns, and what they hold in the results that have them, for arguments whose last `dims` they are; `hidden` are ops
    that make -inf of whatever they held.

    Raises NotNeutral.
    """
    domain = kernel.domain
    held: dict[ir.Value, str] = {kernel.arguments[n]: state for n, state in given.items()}
    found: set[tuple[int | None, ...]] = set()
    for op in kernel.ops:
        read = [v for v in st.tensors_read(op) if v in held]
        if not read:
            continue
        if _keeps_last(op, dims):
            held[op.results[0]] = held[read[0]]
            continue
        if op.name != "linalg.generic":
            raise NotNeutral(f"{op.name} reads them")
        walks = {_last_loops(op, v, dims) for v in read}
        loops = walks.pop() if len(walks) == 1 else ()
        classes = tuple(None if loop is None else domain.loops[op][loop] for loop in loops)
        found.add(classes)
        if len(found) > 1 or None in classes or not classes:
            raise NotNeutral("the columns are no dim of their own")
        state = NOWHERE if op in hidden else _contraction(op, held) if st.kind(op) == "contraction" else _body(op, held)
        kinds = {st.iterators(op)[loop] for loop in loops}  # type: ignore[index]
        if kinds == {"reduction"}:
            continue  # neutral, or else it would have been said
        if "reduction" in kinds or tuple(st.map_dims(st.maps(op)[-1])[-dims:]) != loops or len(op.results) != 1:
            raise NotNeutral("the columns are not the last dims of a result")
        held[op.results[0]] = state
    if not found:
        raise NotNeutral("nothing reads them")
    (classes,) = found
    for op in kernel.ops:
        loops = domain.loops.get(op, [])
        if any(v in held for v in st.tensors_read(op)) or not {*classes} & {*loops}:
            continue
        if op.name != "linalg.generic" or any(kind == "reduction" and c in classes for kind, c in zip(st.iterators(op), loops)):
            raise NotNeutral("a reduction of something else walks over the columns")
    return classes, {n: held[v] for n, v in enumerate(kernel.results) if v in held}  # type: ignore[return-value]


def _keeps_last(op: ir.Operation, dims: int) -> bool:
    """Whether an op is a view with the last dims of its source as its own."""
    return op.name in ("tensor.expand_shape", "tensor.collapse_shape") and all(len(group) == 1 for group in st.reassociation(op)[-dims:])


def _last_loops(op: ir.Operation, v: ir.Value, dims: int) -> tuple[int | None, ...]:
    """The loops that walk over the last dims of an operand, wherever it is read; none where these are several."""
    loops = {tuple(st.map_dims(m)[-dims:]) for x, m in zip(st.inputs(op), st.maps(op)) if x == v}
    return loops.pop() if len(loops) == 1 and v not in st.captured(op) else ()


def _contraction(op: ir.Operation, held: Mapping[ir.Value, str]) -> str:
    """A sum of products is that of the others where one of the two is zero."""
    if not any(held.get(v) == ZERO for v in st.inputs(op)):
        raise NotNeutral("a product adds them up")
    return OTHER


def _body(op: ir.Operation, held: Mapping[ir.Value, str]) -> str:
    """What the body of an elementwise op makes of them; of a reduction, whether it leaves what was there."""
    block = op.regions[0].blocks[0]
    inputs = len(st.inputs(op))
    states = {a: held.get(op.operands[n], CLEAN) if n < inputs else "out" for n, a in enumerate(block.arguments)}
    for o in st.body_ops(op)[:-1]:
        states[o.results[0]] = _made(o, [states.get(v, CLEAN) for v in o.operands])
    state = states.get(st.body_ops(op)[-1].operands[0], CLEAN)
    if "reduction" in st.iterators(op) and state != "out":
        raise NotNeutral("a reduction counts them")
    return state


def _made(op: ir.Operation, states: list[str]) -> str:
    if all(s == CLEAN for s in states):
        return CLEAN
    match op.name, states:
        case "arith.maximumf" | "arith.maxnumf", ["out", "-inf"] | ["-inf", "out"]:
            return "out"
        case "arith.addf", ["out", "0"] | ["0", "out"]:
            return "out"
        case "arith.subf", ["-inf", "clean"]:
            return NOWHERE
        case "arith.addf", ["-inf", "clean"] | ["clean", "-inf"]:
            return NOWHERE
        case "arith.mulf" | "arith.divf", ["0", "clean"]:
            return ZERO
        case "arith.mulf", ["clean", "0"]:
            return ZERO
        case "arith.truncf" | "arith.extf", [state]:
            return state
        case name, ["-inf"] if name in _EXPONENTIALS:
            return ZERO
    return OTHER
