"""The whole models of the benchmarks: their real sizes, random weights, batch 1. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .nets import Diffusion, GraphSage, LstmTagger, StaticDecoder, UNet
from .vision import prepare_torchvision
from .weights import redraw

Case = tuple[nn.Module, tuple, dict[str, Any]]
"""A module in eval mode, args, kwargs."""


def _timm(name: str, fixed: bool = False) -> Callable[..., Case]:
    """`fixed`: the model itself knows the size of its images."""

    def make(side: int = 224) -> Case:
        prepare_torchvision()
        import timm

        return timm.create_model(name, **({"img_size": side} if fixed else {})), (torch.randn(1, 3, side, side),), {}

    return make


def _resnet50_hf(side: int = 224) -> Case:
    prepare_torchvision()
    import transformers

    return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000)), (torch.randn(1, 3, side, side),), {}


def _bert(length: int = 128) -> Case:
    prepare_torchvision()
    import transformers

    return transformers.BertModel(transformers.BertConfig()), (), {"input_ids": torch.randint(0, 30000, (1, length))}


def _gpt2(length: int = 128) -> Case:
    prepare_torchvision()
    import transformers

    return transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False)), (), {"input_ids": torch.randint(0, 50000, (1, length))}


def _llama(use_cache: bool) -> nn.Module:
    prepare_torchvision()
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32000,
        use_cache=use_cache,
    )
    return transformers.LlamaForCausalLM(config)


def _llama_prefill(length: int = 128) -> Case:
    return _llama(use_cache=False), (), {"input_ids": torch.randint(0, 32000, (1, length))}


def _llama_decode(filled: int = 128) -> Case:
    return StaticDecoder(_llama(use_cache=True), batch=1, length=2 * filled, filled=filled), (torch.randint(0, 32000, (1, 1)),), {}


def _sage(nodes: int = 10000) -> Case:
    return GraphSage(128, 256, 40), (torch.randn(nodes, 128), torch.randint(0, nodes, (2, 8 * nodes))), {}


def _lstm(length: int = 64) -> Case:
    return LstmTagger(10000, 128, 256, 40), (torch.randint(0, 10000, (8, length)),), {}


def _unet(side: int = 256) -> Case:
    return UNet(3, 2, width=32, depth=4), (torch.randn(1, 3, side, side),), {}


def _diffusion(side: int = 32) -> Case:
    """The first two levels of Stable Diffusion's network, on latents of images 8 times as large, and its 77 tokens of text."""
    module = Diffusion(4, width=320, heads=8, text=768)
    return module, (torch.randn(1, 4, side, side), torch.tensor([500.0]), torch.randn(1, 77, 768)), {}


MODELS: dict[str, Callable[..., Case]] = {
    "resnet50": _timm("resnet50"),
    "resnet50_hf": _resnet50_hf,
    "mobilenetv3": _timm("mobilenetv3_large_100"),
    "vit_b16": _timm("vit_base_patch16_224", fixed=True),
    "convnext_t": _timm("convnext_tiny"),
    "swin_t": _timm("swin_tiny_patch4_window7_224", fixed=True),
    "bert": _bert,
    "gpt2": _gpt2,
    "llama_prefill": _llama_prefill,
    "llama_decode": _llama_decode,
    "sage": _sage,
    "lstm": _lstm,
    "unet": _unet,
    "diffusion": _diffusion,
}
"""Each takes the size that a user varies: the side of the image in pixels, the number of tokens or of nodes."""


def parse(name: str) -> tuple[str, list[int]]:
    """The name of a case, NAME or NAME@SIZE (`bert@129`), and what it is built with.

    Raises KeyError that lists the names, and ValueError for a size that is no number.
    """
    base, at, size = name.partition("@")
    if base not in MODELS:
        raise KeyError(f"no model {base!r}; there are {', '.join(MODELS)}")
    if at and not (size.isdecimal() and int(size)):
        raise ValueError(f"{name!r}: the size of {base} is to be a positive number, as in {base}@129")
    return base, [int(size)] if at else []


def build(name: str, seed: int = 0) -> Case:
    """A case, the same one for the same name and seed. Raises what `parse` raises, and what the model says of a size that it does not take."""
    base, size = parse(name)
    torch.manual_seed(seed)
    module, args, kwargs = MODELS[base](*size)
    return redraw(module, args, kwargs), args, kwargs


def build_in(name: str, dtype: torch.dtype) -> Case:
    """The same with what is floating point in a dtype."""
    from .verdict import cast

    module, args, kwargs = build(name)
    return module.to(dtype), *cast((args, kwargs), dtype)
