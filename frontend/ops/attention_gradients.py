"""The gradients of attention: five products.

    p = exp(scale * q k^T + mask - log);  dv = p^T do;  ds = scale * p * (do v^T - sum of do * out);  dq = ds k;  dk = ds^T q

All five are kernels like any other, as those of `attention`, whose results and logsumexp they start from (T. Dao et al., "FlashAttention",
NeurIPS 2022). Where queries see only the keys before them, some queries at a time read no others; what they contribute to the gradients
of keys and values is added up.
"""

from __future__ import annotations

import functools
import math as pymath
from collections.abc import Sequence
from typing import Any

import torch

from ...dialects.mlir import arith
from ..dtypes import compute_dtype, scalar
from ..extents import Extent, same
from ..graph_builder import GraphBuilder, T
from ..registry import Unsupported, lowers
from .attention import FEWER_HEADS_OF_KEYS, MAX_SCORES, SAME_HEADS, Dims, Inputs, grouped, part_of, parts_of, scores_of, some_of
from .reductions import softmax_exp

aten = torch.ops.aten

PARTS_OF_QUERIES = ((512, 4), (256, 2))
"""(Length, parts): from so many queries and keys on, queries that see only the keys before them are taken in so many parts, which have kernels of their own:
four are compiled in 0.5 s more. ms of a step, forward and backward, one thread of a Zen 4:

    heads x queries x elements       f32  ATen   1 part    2    4    8     bf16  ATen   1 part     2     4     8
    16 x 256 x 64                           13       11    9    8    8             15      7.4   5.9   5.6   6.0
    16 x 512 x 64                           51       43   35   28   26             48       24    21    18    18
    16 x 1024 x 64                         148      151  125  109  101            119      101    78    66    62
"""


