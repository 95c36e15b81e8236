"""`grid_sample` of images: reads at places that a tensor holds, from -1 to 1 over an image."""

from __future__ import annotations

import torch
import torch._decomp.decompositions as torchs

aten = torch.ops.aten

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


@torchs.pw_cast_for_opmath
def grid_sampler_2d(x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align_corners: bool) -> torch.Tensor:
    """Places beyond a border are zero, read at the border, or mirrored at it; NaN is beyond, or the first row or column.

    Far away, the digits that are left of a coordinate decide where mirrors lead to. Hence the steps are those of ATen's kernel;
    torch takes them in another order, and counts turns in 8 bits. What lies beyond a border counts nothing, even if the pixel that is
    read in its stead is infinite.
    """
    n, c, height, width = x.shape
    pixels, kind = x.flatten(2), torch.int32 if height * width < 2**31 else torch.int64
    images = torch.arange(n, device=x.device, dtype=kind).view(n, 1, 1, 1)
    channels = torch.arange(c, device=x.device, dtype=kind).view(1, c, 1, 1)
    grid = grid.unsqueeze(1)  # places and weights are computed once, for all channels

    def unnormalised(g: torch.Tensor, size: int) -> torch.Tensor:
        return (g + 1) * ((size - 1) / 2) if align_corners else (g + 1) * (size / 2) - 0.5

    def inside(place: torch.Tensor, size: int) -> torch.Tensor:
        if padding == ZEROS:
            return place
        return clamped(mirrored(place, size) if padding == REFLECTION else place, size)

    def clamped(place: torch.Tensor, size: int) -> torch.Tensor:
        return torch.where(place > 0, place, 0.0).clamp(max=size - 1)

    def mirrored(place: torch.Tensor, size: int) -> torch.Tensor:
        if align_corners and size == 1:
            return torch.zeros_like(place)
        low, period = (0.0, 2 * (size - 1)) if align_corners else (-0.5, 2 * size)
        distance = (place - low).abs()
        distance = distance - (distance / period).trunc() * period
        return torch.minimum(distance, period - distance) + low

    def read(px: torch.Tensor, py: torch.Tensor) -> torch.Tensor:
        column, row = clamped(px, width).to(kind), clamped(py, height).to(kind)
        there = (px >= 0) & (px < width) & (py >= 0) & (py < height)
        return torch.where(there, aten._unsafe_index(pixels, [images, channels, row * width + column]), 0.0)

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
            value = read(left + right, top + down)
            total = value * weight if total is None else total + value * weight
    return total.contiguous()
