"""Small models with live weights, and `check`: does a backend compile one whole, and is the result right.

Every builder returns (module in eval mode, args, kwargs), seeded, with norms, biases and running statistics redrawn.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

from mlirc.benchmarks.nets import Diffusion, GraphSage, LstmTagger, StaticDecoder, UNet
from mlirc.benchmarks.verdict import cast, relative_error, same, tensors
from mlirc.benchmarks.vision import prepare_torchvision
from mlirc.benchmarks.weights import redraw

Case = tuple[nn.Module, tuple, dict[str, Any]]


def _case(build: Callable[..., Case]) -> Callable[..., Case]:
    @wraps(build)
    def seeded(*args: Any, **kwargs: Any) -> Case:
        torch.manual_seed(0)
        prepare_torchvision()
        module, inputs, named = build(*args, **kwargs)
        return redraw(module, inputs, named), inputs, named

    return seeded


@_case
def mlp(width: int = 64, batch: int = 8) -> Case:
    """Linear, GELU, layer norm, twice."""
    layers = [part for _ in range(2) for part in (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))]
    return nn.Sequential(*layers), (torch.randn(batch, width),), {}


class _BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.short = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.short(x))


@_case
def convnet(batch: int = 2, size: int = 32) -> Case:
    """A ResNet of three basic blocks: strided convolutions, batch norms, max pooling, global average."""
    blocks = [_BasicBlock(16, 16, 1), _BasicBlock(16, 24, 2), _BasicBlock(24, 24, 1)]
    stem = [nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)), (torch.randn(batch, 3, size, size),), {}


class _EncoderLayer(nn.Module):
    """Attention written out, not through scaled_dot_product_attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


@_case
def encoder_layer(batch: int = 2, length: int = 12, width: int = 64, heads: int = 4) -> Case:
    return _EncoderLayer(width, heads), (torch.randn(batch, length, width),), {}


@_case
def bert(batch: int = 2, length: int = 16) -> Case:
    import transformers

    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertModel(config), (), {"input_ids": torch.randint(0, 100, (batch, length))}


@_case
def gpt2(batch: int = 2, length: int = 16) -> Case:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=100, n_positions=256, n_embd=64, n_layer=2, n_head=4, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    return transformers.GPT2LMHeadModel(config), (), {"input_ids": torch.randint(0, 100, (batch, length))}


def _llama_model(use_cache: bool) -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=use_cache,
    )
    return transformers.LlamaForCausalLM(config)


@_case
def llama(batch: int = 2, length: int = 16) -> Case:
    return _llama_model(use_cache=False), (), {"input_ids": torch.randint(0, 100, (batch, length))}


@_case
def llama_decode(batch: int = 2, length: int = 32, filled: int = 9) -> Case:
    """One token against a static cache that holds `filled` earlier ones."""
    return StaticDecoder(_llama_model(use_cache=True), batch, length, filled), (torch.randint(0, 100, (batch, 1)),), {}


def _timm(name: str, batch: int, size: int, **config: Any) -> Case:
    import timm

    return timm.create_model(name, num_classes=10, **config), (torch.randn(batch, 3, size, size),), {}


@_case
def vit(batch: int = 2) -> Case:
    return _timm("vit_tiny_patch16_224", batch, 32, img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=2)


@_case
def convnext(batch: int = 2) -> Case:
    return _timm("convnext_tiny", batch, 64, depths=(1, 1, 1, 1), dims=(16, 24, 32, 48))


@_case
def swin(batch: int = 2) -> Case:
    """Two stages of a plain and a shifted layer each."""
    name = "swin_tiny_patch4_window7_224"
    return _timm(name, batch, 64, img_size=64, window_size=4, embed_dim=32, depths=(2, 2), num_heads=(2, 4), drop_path_rate=0.0)


@_case
def mobilenetv3(batch: int = 2) -> Case:
    return _timm("mobilenetv3_small_050", batch, 64)


@_case
def graphsage(nodes: int = 50, edges: int = 200, maximum: bool = True) -> Case:
    return GraphSage(16, 32, 7, maximum), (torch.randn(nodes, 16), torch.randint(0, nodes, (2, edges))), {}


