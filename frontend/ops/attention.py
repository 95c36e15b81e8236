"""Attention as two products with a softmax between them.

    out = softmax(scale * q k^T + mask) v

What ATen's flash kernel keeps in tiles lies in memory here: the scores, one for each pair of a query and a key. In exchange all
three parts are kernels like any other, which masks, casts and changes of layout fuse into. It pays for as long as the scores
stay near the caches; beyond `MAX_SCORES` ATen's kernel takes over (T. Dao et al., "FlashAttention", NeurIPS 2022).
"""

from __future__ import annotations

import math as pymath
from typing import Any

import torch

from ...dialects.mlir import arith, math
from ..dtypes import compute_dtype, scalar
from ..graph_builder import GraphBuilder, T
from ..registry import Unsupported, lowers
from . import scalars as s
from .reductions import finite_max, is_used

aten = torch.ops.aten

MAX_SCORES = 1 << 24
"""Scores of one call; 64 MiB in f32."""


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(
    b: GraphBuilder, node: Any, q: T, k: T, v: T, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: T | None = None, scale: float | None = None,
) -> list[T | None]:  # fmt: skip
    """q [b, h, m, d], k and v [b, h, n, d], mask [m, n] or four dims of the scores or 1 -> ([b, h, m, d], logsumexp [b, h, m])."""
    _check(node, dropout_p)
    d = compute_dtype(q.dtype)
    scores = b.contract(q, k, ("bhmd", "bhnd", "bhmn"), (*q.shape[:3], k.shape[2]))
    factor = 1 / pymath.sqrt(q.shape[3]) if scale is None else scale  # type: ignore[arg-type]
    scores = b.pointwise(scores.shape, [scores], d, d, d, lambda u: arith.mulf(u, scalar(d, factor)))
    if attn_mask is not None:
        scores = b.pointwise(scores.shape, [scores, attn_mask], d, d, d, arith.addf)
    if is_causal:
        scores = b.from_indices(
            scores.shape, [scores], d,
            lambda at, u: arith.select(arith.cmpi(arith.CmpIPredicate.sle, at[3], at[2]), u, scalar(d, float("-inf"))),
        )  # fmt: skip
    # A query that may see no key gets zeros.
    top = finite_max(b, scores, [3], d)
    power = b.pointwise(scores.shape, [scores, top], d, d, d, lambda u, m: math.exp(arith.subf(u, m)))
    total = b.reduce(power, [3], "add", True, d)
    weights = b.convert(power, q.dtype)
    out = b.contract(weights, v, ("bhmn", "bhnd", "bmhd"), (q.shape[0], q.shape[2], q.shape[1], v.shape[3]))
    # One division for a row, where its elements are fewest.
    one = lambda t: arith.select(s.eq(d, t, scalar(d, 0)), scalar(d, 1), t)  # noqa: E731
    inverse = b.pointwise(total.shape, [total], d, d, d, lambda t: arith.divf(scalar(d, 1), one(t)))
    out = b.pointwise(out.shape, [out, b.permute(inverse, [0, 2, 1, 3])], d, d, q.dtype, arith.mulf)
    out = b.permute(out, [0, 2, 1, 3])
    if not is_used(node, 1):
        return [out, None]
    log = b.pointwise(total.shape, [total, top], d, d, d, lambda t, m: arith.addf(math.log(t), m))
    return [out, b.reshape(log, q.shape[:3])]


def _check(node: Any, dropout_p: float) -> None:
    """Raise Unsupported where the kernel stays ATen's. That a symbolic size keeps to the limit becomes a guard of the graph."""
    q, k, v = (argument.meta["val"] for argument in node.args[:3])
    if dropout_p:
        raise Unsupported("attention with dropout is ATen's")
    if q.shape[1] != k.shape[1] or k.shape[1] != v.shape[1]:
        raise Unsupported("attention with fewer heads of keys than of queries is ATen's")
    if not isinstance(q.shape[3], int):
        raise Unsupported("attention with heads of unknown size is ATen's")
    if q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] > MAX_SCORES:
        raise Unsupported(f"attention over more than {MAX_SCORES} scores is ATen's flash kernel, which does not keep them")
