"""Let a sum over rows compute anew what it adds up, if that is summed up over columns as well.

    %g = generic %dy * %w                       %g = generic %dy * %w
    %a = generic %g * %x                        %a = generic %g * %x
                                                %h = generic %dy * %w
                                                %b = generic %h * %x
    %s = reduction over rows of %a       ->     %s = reduction over rows of %b
    %t = reduction over columns of %a           %t = reduction over columns of %a
    %u = generic %g * %r - %t * ...             %u = generic %g * %r - %t * ...

Two such sums are no single kernel (`passes.domain`). The first kernel would store %a and %g for the second one, in the gradient of a norm of
16-bit numbers four times the bytes of what both are computed from. Apart, each reads that, and the second one is the rows of a norm: one pass.
Only a few ops are computed anew (`strategy.recompute`), and no functions. Runs right before the fusion: what is cleaned is one again.
"""

from __future__ import annotations

import math

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .constants import find_constants, is_function
from .strategy import recompute as strategy
from .strategy.common import known
from .weights import weights_of

PASS_NAME = "mlirc-recompute"


def recompute(function: ir.Operation) -> None:
    """Look at every sum over all dims but the last, in program order."""
    ops = [st.operation(o) for o in function.regions[0].blocks[0].operations]
    sums = [op for op in ops if st.kind(op) == "reduction"]
    across = [op for op in sums if _is_across(op)]
    if len(across) == len(sums) or not across:
        return
    constant, _ = find_constants(ops, weights_of(function))
    for op in across:
        made = _made_of(op.operands[0])
        if op not in constant and _pays(op.operands[0], made) and any(_meets_others(o, op, made) for o in made):
            _compute_anew(op, [o for o in ops if o in made])


def _is_across(op: ir.Operation) -> bool:
    """Whether a sum of one value keeps its last dim, and no other."""
    if len(st.inputs(op)) != 1 or len(op.results) != 1:
        return False
    kinds, read = st.iterators(op), st.map_dims(st.maps(op)[0])
    return len(read) > 1 and None not in read and [kinds[d] for d in read] == ["reduction"] * (len(read) - 1) + ["parallel"]  # type: ignore[index]


def _made_of(value: ir.Value) -> set[ir.Operation]:
    """The elementwise ops that a value is computed by, from what lies in memory or is dear."""
    found: set[ir.Operation] = set()
    left = [value]
    while left:
        op = st.owner(left.pop())
        if op is None or op in found or not _is_cheap(op):
            continue
        found.add(op)
        left += st.inputs(op)
    return found


def _is_cheap(op: ir.Operation) -> bool:
    marks = [name for name in op.attributes if name.startswith("mlirc.")]
    gathers = any(st.is_tensor(v) for v in st.captured(op))
    return st.kind(op) == "elementwise" and len(op.results) == 1 and not (marks or gathers or st.can_fail(op) or is_function(op))


def _pays(value: ir.Value, made: set[ir.Operation]) -> bool:
    leaves = {st.root(v) for op in made for v in st.inputs(op) if st.owner(v) not in made}
    return strategy.pays(sum(len(st.body_ops(op)) - 1 for op in made), _bytes(value), sum(map(_bytes, leaves)))


def _meets_others(op: ir.Operation, reduction: ir.Operation, made: set[ir.Operation]) -> bool:
    """Whether a value is summed up over other dims, too, after a few more elementwise ops."""
    left, seen = [op], {reduction, *made}
    while left:
        for use in left.pop().results[0].uses:
            user = st.operation(use.owner)
            if user in seen or not len(user.results):
                continue
            seen.add(user)
            if st.kind(user) == "reduction" and not _is_across(user):
                return True
            if st.kind(user) in ("elementwise", "view"):
                left.append(user)
    return False


def _compute_anew(op: ir.Operation, made: list[ir.Operation]) -> None:
    """Give a sum ops of its own."""
    copies: dict[ir.Value, ir.Value] = {}
    for source in made:
        copy = st.operation(source.clone(ip=ir.InsertionPoint(op)))
        for i, v in enumerate(copy.operands):
            copy.operands[i] = copies.get(v, v)
        copies[source.results[0]] = copy.results[0]
    op.operands[0] = copies[op.operands[0]]
    for source in reversed(made):
        if not any(True for _ in source.results[0].uses):
            source.erase()


def _bytes(value: ir.Value) -> int:
    return math.prod(known(n if n >= 0 else None) for n in st.shape(value)) * builders.element_type(value).width // 8