@_case
def lstm_tagger(batch: int = 3, length: int = 7) -> Case:
    """Dynamo leaves any module with an nn.LSTM alone unless `torch._dynamo.config.allow_rnn` is set."""
    return LstmTagger(50, 16, 24, 9), (torch.randint(0, 50, (batch, length)),), {}


@_case
def unet(batch: int = 1, size: int = 32) -> Case:
    return UNet(3, 2, width=8, depth=2), (torch.randn(batch, 3, size, size),), {}


@_case
def diffusion(batch: int = 2, size: int = 8) -> Case:
    """Group norm, SiLU, GEGLU, attention to a text, nearest resampling, a concatenation."""
    return Diffusion(4, width=64, heads=2, text=24), (torch.randn(batch, 4, size, size), torch.rand(batch) * 900, torch.randn(batch, 5, 24)), {}


ALL: dict[str, Callable[..., Case]] = {
    f.__name__: f
    for f in (
        mlp, convnet, encoder_layer, bert, gpt2, llama, llama_decode, vit, convnext, swin, mobilenetv3, graphsage, lstm_tagger, unet, diffusion
    )
}  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """What `check` saw."""

    error: float
    """The largest relative error against eager."""
    graphs: int
    """How many graphs Dynamo handed to the backend."""
    counters: dict[str, int]
    """The backend's own counters (`torch._dynamo.utils.counters["mlirc"]`) for this compilation."""


def _run(call: Callable[..., Any], module: nn.Module, args: tuple, kwargs: dict[str, Any], train: bool) -> list[Tensor]:
    """Outputs; when training also the gradients and the buffers after one step backward from a fixed random projection."""
    if not train:
        with torch.no_grad():
            return tensors(call(*args, **kwargs))
    out = tensors(call(*args, **kwargs))
    live = [t for t in out if t.requires_grad]
    assert live, "no output has a gradient"
    generator = torch.Generator().manual_seed(1)
    seeds = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype) for t in live]
    torch.autograd.backward(live, seeds)
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return [*(t.detach() for t in out), *gradients, *(b.detach().clone() for b in module.buffers())]


def check(
    module: nn.Module,
    args: tuple = (),
    kwargs: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    dynamic: bool | None = None,
    backend: str = "mlirc",
    train: bool = False,
    graph_breaks: bool = False,
) -> Checked:
    """Assert that `backend` compiles `module` whole and computes what eager does, by `same` against fp64.

    The module and inputs given are left as they were: every run has copies of its own. `mlirc` runs with `strict`, so a
    kernel that fails to compile is an error here, and so is any other route back to eager: no graph reaching the
    backend, or a graph break unless `graph_breaks` allows it.
    """
    kwargs = kwargs or {}
    torch._dynamo.reset()
    counters.clear()

    def prepared(kind: torch.dtype) -> tuple[nn.Module, tuple, dict[str, Any]]:
        inputs, named = cast((args, kwargs), kind)
        return copy.deepcopy(module).to(kind).train(train), inputs, named

    m, a, k = prepared(torch.float64)
    fp64 = _run(m, m, a, k, train)
    m, a, k = prepared(dtype)
    eager = _run(m, m, a, k, train)

    m, a, k = prepared(dtype)
    compiled = torch.compile(m, backend=backend, dynamic=dynamic, options={"strict": True} if backend == "mlirc" else None)
    got = _run(compiled, m, a, k, train)

    graphs = counters["stats"]["unique_graphs"]
    assert graphs > 0, "no graph reached the backend"
    breaks = dict(counters["graph_break"])
    assert graph_breaks or not breaks, f"graph breaks: {breaks}"
    error = relative_error(eager, got)
    assert len(got) == len(eager), f"{len(got)} tensors instead of {len(eager)}"
    for index, (e, g, f) in enumerate(zip(eager, got, fp64)):
        assert same([e], [g], [f], dtype), (
            f"tensor {index} of {len(eager)}, {g.dtype} {tuple(g.shape)} for {e.dtype} {tuple(e.shape)}: "
            f"relative error {relative_error([e], [g]):.2e} against eager, {relative_error([f], [g]):.2e} against fp64 "
            f"(eager has {relative_error([f], [e]):.2e})"
        )
    return Checked(error, graphs, dict(counters["mlirc"]))
