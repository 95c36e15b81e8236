"""Products of any number of rows in one compilation: what rows there are is computed and stored, and nothing beyond them is read."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlirc import CompileError
from mlirc.lowering.target import Target
from mlirc.runtime.faults import available

from .check import close

pytestmark = pytest.mark.skipif(not available(), reason="guard pages need Linux on x86-64")


class Layer(nn.Module):
    """All but the first row go through linear layers, so that one row is one of the numbers that are a symbol."""

    def __init__(self, k: int, n: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(k, n) for _ in range(outputs))


class Bias(Layer):
    def forward(self, x: Tensor, other: Tensor) -> list[Tensor]:
        return [self.layers[0](x[1:])]


class Gelu(Layer):
    def forward(self, x: Tensor, other: Tensor) -> list[Tensor]:
        return [F.gelu(self.layers[0](x[1:]))]


class Add(Layer):
    def forward(self, x: Tensor, other: Tensor) -> list[Tensor]:
        y = self.layers[0](x[1:])
        return [y, torch.relu(y) + other[1:]]


class Siblings(Layer):
    def forward(self, x: Tensor, other: Tensor) -> list[Tensor]:
        return [f(x[1:]) for f in self.layers]


class Gate(Layer):
    def forward(self, x: Tensor, other: Tensor) -> list[Tensor]:
        return [F.silu(self.layers[0](x[1:])) * self.layers[1](x[1:]) + other[1:]]


class Batches(Layer):
    """Products whose both operands are computed."""

    def forward(self, x: Tensor, other: Tensor) -> list[Tensor]:
        y = self.layers[0](x[1:]).unflatten(-1, (7, 7)).transpose(0, 1)
        return [y @ y.transpose(-1, -2) + 1, (other[1:].unflatten(-1, (7, 7)).transpose(0, 1) @ y[:, 0, :, None])[..., 0]]


@pytest.mark.sampled
@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("kind", "outputs"), [(Bias, 1), (Gelu, 1), (Add, 1), (Siblings, 3), (Gate, 2), (Batches, 1)])
def test_every_number_of_rows(kind: type[Layer], outputs: int, dtype: torch.dtype, target: str) -> None:
    try:
        Target.parse(target).check_runnable()
    except CompileError as error:
        pytest.skip(str(error))
    torch.manual_seed(0)
    torch._dynamo.reset()
    made = kind(33, 49, outputs).to(dtype)
    f = torch.compile(made, backend="mlirc", dynamic=True, options={"strict": True, "guard_pages": "both", "target": target})
    with torch.no_grad():
        for rows in [7, *range(1, 41)]:
            x, other = torch.randn(rows + 1, 33, dtype=dtype), torch.randn(rows + 1, 49, dtype=dtype)
            close(f"{rows} rows", made(x, other), f(x, other))
