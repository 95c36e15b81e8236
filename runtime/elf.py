"""The symbol table of a relocatable ELF64 object: enough to see what it defines and what it needs."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHT_SYMTAB = 2
_STB_LOCAL, _STB_WEAK = 0, 2
_STT_FUNC = 2


@dataclass(frozen=True)
class Symbol:
    """One entry: `section` 0 means undefined; `offset` and `size` are in bytes within that section."""

    name: str
    section: int
    offset: int
    size: int
    is_local: bool
    is_weak: bool
    is_function: bool


def symbols(obj: bytes) -> list[Symbol]:
    """All named symbols of `obj`. Raises ValueError if it is not a little-endian ELF64 file, or a damaged one."""
    if obj[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a little-endian ELF64 object")
    try:
        return _read(obj)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"damaged ELF64 object: {error}") from None


def defines(obj: bytes, symbol: str) -> bool:
    """Whether `obj` is a whole object file that exports `symbol`."""
    try:
        return any(s.name == symbol and s.section and not s.is_local for s in symbols(obj))
    except ValueError:
        return False


def _read(obj: bytes) -> list[Symbol]:
    (table_offset,) = struct.unpack_from("<Q", obj, 40)
    count = struct.unpack_from("<H", obj, 60)[0]
    sections = [_SECTION.unpack_from(obj, table_offset + i * _SECTION.size) for i in range(count)]
    found = []
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind != _SHT_SYMTAB:
            continue
        names = sections[link][4]
        for name, info, _, section, value, length in _SYMBOL.iter_unpack(obj[offset : offset + size]):
            if name:
                start = names + name
                text = obj[start : obj.index(b"\0", start)].decode()
                binding = info >> 4
                function = info & 15 == _STT_FUNC
                found.append(Symbol(text, section, value, length, binding == _STB_LOCAL, binding == _STB_WEAK, function))
    return found
