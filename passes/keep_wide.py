"""Values between the ops of a kernel are not rounded to 16 bits.

    %1 = generic { %u = extf %a; %v = mulf %u, %u; %w = truncf %v; yield %w } : bf16     %1 = generic { ...; yield %v } : f32
    %2 = generic { %x = extf %1; %y = addf %x, ... }                              ->     %2 = generic { %y = addf %1, ... }

A view between the two is one of f32 then.

Eager mode rounds what each op stores; here nothing is stored, and to round and widen again takes two to five instructions for each vector.
So MobileNetV3 in bf16 takes 3.1 instead of 3.4 ms, and the equation of state of the zoo 0.22 instead of 0.54 (Emerald Rapids).

Rounded are, as before: what another kernel reads, too; what the program itself converts, to wider floats as well; what a function or a
comparison reads, since functions of 16-bit numbers are looked up in tables (`tabulate`), and what is equal, largest or below a bound is to be so
in eager mode's numbers, also after some arithmetic in f32.
With `mlirc.round_ops` on the function (the option `rounding="ops"`) every op is.

Runs on the groups of the fusion.
"""

from __future__ import annotations

from collections.abc import Collection

from ..dialects import builders
from ..dialects.mlir import ir, tensor
from . import structure as st
from .expand_math import EXPANSIONS

PASS_NAME = "mlirc-keep-wide"

ROUND_OPS = "mlirc.round_ops"
"""Attribute of a function whose ops are all to be rounded."""

_READERS = ("elementwise", "reduction")
_VIEWS = st.VIEWS - {"linalg.transpose"}
"""That are wide as soon as what they show is; a transpose has a tensor to write to."""
_CONVERSIONS = {"arith.extf", "arith.truncf", "arith.constant", "linalg.yield"}
"""Of a body with nothing else, a conversion between types is all that it does."""
_FROM_INTEGERS = {"arith.sitofp", "arith.uitofp"}
_CHOICES = {"arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf"}
"""Of many elements, others may be compared with the one that is chosen."""
_SMOOTH = _CONVERSIONS | _CHOICES | {"arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.negf", "math.absf", "math.fma"}
"""Ops whose results change little where their operands do, and that are cheaper than a look into a table."""
_STEEP = {"math.round", "math.tan", "math.atan2", "mlirc.atan2"}
"""Functions that jump."""


def keep_wide(function: ir.Operation) -> None:
    """Rewrite the 16-bit values that nothing outside of their group reads."""
    if ROUND_OPS in function.attributes:
        return
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if st.group_number(op) is not None and _is_rounded_op(op) and _only_read_wide(op):
            _widen(op)


def _is_rounded_op(op: ir.Operation) -> bool:
    """Whether it computes in f32, and rounds what it has computed, or converts numbers that need no rounding."""
    if st.kind(op) != "elementwise" or len(op.results) != 1 or not isinstance(builders.element_type(op.results[0]), (ir.BF16Type, ir.F16Type)):
        return False
    narrow = st.owner(st.body_ops(op)[-1].operands[0])
    if narrow is not None and narrow.name in _FROM_INTEGERS and len(st.body_ops(op)) == 2:
        return narrow.operands[0].type.width <= 8  # bf16 has all of them
    if narrow is None or narrow.name != "arith.truncf" or not isinstance(narrow.operands[0].type, ir.F32Type) or not _is_smooth(op):
        return False
    return any(o.name not in _CONVERSIONS for o in st.body_ops(op)) or _stores_product(op)


def _stores_product(op: ir.Operation) -> bool:
    """Whether an op that only narrows does so for a product of numbers as narrow; other conversions are the program's own."""
    maker = st.owner(op.operands[0])
    if maker is None or st.kind(maker) not in ("contraction", "convolution"):
        return False
    return any(builders.element_type(v) == builders.element_type(op.results[0]) for v in st.inputs(maker))


def _is_smooth(op: ir.Operation) -> bool:
    return all(o.name in _SMOOTH for o in st.body_ops(op))


def _only_read_wide(op: ir.Operation) -> bool:
    """Whether ops of the same group read the result, and widen it first."""
    uses = _reads(op.results[0], _VIEWS)
    return bool(uses) and all(_reads_wide(user, number, op) for user, number in uses)


def _reads_wide(user: ir.Operation, number: int, op: ir.Operation) -> bool:
    if st.kind(user) not in _READERS or st.group_number(user) != st.group_number(op) or number >= len(st.inputs(user)):
        return False
    body = st.body_ops(user)
    if all(o.name in _CONVERSIONS for o in body) or not all(o.name in _SMOOTH or _is_of_several(o) for o in body):
        return False
    readers = [st.operation(use.owner) for use in _argument(user, number).uses]
    wide = all(r.name == "arith.extf" and isinstance(r.results[0].type, ir.F32Type) for r in readers)
    return wide and _stays_smooth(user, set())


