"""Ops that have no lowering on purpose, with the reason that the user reads."""

from __future__ import annotations

from typing import Any

import torch

from ..random import DECOMPOSITIONS
from ..registry import Unsupported, lowers

aten = torch.ops.aten

_ATTENTION = "attention stays ATen's flash kernel for now"
_SORTS = "sorting"
_SCANS = "running extrema and logarithms of sums"

REASONS: dict[Any, str] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _ATTENTION,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _ATTENTION,
    # The token that orders such ops passes through the calls.
    torch.ops.higher_order.with_effects: "an op with effects, such as the check of a decomposition's errors",
    aten.randperm: "a permutation: ATen swaps elements one after the other",
    aten.multinomial: "each draw searches running sums of probabilities, or depends on the draws before",
    aten.masked_scatter: "what goes where depends on how many places before are masked",
    **dict.fromkeys((aten.sort, aten.topk, aten.argsort, aten.kthvalue, aten.median, aten.mode, aten.unique_dim), _SORTS),
    **dict.fromkeys((aten.logcumsumexp, aten.cummax, aten.cummin), _SCANS),
}  # fmt: skip


RANDOM = tuple({op.overloadpacket for op in DECOMPOSITIONS} | {aten.rand, aten.randn, aten.randint, aten.normal, aten.random})


@lowers(*RANDOM)
def left_random(b: Any, node: Any, *_: Any, **kwargs: Any) -> Any:
    if kwargs.get("generator") is not None:
        raise Unsupported("random numbers of a generator that the call names")
    if node.target in DECOMPOSITIONS:
        raise Unsupported('random numbers come from ATen with the option rng="aten"')
    raise Unsupported("random numbers of a dtype, or over a range, that only ATen has")


def _register(target: Any, reason: str) -> None:
    @lowers(target)
    def left(*_: Any, **__: Any) -> Any:
        raise Unsupported(reason)


for _target, _reason in REASONS.items():
    _register(_target, _reason)
