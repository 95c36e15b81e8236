"""From the outlined graph function to the plan of the native program: who lies where, and in what order things run.

    %0 = call @k00(%x, %w)                     step 0: kernel, x, w -> arena 0
    %1 = collapse_shape %0                     (nothing: a view)
    %2 = call @aten_0(%1)              ->      step 1: host step 0
    %3 = call @k01(%2)                         step 2: kernel, host 0 -> output 0
    return %3

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
    results: list[int]


@dataclass
class PlannedGraph:
    """The plan; `kernels[i]` is the kernel number of the i-th kernel step."""

    plan: Plan
    hosts: list[HostCall] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)


def build_plan(function: ir.Operation, symbols: Sequence[str], n_outputs: int, kernel_symbols: Sequence[str]) -> PlannedGraph:
    """`kernel_symbols[k]` is the exported name of kernel k. Tensor arguments are the plan's inputs, in order."""
    return _Planner(function, symbols, n_outputs, kernel_symbols).run()


class _Planner:
    def __init__(self, function: ir.Operation, symbols: Sequence[str], n_outputs: int, kernel_symbols: Sequence[str]) -> None:
        self.block = function.regions[0].blocks[0]
        self.layouts = Layouts(function)
        self.kernel_symbols = kernel_symbols
        tensors = [a for a in self.block.arguments if st.is_tensor(a)]
        self.place: dict[ir.Value, Buffer] = {a: Buffer("input", i) for i, a in enumerate(tensors)}
        self.out = PlannedGraph(Plan(list(symbols), len(tensors), n_outputs))
        self.hosts = 0
        last = st.operation(self.block.operations[len(self.block.operations) - 1])
        for i in range(n_outputs):
            self.place[self.layouts.of(last.operands[i]).root] = Buffer("output", i)

    def run(self) -> PlannedGraph:
        plan = self.out.plan
        for o in self.block.operations:
            op = st.operation(o)
            if st.kind(op) != "call":
                continue
            step = len(plan.steps)
            if "mlirc.kernel" in op.attributes:
                self._kernel(op, step)
            else:
                self._host(op, step)
        return self.out

    def _kernel(self, op: ir.Operation, step: int) -> None:
        number = ir.IntegerAttr(op.attributes["mlirc.kernel"]).value
        args: list[object] = []
        for v in op.operands:
            args.append(self._pointer(v, step) if st.is_tensor(v) else self.layouts.sizes.expr(v))
        for r in op.results:
            if "mlirc.write" in op.attributes:
                self.place[r] = Buffer("input", ir.IntegerAttr(op.attributes["mlirc.write"]).value)
            args.append(Pointer(self._made(r, step)))
        self.out.plan.steps.append(KernelStep(self.kernel_symbols[number], args))  # type: ignore[arg-type]
        self.out.kernels.append(number)

    def _host(self, op: ir.Operation, step: int) -> None:
        operands = []
        for v in op.operands:
            layout = self.layouts.of(v)
            operands.append(Operand(self._pointer(v, step), list(self.layouts.shapes.of(v)), list(layout.strides)))  # type: ignore[arg-type]
        results = []
        for r in op.results:
            self.place[r] = Buffer("host", self.hosts)
            results.append(self.hosts)
            self.hosts += 1
        name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        self.out.hosts.append(HostCall(name, operands, results))
        self.out.plan.steps.append(HostStep(len(self.out.hosts) - 1))

    def _made(self, value: ir.Value, step: int) -> Buffer:
        if value not in self.place:
            n: Extent = BYTES[str(value.type.element_type)]
            for s in self.layouts.shapes.of(value):
                n = n * s  # type: ignore[operator]
            self.place[value] = Buffer("arena", len(self.out.plan.arena))
            self.out.plan.arena.append(ArenaBuffer(normal(n), step, step))
        return self.place[value]

    def _pointer(self, value: ir.Value, step: int) -> Pointer:
        layout = self.layouts.of(value)
        buffer = self.place[layout.root]
        if buffer.kind == "arena":
            self.out.plan.arena[buffer.index].last = step
        return Pointer(buffer, normal(layout.offset * BYTES[str(value.type.element_type)]))
