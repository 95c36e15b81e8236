"""One pair in one mode: eager, compiled, the outcome."""

from __future__ import annotations

import contextlib
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters, same
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from mlirc.frontend.report import GraphReport, listening
from mlirc.tests.frontend.compare import replica

from .cases import DTYPES, Pair, Sample, samples
from .inductor import UNDEFINED, tolerance
from .verdict import Differs, compare

OUTCOMES = ("compiled", "aten", "eager", "torch", "differs", "raises", "crash", "timeout", "nothing")
"""From best to worst, as far as they can be compared:

compiled  right, all of it in kernels
aten      right, some ops left to ATen
eager     right, but no graph reaches the backend: Dynamo runs the function as it is
torch     torch.compile's own part raises or differs, with the backend `aot_eager` too
differs   other values, shapes or dtypes than eager's
raises    raises where eager does not
crash     the process died
timeout   took too long
nothing   not counted: no sample, or eager itself raises
"""
OPTIONS = {"workers": 1, "strict": True}


@dataclass
class Row:
    """The outcome of one pair in one mode: that of its worst sample."""

    op: str
    dtype: str
    mode: str
    outcome: str = "nothing"
    aten: dict[str, str] = field(default_factory=dict)
    """Op left to ATen -> reason, over all samples."""
    detail: str = ""
    sample: str = ""
    samples: int = 0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """For a line of the results file."""
        return asdict(self)


def check(pair: Pair, mode: str, backend: Any = "mlirc") -> Row:
    """Run all chosen samples of a pair; raises nothing. `backend` is what torch.compile takes."""
    row = Row(pair.name, pair.dtype, mode)
    started = time.perf_counter()
    try:
        chosen = samples(pair, mode == "gradient")
    except Exception as e:
        row.detail = f"no samples: {type(e).__name__}: {e}"
        return row
    for sample in chosen:
        outcome, detail, aten = _check_sample(pair, mode, sample, backend)
        row.aten.update(aten)
        if outcome != "nothing":
            row.samples += 1
        if row.outcome == "nothing" or (outcome != "nothing" and OUTCOMES.index(outcome) > OUTCOMES.index(row.outcome)):
            row.outcome, row.detail, row.sample = outcome, detail, str(sample)[:1000]
    row.seconds = round(time.perf_counter() - started, 2)
    return row


def _check_sample(pair: Pair, mode: str, sample: Sample, backend: Any) -> tuple[str, str, dict[str, str]]:
    """(outcome, detail, ops left to ATen with their reasons)."""
    randoms = _Randoms()
    try:
        expected = _run(sample, mode, None, watch=randoms)
    except Exception as e:
        return "nothing", f"eager raises {type(e).__name__}: {str(e)[:200]}", {}
    if mode == "gradient" and expected.gradients is None:
        return "nothing", "no output has a gradient", {}
    values = not randoms.seen and pair.name not in UNDEFINED
    with listening() as graphs, warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        outcome, detail = _compare(pair, mode, sample, expected, values, backend)
    aten = _left(graphs)
    if outcome in ("differs", "raises"):
        control, what = _compare(pair, mode, sample, expected, values, "aot_eager")
        if control != "right":
            return "torch", f"{detail} || aot_eager {control}: {what}", aten
    if outcome == "right":
        outcome = "aten" if aten else "compiled" if graphs else "eager"
        if outcome == "eager":
            detail = "; ".join(" ".join(k.split())[:300] for k in counters["graph_break"]) or "an empty graph"
    return outcome, detail, aten


def _compare(pair: Pair, mode: str, sample: Sample, expected: "_Run", values: bool, backend: Any) -> tuple[str, str]:
    """(right | differs | raises, detail)."""
    torch._dynamo.reset()
    counters.clear()
    try:
        got = _run(sample, mode, backend)
    except Exception:
        return "raises", _error()
    close = tolerance(pair.name, pair.dtype)
    exact: _Run | None = None
    for part in _PARTS:
        try:
            got.compare(part, expected, close, values)
        except Differs as e:
            if pair.dtype not in ("f16", "bf16"):
                return "differs", str(e)
            # As Inductor's test has it: where eager rounds between ops, f32 rounded once is the reference. A compiler that rounds at
            # some of the places has results of both kinds, and those in between: they may be as far off as eager's on the whole.
            try:
                exact = exact or _run(sample, mode, None, DTYPES[pair.dtype]).rounded(expected)
                got.compare(part, exact, close, values)
            except Differs as again:
                if not got.as_near(part, expected, exact, close):
                    return "differs", f"{e} || by f32: {again}"
            except Exception:
                return "differs", str(e)
    return "right", ""


_NATIVE_FRAME = re.compile(r"(\n|\\n)frame #\d+: .*?(?=\n|\\n|\Z)")
"""A line of the native stacks that torch puts into its messages, which may be quoted in another one's."""


def _error() -> str:
    """The end of the traceback of the exception in hand."""
    return _NATIVE_FRAME.sub("", traceback.format_exc(limit=-6))[-6000:]


_PARTS = {"outputs": "output", "inputs": "input afterwards", "gradients": "gradient"}
"""Field of a run -> its name in texts."""


