"""Masks of numbers alone that are those of `is_causal`: which are found, and that the results stay what they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from mlirc.frontend import backend, causal_masks
from mlirc.frontend.causal_masks import name_causal_masks

from .compare import compare, left_to_aten


def heads(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(2, n, 3, 16, dtype=dtype).transpose(1, 2)


def computed(q: torch.Tensor) -> torch.Tensor:
    """As transformers does: the places of queries and keys looked up, and packed sequences told apart by jumps of the places."""
    places = torch.arange(q.shape[2])[None]
    sequences = (torch.diff(places, prepend=places[:, :1] - 1) != 1).cumsum(-1)
    b, i, j = torch.arange(1)[:, None, None, None], torch.arange(q.shape[2])[:, None], torch.arange(q.shape[2])
    return (places[b, j] <= places[b, i]) & (sequences[b, i] == sequences[b, j])


CAUSAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "computed": computed,
    "bools": lambda q: torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(),
    "inf": lambda q: torch.full((q.shape[2], q.shape[2]), float("-inf"), dtype=q.dtype).triu(1),
    "lowest": lambda q: torch.full((1, 1, q.shape[2], q.shape[2]), torch.finfo(q.dtype).min, dtype=q.dtype).triu(1),
}
OTHERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a window": lambda q: torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril().triu(-9),
    "one key more": lambda q: torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(1),
    "one key": lambda q: torch.ones(q.shape[2], 1, dtype=torch.bool),
    "one batch": lambda q: torch.stack([torch.ones(q.shape[2], q.shape[2]).tril(), torch.ones(q.shape[2], q.shape[2])])[:, None] > 0,
    "low numbers": lambda q: torch.full((q.shape[2], q.shape[2]), -1e4, dtype=q.dtype).triu(1),
    "of an argument": lambda q: torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril() & (q[0, 0, :, :1] < 99),
    "chance": lambda q: torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril() & (torch.rand(()) < 2),
}


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many nodes of each graph have been."""
    found: list[int] = []
    monkeypatch.setattr(backend, "name_causal_masks", lambda gm: found.append(name_causal_masks(gm)))
    return found


@pytest.mark.parametrize("case", [*CAUSAL, *OTHERS])
@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
def test_masks(case: str, gradients: bool, changed: list[int]) -> None:
    torch.manual_seed(0)

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = q
        for _ in range(2):
            out = F.scaled_dot_product_attention(out, k, v, (CAUSAL | OTHERS)[case](q))
        return out

    inputs = [heads(33).requires_grad_(gradients) for _ in range(3)]
    compare(f, *inputs)
    assert not left_to_aten()
    assert set(changed) == {(4 if gradients else 2) if case in CAUSAL else 0}


def test_masks_of_sizes_that_are_symbols(changed: list[int]) -> None:
    f = torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q, computed(q)), backend="mlirc", options={"strict": True})
    for n in (20, 33):
        q = heads(n)
        torch._dynamo.mark_dynamic(q, 2)
        with torch.no_grad():
            torch.testing.assert_close(f(q), F.scaled_dot_product_attention(q, q, q, computed(q)), atol=1e-5, rtol=1e-5)
    assert changed == [0]


def test_the_lowest_number_of_f16_hides_nothing_from_large_scores() -> None:
    q = torch.full((1, 1, 4, 64), 300.0).half()
    k, v = q.clone(), torch.arange(4.0).half()[None, None, :, None].expand(1, 1, 4, 64).contiguous()
    k[:, :, :2] *= -1
    compare(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, CAUSAL["lowest"](q)), q, k, v)


def test_what_layers_compute_alike_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []
    looked = causal_masks._is_causal
    monkeypatch.setattr(causal_masks, "_is_causal", lambda *args: (judged.append(1), looked(*args))[1])

    def f(q: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            q = F.scaled_dot_product_attention(q, q, q, computed(q))
        return q

    compare(f, heads(33))
    assert len(judged) == 1


def test_no_mask_is_kept_for_the_backward_pass() -> None:
    """Of [n, n], for each layer."""
    kept: list[torch.Size] = []
    q = heads(65).requires_grad_()
    f = torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q, CAUSAL["inf"](q)), backend="mlirc")
    torch._dynamo.reset()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.shape), t)[1], lambda t: t):
        f(q).sum().backward()
    assert kept and not any(shape[-2:] == (65, 65) for shape in kept)
