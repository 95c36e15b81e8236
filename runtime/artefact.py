"""A plan as an object file that runs without Python: the frame, the steps and the weights as data, and C functions around them.

    int NAME_run(const void *const *inputs, void *const *outputs, const int64_t *sizes, void *workspace);
    size_t NAME_workspace(const int64_t *sizes);                    bytes that `NAME_run` wants there, or allocates
    size_t NAME_output_bytes(int output, const int64_t *sizes);
    const char *NAME_error(int status);

What runs is what `runtime.program` runs: the same kernels, and the same loop over the same tables. Several threads may call `NAME_run` at
once, each with a workspace of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import sympy

from ..errors import CompileError
from . import abi
from .cpuid import CHECK, check_ir
from .expr import CheckedIRArithmetic, IRArithmetic, Lowering
from .layout import ARENA, CONTEXT, DECLARATIONS, INPUTS, SIZES_SYMBOL, STATUS, TOO_LARGE, Layout, encode_steps
from .memory import plan_offsets
from .plan import Expr, KernelStep, Plan, Pointer
from .program import RUN_IR

MOST = 1 << 47
"""What no size in memory reaches."""

NO_MEMORY, BAD_SIZE, NULL_POINTER, OTHER_CPU = -1, -2, -3, -4
"""What `NAME_run` returns besides the statuses of `runtime.abi`."""


_RUN = "mlirc.run"
"""The loop over the steps: a name that no C function has."""


@dataclass(frozen=True)
class TensorArgument:
    """A tensor that the caller of the C function owns: sizes and strides in elements, torch's name of the dtype, bytes of an element."""

    name: str
    dtype: str
    item_bytes: int
    shape: Sequence[Expr]
    strides: Sequence[Expr]
    written: bool = False

    @property
    def nbytes(self) -> Expr:
        return self.item_bytes * sympy.prod(self.shape) if self.shape else self.item_bytes


@dataclass(frozen=True)
class Size:
    """A size that each call chooses, and between which limits, inclusive; None is none. `name` is that of an argument that is a number,
    not a dim of a tensor."""

    symbol: str
    least: int | None
    most: int | None
    name: str = ""


@dataclass
class Interface:
    """What the C functions take. `places[i]` is the plan's input that argument i is, None if nothing reads it.

    `follow` has the symbols of the plan that are expressions of `sizes`, `conditions` what has to hold for these (`Eq(Mod(s0, 2), 0)`).
    """

    name: str
    inputs: list[TensorArgument]
    outputs: list[TensorArgument]
    places: list[int | None]
    sizes: list[Size] = field(default_factory=list)
    follow: Mapping[str, Expr] = field(default_factory=dict)
    conditions: Sequence[sympy.Basic] = ()

    @property
    def data_symbol(self) -> str:
        return f"{self.name}_data"


def program_ir(plan: Plan, interface: Interface, embedded: Mapping[int, int], features: Sequence[str]) -> str:
    """LLVM IR of the functions above for `plan`, which has no host steps and no constants of its own.

    `embedded` maps those of the plan's inputs that are part of the artefact to where they begin in its data. Raises CompileError for
    sizes that cannot be computed natively, and for an input that nobody gives.
    """
    _check_inputs(plan, interface, embedded)
    offsets, arena_bytes = plan_offsets(plan.arena)
    layout = Layout(plan, offsets)
    steps = encode_steps(plan, layout)
    sizes_ir = layout.sizes_ir(layout.value(arena_bytes), "internal ")
    slots = layout.size + 1 + steps.max_arguments
    return "\n".join(
        [
            RUN_IR.replace("define i64 @mlirc_run", f"define internal i64 @{_RUN}", 1),
            sizes_ir or DECLARATIONS,
            _data(interface, layout, embedded, steps.words, dict(steps.relocations)),
            check_ir(features),
            _errors(interface.name),
            _sizes_check(interface),
            _workspace(interface, 8 * slots, arena_bytes),
            _output_bytes(interface),
            _run(interface, layout, 8 * slots, bool(sizes_ir)),
        ]
    )


