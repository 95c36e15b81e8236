"""Give every scatter memory of its own to write into: a scatter's result lies where its init operand does.

    %r = scatter(%x, %u, %i)                     %c = generic copy %x
                                          ->     %r = scatter(%c, %u, %i)

The copy is an ordinary kernel, which fuses with what computes %x. None is made where %x is computed for the scatter alone.
None either where %x is an input of the graph that nobody else reads, and that the result is written back to: the scatter
then updates the input itself (a decoder's cache: a few rows instead of two copies of all), once all indices are known to be
in range.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dialects import own
from ..dialects.mlir import ir
from . import structure as st
from .copies import copy
from .layouts import Layouts

PASS_NAME = "mlirc-in-place"


def give_memory(function: ir.Operation, writes: Sequence[int], layouts: Layouts) -> dict[ir.Value, int]:
    """Insert the copies; `writes[i]` is the tensor argument that the i-th of the last results overwrites.

    Returns the scatter results that lie in an argument, each with the argument's number: they need not be written back.
    """
    block = function.regions[0].blocks[0]
    scatters = [op for op in (st.operation(o) for o in block.operations) if st.kind(op) == "scatter"]
    if not scatters:
        return {}
    written = _written_back(block, writes, layouts)
    placed: dict[ir.Value, int] = {}
    for op in scatters:
        init = op.operands[0]
        root = layouts.of(init).root
        if layouts.whole(init) and _only_reader(root, op):
            producer = st.owner(root)
            if producer is None and op.results[0] in written and written[op.results[0]] == root:
                placed[op.results[0]] = [a for a in block.arguments if st.is_tensor(a)].index(root)
            elif root in placed:
                placed[op.results[0]] = placed.pop(root)
            if op.results[0] in placed:
                op.attributes[own.CHECK_FIRST] = ir.UnitAttr.get()
                continue
            if producer is not None and st.kind(producer) not in ("call", "aux"):
                continue
        with ir.InsertionPoint(op), op.location:
            op.operands[0] = copy(init, layouts)
    return placed


def _written_back(block: ir.Block, writes: Sequence[int], layouts: Layouts) -> dict[ir.Value, ir.Value]:
    """Results of scatters whose final value, after further scatters into the same memory, overwrites an argument."""
    last = st.operation(block.operations[len(block.operations) - 1])
    tensors = [a for a in block.arguments if st.is_tensor(a)]
    out: dict[ir.Value, ir.Value] = {}
    n_out = len(last.operands) - len(writes)
    for i, argument in enumerate(writes):
        value = last.operands[n_out + i]
        if not layouts.whole(value):
            continue
        root = layouts.of(value).root
        op = st.owner(root)
        while op is not None and st.kind(op) == "scatter":
            out[root] = tensors[argument]
            init = op.operands[0]
            root = layouts.of(init).root
            if not layouts.whole(init) or not _only_reader(root, op):
                break
            op = st.owner(root)
    return out


def _only_reader(root: ir.Value, reader: ir.Operation) -> bool:
    """Whether all uses of a value, through views, are the first operand of one op."""
    for use in root.uses:
        user = st.operation(use.owner)
        if user == reader:
            if use.operand_number != 0:
                return False
        elif st.kind(user) != "view" or use.operand_number != 0 or not _only_reader(user.results[0], reader):
            return False
    return True
