"""Products and convolutions: of the small tensors that other rules make, and as wide as the layers of models."""

from __future__ import annotations

from ..choices import Choices
from ..program import Program
from .rules import rule

WIDTHS = (16, 3, 32, 17, 64, 33, 8, 48, 100, 130, 257)
"""Of layers: register tiles, two and more of them, and one more or less than that."""
ACTIVATIONS = ("{}", "F.relu({})", "F.gelu({})", "F.silu({})", "F.hardswish({})", "{} * 0.5 + 1", "{}.mT", "{}.float()", "torch.tanh({})", "{}.sum(-1)", "{}.softmax(-1)")


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
def wide_product(p: Program, c: Choices) -> bool:
    """A layer's product, what comes behind it in the same line."""
    v = p.value(c, lambda v: v.floating and v.dim >= 2 and v.fixed(v.dim - 1) and v.size(v.dim - 1) > 0)
    if v is None:
        return False
    n, k = c.pick(WIDTHS), v.size(v.dim - 1)
    how = c.pick(("F.linear({v}, {w})", "F.linear({v}, {w}, {b})", "{v} @ {t}", "torch.addmm({b}, {v}, {t})", "{v} @ {t} + {b}", "torch.einsum('...i,ji->...j', {v}, {w})", "({w} @ {v}.mT)"))
    w = p.weight((n, k), v.dtype, " / 8") if "{w}" in how else ""
    t = p.weight((k, n), v.dtype, " / 8") if "{t}" in how else ""
    b = p.weight((n,), v.dtype) if "{b}" in how else ""
    return p.add(c.pick(ACTIVATIONS).format(how.format(v=v, w=w, t=t, b=b)))


@rule(2)
def wide_convolution(p: Program, c: Choices) -> bool:
    """A layer's convolution: many channels in or out, groups of several, kernels up to seven."""
    v = p.value(c, lambda v: v.floating and 3 <= v.dim <= 5 and v.fixed(1) and v.size(1) > 0)
    if v is None:
        return False
    channels, spatial = v.size(1), v.dim - 2
    groups = c.pick([1, 1, *(g for g in (2, 4, 8, 16) if channels % g == 0)])
    out = -(-c.pick(WIDTHS) // groups) * groups
    kernel = [c.pick((1, 3, 3, 5, 7, 2)) for _ in range(spatial)]
    transposed = c.chance(6)
    shape = (channels, out // groups, *kernel) if transposed else (out, channels // groups, *kernel)
    weight = p.weight(shape, v.dtype, " / 8")
    bias = p.weight((out,), v.dtype) if c.chance(2) else "None"
    padding = tuple(n // 2 for n in kernel)
    extra = c.pick((f"padding={padding}", "padding=0", f"padding={padding}, stride=2", "stride=2", f"padding={padding}, dilation=2") if not transposed else ("padding=0", "stride=2", "stride=2, padding=1"))
    name = f"conv_transpose{spatial}d" if transposed else f"conv{spatial}d"
    return p.add(c.pick(ACTIVATIONS).format(f"F.{name}({v}, {weight}, {bias}, {extra}, groups={groups})"))