def _data(interface: Interface, layout: Layout, embedded: Mapping[int, int], words: Sequence[int], calls: Mapping[int, str]) -> str:
    """The frame before a call, and the steps."""
    data = interface.data_symbol
    frame = ["i64 0"] * layout.size
    for value, slot in layout.static.items():
        frame[slot] = f"i64 {value}"
    for number, start in embedded.items():
        frame[INPUTS + number] = f"i64 ptrtoint (ptr getelementptr (i8, ptr @{data}, i64 {start}) to i64)"
    steps = [f"i64 ptrtoint (ptr @{calls[i]} to i64)" if i in calls else f"i64 {w}" for i, w in enumerate(words)]
    return "\n".join(
        [
            *(f"declare void @{symbol}(ptr)" for symbol in dict.fromkeys(calls.values())),
            f"@{data} = external hidden constant i8" if embedded else "",
            f"@mlirc_frame = internal constant [{len(frame)} x i64] [{', '.join(frame)}], align 64",
            f"@mlirc_steps = internal constant [{len(steps)} x i64] [{', '.join(steps)}], align 64",
        ]
    )


def error_texts() -> dict[int, str]:
    """What each status means, for people."""
    return {
        abi.OK: "success",
        **{status: str(abi.status_error(status)) for status in abi.STATUSES},
        NO_MEMORY: "there is no memory for the workspace",
        BAD_SIZE: "a size is not one that the model was exported for",
        NULL_POINTER: "a pointer is null",
        OTHER_CPU: "this CPU, or its operating system, lacks instructions that the model was exported for",
    }


def _errors(name: str) -> str:
    texts = error_texts()
    globals_, cases, blocks = [], [], []
    for n, (status, text) in enumerate([*texts.items(), (None, "unknown status")]):
        raw = text.encode() + b"\0"
        quoted = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02x}" for b in raw)
        globals_.append(f'@mlirc_text_{n} = internal constant [{len(raw)} x i8] c"{quoted}"')
        blocks.append(f"text{n}:\n  ret ptr @mlirc_text_{n}")
        if status is not None:
            cases.append(f"    i32 {status}, label %text{n}")
    switch = "\n".join([f"  switch i32 %status, label %text{len(texts)} [", *cases, "  ]"])
    return "\n".join([*globals_, f"define ptr @{name}_error(i32 %status) {{", switch, *blocks, "}"])


def _symbols(interface: Interface, ops: IRArithmetic) -> dict[str, str]:
    """The values of all symbols, from the caller's array %sizes."""
    values = {}
    for i, size in enumerate(interface.sizes):
        at = ops.emit(f"getelementptr i64, ptr %sizes, i64 {i}")
        values[size.symbol] = ops.emit(f"load i64, ptr {at}")
    lower = Lowering(ops, dict(values))
    return {**values, **{s: lower(e) for s, e in interface.follow.items()}}


def _sizes_check(interface: Interface) -> str:
    """i1 mlirc_good_sizes(sizes)"""
    ops = IRArithmetic()
    values = _symbols(interface, ops)
    good = "true"
    for size in interface.sizes:
        # Any size that memory can hold; twice as large ones would be negative in places.
        for predicate, limit in (("sge", -MOST if size.least is None else size.least), ("sle", MOST if size.most is None else size.most)):
            fits = ops.emit(f"icmp {predicate} i64 {values[size.symbol]}, {limit}")
            good = ops.emit(f"and i1 {good}, {fits}")
    lower = Lowering(ops, values)
    for condition in interface.conditions:
        for divisor in _divisors(condition):
            good = ops.emit(f"and i1 {good}, {ops.emit(f'icmp ne i64 {lower(divisor)}, 0')}")
        good = ops.emit(f"and i1 {good}, {_holds(condition, lower, ops)}")
    return "\n".join(["define internal i1 @mlirc_good_sizes(ptr %sizes) {", *ops.lines, f"  ret i1 {good}", "}"])


_RELATIONS = {"Equality": "eq", "Unequality": "ne", "GreaterThan": "sge", "StrictGreaterThan": "sgt", "LessThan": "sle", "StrictLessThan": "slt"}


