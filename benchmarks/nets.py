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
