"""`agree`: what a function does when compiled is what it does in eager mode, effects and memory included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch.utils import _pytree as pytree

from mlirc.tests.frontend.compare import replica

STRICT = {"strict": True}


def compiled(f: Any, **kwargs: Any) -> Any:
    """`f` compiled by mlirc; a kernel that fails to compile is an error."""
    return torch.compile(f, backend="mlirc", options=STRICT, **kwargs)


def agree(
    f: Callable[..., Any],
    *args: Any,
    ours: Callable[..., Any] | None = None,
    calls: int = 2,
    grad: bool = True,
    tolerance: float | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Assert that `f` compiled (or `ours`, compiled before) agrees with `f` in `calls` calls on copies of `args`.

    Compared are: outputs, arguments afterwards, which of them share memory and how, strides, `requires_grad`, gradients of the
    arguments, and whether there is an exception. `tolerance` is relative, and absolute; by default assert_close's for the dtype.
    Returns the compiled function.
    """
    ours = ours or compiled(f, **kwargs)
    for n in range(calls):
        expected, got = _run(f, args, n, grad), _run(ours, args, n, grad)
        check(expected, got, tolerance)
    return ours


def _run(f: Callable[..., Any], args: Any, seed: int, grad: bool) -> dict[str, Any]:
    mine = replica(args)
    leaves = [t for t in pytree.tree_leaves(mine) if isinstance(t, torch.Tensor)]
    wanted = [t for t in leaves if t.requires_grad]
    torch.manual_seed(seed)
    try:
        out = f(*mine)
    except Exception as e:
        return {"raises": e, "arguments": [t.detach() for t in leaves]}
    versions = [t.is_inference() or t._version > 0 for t in leaves]
    result: dict[str, Any] = {"output": out, "arguments": [t.detach() for t in leaves], "written": versions}
    tensors = leaves + [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
    result["memory"] = memory(tensors)
    result["flags"] = [(t.requires_grad, t.is_leaf, t.is_inference(), type(t).__name__) for t in tensors]
    outputs = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    if grad and wanted and outputs:
        torch.manual_seed(seed + 1)
        weights = [torch.rand_like(t) + 0.5 for t in outputs]
        result["gradients"] = torch.autograd.grad(outputs, wanted, weights, allow_unused=True)
    return result


def memory(tensors: list[torch.Tensor]) -> list[Any]:
    """For each tensor the first one with the same storage, the distance between their first elements in bytes, and strides."""
    out: list[Any] = []
    for i, t in enumerate(tensors):
        if t.layout != torch.strided or not t.numel() or t.device.type != "cpu" or t.is_nested:
            out.append(None)
            continue
        storage = t.untyped_storage().data_ptr()
        first = next(j for j, u in enumerate(tensors) if u.layout == torch.strided and u.untyped_storage().data_ptr() == storage)
        moving = [(n, s) for n, s in zip(t.shape, t.stride()) if n > 1]
        out.append((i if first == i else first, t.data_ptr() - tensors[first].data_ptr(), moving))
    return out


def check(expected: dict[str, Any], got: dict[str, Any], tolerance: float | None = None) -> None:
    """Assert that two records of `_run` are equal."""
    if "raises" in expected or "raises" in got:
        for one, other in ((expected, got), (got, expected)):
            if "raises" not in one:
                raise AssertionError(f"only one of them raises: {other['raises']!r}") from other["raises"]
        return
    for key, value in expected.items():
        if key in ("memory", "flags", "written"):
            assert got[key] == value, f"{key}: {got[key]} instead of {value}"
        else:
            close(got[key], value, key, tolerance)


def close(got: Any, expected: Any, what: str = "", tolerance: float | None = None) -> None:
    """Assert that two trees of tensors and numbers are the same, up to the tolerance."""
    leaves, tree = pytree.tree_flatten(expected)
    mine, shape = pytree.tree_flatten(got)
    assert tree == shape, f"{what}: {shape} instead of {tree}"
    for n, (e, g) in enumerate(zip(leaves, mine)):
        if isinstance(e, torch.Tensor):
            torch.testing.assert_close(g, e, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m, n=n: f"{what} {n}: {m}")
        else:
            assert type(e) is type(g) and (e == g or e != e), f"{what} {n}: {g!r} instead of {e!r}"