def _divisors(condition: sympy.Basic) -> list[sympy.Expr]:
    """What a condition divides by: it holds for none of the sizes for which that is zero."""
    divisions = [e for e in sympy.preorder_traversal(condition) if "Div" in type(e).__name__ or "Mod" in type(e).__name__]
    return [d for d in dict.fromkeys(e.args[1] for e in divisions) if not d.is_Integer]


def _holds(condition: sympy.Basic, lower: Lowering, ops: IRArithmetic) -> str:
    """An i1. Raises CompileError for what is no relation of sizes."""
    kind = type(condition).__name__
    if condition in (sympy.true, sympy.false):
        return "true" if condition is sympy.true else "false"
    if kind in _RELATIONS:
        a, b = (lower(side) for side in condition.args)
        return ops.emit(f"icmp {_RELATIONS[kind]} i64 {a}, {b}")
    if kind == "Not":
        return ops.emit(f"xor i1 {_holds(condition.args[0], lower, ops)}, true")
    if kind in ("And", "Or"):
        parts = [_holds(c, lower, ops) for c in condition.args]
        return reduce(lambda a, b: ops.emit(f"{kind.lower()} i1 {a}, {b}"), parts)
    raise CompileError(f"cannot check natively that {condition}")


def _sum_of(interface: Interface, expr: Expr, more: int) -> tuple[list[str], str]:
    """Lines that compute `expr + more`, or `TOO_LARGE` where that does not fit."""
    ops = CheckedIRArithmetic([])
    lower = Lowering(ops, _symbols(interface, ops))
    value = ops.add(lower(expr), str(more))
    return ops.lines, ops.emit(f"select i1 {ops.overflown}, i64 {TOO_LARGE}, i64 {value}")


def _workspace(interface: Interface, frame_bytes: int, arena_bytes: Expr) -> str:
    lines, value = _sum_of(interface, arena_bytes, abi.aligned(frame_bytes) + abi.ALIGNMENT)
    return "\n".join([f"define i64 @{interface.name}_workspace(ptr %sizes) {{", *lines, f"  ret i64 {value}", "}"])


def _output_bytes(interface: Interface) -> str:
    cases, blocks = [], []
    for i, output in enumerate(interface.outputs):
        lines, value = _sum_of(interface, output.nbytes, 0)
        # Each block numbers its values on its own.
        text = "\n".join(lines).replace("%v", f"%o{i}.v")
        blocks.append(f"output{i}:\n{text}\n  ret i64 {value.replace('%v', f'%o{i}.v')}")
        cases.append(f"    i32 {i}, label %output{i}")
    head = [f"define i64 @{interface.name}_output_bytes(i32 %output, ptr %sizes) {{", "  switch i32 %output, label %none [", *cases, "  ]"]
    return "\n".join([*head, *blocks, "none:", "  ret i64 0", "}"])


