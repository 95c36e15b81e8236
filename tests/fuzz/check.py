"""`check`: a function compiled by mlirc does what it does in eager mode, for each set of sizes, on one compilation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.utils import _pytree as pytree

from . import custom
from .noise import Double, Noise, excused, near
from .tensors import tensor

OPTIONS: dict[str, Any] = {"strict": True, "workers": 1}


class Difference(AssertionError):
    """What the compiled function does otherwise. `kind` is one word; `by_torch`: AOTAutograd alone does it as well."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message, self.by_torch = kind, message, False


def check(
    f: Callable[..., Any],
    inputs: Callable[..., tuple[torch.Tensor, ...]],
    sizes: Sequence[tuple[int, ...]] = ((),),
    dynamic: bool | None = False,
    grad: bool = False,
    between: Callable[[Any, int], None] | None = None,
) -> None:
    """Raises Difference where `f` compiled differs from `f`: outputs, gradients, inputs afterwards, layouts, aliasing.

    `inputs(*s)` makes fresh arguments for each `s` of `sizes`; the calls share one compilation. With `grad`, the
    floating-point inputs require gradients, and those of the outputs are compared. Exact but for what rounding explains.

    `f` may be a class of modules; `between(module, n)` writes to what it keeps before call n, for n > 0. What a call has
    returned stays what it is in later calls, some of it; the rest is overwritten, which later calls do not see.
    """
    arguments = f, inputs, sizes, dynamic, grad, between
    try:
        _check(*arguments, "mlirc", OPTIONS)
    except Difference as e:
        try:
            _check(*arguments, as_announced if e.kind in ("strides", "type") else "aot_eager", None, e.kind)
        except Difference as other:
            # Where torch is wrong about strides inside of the graph, a view of it may fail.
            e.by_torch = other.kind == e.kind or (e.kind, other.kind) == ("strides", "error")
        # Where aot_eager has wrong values, we refuse.
        e.by_torch |= any(text in e.message for text in ("takes for a view", "takes them for separate"))
        raise


