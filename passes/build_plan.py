"""From the outlined graph function to the plan of the native program: who lies where, and in what order things run.

    %0 = call @k00(%x, %w)                     step 0: kernel, x, w -> arena 0
    %1 = collapse_shape %0                     (nothing: a view)
    %2 = call @aten_0(%1)              ->      step 1: host step 0
    %3 = call @k01(%2)                         step 2: kernel, host 0 -> output 0
    return %3

Kernels that read nothing but weights (packing, folded batch norms) are a plan of their own: it runs when a weight has
changed, and its results are further inputs of the main one.

Kernel results live in the arena from the step that makes them to the last one that reads them, outputs in memory of their
own, results of ATen calls in tensors that torch owns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..dialects.mlir import ir
from ..dialects.sizes import Extent, normal
from ..runtime.plan import ArenaBuffer, Buffer, HostStep, KernelStep, Plan, Pointer
from . import structure as st
from .layouts import Layouts
from .overwrite import OVERWRITES

PASS_NAME = "mlirc-build-plan"

BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "complex<f32>": 8, "complex<f64>": 16}


@dataclass
class Operand:
    """A tensor that a host step reads: where it is, sizes and strides in elements."""

    pointer: Pointer
    shape: list[Extent]
    strides: list[Extent]


@dataclass
class HostCall:
    """One call back into ATen: the function's name, its operands, and a host buffer (or None if unused) per result."""

    name: str
    operands: list[Operand]
    results: list[int | None]


@dataclass
class PlannedGraph:
    """The plan; `kernels[i]` is the kernel number of the i-th kernel step.

    `weights` is the plan of what depends on weights only (None if there is nothing): its inputs are the tensor arguments
    `weight_inputs`, its outputs have `weight_bytes` bytes and are the last inputs of `plan`.
    """

    plan: Plan
    weights: Plan | None = None
    weight_inputs: list[int] = field(default_factory=list)
    weight_bytes: list[int] = field(default_factory=list)
    hosts: list[HostCall] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)


def build_plan(
    function: ir.Operation,
    symbols: Sequence[str],
    n_outputs: int,
    kernel_symbols: Sequence[str],
    weights: Sequence[int] = (),
) -> PlannedGraph:
    """`kernel_symbols[k]` is the exported name of kernel k. Tensor arguments are the plan's inputs, in order.

    `weights` are the arguments that stay the same from call to call.
    """
    return _Planner(function, symbols, n_outputs, kernel_symbols, weights).run()


