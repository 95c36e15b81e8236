"""`make demo`: ResNet-50, BERT-base and GPT-2, eager against mlirc. Random weights, nothing is downloaded."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

TITLES = {"resnet50_hf": "ResNet-50", "bert": "BERT-base", "gpt2": "GPT-2"}
STEPS = 5


@dataclass
class Row:
    """One model's line of the table."""

    title: str
    eager_ms: float = 0.0
    compiled_ms: float = 0.0
    compile_s: float = 0.0
    error: float = 0.0
    same: bool = False
    aten: dict[str, str] = field(default_factory=dict)
    """Calls that were left to ATen, with the reason."""
    kernels: int | None = None
    failure: str = ""


def _measure(name: str, backend: str, seconds: float, advance: Callable[[str], None]) -> Row:
    """Build, compile, compare and time one model; `advance` is called with what comes next. Failures end up in the row."""
    import torch
    import torch._dynamo
    from torch._dynamo.utils import counters

    from . import verdict
    from .measure import alternate, median_ms
    from .models import build

    row = Row(TITLES.get(name, name))
    advance("building")
    module, args, kwargs = build(name)
    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad():
        advance("eager and fp64")
        eager = verdict.tensors(module(*args, **kwargs))
        fp64 = verdict.reference(module, args, kwargs)
        advance("compiling")
        compiled = torch.compile(module, backend=backend)
        start = time.perf_counter()
        try:
            got = verdict.tensors(compiled(*args, **kwargs))
        except Exception as error:  # whatever a compiler raises belongs into the table
            row.failure = f"{type(error).__name__}: {error}"
            return row
        row.compile_s = time.perf_counter() - start
        if not counters["stats"]["unique_graphs"]:
            row.failure = "no graph reached the backend"
            return row
        row.error = verdict.relative_error(eager, got)
        row.same = verdict.same(eager, got, fp64, torch.float32)
        advance("timing")
        times = alternate({"eager": lambda: module(*args, **kwargs), "compiled": lambda: compiled(*args, **kwargs)}, seconds)
        row.eager_ms, row.compiled_ms = median_ms(times["eager"]), median_ms(times["compiled"])
        advance("report")
        if backend == "mlirc":
            _report(row, module, args, kwargs)
    return row


def _report(row: Row, module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Fill in what mlirc.explain says; its kernels come out of the cache by now."""
    import torch

    import mlirc

    torch._dynamo.reset()
    with contextlib.redirect_stdout(io.StringIO()):
        report = mlirc.explain(module, *args, **kwargs)
    row.aten = dict(report.aten_calls)
    row.kernels = len(report.kernels)


@contextlib.contextmanager
def _option(pair: str) -> Iterator[None]:
    """Add an option to MLIRC_OPTIONS for a while."""
    given = os.environ.get("MLIRC_OPTIONS")
    os.environ["MLIRC_OPTIONS"] = ",".join(filter(None, [given, pair]))
    try:
        yield
    finally:
        if given is None:
            del os.environ["MLIRC_OPTIONS"]
        else:
            os.environ["MLIRC_OPTIONS"] = given


def _table(rows: list[Row], backend: str) -> Table:
    table = Table(title=f"eager and {backend}, f32")
    table.add_column("model")
    for heading in ("eager ms", f"{backend} ms", "compile s", "largest error", "kernels"):
        table.add_column(heading, justify="right")
    table.add_column("right")
    table.add_column("left to ATen")
    for row in rows:
        if row.failure:
            first = row.failure.strip().splitlines()[0]
            table.add_row(row.title, "", "", "", "", "", "[red]failed[/red]", first[:100].replace("[", r"\["))
            continue
        right = "[green]yes[/green]" if row.same else "[red]NO[/red]"
        kernels = "-" if row.kernels is None else str(row.kernels)
        aten = "-" if row.kernels is None else ", ".join(row.aten) or "nothing"
        numbers = (f"{row.eager_ms:.1f}", f"{row.compiled_ms:.1f}", f"{row.compile_s:.1f}", f"{row.error:.1e}", kernels)
        table.add_row(row.title, *numbers, right, aten)
    return table


@click.command(help=__doc__)
@click.option("--models", default=",".join(TITLES), show_default=True, help="Comma-separated names of benchmarks/models.py.")
@click.option("--backend", default="mlirc", show_default=True, help="Any backend that torch.compile knows.")
@click.option("--seconds", default=3.0, show_default=True, help="Seconds of timing for each of the two.")
@click.option("--threads", default=0, help="Threads; 0 leaves torch's choice.")
def main(models: str, backend: str, seconds: float, threads: int) -> None:
    console = Console()
    names = models.split(",")
    rows: list[Row] = []
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
    )  # fmt: skip
    # A kernel cache of its own: compile seconds are those of a first run, every time.
    with tempfile.TemporaryDirectory(prefix="mlirc-demo-") as cache, _option(f"cache_dir={cache}"), bar:
        task = bar.add_task("importing torch", total=STEPS * len(names))
        import torch

        if threads:
            torch.set_num_threads(threads)
        for position, name in enumerate(names):
            title = TITLES.get(name, name)

            def advance(what: str, title: str = title) -> None:
                if what != "building":
                    bar.advance(task)
                bar.update(task, description=f"{title}: {what}")

            try:
                rows.append(_measure(name, backend, seconds, advance))
            except Exception as error:  # a model that does not even build must not hide the others
                rows.append(Row(title, failure=f"{type(error).__name__}: {error}"))
            bar.update(task, completed=STEPS * (position + 1))
    console.print(_table(rows, backend))
    for reason in sorted({f"{call}: {why}" for row in rows for call, why in row.aten.items()}):
        console.print("  left to ATen:", reason, markup=False)
    for row in rows:
        if row.failure:
            console.print(f"\n{row.title}: {row.failure}", markup=False)
    machine = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    console.print(f"{machine}; right = torch._dynamo.utils.same against fp64", markup=False)
    sys.exit(0 if all(row.same for row in rows) else 1)


if __name__ == "__main__":
    main()
