"""Models as libraries that run without Python (`mlirc.export`), beside AOTInductor's, eager mode and `torch.compile`.

For each model, in one process: seconds to make the library from an exported program, its size, whether what it computes is right
(`torch._dynamo.utils.same` against fp64), and the time of a call, in turns with the others'. mlirc's is called as C does, through its one
function; AOTInductor's (which needs a C++ compiler) through torch's runner of packages. Models that keep state between calls are left out.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click

from .suite import DTYPES, chosen_dtypes, chosen_models

CONTESTANTS = ("eager", "compiled", "aoti", "exported")


def measure(model: str, dtype: str, contestants: list[str], seconds: float, folder: Path) -> dict[str, Any]:
    """Milliseconds of each contestant (`ms`), seconds to make the libraries (`make_s`) and their megabytes (`mb`), and whether ours is right."""
    import torch
    from torch.utils import _pytree as pytree

    import mlirc

    from . import verdict
    from .measure import alternate, median_ms
    from .models import build, build_in

    kind = getattr(torch, DTYPES[dtype])
    module, args, kwargs = build_in(model, kind)
    row: dict[str, Any] = {"model": model, "dtype": dtype, "make_s": {}, "mb": {}}
    calls: dict[str, Callable[[], object]] = {}
    with torch.no_grad():
        expected = verdict.tensors(module(*args, **kwargs))
        program = torch.export.export(module, args, kwargs)
        if "eager" in contestants:
            calls["eager"] = lambda: module(*args, **kwargs)
        if "compiled" in contestants:
            compiled = torch.compile(module, backend="mlirc")
            calls["compiled"] = lambda: compiled(*args, **kwargs)
        if "aoti" in contestants:
            start = time.perf_counter()
            package = torch._inductor.aoti_compile_and_package(
                program, package_path=str(folder / "model.pt2"), inductor_configs={"freezing": True, "force_disable_caches": True}
            )
            row["make_s"]["aoti"] = time.perf_counter() - start
            row["mb"]["aoti"] = Path(package).stat().st_size / 1e6
            loaded = torch._inductor.aoti_load_package(package)
            calls["aoti"] = lambda: loaded(*args, **kwargs)
        start = time.perf_counter()
        made = mlirc.export(program, folder / "model.so", options={"cache": False})
        row["make_s"]["exported"] = time.perf_counter() - start
        row["mb"]["exported"] = made.nbytes / 1e6
        inputs = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        outputs = [torch.empty(t.shape, dtype=t.dtype) for t in expected]
        run = ctypes.CDLL(str(made.library)).model_run
        pointers = [(ctypes.c_void_p * len(x))(*[t.data_ptr() for t in x]) for x in (inputs, outputs)]
        status = run(*pointers, None, None)
        if status:
            raise RuntimeError(f"{model}: status {status}")
        exact, exact_args, exact_kwargs = build(model)
        row["same"] = verdict.same(expected, outputs, verdict.reference(exact, exact_args, exact_kwargs), kind)
        calls["exported"] = lambda: run(*pointers, None, None)
        row["ms"] = {name: median_ms(times) for name, times in alternate(calls, seconds).items()}
    return row


def _describe(row: dict[str, Any]) -> str:
    made = ", ".join(f"{name} {s:.1f} s, {row['mb'][name]:.0f} MB" for name, s in row["make_s"].items())
    times = ", ".join(f"{name} {ms:.2f}" for name, ms in row["ms"].items())
    return f"{row['model']:14} {row['dtype']:4} {'right' if row['same'] else 'WRONG'}; made: {made}; ms: {times}"


@click.command(help=__doc__)
@click.option("--models", default="resnet50,mobilenetv3,vit_b16,bert,gpt2,lstm", show_default=True, help="Comma-separated, NAME or NAME@SIZE.")
@click.option("--dtypes", default="f32", show_default=True, help="Comma-separated, of f32, bf16, f16, f64.")
@click.option("--contestants", default=",".join(CONTESTANTS), show_default=True, help="Beside `exported`.")
@click.option("--threads", default=1, show_default=True, help="Of each contestant.")
@click.option("--seconds", default=3.0, show_default=True, help="Seconds of timing for each contestant.")
def main(models: str, dtypes: str, contestants: str, threads: int, seconds: float) -> None:
    names = contestants.split(",")
    if unknown := set(names) - set(CONTESTANTS):
        raise click.UsageError(f"unknown {', '.join(sorted(unknown))}; contestants: {', '.join(CONTESTANTS)}")
    os.environ["OMP_NUM_THREADS"] = str(threads)  # before anything loads OpenMP
    import torch

    torch.set_num_threads(threads)
    rows = []
    for model, dtype in ((m, d) for m in chosen_models(models) for d in chosen_dtypes(dtypes)):
        with tempfile.TemporaryDirectory(prefix="mlirc-exported-") as folder:
            rows.append(measure(model, dtype, names, seconds, Path(folder)))
        click.echo(_describe(rows[-1]))
    for name in names:
        ratios = [r["ms"][name] / r["ms"]["exported"] for r in rows if name in r["ms"] and name != "exported"]
        if ratios:
            click.echo(f"exported: {geometric_mean(ratios):.2f}x {name} (geometric mean), slowest {min(ratios):.2f}x")
    raise SystemExit(0 if all(r["same"] for r in rows) else 1)


if __name__ == "__main__":
    main()
