"""A kernel that is a chain of others, as `passes.chain` makes it and `vectorize.chain` reads it.

    func private @part0(%q, %k) -> %scores          the kernels as they were, in the order in which they take turns
    func private @part1(%scores) -> %p
    func @kernel(%q, %k, ...) { %0 = call @part0(%q, %k);  %1 = call @part1(%0);  ...;  return } attributes {mlirc.chain}

Between the calls there are views only that leave all elements in their places.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dialects.mlir import ir
from . import structure as st
from .strategy.chains import Passed
from .vectorize.kernel import KernelFunction

CHAIN = "mlirc.chain"
"""On the function that calls the parts."""
RESHAPES = ("tensor.expand_shape", "tensor.collapse_shape")


def is_chain(module: ir.Module) -> bool:
    return any(CHAIN in op.attributes for op in module.body.operations)


def unshaped(value: ir.Value) -> ir.Value:
    """What a value is a reshaped view of."""
    while (op := st.owner(value)) is not None and op.name in RESHAPES:
        value = op.operands[0]
    return value


class ChainFunction:
    """The parts of a chain, what they pass to one another, and which slots of the chain's context the others are."""

    def __init__(self, module: ir.Module) -> None:
        self.module = module
        """It goes with the last reference, and its ops with it."""
        functions = {ir.StringAttr(op.attributes["sym_name"]).value: st.operation(op) for op in module.body.operations}
        self.function = function = next(f for f in functions.values() if CHAIN in f.attributes)
        block = function.regions[0].blocks[0]
        operations = [st.operation(o) for o in block.operations]
        calls = [op for op in operations if st.kind(op) == "call"]
        self.parts = [KernelFunction(functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]) for op in calls]
        self.arguments, self.results = list(block.arguments), list(operations[-1].operands)
        slots = {v: n for n, v in enumerate((*self.arguments, *self.results))}
        made = {r: (n, m) for n, op in enumerate(calls) for m, r in enumerate(op.results)}
        read: dict[ir.Value, list[tuple[int, int]]] = {}
        self.slots: list[list[int | None]] = []
        """For each part and each of its slots, that of the chain; None for what is passed between parts."""
        for n, op in enumerate(calls):
            values = [*map(unshaped, op.operands), *op.results]
            self.slots.append([slots.get(v) for v in values])
            for m, v in enumerate(values[: len(op.operands)]):
                if v not in slots:
                    read.setdefault(v, []).append((n, m))
        self.passed = [Passed(made[v], tuple(places)) for v, places in read.items()]

    @property
    def kinds(self) -> Sequence[ir.Type]:
        """What the slots of the context hold: arguments, then results."""
        return [v.type for v in (*self.arguments, *self.results)]
