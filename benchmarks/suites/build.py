"""What the lists are made of: builders that take a model out of a package with random weights, and reasons where that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

import torch
from torch import nn

from ..vision import prepare_torchvision
from ..weights import redraw

Case = tuple[nn.Module, tuple, dict[str, Any]]
"""A module in eval mode, args, kwargs."""

Builder = Callable[[], Case]


@dataclass(frozen=True)
class Missing:
    """A model of the list that cannot be built from packages and random weights."""

    reason: str


Models = dict[str, Union[Builder, Missing]]

VOCABULARY = 50304
"""Larger vocabularies are cut to this: an embedding and a projection of 250,000 rows measure memory, not a compiler."""

_DEPTHS = ("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers", "n_layers", "n_layer")


def live(build: Builder) -> Builder:
    """The same builder, seeded, with constant weights redrawn."""

    def seeded() -> Case:
        torch.manual_seed(0)
        prepare_torchvision()
        module, args, kwargs = build()
        return redraw(module.eval(), args, kwargs), args, kwargs

    return seeded


def timm(name: str, **overrides: Any) -> Builder:
    """A model of timm at its own input size, batch 1."""

    def build() -> Case:
        import timm
        from timm.data import resolve_data_config

        module = timm.create_model(name, pretrained=False, **overrides)
        return module, (torch.randn(1, *resolve_data_config({}, model=module)["input_size"]),), {}

    return live(build)


def vision(name: str, batch: int = 2, size: int = 224) -> Builder:
    """A classifier of torchvision."""

    def build() -> Case:
        from torchvision import models

        return models.get_model(name, weights=None), (torch.randn(batch, 3, size, size),), {}

    return live(build)


def geometric(name: str) -> Builder:
    """A basic graph network of torch_geometric: two layers of 64 on 1,000 nodes and 10,000 edges, features as in Reddit."""

    def build() -> Case:
        import torch_geometric.nn

        module = getattr(torch_geometric.nn, name)(602, 64, 2, 41)
        return module, (torch.randn(1000, 602), torch.randint(0, 1000, (2, 10000))), {}

    return live(build)


def transformer(
    name: str, length: int = 128, batch: int = 2, layers: int = 2, inputs: Callable[[], dict[str, Any]] | None = None, **overrides: Any
) -> Builder:
    """A class of transformers with its default configuration, every stack cut to `layers`, the vocabulary to VOCABULARY.

    `overrides` are fields of the configuration and win over these cuts. `inputs` makes the arguments where token ids
    [batch, length] are not enough.
    """

    def build() -> Case:
        import transformers

        kind = getattr(transformers, name)
        defaults = kind.config_class().to_dict()
        cuts = {key: min(defaults[key], layers) for key in _DEPTHS if isinstance(defaults.get(key), int)}
        if isinstance(defaults.get("vocab_size"), int):
            cuts["vocab_size"] = min(defaults["vocab_size"], VOCABULARY)
        config = kind.config_class(**{**cuts, **overrides})
        config.use_cache = False
        module = kind(config)
        if inputs is not None:
            return module, (), inputs()
        # The first ids are special tokens in most vocabularies (padding would be masked away).
        ids = torch.randint(6, config.vocab_size, (batch, length))
        if "Bart" in name:
            ids[:, -1] = config.eos_token_id  # BART classifies at the last end-of-sentence token
        kwargs = {"input_ids": ids}
        if "ConditionalGeneration" in name:
            kwargs["decoder_input_ids"] = ids.clone()
        return module, (), kwargs

    return live(build)


def tokens_and_pixels(length: int, size: int = 224, batch: int = 2) -> Callable[[], dict[str, Any]]:
    """Inputs of a model of text and images."""
    return lambda: {"input_ids": torch.randint(6, 49000, (batch, length)), "pixel_values": torch.randn(batch, 3, size, size)}


def spectrogram(**ids: tuple[int, int]) -> Callable[[], dict[str, Any]]:
    """30 s of audio as Whisper takes it, and token ids of the given shapes."""

    def inputs() -> dict[str, Any]:
        tokens = {name: torch.randint(6, 50000, shape) for name, shape in ids.items()}
        return {"input_features": torch.randn(1, 80, 3000), **tokens}

    return inputs
