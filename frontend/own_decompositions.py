"""Ops taken apart in ways that torch's own decompositions do not offer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch._decomp.decompositions
import torch._prims_common
import torch._refs

from . import foreach
from .grid_sampling import grid_sampler_2d

aten = torch.ops.aten


def linspace(start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """For an integer dtype ATen takes the integer parts of both ends first, torch's decomposition does not."""

    def whole(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, torch.Tensor) else int(x)

    if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
        start, end = whole(start), whole(end)
    return torch._refs.linspace(start, end, steps, dtype=dtype, **options)


def eye(n: Any, m: Any = None, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: bool | None = False) -> torch.Tensor:
    """torch's decomposition counts more than 256 rows in uint16, for which no kernels exist, in ATen as here."""
    if layout not in (None, torch.strided) or pin_memory:
        return NotImplemented
    m = n if m is None else m
    torch._check(n >= 0, lambda: f"n must be greater or equal to 0, got {n}")
    torch._check(m >= 0, lambda: f"m must be greater or equal to 0, got {m}")
    small = isinstance(n, int) and isinstance(m, int) and max(n, m) < 1 << 31
    rows, columns = (torch.arange(size, dtype=torch.int32 if small else torch.int64, device=device) for size in (n, m))
    return (rows.unsqueeze(1) == columns).to(dtype or torch.get_default_dtype())


