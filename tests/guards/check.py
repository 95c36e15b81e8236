"""Run fused groups of many sizes between guard pages, forward and backward, against eager mode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch._dynamo
from torch import Tensor
from torch.utils import _pytree as pytree

from .groups import GROUPS, Pair

# NaN or -1 is what unwritten memory holds, so that rounding need not be told from errors here.
TOLERANCES: dict[torch.dtype, dict[str, float]] = {
    torch.float64: {"rtol": 1e-4, "atol": 1e-4},
    torch.float32: {"rtol": 1e-3, "atol": 1e-3},
    torch.float16: {"rtol": 2e-2, "atol": 2e-2},
    torch.bfloat16: {"rtol": 8e-2, "atol": 1e-1},
}


def run(pairs: list[Pair], seeds: list[list[Tensor]] | None, options: dict[str, Any] | None) -> list[list[Tensor]]:
    """Outputs of each pair, and the gradients of its inputs for the `seeds`, if given; compiled with `options`, if given.

    All pairs make one graph: Dynamo's work for each would take longer than everything else.
    """
    functions = [f for f, _ in pairs]
    inputs = [[x.detach().requires_grad_(seeds is not None and x.is_floating_point()) for x in tensors] for _, tensors in pairs]

    def together(inputs: list[list[Tensor]]) -> list[object]:
        return [f(*x) for f, x in zip(functions, inputs)]

    if options is not None:
        together = torch.compile(together, backend="mlirc", options=options, dynamic=False)
    outputs = [pytree.tree_leaves(out) for out in together(inputs)]
    if seeds is None:
        return outputs
    live = [[x for x in out if x.requires_grad] for out in outputs]
    flat, wanted = [x for out in live for x in out], [x for xs in inputs for x in xs if x.requires_grad]
    gradients = iter(torch.autograd.grad(flat, wanted, [s for group in seeds for s in group], allow_unused=True) if flat else ())
    found = [[next(gradients) if x.requires_grad else None for x in xs] for xs in inputs] if flat else [[] for _ in inputs]
    return [[*(x.detach() for x in out), *(g for g in grads if g is not None)] for out, grads in zip(outputs, found)]


def check(
    group: str,
    sizes: Iterable[int],
    dtype: torch.dtype,
    *,
    backward: bool = False,
    target: str = "host",
    placement: str = "both",
    passes: Sequence[str] = (),
) -> None:
    """Assert that a group's kernels stay inside of their buffers for these sizes, and compute what eager mode does.

    `passes` are files with passes for the compiler, to see what becomes of wrong ones.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    sizes = list(sizes)
    cases = [(n, i, pair) for n in sizes for i, pair in enumerate(GROUPS[group](n, dtype))]
    pairs = [pair for _, _, pair in cases]
    seeds = None
    if backward:
        seeds = []
        for f, inputs in pairs:
            out = pytree.tree_leaves(f(*(x.detach().requires_grad_(x.is_floating_point()) for x in inputs)))
            seeds.append([torch.randn(x.shape).to(x.dtype) for x in out if x.requires_grad])
    options = {"strict": True, "guard_pages": placement, "target": target, "passes": passes}
    expected = run(pairs, seeds, None)
    got = run(pairs, seeds, options)
    for (n, i, _), e, g in zip(cases, expected, got):
        close(f"{group} {i}, n = {n}", e, g)


def check_symbolic(group: str, sizes: Iterable[int], dtype: torch.dtype, *, target: str = "host", placement: str = "both") -> None:
    """The same, forward only, with kernels that are compiled once for all sizes (those that torch does not specialise)."""
    torch.manual_seed(0)
    options = {"strict": True, "guard_pages": placement, "target": target}
    compiled: list[Any] = []
    for n in sizes:
        for i, (f, inputs) in enumerate(GROUPS[group](n, dtype)):
            if i == len(compiled):
                torch._dynamo.reset()
                compiled.append(torch.compile(f, backend="mlirc", options=options, dynamic=True))
            close(f"{group} {i}, n = {n}", pytree.tree_leaves(f(*inputs)), pytree.tree_leaves(compiled[i](*inputs)))


def close(where: str, expected: list[Tensor], got: list[Tensor]) -> None:
    """Assert that results agree up to rounding."""
    assert len(expected) == len(got), f"{where}: {len(got)} tensors instead of {len(expected)}"
    for k, (e, g) in enumerate(zip(expected, got)):
        tolerance = TOLERANCES.get(e.dtype, {"rtol": 0, "atol": 0})
        torch.testing.assert_close(g, e, msg=lambda m, k=k: f"{where}, tensor {k}: {m}", **tolerance)
