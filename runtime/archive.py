"""Static libraries (`ar` archives), as every linker takes them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import elf

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]

_MAGIC = b"!<arch>\n"
_LARGEST = 10**10
"""Bytes of a member from which on their number does not fit its header."""


@dataclass(frozen=True)
class Member:
    """An object file: its name (of at most 15 characters), its exported symbols, and its bytes in parts."""

    name: str
    symbols: Sequence[str]
    parts: Sequence[bytes | Buffer]

    @classmethod
    def of(cls, name: str, obj: bytes) -> Member:
        """The bytes of an object, with the symbols that it says it exports."""
        return cls(name, [s.name for s in elf.symbols(obj) if s.section and not s.is_local], [obj])

    @property
    def nbytes(self) -> int:
        return sum(memoryview(p).nbytes for p in self.parts)


def write_archive(path: Path, members: Iterable[Member]) -> None:
    """Write the members in order, with the index of their symbols in front, as `ar rcs` does.

    Raises ValueError for names that are too long and members of 10 GB and more, and where one begins beyond 4 GiB.
    """
    members = list(members)
    names = b"".join(s.encode() + b"\0" for m in members for s in m.symbols)
    count = sum(len(m.symbols) for m in members)
    index_size = 4 + 4 * count + len(names)
    at = len(_MAGIC) + 60 + _even(index_size)
    offsets: list[int] = []
    for m in members:
        if len(m.name) > 15:
            raise ValueError(f"the name {m.name} is too long for a member of an archive")
        if m.nbytes >= _LARGEST or at >= 1 << 32:
            raise ValueError(f"{m.name} has {m.nbytes / 1e9:.1f} GB and begins at {at / 1e9:.1f} GB: more than an archive holds")
        offsets += [at] * len(m.symbols)
        at += 60 + _even(m.nbytes)
    with path.open("wb") as file:
        file.write(_MAGIC + _header("/", index_size))
        file.write(struct.pack(f">I{count}I", count, *offsets) + names + b"\n" * (index_size % 2))
        for m in members:
            file.write(_header(m.name + "/", m.nbytes))
            for part in m.parts:
                file.write(part)
            file.write(b"\n" * (m.nbytes % 2))


def _header(name: str, nbytes: int) -> bytes:
    """Date, owner and group 0: the same model gives the same file."""
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{nbytes:<10}`\n".encode()


def _even(n: int) -> int:
    return n + n % 2
