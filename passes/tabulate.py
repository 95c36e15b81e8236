"""Functions of one bf16 whose result is rounded to bf16 are read from a table.

    %x = arith.extf %b : bf16 to f32              %i = bits of %b, as a number
    %y = mlirc.gelu %x : f32                ->    %y = @mlirc_bf16_gelu[%i] : f32       vector.gather, or memref.load of a scalar
    %z = arith.truncf %y : f32 to bf16            %z = arith.truncf %y                  exact

There are 65,536 arguments, and a table has what each becomes, the nearest bf16, widened (`runtime.tables`: 256 KB, of which numbers
between 1/16 and 4 take 6). Between the ops of a fused group eager mode rounds to bf16, and so do we: what a linear layer hands to
its activation is one. 16 elements take 8 cycles on a Granite Rapids, and with them the units of the arithmetic, on which AMX sums
wait, are free; the polynomials of gelu take 41.

For CPUs that gather fast (`Target.gathers_fast`). Runs before `expand_math`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dialects import builders
from ..dialects.math_expansions.num import Num, element_type, with_element
from ..dialects.mlir import arith, ir, memref, vector
from ..runtime.abi import BF16_TABLE

if TYPE_CHECKING:
    from ..lowering.target import Target

PASS_NAME = "mlirc-tabulate"

FUNCTIONS = ("mlirc.gelu", "mlirc.gelu_tanh", "mlirc.mish", "mlirc.sigmoid", "mlirc.silu", "math.tanh", "math.erf")
"""Those whose arithmetic takes longer."""

EXACT = "mlirc.exact"
"""On an op whose result, an f32, is a bf16, without a payload if it is NaN."""

SIZE = 1 << 16


def tabulate(module: ir.Module, target: Target) -> None:
    """Rewrite all functions of a bf16 whose results end as bf16."""
    if not target.gathers_fast:
        return
    found: list[ir.Operation] = []

    def collect(op: ir.Operation) -> ir.WalkResult:
        if op.name in FUNCTIONS and _is_bf16(op.operands[0]) and _becomes_bf16(op.results[0]):
            found.append(op)
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(collect)
        for name in dict.fromkeys(op.name for op in found):
            with ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown():
                memref.GlobalOp(_symbol(name), ir.TypeAttr.get(table_kind()))  # a declaration
        for op in found:
            with ir.InsertionPoint(op), op.location:
                op.results[0].replace_all_uses_with(read_table(_symbol(op.name), op.operands[0], op.results[0].type))
            op.erase()


def _symbol(function: str) -> str:
    return BF16_TABLE + function.split(".")[1]


def table_kind() -> ir.Type:
    """Of the memory of a table."""
    return ir.MemRefType.get([SIZE], ir.F32Type.get())


def _is_bf16(x: ir.Value) -> bool:
    """Whether an f32 is a bf16, widened."""
    if isinstance(x.owner, ir.Block) or x.owner.operation.name != "arith.extf":
        return False
    return all(isinstance(element_type(v.type), kind) for v, kind in ((x, ir.F32Type), (x.owner.operation.operands[0], ir.BF16Type)))


def _becomes_bf16(y: ir.Value) -> bool:
    users = [use.owner.operation for use in y.uses]
    return bool(users) and all(u.name == "arith.truncf" and isinstance(element_type(u.results[0].type), ir.BF16Type) for u in users)


def read_table(symbol: str, x: ir.Value, result: ir.Type, exact: bool = True) -> ir.Value:
    """What a table has for a bf16, widened to f32 (or a vector of them); `exact` tables have bf16."""
    table = memref.get_global(table_kind(), symbol)
    at = Num(x).bits().shift_right_unsigned(16).value
    if isinstance(result, ir.VectorType):
        everywhere = builders.constant(with_element(result, ir.IntegerType.get_signless(1)), 1)
        out = vector.gather(result, table, [builders.index(0)], at, everywhere, builders.constant(result, 0))
    else:
        out = memref.load(table, [arith.index_castui(ir.IndexType.get(), at)])
    if exact:
        out.owner.attributes[EXACT] = ir.UnitAttr.get()
    return out
