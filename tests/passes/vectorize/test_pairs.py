"""bf16 products in pairs: the instruction for a CPU that has it at full rate, the numbers where this one does."""

import pytest
import torch

from mlirc import driver
from mlirc.lowering.target import Target
from mlirc.tests.frontend.compare import compare
from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.test_pack import WIDENED
from mlirc.tests.passes.vectorize.kernels import kernel
from mlirc.tests.passes.vectorize.test_tiles import LINEAR


def _asm(target: str, text: str = LINEAR) -> str:
    seen = {}
    driver.compile_kernel(text, Target.parse(target), "k", lambda name, what: seen.update({name: str(what)}))
    return seen["asm"]


def test_pairs_use_the_dot_product_without_spills():
    asm = _asm("znver4")
    assert "vdpbf16ps" in asm and "tdpbf16ps" not in asm
    loops = [part for part in asm.split("\n.L") if part.count("vdpbf16ps") >= 16]
    assert loops
    for body in loops:
        inner = body[body.index("vdpbf16ps") : body.rindex("vdpbf16ps")]
        assert "(%rsp)" not in inner, "spills between the products"


@pytest.mark.parametrize("rows, lines", [(104, 1), (26, 4), (13, 8), (1, 8)])
@pytest.mark.parametrize("cpu, fetch", [("cooperlake", "prefetcht1"), ("znver5", "prefetcht0"), ("icelake-server", "prefetcht1")])
def test_panels_are_fetched_while_those_before_are_read(rows: int, lines: int, cpu: str, fetch: str) -> None:
    """Four steps of pairs have eight lines, and without pairs four."""
    text = LINEAR.replace("70x96", f"{rows}x1536").replace("3x48x32x2", "24x768x32x2").replace("70x80", f"{rows}x768").replace('"80"', '"768"')
    if cpu == "icelake-server":
        text = text.replace("24x768x32x2", "24x1536x32").replace("k floordiv 2, n mod 32, k mod 2", "k, n mod 32").replace(", mlirc.words = 2 : i32", "")
        lines = -(-lines // 2)
    asm = _asm(cpu, text)
    parts = asm.split("\n.L")
    assert max(part.count(fetch) for part in parts) == lines and ("vdpbf16ps" in asm) == (cpu != "icelake-server")
    full = max(parts, key=lambda part: part.count("vdpbf16ps") + part.count("vfmadd"))
    assert "(%rsp)" not in full, "spills between the products"


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


def values(rows: int, columns: int) -> str:
    """A product of 96 steps with an operand that is not packed, in pairs."""
    x, w, y = f"tensor<{rows}x96xbf16>", f"tensor<96x{columns}xbf16>", f"tensor<{rows}x{columns}xf32>"
    operands = [("%x", x), ("%w", w)]
    body = generic("%r", operands, y, ["i, k", "k, j", "i, j"], WIDENED, "ppr", "ijk", "0.0", "contraction")
    return kernel(operands, body.replace('mlirc.kind = "contraction"', 'mlirc.kind = "contraction", mlirc.words = 2 : i32'), [("%r", y)], [[columns, 1]])


@pytest.mark.parametrize("rows, columns, tile", [(1, 128, (1, 8)), (4, 64, (4, 4)), (6, 128, (6, 4)), (13, 64, (13, 2)), (7, 16, (7, 1)), (40, 33, (10, 2))])
def test_pairs_are_put_together_in_registers(rows: int, columns: int, tile: tuple[int, int]) -> None:
    """Two shuffles for two vectors side by side, whatever the rows, and nothing spilled."""
    asm = _asm("znver4", values(rows, columns))
    loop = max(asm.split("\n.L"), key=lambda part: part.count("vdpbf16ps"))
    assert loop.count("vdpbf16ps") == tile[0] * tile[1] and "(%rsp)" not in loop
    assert sum(loop.count(shuffle) for shuffle in ("vpermt2w", "vpermi2w", "vpermw")) == tile[1]


@pytest.mark.parametrize("rows, k, columns", [(1, 1, 1), (1, 33, 65), (2, 2, 16), (3, 17, 128), (4, 64, 48), (17, 3, 31), (33, 129, 40), (90, 7, 96), (5, 0, 9)])
def test_numbers_of_values(rows: int, k: int, columns: int) -> None:
    """One row and odd sizes, of what may be infinite or no number: each is seen in its own column only."""
    torch.manual_seed(0)
    x, w = torch.randn(3, rows, k, dtype=torch.bfloat16), torch.randn(3, k, columns, dtype=torch.bfloat16)
    if k:
        w[0, -1, -1], w[1, 0, 0] = float("inf"), float("nan")
    compare(torch.bmm, x, w)
    compare(torch.bmm, torch.randn(3, rows, k + 3, dtype=torch.bfloat16)[..., 1 : k + 1], w)


PACK = """
#in = affine_map<(a, b, c, d) -> ({source})>
#out = affine_map<(a, b, c, d) -> (a, b, c, d)>
func.func @kernel(%x: tensor<{shape}xbf16>) -> tensor<2x{half}x32x2xbf16>
    attributes {{mlirc.result_strides = [["{block}", "64", "2", "1"]]}} {{
  %o = tensor.empty() : tensor<2x{half}x32x2xbf16>
  %r = linalg.generic {{indexing_maps = [#in, #out], iterator_types = ["parallel", "parallel", "parallel", "parallel"], mlirc.pack}}
      ins(%x : tensor<{shape}xbf16>) outs(%o : tensor<2x{half}x32x2xbf16>) {{
  ^bb0(%i: bf16, %j: bf16):
    linalg.yield %i : bf16
  }} -> tensor<2x{half}x32x2xbf16>
  return %r : tensor<2x{half}x32x2xbf16>
}}
"""
"""[2 n][k] or [k][2 n] to pairs along k."""
COLUMNS = "a * 32 + c, b * 2 + d"
ROWS = "b * 2 + d, a * 32 + c"


@pytest.mark.parametrize("target", ["znver4", "x86-64-v3"])
@pytest.mark.parametrize("source, shape", [(COLUMNS, "64x96"), (ROWS, "96x64")])
def test_packing_moves_whole_vectors(source: str, shape: str, target: str) -> None:
    """No gather, no scatter, and each 64 bytes are stored at once (32 on AVX2)."""
    seen: dict[str, str] = {}
    text = PACK.format(source=source, shape=shape, half=48, block=48 * 64)
    driver.compile_kernel(text, Target.parse(target), "k", lambda name, what: seen.update({name: str(what)}))
    assert ("transposed=None" in seen["strategy"]) == (source == ROWS)
    assert "vector.gather" not in seen["vector"] and "vector.scatter" not in seen["vector"]
    assert "vpgather" not in seen["asm"] and "pextrw" not in seen["asm"] and "vpinsrw" not in seen["asm"]


@pytest.mark.parametrize("target", ["znver4", "x86-64-v3"])
@pytest.mark.parametrize("rows", [1, 33, 50])
def test_packing_of_padded_rows_moves_whole_vectors(rows: int, target: str) -> None:
    """Vectors of rows are transposed where some rows are padding, too; what is loaded for these is the last row again."""
    seen: dict[str, str] = {}
    pad = f"""%p = tensor.pad %x low[0, 0] high[{64 - rows}, 0] {{
  ^bb0(%i: index, %j: index):
    %c = arith.constant 0.0 : bf16
    tensor.yield %c : bf16
  }} : tensor<{rows}x96xbf16> to tensor<64x96xbf16>
  %o = tensor.empty"""
    text = PACK.format(source=COLUMNS, shape="64x96", half=48, block=48 * 64)
    text = text.replace("%x: tensor<64x96xbf16>", f"%x: tensor<{rows}x96xbf16>").replace("%o = tensor.empty", pad).replace("ins(%x", "ins(%p")
    driver.compile_kernel(text, Target.parse(target), "k", lambda name, what: seen.update({name: str(what)}))
    assert "transposed=None" not in seen["strategy"]
    assert "vector.gather" not in seen["vector"] and "vector.scatter" not in seen["vector"]
    assert "vpgather" not in seen["asm"] and "pextrw" not in seen["asm"] and "vpinsrw" not in seen["asm"]


@pytest.mark.sampled
@pytest.mark.parametrize("keys", [1, 2, 7, 34, 66, 96, 197])
@pytest.mark.parametrize("size", [8, 32, 40, 64, 80])
def test_both_operands_of_attention(keys: int, size: int) -> None:
    """Packed in every call: contiguous along the product (keys) and across it (values); multiples of vectors, and not."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 3, size, dtype=torch.bfloat16).transpose(1, 2) for n in (9, keys, keys))
    compare(lambda q, k, v: (q @ k.transpose(-2, -1)).softmax(-1) @ v, q, k, v)
