"""Functions in long double, for arrays: what numpy has, what the C library has besides, and what is put together from them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np

from .formats import LONG

Function = Callable[..., np.ndarray]

_LOOP = """
declare x86_fp80 @{name}({types})
define void @loop(ptr %in, ptr %out, i64 %n) {{
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %p = getelementptr {{ x86_fp80 }}, ptr %in, i64 %i
  %q = getelementptr {{ x86_fp80 }}, ptr %out, i64 %i
  %x = load x86_fp80, ptr %p
  %y = call x86_fp80 @{name}(x86_fp80 %x)
  store x86_fp80 %y, ptr %q
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %body, label %exit
exit:
  ret void
}}
"""


@functools.cache
def _engine(name: str) -> llvm.ExecutionEngine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(_LOOP.format(name=name, types="x86_fp80"))
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def libm(name: str) -> Function:
    """The C library's function of one long double (`erfl`, ...), called for each element of an array."""

    def function(x: np.ndarray) -> np.ndarray:
        x = np.ascontiguousarray(x, LONG)
        out = np.empty_like(x)
        if x.size:
            loop = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(_engine(name).get_function_address("loop"))
            loop(x.ctypes.data, out.ctypes.data, x.size)
        return out

    return function


erf, erfc, cbrt = libm("erfl"), libm("erfcl"), libm("cbrtl")

PI = LONG("3.14159265358979323846264338327950288")
SQRT_HALF = LONG("0.707106781186547524400844362104849039")
SQRT_2_PI = LONG("0.797884560802865355879892119868763737")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def logit(x: np.ndarray) -> np.ndarray:
    near = np.abs(x - 0.5) < 0.25
    return np.where(near, np.log1p((2 * x - 1) / (1 - x)), np.log(x) - np.log1p(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def softplus(x: np.ndarray) -> np.ndarray:
    """With torch's threshold: x itself above 20."""
    return np.where(x > 20, x, np.log1p(np.exp(x)))


def log_sigmoid(x: np.ndarray) -> np.ndarray:
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


def mish(x: np.ndarray) -> np.ndarray:
    return x * np.tanh(np.where(x > 50, x, np.log1p(np.exp(x))))


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (erfc(-x * SQRT_HALF) / 2)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-2 * SQRT_2_PI * (x + LONG("0.044715") * x * x * x)))


def ndtr(x: np.ndarray) -> np.ndarray:
    """The distribution function of the normal distribution."""
    return erfc(-x * SQRT_HALF) / 2


def tanhshrink(x: np.ndarray) -> np.ndarray:
    """x - tanh(x); for small x its series, as the difference would show how the CPU's maker rounds exponentials of 80 bits."""
    square = x * x
    series = x * square * (LONG(1) / 3 - square * (LONG(2) / 15 - square * (LONG(17) / 315 - square * LONG(62) / 2835)))
    return np.where((x != 0) & (np.abs(x) < LONG(0.01)), series, x - np.tanh(x))


def sinc(x: np.ndarray) -> np.ndarray:
    """sin(pi x) / (pi x)."""
    turns = x - 2 * np.rint(x / 2)
    turns = np.where(np.abs(turns) > 0.5, np.copysign(1, turns) - turns, turns)  # sin(pi - t) = sin(t)
    return np.where(x == 0, LONG(1), np.where(np.isinf(x), LONG(0), np.sin(PI * turns) / (PI * x)))


def entr(x: np.ndarray) -> np.ndarray:
    """-x log x; 0 at 0 and -inf below."""
    return np.where(x > 0, -x * np.log(x), np.where(x == 0, LONG(0), np.where(x < 0, -LONG(np.inf), x)))


def remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """With the sign of the divisor."""
    rest = np.fmod(x, y)
    return np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def logaddexp(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(x == y, x + np.log(LONG(2)), np.maximum(x, y) + np.log1p(np.exp(-np.abs(x - y))))


def logaddexp2(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(x == y, x + 1, np.maximum(x, y) + np.log1p(np.exp2(-np.abs(x - y))) / np.log(LONG(2)))


def _zero_times(x: np.ndarray, y: np.ndarray, log: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(y), y, np.where(x == 0, LONG(0), x * log))


def xlogy(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _zero_times(x, y, np.log(y))


def xlog1py(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _zero_times(x, y, np.log1p(y))
