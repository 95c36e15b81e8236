"""Attention and softmax where some rows see nothing."""

from __future__ import annotations

from ..choices import Choices
from ..program import Program, Value
from .rules import axis, rule

INF = "float('-inf')"


def mask(p: Program, c: Choices, rows: str, columns: str, dtype: object) -> str:
    """A boolean or additive mask of rows x columns, as an expression; rows may be masked from end to end."""
    ones = f"torch.ones({rows}, {columns}, dtype=torch.bool)"
    given = [v for v in p.values if str(v.dtype) == "torch.bool" and v.dim == 2]
    seen = [
        f"{ones}.tril()", f"{ones}.tril(-{1 + c.below(3)})", f"{ones}.triu({c.below(4)})", f"{ones}.tril({columns} - {rows})", f"(torch.arange({columns}) < {c.below(4)})", f"(torch.arange({rows})[:, None] > {c.below(4)}).expand({rows}, {columns})",
        f"torch.zeros({rows}, {columns}, dtype=torch.bool)", f"((torch.arange({columns}) + torch.arange({rows})[:, None]) % {2 + c.below(3)} == 0)",
    ]  # fmt: skip
    if given:
        seen.append(str(given[-1]))
    s = c.pick(seen)
    if c.chance(2):
        return s
    return c.pick((f"torch.zeros({rows}, {columns}, dtype={dtype}).masked_fill(~{s}, {INF})", f"torch.where({s}, 0.5, {INF}).to({dtype})", f"(~{s}).to({dtype}) * -10000.0", f"torch.zeros({rows}, {columns}, dtype={dtype}).masked_fill({s}.logical_not(), torch.finfo({dtype}).min)"))


@rule(4)
def masked_attention(p: Program, c: Choices) -> bool:
    """Queries and keys of one value or of two, as many or not."""
    v = p.value(c, lambda v: v.floating and v.dim in (3, 4) and v.numel > 0)
    if v is None:
        return False
    fits = lambda w: w.dtype == v.dtype and w.dim == v.dim and all((*a.shape[:-2], a.shape[-1]) == (*b.shape[:-2], b.shape[-1]) for a, b in zip(v.tensors, w.tensors))  # noqa: E731
    w = p.value(c, lambda w: w is not v and fits(w))
    k = str(w) if w is not None and c.chance(2) else c.pick(("{v}", "{v}[..., 1:, :]", "{v}[..., :1, :]", "{v}[..., ::2, :]", "torch.cat([{v}, {v} * 0.5], -2)", "{v}.flip(-2)")).format(v=v)
    q = str(v)
    if c.chance(3):
        q, k = k, q
    if v.dim == 4 and c.chance(4):  # several heads of queries to one of keys
        q, k = f"torch.cat([{q}, {q} * 2], 1)", k if c.chance(2) else f"{k}[:, :1]"
        seen = mask(p, c, f"{q}.shape[-2]", f"{k}.shape[-2]", v.dtype)
        return p.add(f"F.scaled_dot_product_attention({q}, {k}, {k} * 2, {c.pick(('is_causal=True', f'attn_mask={seen}'))}, enable_gqa=True)")
    value = c.pick(("{k}", "{k}[..., :1]", "{k} * 2", "torch.cat([{k}, {k}], -1)")).format(k=k)
    rows, columns = f"{q}.shape[-2]", f"{k}.shape[-2]"
    rest = c.pick((f"attn_mask={mask(p, c, rows, columns, v.dtype)}", "is_causal=True", f"attn_mask={mask(p, c, rows, columns, v.dtype)}, scale=0.25", f"attn_mask={mask(p, c, rows, columns, v.dtype)}[None]"))
    if c.chance(3):
        m = mask(p, c, rows, columns, v.dtype)
        scores = f"({q} @ {k}.mT / 4)"
        scores = f"{scores}.masked_fill(~{m}, {INF})" if "finfo" not in m and INF not in m and "-10000" not in m else f"({scores} + {m})"
        return p.add(f"{scores}.softmax(-1) @ ({value})") or p.add(f"{scores}.softmax(-1).nan_to_num() @ ({value})")
    return p.add(f"F.scaled_dot_product_attention({q}, {k}, {value}, {rest})")


def rows_of(p: Program, c: Choices, v: Value, d: int) -> str:
    """v with -inf here and there, some rows (along d) from end to end."""
    n = f"{v}.shape[{d}]"
    return c.pick(
        (
            f"{v}.masked_fill({v} > 0, {INF})", f"{v}.masked_fill({v}.amax({d}, keepdim=True) > 1, {INF})", f"torch.where(torch.arange({v}.shape[-1]) < 2, {INF}, {v})", f"({v} * 0 + {INF})",
            f"({v} + torch.zeros({n}, dtype={v.dtype}).fill_({INF}).unsqueeze(-1))" if v.dim > 1 else f"{v}.masked_fill({v} < 1, {INF})", f"{v}.masked_fill({v} == {v}.amin({d}, keepdim=True), {INF})",
            f"torch.cat([{v}, {v} * 0 + {INF}], {d - 1 if v.dim > 1 else 0})", f"F.pad({v}, (1, 2), value={INF})",
        )
    )  # fmt: skip


@rule(4)
def masked_rows(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: v.floating and v.dim > 0)
    if v is None:
        return False
    d = axis(c, v)
    x = rows_of(p, c, v, d)
    options = [
        "{x}.softmax({d})", "{x}.log_softmax({d})", "torch.logsumexp({x}, {d})", "{x}.softmax({d}) @ {v}" if v.dim >= 2 else "{x}.softmax({d}) * {v}", "torch.logsumexp({x}, {d}, keepdim=True) + {v}", "F.softmin(-{x}, {d})",
        "{x}.amax({d})", "torch.exp({x} - torch.logsumexp({x}, {d}, keepdim=True))", "torch.logaddexp({x}, {v})", "({x} - {x}.amax({d}, keepdim=True)).exp().sum({d})", "torch.logcumsumexp({x}, {d})", "F.cross_entropy({x}, {v}.argmax(-1), reduction='none')" if v.dim == 2 else "{x}.sigmoid()",
        "torch.cummax({x}, {d})[0]", "{x}.max({d}).indices", "F.max_pool1d({x}, 2)" if v.dim in (2, 3) else "{x}.argmin({d})",
    ]  # fmt: skip
    y = c.pick(options).format(x=x, v=v, d=d)
    # Only wild programs have what is not finite in their values.
    return p.add(y) or p.add(c.pick((f"({y}).nan_to_num(0.5, 2.0, -2.0)", f"torch.where(({y}).isfinite(), {y}, 0.0)", f"({y}).exp().nan_to_num()")))


@rule(1)
def mask_value(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: v.dim >= 1)
    return v is not None and p.add(mask(p, c, f"{v}.shape[0]", f"{v}.shape[-1]", "torch.float32"))