def _stays_smooth(op: ir.Operation, seen: set[ir.Operation]) -> bool:
    """Whether a result is rounded to 16 bits, or read by smooth ops of the group alone until it is."""
    if isinstance(builders.element_type(op.results[0]), (ir.BF16Type, ir.F16Type)) or op in seen:
        return True
    seen.add(op)
    if st.kind(op) == "reduction" and _chosen_and_compared(op):
        return False
    for reader in [r for v in op.results for r, _ in _reads(v)]:
        if st.kind(reader) not in _READERS or st.group_number(reader) != st.group_number(op):
            return False
        if not all(o.name in _SMOOTH or o.name == "math.sqrt" or _is_continuous(o) for o in st.body_ops(reader)) or not _stays_smooth(reader, seen):
            return False
    return True


def _is_continuous(function: ir.Operation) -> bool:
    return function.name in EXPANSIONS and function.name not in _STEEP


def _is_of_several(function: ir.Operation) -> bool:
    """Whether it is a function of more than one element that is read, such as a number minus the largest of its row: no table has those."""
    if not _is_continuous(function):
        return False
    left, read = list(function.operands), set()
    while left:
        v = left.pop()
        maker = st.owner(v)
        if maker is None:
            read.add(v)
        else:
            left += maker.operands
    return len(read) > 1


def _chosen_and_compared(reduction: ir.Operation) -> bool:
    """Whether a reduction chooses one of its elements, and not just to subtract it from all, as softmax does."""
    if not any(o.name in _CHOICES for o in st.body_ops(reduction)):
        return False
    readers = [op for r in reduction.results for op, _ in _reads(r)]
    return not all(st.kind(op) == "elementwise" and any(o.name == "arith.subf" for o in st.body_ops(op)) for op in readers)


def _reads(value: ir.Value, views: Collection[str] = st.VIEWS) -> list[tuple[ir.Operation, int]]:
    """Who reads a value, or what such views show of it, and as which operand."""
    out: list[tuple[ir.Operation, int]] = []
    for use in value.uses:
        op = st.operation(use.owner)
        out += _reads(op.results[0], views) if op.name in views else [(op, use.operand_number)]
    return out


def _argument(op: ir.Operation, number: int) -> ir.BlockArgument:
    return op.regions[0].blocks[0].arguments[number]


def _sizes(init: ir.Value) -> list[builders.Size]:
    """Those of a tensor of which nothing is read."""
    maker = st.owner(init)
    known = iter(maker.operands) if maker is not None and maker.name == "tensor.empty" else None
    dynamic = [next(known) if known else tensor.dim(init, builders.index(d)) for d, n in enumerate(st.shape(init)) if n == builders.DYNAMIC]
    return [n if n != builders.DYNAMIC else dynamic.pop(0) for n in st.shape(init)]


def _widen(op: ir.Operation) -> None:
    value, last = op.results[0], st.body_ops(op)[-1]
    f32 = ir.F32Type.get(op.context)
    narrow = st.operation(last.operands[0].owner)
    if narrow.name in _FROM_INTEGERS:
        with ir.InsertionPoint(narrow), narrow.location:
            last.operands[0] = ir.Operation.create(narrow.name, results=[f32], operands=[narrow.operands[0]]).results[0]
    else:
        last.operands[0] = narrow.operands[0]
    if not list(narrow.results[0].uses):
        narrow.erase()
    *inputs, init = op.operands
    with ir.InsertionPoint(op), op.location:
        wide = builders.empty(_sizes(init), f32)
        fields = {name: op.attributes[name] for name in op.attributes}
        new = ir.Operation.create(op.name, results=[wide.type], operands=[*inputs, wide], attributes=fields, regions=1)
        op.regions[0].blocks[0].append_to(new.regions[0])
    _argument(new, len(inputs)).set_type(f32)
    for user, number in _reads(value, _VIEWS):
        argument = _argument(user, number)
        argument.set_type(f32)
        for widened in [st.operation(u.owner) for u in argument.uses]:
            widened.results[0].replace_all_uses_with(argument)
            widened.erase()
    value.replace_all_uses_with(new.results[0])
    _widen_views(new.results[0])
    op.erase()


def _widen_views(value: ir.Value) -> None:
    """Give the views of a value its element type."""
    for view in [op for use in value.uses if (op := st.operation(use.owner)).name in _VIEWS]:
        kind = view.results[0].type
        view.results[0].set_type(ir.RankedTensorType.get(kind.shape, builders.element_type(value), kind.encoding))
        _widen_views(view.results[0])
