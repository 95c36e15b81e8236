"""Compiling and running a module of vectors, loops and memrefs, with our LLVM and with the one that MLIR brings."""

from __future__ import annotations

import ctypes

import numpy as np
from torch_mlir.execution_engine import ExecutionEngine

from mlirc.dialects.mlir import ir
from mlirc.lowering.codegen import emit_assembly, emit_object
from mlirc.lowering.target import Target
from mlirc.lowering.to_llvm import lower_to_llvm_ir
from mlirc.runtime.loader import Library


def _pointers(arrays: tuple[np.ndarray, ...]) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(a.ctypes.data) for a in arrays]


def lower(text: str) -> str:
    with ir.Context():
        return lower_to_llvm_ir(ir.Module.parse(text))


class Ours:
    """A module compiled by us for the host and loaded. Calls pass one pointer for each array."""

    def __init__(self, text: str) -> None:
        # Not with MCJIT: in a large process it ends up too far from its own data, and aborts.
        self.library = Library({"module": emit_object(lower(text), Target.host())})

    def __call__(self, name: str, *arrays: np.ndarray) -> None:
        ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arrays))(self.library.address(name))(*_pointers(arrays))


class Theirs:
    """The same module, lowered in the same way, compiled by MLIR's execution engine with its own LLVM."""

    def __init__(self, text: str) -> None:
        with ir.Context():
            module = ir.Module.parse(text)
            lower_to_llvm_ir(module)
            self.engine = ExecutionEngine(module)

    def __call__(self, name: str, *arrays: np.ndarray) -> None:
        # The packed calling convention: a pointer to each argument.
        address = self.engine.raw_lookup(name)
        slots = [ctypes.pointer(p) for p in _pointers(arrays)]
        packed = (ctypes.c_void_p * len(slots))(*(ctypes.cast(s, ctypes.c_void_p) for s in slots))
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(packed)


def kernel(body: str, *types: str, name: str = "k") -> str:
    """A function of bare pointers, with a memref `%a0`, `%a1`, ... of each of the given types."""
    pointers = ", ".join(f"%p{i}: !llvm.ptr" for i in range(len(types)))
    lines = []
    for i, kind in enumerate(types):
        shape, _, element = kind.rpartition("x")
        sizes = [int(n) for n in shape.split("x")]
        strides = [int(np.prod(sizes[j + 1 :])) for j in range(len(sizes))]
        rank = len(sizes)
        struct = f"!llvm.struct<(ptr, ptr, i64, array<{rank} x i64>, array<{rank} x i64>)>"
        lines += [f"%d{i}_0 = llvm.mlir.poison : {struct}"]
        fields = [(f"%p{i}", "[0]"), (f"%p{i}", "[1]"), ("0", "[2]")]
        fields += [(str(n), f"[3, {j}]") for j, n in enumerate(sizes)] + [(str(n), f"[4, {j}]") for j, n in enumerate(strides)]
        for j, (value, place) in enumerate(fields):
            if not value.startswith("%"):
                lines.append(f"%f{i}_{j} = llvm.mlir.constant({value} : i64) : i64")
                value = f"%f{i}_{j}"
            lines.append(f"%d{i}_{j + 1} = llvm.insertvalue {value}, %d{i}_{j}{place} : {struct}")
        lines.append(f"%a{i} = builtin.unrealized_conversion_cast %d{i}_{len(fields)} : {struct} to memref<{kind}>")
    return f"func.func @{name}({pointers}) {{\n%zero = arith.constant 0 : index\n" + "\n".join(lines) + f"\n{body}\nreturn\n}}\n"


def assembly(text: str, target: str) -> str:
    """Assembly of an MLIR module for a target's name."""
    return emit_assembly(lower(text), Target.parse(target))
