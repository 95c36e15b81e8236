"""The object files of an exported model: code, and what the model keeps as data."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import abi, elf
from .archive import Member
from .artefact import Interface, program_ir
from .loader import assemble
from .openmp import LOOP_IR, without_torch
from .plan import KernelStep, Plan
from .tables import bf16_table


@dataclass
class Piece:
    """Bytes of the library, and what keeps them in memory until it is written."""

    address: int
    nbytes: int
    owner: Any


def laid(pieces: Mapping[int, Piece]) -> tuple[dict[int, int], list[Piece]]:
    """(where each begins in the data, the pieces one after another): tensors that two parameters share are there once."""
    starts: dict[int, int] = {}
    at: dict[tuple[int, int], int] = {}
    end = 0
    kept = []
    for number, piece in pieces.items():
        key = (piece.address, piece.nbytes)
        if key not in at:
            at[key] = end
            end += _room(piece)
            kept.append(piece)
        starts[number] = at[key]
    return starts, kept


def _room(piece: Piece) -> int:
    """Empty tensors have a place, too."""
    return abi.aligned(max(piece.nbytes, 1))


def members(
    plan: Plan, interface: Interface, starts: Mapping[int, int], kept: Sequence[Piece], kernels: Mapping[str, bytes], features: Sequence[str]
) -> list[Member]:
    """The object files of a library: the functions around `plan`, its kernels by their symbols, loops, tables, and the `kept` pieces.

    `starts` and `kept` are what `laid` gives for the inputs of the plan that are part of the library. Raises what `program_ir` raises.
    """
    called = {s.symbol for s in plan.steps if isinstance(s, KernelStep)}
    program = assemble(program_ir(plan, interface, starts, features))
    own = [elf.weak_and_hidden(without_torch(code)) for symbol, code in kernels.items() if symbol in called]
    objects = [program, *own, assemble(LOOP_IR)]
    out = [Member.of(f"{n:04d}.o", obj) for n, obj in enumerate(objects)]
    needed = {s.name for obj in objects for s in elf.symbols(obj) if not s.section}
    for symbol in sorted(s for s in needed if s.startswith(abi.BF16_TABLE)):
        out.append(_data(f"{len(out):04d}.o", symbol, [Piece(bf16_table(symbol), 4 << 16, None)]))
    if kept:
        out.append(_data("data.o", interface.data_symbol, kept))
    return out


def _data(name: str, symbol: str, pieces: Sequence[Piece]) -> Member:
    before, after = elf.data_object(symbol, sum(_room(p) for p in pieces))
    parts: list[Any] = [before]
    for p in pieces:
        parts.append(memoryview((ctypes.c_char * p.nbytes).from_address(p.address)) if p.nbytes else b"")
        parts.append(bytes(_room(p) - p.nbytes))
    return Member(name, [symbol], [*parts, after])