@lowers(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_backward(
    b: GraphBuilder, node: Any, grad: T, q: T, k: T, v: T, out: T, log: T, dropout_p: float, is_causal: bool, *,
    attn_mask: T | None = None, scale: float | None = None,
) -> list[T]:  # fmt: skip
    """The gradients of q, k and v; shapes as those of `attention`, `log` is its logsumexp."""
    parts = parts_of(node, dropout_p, is_causal, first=1)
    batch, heads, m, size = q.shape
    if parts and not all(isinstance(n, int) for n in (batch, m, k.shape[2])):
        raise Unsupported(f"gradients of attention over more than {MAX_SCORES} scores of unknown sizes are ATen's, which leaves out what is not seen")
    if is_causal and isinstance(m, int) and isinstance(k.shape[2], int) and "m" not in dict(parts):
        count = next((c for least, c in PARTS_OF_QUERIES if min(m, k.shape[2]) >= least), 1)
        parts = [("m", -(-m // count)), *parts] if count > 1 else parts
    dims = SAME_HEADS
    if not same(heads, k.shape[1]):
        dims = FEWER_HEADS_OF_KEYS
        groups = (k.shape[1], heads // k.shape[1])  # type: ignore[operator]
        q, grad, out = (b.reshape(t, (batch, *groups, m, t.shape[3])) for t in (q, grad, out))
        log, attn_mask = b.reshape(log, (batch, *groups, m)), grouped(b, attn_mask, groups, dims)
    factor = 1 / pymath.sqrt(size) if scale is None else scale  # type: ignore[arg-type]
    dq, dk, dv = _gradients_in_parts(b, dims, parts, (q, k, v, attn_mask), (grad, out, log), factor, 0 if is_causal else None)
    dq = b.reshape(b.convert(dq, q.dtype), (batch, m, heads, size))
    return [b.permute(t, [0, 2, 1, 3]) for t in (dq, b.convert(dk, k.dtype), b.convert(dv, v.dtype))]


def _gradients_in_parts(
    b: GraphBuilder, dims: Dims, parts: Sequence[tuple[str, int]], inputs: Inputs, outputs: tuple[T, T, T], factor: float, first: int | None
) -> list[T]:
    """As `_gradients`, over some of each of these dims at a time: (letter, how many)."""
    if not parts:
        return _gradients(b, dims, inputs, outputs, factor, first)
    (letter, each), *rest = parts
    at, size = dims.q.index(letter), dict(zip(dims.q, inputs[0].shape))[letter]
    found = []
    for begin in range(0, size, each):  # type: ignore[arg-type]
        n = min(each, size - begin)  # type: ignore[operator]
        part, place = part_of(b, dims, letter, begin, n, inputs, first)
        grad, out, log = (some_of(b, t, at - t.rank, begin, n) for t in outputs)
        found.append(_gradients_in_parts(b, dims, rest, part, (grad, out, log), factor, place))
    dq, dk, dv = zip(*found)
    together = b.concat(list(dq), dims.out.index(letter))
    if letter == "m":
        return [together, *(_sum_of_parts(b, xs, inputs[1].shape[2]) for xs in (dk, dv))]
    return [together, *(b.concat(list(xs), dims.to_k.index(letter)) for xs in (dk, dv))]


def _sum_of_parts(b: GraphBuilder, xs: Sequence[T], keys: Extent) -> T:
    """Of what parts of the queries contribute to the first keys each."""
    d = xs[0].dtype
    padded = [b.pad(x, [0] * x.rank, [keys - x.shape[1] if n == 1 else 0 for n in range(x.rank)], 0) for x in xs]
    return b.pointwise(padded[-1].shape, padded, d, d, d, lambda *values: functools.reduce(arith.addf, values))


def _gradients(b: GraphBuilder, dims: Dims, inputs: Inputs, outputs: tuple[T, T, T], factor: float, first: int | None) -> list[T]:
    """Those of q [dims.out], k and v [dims.to_k]. `outputs` are the gradient of the result, the result, and its logsumexp; `first` is the place
    of the first query if it matters what is before it."""
    (q, k, v, attn_mask), (grad, out, log) = inputs, outputs
    d = compute_dtype(q.dtype)
    extents = dict(zip(dims.q, q.shape)) | {"n": k.shape[2]}
    scores = scores_of(b, dims, q, k, attn_mask, factor, first, k.shape[2])
    exp = softmax_exp(k.dtype)
    rows = b.reshape(log, (*log.shape, 1))
    p = b.pointwise(scores.shape, [scores, rows], d, d, d, lambda u, t: exp(arith.subf(u, t)))
    weights = b.convert(p, k.dtype)
    through = b.contract(grad, v, (dims.q, dims.k, dims.scores), scores.shape)
    product = b.pointwise(grad.shape, [grad, out], d, d, d, arith.mulf)
    delta = b.reduce(product, [product.rank - 1], "add", True, d)
    ds = b.pointwise(
        scores.shape, [p, through, delta], d, d, k.dtype, lambda w, t, s: arith.mulf(arith.mulf(w, arith.subf(t, s)), scalar(d, factor))
    )
    dq = b.contract(ds, k, (dims.scores, dims.k, dims.out), tuple(extents[c] for c in dims.out))
    return [dq, _sum_over_queries(b, dims, ds, q, extents), _sum_over_queries(b, dims, weights, grad, extents | {"d": v.shape[3]})]


def _sum_over_queries(b: GraphBuilder, dims: Dims, scores: T, x: T, extents: dict[str, Extent]) -> T:
    """A product [dims.to_k]. Heads that share keys are added up behind it: of a sum over heads and queries, neither of which lie next to one
    another, the product takes three times as long (16 heads to 4, 1024 x 1024 x 64 in bf16: 112 and 35 ms)."""
    to = dims.to_k.replace("d", "rd") if "r" in dims.q else dims.to_k
    out = b.contract(scores, x, (dims.scores, dims.q, to), tuple(extents[c] for c in to))
    return out if to == dims.to_k else b.reduce(out, [to.index("r")], "add", False)
