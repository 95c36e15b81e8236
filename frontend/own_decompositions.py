"""Ops taken apart in ways that torch's own decompositions do not offer."""

from __future__ import annotations

from typing import Any

import torch
import torch._refs

aten = torch.ops.aten


def linspace(start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """For an integer dtype ATen takes the integer parts of both ends first, torch's decomposition does not."""

    def whole(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, torch.Tensor) else int(x)

    if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
        start, end = whole(start), whole(end)
    return torch._refs.linspace(start, end, steps, dtype=dtype, **options)


def diagonal_scatter(x: torch.Tensor, source: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    """x with `source` on a diagonal: each element asks whether it is on it."""
    dim1, dim2 = dim1 % x.dim(), dim2 % x.dim()
    rows, columns = x.shape[dim1], x.shape[dim2]
    length = source.shape[-1]
    i, j = torch.arange(rows, device=x.device), torch.arange(columns, device=x.device)
    on = i[:, None] + offset == j[None, :]
    # The k-th entry lies in row k (offset >= 0) or in column k.
    if offset >= 0:
        lines = aten.constant_pad_nd(source, [0, rows - length]).unsqueeze(-1)
    else:
        lines = aten.constant_pad_nd(source, [0, columns - length]).unsqueeze(-2)
    moved = torch.where(on, lines.to(x.dtype), x.movedim((dim1, dim2), (-2, -1)))
    return moved.movedim((-2, -1), (dim1, dim2)).contiguous()


def addbmm(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    """The sum of all products is one product along the batch as well."""
    a = a.transpose(0, 1).reshape(a.shape[1], -1)
    return aten.addmm(x, a, b.reshape(-1, b.shape[2]), beta=beta, alpha=alpha)


OWN: dict[Any, Any] = {
    **{getattr(aten.linspace, o): linspace for o in aten.linspace.overloads() if not o.endswith("out")},
    aten.diagonal_scatter.default: diagonal_scatter,
    aten.addbmm.default: addbmm,
}
