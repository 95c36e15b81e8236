"""Whole models, backends side by side: right, how fast, how long to compile.

Every case (model, dtype, number of threads) is a fresh process. In it all backends compile the same module, each is
checked with torch._dynamo.utils.same against fp64, and then their calls are timed in turns, so that the ratios hold even
where the machine's speed drifts. With --train, calls are steps of training, and gradients and buffers are checked as well.

With --compile-time instead: every (model, backend) is a fresh process with empty caches, and what is printed is the
first call's time above that of the aot_eager backend, which is torch's own share of the work. With --memory: the same kind of
process, and the peak of its resident set in later calls above what it had with the model alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64"}


def chosen_models(text: str) -> list[str]:
    """The cases that an option names, NAME or NAME@SIZE, with commas between them. Raises UsageError, listing the models, for others."""
    from .models import parse

    for model in text.split(","):
        try:
            parse(model)
        except (KeyError, ValueError) as error:
            raise click.UsageError(error.args[0]) from None
    return text.split(",")


def chosen_dtypes(text: str) -> list[str]:
    """The dtypes that an option names, with commas between them. Raises UsageError, listing those that there are, for others."""
    if unknown := set(text.split(",")) - set(DTYPES):
        raise click.UsageError(f"unknown {', '.join(sorted(unknown))}; dtypes: {', '.join(DTYPES)}")
    return text.split(",")


def compiled(module: Any, backend: str) -> Any:
    """`module` compiled by a backend; `inductor-freeze` and `inductor-autotune` are Inductor at its best for inference,
    `mlirc-autotune` is mlirc with measured strategies. With `-dynamic` at the end, all sizes of arguments are symbols."""
    import torch

    dynamic = True if backend.endswith("-dynamic") else None
    backend = backend.removesuffix("-dynamic")
    if backend == "eager":
        return module
    if backend.startswith("inductor"):
        import torch._inductor.config as config

        config.freezing = backend != "inductor"
        return torch.compile(module, mode="max-autotune" if backend == "inductor-autotune" else None, dynamic=dynamic)
    if backend == "mlirc-autotune":
        return torch.compile(module, backend="mlirc", mode="max-autotune", dynamic=dynamic)
    return torch.compile(module, backend=backend, dynamic=dynamic)


def outputs(module: Any, call: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> list[Any]:
    """The tensors that a call of `module`, or of what it was compiled to, returns: what is done in a call that trains nothing."""
    from .verdict import tensors

    return tensors(call(*args, **kwargs))


def first_call(
    module: Any, args: tuple, kwargs: dict[str, Any], backend: str, work: Callable[..., Any] = outputs
) -> tuple[Any, Any, float]:
    """The compiled callable, what `work` first gives with it and the seconds until that was there. Raises whatever the compiler raises."""
    from torch._dynamo.utils import counters

    counters.clear()  # and nothing is reset: the contestants before this one are still needed
    start = time.perf_counter()
    call = compiled(module, backend)
    output = work(module, call, args, kwargs)
    seconds = time.perf_counter() - start
    if backend != "eager" and not counters["stats"]["unique_graphs"]:
        raise RuntimeError("no graph reached the backend")
    return call, output, seconds


def run_case(model: str, dtype: str, threads: int, backends: list[str], seconds: float, train: bool = False) -> list[dict[str, Any]]:
    """One row per backend, measured in this process. `seconds` of timing for each backend; 0 only checks. With `train`, of training steps.

    A row has compile_s, same, error and, when timed, median and fastest ms and the ratio of eager's median to it; or
    `failure`. Modules are deep copies, since a backend may keep what it has learnt on the module.
    """
    import copy

    import torch
    import torch._dynamo

    from . import training, verdict
    from .measure import alternate, median_ms
    from .models import build

    torch.set_num_threads(threads)
    torch._dynamo.config.allow_rnn = True  # otherwise Dynamo keeps modules with an nn.LSTM from every backend
    kind = getattr(torch, DTYPES[dtype])
    module, args, kwargs = build(model)
    work = training.step if train else outputs
    rows: dict[str, dict[str, Any]] = {}
    calls = {}
    with torch.set_grad_enabled(train):
        if train:
            training.prepare(module)

        def eager(kind: torch.dtype) -> list[torch.Tensor]:
            own = copy.deepcopy(module).to(kind)
            return work(own, own, *verdict.cast((args, kwargs), kind))

        fp64 = [x.double() if x.is_floating_point() else x for x in eager(torch.float64)]
        expected = eager(kind)
        module = module.to(kind)
        args, kwargs = verdict.cast((args, kwargs), kind)
        for backend in backends:
            row = rows[backend] = {"model": model, "dtype": dtype, "threads": threads, "backend": backend}
            own = copy.deepcopy(module)
            try:
                call, got, row["compile_s"] = first_call(own, args, kwargs, backend, work)
                row["same"] = verdict.same(expected, got, fp64, kind)
                row["error"] = verdict.relative_error(expected, got, training.least_magnitude(module, expected) if train else 0.0)
                calls[backend] = (lambda own=own, call=call: work(own, call, args, kwargs)) if train else lambda call=call: call(*args, **kwargs)
            except Exception as error:  # one backend's failure must not hide the others
                row["failure"] = f"{type(error).__name__}: {error}"
        if seconds > 0:
            timed = alternate(calls, seconds)
            for backend, times in timed.items():
                rows[backend].update(ms=median_ms(times), min_ms=1e3 * min(times), calls=len(times))
                if "eager" in timed:
                    rows[backend]["speedup"] = median_ms(timed["eager"]) / median_ms(times)
    return list(rows.values())


def memory_case(model: str, dtype: str, threads: int, backend: str) -> list[dict[str, Any]]:
    """One row: the resident set before anything is compiled, its peak during later calls, and what ours says it keeps."""
    import torch
    import torch._dynamo

    from mlirc.frontend.report import listening

    from .measure import peak_mb, reset_peak
    from .models import build_in

    torch.set_num_threads(threads)
    torch._dynamo.config.allow_rnn = True
    row: dict[str, Any] = {"model": model, "dtype": dtype, "threads": threads, "backend": backend, "same": True}
    module, args, kwargs = build_in(model, getattr(torch, DTYPES[dtype]))
    with torch.no_grad(), listening() as graphs:
        reset_peak()
        row["model_mb"] = peak_mb()
        try:
            call, _, _ = first_call(module, args, kwargs, backend)
        except Exception as error:
            return [{**row, "same": False, "failure": f"{type(error).__name__}: {error}"}]
        for _ in range(3):
            call(*args, **kwargs)
        reset_peak()
        for _ in range(3):
            call(*args, **kwargs)
        row["peak_mb"] = peak_mb()
    row["packed_mb"] = sum(g.packed_bytes for g in graphs) / 2**20
    row["arena_mb"] = sum(g.arena_bytes or 0 for g in graphs) / 2**20
    return [row]


def _child(arguments: list[str], threads: int, timeout: float, caches: str | None) -> tuple[list[dict[str, Any]], str]:
    """Run this module in a fresh process; its rows, and what went wrong if it died. `caches` is a folder for all caches."""
    env = dict(os.environ, OMP_NUM_THREADS=str(threads))
    if caches:
        options = ",".join(filter(None, [env.get("MLIRC_OPTIONS", ""), f"cache_dir={caches}/mlirc"]))
        env.update(MLIRC_OPTIONS=options, TORCHINDUCTOR_CACHE_DIR=f"{caches}/inductor", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    command = [sys.executable, "-W", "ignore", "-m", "mlirc.benchmarks.suite", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env, check=False)
    except subprocess.TimeoutExpired:
        return [], f"no result after {timeout:.0f} s"
    rows = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ROW ")]
    return rows, "" if rows else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _describe(row: dict[str, Any]) -> str:
    head = f"{row['model']:14} {row['dtype']:4} t{row['threads']} {row['backend']:18}"
    if "failure" in row:
        return f"{head} FAILED {row['failure'].splitlines()[0][:120]}"
    if "peak_mb" in row:
        kept = f", of which packed weights {row['packed_mb']:.0f} MiB, intermediates {row['arena_mb']:.0f} MiB" if row["packed_mb"] else ""
        return f"{head} {row['peak_mb'] - row['model_mb']:7.0f} MiB above the {row['model_mb']:.0f} of the process with the model{kept}"
    text = f"{head} {'right' if row['same'] else 'WRONG'} error {row['error']:.0e} compile {row['compile_s']:6.1f} s"
    if "ms" in row:
        text += f" {row['ms']:9.2f} ms"
    if "speedup" in row:
        text += f" {row['speedup']:5.2f}x eager"
    if "above_s" in row:
        text += f", {row['above_s']:6.1f} s above aot_eager"
    return text


def _summary(rows: list[dict[str, Any]]) -> list[str]:
    """How many are right, and the geometric mean of the speedups, per dtype, threads and backend."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["dtype"], row["threads"], row["backend"]].append(row)
    lines = []
    for (dtype, threads, backend), members in groups.items():
        line = f"{dtype:4} t{threads} {backend:18} right {sum(bool(r.get('same')) for r in members)}/{len(members)}"
        speedups = [r["speedup"] for r in members if r.get("same") and "speedup" in r]
        if speedups:
            line += f", {geometric_mean(speedups):.2f}x eager (geometric mean), slowest {min(speedups):.2f}x"
        lines.append(line)
    return lines


