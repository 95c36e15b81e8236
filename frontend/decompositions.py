"""Which ATen ops AOTAutograd takes apart while it traces."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import quantized
from .own_decompositions import OWN

aten = torch.ops.aten

# Kept whole: attention's kernel is one op, others have lowerings of their own.
KEEP: tuple[Any, ...] = (
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten.embedding_dense_backward,
    aten.index_add,
    aten.index_copy,
    aten._unsafe_index_put,
)

# Not among the core ones, but better in parts.
EXTRA: tuple[Any, ...] = (
    aten.upsample_bicubic2d.vec,
    aten.upsample_bicubic2d.default,
    aten.grid_sampler_2d,
    aten._fused_rms_norm,
    aten._fused_rms_norm_backward,
    aten._fused_dropout,
    aten.logcumsumexp,
    aten.tril_indices,
    aten.triu_indices,
    aten.native_batch_norm_backward,
    aten.dist,
    aten.rrelu_with_noise_backward,
    aten.nanmedian,
    aten.addmv,
    aten._batch_norm_with_update_functional,
    aten.batch_norm_backward,
)


def decompositions(rng: str = "native") -> dict[Any, Callable[..., Any]]:
    """The table for `aot_autograd(decompositions=...)`: the core ATen one without what we lower as it is.

    `rng` is the option: with "aten", random ops stay whole.
    """
    return {**_table(rng), **quantized.decompositions()}


@functools.cache
def _table(rng: str) -> dict[Any, Callable[..., Any]]:
    from torch._decomp import core_aten_decompositions, get_decompositions

    from . import ops, random  # noqa: F401  (fills LOWERINGS)
    from .registry import LOWERINGS

    kept = {getattr(packet, overload) for packet in KEEP for overload in packet.overloads()}
    table = dict(core_aten_decompositions().items())
    table.update(get_decompositions(EXTRA))
    table.update(OWN)
    for op, f in random.DECOMPOSITIONS.items():
        if rng == "native":
            table[op] = f
        else:
            table.pop(op, None)
    lowered = LOWERINGS.keys() - random.DECOMPOSITIONS.keys()
    return {op: f for op, f in table.items() if op not in lowered and op not in kept}
