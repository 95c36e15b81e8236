"""Numbers in tensors, which have no dims: ops that take a dim let 0 and -1 through, against eager mode."""

from __future__ import annotations

import pytest
import torch

from mlirc.tests.frontend.elementwise import expressions, function, matches

ANY = expressions("""
x.flip(d)
x.flip(())
torch.ops.prims.rev(x, [0])
x.roll(1)
x.cumsum(d)
x.cumprod(d)
x.cummax(d)
x.cummin(d)
x.sort(d)
x.sort(dim=d, stable=True, descending=True)
x.argsort(d)
x.max(d)
x.min(d, True)
x.sum(d)
x.prod(d, True)
x.amax((d,))
x.amin(d)
x.any(d)
x.all(d, True)
x.count_nonzero(d)
x.unsqueeze(d)
x.squeeze(d).clone()
x.transpose(d, -1).clone()
x.movedim(d, 0).clone()
x.flatten(0, d)
x.unfold(d, 1, 1).clone()
torch.stack([x, x], d)
x.index_select(d, torch.tensor([0]))
x.index_select(d, torch.tensor(0))
x.gather(d, torch.tensor([0, 0]))
x.gather(d, torch.tensor(0))
x.scatter(d, torch.tensor(0), 1)
x.scatter(d, torch.tensor([0]), x.reshape(1))
x.index_fill(d, torch.tensor([0]), 1)
x.index_copy(d, torch.tensor(0), x)
x.index_copy(d, torch.tensor([0]), x.reshape(1))
""")

NUMBERS = expressions("""
x.scatter_add(d, torch.tensor(0), x)
x.scatter(d, torch.tensor(0), x, reduce="multiply")
x.scatter_reduce(d, torch.tensor(0), x * 2, "amax")
x.scatter_reduce(d, torch.tensor(0), x * 2, "prod", include_self=False)
x.index_add(d, torch.tensor([0]), x, alpha=2)
x.aminmax(dim=d)
x.topk(1, d)
x.argmax(d)
x.argmin(d, True)
x.kthvalue(1, d)
x.median(d)
x.mode(d)
""")

FLOATS = expressions("""
x.softmax(d)
x.log_softmax(d)
x.softmax(d, dtype=torch.float64)
x.logsumexp(d)
x.logcumsumexp(d)
x.mean(d, True)
x.nansum(d)
x.nanmean(d)
x.nanmedian(d)
x.quantile(0.5, d)
x.norm(dim=d)
x.var(d, correction=0)
torch.std_mean(x, d, correction=0)
torch.linalg.vector_norm(x, 2, d)
F.normalize(x, dim=d)
F.cosine_similarity(x, x + 1, d)
""")

GRADIENTS = expressions("""
x.flip(d) * x
x.cumsum(d) * x
x.cumprod(d) * x
x.sort(d)[0] * x
x.amax(d) * x
x.softmax(d) * x
x.log_softmax(d) * x
x.logsumexp(d) * x
x.unfold(d, 1, 1) * x
x.index_select(d, torch.tensor([0])) * x
x.gather(d, torch.tensor([0, 0])) * x
x.scatter(d, torch.tensor(0), x * 2) * x
x.index_add(d, torch.tensor([0]), x) * x
""")


@pytest.mark.parametrize("number", [0.75, 3, True])
@pytest.mark.parametrize("d", [0, -1])
def test_ops_that_take_a_dim(d, number):
    texts = [*ANY, *(NUMBERS if number is not True else []), *(FLOATS if isinstance(number, float) else [])]
    matches(function(f"[{', '.join(texts)}]", "x, d"), torch.tensor(number), d, aten=True)


@pytest.mark.parametrize("d", [0, -1])
def test_gradients(d):
    matches(function(f"[{', '.join(GRADIENTS)}]", "x, d"), torch.tensor(0.75, requires_grad=True), d, aten=True, gradients=True)


def test_a_number_that_is_flipped_in_place():
    def f(x):
        y = x * 1
        z = y[..., -1]
        z.copy_(z.flip(0))
        return y + 1

    matches(f, torch.randn(8), dynamic=True)
