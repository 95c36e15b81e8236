"""Attention as two products with a softmax between them.

    out = softmax(scale * q k^T + mask) v            (its gradients are in `attention_gradients`)

What ATen's flash kernel keeps in tiles lies in memory here, or in the cache where the three parts take turns (`passes.chain`): the scores, one
for each pair of a query and a key. In exchange all three are kernels like any other, which masks, casts and changes of layout fuse into.
Of more than `MAX_SCORES` some are taken at a time, those of some heads, or else of some queries, which share the memory; beyond `MOST_PARTS`
ATen's kernel takes over (T. Dao et al., "FlashAttention", NeurIPS 2022).
"""

from __future__ import annotations

import functools
import math as pymath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._sympy.functions import FloorDiv

from ...dialects import builders
from ...dialects.mlir import arith, ir, math
from ..dtypes import compute_dtype, scalar
from ..extents import Extent, same
from ..graph_builder import GraphBuilder, T
from ..memory_order import hint
from ..registry import Unsupported, lowers
from . import scalars as s
from .reductions import finite_max, is_used, softmax_exp

aten = torch.ops.aten

Inputs = tuple[T, T, T, "T | None"]
"""q, k, v and the mask."""

MAX_SCORES = 1 << 24
"""Scores at a time; 64 MiB in f32."""
KEYS, FEW_QUERIES = 32, 16
"""Of an unknown number, in a block, where they are bf16: products of blocks are those of known sizes, in words and on tiles of AMX (12 x 512 x 64
takes 6.2 instead of 9.7 ms on a Zen 4). Fewer queries than these do not pay for copies of keys and values, with zeros behind the last block."""
TOGETHER = 2
"""Heads in a part: those of one would be a product with one matrix for all rows, which does not take turns with others (`strategy.chains`)."""
MANY_KEYS, KERNELS = 2048, 8
"""Of keys beyond so many, few rows of scores fit the cache. Queries that see only those before them are taken in up to so many parts first."""
GROWTH = 4
"""So many times the scores of the first call fit the parts of one of unknown sizes, if heads are enough: a length may double until something
is compiled anew."""
MOST_PARTS = 64
"""Parts at most. Those of heads share their kernels; those of queries that see only the keys before them have their own.

ms of ATen's kernel and of ours, one thread of a Zen 4:

    heads x queries x elements                         f32            bf16
    12 x 1370 x 64                                      71 and 58      74 and 34
    8 x 4096 x 40                                      315     270    320     153
    32 x 2048 x 64, keys before the query              267     182    275     108
    32 x 4096 x 64, keys before the query              943     752    980     414
"""


@dataclass(frozen=True)
class Dims:
    """Letters of the dims: b batch, h heads, g heads of keys, r heads of queries to each, m queries, n keys, d elements of a head."""

    q: str
    k: str
    out: str
    keys: str = "n"

    @property
    def scores(self) -> str:
        return self.q[:-1] + self.keys

    @property
    def to_k(self) -> str:
        """The gradients of k and v, as `out` is the result."""
        return self.k[0] + "n" + self.k[1:-2] + "d"

    @property
    def in_blocks(self) -> Dims:
        """With c blocks of n keys each."""
        return Dims(self.q, self.k.replace("n", "cn"), self.out, "cn")

    @property
    def to_out(self) -> list[int]:
        """The dims of the scores, in the order of `out`."""
        return [self.q.index(c) for c in self.out]


