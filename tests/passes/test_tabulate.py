"""Functions of a bf16 that are read from a table: where they are, where not, and what the table says."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from mlirc.dialects import own
from mlirc.dialects.mlir import ir
from mlirc.lowering.target import Target
from mlirc.passes.even_odd import even_odd
from mlirc.passes.expand_math import expand_math
from mlirc.passes.round_in_place import round_in_place
from mlirc.passes.tabulate import FUNCTIONS, tabulate
from mlirc.runtime import tables
from mlirc.runtime.abi import BF16_TABLE
from mlirc.tests.numerics import reference
from mlirc.tests.passes.vectorize.kernels import stages

FAST, SLOW = "sapphirerapids", "icelake-server"


def ops(body: str, arguments: str, target: str = FAST, then: bool = False) -> list[str]:
    """The names of the ops but for constants; with `then`, after the passes that follow."""
    with ir.Context():
        own.load()
        module = ir.Module.parse(f"func.func @k({arguments}) {{\n{body}\nreturn\n}}")
        tabulate(module, Target.parse(target))
        assert module.operation.verify()
        if then:
            expand_math(module)
            round_in_place(module, Target.parse(target))
            even_odd(module, 32)
            assert module.operation.verify()
        names: list[str] = []
        module.operation.walk(lambda op: names.append(op.name) or ir.WalkResult.ADVANCE)
    return [n for n in names if n not in ("arith.constant", "func.func", "func.return", "builtin.module")]


def applied(function: str, lanes: str = "vector<16x", start: str = "%b", end: str = "bf16", more: str = "") -> str:
    close = ">" if lanes else ""
    f32, bf16 = f"{lanes}f32{close}", f"{lanes}bf16{close}"
    widened = f"%x = arith.extf {start} : {bf16} to {f32}\n" if start == "%b" else ""
    argument = "%x" if widened else start
    call = f'%y = "{function}"({argument}) : ({f32}) -> {f32}\n' if function.startswith("mlirc.") else f"%y = {function} {argument} : {f32}\n"
    return widened + call + f"%z = arith.truncf %y : {f32} to {lanes}{end}{close}\n" + more


VECTORS = "%b: vector<16xbf16>, %f: vector<16xf32>"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_vector_is_gathered(function: str) -> None:
    assert ops(applied(function), VECTORS) == "memref.global arith.extf memref.get_global arith.bitcast arith.shrui vector.gather arith.truncf".split()


def test_a_scalar_is_loaded() -> None:
    names = ops(applied("mlirc.gelu", lanes=""), "%b: bf16")
    assert names == "memref.global arith.extf memref.get_global arith.bitcast arith.shrui arith.index_castui memref.load arith.truncf".split()


@pytest.mark.parametrize(
    "body",
    [
        applied("mlirc.gelu", start="%f"),
        applied("mlirc.gelu", end="f16"),
        applied("mlirc.gelu", more="%s = arith.addf %y, %f : vector<16xf32>"),
        applied("math.exp"),
    ],
    ids=["of an f32", "rounded to f16", "used as it is", "a function that is quick"],
)
def test_other_functions_are_computed(body: str) -> None:
    assert "vector.gather" not in ops(body, VECTORS)


def test_slow_gathers_are_avoided() -> None:
    assert "vector.gather" not in ops(applied("mlirc.gelu"), VECTORS, SLOW)


def test_what_comes_from_a_table_is_not_rounded() -> None:
    """And its lanes may be in any order."""
    body = """%i = arith.constant 0 : index
        %b = vector.load %m[%i] : memref<?xbf16>, vector<32xbf16>
        %x = arith.extf %b : vector<32xbf16> to vector<32xf32>
        %y = "mlirc.silu"(%x) : (vector<32xf32>) -> vector<32xf32>
        %z = arith.truncf %y : vector<32xf32> to vector<32xbf16>
        vector.store %z, %m[%i] : memref<?xbf16>, vector<32xbf16>"""
    names = ops(body, "%m: memref<?xbf16>", then=True)
    assert "arith.addi" not in names and "arith.extf" not in names
    assert names.count("llvm.call_intrinsic") == 1, "the one that puts halves together (vpternlogd)"
    assert names.count("vector.gather") == 1 and names.count("vector.shuffle") == 1, "even lanes first, once"


def test_one_instruction_reads_16_elements() -> None:
    from mlirc.tests.passes.graph_text import generic
    from mlirc.tests.passes.vectorize.kernels import kernel

    kind = "tensor<4096xbf16>"
    body = "%w = arith.extf %a0 : bf16 to f32\n%g = \"mlirc.gelu\"(%w) : (f32) -> f32\n%o = arith.truncf %g : f32 to bf16"
    text = kernel([("%x", kind)], generic("%y", [("%x", kind)], kind, body=body), [("%y", kind)], [[1]])
    asm = stages(text, FAST)["asm"]
    assert "vgatherdps" in asm and "mlirc_bf16_gelu@GOTPCREL" in asm and "vfmadd" not in asm


REFERENCES = {
    "gelu": reference.gelu, "gelu_tanh": reference.gelu_tanh, "mish": reference.mish, "sigmoid": reference.sigmoid, "silu": reference.silu,
    "tanh": np.tanh, "erf": lambda x: torch.erf(torch.from_numpy(x)).numpy(),
}  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_table_has_the_nearest_bf16(function: str) -> None:
    name = function.split(".")[1]
    table = np.ctypeslib.as_array((ctypes.c_float * (1 << 16)).from_address(tables.bf16_table(BF16_TABLE + name)))
    with np.errstate(all="ignore"):
        arguments = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
        expected = torch.from_numpy(np.asarray(REFERENCES[name](arguments), np.float64)).bfloat16()
    got = torch.from_numpy(table.copy())
    assert not (got.view(torch.int32) & 0xFFFF).any(), "payloads, or no bf16"
    torch.testing.assert_close(got.bfloat16(), expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.signbit()[~got.isnan()], expected.signbit()[~got.isnan()])


def test_other_symbols_have_no_table() -> None:
    assert tables.bf16_table("torch_parallel_for") == tables.bf16_table(BF16_TABLE + "exp") == tables.bf16_table(BF16_TABLE) == 0


def test_a_number_is_rounded_once() -> None:
    """To even between two of them, subnormal ones too, and to infinity beyond the largest."""
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-40, 2.0**-134, 1.5 * 2.0**-133, 2.0**-140, 3.39e38, 3.4e38, -np.inf, -0.0])
    expected = [1, 1 + 2**-6, 1 + 2**-7, 0, 2.0**-132, 0, 3.3895314e38, np.inf, -np.inf, -0.0]
    np.testing.assert_array_equal(tables.nearest_bf16(x), np.array(expected, np.float32))