def _run(interface: Interface, layout: Layout, frame_bytes: int, has_sizes: bool) -> str:
    ops = IRArithmetic()
    emit, lines = ops.emit, ops.lines
    lines.append("start:")
    supported = emit(f"call i1 @{CHECK}()")
    lines += [f"  br i1 {supported}, label %sizes.check, label %other.cpu", "sizes.check:"]
    if interface.sizes:
        absent = emit("icmp eq ptr %sizes, null")
        lines += [f"  br i1 {absent}, label %null.pointer, label %sizes.there", "sizes.there:"]
    good = emit("call i1 @mlirc_good_sizes(ptr %sizes)")
    lines += [f"  br i1 {good}, label %pointers, label %bad.size", "pointers:"]
    values = _symbols(interface, ops)
    lower = Lowering(ops, values)
    given: list[tuple[int, str]] = []
    null = "false"
    wanted = [(INPUTS + p, "%inputs", i, t) for i, (p, t) in enumerate(zip(interface.places, interface.inputs)) if p is not None]
    wanted += [(layout.outputs + i, "%outputs", i, t) for i, t in enumerate(interface.outputs)]
    for slot, array, i, tensor in wanted:
        pointer = emit(f"load ptr, ptr {emit(f'getelementptr ptr, ptr {array}, i64 {i}')}")
        given.append((slot, pointer))
        # An empty tensor may have no memory.
        absent = emit(f"and i1 {emit(f'icmp eq ptr {pointer}, null')}, {emit(f'icmp ne i64 {lower(tensor.nbytes)}, 0')}")
        null = emit(f"or i1 {null}, {absent}")
    lines += [f"  br i1 {null}, label %null.pointer, label %space", "space:"]
    own = emit("icmp eq ptr %workspace, null")
    lines += [f"  br i1 {own}, label %allocate, label %with.space", "allocate:"]
    new = emit(f"call ptr @malloc(i64 {emit(f'call i64 @{interface.name}_workspace(ptr %sizes)')})")
    failed = emit(f"icmp eq ptr {new}, null")
    lines += [f"  br i1 {failed}, label %no.memory, label %with.space", "with.space:"]
    lines.append(f"  %space.at = phi ptr [ %workspace, %space ], [ {new}, %allocate ]")
    # The frame, and behind it the arena.
    raised = emit(f"add i64 {emit('ptrtoint ptr %space.at to i64')}, {abi.ALIGNMENT - 1}")
    lines.append(f"  %frame = inttoptr i64 {emit(f'and i64 {raised}, {-abi.ALIGNMENT}')} to ptr")
    lines.append(f"  call void @llvm.memcpy.p0.p0.i64(ptr align 64 %frame, ptr align 64 @mlirc_frame, i64 {8 * layout.size}, i1 false)")

    def slot_of(n: int) -> str:
        return emit(f"getelementptr i64, ptr %frame, i64 {n}")

    arguments = slot_of(layout.size)
    arena = emit(f"getelementptr i8, ptr %frame, i64 {abi.aligned(frame_bytes)}")
    for n, value in [(CONTEXT, arguments), (ARENA, arena), (layout.size, slot_of(STATUS)), *given]:
        lines.append(f"  store ptr {value}, ptr {slot_of(n)}")
    for i, symbol in enumerate(layout.symbols):
        lines.append(f"  store i64 {values[symbol]}, ptr {slot_of(layout.sizes + i)}")
    if has_sizes:
        lines.append(f"  call void @{SIZES_SYMBOL}(ptr %frame)")
    status = emit(f"call i64 @{_RUN}(ptr %frame, ptr @mlirc_steps)")
    result = emit(f"trunc i64 {status} to i32")
    lines += [f"  br i1 {own}, label %release, label %done", "release:", "  call void @free(ptr %space.at)", "  br label %done"]
    lines += ["done:", f"  ret i32 {result}"]
    for label, code in (("other.cpu", OTHER_CPU), ("bad.size", BAD_SIZE), ("null.pointer", NULL_POINTER), ("no.memory", NO_MEMORY)):
        if any(f"%{label}" in line for line in lines):
            lines += [f"{label}:", f"  ret i32 {code}"]
    declarations = ["declare ptr @malloc(i64)", "declare void @free(ptr)", "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"]
    return "\n".join([*declarations, f"define i32 @{interface.name}_run(ptr %inputs, ptr %outputs, ptr %sizes, ptr %workspace) {{", *lines, "}"])


def _check_inputs(plan: Plan, interface: Interface, embedded: Mapping[int, int]) -> None:
    """Raises CompileError if a kernel reads an input of the plan that neither the caller nor the artefact has."""
    given = {p for p in interface.places if p is not None} | set(embedded)
    for number in read_inputs(plan):
        if number not in given:
            raise CompileError(f"input {number} of the program is neither an argument nor part of the artefact")


def read_inputs(plan: Plan) -> list[int]:
    """The plan's inputs that kernels get, in order."""
    pointers = [a for step in plan.steps if isinstance(step, KernelStep) for a in step.args if isinstance(a, Pointer)]
    return sorted({p.buffer.index for p in pointers if p.buffer.kind == "input"})
