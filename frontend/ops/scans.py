"""Running sums and products along a dim, in f32 for the two-byte floats."""

from __future__ import annotations

from typing import Any

import torch

from ...dialects import own
from ..dtypes import compute_dtype, mlir_type
from ..extents import product, same
from ..graph_builder import GraphBuilder, T
from ..registry import lowers

aten = torch.ops.aten


@lowers(aten.cumsum.default, aten.cumprod.default)
def scan(b: GraphBuilder, node: Any, x: T, dim: int, *, dtype: Any = None) -> T:
    out = node.meta["val"].dtype
    d = compute_dtype(out)
    adds = node.target is aten.cumsum.default
    x = b.convert(x, d)
    if x.rank == 0 or same(x.shape[dim], 1) or same(product(x.shape), 0):
        return b.convert(x, out)
    op = "arith." + ("add" if adds else "mul") + ("f" if d.is_floating_point else "i")
    return T(own.scan(x.value, dim % x.rank, op, mlir_type(out)), x.shape, out)
