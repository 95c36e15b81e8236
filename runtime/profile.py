"""Where the time of a call goes: seconds per kernel, measured by running kernel after kernel."""

from __future__ import annotations

import contextlib
import time
import weakref
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .program import Frame, Program

_programs: weakref.WeakSet[Program] = weakref.WeakSet()


def register(program: Program) -> None:
    """Make a program known to `profiling`."""
    _programs.add(program)


@contextlib.contextmanager
def profiling() -> Iterator[dict[str, float]]:
    """Seconds per exported symbol, added up meanwhile over the calls of all programs there are.

    Kernels are called one at a time from Python, which costs each about 1 us. For one thread at a time.
    """
    seconds: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        for program in list(_programs):
            stack.enter_context(_one_by_one(program, seconds))
        yield seconds


@contextlib.contextmanager
def _one_by_one(program: Program, seconds: dict[str, float]) -> Iterator[None]:
    """Give `program` a schedule in which each kernel is a segment of its own, and a timer around each segment."""
    names, (_, schedule, native) = program._symbols, program.own_way
    words = program._words
    first = words.buffer_info()[0]
    # By address. Calls that have begun hold `timed`, and that the words: they must stay where they are.
    singles: dict[int, tuple[str, array[int]]] = {}
    split: list[tuple[int, Callable[[Frame], object] | None]] = []
    for start, host in schedule:
        at = (start - first) // 8
        while start and words[at]:
            end = at + 2 + 2 * words[at + 1]
            single = array("q", (*words[at:end], 0))
            address = single.buffer_info()[0]
            singles[address] = names[at], single
            split.append((address, None))
            at = end
        if host is not None:
            split.append((0, host))

    def timed(frame: int, steps: int) -> int:
        begin = time.perf_counter()
        status = native(frame, steps)
        symbol, _ = singles[steps]
        seconds[symbol] = seconds.get(symbol, 0.0) + time.perf_counter() - begin
        return status

    program.way = program.own_way._replace(steps=None, schedule=split, native=timed)
    try:
        yield
    finally:
        program.way = program.own_way
