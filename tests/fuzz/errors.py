"""`check_errors`: a compiled function raises where the function does, and leaves its inputs as they were or as eager mode has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.decomposition import select_decomp_table

from .check import OPTIONS, Difference, differentiable
from .noise import near


def check_errors(*program: Any, **settings: Any) -> None:
    """Raises Difference. Arguments as for `check`, which is what compares the values of calls that do not fail."""
    try:
        _check("mlirc", OPTIONS, *program, **settings)
    except Difference as e:
        try:
            _check(what_is_read, None, *program, **settings)
        except Difference as other:
            e.by_torch = other.kind == e.kind
        raise


def what_is_read(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that runs AOTAutograd's graphs in eager mode, taken apart as Inductor does, without the ops whose results nobody reads."""
    import torch._inductor.lowering  # noqa: F401  # its decompositions need it, and it takes seconds

    def compiler(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.copy.default):
            written, source = (n.meta["val"] for n in node.args[:2])
            if written.shape == source.shape and written.dtype == source.dtype:  # nothing of what was there is read
                node.replace_all_uses_with(node.args[1])
        gm.graph.eliminate_dead_code()
        gm.recompile()
        return make_boxed_func(gm.forward)

    return aot_autograd(fw_compiler=compiler, decompositions=select_decomp_table(), keep_inference_input_mutations=True)(gm, example_inputs)


def _check(backend, options, f, inputs, sizes=((),), dynamic=False, grad=False, between=None) -> None:  # type: ignore[no-untyped-def]
    torch._dynamo.reset()
    ours = f() if isinstance(f, type) else None
    compiled = torch.compile(ours or f, backend=backend, dynamic=dynamic, options=options)
    for call, s in enumerate(sizes):
        theirs = f() if isinstance(f, type) else f
        if between and call:
            between(ours, call)
            for n in range(1, call + 1):
                between(theirs, n)
        fresh = inputs(*s)
        args = [inputs(*s), inputs(*s)]
        expected, got = _error(theirs, args[0], grad), _error(compiled, args[1], grad)
        where = f"sizes {s}: " if s else ""
        if expected is None and got is not None:
            raise Difference("error", f"{where}{type(got).__name__}: {got}")
        if expected is not None and got is None:
            raise Difference("no error", f"{where}instead of {type(expected).__name__}: {expected}")
        if isinstance(got, BackendCompilerFailed):
            raise Difference("message", f"{where}{type(got).__name__}: {got} instead of {type(expected).__name__}: {expected}")
        if got is None:
            continue
        for i, (x, before, after) in enumerate(zip(args[1], fresh, args[0])):
            x, before, after = x.detach(), before.detach(), after.detach()
            if x.shape != before.shape or x.shape != after.shape:
                continue
            if not near(before, x, x.dtype).all() and not near(after, x, x.dtype).all():
                raise Difference("written", f"{where}input {i} is neither what it was before nor what eager mode leaves: {type(got).__name__}: {got}")


def _error(f: Callable[..., Any], args: Sequence[torch.Tensor], grad: bool) -> Exception | None:
    for x, wanted in zip(args, differentiable(args)):
        x.requires_grad_(grad and wanted)
    try:
        with torch.set_grad_enabled(grad):
            f(*args)
    except Exception as e:
        return e
    return None
