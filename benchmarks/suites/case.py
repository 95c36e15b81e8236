"""One case, measured in the process that this is called in."""

from __future__ import annotations

import copy
import gc
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from ..measure import peak_mb, reset_peak
from ..suite import outputs
from .rows import Case, Row

RUNS = 3
"""Calls over which the shares of kernels and of ATen are taken."""

SLOWEST = 8
"""Kernels that a row keeps."""


def measure(case: Case, builders: str | None, seconds: float, stage: Callable[[str], None]) -> Row:
    """The row of one case. `stage` is told what comes next; `seconds` of timing for each of eager and the backend, 0 only checks.

    What is run is a call of the model in eval mode, or a step of training (`benchmarks.training`), whose results are an output, the gradients
    and the buffers. The reference is a run in fp64, or in fp32 where the model cannot run in fp64 (grouped products of experts), or eager
    itself. Memory is the peak of the resident set while the model runs in eager, while the backend compiles, and in the
    backend's later calls.
    """
    import torch
    import torch._dynamo

    from .. import training, verdict
    from ..suite import DTYPES, compiled
    from .catalog import load

    torch.set_num_threads(case.threads)
    torch._dynamo.config.allow_rnn = True  # otherwise Dynamo keeps modules with an nn.LSTM from every backend
    row: Row = {**vars(case), **_about()}
    kind = getattr(torch, DTYPES[case.dtype])

    work = training.step if case.train else outputs
    with torch.set_grad_enabled(case.train):
        try:
            stage("building")
            start = time.perf_counter()
            torch.manual_seed(0)
            with torch.no_grad():
                module, args, kwargs = load(builders)[case.suite][case.model]()
            module = training.prepare(module) if case.train else module.eval()
            row["build_s"] = time.perf_counter() - start
            row["parameters"] = sum(p.numel() for p in module.parameters())
            stage("the reference")
            fp64, row["reference"] = _reference(module, args, kwargs, kind, work)
            with torch.no_grad():
                module = module.to(kind)
            args, kwargs = verdict.cast((args, kwargs), kind)
            # Steps move the statistics of batch norms: each contestant has its own.
            own = copy.deepcopy(module) if case.train else module
            stage("eager")
            reset_peak()
            eager = _seeded(lambda: work(module, module, args, kwargs))
            row["eager_peak_mb"] = peak_mb() - sum(t.nbytes for t in fp64 or ()) / 2**20
        except Exception as error:
            _raise_if_out_of_memory(error)
            return {**row, "outcome": "unbuilt", "detail": _text(error), "trace": traceback.format_exc()}
        stage("compiling")
        function = compiled(own, case.backend)

        def call() -> list[torch.Tensor]:
            return work(own, function, args, kwargs)

        try:
            got = _first_call(call, case.backend, row)
        except Exception as error:
            _raise_if_out_of_memory(error)
            return {**row, "outcome": "error", "detail": _text(error), "trace": traceback.format_exc()}
        right = verdict.same(eager, got, fp64, kind)
        names = training.names(own) if case.train else [f"output {n}" for n in range(len(eager))]
        least = training.least_magnitude(own, eager) if case.train else 0.0
        row["error"] = verdict.relative_error(eager, got, least)
        row["outcome"] = "right" if right else "wrong"
        if not right:
            row["detail"] = _difference(eager, got, names, least)
        del eager, got, fp64
        module.zero_grad(set_to_none=True)
        stage("running")
        reset_peak()
        try:
            call()
        except Exception as error:
            return _called_once(row, lambda: work(module, module, args, kwargs), error)
        row["peak_mb"] = peak_mb()
        if case.backend.startswith("mlirc"):
            _attribute(call, row)
        if seconds > 0:
            stage("timing")
            if case.train:
                _time(lambda: work(module, module, args, kwargs), call, seconds, row)
            else:
                _time(lambda: module(*args, **kwargs), lambda: function(*args, **kwargs), seconds, row)
    return row


def _called_once(row: Row, eager: Callable[[], Any], error: Exception) -> Row:
    """The row where the second call raised `error`. It may be the model that cannot be called twice, such as one that keeps what it computed
    for the next step: then the first call is all that is judged."""
    _raise_if_out_of_memory(error)
    try:
        eager()
    except Exception as theirs:
        _raise_if_out_of_memory(theirs)
        why = f"only called once: a second call in eager mode: {_text(theirs)}"
        return {**row, "once": True, "detail": "; ".join(filter(None, (row.get("detail"), why)))}
    return {**row, "outcome": "error", "detail": f"a second call: {_text(error)}", "trace": "".join(traceback.format_exception(error))}


