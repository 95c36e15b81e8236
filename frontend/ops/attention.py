"""Attention as two products with a softmax between them.

    out = softmax(scale * q k^T + mask) v

What ATen's flash kernel keeps in tiles lies in memory here: the scores, one for each pair of a query and a key. In exchange all
three parts are kernels like any other, which masks, casts and changes of layout fuse into. It pays for as long as the scores
stay near the caches; beyond `MAX_SCORES` ATen's kernel takes over (T. Dao et al., "FlashAttention", NeurIPS 2022).
"""

from __future__ import annotations

import math as pymath
from dataclasses import dataclass
from typing import Any

import torch

from ...dialects import builders
from ...dialects.mlir import arith, math
from ..dtypes import compute_dtype, scalar
from ..extents import same
from ..graph_builder import GraphBuilder, T
from ..registry import Unsupported, lowers
from . import scalars as s
from .reductions import finite_max, is_used

aten = torch.ops.aten

MAX_SCORES = 1 << 24
"""Scores of one call; 64 MiB in f32."""


@dataclass(frozen=True)
class _Dims:
    """Letters of the dims: b batch, h heads, g heads of keys, r heads of queries to each, m queries, n keys, d elements of a head."""

    q: str
    k: str
    out: str

    @property
    def scores(self) -> str:
        return self.q[:-1] + "n"

    @property
    def to_out(self) -> list[int]:
        """The dims of the scores, in the order of `out`."""
        return [self.q.index(c) for c in self.out]


_SAME_HEADS = _Dims("bhmd", "bhnd", "bmhd")
_FEWER_HEADS_OF_KEYS = _Dims("bgrmd", "bgnd", "bmgrd")
# The heads that share keys are the rows of a product then: the keys are read once.
_ONE_QUERY = _Dims("bgrd", "bgnd", "bgrd")


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(
    b: GraphBuilder, node: Any, q: T, k: T, v: T, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: T | None = None, scale: float | None = None,
) -> list[T | None]:  # fmt: skip
    """q [b, h, m, d], k and v [b, g, n, d] with g a divisor of h, mask [m, n] or four dims of the scores or 1
    -> ([b, h, m, d], logsumexp [b, h, m]).

    Head i of the queries sees head i // (h / g) of the keys (J. Ainslie et al., "GQA", EMNLP 2023).
    """
    _check(node, dropout_p)
    d = compute_dtype(q.dtype)
    batch, heads, m, size = q.shape
    dims = _SAME_HEADS
    if not same(heads, k.shape[1]):
        groups = (k.shape[1], heads // k.shape[1])  # type: ignore[operator]
        dims = _ONE_QUERY if same(m, 1) else _FEWER_HEADS_OF_KEYS
        rows = (size,) if dims is _ONE_QUERY else (m, size)
        q = b.reshape(q, (batch, *groups, *rows))
        attn_mask = _grouped(b, attn_mask, groups, dims)
    extents = dict(zip(dims.q, q.shape)) | {"n": k.shape[2]}
    scores = b.contract(q, k, (dims.q, dims.k, dims.scores), tuple(extents[c] for c in dims.scores))
    factor = 1 / pymath.sqrt(size) if scale is None else scale  # type: ignore[arg-type]
    scores = b.pointwise(scores.shape, [scores], d, d, d, lambda u: arith.mulf(u, scalar(d, factor)))
    if attn_mask is not None:
        scores = b.pointwise(scores.shape, [scores, attn_mask], d, d, d, arith.addf)
    if is_causal:
        query, key = dims.scores.find("m"), dims.scores.index("n")

        def seen(at: Any, u: Any) -> Any:
            row = builders.index(0) if query < 0 else at[query]
            return arith.select(arith.cmpi(arith.CmpIPredicate.sle, at[key], row), u, scalar(d, float("-inf")))

        scores = b.from_indices(scores.shape, [scores], d, seen)
    # A query that may see no key gets zeros.
    last = scores.rank - 1
    top = finite_max(b, scores, [last], d)
    power = b.pointwise(scores.shape, [scores, top], d, d, d, lambda u, m: math.exp(arith.subf(u, m)))
    total = b.reduce(power, [last], "add", True, d)
    weights = b.convert(power, k.dtype)
    extents["d"] = v.shape[3]
    out = b.contract(weights, v, (dims.scores, dims.k, dims.out), tuple(extents[c] for c in dims.out))
    # One division for a row, where its elements are fewest.
    one = lambda t: arith.select(s.eq(d, t, scalar(d, 0)), scalar(d, 1), t)  # noqa: E731
    inverse = b.pointwise(total.shape, [total], d, d, d, lambda t: arith.divf(scalar(d, 1), one(t)))
    out = b.pointwise(out.shape, [out, b.permute(inverse, dims.to_out)], d, d, k.dtype, arith.mulf)
    if dims is _ONE_QUERY:
        out = b.reshape(out, (batch, heads, m, v.shape[3]))
    else:
        out = b.permute(b.reshape(out, (batch, m, heads, v.shape[3])), [0, 2, 1, 3])
    if not is_used(node, 1):
        return [out, None]
    # 0 for a query that may see no key, as in ATen: its gradient is exp(-inf - 0) = 0 then, not exp(-inf + inf) = NaN.
    log = b.pointwise(total.shape, [total, top], d, d, d, lambda t, m: arith.addf(math.log(one(t)), m))
    return [out, b.reshape(log, (batch, heads, m))]


def _grouped(b: GraphBuilder, mask: T | None, groups: tuple[Any, Any], dims: _Dims) -> T | None:
    """A mask with the dim of its heads split as that of the queries is."""
    if mask is None or mask.rank < 3:
        return mask
    batch, heads, *rest = mask.shape
    if dims is _ONE_QUERY:
        return mask if same(heads, 1) else b.reshape(mask, (batch, *groups, rest[-1]))
    return b.reshape(mask, (batch, *((1, 1) if same(heads, 1) else groups), *rest))


def _check(node: Any, dropout_p: float) -> None:
    """Raise Unsupported where the kernel stays ATen's. That a symbolic size keeps to the limit becomes a guard of the graph."""
    q, k, v = (argument.meta["val"] for argument in node.args[:3])
    if dropout_p:
        raise Unsupported("attention with dropout is ATen's")
    if k.shape[1] != v.shape[1]:
        raise Unsupported("attention with more heads of keys than of values is ATen's")
    if q.shape[1] != k.shape[1] and not (isinstance(q.shape[1], int) and isinstance(k.shape[1], int) and k.shape[1]):
        raise Unsupported("attention with an unknown number of heads is ATen's")
    if not isinstance(q.shape[3], int):
        raise Unsupported("attention with heads of unknown size is ATen's")
    if q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] > MAX_SCORES:
        raise Unsupported(f"attention over more than {MAX_SCORES} scores is ATen's flash kernel, which does not keep them")
