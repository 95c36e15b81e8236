"""`grid_sample` of images: reads at places that a tensor holds, from -1 to 1 over an image."""

from __future__ import annotations

import torch
import torch._decomp.decompositions as torchs

aten = torch.ops.aten

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


def grid_sampler_2d(x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align_corners: bool) -> torch.Tensor:
    """Without padding as torch takes it apart, but for coordinates that are no finite numbers, which it turns into zeros.

    The weights of linear interpolation are NaN then; nearest and cubic resampling have zeros.
    """
    if padding != ZEROS:
        return _inside(x, grid, mode, padding, align_corners)
    out = torchs.grid_sampler_2d(x, grid, mode, padding, align_corners)
    if mode == BILINEAR:
        wide = grid.to(torch.promote_types(grid.dtype, torch.float32))
        scales = [(size - 1) / 2 if align_corners else size / 2 for size in x.shape[:1:-1]]
        finite = ((wide[..., 0] + 1) * scales[0]).isfinite() & ((wide[..., 1] + 1) * scales[1]).isfinite()
        out = torch.where(finite.unsqueeze(1), out, float("nan"))
    return out.contiguous()  # row-major, whatever the layout of the grid


@torchs.pw_cast_for_opmath
def _inside(x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align_corners: bool) -> torch.Tensor:
    """Places beyond a border are read at the border, or mirrored at it; NaN is the first row or column.

    Far away, the digits that are left of a coordinate decide where mirrors lead to. Hence the steps are those of ATen's kernel;
    torch takes them in another order, and counts turns in 8 bits.
    """
    n, c, height, width = x.shape
    images = torch.arange(n, device=x.device).view(n, 1, 1, 1)
    channels = torch.arange(c, device=x.device).view(1, c, 1, 1)
    # Each channel computes the places anew: one loop for all.
    grid = grid.unsqueeze(1).expand(n, c, *grid.shape[1:])

    def unnormalised(g: torch.Tensor, size: int) -> torch.Tensor:
        return (g + 1) * ((size - 1) / 2) if align_corners else (g + 1) * (size / 2) - 0.5

    def inside(place: torch.Tensor, size: int) -> torch.Tensor:
        if padding == REFLECTION:
            place = mirrored(place, size)
        return torch.where(place > 0, place, 0.0).clamp(max=size - 1)

    def mirrored(place: torch.Tensor, size: int) -> torch.Tensor:
        if align_corners and size == 1:
            return torch.zeros_like(place)
        low, period = (0.0, 2 * (size - 1)) if align_corners else (-0.5, 2 * size)
        distance = (place - low).abs()
        distance = distance - (distance / period).trunc() * period
        return torch.minimum(distance, period - distance) + low

    def read(px: torch.Tensor, py: torch.Tensor) -> torch.Tensor:
        return aten._unsafe_index(x, [images, channels, py.to(torch.int64), px.to(torch.int64)])

    px, py = unnormalised(grid[..., 0], width), unnormalised(grid[..., 1], height)
    if mode == BICUBIC:
        left, top = px.floor(), py.floor()
        columns = [inside(left + k, width) for k in (-1, 0, 1, 2)]
        lines = [[read(column, inside(top + k, height)) for column in columns] for k in (-1, 0, 1, 2)]
        rows = [torchs._upsample_cubic_interp1d(line, px - left) for line in lines]
        return torchs._upsample_cubic_interp1d(rows, py - top).contiguous()
    px, py = inside(px, width), inside(py, height)
    if mode == NEAREST:
        return read(px.round(), py.round()).contiguous()
    left, top = px.floor(), py.floor()
    total = None
    for down in (0, 1):
        for right in (0, 1):
            weight = ((px - left) if right else (left + 1 - px)) * ((py - top) if down else (top + 1 - py))
            value = read((left + right).clamp(max=width - 1), (top + down).clamp(max=height - 1))
            # What lies beyond the last row or column counts nothing, even if it would be infinite.
            if right:
                value = torch.where(left + 1 < width, value, 0.0)
            if down:
                value = torch.where(top + 1 < height, value, 0.0)
            total = value * weight if total is None else total + value * weight
    return total.contiguous()