@dataclass
class _Run:
    outputs: Any
    inputs: Any
    """Arguments, parameters and buffers afterwards."""
    gradients: list[Any] | None

    def compare(self, part: str, expected: "_Run", close: tuple[float, float] | None, values: bool) -> None:
        """Raises Differs where this field is not the same."""
        if getattr(expected, part) is not None:
            compare(_PARTS[part], getattr(self, part), getattr(expected, part), close, values)

    def as_near(self, part: str, other: "_Run", exact: "_Run", close: tuple[float, float] | None) -> bool:
        """Whether the tensors of this field are as near to exact ones as another run's, by the rule of PyTorch's benchmarks.

        Where they are not `close` to either of the two, that is; all else is equal.
        """
        mine, theirs, reference = (pytree.tree_leaves(getattr(r, part)) for r in (self, other, exact))
        try:
            compare(part, getattr(self, part), getattr(other, part), close, values=False)
            compare(part, *([x for x in leaves if not isinstance(x, torch.Tensor)] for leaves in (mine, theirs)), close)
        except Differs:
            return False
        tensors = [xs for xs in zip(theirs, mine, reference, strict=True) if isinstance(xs[0], torch.Tensor)]
        return all(_as_near(*(x.detach() for x in xs), close) for xs in tensors)

    def rounded(self, like: "_Run") -> "_Run":
        """In the dtypes of another run."""

        def one(x: Any, y: Any) -> Any:
            tensors = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
            return x.to(y.dtype) if tensors and y.is_floating_point() else x

        def tree(x: Any, y: Any) -> Any:
            leaves, spec = pytree.tree_flatten(x)
            return pytree.tree_unflatten([one(a, b) for a, b in zip(leaves, pytree.tree_leaves(y))], spec)

        return _Run(tree(self.outputs, like.outputs), tree(self.inputs, like.inputs), tree(self.gradients, like.gradients))


def _run(sample: Sample, mode: str, backend: Any, low: torch.dtype | None = None, watch: Any = None) -> _Run:
    """Call the function on copies of the sample's tensors, in eager mode or compiled; `low` tensors (f16, bf16) become f32.

    `watch` is a context around the call alone: what makes modules and cotangents draws random numbers too.
    """
    floats = None if low is None else torch.float32
    function, owned = sample.make()
    args, kwargs = _copies((sample.args, sample.kwargs), floats)
    if floats is not None and isinstance(function, torch.nn.Module):
        function = function.to(floats)
    compiled: Callable[..., Any] = function
    if backend is not None:
        options = {"options": OPTIONS} if backend == "mlirc" else {}
        compiled = torch.compile(function, backend=backend, dynamic=mode == "dynamic", **options)  # type: ignore[call-overload]
    torch.manual_seed(0)
    with torch.set_grad_enabled(mode == "gradient"), watch or contextlib.nullcontext():
        outputs = compiled(*args, **kwargs)
    gradients = None
    leaves = [x for x in (*pytree.tree_leaves((args, kwargs)), *owned) if isinstance(x, torch.Tensor)]
    if mode == "gradient":
        wanted = [x for x in leaves if x.requires_grad and x.is_leaf]
        differentiable = [
            x for x in pytree.tree_leaves(sample.differentiable_part(outputs)) if isinstance(x, torch.Tensor) and x.requires_grad
        ]
        if wanted and differentiable:
            seeds = [_cotangent(x, i, low) for i, x in enumerate(differentiable)]
            gradients = list(torch.autograd.grad(differentiable, wanted, seeds, allow_unused=True))
    return _Run(outputs, leaves, gradients)


def _as_near(e: torch.Tensor, g: torch.Tensor, r: torch.Tensor, close: tuple[float, float] | None) -> bool:
    if not e.is_floating_point():
        return torch.equal(e, g)
    finite = r.isfinite() & e.isfinite()
    others = g[~finite]
    if not (torch.isclose(e[~finite], others, equal_nan=True) | torch.isclose(r[~finite], others, equal_nan=True)).all():
        return False
    rtol, atol = close or (0.0, 0.0)
    far = finite & ~torch.isclose(g, e, rtol=rtol, atol=atol) & ~torch.isclose(g, r, rtol=rtol, atol=atol)
    return bool(same(e[far], g[far], r[far].double(), tol=1e-3))


def _copies(tree: Any, floats: torch.dtype | None) -> Any:
    """Copies of the tensors that keep layout and aliasing."""
    leaves, spec = pytree.tree_flatten(tree)
    strided = [isinstance(x, torch.Tensor) and x.layout == torch.strided and not x.is_quantized for x in leaves]
    plain = iter(replica([x for x, s in zip(leaves, strided) if s]))
    out = []
    for x, s in zip(leaves, strided):
        x = next(plain) if s else x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
        if floats is not None and isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16):
            x = x.detach().to(floats).requires_grad_(x.requires_grad)
        elif floats is not None and isinstance(x, torch.dtype) and x in (torch.float16, torch.bfloat16):
            x = floats
        out.append(x)
    return pytree.tree_unflatten(out, spec)


def _cotangent(x: torch.Tensor, seed: int, low: torch.dtype | None) -> torch.Tensor:
    """Something random like x, with the values that it has in a run in `low`."""
    generator = torch.Generator().manual_seed(seed)
    if x.layout != torch.strided:
        return torch.ones_like(x)
    wide = torch.complex128 if x.is_complex() else torch.float64
    return torch.randn(x.shape, generator=generator, dtype=wide).to(low if low and x.is_floating_point() else x.dtype).to(x.dtype)


class _Randoms(TorchDispatchMode):
    """Notices ops that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _left(graphs: list[GraphReport]) -> dict[str, str]:
    return {a.op: " ".join(a.reason.split())[:400] for g in graphs for a in g.aten}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings meanwhile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
