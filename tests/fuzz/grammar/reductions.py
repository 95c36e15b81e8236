"""Reductions, scans, norms and softmax."""

from __future__ import annotations

from ..choices import Choices
from ..program import Program
from .rules import DTYPES, axes, axis, rule


@rule(5)
def reduction(p: Program, c: Choices) -> bool:
    v = p.value(c)
    if not v.dim:
        return False
    # What Welford's method makes of infinities depends on the order: no rule has variances of them (`wild`).
    name = c.pick(("sum", "mean", "amax", "amin", "prod", "any", "all", "std", "var", "argmax", "argmin", "norm", "count_nonzero", "nansum", "logsumexp"))
    if p.wild and name in ("std", "var"):
        return False
    d, keep = axis(c, v), c.chance(2)
    several = axes(c, v)
    if name in ("sum", "mean", "amax", "amin", "var", "std", "any", "all", "nansum") and c.chance(2):
        return p.add(f"{v}.{name}({several}, keepdim={keep})")
    if name == "norm":
        return p.add(f"torch.linalg.vector_norm({v}, {c.pick(('2', '1', '3', '0.5', '0', 'torch.inf'))}, {several}, {keep})")
    if name == "count_nonzero":
        return p.add(f"torch.count_nonzero({v}, {d})")
    if name == "logsumexp":
        return p.add(f"torch.logsumexp({v}, {several}, {keep})")
    if name == "sum" and c.chance(4):
        return p.add(f"{v}.sum({d}, {keep}, dtype={c.pick(DTYPES)})")
    return p.add(f"{v}.{name}({d}, keepdim={keep})")


@rule(2)
def full_reduction(p: Program, c: Choices) -> bool:
    v = p.value(c)
    name = c.pick(("sum", "mean", "max", "min", "prod", "any", "all", "argmax", "argmin", "std", "var", "amax", "norm"))
    if p.wild and name in ("std", "var"):
        return False
    return p.add(f"{v}.{name}()")


@rule(2)
def with_index(p: Program, c: Choices) -> bool:
    v = p.value(c)
    if not v.dim:
        return False
    name = c.pick(("max", "min", "cummax", "cummin", "sort") if p.wild else ("max", "min", "var_mean", "std_mean", "cummax", "cummin", "sort"))
    return p.add(f"torch.{name}({v}, {axis(c, v)})", names=2)


@rule(2)
def scan(p: Program, c: Choices) -> bool:
    v = p.value(c)
    if not v.dim:
        return False
    name = c.pick(("cumsum", "cumprod", "logcumsumexp"))
    return p.add(f"torch.{name}({v}, {axis(c, v)})")


@rule(3)
def softmax(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: v.floating and v.dim > 0)
    if v is None:
        return False
    d = axis(c, v)
    return p.add(c.pick(("{v}.softmax({d})", "{v}.log_softmax({d})", "F.softmin({v}, {d})", "F.normalize({v}, dim={d})", "torch.softmax({v}, {d}, dtype=torch.float32)", "{v} / {v}.norm(dim={d}, keepdim=True)", "{v} - {v}.logsumexp({d}, keepdim=True)")).format(v=v, d=d))


@rule(3)
def normalisation(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: v.floating and v.dim > 0 and v.numel > 0)
    if v is None:
        return False
    if c.chance(2) and v.dim >= 2:
        channels = f"{v}.shape[1]"
        return p.add(
            c.pick(
                (
                    "F.batch_norm({v}, None, None, training=True)", "F.group_norm({v}, 1)", "F.instance_norm({v})",
                    "F.batch_norm({v}, torch.zeros({n}, dtype={t}), torch.ones({n}, dtype={t}) * 2)", "F.group_norm({v}, {n})",
                )
            ).format(v=v, n=channels, t=v.dtype)
        )  # fmt: skip
    n = 1 + c.below(min(v.dim, 2))
    shape = f"{v}.shape[{-n}:]"
    return p.add(c.pick(("F.layer_norm({v}, {s})", "F.rms_norm({v}, {s})", "F.layer_norm({v}, {s}, torch.ones({s}, dtype={t}) / 3, None)", "F.local_response_norm({v}, 2)")).format(v=v, s=shape, t=v.dtype))


@rule(1)
def loss(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: v.floating and v.dim > 0 and v.numel > 0)
    if v is None:
        return False
    return p.add(
        c.pick(
            (
                "F.mse_loss({v}, {v}.flip(0))", "F.l1_loss({v}, {v}.roll(1, 0))", "F.smooth_l1_loss({v}, {v}.flip(0))", "F.huber_loss({v}, {v} * 0.5)",
                "F.cross_entropy({v}, {v}.argmax(1))", "F.cross_entropy({v}, {v}.softmax(1))", "F.binary_cross_entropy_with_logits({v}, {v}.sigmoid())",
                "F.kl_div({v}.log_softmax(0), {v}.softmax(-1), reduction='sum')", "F.cosine_similarity({v}, {v}.flip(0), dim=-1)", "F.pairwise_distance({v}, {v} + 1)",
                "F.nll_loss({v}.log_softmax(1), {v}.argmax(1), reduction='none')",
            )
        ).format(v=v)
    )  # fmt: skip
