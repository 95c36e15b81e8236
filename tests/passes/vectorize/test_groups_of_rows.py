"""Products of rows in groups on tiles, which know their number of rows only when they run."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from .test_tile_numbers import amx  # noqa: F401


@pytest.mark.sampled
@pytest.mark.parametrize(("k", "n"), [(64, 48), (72, 400), (320, 40)])
@pytest.mark.parametrize("rows", [(1, 0, 16, 3, 47), (0, 130, 0, 0, 1), (15, 17, 31, 33, 2)])
def test_emulated_tiles(amx, k: int, n: int, rows: tuple[int, ...]) -> None:  # noqa: ANN001, F811
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(len(rows), n, k, dtype=torch.bfloat16), requires_grad=False)
    x, offs = torch.randn(sum(rows) + 5, k, dtype=torch.bfloat16), torch.tensor(rows).cumsum(0).to(torch.int32)
    compiled = torch.compile(lambda x, offs: F.grouped_mm(x, weight.mT, offs=offs), backend="mlirc")
    got = compiled(x, offs)
    want = [part.double() @ w.double().T for part, w in zip(x.split([*rows, 5]), weight)]
    torch.testing.assert_close(got.double(), torch.cat([*want, torch.zeros(5, n, dtype=torch.float64)]), rtol=2e-2, atol=2e-2)
    assert sum(amx) > 0, "no kernel used tiles"