def addbmm(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    """The sum of all products is one product along the batch as well."""
    along = a.shape[0] * a.shape[2]
    return aten.addmm(x, a.transpose(0, 1).reshape(a.shape[1], along), b.reshape(along, b.shape[2]), beta=beta, alpha=alpha)


def addmv(x: torch.Tensor, a: torch.Tensor, v: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    """With alpha = 0, BLAS does not look at the product, NaN or not."""
    if alpha == 0 and a.dtype in (torch.float32, torch.float64):
        return a.new_zeros(a.shape[0]) if beta == 0 else (x * beta).expand(a.shape[0]).clone()
    return torch._decomp.decompositions.addmv(x, a, v, beta, alpha)


def adaptive_max_pool(x: torch.Tensor, output_size: Sequence[int]) -> Any:
    """(maxima, their places in the flattened planes). Window i of n over a line of m reaches from floor(i m / n) to ceil((i + 1) m / n).

    Maxima are those of one dim after the other; places, where they are used, of all windows beside each other, filled up with -inf.
    """
    n = len(output_size)
    extents = x.shape[-n:]
    if not all(isinstance(m, int) and m > 0 for m in (*extents, *output_size)) or 0 in x.shape:
        return NotImplemented
    places = torch.zeros((), dtype=torch.int64, device=x.device)
    inside = torch.ones((), dtype=torch.bool, device=x.device)
    lines, values = [], x
    for d, (extent, out) in enumerate(zip(extents, output_size)):
        starts = [i * extent // out for i in range(out)]
        ends = [-(-(i + 1) * extent // out) for i in range(out)]
        width = max(e - s for s, e in zip(starts, ends))
        i = torch.arange(out, device=x.device)
        line = (i * extent // out).unsqueeze(1) + torch.arange(width, device=x.device)
        end = ((i + 1) * extent + out - 1) // out
        # The last one of a window again, where others are longer.
        dim = x.dim() - n + d
        values = aten._unsafe_index(values, [None] * dim + [torch.minimum(line, end.unsqueeze(1) - 1)]).amax(dim + 1)
        # Of the result's dims [out..., width...].
        where = [1] * (2 * n)
        where[d], where[n + d] = out, width
        inside = inside & (line < end.unsqueeze(1)).reshape(where)
        line = line.clamp(max=extent - 1).reshape(where)
        places = places * extent + line
        lines.append(line)
    windows = aten._unsafe_index(x, [None] * (x.dim() - n) + lines)
    windows = torch.where(inside, windows, float("-inf")).flatten(-n)
    first = windows.argmax(-1)
    if x.dtype.is_floating_point:  # of several NaN it is the last one
        order = torch.arange(windows.shape[-1], device=x.device)
        last = torch.where(windows.isnan(), order, -1).amax(-1)
        first = torch.where(last < 0, first, last)
    places = places.flatten(-n).expand(windows.shape)
    order = torch._prims_common.suggest_memory_format(x) if n == 2 else torch.contiguous_format
    return values.contiguous(memory_format=order), places.gather(-1, first.unsqueeze(-1)).squeeze(-1).contiguous(memory_format=order)


def max_pool_backward(grad: torch.Tensor, x: torch.Tensor, *rest: Any, n: int) -> torch.Tensor:
    """Of adaptive and fractional pooling over n dims: each gradient goes to the place of its maximum, `rest[-1]`."""
    indices = rest[-1]
    planes = torch.zeros_like(x, memory_format=torch.contiguous_format).flatten(-n)
    return planes.scatter_add(-1, indices.flatten(-n), grad.flatten(-n)).view(x.shape)


def upsample_nearest2d_backward(
    grad: torch.Tensor, output_size: Any, input_size: Any, scales_h: float | None = None, scales_w: float | None = None
) -> torch.Tensor:
    """Each gradient goes to the element that forward read there; the places are computed in f32, as ATen does."""

    def places(out: Any, size: Any, scale: float | None) -> torch.Tensor:
        known = scale is not None and scale > 0 and out not in (size, 2 * size)
        step = 1 / scale if known else size / out  # type: ignore[operator]
        return (torch.arange(out, dtype=torch.float32) * step).floor().to(torch.int64).clamp(max=size - 1)

    rows = places(output_size[0], input_size[2], scales_h).unsqueeze(-1)
    columns = places(output_size[1], input_size[3], scales_w)
    zeros = grad.new_zeros(input_size)
    return aten._unsafe_index_put(zeros, [None, None, rows, columns], grad, accumulate=True)


def embedding_bag(
    weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, scale_grad: bool = False, mode: int = 0, sparse: bool = False,
    factors: torch.Tensor | None = None, include_last_offset: bool = False, padding_idx: int = -1,
) -> Any:  # fmt: skip
    """Sums of bf16 rows with gradients. Of those ATen's kernel does not say which row goes into which bag, as its meta function says.

    Offsets that do not begin with 0 or are out of range are IndexErrors of the ops that use them.
    """
    if weight.dtype != torch.bfloat16 or mode != 0 or padding_idx >= 0 or not torch.is_grad_enabled():
        return NotImplemented
    count, bags = indices.shape[0], offsets.shape[0] - include_last_offset
    places = torch.arange(count + 1, dtype=offsets.dtype, device=offsets.device)
    begins = aten.index_select(places, 0, offsets)
    bag = torch.searchsorted(begins, places[:count], right=True, out_int32=offsets.dtype == torch.int32) - 1
    rows = aten.embedding(weight, indices).float()
    rows = rows if factors is None else rows * factors.unsqueeze(-1)
    # What is behind the last offset, if that is an end, goes into a bag of its own.
    sums = aten.index_add(rows.new_zeros(offsets.shape[0], weight.shape[1]), 0, bag, rows)[:bags]
    ends = begins[1:] if include_last_offset else torch.cat([begins[1:], places[count:]])
    sizes = ends - begins[:bags]
    if include_last_offset:  # which gradients have no place for: an IndexError where they are asked for
        bag = aten.index_select(places[:bags], 0, bag)
    return sums.to(weight.dtype), bag, sizes, sizes.clone()


def index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
    """Negative indices count from the end here, but not in `index_copy`, which torch makes of it."""
    size = x.shape[dim] if x.dim() else 1
    return torch._refs.index_fill(x, dim, torch.where(index < 0, index + size, index), value)


def roll(x: torch.Tensor, shifts: Any, dims: Any = ()) -> Any:
    """Of channels-last tensors, in the order of their memory: ATen puts two parts together, where that keeps the layout.

    Torch describes all results as row-major ones. Such are those of others, and of shifts by nothing.
    """
    if not dims or x.dim() not in (4, 5) or torch._prims_common.suggest_memory_format(x) == torch.contiguous_format:
        return NotImplemented
    n = x.dim()
    if any(isinstance(s, int) and (s == 0 or (isinstance(x.shape[d], int) and s % x.shape[d] == 0)) for s, d in zip(shifts, dims)):
        return NotImplemented
    rolled = aten.roll(x.movedim(1, -1), shifts, [0 if d % n == 0 else n - 1 if d % n == 1 else d % n - 1 for d in dims])
    return rolled.movedim(-1, 1)


def affine_grid_generator(theta: torch.Tensor, size: Sequence[Any], align_corners: bool) -> torch.Tensor:
    """The places of a result's elements in [-1, 1], 0 along a dim of one, through a map to each batch element's source.

    Torch's decomposition has a constant for a dim of one, which cannot be traced.
    """
    places = size[2:]
    d = torch.promote_types(theta.dtype, torch.float32)
    base = []
    for i, n in reversed(list(enumerate(places))):
        end = 1 if align_corners else (n - 1) / n if n > 1 else 0
        line = torch.linspace(-end, end, n, dtype=d, device=theta.device) if n > 1 else theta.new_zeros(n, dtype=d)
        base.append(line.reshape([n if k == i else 1 for k in range(len(places))]).expand(places))
    base.append(theta.new_ones(places, dtype=d))
    flat = torch.stack(base, -1).reshape(-1, len(base), 1)
    return (flat * theta.to(d).mT.unsqueeze(1)).sum(-2).to(theta.dtype).view(size[0], *places, len(places))


@torch._decomp.decompositions.pw_cast_for_opmath
def smooth_l1_loss_backward(grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float) -> torch.Tensor:
    """NaN has a gradient of NaN; torch's decomposition takes the sign of it, which is 0."""
    grad = grad / x.numel() if reduction == torch._decomp.decompositions.Reduction.MEAN.value else grad
    x = x - target
    return torch.where(x <= -beta, -grad, torch.where(x >= beta, grad, grad * x / beta))


def std(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> torch.Tensor:
    """In f64, as ATen's: of numbers above 1e19 or below 1e-19 the squares, but not their root, are out of f32's range."""
    if not x.dtype.is_floating_point or x.dtype == torch.float64:
        return NotImplemented
    return aten.var.correction(x.double(), dim, correction=correction, keepdim=keepdim).sqrt().to(x.dtype)


def std_mean(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """In f64, like `std`."""
    if not x.dtype.is_floating_point or x.dtype == torch.float64:
        return NotImplemented
    var, mean = aten.var_mean.correction(x.double(), dim, correction=correction, keepdim=keepdim)
    return var.sqrt().to(x.dtype), mean.to(x.dtype)


OWN: dict[Any, Any] = {
    aten.std.correction: std,
    aten.std_mean.correction: std_mean,
    aten.smooth_l1_loss_backward.default: smooth_l1_loss_backward,
    aten.grid_sampler_2d.default: grid_sampler_2d,
    aten.roll.default: roll,
    aten.affine_grid_generator.default: affine_grid_generator,
    aten.index_fill.int_Scalar: index_fill,
    aten.index_fill.int_Tensor: index_fill,
    aten._embedding_bag.default: embedding_bag,
    **foreach.decompositions(),
    aten.upsample_nearest2d_backward.default: upsample_nearest2d_backward,
    aten.eye.default: eye,
    aten.eye.m: eye,
    **{getattr(aten.linspace, o): linspace for o in aten.linspace.overloads() if not o.endswith("out")},
    aten.addbmm.default: addbmm,
    aten.addmv.default: addmv,
    aten.adaptive_max_pool2d.default: adaptive_max_pool,
    aten.adaptive_max_pool3d.default: adaptive_max_pool,
    **{
        getattr(aten, f"{name}_max_pool{n}d_backward").default: functools.partial(max_pool_backward, n=n)
        for name in ("adaptive", "fractional")
        for n in (2, 3)
    },
}
