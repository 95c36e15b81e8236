"""bf16 products in pairs: the instruction for a CPU that has it at full rate, the numbers where this one does."""

import pytest
import torch

from mlirc import driver
from mlirc.lowering.target import Target
from mlirc.tests.passes.vectorize.test_tiles import LINEAR


def _asm(target: str) -> str:
    seen = {}
    driver.compile_kernel(LINEAR, Target.parse(target), "k", lambda name, what: seen.update({name: str(what)}))
    return seen["asm"]


def test_pairs_use_the_dot_product_without_spills():
    asm = _asm("znver4")
    assert "vdpbf16ps" in asm and "tdpbf16ps" not in asm
    loops = [part for part in asm.split("\n.L") if part.count("vdpbf16ps") >= 16]
    assert loops
    for body in loops:
        inner = body[body.index("vdpbf16ps") : body.rindex("vdpbf16ps")]
        assert "(%rsp)" not in inner, "spills between the products"


@pytest.mark.parametrize("rows, k, columns", [(70, 96, 80), (5, 34, 33), (14, 64, 7)])
def test_numbers(rows, k, columns):
    if not Target.host().has_avx512_bf16 or Target.host().has_amx_bf16:
        pytest.skip("this CPU does not multiply bf16 in pairs")
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer = torch.nn.Linear(k, columns, dtype=torch.bfloat16)
    x = torch.randn(rows, k, dtype=torch.bfloat16)
    with torch.no_grad():
        got = torch.compile(layer, backend="mlirc")(x).double()
        torch.testing.assert_close(got, layer.double()(x.double()), rtol=1e-2, atol=1e-2)
