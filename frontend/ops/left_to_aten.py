"""Ops that have no lowering on purpose, with the reason that the user reads."""

from __future__ import annotations

from typing import Any

import torch

from ..registry import Unsupported, lowers

aten = torch.ops.aten

_RANDOM = "random numbers come from ATen's generator"
_ATTENTION = "attention stays ATen's flash kernel for now"
_SORTS = "sorting"
_SCANS = "running extrema and logarithms of sums"

REASONS: dict[Any, str] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _ATTENTION,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _ATTENTION,
    **dict.fromkeys(
        (aten.rand, aten.randn, aten.randint, aten.rand_like, aten.randn_like, aten.randint_like, aten.randperm, aten.bernoulli,
         aten.native_dropout, aten.multinomial, aten.normal, aten.uniform, aten.exponential, aten.normal_functional),
        _RANDOM,
    ),
    aten.masked_scatter: "what goes where depends on how many places before are masked",
    **dict.fromkeys((aten.sort, aten.topk, aten.argsort, aten.kthvalue, aten.median, aten.mode, aten.unique_dim), _SORTS),
    **dict.fromkeys((aten.logcumsumexp, aten.cummax, aten.cummin), _SCANS),
}  # fmt: skip


def _register(target: Any, reason: str) -> None:
    @lowers(target)
    def left(*_: Any, **__: Any) -> Any:
        raise Unsupported(reason)


for _target, _reason in REASONS.items():
    _register(_target, _reason)
