"""Puts object files into the memory of this process, and takes them out again."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

import llvmlite.binding as llvm

from ..errors import CompileError
from . import abi, elf
from .tables import bf16_table

# Provided by the linker itself, not by any library.
_LINKER_SYMBOLS = frozenset({"_GLOBAL_OFFSET_TABLE_"})


class Library:
    """Object files linked into this process as one unit with a name space of its own.

    `objects` maps a name (for messages) to the bytes of an ELF object. What the objects need from outside comes from
    libtorch_cpu (`torch_*`, `aoti_torch_*`), libm, libc or libgcc, or is a table of `runtime.tables`. With `perf`,
    /tmp/perf-PID.map gets a line per function. The code stays until `close()` or the last reference goes. Raises CompileError for an object that cannot be linked,
    naming the missing symbols.
    """

    def __init__(self, objects: dict[str, bytes], perf: bool = False) -> None:
        tables = {}
        for name, obj in objects.items():
            try:
                tables[name] = elf.symbols(obj)
            except ValueError as error:
                raise CompileError(f"cannot load: {error}", kernel=name) from None
        exports = {s.name for table in tables.values() for s in table if s.section and not s.is_local}
        builder = llvm.JITLibraryBuilder()
        for symbol, address in _resolve(tables, exports).items():
            builder.import_symbol(symbol, address)
        for obj in objects.values():
            builder.add_object_img(obj)
        for symbol in exports:
            builder.export_symbol(symbol)
        self._tracker = None
        if objects:
            _initialize()
            # JITLink, because RuntimeDyld leaks with every library; a linker of its own for each library (0.6 ms), because one
            # that is shared never forgets the libraries that are gone (9 kB each). The tracker keeps it alive.
            # A missing symbol is an exception here, while MCJIT ends the process.
            jit = llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)
            try:
                self._tracker = builder.link(jit, "kernels")
            except RuntimeError as error:
                raise CompileError(f"cannot link: {error}", kernel=", ".join(objects)) from None
        self._addresses = {symbol: self._tracker[symbol] for symbol in exports} if self._tracker else {}
        if perf:
            _write_perf_map(tables, self._addresses)

    def address(self, symbol: str) -> int:
        """The address of an exported symbol. Raises CompileError if there is none of that name."""
        try:
            return self._addresses[symbol]
        except KeyError:
            raise CompileError(f"no loaded object defines the symbol {symbol}", kernel=symbol) from None

    def close(self) -> None:
        """Free the code. No address of this library may be used any more."""
        self._addresses = {}
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.close()


def assemble(text: str, opt: int = 1) -> bytes:
    """Compile LLVM IR `text` to an object for this machine: no passes on the IR, code generation at level `opt`.

    Raises CompileError with LLVM's message if the text does not parse or verify.
    """
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM rejects the IR: {error}") from None
    # A target machine costs 0.1 ms and is not safe to share between threads.
    _initialize()
    return llvm.Target.from_default_triple().create_target_machine(opt=opt, **abi.CODEGEN).emit_object(module)


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # for instructions that are written as such (`runtime.cpuid`)


def _resolve(tables: dict[str, list[elf.Symbol]], exports: set[str]) -> dict[str, int]:
    """Addresses for everything that is needed and not exported by a neighbour."""
    found: dict[str, int] = {}
    missing: dict[str, str] = {}
    for name, table in tables.items():
        for symbol in table:
            if symbol.section or symbol.name in exports or symbol.name in found or symbol.name in _LINKER_SYMBOLS:
                continue
            address = _external(symbol.name)
            if address:
                found[symbol.name] = address
            elif not symbol.is_weak:
                missing.setdefault(symbol.name, name)
    if missing:
        raise CompileError(f"unresolved symbol {', '.join(missing)}", kernel=", ".join(dict.fromkeys(missing.values())))
    return found


@functools.cache
def _external(symbol: str) -> int:
    """The address of a function of torch's C ABI or of the C runtime, or of a table; 0 if there is none."""
    if symbol.startswith(abi.BF16_TABLE):
        return bf16_table(symbol)
    libraries = [_libtorch()] if symbol.startswith(("torch_", "aoti_torch_")) else _runtime_libraries()
    for library in libraries:
        try:
            return ctypes.cast(library[symbol], ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    return 0


@functools.cache
def _libtorch() -> ctypes.CDLL:
    """libtorch_cpu as torch itself has loaded it."""
    # torch loads its libraries in an order and scope of its own; opening them ahead of it would change that.
    import torch

    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise CompileError(f"cannot open torch's library: {error}") from None


@functools.cache
def _runtime_libraries() -> list[ctypes.CDLL]:
    """libm (which brings libc with it) and libgcc (conversions and 128-bit arithmetic that LLVM calls by name)."""
    libraries = []
    for name in ("libm.so.6", "libgcc_s.so.1") if sys.platform == "linux" else (None,):
        try:
            libraries.append(ctypes.CDLL(name))
        except OSError:
            continue
    return libraries


def _write_perf_map(tables: dict[str, list[elf.Symbol]], addresses: dict[str, int]) -> None:
    """Functions are named after their object, with what their symbol has beyond the exported one (`k03_linear_body`)."""
    lines = []
    for name, table in tables.items():
        exported = next((s.name for s in table if s.name in addresses and s.section), "")
        # Local functions have no address to ask for; they keep their distance to an exported one in the same section.
        bases = {s.section: addresses[s.name] - s.offset for s in table if s.name in addresses and s.section}
        for s in table:
            if s.is_function and s.size and s.section in bases:
                label = name + s.name.removeprefix(exported) if exported and s.name.startswith(exported) else s.name
                lines.append(f"{bases[s.section] + s.offset:x} {s.size:x} {label}\n")
    # One write: several threads may append.
    with open(f"/tmp/perf-{os.getpid()}.map", "a") as file:
        file.write("".join(lines))