class _Planner:
    def __init__(
        self,
        function: ir.Operation,
        symbols: Sequence[str],
        n_outputs: int,
        kernel_symbols: Sequence[str],
        weights: Sequence[int],
    ) -> None:
        self.block = function.regions[0].blocks[0]
        self.layouts = Layouts(function)
        self.kernel_symbols = kernel_symbols
        tensors = [a for a in self.block.arguments if st.is_tensor(a)]
        self.place: dict[ir.Value, Buffer] = {a: Buffer("input", i) for i, a in enumerate(tensors)}
        self.out = PlannedGraph(Plan(list(symbols), len(tensors), n_outputs))
        self.hosts = 0
        # Values that depend on weights only: the number of a weight, or of an output of the weights' plan.
        self.constant: dict[ir.Value, Buffer] = {tensors[i]: Buffer("input", n) for n, i in enumerate(weights)}
        self.weights = Plan([], len(weights))
        self.out.weight_inputs = list(weights)
        last = st.operation(self.block.operations[len(self.block.operations) - 1])
        # Values that a later kernel writes into.
        self.filled = {self._target(o) for o in map(st.operation, self.block.operations) if "mlirc.in_place" in o.attributes}
        for i in range(n_outputs):
            root = self.layouts.of(last.operands[i]).root
            self.place[root] = Buffer("output", i)
            while (op := st.owner(root)) is not None and "mlirc.in_place" in op.attributes:
                root = self._target(op)
                self.place[root] = Buffer("output", i)

    def run(self) -> PlannedGraph:
        plan = self.out.plan
        for o in self.block.operations:
            op = st.operation(o)
            if st.kind(op) != "call":
                continue
            step = len(plan.steps)
            if "mlirc.kernel" in op.attributes and self._folds(op):
                self._fold(op)
            elif "mlirc.kernel" in op.attributes:
                self._kernel(op, step)
            else:
                self._host(op, step)
        plan.n_hosts = self.hosts
        if self.weights.steps:
            self.out.weights = self.weights
            self.weights.n_outputs = len(self.out.weight_bytes)
            plan.n_inputs += self.weights.n_outputs
        return self.out

    def _target(self, op: ir.Operation) -> ir.Value:
        """The buffer that an in-place kernel writes into."""
        return self.layouts.of(op.operands[ir.IntegerAttr(op.attributes["mlirc.in_place"]).value]).root

    def _folds(self, op: ir.Operation) -> bool:
        """Whether a kernel reads weights only and what it makes is neither an output nor written to an input."""
        if "mlirc.write" in op.attributes or any(r in self.place for r in op.results):
            return False
        if "mlirc.in_place" in op.attributes or OVERWRITES in op.attributes or any(r in self.filled for r in op.results):
            return False
        tensors = [v for v in op.operands if st.is_tensor(v)]
        if not tensors or any(isinstance(s, int) is False for r in op.results for s in self.layouts.shapes.of(r)):
            return False
        return all(
            self.layouts.of(v).root in self.constant if st.is_tensor(v) else isinstance(self.layouts.sizes.expr(v), int)
            for v in op.operands
        )

    def _fold(self, op: ir.Operation) -> None:
        number = ir.IntegerAttr(op.attributes["mlirc.kernel"]).value
        args: list[object] = []
        for v in op.operands:
            if not st.is_tensor(v):
                args.append(self.layouts.sizes.expr(v))
                continue
            layout = self.layouts.of(v)
            args.append(Pointer(self.constant[layout.root], normal(layout.offset * BYTES[str(v.type.element_type)])))
        for r in op.results:
            n = BYTES[str(r.type.element_type)] * self.layouts.elements(r)  # type: ignore[operator]
            place = Buffer("output", len(self.out.weight_bytes))
            self.place[r] = Buffer("input", self.out.plan.n_inputs + place.index)
            self.constant[r] = place
            self.out.weight_bytes.append(n)
            args.append(Pointer(place))
        self.weights.steps.append(KernelStep(self.kernel_symbols[number], args))  # type: ignore[arg-type]

    def _kernel(self, op: ir.Operation, step: int) -> None:
        number = ir.IntegerAttr(op.attributes["mlirc.kernel"]).value
        args: list[object] = []
        for v in op.operands:
            args.append(self._pointer(v, step) if st.is_tensor(v) else self.layouts.sizes.expr(v))
        overwrites = st.integers(op.attributes[OVERWRITES]) if OVERWRITES in op.attributes else [-1] * len(op.results)
        for r, argument in zip(op.results, overwrites):
            if argument >= 0:
                self.place[r] = Buffer("input", argument)
            if "mlirc.write" in op.attributes:
                self.place[r] = Buffer("input", ir.IntegerAttr(op.attributes["mlirc.write"]).value)
            if "mlirc.in_place" in op.attributes:
                self.place[r] = self.place[self._target(op)]
            args.append(Pointer(self._made(r, step)))
        self.out.plan.steps.append(KernelStep(self.kernel_symbols[number], args))  # type: ignore[arg-type]
        self.out.kernels.append(number)

    def _host(self, op: ir.Operation, step: int) -> None:
        operands = []
        for v in op.operands:
            layout = self.layouts.of(v)
            operands.append(Operand(self._pointer(v, step), list(self.layouts.shapes.of(v)), list(layout.strides)))  # type: ignore[arg-type]
        results: list[int | None] = []
        for r in op.results:
            if next(iter(r.uses), None) is None:
                results.append(None)
                continue
            self.place[r] = Buffer("host", self.hosts)
            results.append(self.hosts)
            self.hosts += 1
        name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        self.out.hosts.append(HostCall(name, operands, results))
        self.out.plan.steps.append(HostStep(len(self.out.hosts) - 1))

    def _made(self, value: ir.Value, step: int) -> Buffer:
        if value not in self.place:
            n = BYTES[str(value.type.element_type)] * self.layouts.elements(value)
            self.place[value] = Buffer("arena", len(self.out.plan.arena))
            self.out.plan.arena.append(ArenaBuffer(normal(n), step, step))
        return self.place[value]

    def _pointer(self, value: ir.Value, step: int) -> Pointer:
        layout = self.layouts.of(value)
        buffer = self.place[layout.root]
        if buffer.kind == "arena":
            self.out.plan.arena[buffer.index].last = step
        return Pointer(buffer, normal(layout.offset * BYTES[str(value.type.element_type)]))
