"""The frame of a program: which 64-bit value stands where, and the kernel calls in terms of positions in it.

From the front: the status word, a zero, the address of the argument array that kernels get, the arena's address; then
inputs, outputs, sizes, host tensors, constants; then every offset and value that a step mentions, each once.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field

from ..errors import CompileError
from .expr import CheckedIRArithmetic, IRArithmetic, Lowering
from .plan import Buffer, Expr, HostStep, Plan, Pointer

STATUS, ZERO, CONTEXT, ARENA, INPUTS = range(5)

SIZES_SYMBOL = "mlirc_sizes"

TOO_LARGE = 1 << 62
"""In place of a size that does not fit 64 bits: what asks for so much memory gets none."""

DECLARATIONS = "".join(f"declare {{ i64, i1 }} @llvm.{op}.with.overflow.i64(i64, i64)\n" for op in ("sadd", "smul"))


class Layout:
    """Positions in the frame of `plan`, whose arena buffers lie at `arena_offsets`, or anywhere: then each has a slot.

    `static` maps integers to the slots that hold them from the start, `slots` maps symbolic expressions to the slots that
    `sizes_ir` fills. Raises CompileError where the plan refers to something that is not there.
    """

    def __init__(self, plan: Plan, arena_offsets: list[Expr] | None) -> None:
        self.symbols = plan.symbols
        self.arena_offsets = arena_offsets
        pointers = [a for step in plan.steps if not isinstance(step, HostStep) for a in step.args if isinstance(a, Pointer)]
        self.n_hosts = max(plan.n_hosts, *(p.buffer.index + 1 for p in pointers if p.buffer.kind == "host"), 0)
        self.outputs = INPUTS + plan.n_inputs
        self.sizes = self.outputs + plan.n_outputs
        self.hosts = self.sizes + len(plan.symbols)
        self.constants = self.hosts + self.n_hosts
        self.arena = self.constants + len(plan.constants)
        self.size = self.arena + (len(plan.arena) if arena_offsets is None else 0)
        """Slots of the frame. Grows with `value`."""
        self.static: dict[int, int] = {}
        self.slots: dict[Expr, int] = {}
        self._starts = {
            "input": (INPUTS, plan.n_inputs),
            "output": (self.outputs, plan.n_outputs),
            "constant": (self.constants, len(plan.constants)),
            "host": (self.hosts, self.n_hosts),
            "arena": (self.arena, len(plan.arena)),
        }

    def base(self, buffer: Buffer) -> tuple[int, Expr]:
        """The slot with an address, and how many bytes after it `buffer` starts."""
        if buffer.kind == "arena" and self.arena_offsets is not None:
            if 0 <= buffer.index < len(self.arena_offsets):
                return ARENA, self.arena_offsets[buffer.index]
        else:
            start, count = self._starts[buffer.kind]
            if 0 <= buffer.index < count:
                return start + buffer.index, 0
        raise CompileError(f"the program has no {buffer.kind} buffer {buffer.index}")

    def value(self, value: Expr | float) -> int:
        """The slot of a number; f64 are kept as their bits."""
        if isinstance(value, float) or getattr(value, "is_Float", False):
            (value,) = struct.unpack("<q", struct.pack("<d", value))
        elif not isinstance(value, int) and value.is_Integer:
            value = int(value)
        if value == 0 and isinstance(value, int):
            return ZERO
        known = self.static if isinstance(value, int) else self.slots
        if value not in known:
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                raise CompileError(f"the value {value} does not fit 64 bits")
            known[value] = self.size
            self.size += 1
        return known[value]

    def argument(self, arg: Pointer | Expr | float) -> tuple[int, int]:
        """The two slots whose sum is what a kernel gets for `arg`."""
        if isinstance(arg, Pointer):
            slot, start = self.base(arg.buffer)
            return slot, self.value(start + arg.byte_offset)
        return ZERO, self.value(arg)

    def sizes_ir(self, total: int, linkage: str = "") -> str:
        """LLVM IR of `void mlirc_sizes(ptr frame)`, which fills all `slots`; empty if there are none.

        In slot `total`, of the size of the arena, is `TOO_LARGE` if that does not fit: what else is computed from it would pass for
        a small one.
        """
        if not self.slots:
            return ""
        ops = IRArithmetic()

        def slot(index: int) -> str:
            return ops.emit(f"getelementptr i64, ptr %frame, i64 {index}")

        symbols = {s: ops.emit(f"load i64, ptr {slot(self.sizes + i)}") for i, s in enumerate(self.symbols)}
        lower = Lowering(ops, symbols)
        for expr, index in self.slots.items():
            if index == total:
                checked = CheckedIRArithmetic(ops.lines)
                value = Lowering(checked, symbols)(expr)
                value = ops.emit(f"select i1 {checked.overflown}, i64 {TOO_LARGE}, i64 {value}")
            else:
                value = lower(expr)
            ops.lines.append(f"  store i64 {value}, ptr {slot(index)}")
        return DECLARATIONS + "\n".join([f"define {linkage}void @{SIZES_SYMBOL}(ptr %frame) {{", *ops.lines, "  ret void", "}", ""])


@dataclass
class Steps:
    """Kernel calls as words: [code address, n, n pairs of slots]..., a zero word ends a segment.

    `relocations` are the (word, symbol) where addresses go. `schedule` has the segments in order: the first word of the kernel
    calls, or None without any, and the number of the host step after them, or None.
    """

    words: array[int] = field(default_factory=lambda: array("q"))
    relocations: list[tuple[int, str]] = field(default_factory=list)
    schedule: list[tuple[int | None, int | None]] = field(default_factory=list)
    max_arguments: int = 0


def encode_steps(plan: Plan, layout: Layout, one_by_one: bool = False) -> Steps:
    """The steps of `plan` as words, with all values that they need entered into `layout`.

    Steps in a row make one segment, or each a segment of its own.
    """
    steps = Steps()
    words = steps.words
    start = 0
    for step in plan.steps:
        if isinstance(step, HostStep):
            words.append(0)
            steps.schedule.append((start if len(words) > start + 1 else None, step.index))
            start = len(words)
            continue
        steps.relocations.append((len(words), step.symbol))
        words.extend((0, len(step.args)))
        for arg in step.args:
            words.extend(layout.argument(arg))
        steps.max_arguments = max(steps.max_arguments, len(step.args))
        if one_by_one:
            words.append(0)
            steps.schedule.append((start, None))
            start = len(words)
    words.append(0)
    if len(words) > start + 1:
        steps.schedule.append((start, None))
    return steps
