"""What one core can do at most: products from registers, and bytes read from memory. Small loops of LLVM IR, timed here and now.

Measured on random data: with zeros, the core need not slow down for the load.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

CHAINS = 24
"""Sums that are in flight at once."""

TILE_BYTES = 1024
"""Of a register of AMX."""


@dataclass
class Probe:
    """Native code that works off `amount` (operations or bytes) in a call of `run`, to be timed between other things.

    A call takes about a millisecond: for the first few 0.1 ms after other code, a core is slower.
    """

    run: Callable[[], None]
    amount: float

    def rate(self, seconds: float) -> float:
        """The best of the calls in so many seconds, per second."""
        best, end = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            self.run()
            best = min(best, time.perf_counter() - start)
        return self.amount / best


def gflops(dtype: str, seconds: float = 0.2) -> float:
    """Products and sums per second, in 10^9, of one core on values in registers; `dtype` is f32, bf16 or i8."""
    return units(dtype).rate(seconds) / 1e9


def units(dtype: str) -> Probe:
    """Products and sums of one core on values in registers, for about 1 ms; `dtype` is f32, bf16 or i8.

    bf16 is multiplied on AMX tiles where the CPU has them, in pairs where it can (`vdpbf16ps`), else widened to f32; bytes on tiles, in
    fours (`vpdpbusd`), or as pairs of i16 (`vpmaddwd`).
    """
    target = _target()
    if {"bf16": target.has_amx_bf16, "i8": target.has_amx_int8}.get(dtype):
        return _tiles(dtype)
    bits, lanes = target.vector_bits, target.vector_bits // 32
    acc, word = f"<{lanes} x {'i32' if dtype == 'i8' else 'float'}>", 1
    if dtype == "bf16" and target.has_avx512_bf16 or dtype == "i8" and target.has_vnni:
        word, element, name = (2, "bfloat", "avx512bf16.dpbf16ps") if dtype == "bf16" else (4, "i8", "avx512.vpdpbusd")
        factor, name = f"<{word * lanes} x {element}>", f"llvm.x86.{name}.{bits}"
        product = f"call {acc} @{name}({acc} %a{{i}}, {factor} %x, {factor} %y)"
        declare = f"declare {acc} @{name}({acc}, {factor}, {factor})"
    elif dtype == "i8":
        word, factor, name = 2, f"<{2 * lanes} x i16>", "llvm.x86.avx512.pmaddw.d.512" if bits == 512 else "llvm.x86.avx2.pmadd.wd"
        product = f"add {acc} %a{{i}}, %product{{i}}"
        declare = f"declare {acc} @{name}({factor}, {factor})"
    else:
        factor, name = acc, f"llvm.fma.v{lanes}f32"
        product = f"call {acc} @{name}({acc} %x, {acc} %y, {acc} %a{{i}})"
        declare = f"declare {acc} @{name}({acc}, {acc}, {acc})"
    chains = CHAINS if target.vector_bits == 512 else CHAINS // 2
    lines = [declare, "define void @f(ptr %p, i64 %n) {", "entry:"]
    lines += [f"%x = load {factor}, ptr %p, align 64", "%q = getelementptr i8, ptr %p, i64 64", f"%y = load {factor}, ptr %q, align 64"]
    lines += ["br label %loop", "loop:", "%i = phi i64 [0, %entry], [%j, %loop]"]
    lines += [f"%a{i} = phi {acc} [zeroinitializer, %entry], [%b{i}, %loop]" for i in range(chains)]
    for i in range(chains):
        if dtype == "i8" and word == 2:  # another product for each sum, or one would do for all
            lines += [f"%d{i} = bitcast {acc} %a{i} to {factor}", f"%product{i} = call {acc} @{name}({factor} %d{i}, {factor} %x)"]
        lines.append(f"%b{i} = " + product.format(i=i))
    lines += ["%j = add i64 %i, 1", "%c = icmp slt i64 %j, %n", "br i1 %c, label %loop, label %out", "out:", *_fold(acc, chains), "}"]
    values = np.random.default_rng(0).normal(size=32).astype(np.float32)
    data = values.view(np.uint8) if word == 1 or dtype == "i8" else (values.view(np.uint32) >> 16).astype(np.uint16).repeat(2).view(np.uint8)
    buffer = _aligned(256)
    buffer[:128] = data[:128]
    count = 200_000
    return Probe(_runner("\n".join(lines), buffer, count), 2 * lanes * word * chains * count)


def _tiles(dtype: str) -> Probe:
    """As `units`: four tiles of 16x16 sums, from two tiles of either operand, which are loaded from the first-level cache for each step.

    No product has all of its operands in registers, and the core slows down by a fifth when it loads tiles besides.
    """
    from mlirc.runtime.amx import request_tiles

    request_tiles()
    load, product = "call x86_amx @llvm.x86.tileloadd64.internal", f"call x86_amx @llvm.x86.{'tdpbf16ps' if dtype == 'bf16' else 'tdpbusd'}.internal"
    lines = [
        "declare x86_amx @llvm.x86.tileloadd64.internal(i16, i16, ptr, i64)",
        f"declare {product.removeprefix('call ')}(i16, i16, i16, x86_amx, x86_amx, x86_amx)",
        "declare x86_amx @llvm.x86.tilezero.internal(i16, i16)",
        "declare void @llvm.x86.tilestored64.internal(i16, i16, ptr, i64, x86_amx)",
        "define void @f(ptr %p, i64 %n) {",
        "entry:",
    ]
    for i in range(4):
        lines += [f"%q{i} = getelementptr i8, ptr %p, i64 {TILE_BYTES * i}", f"%z{i} = call x86_amx @llvm.x86.tilezero.internal(i16 16, i16 64)"]
    lines += ["br label %loop", "loop:", "%i = phi i64 [0, %entry], [%j, %loop]"]
    lines += [f"%a{i} = phi x86_amx [%z{i}, %entry], [%b{i}, %loop]" for i in range(4)]
    lines += ["%odd = and i64 %i, 7", f"%at = mul i64 %odd, {4 * TILE_BYTES}"]
    for i in range(4):
        lines += [f"%w{i} = getelementptr i8, ptr %q{i}, i64 %at", f"%t{i} = {load}(i16 16, i16 64, ptr %w{i}, i64 64)"]
    lines += [f"%b{i} = {product}(i16 16, i16 64, i16 64, x86_amx %a{i}, x86_amx %t{i // 2}, x86_amx %t{2 + i % 2})" for i in range(4)]
    lines += ["%j = add i64 %i, 1", "%c = icmp slt i64 %j, %n", "br i1 %c, label %loop, label %out", "out:"]
    for i in range(4):
        lines.append(f"%s{i} = getelementptr i8, ptr %p, i64 {TILE_BYTES * (32 + i)}")
        lines.append(f"call void @llvm.x86.tilestored64.internal(i16 16, i16 64, ptr %s{i}, i64 64, x86_amx %b{i})")
    lines += ["ret void", "}"]
    buffer = _aligned(36 * TILE_BYTES)
    values = np.random.default_rng(0).normal(size=16 * TILE_BYTES).astype(np.float32)
    buffer[: 32 * TILE_BYTES] = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    count = 35_000
    return Probe(_runner("\n".join(lines), buffer, count), 4 * 2 * 16 * 16 * (32 if dtype == "bf16" else 64) * count)


def vector_ops(kind: str, seconds: float = 0.1) -> float:
    """Vector ops per second of one core on f32 values in registers: `fma`, `fdiv`, or `xor` for what any of its units does."""
    width = lanes()
    acc, chains = f"<{width} x float>", CHAINS if _target().vector_bits == 512 else CHAINS // 2
    bits = f"<{width} x i32>"
    lines = [f"declare {acc} @llvm.fma.v{width}f32({acc}, {acc}, {acc})"] if kind == "fma" else []
    lines += ["define void @f(ptr %p, i64 %n) {", "entry:", f"%x = load {acc}, ptr %p, align 64", f"%z = bitcast {acc} %x to {bits}"]
    lines += ["br label %loop", "loop:", "%i = phi i64 [0, %entry], [%j, %loop]"]
    lines += [f"%a{i} = phi {acc} [%x, %entry], [%b{i}, %loop]" for i in range(chains)]
    for i in range(chains):
        if kind == "fma":
            lines.append(f"%b{i} = call {acc} @llvm.fma.v{width}f32({acc} %a{i}, {acc} %x, {acc} %x)")
        elif kind == "fdiv":
            lines.append(f"%b{i} = fdiv {acc} %a{i}, %x")
        else:
            lines += [f"%c{i} = bitcast {acc} %a{i} to {bits}", f"%d{i} = xor {bits} %c{i}, %z", f"%b{i} = bitcast {bits} %d{i} to {acc}"]
    lines += ["%j = add i64 %i, 1", "%c = icmp slt i64 %j, %n", "br i1 %c, label %loop, label %out", "out:", *_fold(acc, chains), "}"]
    buffer = _aligned(256)
    buffer.view(np.float32)[:] = np.random.default_rng(0).uniform(0.99, 1.0, 64)  # and so no product leaves the normal numbers
    count = 50_000
    return Probe(_runner("\n".join(lines), buffer, count), chains * count).rate(seconds)


def lanes() -> int:
    """Elements of 32 bits in a vector."""
    bits: int = _target().vector_bits
    return bits // 32


COPY_IR = """
define void @copy(ptr %to, ptr %sizes) {{
entry:
  %from.slot = getelementptr i64, ptr %sizes, i64 1
  %from = load ptr, ptr %from.slot
  %n = load i64, ptr %sizes
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
  {body}
  %j = add i64 %i, {step}
  %c = icmp slt i64 %j, %n
  br i1 %c, label %loop, label %out
out:
  ret void
}}
define void @repeat(ptr %f, ptr %a, ptr %b, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
  call void %f(ptr %a, ptr %b)
  %j = add i64 %i, 1
  %c = icmp slt i64 %j, %n
  br i1 %c, label %loop, label %out
out:
  ret void
}}
"""


class Repeat:
    """Native calls `f(a, b)` of a function of two pointers, again and again, without Python in between."""

    def __init__(self) -> None:
        width = 4 * lanes()
        kind = f"<{lanes()} x float>"
        body = []
        for i in range(4):
            body += [f"%k{i} = add i64 %i, {i * width}", f"%q{i} = getelementptr i8, ptr %from, i64 %k{i}"]
            body += [f"%v{i} = load {kind}, ptr %q{i}, align 1"]
        for i in range(4):
            body += [f"%r{i} = getelementptr i8, ptr %to, i64 %k{i}", f"store {kind} %v{i}, ptr %r{i}, align 1"]
        self.block = 4 * width
        self.library = _library(COPY_IR.format(body="\n  ".join(body), step=self.block))
        self.call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(self.library.address("repeat"))

    def function(self, f: int, a: int, b: int, times: int) -> Callable[[], None]:
        """`times` calls of the function at address `f`."""
        return lambda: self.call(f, a, b, times)

    def copy(self, nbytes: int) -> Callable[[int], None]:
        """Called with a number: so many copies that read half of `nbytes` and write the other half, which has the same memory in each."""
        size = -(-nbytes // 2 // self.block) * self.block
        source, target = _aligned(size), _aligned(size)
        source[:] = target[:] = 1
        sizes = np.array([size, source.ctypes.data], np.int64)
        address = self.library.address("copy")

        def run(times: int) -> None:
            assert len(source) == len(target)  # which keeps them in memory
            self.call(address, target.ctypes.data, sizes.ctypes.data, times)

        return run


def read_gbytes(size: int, seconds: float = 0.2) -> float:
    """Bytes per second, in 10^9, that one core reads of a buffer of `size` bytes, over and over."""
    return read(size).rate(seconds) / 1e9


READ_BYTES, READ_STREAMS = 16 << 20, 4
"""Of a call."""


def read(size: int) -> Probe:
    """Reads a buffer of `size` bytes, each call `READ_BYTES` of it: on from where the last one ended, or the whole of it as often.

    In several streams side by side, ahead of each of which the CPU's prefetchers run: from memory a Zen 3 reads 22 GB/s in one, 27 in four.
    """
    lanes = _target().vector_bits // 32
    acc, width = f"<{lanes} x float>", 4 * lanes
    chains = 8
    each = chains // READ_STREAMS
    lines = ["define void @f(ptr %p, i64 %n) {", "entry:", f"%m = udiv i64 %n, {READ_STREAMS}", "br label %loop", "loop:"]
    lines += ["%i = phi i64 [0, %entry], [%j, %loop]", *(f"%a{i} = phi {acc} [zeroinitializer, %entry], [%b{i}, %loop]" for i in range(chains))]
    for i in range(chains):
        lines += [f"%stream{i} = mul i64 %m, {i // each}", f"%t{i} = add i64 %stream{i}, {i % each * width}", f"%k{i} = add i64 %i, %t{i}"]
        lines += [f"%q{i} = getelementptr i8, ptr %p, i64 %k{i}"]
        lines += [f"%v{i} = load {acc}, ptr %q{i}, align {width}", f"%b{i} = fadd {acc} %a{i}, %v{i}"]
    lines += [f"%j = add i64 %i, {each * width}", "%c = icmp slt i64 %j, %m", "br i1 %c, label %loop, label %out", "out:"]
    lines += [*_fold(acc, chains, keep=True), "}"]
    part = max(min(size, READ_BYTES) // (chains * width), 1) * chains * width
    buffer = _aligned(max(size // part, 1) * part)
    buffer[:] = 1
    call, repeat, at = _function("\n".join(lines)), max(READ_BYTES // part, 1), 0

    def run() -> None:
        nonlocal at
        for _ in range(repeat):
            call(buffer.ctypes.data + at, part)
            at = (at + part) % len(buffer)

    return Probe(run, part * repeat)


def _fold(acc: str, chains: int, keep: bool = False) -> list[str]:
    """Use the sums, so that they are computed. With `keep`, memory stays as it is: the sum is never 12345."""
    add = "fadd" if "float" in acc else "add"
    lines = [f"%s1 = {add} {acc} %b0, %b1"] + [f"%s{i} = {add} {acc} %s{i - 1}, %b{i}" for i in range(2, chains)]
    last = f"%s{chains - 1}"
    if not keep:
        return [*lines, f"store {acc} {last}, ptr %p, align 4", "ret void"]
    lines += [f"%e = extractelement {acc} {last}, i64 0", "%d = fcmp oeq float %e, 1.234500e+04", "br i1 %d, label %yes, label %no"]
    return [*lines, "yes:", f"store {acc} {last}, ptr %p, align 4", "br label %no", "no:", "ret void"]


def _target() -> Any:
    from mlirc.lowering.target import Target
    from mlirc.options import Options

    target = Target.parse(Options.make().target)
    target.check_runnable()
    return target


def _aligned(size: int) -> np.ndarray:
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


def _library(text: str) -> Any:
    """The code of a module of LLVM IR."""
    import llvmlite.binding as llvm

    from mlirc.runtime.abi import CODEGEN
    from mlirc.runtime.loader import Library

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = _target()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=target.llvm_cpu, features=target.llvm_features, opt=1, **CODEGEN
    )
    return Library({"limit": machine.emit_object(llvm.parse_assembly(text))})


def _function(text: str) -> Callable[[int, int], None]:
    """The function `f(pointer, n)` of a module of LLVM IR."""
    library = _library(text)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library.address("f"))
    call.library = library  # type: ignore[attr-defined]  # which keeps its code in memory
    return call


def _runner(text: str, buffer: np.ndarray, count: int) -> Callable[[], None]:
    """Calls of `f(buffer, count)`, each with the same numbers in the first bytes of the buffer."""
    call = _function(text)
    saved = buffer[:256].copy()

    def run() -> None:
        call(buffer.ctypes.data, count)
        buffer[: len(saved)] = saved

    return run