def _raise_if_out_of_memory(error: Exception) -> None:
    """The parent tells by what the process dies of whether a limit was hit. torch's allocator raises a RuntimeError."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        raise MemoryError(str(error)) from error


def _seeded(call: Callable[[], Any]) -> Any:
    """A call with the random state of every other such call: some models draw numbers even in eval mode, of NumPy or Python."""
    import random

    import numpy
    import torch

    torch.manual_seed(1)
    numpy.random.seed(1)
    random.seed(1)
    return call()


def _reference(
    module: Any, args: tuple, kwargs: dict[str, Any], kind: Any, work: Callable[..., list[Any]] = outputs
) -> tuple[list[Any] | None, str]:
    """Results of higher precision and the name of it: fp64, or fp32 where ops of the model have no fp64 and `kind` is lower."""
    import torch

    from .. import verdict

    for precision in (torch.float64, torch.float32):
        if precision.itemsize <= kind.itemsize:
            break
        try:
            results = _seeded(lambda precision=precision: verdict.reference(module, args, kwargs, precision, work))
            return results, str(precision).removeprefix("torch.")
        except (RuntimeError, TypeError, ValueError) as error:
            _raise_if_out_of_memory(error)
        finally:
            gc.collect()
    return None, "eager"


def _first_call(call: Callable[[], Any], backend: str, row: Row) -> Any:
    """The results of the call that compiles; fills in what that took. Raises what the compiler raises."""
    from torch._dynamo.utils import counters

    from ...frontend.report import listening

    counters.clear()
    reset_peak()
    with warnings.catch_warnings(record=True) as caught, listening() as graphs:
        warnings.simplefilter("always")
        start = time.perf_counter()
        output = _seeded(call)
        row["compile_s"] = time.perf_counter() - start
    row["compile_peak_mb"] = peak_mb()
    row["graphs"] = counters["stats"]["unique_graphs"]
    row["graph_breaks"] = sum(counters["graph_break"].values())
    if backend != "eager" and not row["graphs"]:
        raise RuntimeError("no graph reached the backend")
    row["warnings"] = sorted({str(w.message).splitlines()[0][:200] for w in caught if str(w.message).startswith("mlirc")})
    if graphs:
        row["nodes"] = sum(g.nodes for g in graphs)
        row["nodes_left"] = sum(len(g.aten) for g in graphs)
        row["kernels"] = sum(len(g.kernels) for g in graphs)
        stages: dict[str, float] = {}
        for graph in graphs:
            for name, seconds in graph.seconds.items():
                stages[name] = stages.get(name, 0.0) + seconds
        row["compile_stages"] = {"torch": max(0.0, row["compile_s"] - sum(stages.values())), **stages}
        _graphs[:] = graphs
    return output


_graphs: list[Any] = []
"""What mlirc compiled in this process."""


def _attribute(call: Callable[[], Any], row: Row) -> None:
    """Where a call spends its time: shares of what is left to ATen, per op, and of the slowest kernels."""
    from ...frontend import aten
    from ...runtime import profile

    left = [node for graph in _graphs for node in graph.aten]
    for node in left:
        node.spent.seconds = 0.0
    with aten.profiling(), profile.profiling() as kernels:
        start = time.perf_counter()
        for _ in range(RUNS):
            call()
        total = time.perf_counter() - start
    groups: dict[tuple[str, str], list[float]] = {}
    for node in left:
        groups.setdefault((node.op, node.reason), []).append(node.spent.seconds / total)
    row["aten"] = [
        {"op": op, "reason": reason, "calls": len(shares), "share": sum(shares)}
        for (op, reason), shares in sorted(groups.items(), key=lambda item: -sum(item[1]))
    ]
    row["aten_share"] = sum(entry["share"] for entry in row["aten"])
    names = {symbol: name for graph in _graphs for symbol, name in graph.symbols.items()}
    dearest = sorted(kernels.items(), key=lambda item: -item[1])[:SLOWEST]
    row["slowest"] = [{"kernel": names.get(s, s), "ms": 1e3 * t / RUNS, "share": t / total} for s, t in dearest]


def _time(eager: Callable[[], Any], function: Callable[[], Any], seconds: float, row: Row) -> None:
    from ..measure import alternate, median_ms

    times = alternate({"eager": eager, "compiled": function}, seconds)
    row["eager_ms"], row["ms"] = median_ms(times["eager"]), median_ms(times["compiled"])
    row["min_ms"], row["calls"] = 1e3 * min(times["compiled"]), len(times["compiled"])
    row["speedup"] = row["eager_ms"] / row["ms"]


def _difference(eager: list[Any], got: list[Any], names: list[str], least: float) -> str:
    """In what two lists of outputs, which have these names, differ, in a few words."""
    from .. import verdict

    if len(eager) != len(got):
        return f"{len(got)} outputs instead of {len(eager)}"
    for name, a, b in zip(names, eager, got):
        if a.shape != b.shape:
            return f"{name} has the shape {list(b.shape)} instead of {list(a.shape)}"
        if a.dtype != b.dtype:
            return f"{name} is {b.dtype} instead of {a.dtype}"
    errors = verdict.relative_errors(eager, got, least)
    worst = max(range(len(errors)), key=errors.__getitem__)
    return f"values differ, most in {names[worst]}: by {errors[worst]:.0e} of its largest"


def _text(error: Exception) -> str:
    message = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {message}"[:300]


def _about() -> dict[str, str]:
    """What the row was measured with."""
    import torch

    with open("/proc/cpuinfo") as file:
        cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "unknown")
    return {"torch": torch.__version__, "cpu": cpu}
