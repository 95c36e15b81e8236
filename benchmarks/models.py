"""The whole models of the benchmarks: their real sizes, random weights, batch 1. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .nets import GraphSage, LstmTagger, StaticDecoder, UNet
from .vision import prepare_torchvision
from .weights import redraw

Case = tuple[nn.Module, tuple, dict[str, Any]]
"""A module in eval mode, args, kwargs."""


def _timm(name: str) -> Case:
    prepare_torchvision()
    import timm

    return timm.create_model(name), (torch.randn(1, 3, 224, 224),), {}


def _resnet50_hf() -> Case:
    prepare_torchvision()
    import transformers

    return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000)), (torch.randn(1, 3, 224, 224),), {}


def _bert() -> Case:
    prepare_torchvision()
    import transformers

    return transformers.BertModel(transformers.BertConfig()), (), {"input_ids": torch.randint(0, 30000, (1, 128))}


def _gpt2() -> Case:
    prepare_torchvision()
    import transformers

    return transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False)), (), {"input_ids": torch.randint(0, 50000, (1, 128))}


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


def _llama_prefill() -> Case:
    return _llama(use_cache=False), (), {"input_ids": torch.randint(0, 32000, (1, 128))}


def _llama_decode() -> Case:
    return StaticDecoder(_llama(use_cache=True), batch=1, length=256, filled=128), (torch.randint(0, 32000, (1, 1)),), {}


MODELS: dict[str, Callable[[], Case]] = {
    "resnet50": lambda: _timm("resnet50"),
    "resnet50_hf": _resnet50_hf,
    "mobilenetv3": lambda: _timm("mobilenetv3_large_100"),
    "vit_b16": lambda: _timm("vit_base_patch16_224"),
    "convnext_t": lambda: _timm("convnext_tiny"),
    "swin_t": lambda: _timm("swin_tiny_patch4_window7_224"),
    "bert": _bert,
    "gpt2": _gpt2,
    "llama_prefill": _llama_prefill,
    "llama_decode": _llama_decode,
    "sage": lambda: (GraphSage(128, 256, 40), (torch.randn(10000, 128), torch.randint(0, 10000, (2, 80000))), {}),
    "lstm": lambda: (LstmTagger(10000, 128, 256, 40), (torch.randint(0, 10000, (8, 64)),), {}),
    "unet": lambda: (UNet(3, 2, width=32, depth=4), (torch.randn(1, 3, 256, 256),), {}),
}


def build(name: str, seed: int = 0) -> Case:
    """A case by name, the same one for the same seed. Raises KeyError that lists the names."""
    if name not in MODELS:
        raise KeyError(f"no model {name!r}; there are {', '.join(MODELS)}")
    torch.manual_seed(seed)
    module, args, kwargs = MODELS[name]()
    return redraw(module, args, kwargs), args, kwargs