SAME_HEADS = Dims("bhmd", "bhnd", "bmhd")
FEWER_HEADS_OF_KEYS = Dims("bgrmd", "bgnd", "bmgrd")
# The heads that share keys are the rows of a product then: the keys are read once.
_ONE_QUERY = Dims("bgrd", "bgnd", "bgrd")


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(
    b: GraphBuilder, node: Any, q: T, k: T, v: T, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: T | None = None, scale: float | None = None,
) -> list[T | None]:  # fmt: skip
    """q [b, h, m, d], k and v [b, g, n, d] with g a divisor of h, mask [m, n] or four dims of the scores or 1
    -> ([b, h, m, d], logsumexp [b, h, m]).

    Head i of the queries sees head i // (h / g) of the keys (J. Ainslie et al., "GQA", EMNLP 2023).
    """
    parts = parts_of(node, dropout_p, is_causal)
    batch, heads, m, size = q.shape
    dims = SAME_HEADS
    if not same(heads, k.shape[1]):
        groups = (k.shape[1], heads // k.shape[1])  # type: ignore[operator]
        dims = _ONE_QUERY if same(m, 1) else FEWER_HEADS_OF_KEYS
        q = b.reshape(q, (batch, *groups, *((size,) if dims is _ONE_QUERY else (m, size))))
        attn_mask = grouped(b, attn_mask, groups, dims)
    factor = 1 / pymath.sqrt(size) if scale is None else scale  # type: ignore[arg-type]
    with_log = is_used(node, 1)
    out, log = _in_parts(b, dims, parts, (q, k, v, attn_mask), factor, 0 if is_causal else None, with_log)
    if dims is _ONE_QUERY:
        out = b.reshape(out, (batch, heads, m, v.shape[3]))
    else:
        out = b.permute(b.reshape(out, (batch, m, heads, v.shape[3])), [0, 2, 1, 3])
    return [out, None if log is None else b.reshape(log, (batch, heads, m))]


def _in_parts(
    b: GraphBuilder, dims: Dims, parts: Sequence[tuple[str, int]], inputs: Inputs, factor: float, first: int | None, with_log: bool
) -> tuple[T, T | None]:
    """As `_attend`, over some of each of these dims at a time: (letter, how many)."""
    if not parts:
        return _attend(b, dims, *inputs, factor, first, with_log)
    (letter, each), *rest = parts
    outs, logs = [], []
    size = dict(zip(dims.q, inputs[0].shape))[letter]
    for begin in range(0, size, each):  # type: ignore[arg-type]
        part, place = part_of(b, dims, letter, begin, min(each, size - begin), inputs, first)  # type: ignore[operator]
        out, log = _in_parts(b, dims, rest, part, factor, place, with_log)
        outs.append(out)
        logs.append(log)
    out = b.concat(outs, dims.out.index(letter))
    return out, b.concat(logs, dims.scores.index(letter)) if with_log else None  # type: ignore[arg-type]


def _attend(
    b: GraphBuilder, dims: Dims, q: T, k: T, v: T, attn_mask: T | None, factor: float, first: int | None, with_log: bool
) -> tuple[T, T | None]:
    """(The result [dims.out], logsumexp [dims.scores but n] or None). `first` is the place of the first query if it matters what is before it."""
    d = compute_dtype(q.dtype)
    keys = k.shape[2]
    if q.dtype == torch.bfloat16 and not isinstance(keys, int) and not (isinstance(q.shape[-2], int) and q.shape[-2] < FEW_QUERIES):
        dims = dims.in_blocks
        k, v = (_cut(b, x, 2, keys) for x in (k, v))
        attn_mask = attn_mask if attn_mask is None else _cut_mask(b, attn_mask, keys)
    scores = scores_of(b, dims, q, k, attn_mask, factor, first, keys)
    extents = dict(zip(dims.q, q.shape)) | dict(zip(dims.k, k.shape))
    # A query that may see no key gets zeros.
    over = [dims.scores.index(c) for c in dims.keys]
    top = finite_max(b, scores, over, d)
    exp = softmax_exp(k.dtype)
    power = b.pointwise(scores.shape, [scores, top], d, d, d, lambda u, m: exp(arith.subf(u, m)))
    total = b.reduce(power, over, "add", True, d)
    weights = b.convert(power, k.dtype)
    extents["d"] = v.shape[-1]
    out = b.contract(weights, v, (dims.scores, dims.k, dims.out), tuple(extents[c] for c in dims.out))
    # One division for a row, where its elements are fewest.
    one = lambda t: arith.select(s.eq(d, t, scalar(d, 0)), scalar(d, 1), t)  # noqa: E731
    inverse = b.pointwise(total.shape, [total], d, d, d, lambda t: arith.divf(scalar(d, 1), one(t)))
    inverse = b.reshape(inverse, (*q.shape[:-1], 1))
    out = b.pointwise(out.shape, [out, b.permute(inverse, dims.to_out)], d, d, k.dtype, arith.mulf)
    if not with_log:
        return out, None
    # 0 for a query that may see no key, as in ATen: its gradient is exp(-inf - 0) = 0 then, not exp(-inf + inf) = NaN.
    return out, b.pointwise(total.shape, [total, top], d, d, d, lambda t, m: arith.addf(math.log(one(t)), m))


def _cut(b: GraphBuilder, x: T, dim: int, keys: Extent) -> T:
    """With the keys in blocks, the last one with zeros behind it; a dim of size one stays for all of them."""
    shape = x.shape
    if same(shape[dim], 1):
        return b.reshape(x, (*shape[:dim], 1, 1, *shape[dim + 1 :]))
    blocks = FloorDiv(keys + KEYS - 1, KEYS)
    x = b.pad(x, [0] * x.rank, [KEYS * blocks - keys if d == dim else 0 for d in range(x.rank)], 0)
    return b.reshape(x, (*shape[:dim], blocks, KEYS, *shape[dim + 1 :]))


def _cut_mask(b: GraphBuilder, mask: T, keys: Extent) -> T:
    """In blocks, with -inf behind the last key. It is stored: what reads it knows the number of blocks, not that of keys, and takes turns with
    the products then (`passes.numbered`)."""
    last = mask.rank - 1
    cut = _cut(b, mask, last, keys)
    if same(mask.shape[last], 1):
        return cut
    there = lambda at, u: arith.select(_is_key(b, at, last + 1, keys), u, scalar(mask.dtype, float("-inf")))  # noqa: E731
    out = b.from_indices(cut.shape, [cut], mask.dtype, there)
    out.value.owner.attributes["mlirc.stored"] = ir.StringAttr.get("cut in blocks of keys before it is read")
    return out


def _number(at: Any, dim: int) -> Any:
    """Of a key, whose place in its block is `dim`."""
    return arith.addi(arith.muli(at[dim - 1], builders.index(KEYS)), at[dim])


def _is_key(b: GraphBuilder, at: Any, dim: int, keys: Extent) -> Any:
    """Whether a place in the blocks is before the last key."""
    return arith.cmpi(arith.CmpIPredicate.slt, _number(at, dim), b.index(keys))


def scores_of(b: GraphBuilder, dims: Dims, q: T, k: T, attn_mask: T | None, factor: float, first: int | None, keys: Extent) -> T:
    """What the softmax is of, [dims.scores]: -inf where a query may not see a key, or there is none. `first` as in `_attend`."""
    d = compute_dtype(q.dtype)
    extents = dict(zip(dims.q, q.shape)) | dict(zip(dims.k, k.shape))
    scores = b.contract(q, k, (dims.q, dims.k, dims.scores), tuple(extents[c] for c in dims.scores))
    scores = b.pointwise(scores.shape, [scores], d, d, d, lambda u: arith.mulf(u, scalar(d, factor)))
    if attn_mask is not None:
        scores = b.pointwise(scores.shape, [scores, attn_mask], d, d, d, arith.addf)
    cut = dims.keys == "cn"
    # A mask of blocks knows where there is no key.
    ends = cut and (attn_mask is None or same(attn_mask.shape[-1], 1))
    if first is None and not ends:
        return scores
    query, key = dims.scores.find("m"), dims.scores.index("n")

    def seen(at: Any, u: Any) -> Any:
        number = _number(at, key) if cut else at[key]
        conditions = [_is_key(b, at, key, keys)] if ends else []
        if first is not None:
            row = builders.index(0) if query < 0 else arith.addi(at[query], builders.index(first)) if first else at[query]
            conditions.append(arith.cmpi(arith.CmpIPredicate.sle, number, row))
        return arith.select(functools.reduce(arith.andi, conditions), u, scalar(d, float("-inf")))

    return b.from_indices(scores.shape, [scores], d, seen)


def part_of(b: GraphBuilder, dims: Dims, letter: str, begin: int, n: int, inputs: Inputs, first: int | None) -> tuple[Inputs, int | None]:
    """Of the dim with this letter `n` from `begin` on: q, k, v and the mask, and the place of the first query (as in `_attend`).

    Queries read the keys that they see, and all of an unknown number, of which the scores hide some.
    """
    q, k, v, mask = inputs
    if letter == "m":
        keys = k.shape[2] if first is None or not isinstance(k.shape[2], int) else min(first + begin + n, k.shape[2])
        mask = None if mask is None else some_of(b, some_of(b, mask, -2, begin, n), -1, 0, keys)
        return (some_of(b, q, -2, begin, n), some_of(b, k, -2, 0, keys), some_of(b, v, -2, 0, keys), mask), None if first is None else first + begin
    at = dims.q.index(letter)
    if mask is not None and mask.rank >= len(dims.scores) - at:
        mask = some_of(b, mask, at - len(dims.scores), begin, n)
    return (some_of(b, q, at - len(dims.q), begin, n), some_of(b, k, at - 4, begin, n), some_of(b, v, at - 4, begin, n), mask), first


def some_of(b: GraphBuilder, x: T, dim: int, begin: int, n: Any) -> T:
    """`n` of a dim that has more, which is counted from the last; a dim of size one is for all of them."""
    size, at = x.shape[dim], x.rank + dim
    if same(size, 1) or same(size, n):
        return x
    return b.slice(x, [begin if i == at else 0 for i in range(x.rank)], [n if i == at else s for i, s in enumerate(x.shape)], [1] * x.rank)


def grouped(b: GraphBuilder, mask: T | None, groups: tuple[Any, Any], dims: Dims) -> T | None:
    """A mask with the dim of its heads split as that of the queries is."""
    if mask is None or mask.rank < 3:
        return mask
    batch, heads, *rest = mask.shape
    if dims is _ONE_QUERY:
        return mask if same(heads, 1) else b.reshape(mask, (batch, *groups, rest[-1]))
    return b.reshape(mask, (batch, *((1, 1) if same(heads, 1) else groups), *rest))


def parts_of(node: Any, dropout_p: float, is_causal: bool, first: int = 0) -> list[tuple[str, int]]:
    """The dims that are taken in parts, by their letters in `Dims`, and how many of each at a time; none where all are taken at once. The
    node's arguments from `first` on are q, k and v.

    Raises Unsupported where the kernel stays ATen's. That scores of symbolic sizes keep to the limit of each part becomes a guard of the graph.
    """
    q, k, v = (argument.meta["val"] for argument in node.args[first : first + 3])
    if dropout_p:
        raise Unsupported("attention with dropout is ATen's")
    if k.shape[1] != v.shape[1]:
        raise Unsupported("attention with more heads of keys than of values is ATen's")
    if q.shape[1] != k.shape[1] and not (isinstance(q.shape[1], int) and isinstance(k.shape[1], int) and k.shape[1]):
        raise Unsupported("attention with an unknown number of heads is ATen's")
    if not isinstance(q.shape[3], int):
        raise Unsupported("attention with heads of unknown size is ATen's")
    scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    # Parts are right for fewer scores, too, and no guard has to say that there are more.
    if hint(scores) <= MAX_SCORES and scores <= MAX_SCORES:
        return []
    known = isinstance(scores, int)
    if known and scores > MAX_SCORES * MOST_PARTS:
        raise Unsupported(f"attention over more than {MAX_SCORES * MOST_PARTS} scores is ATen's flash kernel, which does not keep them")
    wanted = min(-(-(scores if known else GROWTH * hint(scores)) // MAX_SCORES), MOST_PARTS)
    heads = "h" if q.shape[1] == k.shape[1] else "g"
    dims = [("b", q.shape[0], 1), (heads, k.shape[1], TOGETHER), ("m", q.shape[2], 1)]
    if known and is_causal and k.shape[2] > MANY_KEYS:
        dims.insert(0, ("m", q.shape[2], -(-q.shape[2] // KERNELS)))
    out: dict[str, int] = {}
    made = 1
    for dim, size, least in dims:
        if dim in out or not isinstance(size, int):
            continue
        each = max(-(-size // min(wanted, size)), min(least, size))
        if each < size:
            count = -(-size // each)
            out[dim], made, wanted = each, made * count, -(-wanted // count)
    if scores > made * MAX_SCORES:
        queries = f"{q.shape[2]} queries" if known else "unknown sizes"
        raise Unsupported(f"attention over more than {MAX_SCORES} scores of {queries} is ATen's flash kernel, which does not keep them")
    return list(out.items())
