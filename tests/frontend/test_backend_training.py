"""Forward and backward: gradients, running statistics, views and aliases under autograd."""

from __future__ import annotations

import copy

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

from mlirc.tests.frontend.compare import close, replica
from mlirc.tests.models import check

R = torch.randn


class Attention(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, n, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, width))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, i):
        return self.out(self.embed(i).relu())


def convnet():
    tail = [nn.MaxPool2d(2), nn.Conv2d(8, 5, 3, stride=2), nn.BatchNorm2d(5), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), *tail)


def mlp():
    return nn.Sequential(nn.Linear(17, 33), nn.LayerNorm(33), nn.GELU(), nn.Linear(33, 5), nn.Softmax(-1))


def activations():
    return nn.Sequential(nn.Linear(9, 10), nn.ELU(), nn.Softplus(), nn.Mish(), nn.LeakyReLU(), nn.PReLU(), nn.Tanh(), nn.SELU(), nn.GLU())


def images():
    return nn.Sequential(
        nn.Conv2d(6, 6, 3, groups=6, bias=False), nn.Hardswish(), nn.ConvTranspose2d(6, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.AvgPool2d(2)
    )


MODELS = {
    "mlp": (mlp, lambda: R(7, 17)),
    "convnet": (convnet, lambda: R(3, 3, 9, 11)),
    "images": (images, lambda: R(2, 6, 9, 8)),
    "attention": (Attention, lambda: R(2, 9, 16)),
    "tied": (Tied, lambda: torch.randint(0, 12, (3, 5))),
    "activations": (activations, lambda: R(4, 9)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_models(name, dtype):
    torch.manual_seed(1)
    build, data = MODELS[name]
    check(build(), (data(),), train=True, dtype=dtype)


@pytest.mark.parametrize("name", ["mlp", "convnet", "attention"])
def test_models_with_dynamic_sizes(name):
    torch.manual_seed(1)
    build, data = MODELS[name]
    check(build(), (data(),), train=True, dynamic=True)
    check(build(), (data(),), train=True, dtype=torch.float64)


def test_steps_of_an_optimiser():
    torch.manual_seed(0)
    eager = convnet()
    ours = copy.deepcopy(eager)
    compiled = torch.compile(ours, backend="mlirc", options={"strict": True})
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (eager, ours)]
    for _ in range(5):
        x = R(4, 3, 9, 11)
        for model, optimiser in zip((eager, compiled), optimisers):
            optimiser.zero_grad()
            model(x).square().mean().backward()
            optimiser.step()
    for a, b in zip(eager.state_dict().values(), ours.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def G(*shape):
    return R(*shape).requires_grad_()


FUNCTIONS = {
    "views": (lambda x, y: x.view(-1) + y, G(3, 4), G(12)),
    "broadcasts": (lambda x, y: x * y + x.expand(2, 3, 5, 4).sum(0), G(3, 1, 4), G(5, 1)),
    "reductions": (lambda x: x.softmax(-1).var(1) + x.norm(dim=1) + x.max(1)[0] + x.amax(1) + x.mean(1) + x.logsumexp(1), G(5, 33)),
    "products and scans": (lambda x: x.prod(1) + x.cumsum(1)[:, 1] + x.cumprod(1)[:, 2], G(5, 3)),
    "indices": (lambda x, i: x.gather(1, i).sum(1) + x[i[:, 0]].sum(1) + F.embedding(i, x).sum((1, 2)), G(5, 3), torch.tensor([[0, 1], [2, 2], [1, 1], [0, 0], [1, 2]])),
    "moves": (lambda x, y: (torch.cat([x, y], 1)[1:4, ::2], F.pad(x, (1, 2, 0, 1)), torch.where(x > 0, x, y[:, :1]), x.roll(1).flip(0)), G(5, 3), G(5, 2)),
    "matmul": (lambda x, y: (x @ y, torch.einsum("ij,kj->ik", x, y.t())), G(5, 33), G(33, 17)),
    "losses": (
        lambda x, t: F.cross_entropy(x, t, ignore_index=2, label_smoothing=0.1) + F.nll_loss(x.log_softmax(1), t) + F.mse_loss(x, x.detach() + 1)
        + F.binary_cross_entropy_with_logits(x, torch.full_like(x, 0.3)) + F.smooth_l1_loss(x, x.detach() * 2),
        G(7, 5), torch.randint(0, 5, (7,)),
    ),
    "pools": (lambda x: (F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, 1)), G(2, 3, 7, 9)),
    "unary": (lambda x: x.abs().sqrt() + x.exp().log1p() + x.sin() * x.cos() + x.tanh() ** 2 + x.sigmoid() + x.erf() + F.gelu(x) + F.silu(x) + x.clamp(-0.5, 0.5), G(50)),
    "powers": (lambda x, y: (x.abs() + 0.1) ** y + x**3 + 2.0**x + x / (y.abs() + 1), G(50), G(50)),
    "channels last": (lambda x, w: F.conv2d(x, w, padding=1).relu(), R(2, 5, 7, 9).to(memory_format=torch.channels_last).requires_grad_(), G(4, 5, 3, 3)),
    "a transposed leaf": (lambda x: x * 2, R(5, 7).t().requires_grad_()),
    "scalars": (lambda x, y: x * y, G(()), G(3)),
    "nothing to multiply": (lambda x, y: x @ y, G(3, 0), G(0, 4)),
    "an unused input": (lambda x, y: x * 2, G(3), G(3)),
    "outputs that are views": (lambda x: ((y := x * 2), y.view(-1), y[0], x.view(-1)), G(3, 4)),
    "detached parts": (lambda x: (x * 2).detach() + x, G(5)),
    "recomputation": (lambda x: torch.utils.checkpoint.checkpoint(lambda y: (y.sin() * y).exp(), x, use_reentrant=False), G(5)),
    "a gradient of zeros": (lambda x: x.sgn() * 2, G(5)),
    "sorted": (lambda x: x.sort()[0] * torch.arange(5), G(5)),
    "an input that is changed": (lambda x, y: y.add_(x.detach()).sum() * x, G(5), R(5)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name):
    f, *args = FUNCTIONS[name]
    for dynamic in (False, True):
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(f, backend="mlirc", dynamic=dynamic, options={"strict": True})
        runs = []
        for call, floats in ((f, None), (compiled, None), (f, torch.float64)):
            mine = replica(args, floats)
            out = call(*mine)
            out = [x for x in (out if isinstance(out, tuple) else (out,)) if x.requires_grad]
            generator = torch.Generator().manual_seed(3)
            seeds = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype) for x in out]
            torch.autograd.backward(out, seeds)
            runs.append([x.grad for x in mine if x.requires_grad])
        for n, parts in enumerate(zip(*runs)):
            close(f"gradient {n}", *parts, strides=False)


def test_an_empty_batch():
    module = torch.nn.BatchNorm2d(5).double()
    x = torch.randn(0, 5, 2, 2, dtype=torch.float64, requires_grad=True)
    torch.compile(module, backend="mlirc", options={"strict": True})(x).sum().backward()
    assert x.grad.shape == x.shape and not module.weight.grad.any()


def test_gradients_do_not_share_memory():
    f = torch.compile(lambda x, y: (x.view(-1) + y).sum(), backend="mlirc", options={"strict": True})
    x, y = G(3, 4), G(12)
    for _ in range(2):
        f(x, y).backward()
    x.grad.zero_()
    assert torch.equal(y.grad, torch.full((12,), 2.0))


def test_autocast():
    m = nn.Sequential(nn.Linear(17, 33), nn.GELU(), nn.LayerNorm(33), nn.Linear(33, 5))
    ours = copy.deepcopy(m)
    compiled = torch.compile(ours, backend="mlirc", options={"strict": True})
    x = R(9, 17)
    for model in (m, compiled):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
    for a, b in zip(m.parameters(), ours.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=0.05, atol=0.01)
