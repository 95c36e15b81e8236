"""A graph's plan as something that runs: tables that one native loop works through.

Everything that a call needs is a row of 64-bit values, the *frame* (`runtime.layout`): pointers of inputs and outputs, sizes,
the arena, constants, offsets. A kernel argument is the sum of two of them (an address and an offset; zero is one of the
values), so that a kernel call is data: the address of the code, the number of arguments, and two positions in the frame for
each. The loop that reads these is the same for all graphs and compiled once per process. A graph has code of its own only for
arithmetic on symbolic sizes.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import CompileError
from . import abi
from .expr import evaluate
from .layout import ARENA, CONTEXT, INPUTS, SIZES_SYMBOL, STATUS, Layout, encode_steps
from .loader import Library, assemble
from .memory import ArenaPool, Block, plan_offsets
from .plan import Expr, Plan, Pointer
from .profile import register

_RUN_TYPE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
_SIZES_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

RUN_IR = f"""
define i64 @mlirc_run(ptr %frame, ptr %steps) {{
start:
  %context.slot = getelementptr i64, ptr %frame, i64 {CONTEXT}
  %context = load ptr, ptr %context.slot
  %status.slot = getelementptr i64, ptr %frame, i64 {STATUS}
  br label %step
step:
  %at = phi ptr [ %steps, %start ], [ %next, %call ]
  %kernel = load ptr, ptr %at
  %end = icmp eq ptr %kernel, null
  br i1 %end, label %done, label %fill
fill:
  %count.slot = getelementptr i64, ptr %at, i64 1
  %count = load i64, ptr %count.slot
  %pairs = getelementptr i64, ptr %at, i64 2
  %next = getelementptr {{ i64, i64 }}, ptr %pairs, i64 %count
  %none = icmp eq i64 %count, 0
  br i1 %none, label %call, label %argument
argument:
  %i = phi i64 [ 0, %fill ], [ %after, %argument ]
  %after = add i64 %i, 1
  %base.at = getelementptr {{ i64, i64 }}, ptr %pairs, i64 %i, i32 0
  %base.index = load i64, ptr %base.at
  %base.slot = getelementptr i64, ptr %frame, i64 %base.index
  %base = load i64, ptr %base.slot
  %offset.at = getelementptr {{ i64, i64 }}, ptr %pairs, i64 %i, i32 1
  %offset.index = load i64, ptr %offset.at
  %offset.slot = getelementptr i64, ptr %frame, i64 %offset.index
  %offset = load i64, ptr %offset.slot
  %sum = add i64 %base, %offset
  %argument.slot = getelementptr i64, ptr %context, i64 %after
  store i64 %sum, ptr %argument.slot
  %last = icmp eq i64 %after, %count
  br i1 %last, label %call, label %argument
call:
  call void %kernel(ptr %context)
  %status = load atomic i64, ptr %status.slot monotonic, align 8
  %good = icmp eq i64 %status, 0
  br i1 %good, label %step, label %failed
failed:
  ret i64 %status
done:
  ret i64 0
}}
"""


class Way(NamedTuple):
    """How the steps of a program run. What a call begins with it goes on with, whatever other threads set meanwhile (`runtime.profile`)."""

    steps: int | None
    """The address of the one segment of kernel calls, if there are no host steps."""
    schedule: Sequence[tuple[int, Callable[[Frame], object] | None]]
    """All segments: the address of kernel calls or 0, and the host step after them."""
    native: Callable[[int, int], int]
    """Runs one segment in a frame."""


class Frame:
    """One call in flight, as host steps see it.

    `inputs`, `outputs` (addresses) and `sizes` are what the caller gave; `hosts` is the table of addresses to fill in for
    kernels that read what a host step produced; `keep` and `values` hold Python objects until the end of the call.
    """

    __slots__ = ("_address", "_layout", "_slots", "arena_base", "hosts", "inputs", "keep", "outputs", "sizes", "values")

    def __init__(self, layout: Layout, max_arguments: int, initial: Sequence[tuple[int, int]]) -> None:
        self._layout = layout
        # The kernels' argument array lies behind the frame proper.
        self._slots = (ctypes.c_int64 * (layout.size + 1 + max_arguments))()
        self._address = ctypes.addressof(self._slots)
        for slot, value in initial:
            self._slots[slot] = value
        self._slots[CONTEXT] = self._address + 8 * layout.size
        self._slots[layout.size] = self._address + 8 * STATUS
        self.hosts = (ctypes.c_int64 * layout.n_hosts).from_buffer(self._slots, 8 * layout.hosts)
        self.inputs: Sequence[int] = ()
        self.outputs: Sequence[int] = ()
        self.sizes: Sequence[int] = ()
        self.arena_base = 0
        self.keep: list[object] = []
        self.values: dict[object, object] = {}

    def address(self, pointer: Pointer) -> int:
        """What `pointer` means in this call."""
        base, start = self._layout.base(pointer.buffer)
        return self._slots[base] + self.size(start) + self.size(pointer.byte_offset)

    def give(self, slot: int, address: int, nbytes: int, owner: object) -> None:
        """Hand `nbytes` bytes that a host step made to the kernels that read host buffer `slot`; `owner` keeps them in memory."""
        self.keep.append(owner)
        if slot < len(self.hosts):
            self.hosts[slot] = address

    def size(self, expr: Expr) -> int:
        """The value of `expr` in this call."""
        if isinstance(expr, int):
            return expr
        slot = self._layout.slots.get(expr)
        return self._slots[slot] if slot else evaluate(expr, dict(zip(self._layout.symbols, self.sizes)))


class Program:
    """A plan with its code in memory. Several threads may `run` it at once; its memory goes with the last reference.

    `objects` maps a name to an ELF object; together they define the symbols of all kernel steps. `host_steps[i]` is called
    with the `Frame` for `HostStep(i)`. `pool` lends the arenas; programs may share one. Raises CompileError if symbols are
    missing, the plan refers to something that is not there, or a size cannot be computed natively.
    """

    stepwise = False
    """Whether every step is a native call of its own, and every buffer of the arena a block of its own."""

    def __init__(
        self,
        plan: Plan,
        objects: dict[str, bytes],
        host_steps: Sequence[Callable[[Frame], object]] = (),
        perf: bool = False,
        pool: ArenaPool | None = None,
    ) -> None:
        self.plan = plan
        self.pool = pool or ArenaPool()
        self.arena_offsets, self.arena_size = plan_offsets(plan.arena)
        self._layout = layout = Layout(plan, None if self.stepwise else self.arena_offsets)
        self._total = layout.value(self.arena_size)
        steps = encode_steps(plan, layout, self.stepwise)
        sizes_ir = layout.sizes_ir(self._total)
        if sizes_ir:
            objects = {**objects, SIZES_SYMBOL: assemble(sizes_ir)}
        self._library: Library | None = (library := Library(objects, perf))
        for word, symbol in steps.relocations:
            steps.words[word] = library.address(symbol)
        self._compute_sizes = _SIZES_TYPE(library.address(SIZES_SYMBOL)) if sizes_ir else None
        self._words = steps.words
        first = self._words.buffer_info()[0]
        schedule: list[tuple[int, Callable[[Frame], object] | None]] = []
        for start, host in steps.schedule:
            if host is not None and not 0 <= host < len(host_steps):
                raise CompileError(f"the program has no host step {host}")
            schedule.append((0 if start is None else first + 8 * start, None if host is None else host_steps[host]))
        has_hosts = any(host is not None for _, host in schedule)
        # The one segment of a program without host steps; a zero word ends an empty one at once.
        steps_at = None if has_hosts else schedule[0][0] if schedule else first + 8 * (len(self._words) - 1)
        self.way = self.own_way = Way(steps_at, schedule, _runner())
        self._constants = [self._constant(data) for data in plan.constants]
        self._initial = [(layout.constants + i, block.address) for i, block in enumerate(self._constants)]
        self._initial += [(slot, value) for value, slot in layout.static.items()]
        self._max_arguments = steps.max_arguments
        self._fill = struct.Struct(f"{plan.n_inputs + plan.n_outputs + len(plan.symbols)}q").pack_into
        self._counts = plan.n_inputs, plan.n_outputs, len(plan.symbols)
        self._has_arena = bool(plan.arena)
        self._static_bytes = -1 if self._total in layout.slots.values() else int(self.arena_size)
        self._frames: list[Frame] = []
        self._symbols = dict(steps.relocations)
        register(self)

    def run(self, inputs: Sequence[int], outputs: Sequence[int], sizes: Sequence[int] = ()) -> None:
        """Run the graph once on addresses, with the values of `Plan.symbols`.

        Raises what a kernel's status or a host step asks for, TypeError for a wrong number of arguments, MemoryError if there
        is no memory for the intermediates, RuntimeError after `close`.
        """
        # This reference keeps the code in memory to the end of the call, whatever `close` does meanwhile.
        library = self._library
        if library is None or (len(inputs), len(outputs), len(sizes)) != self._counts:
            self._checked(inputs, outputs, sizes)
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = Frame(self._layout, self._max_arguments, self._initial)
        slots = frame._slots
        block = None
        way = self.way
        try:
            self._fill(slots, 8 * INPUTS, *inputs, *outputs, *sizes)
            if self._compute_sizes is not None:
                self._compute_sizes(frame._address)
            if self._has_arena:
                block = self.pool.take(self._static_bytes if self._static_bytes >= 0 else slots[self._total])
                slots[ARENA] = block.address
            if way.steps is not None:
                status = way.native(frame._address, way.steps)
            else:
                frame.inputs, frame.outputs, frame.sizes = inputs, outputs, sizes
                status = self._run_with_hosts(frame, way)
            if status:
                slots[STATUS] = abi.OK
                raise abi.status_error(status)
        finally:
            if block is not None:
                self.pool.give(block)
            self._frames.append(frame)

    def _checked(self, inputs: Sequence[int], outputs: Sequence[int], sizes: Sequence[int]) -> Library:
        """The code, if the program can be called with these."""
        if (len(inputs), len(outputs), len(sizes)) != self._counts:
            raise TypeError("the program takes {} inputs, {} outputs and {} sizes".format(*self._counts))
        library = self._library
        if library is None:
            raise RuntimeError("the program has been closed")
        return library

    def _constant(self, data: bytes) -> Block:
        block = Block(len(data))
        ctypes.memmove(block.address, data, len(data))
        return block

    def _run_with_hosts(self, frame: Frame, way: Way) -> int:
        frame.arena_base = frame._slots[ARENA]
        try:
            for steps, host in way.schedule:
                if steps:
                    status = way.native(frame._address, steps)
                    if status:
                        return status
                if host is not None:
                    host(frame)
        finally:
            frame.keep, frame.values = [], {}
            frame.inputs = frame.outputs = frame.sizes = ()
        return abi.OK

    def arena_bytes(self, sizes: Sequence[int] = ()) -> int:
        """Bytes of arena that a call with these sizes takes."""
        return evaluate(self.arena_size, dict(zip(self.plan.symbols, sizes)))

    def last_call(self) -> tuple[int, int, int] | None:
        """Addresses (f, a, b) with which `f(a, b)` repeats the last call without Python, as long as its tensors live.

        None where host steps belong to it, or no call has been.
        """
        way = self.own_way
        if way.steps is None or not self._frames:
            return None
        return ctypes.cast(way.native, ctypes.c_void_p).value or 0, self._frames[-1]._address, way.steps  # type: ignore[arg-type]

    def close(self) -> None:
        """Free code and arenas as soon as the calls in flight are over."""
        self._library = None
        self._frames.clear()


@functools.cache
def _runner() -> Callable[[int, int], int]:
    library = Library({"mlirc_run": assemble(RUN_IR)})
    function = _RUN_TYPE(library.address("mlirc_run"))
    # Two threads may get here at once, and each keeps its own.
    function.library = library  # type: ignore[attr-defined]
    return function
