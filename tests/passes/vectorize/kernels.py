"""Compile the text of a kernel here, load it and run it on numpy arrays; no torch, no workers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mlirc.dialects.mlir import ir
from mlirc.dialects.own import load_for
from mlirc.driver import compile_kernel
from mlirc.lowering.target import Target
from mlirc.passes import structure as st
from mlirc.passes.strategy import Strategy, parse_pins, pinned, select_strategy
from mlirc.passes.vectorize import KernelFunction
from mlirc.runtime.loader import Library
from mlirc.tests.passes.graph_text import generic

PRODUCT = "%p = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %p : f32"
SPILL = r"zmm\d+, [-\d]*\(%rsp\)|\(%rsp\)[^\n]*zmm"
"""A vector that is stored on the stack, or loaded from it."""

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def kernel(arguments: Sequence[tuple[str, str]], body: str, results: Sequence[tuple[str, str]], strides: Sequence[Sequence[object]], attributes: dict[str, str] | None = None) -> str:
    """The module of one kernel. `strides` are those of the results."""
    attributes = attributes or {}
    args = ", ".join(f"{n}: {t}" + (f" {{{attributes[n]}}}" if n in attributes else "") for n, t in arguments)
    spelled = ", ".join("[" + ", ".join(f'"{s}"' for s in one) + "]" for one in strides)
    kinds, values = ", ".join(t for _, t in results), ", ".join(n for n, _ in results)
    head = f"func.func @kernel({args}) -> ({kinds}) attributes {{mlirc.result_strides = [{spelled}]}}"
    return f"{head} {{\n{body}return {values} : {kinds}\n}}\n"


def streamed(m: int | str, k: int, width: int = 32) -> str:
    """A product with so many rows, "?" or a number, and panels, as wide as two vectors, that do not stay in the second-level cache."""
    x, w, y = f"tensor<{m}x{k}xf32>", f"tensor<{768 // width}x{k}x{width}xf32>", f"tensor<{m}x768xf32>"
    op = generic("%y", [("%x", x), ("%w", w)], y, ["i, l", f"j floordiv {width}, l, j mod {width}", "i, j"], PRODUCT, "ppr", "ijl", "0.0", "contraction")
    if m != "?":
        return kernel([("%x", x), ("%w", w)], op, [("%y", y)], [[768, 1]])
    named = {"%m": 'mlirc.name = "m"', "%x": f'mlirc.sizes = ["m", "{k}"], mlirc.strides = ["{k}", "1"]'}
    return kernel([("%x", x), ("%w", w), ("%m", "index")], op.replace("tensor.empty()", "tensor.empty(%m)"), [("%y", y)], [[768, 1]], named)


def strategy(text: str, target: str | Target = "x86-64-v4") -> Strategy:
    """What is decided for a kernel."""
    target = target if isinstance(target, Target) else Target.parse(target)
    with ir.Context(), ir.Location.unknown():
        load_for(text)
        module = ir.Module.parse(text)
        return select_strategy(KernelFunction(st.operation(module.body.operations[0])), target)


def stages(text: str, target: str = "x86-64-v4", pin: str = "") -> dict[str, str]:
    """Name of a stage -> its text."""
    seen: dict[str, str] = {}
    adjustment = pinned("k", parse_pins([f"k: {pin}"] if pin else []))
    compile_kernel(text, Target.parse(target), "k", lambda name, what: seen.setdefault(name, str(what)), adjustment=adjustment)
    return seen


def built(text: str, target: str = "host", pin: str = "") -> Callable[..., int]:
    """A function of numpy arrays and ints, arguments and then results, that returns the status. `pin`: fields of its strategy."""
    cpu = Target.parse(target)
    if missing := cpu.missing():
        pytest.skip(f"the CPU lacks {', '.join(missing)}")
    library = Library({"k": compile_kernel(text, cpu, "k", adjustment=pinned("k", parse_pins([f"k: {pin}"] if pin else [])))})
    entry = _CALL(library.address("k"))

    def run(*values: np.ndarray | int) -> int:
        status = ctypes.c_int64(0)
        slots = [ctypes.addressof(status), *(v if isinstance(v, int) else v.ctypes.data for v in values)]
        entry((ctypes.c_int64 * len(slots))(*slots))
        return status.value

    run.library = library  # type: ignore[attr-defined]
    return run


def padded(array: np.ndarray, lead: int = 1) -> np.ndarray:
    """The array in memory with `lead` elements before it and as many behind, which nobody may write."""
    whole = np.full(array.size + 2 * lead, 77, array.dtype)
    view = whole[lead : lead + array.size].reshape(array.shape)
    view[...] = array
    return view


def untouched(view: np.ndarray, lead: int = 1) -> bool:
    """Whether nothing was written around a `padded` array."""
    whole = view.base if view.base.base is None else view.base.base
    return bool((whole[:lead] == 77).all() and (whole[-lead:] == 77).all())
