"""Whether two results are the same, by the rules of Inductor's own OpInfo test."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree


class Differs(AssertionError):
    """The text says where and by how much."""


def compare(what: str, got: Any, expected: Any, tolerance: tuple[float, float] | None, values: bool = True) -> None:
    """Raises Differs unless both trees hold the same: structure, types, shapes, dtypes, and values if those count.

    `tolerance` is (rtol, atol) for floating-point and complex tensors; NaNs are equal.
    """
    g_leaves, g_tree = pytree.tree_flatten(got)
    e_leaves, e_tree = pytree.tree_flatten(expected)
    if len(g_leaves) != len(e_leaves):
        raise Differs(f"{what}: {len(g_leaves)} values instead of {len(e_leaves)}")
    for i, (g, e) in enumerate(zip(g_leaves, e_leaves)):
        _one(f"{what} {i}" if len(e_leaves) > 1 else what, g, e, tolerance, values)


def _one(what: str, g: Any, e: Any, tolerance: tuple[float, float] | None, values: bool) -> None:
    if not isinstance(e, torch.Tensor):
        same = type(g) is type(e) and (not values or g == e or (g != g and e != e))
        if not same and not (isinstance(e, float) and isinstance(g, float) and abs(g - e) <= 1e-7 * abs(e)):
            raise Differs(f"{what}: {g!r} instead of {e!r}")
        return
    if not isinstance(g, torch.Tensor):
        raise Differs(f"{what}: a {type(g).__name__} instead of a tensor")
    if (g.dtype, g.shape, g.layout) != (e.dtype, e.shape, e.layout):
        raise Differs(f"{what}: {g.dtype}{list(g.shape)} instead of {e.dtype}{list(e.shape)}")
    if not values:
        return
    inexact = e.is_floating_point() or e.is_complex()
    rtol, atol = tolerance if tolerance is not None and inexact else (None, None)
    if tolerance is not None and not inexact and e.dtype == torch.uint8 and tolerance[1] >= 1:
        rtol, atol = tolerance
    if e.is_quantized:
        g, e = g.dequantize(), e.dequantize()
    try:
        torch.testing.assert_close(g.detach(), e.detach(), rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        text = " ".join(str(error).split())
        raise Differs(f"{what}: {text}{_where(g, e)}") from None


def _where(g: torch.Tensor, e: torch.Tensor) -> str:
    """The first few values that differ."""
    if e.layout != torch.strided or not e.numel():
        return ""
    g, e = g.detach().reshape(-1), e.detach().reshape(-1)
    wrong = ((g != e) & ~((g != g) & (e != e))).nonzero().reshape(-1)
    if e.is_floating_point():
        # What is far off first.
        off = (g.double() - e.double()).abs().nan_to_num(torch.inf)[wrong]
        wrong = wrong[off.argsort(descending=True)]
    wrong = wrong[:4].tolist()
    return f" [got {[g[i].item() for i in wrong]}, expected {[e[i].item() for i in wrong]} at flat {wrong}]"
