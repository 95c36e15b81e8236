"""`compare`: a function compiled and in eager mode, on the same inputs, by PyTorch's own rule against fp64.

Inputs keep their strides, offsets and shared storages, in every run; what a run does to them is compared too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

from mlirc.benchmarks.verdict import same

OPTIONS: dict[str, Any] = {"strict": True}


def replica(tree: Any, floats: torch.dtype | None = None) -> Any:
    """Copies of all tensors, storage by storage, so that layout and aliasing stay; floating-point ones in `floats`."""
    storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    done: dict[int, torch.Tensor] = {}

    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in done:  # the same tensor twice stays one
            done[id(x)] = copy(x)
        return done[id(x)]

    def copy(x: torch.Tensor) -> torch.Tensor:
        old = x.detach()
        dtype = floats if floats is not None and old.is_floating_point() else old.dtype
        storage = old.untyped_storage()
        key = (storage.data_ptr(), dtype)
        if key not in storages or storage.data_ptr() == 0:
            whole = torch.empty(0, dtype=old.dtype).set_(storage)  # type: ignore[call-overload]
            # One element of slack keeps the address as (un)aligned as it was: the offset is in elements.
            storages[key] = whole.to(dtype, copy=True)
        new = storages[key].as_strided(old.size(), old.stride(), old.storage_offset())
        return new.requires_grad_(x.requires_grad)

    return pytree.tree_map(one, tree)


def compare(
    f: Callable[..., Any],
    *args: Any,
    dynamic: bool | None = None,
    strides: bool = True,
    options: dict[str, Any] | None = None,
    compiled: Callable[..., Any] | None = None,
) -> list[Any]:
    """Assert that `f` compiled does what `f` does: outputs (values, shapes, dtypes, strides), and changes of the inputs.

    Floating-point results are compared by `torch._dynamo.utils.same` against a run in fp64, others have to be equal.
    Returns what the compiled function returned. `compiled`: one that was compiled before, to call it again.
    """
    if compiled is None:
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(f, backend="mlirc", dynamic=dynamic, options=options or OPTIONS)
    runs = []
    for call, floats in ((f, None), (compiled, None), (f, torch.float64)):
        mine = replica(args, floats)
        out = call(*mine)
        runs.append((pytree.tree_leaves(out), pytree.tree_leaves(mine)))
    assert counters["stats"]["unique_graphs"] > 0, "no graph reached the backend"
    (eager, eager_in), (got, got_in), (fp64, fp64_in) = runs
    assert len(eager) == len(got), f"{len(got)} outputs instead of {len(eager)}"
    for n, parts in enumerate(zip(eager, got, fp64)):
        close(f"output {n}", *parts, strides=strides)
    for n, parts in enumerate(zip(eager_in, got_in, fp64_in)):
        close(f"input {n} afterwards", *parts, strides=strides)
    return got


def close(what: str, e: Any, g: Any, f: Any, strides: bool = True) -> None:
    """Assert that `g` is as good as `e`, by the reference `f`."""
    if not isinstance(e, torch.Tensor):
        assert type(e) is type(g) and (e == g or e != e), f"{what}: {g!r} instead of {e!r}"
        return
    assert isinstance(g, torch.Tensor), f"{what}: {type(g)}"
    assert (g.dtype, g.shape) == (e.dtype, e.shape), f"{what}: {g.dtype} {tuple(g.shape)} instead of {e.dtype} {tuple(e.shape)}"
    if strides and e.numel():
        moving = [d for d, n in enumerate(e.shape) if n > 1]
        assert [g.stride(d) for d in moving] == [e.stride(d) for d in moving], f"{what}: strides {g.stride()}, not {e.stride()}"
    e, g, f = e.detach(), g.detach(), f.detach()
    if not e.is_floating_point():
        assert torch.equal(e, g), f"{what}: {g} instead of {e}"
        return
    if e.numel():
        bad = (f.isnan() != g.isnan()) & (e.isnan() != g.isnan())
        assert not bad.any(), f"{what}: NaN in other places: {g} instead of {e}"
        assert same([e], [g], [f], e.dtype), f"{what}: {g} instead of {e}, differs by up to {(e.double() - g.double()).abs().max()}"


def kernels() -> list[str]:
    """Names of the kernels of the graphs compiled since `compare` began, newest graph last."""
    from mlirc.frontend.report import recorded

    return [k for r in recorded()[-counters["mlirc"]["graphs"] :] for k in r.kernels] if counters["mlirc"]["graphs"] else []


def left_to_aten() -> list[str]:
    """Ops that were left to ATen since `compare` began."""
    return sorted(counters["mlirc_aten"])
