"""From LLVM IR text to object code and assembly, with llvmlite.

The code that arrives is already vectorized, unrolled and hoisted, so LLVM gets no pipeline of its own to speak of: instruction
selection, scheduling and register allocation are what it is here for. An LLVM option is one of the whole process, and other users of
llvmlite there would feel it; so one is set only where the process is ours.
"""

from __future__ import annotations

import contextlib
import functools
import re
import struct
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import CompileError
from .bfloat import bfloat_as_bits
from .bridge import to_llvm22
from .target import Target

if TYPE_CHECKING:
    import llvmlite.binding as llvm


_own = False


def own_process() -> None:
    """Say that this process is ours (a compile worker, the command line), so that LLVM's options may be set as a kernel wants them."""
    global _own
    _own = True


@contextlib.contextmanager
def _strength_reduction(wanted: bool) -> Iterator[None]:
    """With or without LLVM's loop strength reduction, where this process is ours."""
    import llvmlite.binding as llvm

    if wanted or not _own:
        yield
        return
    llvm.set_option("mlirc", "-disable-lsr=true")
    try:
        yield
    finally:
        llvm.set_option("mlirc", "-disable-lsr=false")


def emit_object(llvm_text: str, target: Target, *, strength_reduction: bool = True) -> bytes:
    """A relocatable object (position-independent, small code model) of a module printed by MLIR's LLVM or by llvmlite's.

    Without `strength_reduction`, addresses are computed as they are written (in a process of ours, see `own_process`).
    Raises CompileError if the text does not parse or verify, or if the object would call a function that nobody has.
    """
    machine, module = _prepare(llvm_text, target)
    with _strength_reduction(strength_reduction):
        code: bytes = machine.emit_object(module)
    if code.startswith(b"\x7fELF"):
        _check_symbols(undefined_symbols(code), target)
    return code


def emit_assembly(llvm_text: str, target: Target, *, strength_reduction: bool = True) -> str:
    """The same module as AT&T assembly."""
    machine, module = _prepare(llvm_text, target)
    with _strength_reduction(strength_reduction):
        text: str = machine.emit_assembly(module)
    return text


def _prepare(llvm_text: str, target: Target) -> tuple[llvm.TargetMachine, llvm.ModuleRef]:
    import llvmlite.binding as llvm

    machine = _machine(target.llvm_cpu, target.llvm_features, threading.get_ident())
    text = bfloat_as_bits(to_llvm22(llvm_text))
    _check_intrinsics(text, target)
    try:
        module = llvm.parse_assembly(text)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM rejects the module: {_locate(str(error), text)}", stage="codegen") from None
    return machine, module


@functools.lru_cache(maxsize=16)
def _machine(cpu: str, features: str, thread: int) -> llvm.TargetMachine:
    # One for each thread: the object is not made for sharing.
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small"
    )


# LLVM aborts the process when it has to select an instruction that the target lacks.
_NEEDS = (
    ("tdpbf16", "amx-bf16"),
    ("tdpfp16", "amx-fp16"),
    ("tdpb", "amx-int8"),
    ("tile", "amx-tile"),
    ("ldtilecfg", "amx-tile"),
    ("avx10", "avx10.2"),
    ("avx512bf16.", "avx512bf16"),
    ("avx512fp16.", "avx512fp16"),
    ("avx512.vpdp", "avx512vnni"),
    ("avx512.pmadd", "avx512bw"),
    ("avx512.", "avx512f"),
    ("avx2.", "avx2"),
    ("avx.", "avx"),
    ("vcvtph2ps", "f16c"),
    ("vcvtps2ph", "f16c"),
)
_DECLARED = re.compile(r"^declare .*@llvm\.x86\.([\w.]+)", re.MULTILINE)


def _check_intrinsics(text: str, target: Target) -> None:
    for name in _DECLARED.findall(text):
        feature = next((feature for prefix, feature in _NEEDS if name.startswith(prefix)), None)
        if feature and not target.has(feature) and not (name.startswith("avx512.vpdp") and target.has_vnni):
            raise CompileError(f"the instruction {name} needs the CPU feature {feature}, which target {target.name} lacks", stage="codegen")


def _locate(message: str, text: str) -> str:
    """LLVM's message with the line of the module that it is about."""
    at = re.search(r"<string>:(\d+):\d+: (?:error: )?(.*)", message)
    if not at:
        return message.strip()
    return f"{at[2]}: {text.splitlines()[int(at[1]) - 1].strip()}"


def undefined_symbols(code: bytes) -> list[str]:
    """The names that an ELF object (64-bit, little endian) wants from elsewhere, in the order of its symbol table.

    Raises CompileError for anything that is not such an object.
    """
    if code[:6] != b"\x7fELF\x02\x01":
        raise CompileError("not a 64-bit ELF object", stage="codegen")
    table, entry_size, count = struct.unpack_from("<Q", code, 40)[0], *struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, table + i * entry_size) for i in range(count)]
    names: list[str] = []
    for _, kind, _, _, start, size, link, _, _, step in sections:
        if kind != 2:  # SHT_SYMTAB
            continue
        strings = sections[link][4]
        for at in range(start + step, start + size, step):
            name, _, _, section = struct.unpack_from("<IBBH", code, at)
            if section == 0 and name:
                names.append(code[strings + name : code.index(b"\0", strings + name)].decode())
    return names


# Library calls that LLVM inserts where the CPU lacks an instruction, and whose library is in no process for sure.
_HALF_CALL = re.compile(r"__(?:ext|trunc)\w*[hb]f\w*2|__gnu_[fh]2[fh]_ieee")


def _check_symbols(names: list[str], target: Target) -> None:
    for name in names:
        if name.startswith("llvm."):
            raise CompileError(f"LLVM 22 does not know the intrinsic {name}", stage="codegen")
        if _HALF_CALL.fullmatch(name):
            raise CompileError(f"half precision needs the CPU feature f16c, which target {target.name} lacks ({name})", stage="codegen")
