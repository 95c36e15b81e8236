"""`torch._foreach_*`, which optimizers call on all their parameters at once: the op on each tensor of the lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

_NAMED = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt "
    "sigmoid sign sin sinh sqrt tan tanh trunc add sub mul div pow lerp clamp_max clamp_min clone max"
).split()
_OPS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _NAMED},
    "zero": torch.zeros_like,
    "copy": aten.copy.default,
    "maximum": lambda x, y: torch.maximum(x, y) if isinstance(y, torch.Tensor) else torch.clamp(x, min=y),
    "minimum": lambda x, y: torch.minimum(x, y) if isinstance(y, torch.Tensor) else torch.clamp(x, max=y),
    "addcdiv": lambda x, a, b, value=1: torch.addcdiv(x, a, b, value=value),
    "addcmul": lambda x, a, b, value=1: torch.addcmul(x, a, b, value=value),
    "norm": lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
}


def _each(op: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        count = len(next(a for a in args if isinstance(a, (list, tuple))))

        def part(a: Any, i: int) -> Any:
            return a[i] if isinstance(a, (list, tuple)) else a

        return [op(*(part(a, i) for a in args), **{k: part(v, i) for k, v in kwargs.items()}) for i in range(count)]

    return run


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Of all functional overloads but those whose numbers are in a tensor (`addcdiv.Tensor`)."""
    out = {}
    for name, op in _OPS.items():
        packet = getattr(aten, "_foreach_" + name)
        for overload in packet.overloads():
            found = getattr(packet, overload)
            numbers_in_tensor = overload == "Tensor" and name.startswith("addc")
            if not found._schema.is_mutable and not numbers_in_tensor:
                out[found] = _each(op)
    return out
