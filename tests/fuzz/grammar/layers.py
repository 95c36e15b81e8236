"""Pooling, padding, resampling, attention."""

from __future__ import annotations

from ..choices import Choices
from ..program import Program
from .rules import floating, rule


@rule(3)
def pooling(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: v.floating and v.dim >= 2)
    if v is None:
        return False
    n = min(max(v.dim - 2, 1), 2)
    x = str(v) if v.dim <= 4 else f"{v}.flatten(0, {v.dim - 4})"
    k = 1 + c.below(3)
    s = 1 + c.below(3)
    return p.add(
        c.pick(
            (
                "F.max_pool{n}d({x}, {k})", "F.avg_pool{n}d({x}, {k})", "F.max_pool{n}d({x}, {k}, {s}, {p})", "F.avg_pool{n}d({x}, {k}, {s}, {p})", "F.adaptive_avg_pool{n}d({x}, {k})", "F.max_pool{n}d({x}, {k}, {s}, ceil_mode=True)",
                "F.avg_pool{n}d({x}, {k}, {s}, {p}, count_include_pad=False)", "F.max_pool{n}d({x}, 2, 1, dilation=2)", "F.avg_pool{n}d({x}, {k}, {s}, ceil_mode=True)", "F.adaptive_max_pool{n}d({x}, {k})", "F.lp_pool{n}d({x}, 2, {k})",
            )
        ).format(n=n, x=x, k=k, s=s, p=k // 2)
    )  # fmt: skip


@rule(3)
def padding(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: v.dim >= 1)
    if v is None:
        return False
    a, b, d = c.below(4), c.below(3), c.below(3) - 1
    options = [f"F.pad({v}, ({a}, {b}))", f"F.pad({v}, ({a}, {b}), value=1)", f"F.pad({v}, ({d}, {b}))"]
    if v.dim >= 2:
        options += [f"F.pad({v}, ({a}, {b}, {d}, {a}))", f"F.pad({v}, ({a}, {b}), mode='reflect')", f"F.pad({v}, ({a}, {b}), mode='replicate')", f"F.pad({v}, ({a}, {b}), mode='circular')", f"F.pad({v}, (0, 0, {a}, {b}), value=-2)"]
    if v.dim >= 3:
        options += [f"F.pad({v}, ({a}, {b}, 1, {a}), mode='reflect')", f"F.pad({v}, ({a}, {b}, 1, {a}), mode='replicate')"]
    return p.add(c.pick(options))


@rule(2)
def resampling(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: v.floating and 3 <= v.dim <= 5 and v.numel > 0)
    if v is None:
        return False
    k = 1 + c.below(9)
    linear = {3: "linear", 4: "bilinear", 5: "trilinear"}[v.dim]
    options = [f"F.interpolate({v}, scale_factor=2)", f"F.interpolate({v}, {k})", f"F.interpolate({v}, {k}, mode='{linear}')", f"F.interpolate({v}, scale_factor=1.5, mode='{linear}')", f"F.interpolate({v}, {k}, mode='{linear}', align_corners=True)", f"F.interpolate({v}, scale_factor=0.7)", f"F.interpolate({v}, {k}, mode='nearest-exact')"]
    if v.dim == 4:
        options += [f"F.pixel_shuffle({v}, 2)", f"F.pixel_unshuffle({v}, 2)", f"F.unfold({v}, {1 + c.below(3)}, padding=1)", f"F.interpolate({v}, {k}, mode='bicubic')", f"F.channel_shuffle({v}, 2)", f"F.interpolate({v}, ({k}, 3), mode='bilinear', antialias=True)"]
    return p.add(c.pick(options))


@rule(1)
def attention(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: floating(v) and v.dim in (3, 4) and v.numel > 0)
    if v is None:
        return False
    return p.add(c.pick((f"F.scaled_dot_product_attention({v}, {v}, {v})", f"torch.softmax({v} @ {v}.mT / 4, -1) @ {v}", f"F.scaled_dot_product_attention({v}, {v}, {v}, is_causal=True)")))
