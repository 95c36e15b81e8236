"""Models that no library provides in a handy form, in plain torch, any size."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SageConv(nn.Module):
    """GraphSAGE with mean aggregation: W1 x_i + W2 mean of x_j over edges j -> i (Hamilton et al., 2017)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own = nn.Linear(inputs, outputs)
        self.others = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """x: [nodes, inputs]; edges: [2, n] of int64, from row 0 to row 1."""
        source, target = edges[0], edges[1]
        total = torch.zeros_like(x).index_add(0, target, x[source])
        count = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device).index_add(0, target, torch.ones_like(target, dtype=x.dtype))
        return self.own(x) + self.others(total / count.clamp(min=1)[:, None])


class GraphSage(nn.Module):
    """Two layers; the second one's neighbours through scatter_reduce's maximum if `maximum` is set."""

    def __init__(self, inputs: int, hidden: int, classes: int, maximum: bool = False) -> None:
        super().__init__()
        self.first = SageConv(inputs, hidden)
        self.second = SageConv(hidden, classes)
        self.maximum = maximum

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = F.relu(self.first(x, edges))
        if self.maximum:
            index = edges[1][:, None].expand(-1, x.shape[1])
            x = x + torch.zeros_like(x).scatter_reduce(0, index, x[edges[0]], "amax")
        return self.second(x, edges)


class LstmTagger(nn.Module):
    """Embedding, bidirectional LSTM, a score per token and tag."""

    def __init__(self, words: int, width: int, hidden: int, tags: int, layers: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True, bidirectional=True)
        self.scores = nn.Linear(2 * hidden, tags)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.log_softmax(self.scores(self.lstm(self.embedding(tokens))[0]), dim=-1)


def _double_conv(inputs: int, outputs: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for channels in (inputs, outputs):
        parts += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    """Contracting and expanding path with skips (Ronneberger et al., 2015), batch norm, same padding."""

    def __init__(self, inputs: int, classes: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.stem = _double_conv(inputs, width)
        self.down = nn.ModuleList(_double_conv(a, b) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(widths, widths[1:]))
        self.merge = nn.ModuleList(_double_conv(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x: [n, inputs, h, w] with h and w divisible by 2**depth."""
        skips = [self.stem(x)]
        for block in self.down:
            skips.append(block(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, merge in zip(reversed(self.up), reversed(self.merge)):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)


class _Residual(nn.Module):
    """Two times group norm, SiLU, convolution, with the step's embedding between them."""

    def __init__(self, inputs: int, outputs: int, step: int) -> None:
        super().__init__()
        self.before, self.after = nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)
        self.first, self.second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.step = nn.Linear(step, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        y = self.first(F.silu(self.before(x))) + self.step(F.silu(step))[:, :, None, None]
        return self.skip(x) + self.second(F.silu(self.after(y)))


class _Attention(nn.Module):
    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key, self.value = nn.Linear(context, width, bias=False), nn.Linear(context, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.query(x), self.key(context), self.value(context))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _Transformer(nn.Module):
    """Attention among the pixels, then to the text, then GEGLU, as tokens of the image (Rombach et al., 2022, section 3.3)."""

    def __init__(self, width: int, text: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width, eps=1e-6)
        self.into, self.out = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = _Attention(width, width, heads), _Attention(width, text, heads)
        self.gate, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        y = self.into(self.norm(x)).flatten(2).transpose(1, 2)
        z = self.norms[0](y)
        y = y + self.own(z, z)
        y = y + self.cross(self.norms[1](y), text)
        value, gate = self.gate(self.norms[2](y)).chunk(2, -1)
        y = y + self.down(value * F.gelu(gate))
        return x + self.out(y.transpose(1, 2).unflatten(2, x.shape[2:]))


class Diffusion(nn.Module):
    """What predicts the noise in latents, one level down and up again (Rombach et al., 2022, as in Stable Diffusion)."""

    def __init__(self, channels: int, width: int, heads: int, text: int) -> None:
        super().__init__()
        self.width, step = width, 4 * width
        self.step = nn.Sequential(nn.Linear(width, step), nn.SiLU(), nn.Linear(step, step))
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.fine, self.coarse = _Residual(width, width, step), _Residual(width, 2 * width, step)
        self.fine_text, self.coarse_text = _Transformer(width, text, heads), _Transformer(2 * width, text, heads)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.up = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.merge, self.merge_text = _Residual(3 * width, width, step), _Transformer(width, text, heads)
        self.norm, self.head = nn.GroupNorm(32, width), nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """x: [n, channels, h, w], both even; time: [n]; text: [n, tokens, text]. Returns the noise, as x."""
        rates = torch.exp(torch.arange(0, self.width, 2, device=x.device) * (-9.21 / self.width))
        angles = time.float()[:, None] * rates
        step = self.step(torch.cat([angles.cos(), angles.sin()], -1).to(x.dtype))
        fine = self.fine_text(self.fine(self.stem(x), step), text)
        coarse = self.coarse_text(self.coarse(self.down(fine), step), text)
        coarse = self.up(F.interpolate(coarse, size=fine.shape[2:], mode="nearest"))
        y = self.merge_text(self.merge(torch.cat([coarse, fine], 1), step), text)
        return self.head(F.silu(self.norm(y)))


class StaticDecoder(nn.Module):
    """One step of decoding with transformers' StaticCache, which holds `filled` random earlier positions.

    Each call starts from the same position, so that calls can be repeated and compared.
    """

    def __init__(self, model: nn.Module, batch: int, length: int, filled: int) -> None:
        super().__init__()
        from transformers import StaticCache

        self.model = model
        self.filled = filled
        config = model.config
        self.cache = StaticCache(config=config, max_cache_len=length)
        heads = config.num_key_value_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.cache.early_initialization(batch, heads, head_dim, next(model.parameters()).dtype, torch.device("cpu"))
        for layer in self.cache.layers:
            layer.keys[:, :, :filled].normal_()
            layer.values[:, :, :filled].normal_()

    def _apply(self, fn: Any, recurse: bool = True) -> StaticDecoder:
        super()._apply(fn, recurse)
        for layer in self.cache.layers:
            layer.keys, layer.values = fn(layer.keys), fn(layer.values)
            layer.dtype = layer.keys.dtype
        return self

    def forward(self, input_ids: Tensor) -> Tensor:
        """input_ids: [batch, 1]; returns logits [batch, 1, vocabulary]."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.filled)
        position = torch.full_like(input_ids, self.filled)
        return self.model(input_ids=input_ids, position_ids=position, past_key_values=self.cache, use_cache=True).logits
