"""bf16 roundings between the ops of a kernel: the same bits as through 16 bits and back, in fewer ops."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from mlirc.dialects import own
from mlirc.dialects.mlir import ir
from mlirc.lowering.target import Target
from mlirc.passes.expand_math import expand_math
from mlirc.passes.round_in_place import round_in_place
from mlirc.tests.frontend.elementwise import matches

WIDE, NARROW = "vector<16xf32>", "vector<16xbf16>"


def rewritten(body: str, result: str = NARROW, target: str = "x86-64-v4") -> list[str]:
    """The names of the ops but for constants."""
    with ir.Context():
        module = ir.Module.parse(f"func.func @k(%x: {WIDE}, %y: {WIDE}, %b: {NARROW}) -> {result} {{\n{body}\n}}")
        round_in_place(module, Target.parse(target))
        assert module.operation.verify()
        ops = [o.operation.name for o in module.body.operations[0].regions[0].blocks[0].operations]
    return [n.split(".")[1] for n in ops if n != "arith.constant"]


def narrow(name: str, x: str) -> str:
    return f"{name} = arith.truncf {x} : {WIDE} to {NARROW}\n"


def widen(name: str, x: str) -> str:
    return f"{name} = arith.extf {x} : {NARROW} to {WIDE}\n"


def test_a_rounding_keeps_its_32_bits():
    ops = rewritten(narrow("%n", "%x") + widen("%w", "%n") + f"%r = arith.addf %w, %y : {WIDE}\nreturn %r : {WIDE}", WIDE)
    assert "truncf" not in ops and "extf" not in ops and "trunci" not in ops and "addf" in ops


def test_a_rounded_value_is_stored_as_it_is():
    ops = rewritten(narrow("%n", "%x") + widen("%w", "%n") + f"%r = arith.negf %w : {WIDE}\n" + narrow("%o", "%r") + f"return %o : {NARROW}")
    assert "truncf" not in ops and ops.count("select") == 1 and ops.count("trunci") == 1


def test_relu_of_a_bf16_needs_no_rounding():
    body = widen("%w", "%b") + f"%z = arith.constant dense<0.0> : {WIDE}\n%m = arith.maximumf %w, %z : {WIDE}\n"
    assert rewritten(body + narrow("%o", "%m") + f"return %o : {NARROW}") == ["extf", "maximumf", "bitcast", "shrui", "trunci", "bitcast", "return"]


@pytest.mark.parametrize("number", ["1.001", "0x7FC00001"])
def test_a_constant_may_need_rounding(number):
    body = widen("%w", "%b") + f"%z = arith.constant dense<{number}> : {WIDE}\n%m = arith.maximumf %w, %z : {WIDE}\n"
    assert "addi" in rewritten(body + narrow("%o", "%m") + f"return %o : {NARROW}")


def test_a_rounding_that_is_only_stored_is_not_masked():
    ops = rewritten(narrow("%o", "%x") + f"return %o : {NARROW}")
    assert ops == [*"bitcast shrui andi addi addi cmpf select bitcast bitcast shrui trunci bitcast return".split()]


def test_one_instruction_adds_what_rounds():
    ops = rewritten(narrow("%o", "%x") + f"return %o : {NARROW}", target="znver4")
    assert "call_intrinsic" in ops and "addi" not in ops


SUM = """
func.func @k(%m: memref<?xELEMENT>, %n: memref<?xELEMENT>, %i: index, %o: memref<?xbf16>) {
  %x = vector.load %m[%i] : memref<?xELEMENT>, vector<16xELEMENT>
  %y = vector.load %n[%i] : memref<?xELEMENT>, vector<16xELEMENT>
  WIDEN
  %s = arith.addf %a, %b : vector<16xf32>
  %r = arith.truncf %s : vector<16xf32> to vector<16xbf16>
  vector.store %r, %o[%i] : memref<?xbf16>, vector<16xbf16>
  return
}"""


@pytest.mark.parametrize(("element", "widen", "looks"), [
    ("bf16", "%a = arith.extf %x : vector<16xbf16> to vector<16xf32>\n%b = arith.extf %y : vector<16xbf16> to vector<16xf32>", False),
    ("f16", "%a = arith.extf %x : vector<16xf16> to vector<16xf32>\n%b = arith.extf %y : vector<16xf16> to vector<16xf32>", True),
    ("i32", "%a = arith.sitofp %x : vector<16xi32> to vector<16xf32>\n%b = arith.sitofp %y : vector<16xi32> to vector<16xf32>", False),
    ("i32", "%a = arith.bitcast %x : vector<16xi32> to vector<16xf32>\n%b = arith.bitcast %y : vector<16xi32> to vector<16xf32>", True),
])  # fmt: skip
def test_nan_is_looked_for_where_it_may_have_a_payload(element, widen, looks):
    with ir.Context():
        module = ir.Module.parse(SUM.replace("WIDEN", widen).replace("ELEMENT", element))
        round_in_place(module, Target.parse("x86-64-v4"))
        assert ("cmpf" in str(module)) == looks


PARAMETER = """
func.func @k(%m: memref<?xf32>, %n: memref<?xbf16>, %i: index, %o: memref<?xbf16>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  OUTSIDE
  scf.for %j = %zero to %i step %one {
    INSIDE
    %y = vector.load %n[%j] : memref<?xbf16>, vector<16xbf16>
    %b = arith.extf %y : vector<16xbf16> to vector<16xf32>
    %s = arith.addf %x, %b : vector<16xf32>
    %r = arith.truncf %s : vector<16xf32> to vector<16xbf16>
    vector.store %r, %o[%j] : memref<?xbf16>, vector<16xbf16>
  }
  return
}"""


@pytest.mark.parametrize("outside", [True, False])
def test_payloads_of_what_is_loaded_outside_of_a_loop_are_dropped_there(outside):
    load = "%x = vector.load %m[%i] : memref<?xf32>, vector<16xf32>"
    with ir.Context():
        module = ir.Module.parse(PARAMETER.replace("OUTSIDE", load if outside else "").replace("INSIDE", "" if outside else load))
        round_in_place(module, Target.parse("x86-64-v4"))
        before, loop = str(module).split("scf.for")
        assert ("cmpf uno" in before, "cmpf uno" in loop) == (outside, not outside)
        assert not outside or re.search(r"arith.addf %(\S+), ", loop)[1] == re.search(r"%(\S+) = arith.select", before)[1]


@pytest.mark.parametrize(("lanes", "name"), [(32, "cvtne2ps2bf16"), (16, "cvtneps2bf16")])
@pytest.mark.parametrize("target", ["znver4", "x86-64-v4"])
def test_sums_without_denormals_are_narrowed_by_the_instruction(lanes, name, target):
    """The second half of 32 comes first among the operands."""
    text = f"""
    func.func @k(%m: memref<?xf32>, %i: index, %o: memref<?xbf16>) {{
      %x = vector.load %m[%i] {{mlirc.flushed}} : memref<?xf32>, vector<{lanes}xf32>
      %r = arith.truncf %x : vector<{lanes}xf32> to vector<{lanes}xbf16>
      vector.store %r, %o[%i] : memref<?xbf16>, vector<{lanes}xbf16>
      return
    }}"""
    with ir.Context():
        module = ir.Module.parse(text)
        round_in_place(module, Target.parse(target))
        assert module.operation.verify()
        assert (name in str(module)) == (target == "znver4") and "truncf" not in str(module)
        if target == "znver4" and lanes == 32:
            (behind,) = re.findall(r"%(\S+) = arith.addi", str(module))
            (second,) = re.findall(rf"%(\S+) = vector.load %arg0\[%{behind}\]", str(module))
            assert re.search(rf"cvtne2ps2bf16.512\"\(%{second}, ", str(module))


@pytest.mark.parametrize(("lanes", "narrowed"), [(16, True), (32, False)])
def test_exponentials_of_a_softmax_are_narrowed_by_the_instruction(lanes, narrowed):
    """Those of one register: of two, lanes may be in another order."""
    text = f"""
    func.func @k(%m: memref<?xf32>, %i: index, %o: memref<?xbf16>) {{
      %x = vector.load %m[%i] : memref<?xf32>, vector<{lanes}xf32>
      %e = "mlirc.coarse_softmax_exp"(%x) : (vector<{lanes}xf32>) -> vector<{lanes}xf32>
      %r = arith.truncf %e : vector<{lanes}xf32> to vector<{lanes}xbf16>
      vector.store %r, %o[%i] : memref<?xbf16>, vector<{lanes}xbf16>
      return
    }}"""
    with ir.Context():
        own.load()
        module = ir.Module.parse(text)
        expand_math(module, Target.parse("znver4"))
        round_in_place(module, Target.parse("znver4"))
        assert module.operation.verify()
        assert ("cvtneps2bf16" in str(module)) == narrowed and "cvtne2" not in str(module)


def test_all_bit_patterns():
    """Every bf16 and its neighbours, ties, subnormals, infinities and NaNs: the same as eager mode, bit by bit."""
    upper = torch.arange(1 << 16, dtype=torch.int64) << 16
    bits = torch.cat([upper + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    x = (bits - ((bits >> 31) << 32)).to(torch.int32).view(torch.float32)

    def f(x):
        y = x.bfloat16()
        return y, torch.relu(y), -y, torch.clamp(y.float(), -3.0, 3.0).bfloat16()

    for got, expected in zip(torch.compile(f, backend="mlirc")(x), f(x)):
        same = got.view(torch.int16) == expected.view(torch.int16)
        assert (same | (got.isnan() & expected.isnan())).all()


@pytest.mark.parametrize("length", [1, 5, 37])
def test_a_chain_of_bf16_ops(length):
    x, y = torch.randn(3, length).bfloat16(), torch.randn(3, length).bfloat16()
    matches(lambda x, y: torch.where(x > y, (x + y) * y, torch.relu(x - y)).abs(), x, y)


def test_nan_with_any_payload_stays_nan():
    """Through a buffer that another function fills, and out of integers."""
    x = torch.randn(64, 4096)
    x.view(torch.int32)[3, 5], x.view(torch.int32)[4, 6] = -1, 0x7FFFFFFF
    y = torch.tensor([1.0, float("inf"), -float("inf")] * 11).bfloat16()

    def f(x, y):
        odd = (y.float().view(torch.int32) + 1).view(torch.float32)
        full = (y.nan_to_num(1.0, 1.0, 1.0).to(torch.int32) | 0x7FFFFFFF).view(torch.float32)
        norms = F.layer_norm(x.t(), (64,)), F.rms_norm(x.t(), (64,))
        return [v.to(torch.bfloat16) for v in (*norms, odd, full, x, x * 2)]

    for got, expected in zip(torch.compile(f, backend="mlirc")(x, y), f(x, y)):
        assert torch.equal(got.isnan(), expected.isnan()) and torch.equal(got.isinf(), expected.isinf())
