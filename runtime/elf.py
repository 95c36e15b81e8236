"""Relocatable ELF64 objects: what one defines and needs, by its symbol table, and how bytes become one."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_ET_REL, _EM_X86_64 = 1, 62
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_STRTAB = 1, 2, 3
_SHF_ALLOC, _SHF_LARGE = 2, 1 << 28
_STB_LOCAL, _STB_GLOBAL, _STB_WEAK = 0, 1, 2
_STT_OBJECT, _STT_FUNC = 1, 2
_STV_HIDDEN = 2


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
    sections = _tables(obj)
    found = []
    for kind, offset, size, link in sections:
        if kind != _SHT_SYMTAB:
            continue
        names = sections[link][1]
        for name, info, _, section, value, length in _SYMBOL.iter_unpack(obj[offset : offset + size]):
            if name:
                start = names + name
                text = obj[start : obj.index(b"\0", start)].decode()
                binding = info >> 4
                function = info & 15 == _STT_FUNC
                found.append(Symbol(text, section, value, length, binding == _STB_LOCAL, binding == _STB_WEAK, function))
    return found


def weak_and_hidden(obj: bytes) -> bytes:
    """The object with what it exports weak and hidden: two libraries that both have it may be linked whole, and neither exports it again."""
    out = bytearray(obj)
    for kind, offset, size, _ in _tables(obj):
        if kind == _SHT_SYMTAB:
            for at in range(offset, offset + size, _SYMBOL.size):
                _, info, _, section, *_ = _SYMBOL.unpack_from(obj, at)
                if section and info >> 4 == _STB_GLOBAL:
                    out[at + 4 : at + 6] = bytes([_STB_WEAK << 4 | info & 15, _STV_HIDDEN])
    return bytes(out)


def _tables(obj: bytes) -> list[tuple[int, int, int, int]]:
    """Of each section its kind, offset, size and the section that it links to."""
    (table_offset,) = struct.unpack_from("<Q", obj, 40)
    count = struct.unpack_from("<H", obj, 60)[0]
    sections = [_SECTION.unpack_from(obj, table_offset + i * _SECTION.size) for i in range(count)]
    return [(kind, offset, size, link) for _, kind, _, _, offset, size, link, *_ in sections]


def data_object(symbol: str, nbytes: int, alignment: int = 64) -> tuple[bytes, bytes]:
    """What stands before and after `nbytes` bytes to make them an object that has them, read-only, as the weak and hidden `symbol`.

    They lie in `.lrodata`, which linkers put where more than 2 GiB do not push code and its own data apart; whoever refers to them does
    so with 64 bits.
    """
    start = -(-_HEADER.size // alignment) * alignment
    names = b"\0" + symbol.encode() + b"\0"
    titles = b"\0.lrodata\0.note.GNU-stack\0.symtab\0.strtab\0.shstrtab\0"
    table = bytes(_SYMBOL.size) + _SYMBOL.pack(1, _STB_WEAK << 4 | _STT_OBJECT, _STV_HIDDEN, 1, 0, nbytes)
    symbols_at = start + nbytes + -nbytes % 8
    names_at = symbols_at + len(table)
    titles_at = names_at + len(names)
    sections_at = titles_at + len(titles) + -(titles_at + len(titles)) % 8

    def section(title: bytes, kind: int, flags: int, at: int, size: int, link: int = 0, info: int = 0, align: int = 1, entry: int = 0) -> bytes:
        return _SECTION.pack(titles.index(title), kind, flags, 0, at, size, link, info, align, entry)

    sections = [
        bytes(_SECTION.size),
        section(b".lrodata\0", _SHT_PROGBITS, _SHF_ALLOC | _SHF_LARGE, start, nbytes, align=alignment),
        section(b".note.GNU-stack\0", _SHT_PROGBITS, 0, symbols_at, 0),
        section(b".symtab\0", _SHT_SYMTAB, 0, symbols_at, len(table), link=4, info=1, align=8, entry=_SYMBOL.size),
        section(b".strtab\0", _SHT_STRTAB, 0, names_at, len(names)),
        section(b".shstrtab\0", _SHT_STRTAB, 0, titles_at, len(titles)),
    ]
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = _HEADER.pack(identity, _ET_REL, _EM_X86_64, 1, 0, 0, sections_at, 0, _HEADER.size, 0, 0, _SECTION.size, len(sections), 5)
    rest = table + names + titles
    rest += bytes(sections_at - symbols_at - len(rest)) + b"".join(sections)
    return header.ljust(start, b"\0"), bytes(symbols_at - start - nbytes) + rest
