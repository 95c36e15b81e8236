"""Expressions of a bf16 that are read from a table: which are, which not, and that the table has what the ops make."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from mlirc.dialects import own
from mlirc.dialects.mlir import ir
from mlirc.lowering.target import Target
from mlirc.passes.tabulate_expressions import tabulate_expressions
from mlirc.runtime import tables
from mlirc.runtime.abi import BF16_TABLE
from mlirc.runtime.expressions import MARK, evaluate, spelled
from mlirc.tests.frontend.compare import compare

FAST, SLOW = "sapphirerapids", "icelake-server"
F, B = "vector<16xf32>", "vector<16xbf16>"


def rewritten(body: str, target: str = FAST, arguments: str = f"%b: {B}, %c: {B}, %f: {F}", result: str = "%z", kind: str = B) -> str:
    with ir.Context():
        own.load()
        module = ir.Module.parse(f"func.func @k({arguments}) -> {kind} {{\n{body}\nreturn {result} : {kind}\n}}")
        tabulate_expressions(module, Target.parse(target))
        assert module.operation.verify()
        return str(module)


def rounded(name: str, op: str, *operands: str, kinds: tuple[str, str] = (F, B)) -> str:
    """%name, a bf16, of an op on f32, and %name_w, the same widened."""
    wide, narrow = kinds
    spelled_op = f'"{op}"({", ".join(operands)}) : ({", ".join([wide] * len(operands))}) -> {wide}'
    return f"%{name}_f = {spelled_op}\n%{name} = arith.truncf %{name}_f : {wide} to {narrow}\n%{name}_w = arith.extf %{name} : {narrow} to {wide}\n"


HALF = f"%x = arith.extf %b : {B} to {F}\n%half = arith.constant dense<0.5> : {F}\n"
SPELLED_GELU = HALF + rounded("h", "arith.mulf", "%x", "%half") + rounded("t", "math.tanh", "%x") + rounded("p", "arith.mulf", "%h_w", "%t_w")


def test_an_expression_is_one_gather() -> None:
    text = rewritten(SPELLED_GELU, result="%p")
    assert "memref.global @mlirc_bf16_of__c3f000000__mul0v1__r2__tanh0__r4__mul3v5__r6" in text
    assert text.count("vector.gather") == 1 and "math.tanh" not in text and text.count("arith.truncf") == 1


def test_a_scalar_is_loaded() -> None:
    text = SPELLED_GELU.replace(F, "f32").replace(B, "bf16").replace("dense<0.5>", "0.5")
    text = rewritten(text, arguments="%b: bf16", result="%p", kind="bf16")
    assert "memref.load" in text and "math.tanh" not in text


def test_the_longest_one_is_taken() -> None:
    """Of the sum, which is a bf16 itself, and not of what it is a sum of, of which there are two."""
    body = f"%u = arith.extf %b : {B} to {F}\n%v = arith.extf %c : {B} to {F}\n" + rounded("s", "arith.addf", "%u", "%v")
    body += rounded("t", "math.tanh", "%s_w") + rounded("z", "arith.mulf", "%t_w", "%s_w")
    text = rewritten(body)
    assert "@mlirc_bf16_of__tanh0__r1__mul2v0__r3" in text and text.count("arith.addf") == 1 and "arith.mulf" not in text


def test_what_others_read_stays() -> None:
    """The hyperbolic tangent is a result, too: the table takes the place of the product alone."""
    text = rewritten(SPELLED_GELU.replace("%p_w =", "%q =") + f"%z = arith.addf %t, %p : {B}")
    assert "@mlirc_bf16_of__" in text and "math.tanh" in text and "arith.mulf" not in text


@pytest.mark.parametrize(
    "body",
    [
        HALF + rounded("t", "math.tanh", "%f") + rounded("z", "arith.mulf", "%t_w", "%x"),
        HALF + f"%y = arith.extf %c : {B} to {F}\n" + rounded("t", "math.tanh", "%x") + rounded("z", "arith.mulf", "%t_w", "%y"),
        HALF + rounded("t", "arith.addf", "%x", "%half") + rounded("z", "arith.mulf", "%t_w", "%x"),
        HALF + rounded("z", "math.tanh", "%x"),
        HALF + rounded("t", "math.sin", "%x") + rounded("u", "math.tanh", "%t_w") + rounded("z", "arith.mulf", "%u_w", "%x"),
    ],
    ids=["of an f32", "of two", "cheap", "a single function", "with another function"],
)
def test_others_are_computed(body: str) -> None:
    assert "of__" not in rewritten(body)


FACTOR = f"""%x = arith.extf %b : {B} to {F}
%e = math.erf %x : {F}
%q = arith.mulf %x, %x : {F}
%d = math.exp %q : {F}
%g = arith.addf %e, %d : {F}
"""


def test_a_factor_is_one_gather_though_it_is_not_rounded() -> None:
    """What meets something else in f32; it is no bf16, so that its rounding is not taken for granted (`mlirc.exact`)."""
    text = rewritten(FACTOR + f"%p = arith.mulf %f, %g : {F}\n%z = arith.truncf %p : {F} to {B}")
    assert "@mlirc_bf16_of__erf0__mul0v0__exp2__add1v3 " in text and "mlirc.exact" not in text
    assert text.count("vector.gather") == 1 and "math" not in text and text.count("arith.mulf") == 1


def test_what_is_rounded_and_used_in_f32_has_one_table() -> None:
    text = rewritten(FACTOR + f"%p = arith.mulf %f, %g : {F}\n%u = arith.truncf %g : {F} to {B}\n%v = arith.truncf %p : {F} to {B}\n%z = arith.addf %u, %v : {B}")
    assert text.count("vector.gather") == 1 and "@mlirc_bf16_of__erf0__mul0v0__exp2__add1v3 " in text and "math" not in text


def test_roundings_make_an_expression_dear_though_f32_meets_something_else() -> None:
    steps = HALF + "".join(rounded(f"s{n}", "arith.mulf", f"%s{n - 1}_w" if n else "%x", "%half") for n in range(7)).replace("%z", "%s6")
    text = rewritten(steps + f"%p = arith.mulf %f, %s6_f : {F}\n%u = arith.truncf %p : {F} to {B}\n%z = arith.addf %u, %s6 : {B}")
    assert text.count("vector.gather") == 1


def test_cheap_factors_are_computed() -> None:
    text = rewritten(HALF + f"%h = arith.mulf %x, %half : {F}\n%e = math.erf %x : {F}\n%g = arith.addf %f, %e : {F}\n%p = arith.mulf %g, %h : {F}\n%z = arith.truncf %p : {F} to {B}")
    assert "of__" not in text


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gradients_of_gelu(approximate: str) -> None:
    """At each bf16; the errors are those of the last rounding."""
    x = EVERY[EVERY.abs() < 1e6].clone().requires_grad_()
    grad = torch.rand(len(x), generator=torch.Generator().manual_seed(0)).add(0.5).bfloat16()
    compiled = torch.compile(lambda x: torch.nn.functional.gelu(x, approximate=approximate), backend="mlirc", options={"strict": True})
    (got,) = torch.autograd.grad(compiled(x), x, grad)
    wide = x.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(torch.nn.functional.gelu(wide, approximate=approximate), wide, grad.double())
    assert ((got.double() - want).abs() <= 2**-8 * want.abs() + 1e-4).all()


def test_slow_gathers_are_avoided() -> None:
    assert "vector.gather" not in rewritten(SPELLED_GELU, SLOW, result="%p")


def table(steps: list[str]) -> torch.Tensor:
    address = tables.bf16_table(BF16_TABLE + spelled(steps))
    assert address
    values = np.ctypeslib.as_array((ctypes.c_float * (1 << 16)).from_address(address))
    return torch.from_numpy(values.copy())


EVERY = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize(
    ("steps", "f"),
    [
        (["c3f000000", "mul0v1", "r2", "add3v0", "r4", "div5v0", "r6"], lambda x: (x * 0.5 + x) / x),
        (["mul0v0", "mul0v1", "r2", "c3d372713", "mul3v4", "r5", "sub0v6", "r7"], lambda x: x - (x.float() * x.float() * x.float()).bfloat16() * 0.044715),
        (["neg0", "r1", "abs2", "sqrt3", "r4"], lambda x: (-x).abs().sqrt()),
    ],
    ids=["arithmetic", "a power", "others"],
)
def test_a_table_has_what_eager_mode_makes(steps: list[str], f: Callable[[torch.Tensor], torch.Tensor]) -> None:
    got, want = table(steps), f(EVERY).float()
    assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0)) and torch.equal(got.isnan(), want.isnan())


def test_functions_in_a_table_are_nearest() -> None:
    got, want = table(["tanh0", "r1", "mul2v0", "r3"]), (EVERY.double().tanh().bfloat16() * EVERY).float()
    same = (got == want) | (got.isnan() & want.isnan())
    assert same.float().mean() > 0.9999


@pytest.mark.parametrize("name", ["of__", "of__mul0v1", "of__sin0", "of__c3f0__mul0v1", "of__r9", "of__mul0", "else"])
def test_what_is_no_spelling_is_no_table(name: str) -> None:
    assert tables.bf16_table(BF16_TABLE + name) == 0
    if name.startswith(MARK):
        assert evaluate(name, np.zeros(1, np.float32), {}, tables.nearest_bf16) is None


def new_gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


ACTIVATIONS = {"new gelu": new_gelu, "quick gelu": lambda x: x * torch.sigmoid(1.702 * x), "tanhshrink": lambda x: x - torch.tanh(x * 2)}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_that_are_spelled_out(name: str) -> None:
    torch.manual_seed(0)
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, -1e-40, 3e38, -3e38])
    x = torch.cat([torch.randn(1000) * 3, special]).to(torch.bfloat16)
    compare(ACTIVATIONS[name], x)
    w = torch.randn(96, 64, dtype=torch.bfloat16)
    compare(lambda x, w, b: ACTIVATIONS[name](torch.nn.functional.linear(x, w, b)), torch.randn(33, 64).bfloat16(), w, torch.randn(96).bfloat16())


def test_the_symbol_is_one_for_llvm_and_the_linker() -> None:
    text = rewritten(SPELLED_GELU, result="%p")
    (symbol,) = re.findall(r"memref.global @(\S+)", text)
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", symbol)
