"""What a module keeps between calls: weights of layers, and buffers that they update. Nothing of it for plain functions."""

from __future__ import annotations

from ..choices import Choices
from ..program import Program
from ..state import TIED
from .rules import rule


@rule(4)
def layer(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: v.floating and v.dim >= 1 and v.fixed(v.dim - 1) and v.size(v.dim - 1) > 0)
    if v is None or p.kept is None:
        return False
    n, t = v.size(v.dim - 1), v.dtype
    k = c.pick((5, 1, 3, 8, 16, 17, 33, 40))
    kind = c.below(7)
    if kind <= 1:
        w = p.weight((k, n), t)
        return p.add(c.pick((f"F.linear({v}, {w}) / 4", f"F.linear({v}, {w}, {p.weight((k,), t)}) / 4", f"torch.relu(F.linear({v}, {w} / 4))", f"{v} @ {w}.t() / 4", f"F.linear({v}, {w} * {p.weight((k, 1), t)}) / 8", f"F.linear({v}, {w}.softmax(-1))")))
    if kind == 2:
        w = p.weight((n, k), t)
        return p.add(c.pick((f"{v} @ {w} / 4", f"({v} @ {w}).reshape(-1) + 1", f"{v} @ torch.cat([{w}, {w}.flip(0)], 1) / 4", f"{v} @ ({w} + {w}.mean(0)) / 4")))
    if kind == 3:
        return p.add(c.pick((f"F.layer_norm({v}, ({n},), {p.weight((n,), t)}, {p.weight((n,), t)})", f"F.rms_norm({v}, ({n},), {p.weight((n,), t)})", f"{v} * {p.weight((n,), t)} + {p.weight((1,), t)}")))
    if kind == 4:
        table = p.weight((k, n), t)
        return p.add(c.pick((f"{v} + {table}[{c.below(k)}]", f"F.embedding(torch.arange(4) % {k}, {table}) @ {v}.mT / 4", f"{v} @ {table}[torch.tensor([0, -1])].mT / 4", f"{table}.index_select(0, torch.tensor([0, 0]))")))
    if kind == 5:
        scale = p.weight((), t)
        return p.add(c.pick((f"{v} * {scale}", f"{v} * torch.exp(-{scale}.abs())", f"torch.where({scale} > 0, {v}, -{v})", f"{v} + {scale}.to(torch.float32)")))
    channels = v.size(1) if v.dim > 1 and v.fixed(1) else 0
    if not channels:
        return False
    mean, var = p.weight((channels,), t, parameter=False), p.weight((channels,), t, ".abs() + 1", parameter=False)
    return p.add(f"F.batch_norm({v}, {mean}, {var}, training={c.chance(2)}, momentum={c.pick(('0.1', '1.0'))})")


@rule(2)
def buffer_update(p: Program, c: Choices) -> bool:
    """A buffer that a call changes, and that the next one finds changed."""
    v = p.value(c, lambda v: v.dim >= 1 and v.fixed(v.dim - 1) and v.size(v.dim - 1) > 0)
    if v is None or p.kept is None:
        return False
    b = p.weight((v.size(v.dim - 1),), v.dtype, parameter=False)
    x = v.name + ".detach()"
    last = f"{x}.reshape(-1, {x}.shape[-1])"
    done = p.change(c.pick(("{b}.add_(1)", "{b}.copy_({l}[-1])", "{b}.mul_(0.5).add_({l}.sum(0) * 0.1)", "{b}[:1] += {l}[0, 0]", "{b}.copy_({b}.roll(1))", "{b}.lerp_({l}.mean(0), 0.25)", "{b}.index_add_(0, torch.tensor([0, 0]), {b}[:1].repeat(2))", "{b}.zero_()")).format(b=b, l=last))
    return p.add(c.pick((f"{v} + {b}", f"{v} * {b}", f"{b} * 2"))) or done


@rule(1)
def kept_value(p: Program, c: Choices) -> bool:
    """A weight of its own, or one in the memory of another."""
    if p.kept is None:
        return False
    if p.weights and c.chance(2):
        return p.keep(c.pick(TIED).format(c.pick(p.weights).name), parameter=c.chance(2))
    dtype = c.pick(("torch.float32", "torch.bfloat16", "torch.int64", "torch.float64", "torch.bool"))
    shape = c.pick(("(5, 3)", "(33, 17)", "(7,)", "()", "(2, 3, 4)", "(64, 16)"))
    return p.keep(f"tensor({shape}, {dtype}, SEED)", parameter="float" in dtype and c.chance(2))
