"""Which ATen ops AOTAutograd takes apart while it traces."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from . import quantized
from .own_decompositions import OWN
from .refusals import unless_refused

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
    from torch._decomp import _core_aten_decompositions_post_autograd, get_decompositions

    from . import ops, random  # noqa: F401  (fills LOWERINGS)
    from .registry import LOWERINGS

    kept = {getattr(packet, overload) for packet in KEEP for overload in packet.overloads()}
    # Without the composite ops, which the dispatcher takes apart by itself: to look for them among all ops takes 0.1 s.
    table = dict(_core_aten_decompositions_post_autograd())
    table.update(get_decompositions(EXTRA))
    table.update(OWN)
    for op, f in random.DECOMPOSITIONS.items():
        if rng == "native":
            table[op] = f
        else:
            table.pop(op, None)
    lowered = LOWERINGS.keys() - random.DECOMPOSITIONS.keys() - OWN.keys()
    table = {op: f for op, f in table.items() if op not in lowered and op not in kept}
    return {op: unless_refused(op, _in_own_memory(f) if _makes_tensors(op) else f) for op, f in table.items()}


def _makes_tensors(op: Any) -> bool:
    """Whether the results of an op are never views of what it is given, by its schema."""
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    return not composite and not any(a.alias_info for a in (*op._schema.arguments, *op._schema.returns))


def _in_own_memory(f: Callable[..., Any]) -> Callable[..., Any]:
    """Of a decomposition that may end in a view (a shuffle of one channel a group) where the op itself always copies."""

    @functools.wraps(f)
    def decomposition(*args: Any, **kwargs: Any) -> Any:
        results = f(*args, **kwargs)
        given = {_memory(x) for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        return pytree.tree_map_only(torch.Tensor, lambda x: x.clone() if _memory(x) in given else x, results)

    return decomposition


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata
