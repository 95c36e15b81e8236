"""Contractions, convolutions, pooling, padding, resampling."""

from __future__ import annotations

from ..choices import Choices
from ..program import Program, Value
from .rules import floating, rule


def matrix(v: Value) -> bool:
    return v.floating and v.dim >= 2


@rule(5)
def product(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: v.dim >= 1 and (v.floating or v.dim >= 2))
    if v is None:
        return False
    fits = lambda w: w.dtype == v.dtype and w.dim >= 1 and all(a.shape[-1] == b.shape[-2 if b.dim() > 1 else 0] for a, b in zip(v.tensors, w.tensors))  # noqa: E731
    w = p.value(c, fits)
    if w is not None and not c.chance(3):
        return p.add(f"{v} @ {w} / 4" if v.floating else f"{v} @ {w}")
    if v.dim < 2:
        return p.add(f"torch.dot({v}, {v}.flip(0))" if v.dim == 1 else f"{v} * 1")
    k = 1 + c.below(9)
    n = f"{v}.shape[-1]"
    if v.floating and v.fixed(v.dim - 1) and c.chance(3):
        weight = p.weight((k, v.size(v.dim - 1)), v.dtype, c.pick(("", " / 4")))
        return p.add(c.pick((f"F.linear({v}, {weight})", f"F.linear({v}, {weight}, {p.weight((k,), v.dtype)})")))
    return p.add(
        c.pick(
            (
                "{v} @ {v}.mT / 4", "{v}.mT @ {v} / 4", "torch.einsum('...ij,...kj->...ik', {v}, {v}) / 8",
                "torch.einsum('...ij->...ji', {v})", "F.linear({v}, {v}[..., 0, :].reshape(-1, {n})[:{k}]) / 4", "torch.einsum('...ij,...ij->...i', {v}, {v}) / 8", "torch.addmm({v}[0], {v}, {v}.mT @ {v}, alpha=0.1)",
                "torch.baddbmm({v}, {v} @ {v}.mT, {v}, beta=0.5, alpha=0.01)", "torch.einsum('...ij,...kj->...', {v}, {v}) / 64", "{v} @ {v}[..., 0, :].flatten()[:{n}] / 4", "torch.bmm({v}, {v}.mT) / 4", "torch.kron({v}, {v}[:2])",
                "torch.matmul({v}.unsqueeze(1), {v}.mT) / 4", "torch.tensordot({v}, {v}, ([0], [0])) / 8", "torch.cdist({v}, {v} * 0.5)",
            )
        ).format(v=v, k=k, n=n)
    )  # fmt: skip


@rule(3)
def convolution(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: v.floating and 2 <= v.dim <= 5 and v.fixed(1 if v.dim != 2 else 0) and v.size(1 if v.dim != 2 else 0) > 0)
    if v is None:
        return False
    # Without a batch, or with one.
    spatial = max(1, v.dim - 2)
    channels = v.size(v.dim - 1 - spatial)
    out = 1 + c.below(9)
    groups = c.pick((1, 1, channels))
    if groups > 1:
        out = groups * c.pick((1, 2))
    kernel = [c.pick((1, 3, 2)) for _ in range(spatial)]
    transposed = c.chance(4)
    shape = (channels, max(out // groups, 1), *kernel) if transposed else (out, channels // groups, *kernel)
    weight = p.weight(shape, v.dtype, c.pick(("", ".flip(0)", " / 4")))
    bias = c.pick(("None", "bias"))
    if bias == "bias":
        bias = p.weight((out,), v.dtype)
    extra = c.pick(("", ", padding=1", ", stride=2", ", padding=1, stride=2", ", dilation=2, padding=2", ", padding=2", ", stride=3") if not transposed else ("", ", padding=1", ", stride=2", ", stride=2, output_padding=1", ", stride=3, padding=1"))
    name = f"conv_transpose{spatial}d" if transposed else f"conv{spatial}d"
    return p.add(f"F.{name}({v}, {weight}, {bias}{extra}, groups={groups})")


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
