"""The expansions of the math dialect: their errors against higher precision, their special values, and the code they become."""

from __future__ import annotations

import ctypes
import functools
import io
import math as pymath
import re

import mpmath
import numpy as np
import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options as FileCheckOptions
from filecheck.parser import Parser, pattern_for_opts
from torch_mlir.execution_engine import ExecutionEngine

from mlirc.dialects import own
from mlirc.dialects.mlir import PassManager, ir
from mlirc.lowering.codegen import emit_assembly, emit_object, undefined_symbols
from mlirc.lowering.target import Target
from mlirc.lowering.to_llvm import lower_to_llvm_ir
from mlirc.passes.expand_math import EXPANSIONS, PIECEWISE, QUARTERED, SCALED, expand_math

TO_LLVM = "builtin.module(canonicalize,cse,convert-scf-to-cf,convert-to-llvm,reconcile-unrealized-casts)"


def loop(name: str, kind: str, lanes: int, operands: int, results: int = 1, function: str = "k") -> str:
    """A function that applies a math op to memrefs, `lanes` elements at a time (0: scalars), all of them of one type."""
    vector = f"vector<{lanes}x{kind}>" if lanes else kind
    outs = [f"%o{i}" for i in range(results)]
    ins = [f"%a{i}" for i in range(operands)]
    load, store = ("vector.load", "vector.store") if lanes else ("memref.load", "memref.store")
    suffix = f", {vector}" if lanes else ""
    lines = [f"%v{a[1:]} = {load} {a}[%i] : memref<?x{kind}>{suffix}" for a in ins]
    values = [f"%r{i}" for i in range(results)]
    if name.startswith("mlirc."):
        types = ", ".join([vector] * operands)
        lines.append(f'{values[0]} = "{name}"({", ".join("%v" + a[1:] for a in ins)}) : ({types}) -> {vector}')
    else:
        lines.append(f"{', '.join(values)} = {name} {', '.join('%v' + a[1:] for a in ins)} : {vector}")
    lines += [f"{store} {v}, {o}[%i] : memref<?x{kind}>{suffix}" for v, o in zip(values, outs)]
    arguments = ", ".join(f"{a}: memref<?x{kind}>" for a in ins + outs)
    return f"""
      func.func @{function}({arguments}) attributes {{llvm.emit_c_interface}} {{
        %c0 = arith.constant 0 : index
        %step = arith.constant {max(lanes, 1)} : index
        %n = memref.dim %o0, %c0 : memref<?x{kind}>
        scf.for %i = %c0 to %n step %step {{
          {chr(10).join(lines)}
        }}
        return
      }}"""


class MemRef(ctypes.Structure):
    """The descriptor of a memref of rank 1."""

    _fields_ = [("allocated", ctypes.c_void_p), ("aligned", ctypes.c_void_p), *((f, ctypes.c_int64) for f in ("offset", "size", "stride"))]


@functools.cache
def compiled(name: str, kind: str, lanes: int, operands: int, results: int, target: Target | None) -> ExecutionEngine:
    with ir.Context():
        own.load()
        module = ir.Module.parse(loop(name, kind, lanes, operands, results))
        expand_math(module, target)
        PassManager.parse(TO_LLVM).run(module.operation)
        return ExecutionEngine(module)


def apply(
    name: str, *inputs: np.ndarray, lanes: int | None = None, results: int = 1, target: Target | None = None
) -> np.ndarray | tuple[np.ndarray, ...]:
    """`math.<name>`, or a name with a dialect's, of arrays, by instructions of all CPUs or a target's; a vector is 64 bytes unless told otherwise."""
    kind = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64"}[inputs[0].dtype.name]
    lanes = 64 // inputs[0].itemsize if lanes is None else lanes
    size = inputs[0].size
    padded = [np.concatenate([a, np.zeros(-size % max(lanes, 1), a.dtype)]) for a in inputs]
    padded += [np.empty_like(padded[0]) for _ in range(results)]
    engine = compiled(name if "." in name else f"math.{name}", kind, lanes, len(inputs), results, target)
    slots = [ctypes.pointer(ctypes.pointer(MemRef(a.ctypes.data, a.ctypes.data, 0, a.size, 1))) for a in padded]
    engine.invoke("k", *slots)
    outputs = tuple(a[:size] for a in padded[len(inputs) :])
    return outputs if results > 1 else outputs[0]


def ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Errors in units in the last place of the result; inf where a NaN, an infinity or the sign of a zero is wrong."""
    rounded = exact.astype(got.dtype)
    info = np.finfo(got.dtype)
    exponent = np.frexp(np.maximum(np.abs(exact), exact.dtype.type(info.tiny)))[1] - 1
    error = np.abs(got.astype(exact.dtype) - exact) / np.ldexp(exact.dtype.type(1), exponent - info.nmant)
    special = ~np.isfinite(rounded) | ~np.isfinite(got)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    error = np.where(special, np.where(same, 0, np.inf), error)
    wrong_sign = ~np.isnan(got) & (exact == 0) & (np.signbit(got) != np.signbit(rounded))
    return np.where(wrong_sign, np.inf, error)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, np.inf, -np.inf, np.nan]
# Where f32 and f64 exp, exp2, sinh, cosh, tanh and erf overflow, underflow or saturate.
BORDERS = [88.72283, 88.72284, -87.33655, -103.9721, -104.0, 128.0, -149.0, -150.0, 89.41598, 89.41599, 9.010913, 3.9192059]
BORDERS += [709.782712893384, 709.7827128933841, -745.1332191019411, -745.2, 1024.0, -1074.0, -1075.0, 710.4758600739439, 19.06154]


def arguments(dtype: type, count: int, seed: int = 0) -> np.ndarray:
    """About 4 * count numbers: all kinds of bit patterns, and more where functions do something."""
    rng = np.random.default_rng(seed)
    info = np.finfo(dtype)
    bits = rng.integers(0, 2**info.bits, count, dtype=np.uint64).astype(f"u{info.bits // 8}").view(dtype)
    tiny = info.smallest_subnormal * np.array([1, -1, 2, 3, -100], dtype)
    limits = np.array([info.tiny, -info.tiny, info.max, -info.max, 1 + info.eps, 1 - info.epsneg], dtype)
    spread = [np.linspace(-10, 10, count), rng.uniform(-1.01, 1.01, count), rng.uniform(-110, 110, count)]
    if info.bits == 64:
        spread.append(rng.uniform(-760, 760, count))
    return np.concatenate([bits, tiny, limits, *(np.array(a).astype(dtype) for a in [SPECIAL, BORDERS, *spread])])


def elementwise(function, otype):
    return lambda x: np.array([function(v) for v in x.tolist()], otype)


def exact_erf(x: np.ndarray) -> np.ndarray:
    """erf in 80 bits."""
    with mpmath.workprec(80):
        values = np.array([np.longdouble(mpmath.nstr(mpmath.erf(v), 25)) for v in x.tolist()])
    return np.copysign(values, x)  # mpmath has no -0


# name: (the function in higher precision, largest error for f32, for f64 where it is not libm's)
UNARY = {
    "exp": (np.exp, 1.3, 1.2),
    "exp2": (np.exp2, 1.3, 1.3),
    "expm1": (np.expm1, 1.6, 2.1),
    "log": (np.log, 1.1, 1.4),
    "log2": (np.log2, 1.9, 2.3),
    "log10": (np.log10, 1.4, 3.0),
    "log1p": (np.log1p, 1.5, 2.0),
    "tanh": (np.tanh, 1.9, 2.0),
    "sinh": (np.sinh, 2.4, 2.5),
    "cosh": (np.cosh, 1.6, 1.6),
    "asinh": (np.arcsinh, 0.51, 2.5),
    "acosh": (np.arccosh, 0.51, 2.5),
    "atanh": (np.arctanh, 0.51, 2.5),
    "erf": (elementwise(pymath.erf, np.float64), 1.8, None),
    "erfc": (elementwise(pymath.erfc, np.float64), 0.6, None),
    "sin": (np.sin, 1.7, 1.7),
    "cos": (np.cos, 1.7, 1.7),
    "tan": (np.tan, 0.6, 3.5),
    "asin": (np.arcsin, 1.6, None),
    "acos": (np.arccos, 1.3, None),
    "atan": (np.arctan, 1.4, None),
    "cbrt": (np.cbrt, 0.51, None),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5, 1.5),
}


@pytest.mark.parametrize("name", UNARY)
def test_f32_error(name):
    function, bound, _ = UNARY[name]
    x = arguments(np.float32, 1 << 15 if name.startswith("erf") else 1 << 17)
    with np.errstate(all="ignore"):
        error = ulps(apply(name, x), function(x.astype(np.float64)))
    worst = np.argmax(error)
    assert error[worst] <= bound, f"{error[worst]:.3f} ulp at {x[worst]!r}"


@pytest.mark.parametrize("name", ["softmax_exp", "coarse_softmax_exp"])
def test_the_exp_of_a_softmax(name):
    x = -np.abs(arguments(np.float32, 1 << 17))
    y, near = apply("mlirc." + name, x), x >= -87
    exact = np.exp(x[near].astype(np.float64))
    assert (np.abs(y[near] / exact - 1) <= 2**-18).all() if name.startswith("coarse") else (ulps(y[near], exact) <= 1).all()
    assert (y[x == 0] == 1).all()
    assert (y[x < -87] == 0).all() and np.isnan(y[np.isnan(x)]).all()


@pytest.mark.skipif(not Target.host().has_avx512, reason="the CPU lacks AVX-512")
@pytest.mark.parametrize("name, bound", [("exp", 1.0), ("mlirc.softmax_exp", 1.0), ("mlirc.coarse_softmax_exp", None)])
def test_exponentials_that_avx512_scales(name, bound):
    """No further away than those of other targets, and subnormal results are there."""
    x = arguments(np.float32, 1 << 17)
    x = x if name == "exp" else -np.abs(x)
    y = apply(name, x, target=Target.host())
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.float64))
    assert (y[x == 0] == 1).all() and (y[x < -105] == 0).all()
    if bound is None:
        relative = np.select([x < -87, x < -16], [2**-16, 2**-17], 2**-18)
        far = np.abs(y - exact) > relative * exact + 2**-149
        assert not (far & ~np.isnan(x)).any() and np.isnan(y[np.isnan(x)]).all()
    else:
        error = ulps(y, exact)
        worst = np.argmax(error)
        assert error[worst] <= bound, f"{error[worst]:.3f} ulp at {x[worst]!r}"


@pytest.mark.sweep
@pytest.mark.parametrize("name", UNARY)
def test_f32_error_on_every_64th_number(name):
    function, bound, _ = UNARY[name]
    for start in range(0, 2**32, 2**28):
        x = np.arange(start + 13, start + 2**28, 64, dtype=np.uint64).astype(np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            error = ulps(apply(name, x), function(x.astype(np.float64)))
        worst = np.argmax(error)
        assert error[worst] <= bound, f"{error[worst]:.3f} ulp at {x[worst]!r}"


@pytest.mark.skipif(np.finfo(np.longdouble).nmant <= 52, reason="needs a long double wider than a double")
@pytest.mark.parametrize("name", [name for name, (_, _, bound) in UNARY.items() if bound])
def test_f64_error(name):
    function, _, bound = UNARY[name]
    x = arguments(np.float64, 1 << 14)
    with np.errstate(all="ignore"):
        error = ulps(apply(name, x), function(x.astype(np.longdouble)))
    worst = np.argmax(error)
    assert error[worst] <= bound, f"{error[worst]:.3f} ulp at {x[worst]!r}"


@pytest.mark.skipif(np.finfo(np.longdouble).nmant <= 52, reason="needs a long double wider than a double")
def test_f64_erf_error():
    x = np.concatenate([np.linspace(-6.5, 6.5, 3000), np.geomspace(1e-300, 1, 500), [0.0, -0.0, np.inf, -np.inf, np.nan]])
    assert ulps(apply("erf", x), exact_erf(x)).max() <= 2.0


@pytest.mark.parametrize("name", ["erfc", "asin", "acos", "atan", "cbrt"])
def test_rare_f64_functions_are_those_of_libm(name):
    x = np.linspace(-1, 1, 101)
    np.testing.assert_allclose(apply(name, x), UNARY[name][0](x), rtol=1e-15)


def pairs(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of f32: every pair of special values, random bits, and moderate numbers with real and integral partners."""
    rng = np.random.default_rng(seed)
    values = [*SPECIAL, 3, -3, 1e-45, -1e-45, 3e38, -3e38, 1.5, -1.5, 2**24, 2**24 - 1, 1 - 2**24, 2**25, 8388607.5, 0.99999994, 1.0000001]
    a, b = np.meshgrid(values, values)
    bits = rng.integers(0, 2**32, (2, count), dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = [a.ravel(), bits[0], np.exp(rng.normal(0, 3, count)), rng.normal(0, 5, count)]
    y = [b.ravel(), bits[1], rng.normal(0, 15, count), rng.integers(-40, 40, count)]
    with np.errstate(all="ignore"):
        return np.concatenate(x).astype(np.float32), np.concatenate(y).astype(np.float32)


@pytest.mark.parametrize("name, function, bound", [("powf", np.power, 0.51), ("atan2", np.arctan2, 1.7)])
def test_binary_f32_error(name, function, bound):
    x, y = pairs(1 << 17)
    with np.errstate(all="ignore"):
        error = ulps(apply(name, x, y), function(x.astype(np.float64), y.astype(np.float64)))
    worst = np.argmax(error)
    assert error[worst] <= bound, f"{error[worst]:.3f} ulp at {x[worst]!r}, {y[worst]!r}"


@pytest.mark.parametrize("name, function", [("powf", np.power), ("atan2", np.arctan2)])
def test_binary_f64_is_libm(name, function):
    x, y = (a.astype(np.float64) for a in pairs(100))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(apply(name, x, y), function(x, y), rtol=1e-15)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_sincos(kind):
    x = arguments(kind, 1 << 12)
    sine, cosine = apply("sincos", x, results=2)
    np.testing.assert_array_equal(sine, apply("sin", x))
    np.testing.assert_array_equal(cosine, apply("cos", x))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_next_to_multiples_of_a_quarter_turn(name):
    """Where most of the argument is taken away, below and above where it is reduced in f64."""
    turns = np.concatenate([np.arange(1, 90000), np.arange(10**7, 10**7 + 1000)]) * (np.pi / 2)
    bits = turns.astype(np.float32).view(np.int32)
    x = np.concatenate([(bits + step).view(np.float32) for step in range(-2, 3)])
    assert ulps(apply(name, x), UNARY[name][0](x.astype(np.float64))).max() <= UNARY[name][1]


@pytest.mark.parametrize("lanes", [0, 1, 3, 8, 32])
@pytest.mark.parametrize("name", ["exp", "tanh", "sin", "log1p", "erfc"])
def test_any_width_gives_the_same(name, lanes):
    x = arguments(np.float32, 300)
    np.testing.assert_array_equal(apply(name, x, lanes=lanes), apply(name, x))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_round_takes_halves_away_from_zero(kind):
    below = np.nextafter(kind(0.5), kind(0))
    big = kind(2 ** np.finfo(kind).nmant + 1)
    x = np.array([0.5, -0.5, 1.5, 2.5, -2.5, 0.0, -0.0, below, -below, big, -big, np.inf, np.nan, 1.4, -1.6], kind)
    expected = np.array([1, -1, 2, 3, -3, 0, -0.0, 0, -0.0, big, -big, np.inf, np.nan, 1, -2], kind)
    got = apply("round", x)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


def wrapped_power(base: int, exponent: int, bits: int) -> int:
    if exponent >= 0:
        value = pow(base, exponent, 2**bits)
        return value - 2**bits if value >= 2 ** (bits - 1) else value
    return {1: 1, -1: -1 if exponent % 2 else 1}.get(base, 0)


@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_ipowi(kind, lanes):
    info = np.iinfo(kind)
    bases = [0, 1, -1, 2, -2, 3, -7, 10, info.max, info.min]
    exponents = [0, 1, 2, 3, 5, 31, 62, 63, 1000, -1, -2, -3, info.min, info.max]
    x, y = (a.ravel().astype(kind) for a in np.meshgrid(np.array(bases, object), np.array(exponents, object)))
    expected = [wrapped_power(a, b, info.bits) for a, b in zip(x.tolist(), y.tolist())]
    assert apply("ipowi", x, y, lanes=lanes).tolist() == expected


def expand(text: str) -> str:
    with ir.Context():
        module = ir.Module.parse(text)
        expand_math(module)
        assert module.operation.verify()
        return str(module)


def check(output: str, expectations: str) -> None:
    options = FileCheckOptions(match_filename="expectations")
    parser = Parser(options, io.StringIO(expectations), *pattern_for_opts(options))
    assert Matcher(options, FInput("output", output), parser).run() == 0


def test_ipowi_of_a_constant_exponent_is_unrolled():
    text = """func.func @k(%x: vector<4xi32>) -> vector<4xi32> {
      %five = arith.constant dense<5> : vector<4xi32>
      %y = math.ipowi %x, %five : vector<4xi32>
      return %y : vector<4xi32>
    }"""
    assert len(re.findall(r"arith\.\w+", expand(text).replace("arith.constant", ""))) == 3


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_fpowi_and_clampf_have_the_right_values(kind):
    dtype = {"f32": np.float32, "f64": np.float64}[kind]
    text = f"""func.func @k(%x: memref<?x{kind}>, %o: memref<?x{kind}>) attributes {{llvm.emit_c_interface}} {{
      %c0 = arith.constant 0 : index
      %c4 = arith.constant 4 : index
      %v = vector.load %x[%c0] : memref<?x{kind}>, vector<4x{kind}>
      %n = arith.constant dense<[-3, 0, 2, 3]> : vector<4xi32>
      %p = math.fpowi %v, %n : vector<4x{kind}>, vector<4xi32>
      vector.store %p, %o[%c0] : memref<?x{kind}>, vector<4x{kind}>
      %low = arith.constant dense<-1.0> : vector<4x{kind}>
      %high = arith.constant dense<1.0> : vector<4x{kind}>
      %q = math.clampf %v to [%low, %high] : vector<4x{kind}>
      vector.store %q, %o[%c4] : memref<?x{kind}>, vector<4x{kind}>
      return
    }}"""
    x, out = np.array([-2, np.nan, 0.5, -3], dtype), np.empty(8, dtype)
    with ir.Context():
        module = ir.Module.parse(text)
        expand_math(module)
        PassManager.parse(TO_LLVM).run(module.operation)
        engine = ExecutionEngine(module)
    engine.invoke("k", *(ctypes.pointer(ctypes.pointer(MemRef(a.ctypes.data, a.ctypes.data, 0, a.size, 1))) for a in (x, out)))
    np.testing.assert_array_equal(out, np.array([-0.125, 1, 0.25, -27, -1, np.nan, 0.5, -1], dtype))


def test_f32_becomes_arithmetic_and_constants_leave_the_loop():
    check(
        expand(loop("math.exp", "f32", 16, 1)),
        """
        // CHECK: func.func @k
        // CHECK: arith.constant dense<{{.*}}> : vector<16xf32>
        // CHECK-NOT: math.exp
        // CHECK-NOT: call
        // CHECK: scf.for
        // CHECK-NOT: arith.constant
        // CHECK: math.fma
        // CHECK: arith.shli
        // CHECK: vector.store
        """,
    )


def test_ops_with_instructions_stay():
    names = ["sqrt", "absf", "floor", "ceil", "trunc", "roundeven"]
    text = expand("".join(loop(f"math.{n}", "f32", 16, 1, function=n) for n in names))
    assert all(f"math.{n} " in text for n in names)
    assert not {f"math.{n}" for n in names} & set(EXPANSIONS)


def test_locations_stay():
    text = """func.func @k(%x: f32) -> f32 {
      %y = math.tanh %x : f32 loc("the tanh")
      return %y : f32
    }"""
    with ir.Context():
        module = ir.Module.parse(text)
        expand_math(module)
        assert 'loc("the tanh")' in module.operation.get_asm(enable_debug_info=True, use_local_scope=True)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_half_precision_is_computed_in_f32(kind):
    check(
        expand(loop("math.tanh", kind, 16, 1)),
        f"""
        // CHECK: arith.extf {{{{.*}}}} : vector<16x{kind}> to vector<16xf32>
        // CHECK-NOT: math.tanh
        // CHECK: arith.truncf {{{{.*}}}} : vector<16xf32> to vector<16x{kind}>
        """,
    )


# Ops in the loop besides load and store. What compiles to one instruction may be two ops (a clamp is a comparison and a
# select). The branches for large arguments, of 50 ops and of 42, are part of sin, cos and sincos, and of tan.
OPS = {
    "exp": 23, "exp2": 19, "expm1": 24, "log": 29, "log2": 29, "log10": 30, "log1p": 30, "tanh": 25, "sinh": 26, "cosh": 20,
    "erf": 29, "erfc": 40, "sin": 92, "cos": 93, "tan": 70, "asin": 26, "acos": 32, "atan": 20, "cbrt": 48, "rsqrt": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_expansions_stay_short(name):
    body = expand(loop(f"math.{name}", "f32", 16, 1)).partition("scf.for")[2]
    assert len(re.findall(r"= (?:arith|math|vector)\.", body)) - 1 <= OPS[name]


@pytest.mark.parametrize("lanes", [0, 16])
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_f32_makes_no_calls(target, lanes):
    operands = {"math.powf": 2, "math.atan2": 2, "mlirc.atan2": 2, "arith.remf": 2}
    names = sorted(set(EXPANSIONS) - {"math.fpowi", "math.ipowi", "math.clampf"})
    loops = [
        loop(name, "f32", lanes, operands.get(name, 1), 2 if name == "math.sincos" else 1, name.replace(".", "_")) for name in names
    ]
    with ir.Context():
        own.load()
        module = ir.Module.parse("".join(loops))
        expand_math(module)
        code = emit_object(lower_to_llvm_ir(module), Target.parse(target))
    assert undefined_symbols(code) == []


def test_calls_of_libm_are_in_the_open():
    """Not many f64 functions call, and what they call is declared once."""
    text = "".join(loop(name, "f64", 8, 1, function=f"k{i}") for i, name in enumerate(["math.erfc", "math.erfc", "math.exp"]))
    check(
        expand(text),
        """
        // CHECK: func.func private @erfc(f64) -> f64
        // CHECK-NOT: private
        // CHECK-COUNT-16: call @erfc(
        // CHECK-NOT: call
        """,
    )


def expanded_for(cpu: str, name: str, lanes: int) -> tuple[str, str]:
    """A loop over f32 for a CPU, as text of MLIR and as assembly."""
    with ir.Context():
        own.load()
        module = ir.Module.parse(loop(name, "f32", lanes, 1))
        expand_math(module, Target.parse(cpu))
        assert module.operation.verify()
        text = str(module)
        return text, emit_assembly(lower_to_llvm_ir(module), Target.parse(cpu))


@pytest.mark.parametrize("name", sorted(PIECEWISE))
@pytest.mark.parametrize("cpu, lanes, picks", [("znver4", 16, 8), ("skylake-avx512", 16, 8), ("znver4", 4, 0), ("znver4", 32, 0), ("x86-64-v3", 16, 0)])
def test_coefficients_are_read_from_registers(name, cpu, lanes, picks):
    """One for each degree and the center; where they are, nothing is divided."""
    text, code = expanded_for(cpu, name, lanes)
    assert text.count("llvm.x86.avx512.permvar.sf.512") == picks
    assert ("arith.divf" in text) != bool(picks)
    assert len(re.findall(r"\bvperm(?:ps|d)\b.*zmm", code)) == picks
    assert bool(re.search(r"\bvdivps\b", code)) != bool(picks)


@pytest.mark.parametrize("name", sorted(QUARTERED))
@pytest.mark.parametrize("cpu, lanes, picks", [("znver3", 8, 11), ("haswell", 8, 11), ("znver4", 8, 11), ("znver3", 4, 0), ("znver3", 16, 0)])
def test_coefficients_are_read_from_halves_of_registers(name, cpu, lanes, picks):
    """One for each degree and the center; where they are, nothing is divided."""
    text, code = expanded_for(cpu, name, lanes)
    assert text.count("llvm.x86.avx.vpermilvar.ps.256") == picks
    assert ("arith.divf" in text) != bool(picks)
    assert len(re.findall(r"\bvpermilps\b.*ymm", code)) == picks


@pytest.mark.parametrize("name", sorted(SCALED))
@pytest.mark.parametrize("cpu, lanes, registers", [("znver4", 16, 1), ("skylake-avx512", 32, 2), ("znver4", 8, 0), ("x86-64-v3", 16, 0)])
def test_powers_of_two_are_put_together_by_one_instruction(name, cpu, lanes, registers):
    """Of a register; nothing is compared or selected then, but what is out of range in `exp`, which min and max keep in it."""
    _, code = expanded_for(cpu, name, lanes)
    assert len(re.findall(r"\bvscalefps\b.*zmm", code)) == registers
    assert bool(re.search(r"\bv(pslld|cmp\w*ps)\b", code)) != bool(registers)
    assert len(re.findall(r"\bvreduceps\b", code)) == (registers if "coarse" in name else 0)