def as_announced(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that runs AOTAutograd's graphs in eager mode, with results of the strides and types that torch's fake tensors have.

    That is what every compiler does. They are wrong for batch norm of a transposed input, for instance, and for a bool tensor ** True.
    """

    def compiler(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        (output,) = (n for n in gm.graph.nodes if n.op == "output")
        announced = [n.meta.get("val") if isinstance(n, torch.fx.Node) else None for n in output.args[0]]
        expected = [n.meta.get("val") for n in gm.graph.find_nodes(op="placeholder")]

        def run(*args: Any) -> list[Any]:
            # With dynamic shapes, strides are expressions of the sizes that the graph is given.
            sizes = {e.node.expr: n for e, n in zip(expected, args) if isinstance(e, torch.SymInt)}
            results = list(gm(*args))
            for i, (x, like) in enumerate(zip(results, announced)):
                if not isinstance(x, torch.Tensor):
                    continue
                strides = [s if isinstance(s, int) else int(s.node.expr.xreplace(sizes)) for s in like.stride()]
                if list(x.stride()) != strides or x.dtype != like.dtype:
                    part = x[tuple(slice(None) if s else slice(0, 1) for s in strides)]  # the rest repeats it
                    results[i] = torch.empty_strided(part.shape, strides, dtype=like.dtype).copy_(part).expand(x.shape)
            return results

        return make_boxed_func(run)

    return aot_autograd(fw_compiler=compiler, keep_inference_input_mutations=True)(gm, example_inputs)


def _check(f, inputs, sizes, dynamic, grad, between, backend, options, only="") -> None:  # type: ignore[no-untyped-def]
    torch._dynamo.reset()
    ours = f() if isinstance(f, type) else None
    compiled = torch.compile(ours or f, backend=backend, dynamic=dynamic, options=options)
    earlier: list[tuple[Run, Run]] = []
    for call, s in enumerate(sizes):
        where = (f"call {call}, " if call and sizes.index(s) != call else "") + (f"sizes {s}: " if s else "")
        if between and call:
            between(ours, call)
        state = {name: x.detach().clone() for name, x in kept(ours).items()}

        def eagerly(mode=None, s=s, call=call, state=state):  # type: ignore[no-untyped-def]
            """Eager mode on a module that keeps what the compiled one has kept so far."""
            theirs = f() if isinstance(f, type) else None
            for n in range(1, call + 1) if between else ():
                between(theirs, n)
            with torch.no_grad():
                for name, x in kept(theirs).items():
                    x.copy_(state[name])
            return Run(theirs or f, inputs(*s), grad, mode, theirs)

        eager = eagerly()
        try:
            got = Run(compiled, inputs(*s), grad, None, ours)
        except Exception as e:
            raise Difference("error", f"{where}{type(e).__name__}: {e}") from e
        compare(eager, got, where, eagerly, only)
        earlier.append((eager, got))
        for n, (old, new) in enumerate(earlier):
            changed = new.changed() - old.changed()
            if changed and only in ("", "kept"):
                raise Difference("kept", f"{where}changes {', '.join(sorted(changed))} of call {n}")
        if call + 1 < len(sizes):
            got.overwrite(call, eager)


def differentiable(args: Sequence[torch.Tensor]) -> list[bool]:
    """Which of the inputs require gradients in a program that computes them."""
    return [x.is_floating_point() and x._base is None for x in args]


def kept(module: torch.nn.Module | None) -> dict[str, torch.Tensor]:
    """Parameters and buffers."""
    if module is None:
        return {}
    return {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers(remove_duplicate=False))}


class Run:
    """One call: tensors by name (outputs, gradients, inputs afterwards), and which of them share memory."""

    def __init__(self, f: Callable[..., Any], args: Sequence[torch.Tensor], grad: bool, mode: Any = None, module: Any = None) -> None:
        args = list(args)
        leaves = differentiable(args)  # before conversion: copies are no views any more
        if isinstance(mode, Double):
            # Views of each other stay so only within a type; programs with such inputs have no f64 run.
            args = [x.double() if x.is_floating_point() else x for x in args]
            if module is not None:
                module.double()
        if grad:
            for x, wanted in zip(args, leaves):
                x.requires_grad_(wanted)
        self.tensors: dict[str, torch.Tensor] = {}
        self.module = module
        custom.LOG.clear()
        if mode is None:
            self._run(f, args, grad)
        else:
            with mode:
                self._run(f, args, grad)
        # What was returned, or kept by an op, with copies of it.
        self.left = {name: (x, x.clone()) for name, x in self.tensors.items() if name.startswith("output")}
        self.left |= {f"kept {n}": pair for n, pair in custom.LOG.items()}
        self.tensors |= {f"kept {n}": copy for n, (_, copy) in custom.LOG.items()}

    def _run(self, f: Callable[..., Any], args: list[torch.Tensor], grad: bool) -> None:
        if grad:
            leaves = self._call(f, args)
            wanted = [x for x in [*args, *kept(self.module).values()] if x.requires_grad and x.is_leaf]
            # A view that is older than its base's gradients says that it requires one, and can have none.
            outs = [o for o in leaves if o.requires_grad and not (o.is_leaf and o._base is not None)]
            if outs and wanted:
                weights = [tensor(o.shape, torch.float32, i).to(o.dtype) for i, o in enumerate(outs)]
                grads = torch.autograd.grad(outs, wanted, weights, allow_unused=True)
                for i, g in enumerate(grads):
                    self.tensors[f"gradient {i}"] = torch.zeros(()) if g is None else g.detach()
        else:
            with torch.no_grad():
                self._call(f, args)

    def _call(self, f: Callable[..., Any], args: list[torch.Tensor]) -> list[torch.Tensor]:
        leaves = pytree.tree_leaves(f(*args))
        everything = {**{f"output {i}": o for i, o in enumerate(leaves)}, **{f"input {i}": x for i, x in enumerate(args)}}
        everything |= kept(self.module)
        self.tensors = {name: x.detach() for name, x in everything.items()}
        self.require = {name: x.requires_grad for name, x in everything.items()}
        everything = {**{f"kept {n}": x for n, (x, _) in custom.LOG.items()}, **everything}
        # Who shares memory with whom, the first one named, and where in it.
        first: dict[int, tuple[str, int]] = {}
        self.shares: dict[str, tuple[str, int]] = {}
        for name, x in reversed(everything.items()):
            if x.numel():
                start = x.untyped_storage().data_ptr()
                owner, place = first.setdefault(start, (name, x.data_ptr()))
                self.shares[name] = (owner, x.data_ptr() - place)
        return leaves

    def own(self, name: str) -> bool:
        """A result in memory of its own, or of other results."""
        return self.shares.get(name, (name, 0))[0].startswith(("output", "kept"))

    def changed(self) -> set[str]:
        """Which results, and what ops keep, are no more what they were at the end of the call."""
        return {name for name, (x, was) in self.left.items() if not self.own(name) or not ((x == was) | (x.isnan() & was.isnan())).all()}

    def overwrite(self, call: int, eager: Run) -> None:
        """Some of the results: every second one of those that are in different memory."""
        owners = sorted({owner for name, (owner, _) in eager.shares.items() if name.startswith("output") and eager.own(name)})
        chosen = [o for i, o in enumerate(owners) if (i + call) % 2]
        for name in [n for n in self.left if self.shares.get(n, ("", 0))[0] in chosen]:
            x, _ = self.left.pop(name)
            if all(n <= 1 or s for n, s in zip(x.shape, x.stride())):
                x.fill_(77)


def compare(eager: Run, got: Run, where: str, again: Callable[[Any], Run], only: str = "") -> None:
    """Raises Difference, of the kind `only` if one is given. `again(mode)` runs eager mode once more."""

    def differs(kind: str, message: str) -> None:
        if only in ("", kind):
            raise Difference(kind, where + message)

    expected_names, got_names = ([n for n in run.tensors if not n.startswith("kept")] for run in (eager, got))
    if expected_names != got_names:
        raise Difference("outputs", f"{where}{got_names} instead of {expected_names}")
    names = []
    for name, e in eager.tensors.items():
        if name not in got.tensors:
            continue
        g = got.tensors[name]
        if (g.dtype, g.shape) != (e.dtype, e.shape):
            differs("type", f"{name} is {g.dtype} {tuple(g.shape)} instead of {e.dtype} {tuple(e.shape)}")
            continue
        moving = [d for d, n in enumerate(e.shape) if n > 1]
        if e.numel() and not name.startswith(("gradient", "kept")) and [g.stride(d) for d in moving] != [e.stride(d) for d in moving]:
            differs("strides", f"{name} has shape {tuple(g.shape)}, strides {g.stride()} instead of {e.stride()}")
        if not near(e, g, e.dtype).all():
            names.append(name)
    if eager.require != got.require:
        differs("requires_grad", f"{got.require} instead of {eager.require}")
    shares = [{name: by for name, by in run.shares.items() if not name.startswith("kept")} for run in (eager, got)]
    if shares[0] != shares[1]:
        differs("aliasing", f"{shares[1]} instead of {shares[0]}")
    if not names:
        return

    def rerun(mode: Any) -> list[torch.Tensor]:
        run = again(mode)
        return [run.tensors.get(n, torch.empty(0)) for n in names]

    def noisy(seed: int) -> list[torch.Tensor]:
        try:
            return rerun(Noise(seed))
        except RuntimeError:  # noise has moved an operand out of the range that an op accepts
            return [torch.empty(0) for _ in names]

    try:
        exact: list[torch.Tensor] | None = rerun(Double())
    except RuntimeError:  # the program needs the types it names (index_put, two inputs that share memory)
        exact = None
    expected, results = [eager.tensors[n] for n in names], [got.tensors[n] for n in names]
    good = excused(expected, results, exact, noisy, runs=40)
    for name, e, g, ok in zip(names, expected, results, good):
        if not ok.all():
            at = tuple((~ok).nonzero()[0].tolist())
            differs(
                "values",
                f"{name}, {e.dtype} {tuple(e.shape)}: {(~ok).sum()} of {ok.numel()} elements differ,"
                f" at {list(at)} {g[at].item()!r} instead of {e[at].item()!r}",
            )
