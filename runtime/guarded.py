"""A program for finding wrong accesses: every buffer between guard pages, one step after the other. Slow."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from . import abi, guards
from .expr import evaluate
from .faults import watch
from .fingerprint import Samples
from .guards import GuardedBlock
from .layout import INPUTS, STATUS
from .plan import Buffer, HostStep, Plan, Pointer
from .program import Frame, Program
from .weights import WeightTable

# What has happened since the last look is the last step's doing, so only one may run at a time.
_one_at_a_time = threading.RLock()


class GuardedFrame(Frame):
    """Gives kernels guarded copies of what host steps make."""

    __slots__ = ("placement",)
    placement: str

    def give(self, slot: int, address: int, nbytes: int, owner: object) -> None:
        if nbytes and slot < len(self.hosts):
            block = GuardedBlock(nbytes, f"result {slot} of the calls of ATen", self.placement)
            ctypes.memmove(block.address, address, nbytes)
            address, owner = block.address, (block, owner)
        super().give(slot, address, nbytes, owner)


class GuardedProgram(Program):
    """Runs steps one by one; each buffer of the arena is a block of its own, closed before and after its lifetime.

    Inputs and outputs are the caller's, `guards.GuardedBlock` too if they are to be guarded. `names` maps symbols of kernels
    to what they are called in messages, `host_names` are those of the host steps. `run` raises GuardPageError, too, naming
    the first step that reaches outside of what it may access, after which the process is as sound as before.
    """

    stepwise = True

    def __init__(
        self,
        plan: Plan,
        objects: dict[str, bytes],
        host_steps: Sequence[Callable[[Frame], object]] = (),
        *,
        placement: str = "end",
        names: Mapping[str, str] | None = None,
        host_names: Sequence[str] = (),
        perf: bool = False,
    ) -> None:
        self.placement = placement
        super().__init__(plan, objects, host_steps, perf)
        self._titles = []
        self._first: dict[int, list[int]] = {}
        self._last: dict[int, list[int]] = {}
        for i, buffer in enumerate(plan.arena):
            self._first.setdefault(buffer.first, []).append(i)
            self._last.setdefault(buffer.last, []).append(i)
        for number, step in enumerate(plan.steps):
            if isinstance(step, HostStep):
                title = f"the call of {host_names[step.index] if step.index < len(host_names) else 'ATen'}"
            else:
                title = f"kernel {(names or {}).get(step.symbol, step.symbol)}"
            self._titles.append(f"{title} (step {number})")

    def _constant(self, data: bytes) -> GuardedBlock:
        block = GuardedBlock(len(data), "a constant", self.placement)
        ctypes.memmove(block.address, data, len(data))
        block.freeze()
        return block

    def run(self, inputs: Sequence[int], outputs: Sequence[int], sizes: Sequence[int] = ()) -> None:
        library = self._checked(inputs, outputs, sizes)
        frame = GuardedFrame(self._layout, self._max_arguments, self._initial)
        frame.placement = self.placement
        frame.inputs, frame.outputs, frame.sizes = inputs, outputs, sizes
        self._fill(frame._slots, 8 * INPUTS, *inputs, *outputs, *sizes)
        if self._compute_sizes is not None:
            self._compute_sizes(frame._address)
        symbols = dict(zip(self.plan.symbols, sizes))
        blocks: dict[int, GuardedBlock] = {}
        way = self.way
        watch().install()
        for number, (step, (words, host)) in enumerate(zip(self.plan.steps, way.schedule)):
            for i in self._first.get(number, ()):
                buffer = self.plan.arena[i]
                name = f"buffer {i} of the arena (in use from step {buffer.first} to {buffer.last})"
                blocks[i] = GuardedBlock(evaluate(buffer.nbytes, symbols), name, self.placement)
                frame._slots[self._layout.base(Buffer("arena", i))[0]] = blocks[i].address
            pointers = [] if isinstance(step, HostStep) else [a for a in step.args if isinstance(a, Pointer)]
            with _watched(self._titles[number], [frame.address(Pointer(p.buffer)) for p in pointers]):
                if host is not None:
                    host(frame)
                else:
                    way.native(frame._address, words)
            if frame._slots[STATUS]:
                raise abi.status_error(frame._slots[STATUS])
            for i in self._last.get(number, ()):
                blocks[i].close()
        del library


@contextlib.contextmanager
def _watched(title: str, addresses: Sequence[int]) -> Iterator[None]:
    """Raise for what the code inside accesses wrongly. `addresses` are those of the blocks that it was given."""
    with _one_at_a_time:
        watch().name(title)
        try:
            yield
        finally:
            watch().name("code outside of the steps of compiled graphs")
            guards.check(title, addresses)


class GuardedWeightTable(WeightTable):
    """Computes from guarded copies of the weights into guarded memory, which nobody may write to afterwards."""

    program: GuardedProgram

    def _fill(self, pointers: tuple[int, ...], tensors: Sequence[Any], samples: Samples) -> tuple[list[GuardedBlock], list[int]]:
        placement = self.program.placement
        names = [f"weight {i}" for i in range(len(tensors))]
        inputs = guards.copies(list(tensors), names, set(), placement)
        blocks = [GuardedBlock(n, f"packed weight {i}", placement) for i, n in enumerate(self.nbytes)]
        addresses = [b.address for b in blocks]
        self.program.run([address for address, _, _ in inputs], addresses)
        for block in blocks:
            block.freeze()
        return blocks, addresses
