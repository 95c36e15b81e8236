"""`matches`: a compiled function against eager mode, element by element. A wrong value in one place does not hide among
many right ones, as it can where norms are compared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

from mlirc.tests.frontend.compare import OPTIONS, left_to_aten, replica

TOLERANCES = {torch.float64: (1e-9, 1e-10), torch.float32: (2e-5, 2e-6), torch.bfloat16: (1.6e-2, 1e-3), torch.float16: (2e-3, 1e-4)}
"""Relative and absolute, to be multiplied by the `factor` of a test."""


ROUNDED = {**OPTIONS, "rounding": "ops"}
"""Options for what is compared with eager mode's 16-bit floats, whose roundings cancellation makes large."""


def close(what: str, e: torch.Tensor, g: torch.Tensor, factor: float, exact: torch.Tensor | None = None) -> None:
    """Assert that `g` is `e`: shape, dtype, and every element, which may also be nearer to an `exact` one."""
    assert (e.shape, e.dtype) == (g.shape, g.dtype), f"{what}: {g.dtype} {tuple(g.shape)} for {e.dtype} {tuple(e.shape)}"
    if e.dtype.is_floating_point:
        rtol, atol = (t * factor for t in TOLERANCES[e.dtype])
        right = torch.isclose(e, g, rtol=rtol, atol=atol, equal_nan=True)
        if exact is not None:
            right |= (g.double() - exact).abs() <= (e.double() - exact).abs()
    else:
        right = e == g
    if not right.all():
        place = tuple((~right).nonzero()[0].tolist())
        count = int((~right).sum())
        raise AssertionError(f"{what}: {count} of {e.numel()} differ, at {place}: {g[place].item()} instead of {e[place].item()}")


def matches(
    f: Callable[..., Any],
    *args: Any,
    dynamic: bool = False,
    factor: float = 1,
    aten: bool = False,
    gradients: bool = False,
) -> None:
    """Assert that `f` compiled gives what `f` gives, and, with `gradients`, the same gradients of what requires them.

    Of 16-bit arguments, results may be nearer to those of fp64 than eager mode's. `aten`: whether ops may be left to ATen.
    """
    torch._dynamo.reset()
    counters.clear()
    mine, theirs = replica(args), replica(args)
    expected = [t for t in pytree.tree_leaves(f(*theirs)) if isinstance(t, torch.Tensor)]
    got = [t for t in pytree.tree_leaves(torch.compile(f, backend="mlirc", dynamic=dynamic, options=OPTIONS)(*mine)) if isinstance(t, torch.Tensor)]
    assert len(expected) == len(got)
    for i, (e, g) in enumerate(zip(expected, got)):
        try:
            close(f"output {i}", e.detach(), g.detach(), factor)
        except AssertionError:
            if e.dtype not in (torch.bfloat16, torch.float16):
                raise
            exact = [t for t in pytree.tree_leaves(f(*replica(args, torch.float64))) if isinstance(t, torch.Tensor)]
            close(f"output {i}", e.detach(), g.detach(), factor, exact[i].detach())
    if gradients:
        seeds = [torch.randn_like(e) for e in expected]
        for outputs in (expected, got):
            torch.autograd.backward([o for o in outputs if o.requires_grad], [s for o, s in zip(outputs, seeds) if o.requires_grad])
        for i, (e, g) in enumerate(zip(pytree.tree_leaves(theirs), pytree.tree_leaves(mine))):
            if isinstance(e, torch.Tensor) and e.grad is not None:
                assert g.grad is not None
                close(f"gradient of {i}", e.grad, g.grad, factor * 10)
    assert counters["stats"]["unique_graphs"] > 0, "no graph reached the backend"
    assert aten or not left_to_aten(), f"left to ATen: {left_to_aten()}"


def module_matches(module: torch.nn.Module, x: torch.Tensor, dynamic: bool = False, factor: float = 1) -> None:
    """Assert that a module compiled has eager mode's output, gradients (of x and the parameters) and buffers."""
    torch._dynamo.reset()
    counters.clear()
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    modules = [module, copy.deepcopy(module)]
    compiled = torch.compile(modules[1], backend="mlirc", dynamic=dynamic, options=ROUNDED)
    e, g = module(inputs[0]), compiled(inputs[1])
    seed = torch.randn_like(e)
    e.backward(seed), g.backward(seed)
    close("output", e.detach(), g.detach(), factor)
    pairs = [("input", *inputs), *((n, p, modules[1].get_parameter(n)) for n, p in module.named_parameters())]
    for what, p, q in pairs:
        assert p.grad is not None and q.grad is not None
        close(f"gradient of {what}", p.grad, q.grad, factor * 10)
    for what, b in module.named_buffers():
        close(what, b, modules[1].get_buffer(what), factor)
    assert not left_to_aten(), f"left to ATen: {left_to_aten()}"


def expressions(table: str) -> list[str]:
    """The lines of a table of Python expressions."""
    return [line.strip() for line in table.strip().splitlines()]


def function(text: str, arguments: str = "x") -> Callable[..., Any]:
    """A function of the tensor arguments from an expression."""
    names = {"torch": torch, "F": torch.nn.functional}
    return eval(f"lambda {arguments}: {text}", names)  # noqa: S307
