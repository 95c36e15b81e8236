"""The ops of linalg that passes build, from under the package of the bindings.

That package also brings the language in which upstream defines its named ops, and a YAML parser for it: with them a compile worker takes
60 to 100 ms longer to start.
"""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir._mlir_libs._mlirDialectsLinalg import fill_builtin_region
from torch_mlir.dialects._linalg_ops_gen import FillOp, GenericOp, IndexOp, TransposeOp, YieldOp

__all__ = ["GenericOp", "IndexOp", "YieldOp", "fill", "transpose"]


def fill(value: ir.Value, init: ir.Value) -> ir.Value:
    """A tensor with the sizes of `init` that holds the scalar `value` everywhere."""
    op = FillOp([init.type], [value], [init])
    fill_builtin_region(op.operation)
    return op.results[0]


def transpose(source: ir.Value, init: ir.Value, permutation: list[int]) -> ir.Value:
    """Dim i of the result is dim `permutation[i]` of `source`; `init` has its sizes."""
    op = TransposeOp(result=[init.type], input=source, init=init, permutation=permutation)
    fill_builtin_region(op.operation)
    return op.results[0]