def _rows(
    model: str, dtype: str, threads: int, backends: list[str], flags: list[str], timeout: float, caches: str | None = None
) -> list[dict[str, Any]]:
    """The rows of one fresh process; a process that died gives a failed row for each of its backends."""
    arguments = ["--one", "--models", model, "--dtypes", dtype, "--threads", str(threads), "--backends", ",".join(backends), *flags]
    rows, died = _child(arguments, threads, timeout, caches)
    return rows or [{"model": model, "dtype": dtype, "threads": threads, "backend": b, "failure": died} for b in backends]


@click.command(help=__doc__)
@click.option("--models", default="", help="Comma-separated, NAME or NAME@SIZE, as bert@129; all of benchmarks/models.py by default.")
@click.option("--dtypes", default="f32", show_default=True, help="Comma-separated, of f32, bf16, f16, f64.")
@click.option("--threads", default="1", show_default=True, help="Comma-separated numbers of threads.")
@click.option("--backends", default="eager,inductor,mlirc", show_default=True, help="Also inductor-freeze, aot_eager, ...")
@click.option("--seconds", default=3.0, show_default=True, help="Seconds of timing per backend; 0 only checks.")
@click.option("--compile-time", is_flag=True, help="Measure cold compilation instead of running.")
@click.option("--train", is_flag=True, help="Training steps, without dropout: forward, a loss, backward. Not for frozen weights.")
@click.option("--memory", is_flag=True, help="Measure the peak of the resident set in calls after the first ones instead, each backend in a process.")
@click.option("--timeout", default=900.0, show_default=True, help="Seconds that one process may take.")
@click.option("--out", type=click.Path(path_type=Path), help="Append the rows to this file as JSON lines.")
@click.option("--list", "names", is_flag=True, help="List the models.")
@click.option("--one", is_flag=True, hidden=True)
def main(
    models: str,
    dtypes: str,
    threads: str,
    backends: str,
    seconds: float,
    compile_time: bool,
    train: bool,
    memory: bool,
    timeout: float,
    out: Path | None,
    names: bool,
    one: bool,
) -> None:
    contestants = backends.split(",")
    if one:
        measured = memory_case(models, dtypes, int(threads), backends) if memory else run_case(models, dtypes, int(threads), contestants, seconds, train)
        for row in measured:
            print("ROW " + json.dumps(row), flush=True)
        return
    from .models import MODELS

    if names:
        click.echo("\n".join(MODELS))
        return
    chosen = chosen_models(models) if models else list(MODELS)
    kinds = chosen_dtypes(dtypes)
    if train and (memory or compile_time or {"inductor-freeze", "inductor-autotune"} & set(contestants)):
        raise click.UsageError("--train times steps of backends that can train: neither --memory nor --compile-time, and inductor without freezing")
    every: list[dict[str, Any]] = []
    for model, dtype, count in ((m, d, int(t)) for m in chosen for d in kinds for t in threads.split(",")):
        if compile_time:
            rows = _cold(model, dtype, count, contestants, timeout)
        elif memory:
            rows = [row for b in contestants for row in _rows(model, dtype, count, [b], ["--memory"], timeout)]
        else:
            rows = _rows(model, dtype, count, contestants, ["--seconds", str(seconds), *(["--train"] if train else [])], timeout)
        for row in rows:
            click.echo(_describe(row))
            if out:
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        every += rows
    if not compile_time and not memory:
        click.echo("\n".join(_summary(every)))
    sys.exit(0 if all(row.get("same") for row in every) else 1)


def _cold(model: str, dtype: str, threads: int, backends: list[str], timeout: float) -> list[dict[str, Any]]:
    """Cold compile seconds of each backend and how far they are above aot_eager's, each with empty caches of its own."""
    compilers = ["aot_eager", *(b for b in backends if b not in ("eager", "aot_eager"))]
    rows = []
    for backend in compilers:
        with tempfile.TemporaryDirectory(prefix="mlirc-suite-") as caches:
            rows += _rows(model, dtype, threads, [backend], ["--seconds", "0"], timeout, caches)
    floor = rows[0].get("compile_s")
    for row in rows:
        if floor is not None and "compile_s" in row:
            row["above_s"] = row["compile_s"] - floor
    return rows


if __name__ == "__main__":
    main()
