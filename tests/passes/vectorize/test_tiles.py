"""AMX kernels: the assembly for a CPU that has it, and their numbers with the tile ops emulated."""

import dataclasses
import re

import pytest
import torch

from mlirc import driver
from mlirc.dialects.mlir import PassManager, ir
from mlirc.dialects.own import load_for
from mlirc.lowering.bridge import to_llvm22
from mlirc.lowering.codegen import emit_object
from mlirc.lowering.target import Target
from mlirc.lowering.to_llvm import lower_to_llvm_ir
from mlirc.passes.expand_math import expand_math
from mlirc.passes.strategy import select_strategy
from mlirc.passes.vectorize import KernelFunction, vectorize
from mlirc.tests.amx_emulation import emulate

LINEAR = """
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n floordiv 32, k floordiv 2, n mod 32, k mod 2)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func @kernel(%x: tensor<70x96xbf16>, %w: tensor<3x48x32x2xbf16>) -> tensor<70x80xf32>
    attributes {mlirc.result_strides = [["80", "1"]]} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<70x80xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<70x80xf32>) -> tensor<70x80xf32>
  %0 = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<70x96xbf16>, tensor<3x48x32x2xbf16>) outs(%i : tensor<70x80xf32>)
      attrs = {mlirc.kind = "contraction", mlirc.pairs = 2 : i32} {
  ^bb0(%a: bf16, %b: bf16, %s: f32):
    %u = arith.extf %a : bf16 to f32
    %v = arith.extf %b : bf16 to f32
    %p = arith.mulf %u, %v : f32
    %t = arith.addf %s, %p : f32
    linalg.yield %t : f32
  } -> tensor<70x80xf32>
  return %0 : tensor<70x80xf32>
}
"""


def test_block_shapes_are_functions_with_one_configuration_and_no_spills():
    seen = {}
    driver.compile_kernel(LINEAR, Target.parse("sapphirerapids"), "k", lambda name, what: seen.update({name: str(what)}))
    functions = re.split(r"\n(?=k\w*:)", seen["asm"])
    tiles = {f.split(":")[0]: f for f in functions if f.startswith("k_tile_")}
    # 70 rows = 2 x 32 + 6, 80 columns = 2 x 32 + 16.
    assert set(tiles) == {f"k_tile_{m}x{n}" for m in (32, 16, 6) for n in (32, 16)}
    full = tiles["k_tile_32x32"]
    assert full.count("ldtilecfg") == 1
    assert full.count("tdpbf16ps") == 4
    loop = full[: full.rindex("tdpbf16ps")].rsplit("\n.L", 1)[1]
    assert loop.count("tileloadd") == 4 and "tilestored" not in loop
    assert full.count("tilestored") == 4, "tiles are spilled"


@pytest.fixture
def amx(monkeypatch):
    """torch.compile for this machine plus AMX, the tile ops emulated."""
    host = Target.host()
    if not host.has_avx512:
        pytest.skip("the CPU lacks AVX-512, which every CPU with AMX has")
    fake = dataclasses.replace(host, features=tuple(sorted({*host.features, "amx-tile", "amx-bf16", "avx512bf16"})))
    products = []

    def compile_kernels(kernels, target, options, files=(), adjustments=None):
        out = []
        for n, k in enumerate(kernels):
            with ir.Context(), ir.Location.unknown():
                load_for(k.text)
                module = ir.Module.parse(k.text)
                kernel = KernelFunction(module.body.operations[0].operation)
                vectors = vectorize(kernel, select_strategy(kernel, target), f"kernel{n}")
                products.append(emulate(vectors))
                vectors.operation.verify()
                PassManager.parse("builtin.module(canonicalize,cse)").run(vectors.operation)
                expand_math(vectors)
                text = lower_to_llvm_ir(vectors)
            code = emit_object(to_llvm22(text), host)
            out.append(driver.CompiledKernel(k.name, f"kernel{n}", code, k.origins, k.text))
        return out

    monkeypatch.setattr(driver, "compile_kernels", compile_kernels)
    monkeypatch.setattr(Target, "parse", classmethod(lambda cls, name: fake))
    monkeypatch.setattr(Target, "check_runnable", lambda self: None)
    monkeypatch.setattr("mlirc.frontend.backend.request_tiles", lambda: None)
    torch._dynamo.reset()
    yield products
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "model, shape",
    [
        (torch.nn.Linear(64, 80), (38, 64)),
        (torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.GELU()), (3, 7, 32)),
        (torch.nn.Conv2d(32, 40, 3, stride=2, padding=1), (2, 32, 9, 11)),
    ],
)
def test_emulated_tiles_give_the_right_numbers(amx, model, shape):
    torch.manual_seed(0)
    model = model.bfloat16()
    x = torch.randn(*shape, dtype=torch.bfloat16)
    with torch.no_grad():
        got = torch.compile(model, backend="mlirc")(x)
        want = model.double()(x.double())
        model.bfloat16()
    assert sum(amx) > 0, "no kernel used tiles"
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)
